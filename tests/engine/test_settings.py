"""Settings: where a value comes from, and what is said of a bad one."""

import pytest

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.setting_sources import resolve
from diskmoe.engine.settings import SETTINGS


def test_flag_wins_over_prefixed_name_over_bare_name() -> None:
    env = {"NGEN": "1", "DISKMOE_NGEN": "2"}
    assert resolve({"NGEN": "3"}, env)[0]["NGEN"].value == 3
    assert resolve({}, env)[0]["NGEN"].value == 2
    assert resolve({}, {"NGEN": "1"})[0]["NGEN"].value == 1
    assert resolve({}, {})[0]["NGEN"].source == "default"


def test_source_is_named() -> None:
    values, _ = resolve({"CAP": "8"}, {"DISKMOE_SEED": "3"}, {"CAP": "argument"})
    assert values["CAP"].source == "argument"
    assert values["SEED"].source == "env DISKMOE_SEED"


def test_temp_that_is_a_directory_is_ignored_with_a_note() -> None:
    values, notes = resolve({}, {"TEMP": r"C:\Users\me\AppData\Local\Temp"})
    assert values["TEMP"].value is None
    assert len(notes) == 1 and "TEMP" in notes[0]


def test_prefixed_temp_that_is_no_number_is_an_error() -> None:
    with pytest.raises(BadRequest, match="DISKMOE_TEMP"):
        resolve({}, {"DISKMOE_TEMP": "warm"})


def test_prompt_template_of_the_windows_shell_is_ignored() -> None:
    values, notes = resolve({}, {"PROMPT": "$P$G"})
    assert values["PROMPT"].value is None and notes


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("NGEN", "0"),
        ("NGEN", "many"),
        ("CAP", "0"),
        ("CAP", "1.5"),
        ("EXPERT_BITS", "5"),
        ("RAM_GB", "nan"),
        ("RAM_GB", "-1"),
        ("TOP_P", "1.01"),
        ("DIRECT", "maybe"),
        ("PROMPT_IDS", "1,x"),
        ("PROMPT_IDS", ""),
        ("MODEL", ""),
        ("SCHEMA", " "),
        ("API_KEY", ""),
        ("PROMPT_IDS", "-3"),
        ("SEED", "1e9"),
    ],
)
def test_bad_value_names_the_setting_the_value_and_what_is_allowed(name: str, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        resolve({name: text}, {})
    message = str(caught.value)
    assert name in message and repr(text) in message and "must be" in message
    assert "\n" not in message


def test_temp_that_is_a_number_out_of_range_is_an_error_not_ignored() -> None:
    with pytest.raises(BadRequest, match="TEMP"):
        resolve({}, {"TEMP": "150"})


def test_names_that_belong_to_others_are_read_with_the_prefix_only() -> None:
    values, notes = resolve({}, {"CACHE_DIR": "/else", "SYSTEM": "x", "DISKMOE_VERBOSE": "1"})
    assert values["CACHE_DIR"].value is None and values["SYSTEM"].value is None
    assert values["VERBOSE"].value is True and not notes


def test_unknown_prefixed_variable_gets_a_suggestion() -> None:
    with pytest.raises(BadRequest, match="DISKMOE_THREADS"):
        resolve({}, {"DISKMOE_THREDS": "2"})


def test_defaults_parse_as_themselves() -> None:
    for setting in SETTINGS:
        if isinstance(setting.default, (int, float)) and not isinstance(setting.default, bool):
            assert setting.parse(str(setting.default)) == setting.default
