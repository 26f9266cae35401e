"""What the types of JSON ask of who puts their rules together."""

from __future__ import annotations

from typing import Any, Protocol

from diskmoe.grammar_draft.json_rules import JsonRules
from diskmoe.grammar_draft.rules import Ref
from diskmoe.grammar_draft.schema.facts import Facts, Node
from diskmoe.grammar_draft.schema.profiles import Profile


class Builder(Protocol):
    made: JsonRules
    profile: Profile

    def rule(self, node: Node) -> Ref:
        """The rule of a node, which is worked out later."""
        ...

    def ways(self, node: Node) -> list[Facts]:
        """The ways to satisfy a node."""
        ...

    def hopeless(self, node: Node) -> bool:
        """Whether nothing satisfies a node, as far as a few levels tell."""
        ...

    def fits(self, node: Node, value: Any) -> bool:
        """Whether a value satisfies a node."""
        ...

    def contrary(self, node: Node) -> Node:
        """What is not a node of one schema."""
        ...

    def refuse(self, facts: Facts, kind: str, why: str) -> None:
        """An error, or a note where that is allowed: facts of a kind cannot be expressed."""
        ...
