"""docs/llama-cpp-python.md names what there is and what raises, all of it."""

import inspect
import re

from manual_text import ROOT

from diskmoe.engine.llama_arguments import CHOOSING, LOADING
from diskmoe.engine.llama_compat import Llama, LlamaGrammar

PAGE = (ROOT / "docs" / "llama-cpp-python.md").read_text("utf-8")
THERE, _, REST = PAGE.partition("## What is the same but for its way")
HARMLESS, _, RAISES = REST.partition("## What raises")


def arguments(function: object) -> list[str]:
    found = inspect.signature(function).parameters.values()  # pyright: ignore[reportArgumentType]
    return [each.name for each in found if each.name not in ("self", "others", "how", "model")]


def test_every_argument_and_method_that_there_is_is_named() -> None:
    for function in (Llama.__init__, Llama.create_completion, Llama.create_chat_completion):
        for name in arguments(function):
            assert re.search(rf"\b{name}\b", THERE) or f"`{name}`" in RAISES, name
    for owner in (Llama, LlamaGrammar):
        for name in vars(owner):
            if not name.startswith("_") and name != "grammar":
                assert f"`{name}`" in THERE or name in ("model_path", "verbose"), name


def test_every_argument_that_raises_is_named_and_those_that_change_nothing() -> None:
    for table in (LOADING, CHOOSING):
        for name, allowed in table.items():
            anything = True in allowed and False in allowed
            assert f"`{name}`" in (HARMLESS if anything else RAISES), name
