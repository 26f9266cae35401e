"""Prompts become ids; ids become text that is never taken back."""

import random

import pytest

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.text.session import TextStream, chat_ids, prepare_prompt
from diskmoe.engine.text.template import ChatTemplate
from diskmoe.engine.text.tokenizer import load_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '<think>' if think }}{% endif %}"
)


@pytest.fixture
def tokenizer(make_directory):
    """Byte-level; <|im_end|> is id 2 and special."""
    tokenizer = load_tokenizer(make_directory(), 500)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture
def chat(make_directory):
    """(tokenizer, template) of a chat model."""
    directory = make_directory(template=CHATML)
    return load_tokenizer(directory, 500), ChatTemplate.load(directory)


def byte_ids(tokenizer, data: bytes) -> list[int]:
    """One token for each byte."""
    ids = {spelled: i for i, spelled in enumerate(tokenizer.token_bytes) if spelled is not None}
    return [ids[bytes([byte])] for byte in data]


# Streaming


def test_a_character_appears_when_its_last_byte_arrives(tokenizer):
    stream = TextStream(tokenizer)

    pieces = [stream.push([i]) for i in byte_ids(tokenizer, "é🙂".encode())]

    assert pieces == ["", "é", "", "", "", "🙂"]
    assert stream.flush() == ""


def test_a_broken_character_is_replaced_when_it_is_certain(tokenizer):
    stream = TextStream(tokenizer)

    pieces = [stream.push([i]) for i in byte_ids(tokenizer, b"a\xf0\x9fb\xff\xc3")]

    assert pieces == ["a", "", "", "\ufffdb", "\ufffd", ""]
    assert stream.flush() == "\ufffd"


def test_special_tokens_print_nothing(tokenizer):
    stream = TextStream(tokenizer)

    assert stream.push(tokenizer.encode("a<|im_end|>b")) == "ab"
    assert stream.stopped is None


def test_text_that_may_begin_a_stop_string_waits(tokenizer):
    stream = TextStream(tokenizer, stops=["\n\nUser:"])

    pieces = [stream.push([i]) for i in byte_ids(tokenizer, b"a\n\nUs\n\nUser:")]

    assert pieces == ["a", "", "", "", "", "\n\nUs", "", "", "", "", "", ""]
    assert stream.stopped == "\n\nUser:"
    assert stream.flush() == ""


def test_text_that_waits_in_vain_is_given_at_the_end(tokenizer):
    stream = TextStream(tokenizer, stops=["END"])

    assert stream.push(byte_ids(tokenizer, b"the EN")) == "the "
    assert stream.flush() == "EN"
    assert stream.stopped is None


def test_after_a_stop_nothing_comes_and_no_more_ids_are_taken(tokenizer):
    stream = TextStream(tokenizer, stops=["."])

    assert stream.push(byte_ids(tokenizer, b"One. Two")) == "One"
    assert stream.consumed == 4
    assert stream.push(byte_ids(tokenizer, b"Three")) == ""
    assert stream.consumed == 4


@pytest.mark.parametrize(
    ("stops", "kept", "stopped"),
    [
        (["abcd", "c"], "xab", "c"),  # complete first
        (["bc", "c"], "xa", "bc"),  # complete together: the longest
        (["cd", "d", "bcd"], "xa", "bcd"),
        (["zz"], "xabcd", None),
    ],
)
def test_the_first_complete_and_longest_stop_cuts_the_text(tokenizer, stops, kept, stopped):
    for size in (1, 2, 5):
        stream = TextStream(tokenizer, stops)
        ids = byte_ids(tokenizer, b"xabcd")
        text = "".join(stream.push(ids[i : i + size]) for i in range(0, 5, size)) + stream.flush()

        assert (text, stream.stopped) == (kept, stopped)


def test_the_cut_does_not_depend_on_how_ids_are_grouped(tokenizer):
    chance = random.Random(0)
    for _ in range(100):
        data = bytes(chance.choice("ab\né".encode()) for _ in range(12))
        stops = ["".join(chance.choices("ab\né", k=chance.randint(1, 3))) for _ in range(2)]
        ids = byte_ids(tokenizer, data)
        results = set()
        for size in (1, 3, 12):
            stream = TextStream(tokenizer, stops)
            text = "".join(stream.push(ids[i : i + size]) for i in range(0, 12, size))
            results.add((text + stream.flush(), stream.stopped, stream.consumed))

        text = data.decode(errors="replace")
        assert len(results) == 1
        assert text.startswith(results.pop()[0])


def test_a_special_token_named_as_a_stop_string_ends_the_text(tokenizer):
    stream = TextStream(tokenizer, stops=["<|im_end|>", "bcd"])

    assert stream.push(tokenizer.encode("abc<|im_end|>d")) == "abc"
    assert stream.stopped == "<|im_end|>"


def test_a_chat_answer_may_drop_its_leading_space(tokenizer):
    stream = TextStream(tokenizer, skip_leading_space=True)

    assert stream.push(byte_ids(tokenizer, b"  Paris is")) == " Paris is"


@pytest.mark.parametrize("stops", [[""], [3]])
def test_an_empty_stop_string_is_a_bad_request(tokenizer, stops):
    with pytest.raises(BadRequest, match="stop string"):
        TextStream(tokenizer, stops)


# Prompts


def test_a_chat_model_gets_its_template_unless_told_otherwise(chat):
    tokenizer, template = chat
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"

    ids, note = prepare_prompt("Hi", "auto", tokenizer, template)

    assert ids == tokenizer.encode(rendered)
    assert note == "chat template (chat_template.jinja)"
    assert prepare_prompt("Hi", "raw", tokenizer, template) == (tokenizer.encode("Hi"), "raw text")


def test_a_model_without_a_template_gets_raw_text_and_the_note_says_so(make_directory):
    tokenizer = load_tokenizer(make_directory("sentencepiece"), 500)
    assert tokenizer is not None

    ids, note = prepare_prompt("Paris", "auto", tokenizer, None)

    assert ids == tokenizer.encode("Paris", special=True)
    assert note == "raw text: the model has no chat template, after <s>"


def test_a_system_message_and_options_reach_the_template(chat):
    tokenizer, template = chat

    ids, _ = prepare_prompt("Hi", "chat", tokenizer, template, system="Be brief.", think=True)

    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert ids == tokenizer.encode(text + "<|im_start|>assistant\n<think>")


def test_a_conversation_becomes_ids(chat):
    tokenizer, template = chat
    messages = [{"role": "user", "content": "Hi"}]

    ids = chat_ids(messages, tokenizer, template, add_generation_prompt=False)

    assert ids == tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n")


@pytest.mark.parametrize(
    ("prompt", "mode", "system", "told"),
    [
        ("Hi", "chat", None, "has no chat template"),
        ("Hi", "raw", "Be brief.", "a system message needs a chat template"),
        ("", "raw", None, "the prompt is empty"),
        ("Hi", "talk", None, "none of auto, chat, raw"),
    ],
)
def test_a_prompt_that_cannot_be_made_is_a_bad_request(tokenizer, prompt, mode, system, told):
    with pytest.raises(BadRequest, match=told):
        prepare_prompt(prompt, mode, tokenizer, None, system)
