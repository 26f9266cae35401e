"""States of a table that no text can tell apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskmoe.compiled.functions import inner, kernel

I32 = npt.NDArray[np.int32]


def merged(act: I32, live: npt.NDArray[np.uint8]) -> I32:
    """Which state each one becomes: the lowest of those that do the same. live: of `table.Table`.

    Actions are compared as they are, so that what is merged is rather too little than too much.
    """
    known: dict[bytes, int] = {}
    alone = np.column_stack([np.minimum(act, 0), live]).tobytes()  # what each state does by itself
    size = len(alone) // len(act)
    rows = [alone[at : at + size] for at in range(0, len(alone), size)]
    blocks = np.array([known.setdefault(row, len(known)) for row in rows], np.int32)
    names = np.empty(len(act), np.int32)
    refine(act, blocks, names)
    return names


@inner
def _mark(element: Any, elements: Any, places: Any, sets: Any, bounds: Any, touched: Any) -> Any:
    """Moves an element to the marked ones of its set. bounds: (3, sets): begin, end, marked."""
    mine = sets[element]
    place = places[element]
    marked = bounds[0, mine] + bounds[2, mine]
    other = elements[marked]
    elements[place], places[other] = other, place
    elements[marked], places[element] = element, marked
    if bounds[2, mine] == 0:
        touched[touched[-1]] = mine
        touched[-1] += 1
    bounds[2, mine] += 1


@inner
def _split(count: Any, elements: Any, sets: Any, bounds: Any, touched: Any) -> Any:
    """Parts marked elements from the others of their sets; the smaller part becomes a new set."""
    while touched[-1]:
        touched[-1] -= 1
        mine = touched[touched[-1]]
        middle = bounds[0, mine] + bounds[2, mine]
        bounds[2, mine] = 0
        if middle == bounds[1, mine]:
            continue
        if middle - bounds[0, mine] <= bounds[1, mine] - middle:
            bounds[0, count], bounds[1, count] = bounds[0, mine], middle
            bounds[0, mine] = middle
        else:
            bounds[0, count], bounds[1, count] = middle, bounds[1, mine]
            bounds[1, mine] = middle
        for i in range(bounds[0, count], bounds[1, count]):
            sets[elements[i]] = count
        count += 1
    return count


@kernel
def refine(act: Any, blocks: Any, names: Any) -> Any:
    """names[s] = the lowest state that no text tells from s (Valmari, "Fast brief practical DFA
    minimization", 2012, after Hopcroft 1971).

    act: i32 (states, columns), negative: no state. blocks: i32 (states,), what states do by
    themselves, 0 and up. names: i32 (states,), out.
    """
    states, columns = act.shape
    edges = 0
    for state in range(states):
        for column in range(columns):
            edges += act[state, column] >= 0
    tail = np.empty(edges, np.int32)
    into = np.zeros(states + 1, np.int32)  # where the edges into a state begin in `arrive`
    arrive = np.empty(edges, np.int32)
    # blocks of states, and cords: edges by column and by the block that they lead to
    b_elements, b_places = np.empty(states, np.int32), np.empty(states, np.int32)
    b_sets = blocks.copy()
    b_bounds = np.zeros((3, states + 1), np.int32)
    b_touched = np.zeros(states + 2, np.int32)  # last: how many
    c_elements, c_places = np.empty(edges, np.int32), np.empty(edges, np.int32)
    c_sets = np.empty(edges, np.int32)
    c_bounds = np.zeros((3, edges + columns + 1), np.int32)
    c_touched = np.zeros(edges + columns + 2, np.int32)
    edge = cords = 0
    for column in range(columns):
        begin = edge
        for state in range(states):
            if act[state, column] >= 0:
                tail[edge] = state
                into[act[state, column] + 1] += 1
                c_elements[edge] = c_places[edge] = edge
                c_sets[edge] = cords
                edge += 1
        if edge > begin:
            c_bounds[0, cords], c_bounds[1, cords] = begin, edge
            cords += 1
    for state in range(states):
        into[state + 1] += into[state]
    fill = into.copy()
    edge = 0
    for column in range(columns):
        for state in range(states):
            to = act[state, column]
            if to >= 0:
                arrive[fill[to]] = edge
                fill[to] += 1
                edge += 1
    parts = 0
    for state in range(states):
        parts = max(parts, blocks[state] + 1)
        b_bounds[1, blocks[state]] += 1
    begin = 0
    for part in range(parts):
        size = b_bounds[1, part]
        b_bounds[0, part] = b_bounds[1, part] = begin
        begin += size
    for state in range(states):
        place = b_bounds[1, blocks[state]]
        b_elements[place], b_places[state] = state, place
        b_bounds[1, blocks[state]] += 1
    block = cord = 0
    while block < parts or cord < cords:
        if block < parts:
            for i in range(b_bounds[0, block], b_bounds[1, block]):
                state = b_elements[i]
                for j in range(into[state], into[state + 1]):
                    _mark(arrive[j], c_elements, c_places, c_sets, c_bounds, c_touched)
            cords = _split(cords, c_elements, c_sets, c_bounds, c_touched)
            block += 1
            continue
        for i in range(c_bounds[0, cord], c_bounds[1, cord]):
            _mark(tail[c_elements[i]], b_elements, b_places, b_sets, b_bounds, b_touched)
        parts = _split(parts, b_elements, b_sets, b_bounds, b_touched)
        cord += 1
    lowest = np.full(states, states, np.int32)
    for state in range(states - 1, -1, -1):
        lowest[b_sets[state]] = state
    for state in range(states):
        names[state] = lowest[b_sets[state]]
