"""The strongly connected components of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def components(leads: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The strongly connected components of a graph (Tarjan 1972, without recursion).

    Returns per node the number of its component, lower for what it leads to.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    count = 0
    stack: list[int] = []
    for start in leads:
        if start in index:
            continue
        path = [(start, iter(leads[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while path:
            node, rest = path[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    path.append((other, iter(leads[other])))
                    break
                if other not in component:
                    low[node] = min(low[node], index[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    while True:
                        member = stack.pop()
                        component[member] = count
                        if member == node:
                            break
                    count += 1
    return component
