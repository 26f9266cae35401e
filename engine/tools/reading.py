"""An answer read as it comes: what of it is said, and what calls tools.

The rules kept here: the same text gives the same calls however it is cut; of a marker that is under
way nothing is given; what begins as a call and is none is given back as text, with a note.

    reader = Reader(form, toolbox)
    parts = [*reader.feed("Let me see.\\n<tool_c"), *reader.feed("all>..."), *reader.end(cut=False)]
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from functools import partial

from diskmoe.engine.tools.channels import messages
from diskmoe.engine.tools.cursor import Cursor, CutShort, Malformed, Step
from diskmoe.engine.tools.forms import ID, NUMBER, Form
from diskmoe.engine.tools.json_text import Brackets, checked, converted, parsed, quoted
from diskmoe.engine.tools.parts import Argued, Called, Part, Said, Unmade
from diskmoe.engine.tools.toolbox import KINDS, Tool, Toolbox

MOST_NAME = 256
MOST_VALUE = 1 << 24
_NINE = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NOT_IN_NAMES = '<>"[]{}'
_HEAD = re.compile(
    r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)'
)


class Reader:
    """Reads one answer. notes: what was odd, a line each. calls: how many have begun; open: the one
    whose arguments are under way, if any."""

    def __init__(self, form: Form, toolbox: Toolbox | None) -> None:
        self.notes: list[str] = []
        self.calls = 0
        self.open: int | None = None
        self.cursor = Cursor()
        self.form = form
        self._toolbox = toolbox
        self._cut = False
        self._mark = 0  # where the call under way begins
        self._steps = self._answer()

    def feed(self, text: str) -> Iterator[Part]:
        """The parts that are certain after more text."""
        self.cursor.feed(text)
        return self._parts()

    def end(self, cut: bool) -> Iterator[Part]:
        """The last parts. cut: the text might have gone on."""
        self.cursor.ended, self._cut = True, cut
        return self._parts()

    def _parts(self) -> Iterator[Part]:
        for part in self._steps:
            if part is None:
                return
            yield part

    def _answer(self) -> Step[None]:
        cursor, opening = self.cursor, self.form.opening
        if self.form.channels:
            yield from messages(cursor, lambda name, mark: self.guarded(self.json(name), mark))
            return
        try:
            while True:
                yield from cursor.stream([opening], Said, " ")
                if opening.startswith("{"):  # the call itself
                    cursor.at -= len(opening)
                yield from self._calls()
                yield from cursor.blanks()
                cursor.forget()
        except CutShort:
            return

    def _calls(self) -> Step[None]:
        """The calls behind what opens them."""
        form, cursor = self.form, self.cursor
        if form.object_key:
            yield from self.guarded(self._objects(), cursor.given)
            return
        if not form.section[0]:
            call = self._call(form.before.removeprefix(form.opening))
            yield from self.guarded(call, cursor.given)
            return
        mark = cursor.given
        while not (yield from cursor.follows(form.section[1])):
            if cursor.at == len(cursor.text) and mark > cursor.given:
                return  # it has ended, with a call but without the closing
            if not (yield from self.guarded(self._call(form.before), mark)):
                return
            mark = cursor.at

    def guarded(self, step: Step[None], mark: int) -> Step[bool]:
        """A call; what is none is given back from a mark on. Whether it was one."""
        cursor, before = self.cursor, self.calls
        self._mark = mark
        try:
            yield from step
            return True
        except Malformed as error:
            why = str(error)
            cursor.at = cursor.at if error.at is None else error.at
        except CutShort:
            if self.calls > before and (self._cut or self.open is None):
                return True
            why = "the answer ends within it"
        text, index = cursor.text[self._mark : cursor.at], self.open
        self.open, cursor.given = None, cursor.at
        if text:
            self.notes.append(f"a call of a tool that is none is given as text: {why}")
            yield Unmade(index, text)
        return False

    def _call(self, before: str) -> Step[None]:
        """A call that is no JSON object, from what comes before its name."""
        form, cursor = self.form, self.cursor
        own = form.ids == "own"
        yield from cursor.expect(before.removesuffix("functions.") if own else before)
        yield from cursor.blanks()
        id_ = name = yield from cursor.run(_NOT_IN_NAMES, MOST_NAME)
        if own:
            name = name.removeprefix("functions.").rpartition(":")[0] or name
        first, _, last = form.behind.rpartition(ID if ID in form.behind else NUMBER)
        if ID in form.behind:
            yield from cursor.expect(first)
            id_ = yield from cursor.run(_NOT_IN_NAMES, MOST_NAME)
        yield from cursor.expect(last)
        if form.parameters is None:
            yield from self.json(name, id_ if own or ID in form.behind else "")
        else:
            yield from self.begin(name)
            yield from self._parameters(self._toolbox and self._toolbox.tool(name))
        for word in form.closing.split():
            yield from cursor.follows(word)

    def begin(self, name: str, id_: str = "") -> Step[None]:
        """A call is sure to be one."""
        if not name:
            raise Malformed("it names no function")
        if self._toolbox is None or self._toolbox.tool(name) is None:
            self.notes.append(f"the answer calls {name[:60]!r}, which is none of the tools")
        if not id_:
            nine = "".join(secrets.choice(_NINE) for _ in range(9))
            id_ = nine if self.form.ids == "nine" else f"call_{secrets.token_hex(12)}"
        self.open = self.calls
        self.calls += 1
        yield Called(self.open, id_, name)

    def json(self, name: str, id_: str = "") -> Step[None]:
        """A call's arguments as one JSON object, perhaps within a string."""
        cursor, index = self.cursor, self.calls
        yield from cursor.blanks()
        first = yield from cursor.next()
        if first == '"':
            text = yield from _json_string(cursor)
            checked(text)
            yield from self.begin(name, id_)
            yield Argued(index, text)
        elif first == "{":
            yield from self.begin(name, id_)
            checked((yield from self._value(index)))
        else:
            raise Malformed(f"its arguments begin with {first!r}")
        self.open = None

    def _value(self, index: int) -> Step[str]:
        """A JSON object or list as it comes."""
        cursor, brackets = self.cursor, Brackets()
        begin = cursor.at
        while not brackets.closed:
            end = brackets.read(cursor.text, cursor.at)
            if end > cursor.at:
                text, cursor.at = cursor.text[cursor.at : end], end
                yield Argued(index, text)
            if not brackets.closed:
                yield from cursor.more()
        return cursor.text[begin : cursor.at]

    def _either(self, end: str) -> Step[str]:
        """JSON, or a text up to what closes it, which JSON may hold."""
        cursor, brackets = self.cursor, Brackets()
        begin = cursor.at
        if (yield from cursor.next()) in "{[":
            try:
                while not brackets.closed:
                    cursor.at = brackets.read(cursor.text, cursor.at)
                    if not brackets.closed:
                        yield from cursor.more()
                behind = cursor.at
                if (yield from cursor.follows(end)):
                    return cursor.text[begin:behind]
            except (Malformed, CutShort):
                pass
            cursor.at = begin
        return (yield from cursor.until(end, MOST_VALUE))

    def _objects(self) -> Step[None]:
        """One call as an object, or a list of them."""
        cursor = self.cursor
        if (yield from cursor.follows("[")):
            while not (yield from cursor.follows("]")):
                yield from self._object()
                yield from cursor.follows(",")
                self._mark = cursor.at
        else:
            yield from self._object()
            word = self.form.closing.removeprefix("}").strip()
            if word:
                yield from cursor.follows(word)

    def _object(self) -> Step[None]:
        cursor, brackets = self.cursor, Brackets()
        yield from cursor.blanks()
        begin = at = cursor.at
        first = yield from cursor.next()
        if first != "{":
            raise Malformed(f"{first!r} stands where '{{' must")
        while True:
            head = _HEAD.match(cursor.text, begin)
            if head is not None:
                break
            at = cursor.at = brackets.read(cursor.text, at)
            if brackets.closed:
                yield from self._known(cursor.text[begin:at])
                return
            yield from cursor.more()
        cursor.at = head.end()
        yield from self.json(self._named(parsed(head[1])))
        if (yield from cursor.follows("}")):
            return
        if (yield from cursor.follows(",")):  # what else it has is nothing to us
            rest = Brackets("{")
            while not rest.closed:
                cursor.at = rest.read(cursor.text, cursor.at)
                if not rest.closed:
                    yield from cursor.more()

    def _known(self, text: str) -> Step[None]:
        """A call that is all there, whatever the order of its keys."""
        found = checked(text)
        found = found.get("function", found)
        name = found.get("name") if isinstance(found, dict) else None
        if not isinstance(name, str):
            raise Malformed("it has no name")
        given = found.get("arguments", found.get("parameters", {}))
        given = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        checked(given)
        index = self.calls
        yield from self.begin(self._named(name))
        yield Argued(index, given)
        self.open = None

    def _named(self, name: str) -> str:
        """The name; where nothing but JSON says that it is a call, it must be one of a tool."""
        if self.form.opening.startswith("{") and not (self._toolbox and self._toolbox.tool(name)):
            raise Malformed(f"{name[:60]!r} is none of the tools")
        return name

    def _parameters(self, tool: Tool | None) -> Step[None]:
        """Arguments one after the other, up to the closing, the first word of which is passed."""
        cursor, one, index = self.cursor, self.form.parameters, self.calls - 1
        assert one is not None
        comma, closing = "{", self.form.closing.split()
        while True:
            for word in closing:
                if (yield from cursor.follows(word)):
                    yield Argued(index, "{}" if comma == "{" else "}")
                    self.open = None
                    return
            yield from cursor.expect(one.before)
            middle = one.behind.split()
            key = yield from cursor.until(">" if one.behind_json else middle[0], MOST_NAME)
            said = ""
            if one.behind_json:
                key, _, said = key.partition('"')
            else:
                yield from cursor.expect(" ".join(middle[1:]))
            kinds = _kinds(tool, key, said)
            yield Argued(index, f"{comma}{quoted(key)}: ")
            comma = ", "
            end = one.closing.strip()
            if one.lines and (yield from cursor.next()) == "\n":
                cursor.at += 1
            if kinds == {"string"}:
                yield Argued(index, '"')
                to_part = partial(_escaped, index)
                yield from cursor.stream([end], to_part, "\n" if one.lines else "")
                yield Argued(index, '"')
            elif "string" not in kinds and (yield from cursor.next()) in "{[":
                parsed((yield from self._value(index)))
                yield from cursor.expect(end)
            else:
                text = yield from self._either(end)
                text = text.removesuffix("\n") if one.lines else text
                yield Argued(index, converted(text, kinds))


def _kinds(tool: Tool | None, key: str, said: str) -> frozenset[str]:
    """The types that a value may be of. said: by the answer itself, whether it is a text."""
    if "true" in said or (tool is None and not said):
        return frozenset(["string"])
    kinds = KINDS if tool is None else tool.kinds(key)
    return kinds - {"string"} if said else kinds


def _escaped(index: int, text: str) -> Argued:
    return Argued(index, quoted(text)[1:-1])


def _json_string(cursor: Cursor) -> Step[str]:
    """A JSON string, read and passed."""
    begin, at, escaped = cursor.at, cursor.at + 1, False
    while True:
        while at < len(cursor.text):
            character, at = cursor.text[at], at + 1
            if character == '"' and not escaped:
                cursor.at = at
                return parsed(cursor.text[begin:at])
            escaped = character == "\\" and not escaped
        yield from cursor.more()
