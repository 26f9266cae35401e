"""Twins of the compiled functions of ``grammar_draft``, written as plainly as they can be."""

from __future__ import annotations

from collections.abc import Sequence

from diskmoe.grammar_draft.table import ACCEPT, GO, RETURN, Table

Stack = tuple[int, ...]  # the state last


def trie(spelled: Sequence[tuple[bytes, int]]) -> list[tuple[bytes, list[int], int]]:
    """Per node in preorder: the bytes that lead to it, its tokens, how many nodes its subtree has."""
    starts = sorted({data[:n] for data, _ in spelled for n in range(1, len(data) + 1)})
    return [
        (
            start,
            [token for data, token in spelled if data == start],
            sum(other.startswith(start) for other in starts),
        )
        for start in starts
    ]


def well_begun(data: bytes) -> bool:
    """Whether bytes are UTF-8 that may end within a character."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def bytes_of_row(row: int) -> range:
    """The bytes of a row of `TokenSets`."""
    if row == 0:
        return range(128, 256)
    width = 1
    while row < 128:
        row, width = 2 * row, 2 * width
    return range(row - 128, row - 128 + width)


def step(table: Table, stack: Stack, column: int) -> Stack | None:
    """A byte (by its class) of a table: the stack behind it; () for an end that is accepted."""
    *below, top = stack
    action = int(table.act[top, column])
    while action < -1:
        i = -2 - action
        listed = table.listed[table.at[i] : table.at[i + 1]].tolist()
        if table.kind[i] == GO:
            return (*below, *listed, int(table.number[i]))
        if table.kind[i] == ACCEPT:
            return ()
        if table.kind[i] == RETURN:
            action = int(table.act[below.pop(), column])
            continue
        popped = -1
        for _ in range(int(table.number[i])):
            popped = below.pop()
        found = table.found[table.at[i] : table.at[i + 1]].tolist()
        action = dict(zip(listed, found, strict=True)).get(popped, -1)
    return (*below, action) if action >= 0 else None


def walk(table: Table, stack: Stack | None, data: bytes) -> Stack | None:
    """Some bytes of a table."""
    for byte in data:
        stack = None if stack is None else step(table, stack, int(table.classes[byte]))
    return stack


def stays(table: Table, state: int, data: bytes) -> bool:
    """Whether a state can read bytes by itself, without its stack."""
    for byte in data:
        if state >= 0:
            state = int(table.act[state, table.classes[byte]])
    return state >= 0


def same(act: Sequence[Sequence[int]]) -> list[int]:
    """Moore's partition: per state the lowest that no text tells from it."""
    names = [0] * len(act)
    while True:
        keys = [
            (names[state], *(names[to] if to >= 0 else to for to in row))
            for state, row in enumerate(act)
        ]
        fresh = [keys.index(key) for key in keys]
        if fresh == names:
            return names
        names = fresh


def alike(table: Table, texts: Sequence[bytes], start: int) -> tuple[dict[bytes, int], set[int]]:
    """What `add_alike` finds of a table that has no counters: the state behind a first byte (or a space
    and it; bytes that are not ASCII stand as 0x80), and the texts that only loop there."""

    def loops_on(state: int) -> set[int]:
        return {
            byte for byte in range(128) if int(table.loops[state, byte >> 6]) >> (byte & 63) & 1
        }

    def target(state: int, byte: int) -> int:
        action = int(table.act[state, table.classes[byte]])
        if action < -1:
            return int(table.number[-2 - action]) if table.kind[-2 - action] == GO else -1
        return action

    def firsts(state: int) -> dict[int, int]:
        behind = {byte: target(state, byte) for byte in range(128)}
        behind = {byte: to for byte, to in behind.items() if to >= 0 and byte in loops_on(to)}
        found = {
            byte: to
            for byte, to in behind.items()
            if len(loops_on(to)) >= 20 and list(behind.values()).count(to) >= 20
        }
        if table.whole[state]:
            onward = target(state, min(loops_on(state)))
            if onward in found.values() and table.whole[onward]:
                found[0x80] = onward
        return found

    first = firsts(start)
    spaced = target(start, 0x20)
    second = firsts(spaced) if spaced >= 0 and 0x20 not in first else {}
    origins = {bytes([byte]): to for byte, to in first.items()}
    origins |= {bytes([0x20, byte]): to for byte, to in second.items()}
    tokens: set[int] = set()
    for token, text in enumerate(texts):
        for prefix, to in origins.items():
            rest = text[len(prefix) - 1 :]
            shown = bytes(min(byte, 0x80) for byte in rest)
            if not text.startswith(prefix[:-1]) or not shown.startswith(prefix[-1:]):
                continue
            may = loops_on(to) | ({0x80} if table.whole[to] else set())
            if set(shown) <= may and len(rest) - 1 <= table.room[to] and well_begun(text):
                tokens.add(token)
    return origins, tokens
