"""The search for preferred matches against plain backtracking, in random rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from match_recognize_judge import Alt, Rep, Seq, Var, matches

from penstock.errors import PipelineError
from penstock.functions.patterns.definitions import Alternatives, Group, Part, Skip, Times, Variable
from penstock.functions.patterns.matching import Match, Row, Search
from penstock.functions.patterns.regular import PreferredSearch, RegularAutomaton, compiled_regular

NAMES = ("A", "B", "C")
VARIABLES = {name: Variable(name, object()) for name in NAMES}  # pyright: ignore[reportArgumentType]
SKIPS = (("past last row", Skip("past_last")), ("next row", Skip("next")))
Found = list[tuple[tuple[int, str], ...]]


def trees(random: random.Random, depth: int = 3) -> Any:
    """A regular expression."""
    kind = random.choice(("var", "seq", "alt", "rep", "rep")) if depth else "var"
    match kind:
        case "var":
            return Var(random.choice(NAMES))
        case "seq":
            return Seq(tuple(trees(random, depth - 1) for _ in range(random.randint(1, 3))))
        case "alt":
            return Alt(tuple(trees(random, depth - 1) for _ in range(2)))
        case _:
            least = random.choice((0, 0, 1, 1, 2))
            most = random.choice((None, max(least, 1), least + 1))
            return Rep(trees(random, depth - 1), least, most, random.random() < 0.5)


def part_of(tree: Any) -> Part:
    """The same as Penstock has it."""
    match tree:
        case Var(name):
            return Part(VARIABLES[name], "next")
        case Seq(parts):
            return Part(Group(tuple(map(part_of, parts))), "next")
        case Alt(parts):
            return Part(Alternatives(tuple(Group((part_of(each),)) for each in parts)), "next")
        case _:
            return Part(Group((part_of(tree.part),)), "next", Times(tree.least, tree.most, "next", tree.greedy))


@dataclass(frozen=True)
class Data:
    """Random rows: which variables each may be, and by how many rows of which variable that is bounded."""

    able: Sequence[frozenset[str]]
    times: Sequence[int]
    bounds: dict[str, tuple[str, int]]

    def fulfils(self, name: str, row: int, labels: Sequence[tuple[int, str]]) -> bool:
        """Whether a row may have a name behind these, itself included."""
        if name not in self.able[row]:
            return False
        of, remainder = self.bounds.get(name, ("", 0))
        return not of or sum(label == of for _, label in labels) % 3 != remainder


def search_of(automaton: RegularAutomaton, data: Data, skip: Skip, within: int | None) -> Search[RegularAutomaton]:
    names = [position.name for position in automaton.positions]

    def remember(memory: tuple[Any, ...], position: int, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(count + (name == names[position]) for name, count in zip(NAMES, memory, strict=True))

    def bounded(of: str, remainder: int) -> Any:
        return lambda values, memory: memory[NAMES.index(of)] % 3 != remainder

    numbers = {position.name: position.condition for position in automaton.positions}
    back = {numbers[name]: bounded(*bound) for name, bound in data.bounds.items() if name in numbers}
    return Search(automaton, within, skip, back, remember, (0,) * len(NAMES))


def found_by(search: Search[RegularAutomaton], data: Data, restored: random.Random) -> Found:
    """What the search finds in the rows, if it takes some of them at once and is restored behind some."""
    automaton, names = search.automaton, {}
    for position in automaton.positions[1:]:
        names[position.name] = position.condition
    key, one_by_one = PreferredSearch(search), PreferredSearch(search)
    all_told: list[tuple[int, Match]] = []
    taken: list[Row] = []
    for number, (able, time) in enumerate(zip(data.able, data.times, strict=True)):
        fulfilled = sum(1 << condition for name, condition in names.items() if name in able)
        if fulfilled:
            one_by_one.pass_time(time)
            one_by_one.take_rows([Row(number, time, fulfilled, ())])
            taken.append(Row(number, time, fulfilled, ()))
        else:
            one_by_one.leave_out(time)
        if not fulfilled or restored.random() < 0.4:
            key.take_rows(taken)
            taken = []
            if not fulfilled:
                key.leave_out(time)
            elif restored.random() < 0.5:
                key.pass_time(time)
        if not taken and restored.random() < 0.5:
            rows, numbers = key.packed()
            all_told += key.told
            key = PreferredSearch.unpacked(search, [row._replace(fulfilled=0) for row in rows], numbers)
    key.take_rows(taken)
    all_told += key.told
    assert [(time, match.number) for time, match in all_told] == [
        (time, match.number) for time, match in one_by_one.told
    ]
    told = [*(match for _, match in all_told), *key.end()]
    assert key.is_empty
    assert [match.number for match in told] == list(range(1, len(told) + 1))
    return [
        tuple((link.row.number, automaton.positions[link.position].name) for link in match.last.links())
        for match in told
    ]


@pytest.mark.parametrize(("judged", "skip"), SKIPS, ids=[name for name, _ in SKIPS])
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_matches_are_those_that_backtracking_finds_first(judged: str, skip: Skip, seed: int) -> None:
    chosen = random.Random(seed)
    tree = trees(chosen)
    pattern = Group((part_of(tree),))
    if _may_be_empty(tree):
        with pytest.raises(PipelineError, match="could match no row at all"):
            compiled_regular(pattern)
        return
    automaton = compiled_regular(pattern)
    size = chosen.randint(1, 9)
    able = [frozenset(name for name in NAMES if chosen.random() < 0.6) for _ in range(size)]
    times = [chosen.randint(1, 3) for _ in range(size)]
    times = [sum(times[: place + 1]) for place in range(size)]
    bounds = {name: (chosen.choice(NAMES), chosen.randint(0, 2)) for name in NAMES if chosen.random() < 0.3}
    data = Data(able, times, bounds)
    within = chosen.choice((None, None, 3, 6))
    expected = matches(tree, times, data.fulfils, (judged,), within)
    found = found_by(search_of(automaton, data, skip, within), data, chosen)
    assert found == [tuple(each) for each in expected], (seed, tree, data, within)


def _may_be_empty(tree: Any) -> bool:
    match tree:
        case Var():
            return False
        case Seq(parts):
            return all(map(_may_be_empty, parts))
        case Alt(parts):
            return any(map(_may_be_empty, parts))
        case _:
            return tree.least == 0 or _may_be_empty(tree.part)
