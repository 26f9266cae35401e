"""Where an answer ends: at every stop that the files name or a family is known by, and not before."""

import json
import re
from pathlib import Path

import pytest
from chat_talks import GOLDEN
from tokenizers import Tokenizer

from diskmoe.engine.errors import BadModel
from diskmoe.engine.text import bounds
from diskmoe.engine.text.side import TextSide
from diskmoe.engine.text.stops import TURN_ENDS, collect_stop_ids, turn_ends
from diskmoe.engine.text.template import ChatTemplate
from diskmoe.engine.text.tokenizer import TextTokenizer, load_tokenizer

# what a family's answers end with, and what they have within them: (template, ends, within)
FAMILIES = {
    "qwen3": ("qwen3_moe", "<|im_end|> <|endoftext|>", "<|im_start|> <think> <tool_call>"),
    "glm": ("glm4_moe", "<|user|> <|observation|> <|endoftext|>", "<|assistant|> <think> [gMASK]"),
    "gpt-oss": ("gpt_oss", "<|return|> <|call|>", "<|end|> <|start|> <|channel|> <|message|>"),
    "deepseek": (
        "deepseek_v3",
        "<｜end▁of▁sentence｜> <｜User｜>",
        "<｜Assistant｜> <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜>",
    ),
    "kimi": (
        "kimi_k2",
        "<|im_end|> <|im_user|> <|im_system|>",
        "<|im_middle|> <|im_assistant|> <|tool_calls_section_begin|> <|tool_call_end|>",
    ),
    "minimax": ("minimax_m2", "[e~[ ]~b]", "<think> </think>"),
    "granite": ("granitemoe", "<|end_of_text|> <|start_of_role|>", "<|end_of_role|> <|tool_call|>"),
    "llama": ("qwen2_moe", "<|eot_id|> <|eom_id|>", "<|python_tag|> <|start_header_id|>"),
}


def load(directory: Path) -> TextTokenizer:
    tokenizer = load_tokenizer(directory, 500)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture
def make_side(make_directory):
    """make_side(template, special tokens, plain added tokens=, config=, generation=) -> TextSide"""

    def make(template: str | None, special: str, added: str = "", config=None, generation=None):
        directory = make_directory(template=template)
        path = directory / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.add_special_tokens(special.split())
        tokenizer.add_tokens(added.split())
        tokenizer.save(str(path))
        if generation is not None:
            (directory / "generation_config.json").write_text(json.dumps(generation))
        return TextSide.load(directory, config or {}, 500)

    return make


def written(side: TextSide, ids: frozenset[int]) -> set[str]:
    assert side.tokenizer is not None
    return {side.tokenizer.special_text[token] for token in ids}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_answers_end_at_its_markers_and_at_nothing_within_them(family, make_side):
    """Of a model whose files name no stop at all."""
    name, ends, within = FAMILIES[family]
    template = (GOLDEN / f"{name}.jinja").read_text(encoding="utf-8")
    side = make_side(template, f"{ends} {within}")

    stops = written(side, side.stops(in_chat=True))
    assert set(ends.split()) <= stops
    assert not stops & set(within.split())


def test_a_raw_text_ends_only_where_the_files_say(make_side):
    side = make_side("{{ messages[0].content }}", "<|user|>", generation={"eos_token_id": [0, 2]})

    assert written(side, side.stops(in_chat=False)) == {"<|endoftext|>", "<|im_end|>"}
    assert "<|user|>" in written(side, side.stops(in_chat=True))
    assert "<|user|>, in a chat" in side.describe_stops()


def test_without_a_template_there_are_no_turns(make_side):
    side = make_side(None, "<|user|> <|eot_id|>")

    assert not side.turn_ends and side.describe_stops().startswith("no stop token is named")


def test_a_marker_that_is_no_special_token_is_text(make_side):
    side = make_side("{{ messages[0].content }}", "<|eot_id|>", added="<|user|>")

    assert "<|user|>" not in side.turn_ends.values() and "<|eot_id|>" in side.turn_ends.values()


def test_a_stop_that_the_files_name_is_not_told_twice(make_side):
    side = make_side("{{ messages[0].content }}", "", generation={"eos_token_id": 2})

    assert 2 in side.stop_ids and 2 not in side.turn_ends
    assert side.describe_stops() == "2 (generation_config); 0 (<|endoftext|>, in a chat)"


def test_no_marker_of_a_turns_end_is_one_that_answers_contain():
    within = {marker for _, _, inside in FAMILIES.values() for marker in inside.split()}

    assert not TURN_ENDS & within
    assert turn_ends({5: "<|end|>", 6: "<|call|>"}) == {6: "<|call|>"}


@pytest.mark.parametrize(
    ("stop", "words"),
    [(40, r"stop token 40 \(generation_config\) is the word b'.*' in tokenizer.json"),
     (499, r"stop token 499 \(generation_config\) is no token in tokenizer.json")],
)  # fmt: skip
def test_a_stop_that_is_a_word_or_nothing_says_that_files_may_not_belong_together(
    make_side, stop, words
):
    side = make_side(None, "", generation={"eos_token_id": [0, stop]})

    (note,) = side.notes
    assert re.match(words, note)


def test_stop_ids_are_the_union_of_what_the_files_name(make_directory):
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}"
    directory = make_directory(config={"eos_token": "<|endoftext|>"}, template=template)
    tokenizer = load(directory)

    ids, sources = tokenizer.stop_ids(
        {"eos_token_id": [7, 0]},
        {"eos_token_id": 0},
        json.loads((directory / "tokenizer_config.json").read_text()),
        ChatTemplate.load(directory),
    )

    assert ids == {0, 2, 7}
    assert sources == {
        0: "generation_config, config, tokenizer_config eos_token",
        2: "chat template's end of turn",
        7: "generation_config",
    }


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}",  # GLM: nothing after it
        "{% for m in messages %}{{ m.content }}. {% endfor %}",
        "{{ raise_exception('only one message') }}",
    ],
)
def test_a_template_that_ends_no_turn_adds_no_stop(make_directory, template):
    directory = make_directory(template=template)

    ids, _ = load(directory).stop_ids({}, {}, {}, ChatTemplate.load(directory))

    assert ids == frozenset()


HARMONY = """\
{% for m in messages %}<|start|>{{ m.role }}{% if m.thinking %}<|channel|>analysis<|message|>\
{{ m.thinking }}<|end|><|start|>assistant{% endif %}<|channel|>final<|message|>{{ m.content }}\
END{% endfor %}"""


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ("<|end|>", None),
        ("<|end|><|done|>", "<|done|>"),
        ("<|done|><|end|>", "<|done|>"),
        ("\n<|done|>", "<|done|>"),
        (".<|done|>", None),
    ],
)
def test_what_a_template_ends_messages_within_an_answer_with_is_no_end_of_turn(
    make_side, end, found
):
    """<|end|> stands behind the reasoning too: an answer that ended there would never begin."""
    special = "<|start|> <|channel|> <|message|> <|end|> <|done|>"
    side = make_side(HARMONY.replace("END", end), special)

    assert written(side, side.stop_ids) == ({found} if found else set())


def test_a_template_without_end_is_refused_in_a_chat_and_does_not_disturb_raw_text(
    make_side, monkeypatch
):
    monkeypatch.setattr(bounds, "MOST_STEPS", 1000)
    side = make_side("{% for a in range(99999) %}{% endfor %}", "")

    assert side.encode_prompt("Hello", chat="0").ids
    with pytest.raises(BadModel, match=r"line 1, takes more than \d+ steps; it is not used"):
        side.encode_prompt("Hello")


def test_a_stop_id_outside_the_vocabulary_is_told_but_not_used():
    ids, sources = collect_stop_ids(100, None, {"eos_token_id": 50279})

    assert ids == frozenset()
    assert sources == {50279: "config (ignored: the model has 100 ids)"}


def test_stops_of_a_text_half_are_those_of_the_model():
    config = {"eos_token_id": 7, "text_config": {"eos_token_id": [7, 9]}}
    assert collect_stop_ids(100, None, config) == ({7, 9}, {7: "config", 9: "config"})
    assert collect_stop_ids(100, None, {"text_config": "?"}) == (frozenset(), {})


@pytest.mark.parametrize("eos", ["</s>", True, [1, 2.5], {}])
def test_a_stop_id_that_is_no_number_is_a_bad_model(eos):
    with pytest.raises(BadModel, match="generation_config.json: eos_token_id"):
        collect_stop_ids(100, {"eos_token_id": eos}, None)
