"""docs/api.md, made from the docstrings of what Python programs call."""

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

HEAD = """\
# The Python API

<!-- made by scripts/make_manual.py from the docstrings -->

Every name that programs call. [python.md](python.md) is the tour.
"""
# module -> its names, in the order of the page
MODULES: Sequence[tuple[str, Sequence[str]]] = (
    (
        "diskmoe.engine",
        (
            "Model", "Options", "Sampling", "Run", "RunStats", "Conversation", "Turn", "ThinkBudget",
            "Prompt", "DiskMoeError", "BadModel", "BadRequest", "OutOfBudget", "BadGrammar", "DeadEnd",
        ),
    ),
    ("diskmoe.engine.api", ("prepare",)),
    ("diskmoe.engine.prepared", ("Prepared",)),
    ("diskmoe.engine.stats", ("Phase",)),
    ("diskmoe.engine.observed", ("LogProbs",)),
    ("diskmoe.engine.text.side", ("TextSide",)),
    ("diskmoe.mtp.compose", ("Account",)),
    (
        "diskmoe.grammar_draft.languages",
        ("from_gbnf", "from_schema", "from_regex", "from_choices", "from_type"),
    ),
    ("diskmoe.grammar_draft.library", ("load", "shipped")),
    ("diskmoe.engine.llama_compat", ("Llama", "LlamaGrammar")),
)  # fmt: skip

# members that are for the program itself
INNER = ("Model.transformer", "TextSide.load", "TextSide.unread", "Account.judge", "Phase.add")


def api_page() -> str:
    parts = [HEAD]
    for module, names in MODULES:
        parts.append(f"\n## `{module}`\n")
        for name in names:
            parts += _entry(name, getattr(import_module(module), name))
    return "\n".join(parts)


def _entry(name: str, thing: Any) -> Iterator[str]:
    kind = "exception " if inspect.isclass(thing) and issubclass(thing, Exception) else ""
    kind = kind or ("class " if inspect.isclass(thing) else "")
    yield f"### {kind}{name}\n"
    if not kind or is_dataclass(thing) or name == "Llama":  # others are not made by programs
        yield _signature(name, thing)
    yield _told(thing)
    if inspect.isclass(thing) and not kind.startswith("exception"):
        for member, value in vars(thing).items():
            shown = not member.startswith("_") or member == "__call__"
            if shown and f"{name}.{member}" not in INNER:
                yield from _member(name, member, value)


def _member(owner: str, name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        returns = _annotation(inspect.signature(value.fget).return_annotation)  # pyright: ignore[reportArgumentType]
        yield f"#### `{owner}.{name}` -> `{returns}`\n"
        yield _told(value.fget)
    elif isinstance(value, (classmethod, staticmethod)) or inspect.isfunction(value):
        yield f"#### {owner}.{name}\n"
        yield _signature(f"{owner}.{name}", getattr(value, "__func__", value))
        yield _told(getattr(value, "__func__", value))


def _signature(name: str, thing: Any) -> str:
    """In a block, a parameter a line where they are many."""
    signature = inspect.signature(thing)
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    signature = signature.replace(parameters=parameters)
    returns = _annotation(signature.return_annotation)
    back = "" if inspect.isclass(thing) or not returns else f" -> {returns}"
    words = [_parameter(p) for p in parameters]
    if any(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters) and not any(
        p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters
    ):
        first = next(
            i for i, p in enumerate(parameters) if p.kind is inspect.Parameter.KEYWORD_ONLY
        )
        words.insert(first, "*")
    short = f"{name}({', '.join(words)}){back}"
    if len(short) > 90:
        short = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){back}"
    return f"```text\n{short}\n```\n"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }.get(parameter.kind, "")
    said = stars + parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        said += f": {_annotation(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        default = parameter.default
        shown = "..." if "<" in repr(default) or callable(default) else repr(default)
        said += f" = {shown}"
    return said


def _annotation(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    return _plain(
        annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    )


def _plain(text: str) -> str:
    """Without the homes of names."""
    return re.sub(r"\b(?:[a-z_0-9]+\.)+(?=[A-Za-z_])", "", text)


def _told(thing: Any) -> str:
    """A docstring as Markdown: what it names in a list under Args and Raises."""
    own = thing.__doc__ if not inspect.isclass(thing) else vars(thing).get("__doc__")
    text = inspect.cleandoc(own or "")
    if inspect.isclass(thing) and text.startswith(f"{thing.__name__}("):
        text = ""  # what a dataclass says of itself
    lines: list[str] = []
    section = False
    for line in text.replace("``", "`").splitlines():
        if re.fullmatch(r"(Args|Raises|Returns):", line):
            lines += [f"{line}", ""]
            section = True
        elif section and (item := re.match(r"    (\S[^:]*): (.*)", line)):
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif section and line.startswith("        "):
            lines.append(f"  {line.strip()}")
        elif section and line.startswith("    "):
            lines.append(f"- {line.strip()}")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"
