"""The search for patterns against their definition, with random patterns over random rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from match_judge import Found, matches, passed_by

from penstock.api.patterns import Pattern
from penstock.errors import PipelineError
from penstock.expressions import Expr, col
from penstock.functions.patterns.automaton import Automaton, compiled
from penstock.functions.patterns.definitions import (
    Alternatives,
    Contiguity,
    Forbidden,
    Group,
    Part,
    Skip,
    Times,
    Variable,
    variables,
)
from penstock.functions.patterns.matching import KeySearch, Match, Row, Search

NEAR: list[Contiguity] = ["next", "followed_by", "followed_by_any"]
LETTERS = "abc"
ROWS = "aabbcc-"
"""Of those of the last kind no condition of a letter holds."""
OF = {letter: col(letter) for letter in LETTERS} | {"ab": col("ab"), "any": col("any")}
MEANS = {id(expr): name for name, expr in OF.items()}


def holds(condition: Expr | None, letter: str) -> bool:
    """A condition is a set of letters; None and `any` are all of them."""
    if condition is None:
        return True
    name = MEANS[id(condition)]
    return name == "any" or letter in name


def search_of(automaton: Automaton, within: int | None = None, skip: Skip | None = None) -> Search:
    return Search(automaton, within, skip or Skip("none"), {}, lambda memory, position, values: (), ())


def row_of(automaton: Automaton, number: int, time: int, letter: str) -> Row:
    bits = sum(1 << place for place, each in enumerate(automaton.conditions) if holds(each, letter))
    return Row(number, time, bits, (letter,))


def found_in(automaton: Automaton, match: Match) -> Found:
    return tuple((link.row.number, automaton.positions[link.position].name) for link in match.last.links())


class RandomPattern:
    """Patterns of two to four parts, some of which are groups of such."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.names = iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ")

    def whole(self, *, within: bool) -> Group:
        parts = [self.part(0, first=True)]
        for _ in range(self.chance.randrange(3)):
            parts += self.sometimes_forbidden()
            parts.append(self.part(0))
        if within and self.chance.random() < 0.3:
            parts.append(Part(self.forbidden()))
        return Group(tuple(parts))

    def sometimes_forbidden(self) -> Iterator[Part]:
        while self.chance.random() < 0.25:
            yield Part(self.forbidden())

    def forbidden(self) -> Forbidden:
        return Forbidden("no_" + next(self.names), self.condition(), self.chance.random() < 0.5)

    def condition(self) -> Expr:
        return OF[self.chance.choice([*LETTERS, *LETTERS, "ab", "any"])]

    def part(self, depth: int, *, first: bool = False) -> Part:
        chance = self.chance
        near = chance.choice(NEAR)
        within = chance.choice([None, None, None, 2, 4])
        if depth < 1 and chance.random() < 0.25:
            group = Group((self.part(depth + 1, first=first), *self.more(depth + 1)))
            other = Group((self.part(depth + 1, first=first),))
            body: Any = group if chance.random() < 0.5 else Alternatives((group, other))
            return Part(body, near, self.times(first=first, greedy=False), within)
        variable = Variable(next(self.names), self.condition())
        return Part(variable, near, self.times(first=first, greedy=chance.random() < 0.3), within)

    def more(self, depth: int) -> Iterator[Part]:
        """What is in a group behind its first part."""
        yield from self.sometimes_forbidden()
        if self.chance.random() < 0.5:
            yield self.part(depth)
            yield from self.sometimes_forbidden()

    def times(self, *, first: bool, greedy: bool) -> Times:
        chance = self.chance
        if chance.random() < 0.4:
            return Times()
        least = chance.randrange(1 if first and chance.random() < 0.8 else 0, 3)
        most = chance.choice([None, max(least, 1), least + 1])
        until = chance.choice([None, None, None, self.condition()])
        return Times(least, most, chance.choice(NEAR), greedy, until)


def played(
    search: Search, rows: list[tuple[int, str]], chance: random.Random, within: int | None
) -> tuple[list[Found], list[Found]]:
    """What is told, and what is given up, with restores in between."""
    automaton = search.automaton
    told: list[Found] = []
    over: list[Found] = []
    one = KeySearch(search)

    def pass_time(time: int) -> None:
        while one.deadline is not None and one.deadline <= time:
            done, given_up = one.pass_deadline()
            told.extend(found_in(automaton, match) for match in done)
            over.extend(found_in(automaton, Match(each.first, each.last)) for each in given_up)

    for number, (time, letter) in enumerate(rows):
        pass_time(time)
        used = [each for each in automaton.conditions[1:] if each is not None]
        everything = any(position.condition == 0 for position in automaton.positions[1:])
        if automaton.may_leave_out and not everything and not any(holds(each, letter) for each in used):
            told += [found_in(automaton, match) for match in one.pass_gap()]
            continue
        told += [found_in(automaton, match) for match in one.take(row_of(automaton, number, time, letter))]
        if chance.random() < 0.3:
            kept, numbers = one.packed()
            one = KeySearch.unpacked(search, [row._replace(fulfilled=0) for row in kept], numbers)
            assert one.packed()[1] == numbers
    if within is not None:
        pass_time(rows[-1][0] + within)
    told += [found_in(automaton, match) for match in one.end()]
    return told, over


@settings(max_examples=600, deadline=None)
@given(seed=st.integers(0, 10**9), skip=st.sampled_from(["none", "none", "next", "past_last", "first", "last"]))
def test_matches_are_those_of_the_definition(seed: int, skip: Any) -> None:
    chance = random.Random(seed)
    within = chance.choice([None, None, 3, 6])
    pattern = RandomPattern(chance).whole(within=within is not None)
    try:
        automaton = compiled(pattern)
    except PipelineError:
        return  # a group is repeated of which all is optional
    names = [variable.name for variable in variables(pattern)]
    strategy = Skip(skip, chance.choice(names) if skip in ("first", "last") else "")
    time, rows = 0, []
    for _ in range(chance.randrange(3, 8)):
        time += chance.choice([0, 1, 1, 2])
        rows.append((time, chance.choice(ROWS)))
    judged = matches(
        pattern, [letter for _, letter in rows], [time for time, _ in rows], within,
        lambda condition, letter, _: holds(condition, letter),
    )  # fmt: skip
    told, _ = played(search_of(automaton, within, strategy), rows, chance, within)
    if skip == "none":
        assert len({*told}) == len(told)
        assert {*told} == judged
        return
    left = {*judged}
    for match in told:
        earliest = min(each[0][0] for each in left)
        assert match in left
        assert match[0][0] == earliest
        left.remove(match)
        passed = passed_by(match, strategy)
        left = {each for each in left if each[0][0] >= passed}
    assert left == set()


@pytest.mark.parametrize(
    ("letters", "found"), [("ac", ["ac"]), ("abc", []), ("abbc", ["abbc"]), ("bbc", []), ("acb", ["ac"])]
)
def test_what_is_optional_and_greedy_is_left_out_only_if_no_row_of_it_comes_first(
    letters: str, found: list[str]
) -> None:
    some = Pattern.begin("A", OF["a"]).followed_by("B", OF["b"], times=(2, None), optional=True, greedy=True)
    automaton = compiled(some.followed_by("C", OF["c"]).group)
    told, _ = played(search_of(automaton), [*enumerate(letters)], random.Random(0), None)
    assert ["".join(letters[number] for number, _ in match) for match in told] == found


TWICE = Pattern.begin("A", OF["a"]).next("B", OF["a"])
REPEATED_INSIDE = Pattern.begin("C", OF["c"]).next("A", OF["a"], times=2)
REPEATED_BEFORE = Pattern.begin("C", OF["c"], times=(1, None)).followed_by("A", OF["a"])


def repeated(times: Any, *, immediately: bool) -> Pattern:
    some = Pattern.begin("A", OF["a"], times=times)
    return some.not_next("no C", OF["c"]) if immediately else some.not_followed_by("no C", OF["c"])


@pytest.mark.parametrize(
    ("some", "letters", "found"),
    [
        (repeated((1, None), immediately=False), "a-cab", {"ab"}),
        (repeated(2, immediately=False), "a-cab", set()),
        (repeated((1, None), immediately=True), "acab", {"ab"}),
        (repeated((1, None), immediately=True), "a-cab", {"aab", "ab"}),
        (repeated((2, None), immediately=True), "acaab", {"aaab", "aab"}),
        (repeated((2, None), immediately=True), "aacab", {"aab"}),
        (Pattern.begin(TWICE, times=2).not_followed_by("D", OF["c"]), "aacaab", set()),
        (Pattern.begin(TWICE, times=2).not_followed_by("D", OF["c"]), "aaaab", {"aaaab"}),
        (Pattern.begin(REPEATED_INSIDE).not_followed_by("D", OF["c"]), "cacab", set()),
        (REPEATED_BEFORE.not_next("D", OF["a"]), "cacab", {"cab", "ccab"}),
    ],
)  # fmt: skip
def test_what_must_not_come_behind_a_repeated_part_must_not_come_between_its_occurrences(
    some: Pattern, letters: str, found: set[str]
) -> None:
    search = search_of(compiled(some.followed_by("end", OF["b"]).group))
    told, _ = played(search, [*enumerate(letters)], random.Random(0), None)
    assert {"".join(letters[number] for number, _ in match) for match in told} == found


NESTING: list[Callable[[Pattern], Pattern]] = [
    lambda some: Pattern.begin(some),
    lambda some: Pattern.begin("A", OF["a"]).next(some, times=(1, 2)),
    lambda some: Pattern.any_of(some, Pattern.begin("B", OF["b"])),
]


@pytest.mark.parametrize("nest", NESTING)
def test_groups_stand_one_within_the_other_up_to_a_limit(nest: Callable[[Pattern], Pattern]) -> None:
    some = Pattern.begin("C", OF["c"])
    for _ in range(50):
        some = nest(some)
    with pytest.raises(PipelineError, match=r"match: more than 50 groups stand one within the other"):
        nest(some)


def test_the_deepest_pattern_is_searched_for() -> None:
    some = Pattern.begin("A", OF["a"]).next("B", OF["b"])
    for _ in range(50):
        some = Pattern.begin(some)
    told, _ = played(search_of(compiled(some.group)), [*enumerate("aab")], random.Random(0), None)
    assert told == [((1, "A"), (2, "B"))]


def test_a_match_is_told_when_none_that_begins_earlier_is_under_way() -> None:
    """Though one that begins with the same row is."""
    more = Part(Variable("B", OF["b"]), times=Times(1, None))
    automaton = compiled(Group((Part(Variable("A", OF["a"])), more)))
    one = KeySearch(search_of(automaton, skip=Skip("next")))
    assert one.take(row_of(automaton, 0, 0, "a")) == []
    assert [found_in(automaton, match) for match in one.take(row_of(automaton, 1, 1, "b"))] == [((0, "A"), (1, "B"))]
    assert one.partial == []


def test_what_must_not_come_next_may_come_behind_a_gap() -> None:
    """Also where the gap, or what was known before it, was left out or packed."""
    parts = (
        Part(Variable("A", OF["a"])),
        Part(Forbidden("no B", OF["b"], immediately=True)),
        Part(Variable("C", OF["c"])),
    )
    automaton = compiled(Group(parts))
    search = search_of(automaton)
    for gap in (True, False):
        one = KeySearch(search)
        one.take(row_of(automaton, 0, 0, "a"))
        if gap:
            one.pass_gap()
        rows, numbers = one.packed()
        assert KeySearch.minds_gaps(numbers) is not gap
        one = KeySearch.unpacked(search, rows, numbers)
        one.take(row_of(automaton, 1, 1, "b"))
        found = [found_in(automaton, match) for match in one.take(row_of(automaton, 2, 2, "c"))]
        assert found == ([((0, "A"), (2, "C"))] if gap else [])


def test_a_row_that_fulfils_nothing_of_a_partial_match_leaves_it_as_it_is() -> None:
    """So that many of them cost little."""
    automaton = compiled(Pattern.begin("A", OF["a"]).followed_by("B", OF["b"]).group)
    one = KeySearch(search_of(automaton))
    for number, letter in enumerate("aac"):
        one.take(row_of(automaton, number, number, letter))
    before = [*one.partial]
    one.take(row_of(automaton, 3, 3, "c"))
    assert [each is other for each, other in zip(one.partial, before, strict=True)] == [True, True]


def test_what_is_given_up_is_told_once() -> None:
    """However the same rows can have the same names."""
    some = Pattern.begin(Pattern.begin("A", OF["a"], times=(1, 2), repeated="next"), times=2, repeated="next")
    search = search_of(compiled(some.next("B", OF["b"]).group), within=9)
    _, over = played(search, [*enumerate("aaa")], random.Random(0), within=9)
    assert sorted(over) == [((0, "A"), (1, "A"), (2, "A")), ((1, "A"), (2, "A")), ((2, "A"),)]
