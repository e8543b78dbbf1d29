"""Automata as text: of every position its row, and where a match goes on from there.

start -> 1 fails
1 fails [col("status") == "fail"] -> followed by 2 fails
2 fails [col("status") == "fail"] -> followed by 2 fails | followed by 3 ok
3 ok [col("status") == "ok"] -> complete

Of a regular expression of SQL the ways stand in order of preference, and all rows are next to each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.core.times import format_duration
from penstock.functions.patterns.automaton import START, Automaton, Edge, Guard
from penstock.functions.patterns.describing import SIGNS
from penstock.functions.patterns.regular import RegularAutomaton

MOST_LINES: Final = 40
"""So many positions are drawn of a pattern that has more."""


def drawn(automaton: Automaton | RegularAutomaton) -> Iterator[str]:
    """A line for every position, in the order of the pattern; of a large one the first ones, and how many are left."""
    numbers = range(START + 1, len(automaton.positions))
    if isinstance(automaton, RegularAutomaton):
        numbers = numbers[::-1]  # which was made from its end
    for number in (START, *numbers[: MOST_LINES - 1]):
        ways = _ways(automaton, number) if isinstance(automaton, Automaton) else _preferred(automaton, number)
        yield f"{_position(automaton, number)} -> {' | '.join(ways)}"
    if (left := len(automaton.positions) - MOST_LINES) > 0:
        yield f"and {left} more"


def name_of(automaton: Automaton | RegularAutomaton, number: int) -> str:
    """A position in words: its number, which tells the occurrences of a variable apart, and the variable."""
    return "start" if number == START else f"{number} {automaton.positions[number].name}"


def condition_of(automaton: Automaton | RegularAutomaton, number: int) -> str:
    """A condition in brackets."""
    condition = automaton.conditions[number]
    return "[any row]" if condition is None else f"[{condition}]"


def _position(automaton: Automaton | RegularAutomaton, number: int) -> str:
    position = automaton.positions[number]
    if number == START:
        return "start"
    of_all = automaton.conditions[position.condition] is None
    condition = "" if of_all else condition_of(automaton, position.condition)
    until = "" if position.until is None else f"but not {condition_of(automaton, position.until)}"
    return " ".join(part for part in (name_of(automaton, number), condition, until) if part)


def _preferred(automaton: RegularAutomaton, number: int) -> Iterator[str]:
    yield from (name_of(automaton, way) for way in automaton.ways[number])
    if number in automaton.accepting:
        yield "complete"


def _ways(automaton: Automaton, number: int) -> Iterator[str]:
    if number in automaton.accepting:
        yield "complete"
    for edge in automaton.edges[number]:
        yield " ".join(_parts(automaton, edge, first=number == START))


def _parts(automaton: Automaton, edge: Edge, *, first: bool) -> Iterator[str]:
    if edge.target is None:
        late = any(not guard.immediately for guard in edge.guards)
        yield "complete when the time is over" if late else "complete with the next row"
    else:
        yield (
            name_of(automaton, edge.target) if first else f"{SIGNS[edge.contiguity]} {name_of(automaton, edge.target)}"
        )
    if edge.within_us is not None:
        yield f"within {format_duration(edge.within_us)}"
    if edge.guards:
        yield f"unless {' or '.join(_guard(automaton, guard) for guard in edge.guards)}"
    if edge.yields_to:
        yield f"if no {' or '.join(name_of(automaton, target) for target in edge.yields_to)} comes first"


def _guard(automaton: Automaton, guard: Guard) -> str:
    condition = condition_of(automaton, guard.condition)
    return f"{condition} is next" if guard.immediately else f"{condition} comes"
