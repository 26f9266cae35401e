"""The examples in the docstrings say what happens."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["anchors", "automaton", "gbnf", "habits", "utf8"])
def test_docstring_examples_hold(name: str) -> None:
    done = doctest.testmod(import_module(f"diskmoe.grammar_draft.{name}"))
    assert done.attempted and not done.failed
