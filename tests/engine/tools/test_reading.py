"""Answers of all families are read into calls, whole and in whatever pieces they come."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tool_answers import ARGUMENTS, CASES, TOOLS, Case
from hypothesis import given
from hypothesis import strategies as st

from diskmoe.engine.tools.parts import Gathered, Part, Said
from diskmoe.engine.tools.reading import Reader
from diskmoe.engine.tools.toolbox import Toolbox

BOX = Toolbox.of(TOOLS)


def read(case: Case, pieces: Sequence[str], cut: bool = False) -> list[Part]:
    reader = Reader(case.form, BOX)
    parts = [part for piece in pieces for part in reader.feed(piece)]
    return [*parts, *reader.end(cut)]
