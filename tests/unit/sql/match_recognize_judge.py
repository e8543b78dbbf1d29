"""Which rows match a row pattern, by plain backtracking: the answer that any cleverer search has to give.

As Perl does: alternatives from left to right, greedy quantifiers go on before they stop, reluctant ones the other way,
and an iteration that matched no row is not repeated. The time this takes may grow exponentially with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

Labels = tuple[tuple[int, str], ...]
"""Numbers of rows, from 0, and the variables that they matched."""


@dataclass(frozen=True)
class Var:
    name: str


@dataclass(frozen=True)
class Seq:
    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Alt:
    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Rep:
    part: Tree
    least: int
    most: int | None
    greedy: bool = True


Tree = Var | Seq | Alt | Rep
Fulfils = Callable[[str, int, Labels], bool]
"""Whether a variable's condition holds of a row, given the labels so far, that of this row included."""


def permute(*parts: Tree) -> Alt:
    """PERMUTE: all orders of the parts, those first in which the parts that were named first come first."""
    return Alt(tuple(Seq(order) for order in permutations(parts)))


def matches(
    tree: Tree, times: Sequence[Any], fulfils: Fulfils, skip: Sequence[str] = ("past last row",), within: Any = None
) -> list[Labels]:
    """The preferred matches of a partition, whose rows have these event times; a match of no row is empty.

    `skip` is `past last row`, `next row`, or `first` or `last` with the variables of a union behind it: a ValueError, if
    these have no row, or the first one of the match. The last row comes less than `within` after the first.
    """
    found: list[Labels] = []
    start = 0
    while start < len(times):

        def take(labels: Labels, name: str, start: int = start) -> Labels | None:
            row, taken = start + len(labels), (*labels, (start + len(labels), name))
            if row == len(times) or (within is not None and times[row] - times[start] >= within):
                return None
            return taken if fulfils(name, row, taken) else None

        match = next(_ways(tree, (), take), None)
        found += [] if match is None else [match]
        start = _next_start(start, match, skip) if match else start + 1
    return found


def _next_start(start: int, match: Labels, skip: Sequence[str]) -> int:
    if skip[0] in ("past last row", "next row"):
        return start + (1 if skip[0] == "next row" else len(match))
    rows = [row for row, name in match if name in skip[1:] and skip[0] in ("first", "last")]
    if not rows or (place := rows[0] if skip[0] == "first" else rows[-1]) == start:
        raise ValueError(f"cannot skip to {skip} of {match}")
    return place


def _ways(tree: Tree, labels: Labels, take: Callable[[Labels, str], Labels | None]) -> Iterator[Labels]:
    """The labels behind a part of a pattern, of every way through it: the preferred way comes first."""
    if isinstance(tree, Var):
        yield from filter(None, [take(labels, tree.name)])
    elif isinstance(tree, Alt):
        yield from (each for part in tree.parts for each in _ways(part, labels, take))
    elif isinstance(tree, Seq) and tree.parts:
        heads = _ways(tree.parts[0], labels, take)
        yield from (each for head in heads for each in _ways(Seq(tree.parts[1:]), head, take))
    elif isinstance(tree, Seq):
        yield labels
    else:
        rest = replace(tree, least=tree.least - 1, most=None if tree.most is None else tree.most - 1)
        more = _ways(tree.part, labels, take) if tree.most != 0 else ()
        on = (each for head in more for each in ([head] if head == labels else _ways(rest, head, take)))
        stop = [labels] if tree.least <= 0 else []
        yield from (each for ways in ((on, stop) if tree.greedy else (stop, on)) for each in ways)
