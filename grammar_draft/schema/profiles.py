"""Whose reading of a schema: what is assumed where it says nothing, and what is let pass."""

from __future__ import annotations

from dataclasses import dataclass

from diskmoe.grammar_draft.errors import BadGrammar


@dataclass(frozen=True)
class Profile:
    """guesses: keywords of one type mean that type where none is named. closed: an object that names
    properties has no others unless it says so. required_first: required members stand before optional
    ones. exclusive: oneOf means one and not two. lax: what cannot be expressed is let pass with a
    note. digits: of the parts of a number, at most. blanks: new lines in a row and blanks behind them
    where whitespace is flexible; (-1, -1) is any."""

    name: str
    guesses: bool = False
    closed: bool = False
    required_first: bool = False
    exclusive: bool = True
    lax: bool = False
    digits: int | None = None
    blanks: tuple[int, int] = (2, 64)


# json-schema: the specification. llama.cpp: its converter's. drafts: verified afterwards anyway.
PROFILES = (
    Profile("json-schema"),
    Profile("llama.cpp", True, True, True, False, True, 16, (2, 20)),
    Profile("drafts", True, True, False, False, True, None, (-1, -1)),
)


def profile_of(name: str) -> Profile:
    for profile in PROFILES:
        if profile.name == name:
            return profile
    known = ", ".join(profile.name for profile in PROFILES)
    raise BadGrammar(f"there is no schema profile {name!r}; there are {known}")
