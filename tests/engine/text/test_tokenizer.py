"""Text to ids and back to bytes, and files that are not what they should be."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.text import tokenizer as tokenizer_module
from diskmoe.engine.text.tokenizer import TextTokenizer, load_tokenizer

END, TURN_START, TURN_END, THINK = 0, 1, 2, 3


def load(directory: Path, vocab_size: int = 500) -> TextTokenizer:
    tokenizer = load_tokenizer(directory, vocab_size)
    assert tokenizer is not None
    return tokenizer


def test_a_directory_without_tokenizer_json_has_no_tokenizer(tmp_path):
    assert load_tokenizer(tmp_path, 100) is None


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
@pytest.mark.parametrize("text", ["Hello, world!", "naïve café", "漢字 🙂", "a  b\n\tc", "Paris"])
def test_the_bytes_of_the_tokens_spell_the_text(make_directory, kind, text):
    tokenizer = load(make_directory(kind))

    spelled = tokenizer.decode_bytes(tokenizer.encode(text))

    assert spelled == b" " * tokenizer.leading_space + text.encode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(text=st.text(max_size=40))
def test_any_text_survives_a_byte_level_round_trip(make_directory, text):
    tokenizer = load(make_directory())

    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()


def test_sentencepiece_puts_a_space_before_the_text_and_byte_level_does_not(make_directory):
    assert load(make_directory("sentencepiece")).leading_space
    assert not load(make_directory("byte-level")).leading_space


def test_a_character_outside_the_pieces_is_spelled_byte_by_byte(make_directory):
    tokenizer = load(make_directory("sentencepiece"))

    pieces = [tokenizer.token_bytes[i] for i in tokenizer.encode("🙂")]

    assert pieces == [b" ", b"\xf0", b"\x9f", b"\x99", b"\x82"]


def test_special_tokens_print_nothing_and_other_added_tokens_print(make_directory):
    tokenizer = load(make_directory())

    ids = tokenizer.encode("<|im_start|>a<think>b<|im_end|>")

    assert ids[0] == TURN_START
    assert ids[-1] == TURN_END
    assert THINK in ids
    assert tokenizer.is_special(TURN_START)
    assert not tokenizer.is_special(THINK)
    assert tokenizer.token_bytes[TURN_START] is None
    assert tokenizer.decode_bytes(ids) == b"a<think>b"


def test_an_added_token_is_literal_text_even_where_the_byte_table_has_its_letters(make_directory):
    def add(data):
        new = {"id": len(data["model"]["vocab"]), "content": "¡Ġé"}
        data["added_tokens"].append({**data["added_tokens"][3], **new})

    tokenizer = load(make_directory(edit=add))

    assert tokenizer.decode_bytes(tokenizer.encode("¡Ġé")) == "¡Ġé".encode()
    assert len(tokenizer.encode("¡Ġé")) == 1


def test_an_added_token_with_an_id_that_the_library_would_change_is_refused(make_directory):
    def add(data):
        data["added_tokens"].append({**data["added_tokens"][3], "id": 400, "content": "<tool>"})

    with pytest.raises(BadModel, match="added token '<tool>' has id 400"):
        load(make_directory(edit=add))


def test_a_token_named_in_the_config_is_special_though_the_file_does_not_say_so(make_directory):
    directory = make_directory(config={"eos_token": {"content": "<think>"}})

    tokenizer = load(directory)

    assert tokenizer.is_special(THINK)
    assert tokenizer.token_bytes[THINK] is None


def test_a_plain_word_used_for_padding_still_prints(make_directory):
    tokenizer = load(make_directory(config={"pad_token": "!"}))

    assert tokenizer.decode_bytes(tokenizer.encode("!")) == b"!"


def test_raw_text_gets_its_bos_and_a_rendered_chat_does_not(make_directory):
    tokenizer = load(make_directory("sentencepiece"))

    assert tokenizer.encode("Paris", special=True) == [1, *tokenizer.encode("Paris")]
    assert 1 not in tokenizer.encode("Paris")


def test_text_that_begins_with_bos_gets_no_second_one(make_directory):
    tokenizer = load(make_directory("sentencepiece"))

    assert tokenizer.encode("<s>Paris", special=True).count(1) == 1


@pytest.mark.parametrize(("asked", "before"), [(True, (TURN_START,)), (False, ()), (None, ())])
def test_add_bos_token_decides_where_the_post_processor_does_not(make_directory, asked, before):
    config = {"bos_token": "<|im_start|>", "add_bos_token": asked}

    tokenizer = load(make_directory(config=config))

    assert tokenizer.prefix_ids == before


def test_add_bos_token_false_wins_over_the_post_processor(make_directory):
    directory = make_directory("sentencepiece", config={"add_bos_token": False})

    assert load(directory).prefix_ids == ()


def test_a_file_that_would_cut_or_pad_texts_encodes_them_whole(make_directory):
    def cut_and_pad(data):
        data["truncation"] = {
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        }
        data["padding"] = {
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<|endoftext|>",
        }

    tokenizer = load(make_directory(edit=cut_and_pad))

    assert tokenizer.decode_bytes(tokenizer.encode("one two three")) == b"one two three"
    assert END not in tokenizer.encode("one")


def test_rows_of_the_vocabulary_without_a_token_are_known(make_directory):
    tokenizer = load(make_directory(), 410)

    size = tokenizer.backend.get_vocab_size()

    assert tokenizer.surplus_ids == tuple(range(size, 410))
    assert tokenizer.valid_count == size
    assert tokenizer.valid_mask.tolist() == [i < size for i in range(410)]
    assert all(tokenizer.token_bytes[i] is None for i in tokenizer.surplus_ids)


def test_more_ids_than_the_model_has_is_said_with_both_numbers(make_directory):
    directory = make_directory()
    highest = load(directory).valid_count - 1

    with pytest.raises(BadModel, match=rf"ids up to {highest} .* the model has 300 "):
        load(directory, 300)


def test_a_lone_surrogate_is_a_bad_request(make_directory):
    tokenizer = load(make_directory())

    with pytest.raises(BadRequest, match="surrogate at character 2"):
        tokenizer.encode("ab\udc80")


def test_a_tokenizer_that_changes_text_is_refused_with_the_probe(make_directory):
    def lower_case(data):
        data["normalizer"] = {"type": "Lowercase"}

    with pytest.raises(BadModel, match=r"for the probe 'Hello, world!'"):
        load(make_directory(edit=lower_case))


def test_text_that_the_vocabulary_cannot_spell_is_no_reason_to_refuse_it(make_directory):
    def lose_a_byte(data):  # F0 begins every emoji; SmolLM2 lacks F1 and F2 in this way
        vocab, lost = data["model"]["vocab"], "ð"
        data["model"]["vocab"] = {t: i for t, i in vocab.items() if lost not in t}
        data["model"]["merges"] = [m for m in data["model"]["merges"] if lost not in "".join(m)]

    tokenizer = load(make_directory(edit=lose_a_byte))

    assert len(tokenizer.surplus_ids) == 500 - tokenizer.backend.get_vocab_size()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "holds a JSON list"),
        ("{}", "no model.vocab"),
        ('{"model": 3}', "no model.vocab"),
        ('{"model": {"vocab": {"a": -1}}}', "gives 'a' the id -1"),
        ('{"model": {"vocab": {"a": "0"}}}', "gives 'a' the id '0'"),
        ('{"model": {"vocab": {"a": 1, "b": 1}}}', "2 entries but 1 ids"),
        ('{"model": {"vocab": {"a": 99999999999999999999}}}', "ids up to 99999999999999999999"),
        ('{"model": {"vocab": [["a"], 3]}}', "not of .piece, score. pairs"),
        ('{"model": {"vocab": {}}, "added_tokens": 1}', "added_tokens is not a list"),
        ('{"model": {"vocab": {}}, "added_tokens": [{"id": 1}]}', r"added_tokens\[0\]"),
        ('{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 0, "content": "b"}]}', "id 0"),
        ('{"model": {"vocab": {"a": 0}}}', "library refuses it"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["b", "c"]]}}', "refuses it"),
        ('{"a":' * 5000 + "0" + "}" * 5000, "nested too deeply|no model.vocab"),
    ],
)
def test_a_broken_tokenizer_json_is_one_line_with_its_path(tmp_path, text, told):
    (tmp_path / "tokenizer.json").write_text(text)

    with pytest.raises(BadModel, match=told) as caught:
        load_tokenizer(tmp_path, 100)

    assert str(tmp_path / "tokenizer.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text_or_too_big_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"\x80\x00")
    with pytest.raises(BadModel, match="byte 0 is not UTF-8"):
        load_tokenizer(tmp_path, 100)

    monkeypatch.setattr(tokenizer_module, "TOKENIZER_LIMIT_BYTES", 1)
    with pytest.raises(BadModel, match="bigger than 1 bytes"):
        load_tokenizer(tmp_path, 100)


def test_a_vocabulary_of_whole_words_is_refused(make_directory):
    def words(data):
        data["model"] = {"type": "WordLevel", "vocab": {"a": 10, "[U]": 11}, "unk_token": "[U]"}
        data["added_tokens"] = []
        data["pre_tokenizer"] = {"type": "Whitespace"}
        data["decoder"] = None

    with pytest.raises(BadModel, match="neither a byte-level nor a SentencePiece"):
        load(make_directory(edit=words))
