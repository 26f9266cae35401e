"""Templates in the manner of the families, against what transformers wrote for them."""

import json
from datetime import datetime

import pytest
from chat_talks import GOLDEN, OPTIONS, TALKS, TODAY, TOKENS, cases

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.text.template import ChatTemplate

NAMES = sorted({name for name, _, _ in cases()})


@pytest.fixture(scope="module")
def golden() -> dict:
    return json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))


def template_of(name: str, make_directory) -> ChatTemplate:
    text = (GOLDEN / f"{name}.jinja").read_text(encoding="utf-8")
    directory = make_directory(None, config=TOKENS, template=text)
    template = ChatTemplate.load(directory, clock=lambda: datetime(*TODAY))
    assert template is not None
    return template


@pytest.mark.parametrize("name", NAMES)
def test_a_familys_template_writes_what_transformers_writes(name, golden, make_directory):
    """Systems, turns, thoughts, tools, calls and parts, with thinking on and off."""
    template = template_of(name, make_directory)
    for talk, expected in golden["cases"][name].items():
        for number, text in enumerate(expected):
            said = f"{talk}, options {number}"
            if text is None:
                with pytest.raises(BadRequest, match=r"the chat template, line \d+, "):
                    template.render(TALKS[talk], **OPTIONS[number])
            else:
                written = template.render(TALKS[talk], **OPTIONS[number])
                assert written == golden["texts"][text], said


def test_every_case_is_in_the_golden_file(golden):
    told = {
        (name, talk, number)
        for name, talks in golden["cases"].items()
        for talk, expected in talks.items()
        for number in range(len(expected))
    }
    assert told == set(cases()) and len(NAMES) >= 11
