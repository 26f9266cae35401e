"""Compiled grammars that are kept."""

import hashlib
import os
import random
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event, Thread

import numpy as np
import pytest

from diskmoe.grammar_draft import tables as tables_module
from diskmoe.grammar_draft.compiled_table import Made, digest, table_for
from diskmoe.grammar_draft.gbnf import parse
from diskmoe.grammar_draft.library import load
from diskmoe.grammar_draft.patience import patient
from diskmoe.grammar_draft.rules import Grammar
from diskmoe.grammar_draft.table import COUNT
from diskmoe.grammar_draft.tables import Tables, packed, unpacked


def made(grammar: Grammar, tables: Tables) -> Made:
    return tables.of(grammar)


def same(one: Made, other: Made) -> bool:
    a, b = one[0], other[0]
    if a is None or b is None:
        return a is b and one[1] == other[1]
    return one[1] == other[1] and all(
        np.array_equal(value, vars(b)[name]) for name, value in vars(a).items()
    )


def test_a_grammar_is_compiled_once():
    tables = Tables()
    assert made(load("json"), tables)[0] is made(load("json"), tables)[0]


@pytest.mark.parametrize("text", ["json", "fit", 'root ::= root "+" root | "a"'])
def test_a_table_outlives_the_process_in_a_folder(text: str, tmp_path: Path):
    grammar = load(text) if len(text) < 9 else parse(text)
    first = made(grammar, Tables(tmp_path / "new"))
    said: list[str] = []
    assert same(made(grammar, Tables(tmp_path / "new", said.append)), first) and not said
    assert [path.name for path in (tmp_path / "new").iterdir()] == [f"{digest(grammar)}.table"]


def test_nothing_is_written_where_no_folder_was_given(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made(load("fit"), Tables())
    assert not list(tmp_path.iterdir())


def test_grammars_that_differ_have_different_names():
    texts = ['root ::= "a"', 'root ::= "b"', "root ::= [a]", 'root ::= "a"?', 'root ::= "a" "a"']
    assert len({digest(parse(text)) for text in texts}) == len(texts)


def test_files_of_others_and_damaged_ones_are_not_used(tmp_path: Path):
    grammar = load("json_compact")
    right = made(grammar, Tables(tmp_path))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    said: list[str] = []
    path.write_bytes(whole[:-1])
    assert same(made(grammar, Tables(tmp_path, said.append)), right)
    assert "it is damaged" in said.pop() and not said
    assert path.read_bytes() == whole  # written again
    if os.name != "nt":
        path.chmod(0o666)
        made(grammar, Tables(tmp_path, said.append))
        assert "others may write it" in said.pop()


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    said: list[str] = []
    assert made(load("fit"), Tables(tmp_path / "file" / "x", said.append))[0] is not None
    assert any("cannot be written" in line for line in said)


def test_no_file_makes_compiled_functions_look_where_they_may_not():
    grammar = load("json_compact")
    name = digest(grammar)
    right = table_for(grammar)
    body = packed(right, name)[32:]
    choose = random.Random(3)
    refused = 0
    for _ in range(300):
        wrong = bytearray(body)
        for _ in range(choose.randint(1, 3)):
            wrong[choose.randrange(len(wrong))] = choose.choice((0, 1, 0x7F, 0xFF, 0x30, 0x39))
        data = bytes(wrong)
        sealed = hashlib.blake2b(data, digest_size=32).digest() + data
        try:
            table, _ = unpacked(sealed, name)
        except ValueError:
            refused += 1
            continue
        assert table is not None
        actions = len(table.kind) - 1
        assert -1 - actions <= table.act.min() and table.act.max() < len(table.act)
        assert table.classes.max() < table.act.shape[1] - 1 and 0 <= table.start < len(table.act)
        assert np.all(np.diff(table.at) >= 0) and table.at[-1] == len(table.listed)
    assert refused > 100
    for data in (b"", b"\0" * 40, bytes(body)):
        with pytest.raises(ValueError, match="damaged"):
            unpacked(data, name)
    with pytest.raises(ValueError, match="another version or grammar"):
        unpacked(packed(right, "0" * 32), name)


def test_a_file_without_the_end_of_its_actions_is_refused():
    grammar = parse('root ::= [a-z]{0,300} "x"')
    table, how = table_for(grammar)
    assert table is not None and table.counts
    more = replace(table, kind=np.append(table.kind[:-1], COUNT).astype(np.uint8))
    none = np.zeros(0, np.int32)
    empty = replace(
        table,
        act=np.zeros((2, 2), np.int32),
        classes=np.zeros(256, np.uint8),
        kind=none.astype(np.uint8),
        live=np.zeros(2, np.uint8),
        **dict.fromkeys(("number", "at", "listed", "found"), none),
        start=0,
    )
    for wrong in (more, empty):
        with pytest.raises(ValueError, match="no end of its actions"):
            unpacked(packed((wrong, how), digest(grammar)), digest(grammar))


HEAVY = 'root ::= root "+" root | root "*" root | "(" root ")" | [a-z]+ | ""'


class Enough(Exception):
    """Nobody wants it any more."""


def test_who_wants_another_grammar_does_not_wait_for_a_heavy_one():
    tables = Tables()
    begun, go_on = Event(), Event()

    def check() -> None:
        begun.set()
        assert go_on.wait(20)

    def heavy() -> None:
        with patient(check):
            made(parse(HEAVY), tables)

    thread = Thread(target=heavy)
    thread.start()
    assert begun.wait(20)
    assert made(load("fit"), tables)[0] is not None  # while the other is held in the midst
    go_on.set()
    thread.join(20)
    assert not thread.is_alive()


def test_a_grammar_is_made_once_for_all_that_want_it(monkeypatch: pytest.MonkeyPatch):
    count, both = [], Barrier(4)
    right = tables_module.table_for

    def counted(grammar: Grammar) -> Made:
        count.append(grammar)
        return right(grammar)

    monkeypatch.setattr(tables_module, "table_for", counted)
    tables, found = Tables(), []

    def want() -> None:
        both.wait(20)
        found.append(made(load("json"), tables))

    threads = [Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(count) == 1 and len(found) == 4 and len({id(one[0]) for one in found}) == 1


def test_who_does_not_want_a_grammar_any_more_ends_its_making_and_another_takes_over():
    tables = Tables()
    begun, left = Event(), Event()
    told: list[str] = []

    def check() -> None:
        begun.set()
        if left.is_set():
            raise Enough

    def first() -> None:
        with patient(check), pytest.raises(Enough):
            made(parse(HEAVY), tables)
        told.append("left")

    def second() -> None:
        told.append(made(parse(HEAVY), tables)[1])

    threads = [Thread(target=first), Thread(target=second)]
    threads[0].start()
    assert begun.wait(20)
    threads[1].start()
    left.set()
    for thread in threads:
        thread.join(60)
    assert sorted(told) == sorted(["left", made(parse(HEAVY), tables)[1]])


def test_what_is_kept_in_memory_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables_module, "KEPT_BYTES", 200_000)
    tables = Tables()
    kept = [made(parse(f'root ::= "{i}" ("a"{{{i + 30}}} [b-z]*)?'), tables)[0] for i in range(60)]
    again = [made(parse(f'root ::= "{i}" ("a"{{{i + 30}}} [b-z]*)?'), tables)[0] for i in (59, 0)]
    assert again[0] is kept[59] and again[1] is not kept[0]
