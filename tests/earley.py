"""A slow recogniser that is plainly right, and the grammars it is given: the tests' oracle.

It shares nothing with the package: a grammar here is a tree of its own, printed as GBNF for the
package and flattened into productions for Earley's algorithm ("An efficient context-free parsing
algorithm", 1970), which runs over code points and repeats each step until nothing changes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

Node = tuple  # ("text", str) ("set", negated, ranges) ("ref", name) ("seq"|"alt", nodes)
#               ("repeat", node, low, high)


LETTERS = 'ab"\n\u00e9\u20ac\U0001f600'


def drawn(choose: random.Random) -> dict[str, Node]:
    """A grammar of up to four rules, small enough for every one of its loops to be met."""
    names = ["root", "x", "y", "z"][: choose.randint(1, 4)]

    def node(depth: int) -> Node:
        kind = choose.choice(("text", "text", "set", "ref", "ref", "seq", "alt", "repeat"))
        if depth <= 0 and kind in ("seq", "alt", "repeat"):
            kind = "text"
        if kind == "text":
            return ("text", "".join(choose.choices(LETTERS, k=choose.choice((0, 1, 1, 1, 2)))))
        if kind == "set":
            ranges = []
            for _ in range(choose.randint(1, 3)):
                low = ord(choose.choice(LETTERS)) + choose.randint(-1, 1)
                ranges.append((low, low + choose.choice((0, 0, 1, 40, 3000))))
            return ("set", choose.random() < 0.3, ranges)
        if kind == "ref":
            return ("ref", choose.choice(names))
        if kind == "repeat":
            low = choose.choice((0, 0, 1, 2, 3))
            high = choose.choice((None, low, low + 1, low + 2, low + 5))
            return ("repeat", node(depth - 1), low, high)
        return (kind, [node(depth - 1) for _ in range(choose.randint(1, 3))])

    return {name: node(3) for name in names}


def drawn_counting(choose: random.Random) -> dict[str, Node]:
    """A grammar of long repetitions, in and behind one another, most of which a loop can count."""

    def item(depth: int) -> Node:
        kind = choose.choice(("text", "set", "seq", "seq", "alt", "ref", "many"))
        if depth <= 0 and kind in ("seq", "alt", "ref"):
            kind = "set"
        if kind == "text":
            return ("text", "".join(choose.choices(LETTERS, k=choose.choice((1, 1, 2)))))
        if kind == "set":
            lowest = ord(choose.choice(LETTERS))
            return ("set", choose.random() < 0.1, [(lowest, lowest + choose.choice((0, 0, 1, 9)))])
        if kind == "many":
            return ("repeat", item(0), choose.choice((0, 1)), choose.choice((None, 1)))
        if kind == "ref":
            return ("ref", choose.choice(("x", "y")))
        return (kind, [item(depth - 1) for _ in range(choose.randint(2, 3))])

    def repeated(depth: int) -> Node:
        low = choose.choice((0, 0, 1, 2, 5))
        return ("repeat", item(depth), low, low + choose.choice((0, 2, 3, 9)))

    def part(depth: int) -> Node:
        if choose.random() < 0.5:
            return ("seq", [("text", choose.choice(LETTERS)), repeated(depth)])
        return repeated(depth) if choose.random() < 0.7 else item(depth)

    root = ("seq", [part(2) for _ in range(choose.randint(1, 3))])
    if choose.random() < 0.2:
        root = ("alt", [root, ("seq", [part(2), part(1)])])
    return {"root": root, "x": ("seq", [part(1), item(0)]), "y": repeated(0)}


def gbnf(rules: dict[str, Node]) -> str:
    """The grammar's text."""
    return "".join(f"{name} ::= {_shown(node)}\n" for name, node in rules.items())


def _shown(node: Node) -> str:
    kind = node[0]
    if kind == "text":
        return '"' + "".join(map(_escaped, node[1])) + '"'
    if kind == "set":
        inside = "".join(f"\\U{low:08X}-\\U{high:08X}" for low, high in node[2])
        return f"[{'^' if node[1] else ''}{inside}]"
    if kind == "ref":
        return node[1]
    if kind == "seq":
        return "(" + " ".join(map(_shown, node[1])) + ")"
    if kind == "alt":
        return "(" + " | ".join(map(_shown, node[1])) + ")"
    _, inner, low, high = node
    bounds = f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
    return f"({_shown(inner)}){bounds}"


def _escaped(character: str) -> str:
    return {'"': '\\"', "\\": "\\\\", "\n": "\\n"}.get(character, character)


@dataclass(frozen=True)
class Terminal:
    """A set of code points."""

    negated: bool
    ranges: tuple[tuple[int, int], ...]

    def has(self, point: int) -> bool:
        if 0xD800 <= point <= 0xDFFF or (self.negated and point == 0):
            return False
        return any(low <= point <= high for low, high in self.ranges) != self.negated

    def overlaps(self, low: int, high: int) -> bool:
        """Whether any code point of low..high is in the set."""
        borders = {low, high}
        for first, last in (*self.ranges, (0xD800, 0xDFFF), (0, 0)):
            borders |= {first - 1, first, last, last + 1}
        return any(self.has(point) for point in borders if low <= point <= high)


class Earley:
    """Productions of a grammar; rules no text can complete are dropped with all that needs them."""

    def __init__(self, rules: dict[str, Node]):
        self.productions: dict[str, list[tuple]] = {}
        for name, node in rules.items():
            self.productions[name] = []
            for body in self._bodies(node):
                self.productions[name].append(body)
        good: set[str] = set()
        while True:
            more = {
                name
                for name, bodies in self.productions.items()
                if any(all(self._good(s, good) for s in body) for body in bodies)
            }
            if more == good:
                break
            good = more
        self.productions = {
            name: [b for b in bodies if all(self._good(s, good) for s in b)]
            for name, bodies in self.productions.items()
        }
        self.alive = "root" in good

    @staticmethod
    def _good(symbol: object, good: set[str]) -> bool:
        if isinstance(symbol, Terminal):
            return symbol.overlaps(0, 0x10FFFF)
        return symbol in good

    def _bodies(self, node: Node) -> list[tuple]:
        if node[0] == "alt":
            return [self._sequence(child) for child in node[1]]
        return [self._sequence(node)]

    def _sequence(self, node: Node) -> tuple:
        kind = node[0]
        if kind == "text":
            return tuple(Terminal(False, ((ord(c), ord(c)),)) for c in node[1])
        if kind == "set":
            return (Terminal(node[1], tuple(node[2])),) if node[2] else ()
        if kind == "ref":
            return (node[1],)
        if kind == "seq":
            return tuple(symbol for child in node[1] for symbol in self._sequence(child))
        if kind == "alt":
            return (self._fresh(self._bodies(node)),)
        _, inner, low, high = node
        item = self._fresh([self._sequence(inner)])
        if high is None:
            rest = self._fresh([])
            self.productions[rest] += [(), (item, rest)]
            return (item,) * low + (rest,)
        optional: tuple = ()
        for _ in range(high - low):
            optional = (self._fresh([(), (item, *optional)]),)
        return (item,) * low + optional

    def _fresh(self, bodies: list[tuple]) -> str:
        name = f"#{len(self.productions)}"
        self.productions[name] = bodies
        return name

    def chart(self, text: str) -> list[set]:
        """Earley's sets, one more than there are characters (fewer when no item survives)."""
        sets = [{("root", body, 0, 0) for body in self.productions["root"]}]
        for i in range(len(text) + 1):
            self._complete(sets, i)
            if i == len(text):
                break
            scanned = {
                (name, body, dot + 1, origin)
                for name, body, dot, origin in sets[i]
                if dot < len(body)
                and isinstance(body[dot], Terminal)
                and body[dot].has(ord(text[i]))
            }
            if not scanned:
                break
            sets.append(scanned)
        return sets

    def _complete(self, sets: list[set], i: int) -> None:
        while True:
            more = set()
            for name, body, dot, origin in sets[i]:
                if dot == len(body):
                    more |= {
                        (n, b, d + 1, o)
                        for n, b, d, o in sets[origin]
                        if d < len(b) and b[d] == name
                    }
                elif not isinstance(body[dot], Terminal):
                    more |= {(body[dot], b, 0, i) for b in self.productions[body[dot]]}
            if more <= sets[i]:
                return
            sets[i] |= more

    def verdict(self, data: bytes) -> tuple[bool, int] | None:
        """(may end, the 256-bit set of next bytes) behind some bytes; None when they cannot come."""
        split = len(data)
        while split and data[split - 1] & 0xC0 == 0x80:
            split -= 1
        if split and data[split - 1] >= 0xC0:
            split -= 1
        head, partial = data[:split], data[split:]
        try:
            whole = data.decode()
            head, partial = data, b""
        except UnicodeDecodeError:
            try:
                whole = head.decode()
            except UnicodeDecodeError:
                return None
        sets = self.chart(whole)
        if len(sets) <= len(whole):
            return None
        terminals = {
            body[dot]
            for _, body, dot, _ in sets[-1]
            if dot < len(body) and isinstance(body[dot], Terminal)
        }
        if partial and not _possible(partial, terminals):
            return None
        ends = not partial and any(
            name == "root" and dot == len(body) and origin == 0
            for name, body, dot, origin in sets[-1]
        )
        allowed = 0
        for byte in range(256):
            if _possible(partial + bytes([byte]), terminals):
                allowed |= 1 << byte
        return ends, allowed


def _possible(partial: bytes, terminals: set) -> bool:
    try:
        span = (ord(partial.decode()),) * 2
    except (UnicodeDecodeError, TypeError):  # not a character yet, or never one
        span = _begun().get(partial)
    return span is not None and any(terminal.overlaps(*span) for terminal in terminals)


@cache
def _begun() -> dict[bytes, tuple[int, int]]:
    """The code points that an incomplete character can become, first and last."""
    found: dict[bytes, tuple[int, int]] = {}
    for block in range(0x80, 0x110000, 64):  # the last byte runs over 64 code points
        if 0xD800 <= block <= 0xDFFF:
            continue
        first = chr(block).encode()
        for length in range(1, len(first)):
            low, high = found.get(first[:length], (block, block))
            found[first[:length]] = (min(low, block), max(high, block + 63))
    return found
