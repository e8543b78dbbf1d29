"""What Apache Flink's own tests and documentation of CEP expect of a pattern, in `flink_cases.py`, asked of ours.

Where ours is another result than Flink's, the expectation stays Flink's and `DIFFERENT` says what ours is and why.

What is left out, and why:

* throwExceptionOnMiss: a strategy that finds no row to skip to skips nothing, always.
* NFACompilerTest, PatternTest`, DeweyNumberTest, SharedBufferTest, NFAStateAccessTest`, NFAStatusChangeITCase`
  and serializers: insides of Flink's automaton, which ours has no counterpart of.
* testNFAResultKeyOrdering: the order of keys in a Java map.
* WithinType.PREVIOUS_AND_CURRENT is `within=` of a part; partial matches that end by it are not told as timed out
  (testSimplePatternWithTimeoutHandlingWithinPreviousAndCurrent is here for its matches alone), and the end of a pattern
  waits for the time of the whole match (testPendingStateMatchesWithinPreviousAndCurrent,
  testNotFollowedByWithinPreviousAndCurrentAtEnd, test...ClearingBufferWithinPreviousAndCurrent).
* NFAIterativeConditionTimeContextTest: conditions that ask for the processing time.
* testGreedyZeroOrMoreConsecutiveEndWithOptional: a test of old versions; Flink forbids what is optional behind what is
  greedy since. Two tests of such patterns that end otherwise are here: testGreedyZeroOrMoreBeforeOptional.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flink_cases import ANY, CASES, MORE, SME_ANY, STARTS, Case, begin

from penstock import Pattern, Pipeline, col
from penstock.api.patterns import skip_of
from penstock.connectors import iterables
from penstock.errors import PipelineError
from penstock.expressions import columns_of
from penstock.functions.patterns.automaton import Automaton, compiled
from penstock.functions.patterns.matching import KeySearch, Match, Row, Search


@dataclass(frozen=True)
class Different:
    """Where ours is another result than Flink's."""

    ours: str
    why: str


def letters(row: str) -> str:
    return row.rstrip("0123456789")


def named(rows: str) -> Iterator[tuple[str, int]]:
    """Rows and their times in microseconds."""
    time = 0
    for row in rows.split():
        name, _, at = row.partition("@")
        time = int(at) if at else time + 1
        yield name, time * 1000


def fulfilled(automaton: Automaton, row: str) -> int:
    holds = [each is None or bool({*"".join(columns_of(each))} & {*letters(row)}) for each in automaton.conditions]
    return sum(1 << place for place, each in enumerate(holds) if each)


def rows_of(match: Match) -> str:
    return " ".join(link.row.values[0] for link in match.last.links())


def matches(text: str) -> Counter[str]:
    return Counter(each.strip() for each in text.split(",") if each.strip())


class Player:
    """Gives rows to the search of one key."""

    def __init__(self, case: Case) -> None:
        self.automaton = compiled(case.pattern.group)
        within_us = None if case.within_ms is None else case.within_ms * 1000
        search = Search(self.automaton, within_us, skip_of(case.skip), {}, lambda *_: ())
        self.one = KeySearch(search)
        self.told: list[str] = []
        self.over: list[tuple[str, int]] = []
        for number, (name, time) in enumerate(named(case.rows)):
            self.pass_time(time)
            row = Row(number, time, fulfilled(self.automaton, name), (name,))
            self.told += map(rows_of, self.one.take(row))

    def pass_time(self, time: int) -> None:
        while (deadline := self.one.deadline) is not None and deadline <= time:
            done, over = self.one.pass_deadline()
            self.told += map(rows_of, done)
            self.over += [(rows_of(Match(each.first, each.last)), deadline // 1000) for each in over]


def found(case: Case) -> Counter[str]:
    player = Player(case)
    if case.within_ms is not None:
        player.pass_time(1_000_000)
    return Counter([*player.told, *map(rows_of, player.one.end())])


REFUSED = "PipelineError"
NO_ROW = "Flink matches one row or more; ours refuses a pattern that could match no row, as its text says."
OPTIONAL_TIME = (
    "The time between rows holds in Flink from the row before the first occurrence on, but not if the part is optional; "
    "that of ours always does."
)
TOO_EARLY = (
    "Flink tells the match at once where what follows not_followed_by is optional, and b comes later; ours waits until "
    "the time is over, and match() wants one."
)
DIFFERENT = {
    "testStartAndEndWithZeroOrMore": Different(REFUSED, NO_ROW),
    "testStartWithZeroOrMoreStrict": Different(REFUSED, NO_ROW),
    "testTimesOrMoreStrictOptional[3ms]": Different("c b", OPTIONAL_TIME),
    "testTimesOrMoreNonStrictOptional2[3ms]": Different("c a1 a2 a3 b, c a1 a2 b, c b", OPTIONAL_TIME),
    "testTimesOrMoreNonStrictOptional3[3ms]": Different("c a1 a2 a3 b, c a1 a2 b, c b", OPTIONAL_TIME),
    "testNotFollowedByBeforeOptionalAtTheEnd": Different("a c1", TOO_EARLY),
    "testNotFollowByBeforeTimesWithin": Different("a2, a2 c1, a2 c1 c2, a3, a3 c3", TOO_EARLY),
    "docs, strict contiguity in a loop": Different(
        "a b1 c, a b2 c, a b3 c", "The documentation errs: Flink's testOneOrMoreStrictOptional expects what ours finds."
    ),
    "docs, allowCombinations": Different(
        "c a1 b, c a1 a2 b, c a1 a3 b, c a1 a4 b, c a1 a2 a3 b, c a1 a2 a4 b, c a1 a3 a4 b, c a1 a2 a3 a4 b",
        "The documentation errs: Flink's testSkipTillAnyOneOrMore expects what ours finds.",
    ),
}


def result(case: Case) -> Counter[str]:
    try:
        return found(case)
    except PipelineError:
        return Counter([REFUSED])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_matches_are_those_that_flink_expects(case: Case) -> None:
    different = DIFFERENT.get(case.name)
    if different is None:
        assert result(case) == matches(case.expected)
    else:
        assert matches(different.ours) != matches(case.expected)
        assert result(case) == matches(different.ours)


@pytest.mark.parametrize("case", [case for case in CASES if case.left is not None], ids=lambda case: case.name)
def test_nothing_else_stays_under_way(case: Case) -> None:
    assert case.left is not None
    player = Player(case)
    rows, _, time = case.left.partition("@")
    player.pass_time(int(time or 0) * 1000)
    assert [each.first.values[0] for each in player.one.partial] == rows.split()
    assert not player.one.complete


def test_names_are_unique_and_differences_are_of_cases() -> None:
    names = [case.name for case in CASES]
    assert len({*names}) == len(names)
    assert {*DIFFERENT} <= {*names}


def test_partial_matches_are_over_when_flink_says() -> None:
    """`testSimplePatternWithTimeoutHandlingWithinFirstAndLast`."""
    player = Player(Case("", SME_ANY, STARTS, "", within_ms=10))
    assert player.told == ["s2 m e1"]
    assert {*player.over} == {("s1 m", 11), ("s2 m", 12), ("s1", 11), ("s2", 12)}
    assert len(player.over) == 4


# -- conditions that look back, in a pipeline: rows are `name:price@time` ----------------------------------------------

START = datetime(2026, 1, 1, tzinfo=UTC)
A_TO_Z = {letter: col("kind") == letter for letter in "abcdems"}
STARTS_LOW = (A_TO_Z["s"]) & (col("ss.price").sum().fill_null(0.0) + col("price") < 5.0)
ITERATIVE_BRANCHES = "s1:1@1 m1:1@2 m2:2@3 s2:2@4 m3:3@5 m4:1@5 f:1@6 e:1@8"
ITERATIVE_UNTIL = "c:1@1 a1:2@3 a2:3@4 d:1@5 a3:5@6 a4:6@7"


def low(repeated: Any) -> Pattern:
    """While the prices of `m` add up to less than 5."""
    cheap = A_TO_Z["m"] & (col("ms.price").sum().fill_null(0.0) + col("price") < 5.0)
    return begin("start", A_TO_Z["s"]).followed_by("ms", cheap, times=MORE, repeated=repeated).followed_by(
        "end", A_TO_Z["e"]
    )  # fmt: skip


def starts_low(repeated: Any) -> Pattern:
    return begin("ss", STARTS_LOW, times=MORE, optional=True, repeated=repeated).followed_by("end", A_TO_Z["e"])


def until_six(*, optional: bool) -> Pattern:
    six = col("middle.price").sum() == 6.0
    return begin("c", A_TO_Z["c"]).followed_by("middle", times=MORE, optional=optional, until=six)


LOOKING_BACK = [
    Case(
        "testIterativeWithBranchingPatternEager", low("followed_by"), ITERATIVE_BRANCHES,
        "s1 m1 m2 m4 e, s1 m1 m2 e, s1 m1 e, s2 m3 m4 e, s2 m3 e",
    ),
    Case(
        "testIterativeWithBranchingPatternCombinations", low(ANY), ITERATIVE_BRANCHES,
        "s1 m1 m2 m4 e, s1 m1 m2 e, s1 m1 m3 e, s2 m3 m4 e, s1 m1 m4 e, s1 m1 e, s2 m3 e",
    ),
    Case(
        "testIterativeWithLoopingStartingEager", starts_low("followed_by"), "s1:1@1 s2:2@2 s3:3@3 e:1@4",
        "s1 s2 e, s1 e, s2 e, s3 e, e",
    ),
    Case(
        "testIterativeWithLoopingStartingCombination", starts_low(ANY), "s1:1@1 s2:2@2 s3:3@3 e:1@4",
        "s1 s2 e, s1 s3 e, s1 e, s2 e, s3 e, e",
    ),
    Case(
        "testIterativeWithPrevPatternDependency",
        begin("ss", A_TO_Z["s"], times=MORE).followed_by("end", A_TO_Z["e"] & (col("ss.price").sum() >= 2.0)),
        "s1:1@1 s2:2@2 e:1@4", "s1 s2 e, s2 e",
    ),
    Case(
        "testIterativeWithABACPattern",
        begin("start", A_TO_Z["s"]).followed_by_any("middle", A_TO_Z["m"])
        .followed_by(
            "more", A_TO_Z["s"] & (col("more.price").sum().fill_null(0.0) + col("price") <= 5.0), times=MORE
        )
        .followed_by("end", A_TO_Z["e"]),
        "s1:1@1 m1:1@2 s2:2@2 s3:3@2 m2:2@2 s4:4@2 m3:3@2 m4:1@2 e:1@4",
        "s1 m1 s2 s3 e, s1 m1 s2 e, s1 m2 s4 e, s2 m2 s4 e, s3 m2 s4 e",
    ),
    Case(
        "testIterativeWithPrevPatternDependencyAfterBranching",
        begin("ss", A_TO_Z["s"], times=MORE).followed_by_any("middle", A_TO_Z["m"])
        .followed_by_any("end", A_TO_Z["e"] & (col("ss.price").sum() >= 2.0)),
        "s1:1@1 s2:2@2 m1:1@4 s3:3@5 m2:2@6 e:1@7",
        "s1 s2 m1 e, s2 m1 e, s1 s2 m2 e, s1 s2 s3 m2 e, s2 s3 m2 e, s2 m2 e, s3 m2 e",
    ),
    Case(
        "testIterativeUntilConditionOneOrMore", until_six(optional=False), ITERATIVE_UNTIL, "c a1 a2 d, c a1 a2, c a1"
    ),
    Case(
        "testIterativeUntilConditionZeroOrMore", until_six(optional=True), ITERATIVE_UNTIL,
        "c a1 a2 d, c a1 a2, c a1, c",
    ),
    Case(
        "testClearingBufferWithUntilAtTheEnd",
        begin("start", A_TO_Z["a"]).followed_by("ds", A_TO_Z["d"], times=MORE, until=col("ds").count() == 3),
        "a:1@1 d1:2@2 d2:2@2 d3:2@2 d4:2@4", "a d1 d2 d3, a d1 d2, a d1",
    ),
    Case(  # Flink's rows of a are equal; the one that ends the match is any row, be it an a
        "testIterativeConditionWSameElement",
        begin("start", A_TO_Z["c"]).followed_by_any("middle", A_TO_Z["a"], times=MORE, optional=True, repeated=ANY)
        .followed_by("end", col("middle.price").sum() == 4.0),
        "c:1@1 a1:2@3 a2:2@3 a3:2@3 b:5@7", "c a1 a3 b, c a1 a2 a3, c a2 a3 b",
    ),
    Case(
        "testSkipBeforeOtherAlreadyCompleted",
        begin("first", A_TO_Z["a"]).followed_by("second", A_TO_Z["c"])
        .followed_by("third", A_TO_Z["b"] & (col("price") == col("first.price"))),
        "a1:0 c1:0 a2:1 c2:0 b1:1 b2:0", "a1 c1 b2, a2 c2 b1", skip=("to_first", "second"),
    ),
]  # fmt: skip


@dataclass
class Priced:
    key: int
    name: str
    kind: str
    price: float
    at: datetime


def priced(rows: str) -> Iterable[Priced]:
    for row, time in named(rows):
        name, _, price = row.partition(":")
        yield Priced(1, name, letters(name), float(price), START + timedelta(microseconds=time))


@pytest.mark.parametrize("case", LOOKING_BACK, ids=lambda case: case.name)
def test_matches_of_conditions_that_look_back_are_those_that_flink_expects(case: Case) -> None:
    rows = iterables.Source([*priced(case.rows)], event_time="at")
    keyed = Pipeline("flink").read(rows).key_by("key")
    told = keyed.match(case.pattern, after_match=case.skip).select(rows=col("name").collect()).collect()
    assert Counter(" ".join(match) for (match,) in told.rows()) == matches(case.expected)
