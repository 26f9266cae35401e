"""Jinja for chat templates that nobody has read: sandboxed, and bounded in time and memory.

A chat template is a program inside a model's files. Jinja's sandbox keeps it from reaching Python;
this environment also makes it end. The rule kept here: whatever can repeat or grow is counted.
Loops and calls take steps from a budget; strings and containers are measured when they are made,
with shared parts counted as often as they would be printed. So no value becomes larger than
LARGEST_VALUE, all values together take no more than MOST_MADE, and no operation on values of that
size is slow.

The counting (`bounds.py`) is put into the parsed template (`Counter`), into the sandbox's hooks for
operators and calls, and around the filters. Filters and methods that grow text by a number have
that number bounded, or are left out.
"""

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from diskmoe.engine.text.bounds import (
    LONGEST_NEEDLE,
    Meter,
    TemplateLimit,
    check_format,
    check_numbers,
    check_replace,
    check_size,
    depth,
    join_parts,
    measure,
    width,
)

# Without those that grow text, rewrite it slowly, or depend on chance.
FILTER_NAMES = frozenset(FILTERS) - {
    "center",
    "filesizeformat",
    "forceescape",
    "pprint",
    "random",
    "striptags",
    "urlencode",
    "urlize",
    "wordwrap",
    "xmlattr",
}
# Methods of built-in values: all of these give at most what they were given, or are bounded below.
SAFE_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(name for name in dir(str) if not name.startswith("_"))
    - {"encode", "expandtabs", "maketrans", "translate"},
    dict: frozenset(["copy", "get", "items", "keys", "values"]),
    list: frozenset(["copy", "count", "index"]),
    tuple: frozenset(["count", "index"]),
}


class TemplateRefusal(Exception):
    """A template called raise_exception: it cannot render these messages, and says why."""


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment. Compile with `compile_bounded`, and call `start` before each render."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self, clock: Callable[[], datetime] = datetime.now):
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _Generation],
            optimized=False,  # constants must be computed where they are counted
            finalize=jinja2.pass_context(lambda context, value: self.printed(value)),
            autoescape=False,
            cache_size=0,
        )
        self.meter = Meter()
        self.filters = {name: self._bounded(name, FILTERS[name]) for name in FILTER_NAMES}
        self.filters["tojson"] = self._bounded("tojson", _to_json)
        # Jinja's own would return Markup, which escapes what is added to it.
        self.filters["safe"] = self._bounded("safe", lambda value: str(value))
        self.globals = {name: self.globals[name] for name in ("range", "cycler", "joiner")}
        # Functions, so that a template has no class to take methods from.
        self.globals["dict"] = lambda *args, **items: dict(*args, **items)
        self.globals["namespace"] = lambda *args, **items: _Namespace(*args, **items)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: clock().strftime(_short(form))

    def start(self) -> None:
        """Begin the budget of one render in this thread."""
        self.meter.start()

    def compile_bounded(self, source: str, name: str) -> jinja2.Template:
        """The template, with its counting built in; jinja2.TemplateError and the errors of
        Python's own compiler may come out of it."""
        tree = Counter(self).visit(self.parse(source, name, name))
        code = self.compile(tree, name, name)
        return jinja2.Template.from_code(self, code, self.make_globals(None))

    # What the compiled template calls

    def step(self) -> None:
        self.meter.step()

    def printed(self, value: Any) -> Any:
        self.meter.print(value)
        return value

    def made(self, value: Any) -> Any:
        self.meter.make(value)
        return value

    def joined(self, *values: Any) -> str:
        measure(values)
        return self.made("".join(map(str, values)))

    # The sandbox's hooks

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.meter.step()
        if operator == "*":
            for text, count in ((left, right), (right, left)):
                if isinstance(count, int) and not isinstance(text, (int, float)):
                    check_size(measure(text) * max(0, count))
        elif operator == "%" and isinstance(left, str):
            check_format(left)
            check_size(len(left) + left.count("%") * measure(right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * abs(right) > 4096:
                raise TemplateLimit("computes a power of more than 4096 bits")
        elif operator == "+" and not isinstance(left, (int, float)):
            check_size(measure(left) + measure(right))
        value = super().call_binop(context, operator, left, right)
        if isinstance(value, int) and value.bit_length() > 4096:
            raise TemplateLimit("computes a number of more than 4096 bits")
        return self.made(value)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.meter.step()
        owner: Any = getattr(obj, "__self__", None)
        name = getattr(obj, "__name__", "")
        if owner is self:
            return obj(*args)  # put there by Counter
        if isinstance(owner, (str, dict, list, tuple, int, float, bytes, range)):
            allowed = [names for kind, names in SAFE_METHODS.items() if isinstance(owner, kind)]
            if not any(name in names for names in allowed):
                raise SecurityError(f"the method {name} is not allowed")
            check_numbers(args, kwargs)
            if isinstance(owner, str) and name == "join" and args:
                args = (join_parts(owner, args[0]), *args[1:])
            elif isinstance(owner, str) and name == "replace" and len(args) > 1:
                check_replace(owner, args[0], args[1])
            elif name.startswith("r") and any(
                isinstance(arg, str) and len(arg) > LONGEST_NEEDLE for arg in args
            ):
                raise TemplateLimit(
                    f"searches with {name} for more than {LONGEST_NEEDLE} characters"
                )
        return self.made(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            check_format(value.__self__)
            check_size(len(value.__self__) + value.__self__.count("{") * measure([args, kwargs]))
            return wrapped(*args, **kwargs)

        return bounded

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that counts a step, bounds its arguments and measures its result."""
        hidden = 0 if not hasattr(function, "jinja_pass_arg") else 1  # its context or environment

        def bounded(*args: Any, **kwargs: Any) -> Any:
            self.meter.step()
            value, *options = args[hidden:]
            if name not in ("default", "d"):
                check_numbers(options, kwargs)
            if name == "sum":
                start = [*options[1:], *(kwargs[key] for key in kwargs if key == "start")]
                if not all(isinstance(number, (int, float)) for number in start):
                    raise TemplateLimit("sums up what are no numbers")
            elif name == "format":
                check_format(str(value))
                check_size(len(value) + str(value).count("%") * measure([options, kwargs]))
            elif name == "indent":
                check_size(measure(value) + str(value).count("\n") * (4 + width(options, kwargs)))
            elif name == "tojson":
                size = measure(value)
                each = depth(value) * width(options, kwargs)
                check_size(size + size // 8 * each)
            elif name == "join":
                separator = options[0] if options else kwargs.get("d", "")
                value = join_parts(str(separator), value)
            elif name == "replace":
                old, new = [*options, *kwargs.values()][:2]
                if "new" in kwargs:
                    old, new = kwargs.get("old", old), kwargs["new"]
                check_replace(str(value), str(old), str(new))
            else:
                measure(value)
            result = function(*args[:hidden], value, *options, **kwargs)
            if isinstance(result, Iterator):
                result = list(result)  # no generator leaves a filter: it would not be counted
            return self.made(result)

        bounded.__name__ = name
        if hidden:
            bounded.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return bounded


class Counter(NodeTransformer):
    """Puts the sandbox's counters into a parsed template."""

    def __init__(self, environment: Sandbox):
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        step = nodes.ExprStmt(self._call("step", [], node.lineno))
        node.body.insert(0, step.set_lineno(node.lineno))
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        # As a constant it passes through `printed` like everything else that is written.
        return self._placed(nodes.Const(node.data), node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._call("joined", node.nodes, node.lineno)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return self._call("made", [node], node.lineno)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return self._call("made", [node], node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        is_copy = isinstance(node.arg, nodes.Slice)
        return self._call("made", [node], node.lineno) if is_copy else node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx != "load" else self._call("made", [node], node.lineno)

    def _call(self, name: str, args: list[nodes.Expr], lineno: int) -> nodes.Expr:
        function = nodes.EnvironmentAttribute(name)
        return self._placed(nodes.Call(function, args, [], None, None), lineno)

    def _placed(self, node: nodes.Expr, lineno: int) -> nodes.Expr:
        node.set_lineno(lineno)
        node.set_environment(self._environment)
        return node


class _Namespace(Namespace):
    """Jinja's namespace, printed without its contents: they are not measured."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Generation(Extension):
    """``{% generation %}`` marks the model's own words for training; to render it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it for templates: Unicode kept, nothing escaped for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: Any) -> None:
    raise TemplateRefusal(str(message)[:1000])


def _short(form: Any) -> str:
    if not isinstance(form, str) or len(form) > 200 or re.search(r"\d{3}", form):
        raise TemplateLimit("asks strftime_now for an odd format")
    return form
