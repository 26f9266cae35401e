"""Grammars from files: a path, or the name of one of ours; GBNF, or a JSON Schema."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from diskmoe.grammar_draft.errors import BadGrammar
from diskmoe.grammar_draft.languages import from_gbnf, from_schema
from diskmoe.grammar_draft.lexer import TokenId
from diskmoe.grammar_draft.rules import Grammar

MAX_BYTES = 4 << 20


def shipped() -> list[str]:
    """The names of the grammars that come with the package."""
    folder = resources.files("diskmoe.grammar_draft") / "grammars"
    names = (entry.name for entry in folder.iterdir())
    return sorted(name.removesuffix(".gbnf") for name in names if name.endswith(".gbnf"))


def load(
    place: str,
    root: str = "root",
    strict: bool = False,
    token_id: TokenId | None = None,
    profile: str = "drafts",
    whitespace: str = "flexible",
    lax: bool = False,
) -> Grammar:
    """Reads the grammar at a path or, where no such file is, ours of that name.

    A file whose text begins with { or [ is a JSON Schema; all others are GBNF.

    Args:
        place: a path, or a name of ``shipped()``.
        root, strict, token_id: of GBNF, as of ``from_gbnf``.
        profile, whitespace, lax: of a schema, as of ``from_schema``.

    Raises:
        BadGrammar: no such file, one that is too large, or what the languages raise.
    """
    data = _data(place)
    if data.lstrip()[:1] in (b"{", b"["):
        return from_schema(data, profile=profile, whitespace=whitespace, lax=lax, name=place)
    return from_gbnf(data, name=place, root=root, strict=strict, token_id=token_id)


def load_schema(
    place: str, profile: str = "drafts", whitespace: str = "flexible", lax: bool = False
) -> Grammar:
    """Reads the JSON Schema at a path. Raises BadGrammar as `load` does."""
    return from_schema(_data(place), profile=profile, whitespace=whitespace, lax=lax, name=place)


def _data(place: str) -> bytes:
    try:
        with Path(place).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        name = place.removesuffix(".gbnf")
        if name in shipped():
            folder = resources.files("diskmoe.grammar_draft") / "grammars"
            return (folder / f"{name}.gbnf").read_bytes()
        if "::=" in place or place.lstrip()[:1] == "{":
            raise BadGrammar(
                "a grammar or a schema itself, where the name of a file is wanted: in Python, "
                "languages.from_gbnf and from_schema make one of it",
                place[:40],
            ) from None
        why = getattr(error, "strerror", None) or str(error)
        raise BadGrammar(
            f"cannot be read ({why}); ours are {', '.join(shipped())}", place[:200]
        ) from None
    if len(data) > MAX_BYTES:
        raise BadGrammar(f"the file is larger than {MAX_BYTES} bytes", place)
    return data
