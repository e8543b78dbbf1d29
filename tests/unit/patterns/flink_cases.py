"""Patterns, rows and the matches that Apache Flink's own tests and documentation of CEP expect of them.

Every case has the name of Flink's test; those of the documentation begin with `docs`. Rows are letters with a number and,
behind `@`, a time in milliseconds: `a1@3`; without a time a row comes one millisecond behind the one before. A condition
`col("a")` holds for rows that have this letter, so that `ab1` fulfils two. Matches are rows in their order, with commas
between them. As in Flink's comparison they have no names, and what matches twice is expected twice; the rows of a name
follow from the letters.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from penstock import Pattern, col
from penstock.api.patterns import AfterMatch, Often

ANY: Literal["followed_by_any"] = "followed_by_any"
MORE = (1, None)
begin = Pattern.begin
a, b, c, d, e, f, m, n, s, x = (col(letter) for letter in "abcdefmnsx")


@dataclass(frozen=True)
class Case:
    """What Flink expects of a pattern."""

    name: str
    pattern: Pattern
    rows: str
    expected: str
    within_ms: int | None = None
    skip: AfterMatch = "no_skip"
    left: str | None = None
    """The first rows of what is under way behind the last row, or at the time behind `@`; None: it is not looked at."""


def subsets(before: str, some: str, after: str, least: int = 0) -> str:
    """All ways to take some of the rows between the others."""
    rows = some.split()
    taken = (each for size in range(least, len(rows) + 1) for each in combinations(rows, size))
    return ",".join(" ".join([before, *each, after]).strip() for each in taken)


# -- NFAITCase ---------------------------------------------------------------------------------------------------------

GAPS = "c@1 f1@2 a1@3 f2@4 a2@5 a3@6 b@7"
NO_GAPS = "c@1 a1@2 a2@4 a3@6 b@7"
NEXT_GAPS = "c@1 a1@2 f1@3 a2@4 f2@5 a3@6 b@7"
FOUR = "c@1 d1@2 a1@3 a2@4 a3@4 d2@5 a4@6 b@7"
BRANCHES = "s@1 m1@3 m2@4 m3@5 n1@6 n2@7 e@8"
STARTS = "s1@1 s2@2 m@3 f@4 e1@11 e2@13"


def cab(
    near: Literal["next", "followed_by", "followed_by_any"], times: Often = 1, *, end: str = "followed_by", **more: Any
) -> Pattern:
    """`c`, then `a` some times, then `b`."""
    middle = getattr(begin("c", c), near)("a", a, times=times, **more)
    return getattr(middle, end)("b", b)


def smne(first: str, second: str) -> Pattern:
    return getattr(getattr(begin("s", s), first)("m", m), second)("n", n).followed_by_any("e", e)


SME_ANY = begin("s", s).followed_by_any("m", m).followed_by_any("e", e)
SME_PREVIOUS = begin("s", s).followed_by("m", m, within="9ms").followed_by("e", e, within="9ms")
SME_ANY_PREVIOUS = begin("s", s).followed_by_any("m", m, within="10ms").followed_by_any("e", e, within="10ms")

NFA = [
    Case("testNoConditionNFA", begin("s").followed_by("e"), "a b c d e", "a b, b c, c d, d e"),
    Case(
        "testAnyWithNoConditionNFA", begin("s").followed_by_any("e"), "a b c d e",
        "a b, a c, a d, a e, b c, b d, b e, c d, c e, d e",
    ),
    Case(
        "testSimplePatternNFA", begin("s", s).followed_by("m", m).followed_by("e", e),
        "s1@1 f1@2 f2@3 m@3 s2@4 e@5", "s1 m e",
    ),
    Case("testStrictContinuityWithResults", begin("a", a).next("b", b), "a@3 b@5", "a b"),
    Case("testStrictContinuityNoResults", begin("a", a).next("b", b), "a@3 c@4 b@5", ""),
    Case(
        "testSimplePatternWithTimeWindowNFA", begin("s", s).followed_by("m", m).followed_by("e", e), STARTS,
        "s2 m e1", within_ms=10,
    ),
    Case("testSimplePatternWithTimeWindowNFAWithinPreviousAndCurrent", SME_PREVIOUS, STARTS, "s1 m e1, s2 m e1"),
    Case("testSimplePatternWithTimeoutHandlingWithinFirstAndLast", SME_ANY, STARTS, "s2 m e1", within_ms=10),
    Case(
        "testSimplePatternWithTimeoutHandlingWithinPreviousAndCurrent", SME_ANY_PREVIOUS, STARTS, "s1 m e1, s2 m e1"
    ),
    Case(
        "testPendingStateMatchesWithinFirstAndLast", begin("s", s).not_followed_by("m", m),
        "s1@1 m1@4 s2@5 s3@11 m2@18", "s2, s3", within_ms=5,
    ),
    Case(
        "testBranchingPattern", smne(ANY, ANY), BRANCHES,
        "s m1 n1 e, s m2 n1 e, s m3 n1 e, s m1 n2 e, s m2 n2 e, s m3 n2 e",
    ),
    Case(
        "testComplexBranchingAfterZeroOrMore",
        begin("c", c).followed_by_any("a", a, times=MORE, repeated=ANY, optional=True)
        .followed_by_any("b", b).followed_by_any("d", d).followed_by_any("e", e),
        "c@1 a1@3 a2@4 a3@5 b@6 d1@7 d2@8 e@9",
        "c a1 a2 a3 b d1 e, c a1 a2 b d1 e, c a1 a3 b d1 e, c a2 a3 b d1 e, c a1 b d1 e, c a2 b d1 e, c a3 b d1 e,"
        "c b d1 e, c a1 a2 a3 b d2 e, c a1 a2 b d2 e, c a1 a3 b d2 e, c a2 a3 b d2 e, c a1 b d2 e,"
        "c a2 b d2 e, c a3 b d2 e, c b d2 e",
    ),
    Case(
        "testZeroOrMore", cab(ANY, MORE, repeated=ANY, optional=True), "c@1 a1@3 a2@4 b@6",
        "c a1 a2 b, c a1 b, c a2 b, c b",
    ),
    Case(
        "testEagerZeroOrMore", cab("followed_by", MORE, optional=True), "c@1 a1@3 a2@4 d@5 a3@6 b@7",
        "c a1 a2 a3 b, c a1 a2 b, c a1 b, c b",
    ),
    Case(
        "testBeginWithZeroOrMore", begin("a", a, times=MORE, optional=True).followed_by("b", b),
        "a1@3 a2@4 a3@5 b@6", "a1 a2 a3 b, a1 a2 b, a2 a3 b, a1 b, a2 b, a3 b, b",
    ),
    Case(
        "testZeroOrMoreAfterZeroOrMore",
        begin("c", c).followed_by_any("a", a, times=MORE, repeated=ANY, optional=True)
        .followed_by("d", d, times=MORE, repeated=ANY, optional=True).followed_by("e", e),
        "c@1 a@3 d1@4 d2@5 e@6", "c a d1 d2 e, c a d1 e, c d1 d2 e, c d1 e, c a e, c e",
    ),
    Case(
        "testZeroOrMoreAfterBranching",
        begin("c", c).followed_by_any("a", a).followed_by_any("f", f)
        .followed_by_any("d", d, times=MORE, repeated=ANY, optional=True).followed_by("e", e),
        "c@1 a1@3 a2@4 f@5 d1@6 d2@7 e@8",
        "c a1 f e, c a1 f d1 e, c a1 f d2 e, c a1 f d1 d2 e, c a2 f e, c a2 f d1 e, c a2 f d2 e, c a2 f d1 d2 e",
    ),
    Case(
        "testStrictContinuityNoResultsAfterZeroOrMore",
        begin("d", d).followed_by("a", a, times=MORE, optional=True).next("b", b), "d a1 a2 c b", "",
    ),
    Case(
        "testStrictContinuityResultsAfterZeroOrMore",
        begin("d", d).followed_by_any("a", a, times=MORE, optional=True, repeated=ANY).next("b", b),
        "d@1 a1@2 a2@3 b@5", "d a1 a2 b, d a2 b",
    ),
    Case(
        "testAtLeastOne", cab(ANY, MORE, repeated=ANY, end=ANY), "c@1 a1@3 a2@4 b@6", "c a1 a2 b, c a1 b, c a2 b"
    ),
    Case(
        "testBeginWithAtLeastOne", begin("a", a, times=MORE, repeated=ANY).followed_by("b", b), "a1@3 a2@4 a3@5 b@6",
        "a1 a2 a3 b, a1 a2 b, a1 a3 b, a2 a3 b, a1 b, a2 b, a3 b",
    ),
    Case(
        "testNextZeroOrMore",
        begin("s", s).next("m", m, times=MORE, optional=True, repeated="next").followed_by("e", e),
        "s f m1 m2 m3 e", "s e",
    ),
    Case(
        "testAtLeastOneEager", cab(ANY, MORE, end=ANY), "c@1 a1@3 a2@4 a3@5 b@6",
        "c a1 a2 a3 b, c a1 a2 b, c a2 a3 b, c a3 b, c a2 b, c a1 b",
    ),
    Case("testOptional", cab("followed_by", optional=True), "c@1 a@5 b@6", "c a b, c b"),
    Case("testTimes", cab("next", 2, repeated=ANY), "c@1 a1@2 a2@3 a3@4 b@6", "c a1 a2 b, c a1 a3 b"),
    Case(
        "testStartWithTimes", begin("a", a, times=2, repeated="next").followed_by("b", b), "a1@2 a2@3 a3@4 b@6",
        "a1 a2 b, a2 a3 b",
    ),
    Case("testTimesNonStrictWithNext", cab("next", 2, repeated=ANY), NEXT_GAPS, "c a1 a2 b, c a1 a3 b"),
    Case("testTimesNotStrictWithFollowedByEager", cab("followed_by", 2), NO_GAPS, "c a1 a2 b"),
    Case(
        "testTimesNotStrictWithFollowedByNotEager", cab(ANY, 2, repeated=ANY), NO_GAPS,
        "c a1 a2 b, c a2 a3 b, c a1 a3 b",
    ),
    Case(
        "testTimesStrictWithNextAndConsecutive", cab("next", 2, repeated="next"), "c@1 a1@2 f@3 a2@4 a3@6 b@7", ""
    ),
    Case("testStartWithOptional", begin("c", c, optional=True).followed_by("b", b), "c@1 b@6", "c b, b"),
    Case(
        "testEndWithZeroOrMore", begin("c", c).followed_by("a", a, times=MORE, optional=True), "c@1 a1@3 a2@4 a3@5",
        "c a1 a2 a3, c a1 a2, c a1, c",
    ),
    Case(
        "testStartAndEndWithZeroOrMore", begin("a", a, times=MORE, optional=True), "c@1 a1@3 a2@4 a3@5 d1@6 d2@6 d3@6",
        "a1 a2 a3, a1 a2, a1, a2 a3, a2, a3",
    ),
    Case("testEndWithOptional", begin("c", c).followed_by("a", a, optional=True), "c@1 a@3", "c a, c"),
    Case(
        "testEndWithOneOrMore", begin("c", c).followed_by("a", a, times=MORE), "c@1 a1@3 a2@4 a3@5",
        "c a1 a2 a3, c a1 a2, c a1",
    ),
    Case("testTimesNonStrictOptional1", cab("followed_by", 3, optional=True), "c@1 f@2 b@7", "c b"),
    Case(
        "testTimesNonStrictOptional2", cab(ANY, 2, repeated=ANY, optional=True), GAPS,
        "c a1 a2 b, c a1 a3 b, c a2 a3 b, c b",
    ),
    Case("testTimesNonStrictOptional3", cab(ANY, 2, optional=True), GAPS, "c a1 a2 b, c a2 a3 b, c b"),
    Case("testTimesStrictOptional", cab(ANY, 2, repeated="next", optional=True), GAPS, "c a2 a3 b, c b"),
    Case(
        "testOneOrMoreStrictOptional", cab(ANY, MORE, repeated="next", optional=True), GAPS,
        "c a2 a3 b, c a1 b, c a2 b, c a3 b, c b",
    ),
    Case(
        "testTimesStrictOptional1", cab("next", 2, repeated="next", optional=True), "c@1 a1@3 a2@5 a3@6 b@7",
        "c a1 a2 b, c b",
    ),
    Case(
        "testOptionalTimesNonStrictWithNext", cab("next", 2, repeated=ANY, optional=True), NEXT_GAPS,
        "c a1 a2 b, c a1 a3 b, c b",
    ),
    Case(
        "testStrictOneOrMore", cab("followed_by", MORE, repeated="next"), FOUR, "c a1 a2 a3 b, c a1 a2 b, c a1 b"
    ),
    Case(
        "testSkipTillNextOneOrMore", cab("followed_by", MORE), FOUR,
        "c a1 a2 a3 a4 b, c a1 a2 a3 b, c a1 a2 b, c a1 b",
    ),
    Case(
        "testSkipTillAnyOneOrMore", cab("followed_by", MORE, repeated=ANY), FOUR,
        "c a1 a2 a3 a4 b, c a1 a3 a4 b, c a1 a2 a3 b, c a1 a2 a4 b, c a1 a2 b, c a1 a3 b, c a1 a4 b, c a1 b",
    ),
    Case(
        "testStrictEagerZeroOrMore", cab("followed_by", MORE, repeated="next", optional=True), FOUR,
        "c a1 a2 a3 b, c a1 a2 b, c a1 b, c b",
    ),
    Case(
        "testSkipTillAnyZeroOrMore", cab("followed_by", MORE, repeated=ANY, optional=True), FOUR,
        "c a1 a2 a3 a4 b, c a1 a2 a4 b, c a1 a3 a4 b, c a1 a4 b, c a1 a2 a3 b, c a1 a2 b, c a1 a3 b, c a1 b, c b",
    ),
    Case(
        "testSkipTillNextZeroOrMore", cab("followed_by", MORE, optional=True), FOUR,
        "c a1 a2 a3 a4 b, c a1 a2 a3 b, c a1 a2 b, c a1 b, c b",
    ),
    Case("testTimesStrict", cab(ANY, 2, repeated="next"), GAPS, "c a2 a3 b"),
    Case("testTimesNonStrict", cab(ANY, 2, repeated=ANY), GAPS, "c a1 a2 b, c a1 a3 b, c a2 a3 b"),
    Case(
        "testStartWithZeroOrMoreStrict", begin("a", a, times=MORE, optional=True, repeated="next"),
        "c1@1 a1@3 c2@4 a2@5 a3@6", "a1, a2 a3, a2, a3",
    ),
    Case(
        "testStartWithOneOrMoreStrict", begin("a", a, times=MORE, repeated="next"), "c1@1 a1@3 c2@4 a2@5 a3@6",
        "a1, a2 a3, a2, a3",
    ),
    Case(
        "testTimesClearingBufferWithinFirstAndLast", cab("next", 2), "c@1 a1@2 a2@3 a3@4 b@6", "c a1 a2 b",
        within_ms=8, left="@10",
    ),
    Case(
        "testOptionalClearingBufferWithinFirstAndLast", cab("followed_by", optional=True), "c@1 a@5 b@6",
        "c a b, c b", within_ms=8, left="@10",
    ),
    Case(
        "testAtLeastOneClearingBufferWithinFirstAndLast", cab("followed_by", MORE, repeated=ANY), "c@1 a1@3 a2@4 b@6",
        "c a1 b, c a1 a2 b", within_ms=8, left="@10",
    ),
    Case(
        "testZeroOrMoreClearingBufferWithinFirstAndLast", cab("followed_by", MORE, repeated=ANY, optional=True),
        "c@1 a1@3 a2@4 b@6", "c a1 b, c a1 a2 b, c b", within_ms=8, left="@10",
    ),
    Case("testBranchingPatternSkipTillNext", smne("followed_by", "followed_by"), BRANCHES, "s m1 n1 e"),
    Case(
        "testBranchingPatternMixedFollowedBy", smne(ANY, "followed_by"), BRANCHES, "s m1 n1 e, s m2 n1 e, s m3 n1 e"
    ),
    Case(
        "testMultipleTakesVersionCollision",
        begin("c", c).followed_by("a", a, times=MORE, repeated=ANY).followed_by("a_again", a, times=MORE, repeated=ANY)
        .followed_by("b", b),
        "c@1 a1@3 a2@4 a3@5 a4@6 a5@7 b@10",
        "c a1 a2 a3 a4 a5 b, c a1 a2 a3 a4 a5 b, c a1 a2 a3 a4 a5 b, c a1 a2 a3 a4 a5 b, c a1 a2 a3 a4 b,"
        "c a1 a2 a4 a5 b, c a1 a2 a3 a4 b, c a1 a2 a3 a5 b, c a1 a3 a4 a5 b, c a1 a3 a4 a5 b, c a1 a2 a3 a4 b,"
        "c a1 a2 a3 a5 b, c a1 a2 a4 a5 b, c a1 a2 a3 b, c a1 a3 a4 b, c a1 a4 a5 b,"
        "c a1 a2 a3 b, c a1 a2 a4 b, c a1 a2 a5 b, c a1 a2 b",
    ),
    Case(
        "testNFAResultOrdering",
        begin("a", a, times=4, repeated=ANY).followed_by_any("b", b, times=3, repeated="next"),
        "a1@1 a2@3 a3@4 a4@5 b1@6 b2@7 b3@10", "a1 a2 a3 a4 b1 b2 b3",
    ),
    Case(
        "testLoopClearingWithinFirstAndLast", begin("a", a, times=4), "a1@1 a2@2", "", within_ms=3,
        skip="past_last_row", left="a2@4",
    ),
]  # fmt: skip

# -- NFATest -----------------------------------------------------------------------------------------------------------

START_END = begin("s", s).followed_by_any("e", e)

WINDOWS = [
    Case("testSimpleNFA", START_END, "s1@1 b@2 s2@3 e@4", "s1 e, s2 e"),
    Case("testTimeoutWindowPruning", START_END, "s1@1 b@2 s2@3 e@4", "s2 e", within_ms=2),
    Case("testWindowBorders", START_END, "s@1 e@3", "", within_ms=2),
    Case("testTimeoutWindowPruningWindowBorders", START_END, "s1@1 s2@2 f@3 e@3", "s2 e", within_ms=2),
]

# -- TimesOrMoreITCase: each without and with a time of 3 ms between the rows ------------------------------------------


def or_more(name: str, near: Any, rows: str, expected: str, without: str = "", **more: Any) -> list[Case]:
    """`without`: what is expected only where no time is given."""
    return [
        Case(name, cab(near, (2, None), **more), rows, f"{expected}, {without}"),
        Case(f"{name}[3ms]", cab(near, (2, None), within="3ms", **more), rows, expected),
    ]


TIMES_OR_MORE = [
    *or_more(
        "testTimesOrMore", "followed_by", "c@1 a1@2 a2@3 a3@4 b@6", "c a1 a2 a3 b, c a1 a2 b, c a1 a3 b", repeated=ANY
    ),
    *or_more(
        "testTimesOrMoreNonStrict", ANY, GAPS, "c a1 a2 a3 b, c a1 a2 b", "c a1 a3 b, c a2 a3 b", repeated=ANY
    ),
    Case("testTimesOrMoreStrict", cab(ANY, 2, repeated="next"), GAPS, "c a2 a3 b"),
    *or_more("testTimesOrMoreStrictOptional", ANY, GAPS, "c a2 a3 b, c b", repeated="next", optional=True),
    *or_more(
        "testTimesOrMoreStrictOptional2", "next", "c@1 a1@3 a2@5 a3@6 b@7", "c a1 a2 a3 b, c a1 a2 b, c b",
        repeated="next", optional=True,
    ),
    *or_more("testTimesOrMoreNonStrictOptional", "followed_by", "c@1 f@2 b@7", "c b", optional=True),
    *or_more(
        "testTimesOrMoreNonStrictOptional2", ANY, GAPS, "c a1 a2 a3 b, c a1 a2 b, c a2 a3 b, c b", "c a1 a3 b",
        repeated=ANY, optional=True,
    ),
    *or_more(
        "testTimesOrMoreNonStrictOptional3", ANY, GAPS, "c a1 a2 a3 b, c a1 a2 b, c a2 a3 b, c b", optional=True
    ),
    *or_more(
        "testTimesOrMoreNonStrictWithNext", "next", NEXT_GAPS, "c a1 a2 a3 b, c a1 a2 b", "c a1 a3 b", repeated=ANY
    ),
    *or_more("testTimesOrMoreNotStrictWithFollowedBy", "followed_by", NO_GAPS, "c a1 a2 a3 b, c a1 a2 b"),
    *or_more(
        "testTimesOrMoreNotStrictWithFollowedByAny", ANY, NO_GAPS, "c a1 a2 a3 b, c a1 a2 b", "c a2 a3 b, c a1 a3 b",
        repeated=ANY,
    ),
]  # fmt: skip

# -- TimesRangeITCase --------------------------------------------------------------------------------------------------

TIMES_RANGE = [
    Case(
        "testTimesRange", cab("next", (1, 3), repeated=ANY), "c@1 a1@2 a2@3 a3@4 b@6",
        "c a1 a2 a3 b, c a1 a2 b, c a1 a3 b, c a1 b",
    ),
    Case(
        "testTimesRangeFromZero", cab("next", (0, 2), repeated=ANY), "c@1 a1@2 a2@3 a3@4 b@6",
        "c a1 a2 b, c a1 a3 b, c a1 b, c b",
    ),
    Case(
        "testTimesRangeNonStrict", cab(ANY, (1, 3), repeated=ANY), GAPS,
        "c a1 a2 a3 b, c a1 a2 b, c a1 a3 b, c a2 a3 b, c a1 b, c a2 b, c a3 b",
    ),
    Case(
        "testTimesRangeStrict", cab(ANY, (0, 3), repeated="next"), GAPS, "c a2 a3 b, c a1 b, c a2 b, c a3 b, c b"
    ),
    Case(
        "testTimesRangeStrictOptional", cab(ANY, (1, 3), repeated="next", optional=True), GAPS,
        "c a2 a3 b, c a1 b, c a2 b, c a3 b, c b",
    ),
    Case(
        "testTimesRangeStrictOptional1", cab("next", (1, 3), repeated="next", optional=True), "c@1 a1@3 a2@5 a3@6 b@7",
        "c a1 a2 a3 b, c a1 a2 b, c a1 b, c b",
    ),
    Case("testTimesRangeNonStrictOptional1", cab("followed_by", (1, 3), optional=True), "c@1 f@2 b@7", "c b"),
    Case(
        "testTimesRangeNonStrictOptional2", cab(ANY, (2, 3), repeated=ANY, optional=True), GAPS,
        "c a1 a2 a3 b, c a1 a2 b, c a1 a3 b, c a2 a3 b, c b",
    ),
    Case(
        "testTimesRangeNonStrictOptional3", cab(ANY, (2, 3), optional=True), GAPS,
        "c a1 a2 a3 b, c a1 a2 b, c a2 a3 b, c b",
    ),
    Case(
        "testTimesRangeNonStrictWithNext", cab("next", (2, 3), repeated=ANY), NEXT_GAPS,
        "c a1 a2 a3 b, c a1 a2 b, c a1 a3 b",
    ),
    Case("testTimesRangeNotStrictWithFollowedBy", cab("followed_by", (2, 3)), NO_GAPS, "c a1 a2 a3 b, c a1 a2 b"),
    Case(
        "testTimesRangeNotStrictWithFollowedByAny", cab(ANY, (2, 3), repeated=ANY), NO_GAPS,
        "c a1 a2 a3 b, c a1 a2 b, c a2 a3 b, c a1 a3 b",
    ),
]  # fmt: skip

# -- GreedyITCase: Flink's until, a price above 3, is the letter x -----------------------------------------------------

GREEDY_ANY = begin("c", c).followed_by("a", a, times=MORE, optional=True, greedy=True).followed_by("d", d)
GREEDY_SOME = begin("c", c).followed_by("a", a, times=MORE, greedy=True).followed_by("d", d)
GREEDY_UNTIL = begin("c", c).followed_by("a", a, times=MORE, optional=True, greedy=True, until=x).followed_by("d", d)
GREEDY_SOME_UNTIL = begin("c", c).followed_by("a", a, times=MORE, greedy=True, until=x).followed_by("d", d)
GREEDY_OPTIONAL = (
    begin("c", c).followed_by("a", a, times=MORE, optional=True, greedy=True).followed_by("d", d, optional=True)
).followed_by("e", e)
DUMMIES = "c f1 a1 f2 a2 f3 a3 d"

GREEDY = [
    Case("testGreedyZeroOrMore", GREEDY_ANY, "c a1 a2 a3 d", "c a1 a2 a3 d"),
    Case("testGreedyZeroOrMoreInBetween", GREEDY_ANY, DUMMIES, "c a1 a2 a3 d"),
    Case("testGreedyZeroOrMoreWithDummyEventsAfterQuantifier", GREEDY_ANY, "c a1 a2 f d", "c a1 a2 d"),
    Case("testGreedyZeroOrMoreWithDummyEventsBeforeQuantifier", GREEDY_ANY, "c f d", "c d"),
    Case("testGreedyZeroOrMoreBeforeOptional", GREEDY_OPTIONAL, "c a1 a2 f e", "c a1 a2 e"),
    Case("testGreedyZeroOrMoreBeforeOptional2", GREEDY_OPTIONAL, "c a1 a2 d e", "c a1 a2 e, c a1 a2 d e"),
    Case(
        "testGreedyUntilZeroOrMoreWithDummyEventsAfterQuantifier", GREEDY_UNTIL, "c a1 a2 a3 ax d", "c a1 a2 a3 d"
    ),
    Case("testGreedyUntilWithDummyEventsBeforeQuantifier", GREEDY_UNTIL, "c ax a1 a2 a3 d", "c d"),
    Case("testGreedyOneOrMore", GREEDY_SOME, "c a1 a2 a3 d", "c a1 a2 a3 d"),
    Case("testGreedyOneOrMoreInBetween", GREEDY_SOME, DUMMIES, "c a1 a2 a3 d"),
    Case("testGreedyOneOrMoreWithDummyEventsAfterQuantifier", GREEDY_SOME, "c a1 a2 f d", "c a1 a2 d"),
    Case("testGreedyOneOrMoreWithDummyEventsBeforeQuantifier", GREEDY_SOME, "c f d", ""),
    Case(
        "testGreedyUntilOneOrMoreWithDummyEventsAfterQuantifier", GREEDY_SOME_UNTIL, "c a1 a2 a3 ax d", "c a1 a2 a3 d"
    ),
    Case("testGreedyUntilOneOrMoreWithDummyEventsBeforeQuantifier", GREEDY_SOME_UNTIL, "c ax a1 a2 a3 d", ""),
    Case(
        "testGreedyZeroOrMoreBeforeGroupPattern",
        begin("c", c).followed_by("a", a, times=MORE, optional=True, greedy=True)
        .followed_by(begin("d", d).followed_by("e", e), times=2).followed_by("f", f),
        "c a1 a2 b a3 d1 e1 d2 e2 f", "c a1 a2 a3 d1 e1 d2 e2 f",
    ),
    Case(
        "testEndWithZeroOrMoreGreedy", begin("c", c).followed_by("a", a, times=MORE, optional=True, greedy=True),
        "c a1 a2 f a3", "c, c a1, c a1 a2, c a1 a2 a3",
    ),
    Case(
        "testEndWithZeroOrMoreConsecutiveGreedy",
        begin("c", c).followed_by("a", a, times=MORE, optional=True, repeated="next", greedy=True),
        "c a1 a2 f a3", "c, c a1, c a1 a2",
    ),
    Case(
        "testEndWithGreedyTimesRange", begin("c", c).followed_by("a", a, times=(2, 5), greedy=True),
        "c a1 a2 a3 a4 f", "c a1 a2, c a1 a2 a3, c a1 a2 a3 a4",
    ),
    Case(
        "testGreedyTimesRange", begin("c", c).followed_by("a", a, times=(2, 5), greedy=True).followed_by("d", d),
        "c a1 a2 a3 a4 d", "c a1 a2 a3 a4 d",
    ),
]  # fmt: skip

# -- GroupITCase -------------------------------------------------------------------------------------------------------

AB = begin("a", a).followed_by("b", b)
BC = begin("b", b).followed_by("c", c)
TWICE = "c a1 b1 a2 b2 d"
THRICE = "c a1 b1 a2 b2 a3 b3 d"
NESTED = "d a1 b1 c1 b2 c2 b3 c3 a2 b4 c4 b5 c5 b6 c6 e"
NESTED_GAP = "d a1 b1 c1 b2 c2 b3 c3 a2 b4 c4 f b5 c5 b6 c6 e"


def grouped(near: str = "followed_by", times: Often = 1, **more: Any) -> Pattern:
    """`c`, then some times `a` followed by `b`, then `d`."""
    return getattr(begin("c", c), near)(AB, times=times, **more).followed_by("d", d)


GROUPS = [
    Case("testGroupFollowedByTimes", grouped(times=2), TWICE, "c a1 b1 a2 b2 d"),
    Case("testGroupFollowedByOptional", grouped(optional=True), "c a1 a2 b d", "c d, c a1 b d"),
    Case("testFollowedByGroupTimesOptional", grouped(times=2, optional=True), "c a d", "c d"),
    Case("testGroupFollowedByOneOrMore", grouped(times=MORE), TWICE, "c a1 b1 d, c a1 b1 a2 b2 d"),
    Case(
        "testGroupFollowedByZeroOrMore", grouped(times=MORE, optional=True), TWICE, "c d, c a1 b1 d, c a1 b1 a2 b2 d"
    ),
    Case(
        "testGroupFollowedByAnyTimesCombinations", grouped(ANY, 2, repeated=ANY), THRICE,
        "c a1 b1 a2 b2 d, c a1 b1 a3 b3 d, c a2 b2 a3 b3 d",
    ),
    Case(
        "testGroupFollowedByAnyTimesOptional", grouped(ANY, 2, optional=True), THRICE,
        "c d, c a1 b1 a2 b2 d, c a2 b2 a3 b3 d",
    ),
    Case(
        "testGroupFollowedByAnyOneOrMore", grouped(ANY, MORE), THRICE,
        "c a1 b1 d, c a2 b2 d, c a3 b3 d, c a1 b1 a2 b2 d, c a2 b2 a3 b3 d, c a1 b1 a2 b2 a3 b3 d",
    ),
    Case(
        "testGroupNextZeroOrMore", grouped("next", MORE, optional=True, repeated="next"), THRICE,
        "c d, c a1 b1 d, c a1 b1 a2 b2 d, c a1 b1 a2 b2 a3 b3 d",
    ),
    Case(
        "testGroupNotFollowedBy", begin("c", c).followed_by_any(AB).not_followed_by("d", d).followed_by("e", e),
        "c a1 b1 d a2 b2 e", "c a2 b2 e",
    ),
    Case(
        "testGroupNotNext", begin("c", c).followed_by_any(AB).not_next("d", d).followed_by("e", e),
        "c a1 b1 d a2 b2 e", "c a2 b2 e",
    ),
    Case(
        "testGroupNest",
        begin("d", d).followed_by(begin("a", a).followed_by(BC, times=MORE, optional=True), optional=True)
        .followed_by("e", e),
        "d a1 b1 c1 b2 c2 e", "d e, d a1 e, d a1 b1 c1 e, d a1 b1 c1 b2 c2 e",
    ),
    Case(
        "testGroupNestTimes",
        begin("d", d).followed_by_any(begin("a", a).followed_by(BC, times=3), times=(0, 2)).followed_by("e", e), NESTED,
        "d e, d a1 b1 c1 b2 c2 b3 c3 e, d a2 b4 c4 b5 c5 b6 c6 e, d a1 b1 c1 b2 c2 b3 c3 a2 b4 c4 b5 c5 b6 c6 e",
    ),
    Case(
        "testGroupNestTimesConsecutive",
        begin("d", d).followed_by_any(
            begin("a", a).followed_by(BC, times=3, repeated="next"), times=(0, 2), repeated="next"
        ).followed_by("e", e),
        NESTED_GAP, "d e, d a1 b1 c1 b2 c2 b3 c3 e",
    ),
    Case(
        "testGroupBegin", begin(AB, times=(1, 2)).followed_by("d", d), "a1 b1 a2 b2 d",
        "a1 b1 d, a2 b2 d, a1 b1 a2 b2 d",
    ),
    Case(
        "testGroupFollowedByOneOrMoreWithUntilCondition", grouped(times=MORE, until=d), TWICE,
        "c a1 b1 d, c a1 b1 a2 b2 d", left="",
    ),
    Case(
        "testGroupStartsWithOptionalPattern",
        begin("a", a).next(begin("b", b, optional=True).next("c", c)).next("d", d), "a c d", "a c d",
    ),
    Case(
        "testFollowedByOptionalGroupPattern",
        begin("a", a).followed_by(begin("b", b).next("c", c), optional=True).next("d", d), "a d1 d2", "a d1",
    ),
]  # fmt: skip

# -- NotPatternITCase --------------------------------------------------------------------------------------------------

BEFORE_AND_AFTER = "a b1 b2 b3 c b4 b5 b6 d"
LAST_THREE = "a b4 b5 b6 d, a b4 b5 d, a b4 d, a b5 b6 d, a b5 d, a b6 d"
ONE_BEFORE = "a b1 c b4 b5 b6 d"
RELAXED_AFTER = "a b1 b4 b5 b6 d, a b1 b4 b5 d, a b1 b4 d, a b1 d"


def not_after(near: str, **more: Any) -> Pattern:
    middle = getattr(begin("a", a), near)("b", b, times=MORE, **more)
    return middle.not_followed_by("c", c).followed_by("d", d)


def not_before(near: str, **more: Any) -> Pattern:
    return getattr(begin("a", a).not_followed_by("c", c), near)("b", b, times=MORE, **more).followed_by("d", d)


def not_next_after(near: str) -> Pattern:
    return getattr(begin("a", a), near)("b", b, times=MORE).not_next("c", c).followed_by("d", d)


def no_b() -> Pattern:
    return begin("a", a).not_followed_by("b", b)


NOTS = [
    Case(
        "testNotNext", begin("a", a).not_next("b", b).followed_by_any("c", c).followed_by("d", d), "a c1 b c2 d",
        "a c1 d, a c2 d",
    ),
    Case(
        "testNotNextNoMatches", begin("a", a).not_next("b", b).followed_by("c", c).followed_by("d", d), "a b c1 c2 d", ""
    ),
    Case(
        "testNotNextNoMatchesAtTheEnd",
        begin("a", a).followed_by_any("c", c).followed_by_any("d", d).not_next("b", b), "a c1 c2 d b", "",
    ),
    Case("testNotFollowedBy", no_b().followed_by_any("c", c).followed_by("d", d), "a c1 b c2 d", "a c1 d"),
    Case(
        "testNotFollowedByBeforeOptional", no_b().followed_by_any("c", c, optional=True).followed_by("d", d),
        "a c1 b c2 d", "a c1 d",
    ),
    Case(
        "testTimesWithNotFollowedBy",
        begin("a", a).followed_by_any("b", b, times=2).not_followed_by("c", c).followed_by("d", d), "a b1 c b2 d", "",
    ),
    Case(
        "testIgnoreStateOfTimesWithNotFollowedBy",
        no_b().followed_by_any("c", c, times=2, optional=True).followed_by("d", d), "a d1 e b c1 c2 d2", "a d1",
    ),
    Case(
        "testTimesWithNotFollowedByAfter",
        begin("a", a).followed_by_any("b", b, times=2).not_followed_by("c", c).followed_by("d", d),
        "a d1 e b1 b2 c d2", "",
    ),
    Case(
        "testNotFollowedByBeforeOptionalAtTheEnd", no_b().followed_by_any("c", c, optional=True), "a c1 b c2",
        "a c1, a",
    ),
    Case(
        "testNotFollowedByBeforeOptionalTimes",
        no_b().followed_by_any("c", c, times=2, optional=True).followed_by("d", d), "a c1 b c2 d", "a c1 c2 d",
    ),
    Case(
        "testNotFollowedByWithBranchingAtStart", no_b().followed_by("c", c).followed_by("d", d), "a1 b c1 a2 c2 d",
        "a2 c2 d",
    ),
    Case("testNotNextAfterOneOrMoreSkipTillNext", not_next_after("followed_by"), "a b1 c b2 d", ""),
    Case("testNotNextAfterOneOrMoreSkipTillAny", not_next_after(ANY), "a b1 c b2 d", "a b2 d"),
    Case("testNotFollowedByNextAfterOneOrMoreEager", not_after("followed_by"), BEFORE_AND_AFTER, ""),
    Case("testNotFollowedByAnyAfterOneOrMoreEager", not_after(ANY), BEFORE_AND_AFTER, LAST_THREE),
    Case(
        "testNotFollowedByNextAfterOneOrMoreCombinations", not_after("followed_by", repeated=ANY), BEFORE_AND_AFTER, ""
    ),
    Case(
        "testNotFollowedByAnyAfterOneOrMoreCombinations", not_after(ANY, repeated=ANY), BEFORE_AND_AFTER,
        f"{LAST_THREE}, a b4 b6 d",
    ),
    Case("testNotFollowedByAnyBeforeOneOrMoreEager", not_before(ANY), ONE_BEFORE, RELAXED_AFTER),
    Case(
        "testNotFollowedByAnyBeforeOneOrMoreCombinations", not_before(ANY, repeated=ANY), ONE_BEFORE,
        subsets("a b1", "b4 b5 b6", "d"),
    ),
    Case("testNotFollowedByBeforeOneOrMoreEager", not_before("followed_by"), ONE_BEFORE, RELAXED_AFTER),
    Case(
        "testNotFollowedByBeforeOneOrMoreCombinations", not_before("followed_by", repeated=ANY), ONE_BEFORE,
        subsets("a b1", "b4 b5 b6", "d"),
    ),
    Case(
        "testNotFollowedByBeforeZeroOrMoreEagerSkipTillNext", not_before("followed_by", optional=True), ONE_BEFORE,
        RELAXED_AFTER,
    ),
    Case(
        "testNotFollowedByBeforeZeroOrMoreCombinationsSkipTillNext",
        not_before("followed_by", optional=True, repeated=ANY), ONE_BEFORE, subsets("a b1", "b4 b5 b6", "d"),
    ),
    Case(
        "testNotFollowedByBeforeZeroOrMoreEagerSkipTillAny", not_before(ANY, optional=True), ONE_BEFORE, RELAXED_AFTER
    ),
    Case(
        "testNotFollowedByBeforeZeroOrMoreCombinationsSkipTillAny", not_before(ANY, optional=True, repeated=ANY),
        ONE_BEFORE, subsets("a b1", "b4 b5 b6", "d"),
    ),
    Case(
        "testNotFollowedByWithinFirstAndLastAtEnd", no_b(), "a1@1 b1@2 a2@4 c@5 b2@10 a3@11 b3@13", "a2", within_ms=3
    ),
    Case(
        "testNotFollowByBeforeTimesWithin", no_b().followed_by("c", c, times=(0, 2)),
        "a1@1 b1@2 a2@10 c1@11 c2@12 a3@20 c3@21 c4@24", "a1, a2, a2 c1, a2 c1 c2, a3, a3 c3", within_ms=3,
    ),
    Case(
        "testNotFollowedByWithinAtEndAfterMatch",
        begin("a", a, times=MORE, repeated=ANY).followed_by("c", c).not_followed_by("b", b),
        "a1@1 a2@2 a3@3 c1@4 c2@10", "a1 a2 a3 c1", within_ms=5, skip="past_last_row",
    ),
]  # fmt: skip

# -- UntilConditionITCase: Flink's until, a price of 5, is the letter x ------------------------------------------------

BROKEN = "c@1 a1@3 a2@4 ax@6 a6@7"
BROKEN_LATER = "c@1 a1@3 a2@4 a3@5 ax@6 a6@7"


def until(near: str = "followed_by", **more: Any) -> Pattern:
    return getattr(begin("c", c), near)("a", a, times=MORE, until=x, **more)


def until_end(**more: Any) -> Pattern:
    return until(**more).followed_by("x", x)


UNTIL = [
    Case("testUntilConditionFollowedByOneOrMore", until_end(), BROKEN, "c a1 a2 ax, c a1 ax", left=""),
    Case(
        "testUntilConditionFollowedByOneOrMoreCombinations", until_end(repeated=ANY), BROKEN_LATER,
        "c a1 a2 a3 ax, c a1 a2 ax, c a1 a3 ax, c a1 ax", left="",
    ),
    Case(
        "testUntilConditionFollowedByOneOrMoreConsecutive", until_end(repeated="next"), BROKEN, "c a1 a2 ax, c a1 ax",
        left="",
    ),
    Case(
        "testUntilConditionFollowedByOneOrMoreConsecutive2", until_end(repeated="next"), "c@1 a1@3 b@4 a3@5 ax@7 a6@8",
        "c a1 ax", left="",
    ),
    Case(
        "testUntilConditionFollowedByZeroOrMore", until_end(optional=True), BROKEN, "c a1 a2 ax, c a1 ax, c ax",
        left="",
    ),
    Case(
        "testUntilConditionFollowedByZeroOrMoreCombinations", until_end(optional=True, repeated=ANY), BROKEN_LATER,
        "c a1 a2 a3 ax, c a1 a2 ax, c a1 a3 ax, c a1 ax, c ax", left="",
    ),
    Case(
        "testUntilConditionFollowedByZeroOrMoreConsecutive", until_end(optional=True, repeated="next"), BROKEN,
        "c a1 a2 ax, c a1 ax, c ax", left="",
    ),
    Case("testUntilConditionFollowedByAnyOneOrMore", until(ANY), BROKEN, "c a1 a2, c a1, c a2, c a6"),
    Case(
        "testUntilConditionFollowedByAnyZeroOrMore", until(ANY, optional=True), BROKEN, "c a1 a2, c a1, c a2, c a6, c"
    ),
    Case(
        "testUntilConditionWithEmptyWhere", begin("c", c).followed_by("m", times=MORE, until=x),
        "c@1 a1@3 a2@4 d@5 ax@6 a6@7", "c a1 a2 d, c a1 a2, c a1", left="",
    ),
]  # fmt: skip

# -- AfterMatchSkipITCase ----------------------------------------------------------------------------------------------

THREE = begin("a", a, times=3)
TWO_AND_TWO = begin("a", a, times=2).next("b", b, times=2)
A_ANY_B = begin("a", a).followed_by_any("b", b)
A_BS = begin("a", a).next("b", b, times=MORE)
A_BS_IN_A_ROW = begin("a", a).next("b", b, times=MORE, repeated="next")
AS_B = begin("a", a, times=MORE, repeated="next", greedy=True).next("b", b)
MISSED = begin("a", a).next("b", b, times=MORE, optional=True, repeated="next").next("c", c)
ABC_BC_CS_D = (
    begin("ac", col("ac")).followed_by("bc", col("bc")).followed_by("c", c, times=MORE, greedy=True).followed_by("d", d)
)
RUNS = "a1 b1 a2 b2 b3 a3 b4"

SKIPS = [
    Case("testNoSkip", THREE, "a1 a2 a3 a4 a5 a6", "a1 a2 a3, a2 a3 a4, a3 a4 a5, a4 a5 a6"),
    Case("testNoSkipWithFollowedByAny", A_ANY_B, "a1 b1 a2 b2", "a1 b1, a1 b2, a2 b2"),
    Case("testSkipToNextWithFollowedByAny", A_ANY_B, "a1 b1 a2 b2", "a1 b1, a2 b2", skip="to_next"),
    Case("testNoSkipWithQuantifierAtTheEnd", A_BS, "a b1 b2 b3", "a b1 b2 b3, a b1 b2, a b1"),
    Case("testSkipToNextWithQuantifierAtTheEnd", A_BS, "a b1 b2 b3", "a b1", skip="to_next"),
    Case("testSkipPastLast", THREE, "a1 a2 a3 a4 a5 a6", "a1 a2 a3, a4 a5 a6", skip="past_last_row"),
    Case(
        "testSkipToFirst", TWO_AND_TWO, "ab1 ab2 ab3 ab4 ab5 ab6", "ab1 ab2 ab3 ab4, ab3 ab4 ab5 ab6",
        skip=("to_first", "b"),
    ),
    Case(
        "testSkipToLast", TWO_AND_TWO, "ab1 ab2 ab3 ab4 ab5 ab6 ab7", "ab1 ab2 ab3 ab4, ab4 ab5 ab6 ab7",
        skip=("to_last", "b"),
    ),
    Case(
        "testSkipPastLast2",
        begin("a", a).followed_by_any("b", b).followed_by_any("c", c).followed_by("d", d), "a1 a2 b1 b2 c1 c2 d1 d2",
        "a1 b1 c1 d1", skip="past_last_row",
    ),
    Case("testSkipPastLast3", begin("a", a).next("b", b), "a1 c a2 b2", "a2 b2", skip="past_last_row"),
    Case(
        "testSkipToFirstWithOptionalMatch", begin("x", x, times=MORE, optional=True).next("b", b).next("c", c),
        "ab1 c1 ab2 c2", "ab1 c1, ab2 c2", skip=("to_first", "b"),
    ),
    Case(
        "testSkipToFirstAtStartPosition", begin("b", b).next("c", c), "ab1 c1 ab2 c2", "ab1 c1, ab2 c2",
        skip=("to_first", "b"),
    ),
    Case("testSkipToFirstWithOneOrMore", A_BS_IN_A_ROW, RUNS, "a1 b1, a2 b2, a3 b4", skip=("to_first", "b")),
    Case(
        "testSkipToFirstNonExistentPositionWithoutException", MISSED, "a c", "a c", skip=("to_first", "b")
    ),
    Case("testSkipToLastNonExistentPositionWithoutException", MISSED, "a c", "a c", skip=("to_last", "b")),
    Case("testSkipToLastWithOneOrMore", A_BS_IN_A_ROW, RUNS, "a1 b1, a2 b2, a3 b4", skip=("to_last", "b")),
    Case("testSkipPastLastWithOneOrMoreAtBeginning", AS_B, "a1 a2 a3 b", "a1 a2 a3 b", skip="past_last_row"),
    Case("testSkipToLastWithOneOrMoreAtBeginning", AS_B, "a1 a2 a3 b", "a1 a2 a3 b, a3 b", skip=("to_last", "a")),
    Case(
        "testSkipToFirstWithOneOrMoreAtBeginning", AS_B, "a1 a2 a3 b", "a1 a2 a3 b, a2 a3 b, a3 b",
        skip=("to_first", "a"),
    ),
    Case("testNoSkipWithOneOrMoreAtBeginning", AS_B, "a1 a2 a3 b", "a1 a2 a3 b, a2 a3 b, a3 b"),
    Case(
        "testSkipToFirstDiscarding", ABC_BC_CS_D, "a b c1 c2 c3 d", "a b c1 c2 c3 d, c1 c2 c3 d", skip=("to_first", "c")
    ),
    Case(
        "testSharedBufferIsProperlyCleared", begin("all", times=2), "a1@0 a2@1 a3@2 a4@3", "a1 a2, a3 a4",
        skip="past_last_row", left="",
    ),
]  # fmt: skip

# -- SameElementITCase: rows that are equal in Flink's tests have a number of their own --------------------------------

SAME = [
    Case(
        "testEagerZeroOrMoreSameElement", cab("followed_by", MORE, optional=True),
        "c@1 a1@3 a2@3 a3@3 a4@4 d@5 a5@6 a6@6 b@7",
        "c a1 a2 a3 a4 a5 a6 b, c a1 a2 a3 a4 a5 b, c a1 a2 a3 a4 b, c a1 a2 a3 b, c a1 a2 b, c a1 b, c b",
    ),
    Case(
        "testClearingBuffer", begin("a", a).followed_by("b", b).followed_by("c", c).followed_by("d", d),
        "a@1 b@2 c@2 d@2", "a b c d", left="",
    ),
    Case(
        "testZeroOrMoreSameElement", cab(ANY, MORE, optional=True, repeated=ANY, end=ANY),
        "c@1 a1@3 a2@3 a3@4 d@5 a4@6 a5@6 b@7", subsets("c", "a1 a2 a3 a4 a5", "b"),
    ),
    Case("testSimplePatternWSameElement", cab(ANY), "c@1 a1@3 a2@3 b@7", "c a1 b, c a2 b"),
    Case(
        "testEndWLoopingWSameElement", begin("c", c).followed_by_any("a", a, times=MORE, optional=True),
        "c@1 a1@3 a2@3 a3@3 b@7", "c, c a1, c a2, c a3, c a1 a2, c a2 a3, c a1 a2 a3",
    ),
    Case(
        "testRepeatingPatternWSameElement",
        begin("c", c).followed_by("a", a, times=MORE, optional=True).followed_by("b", b, optional=True)
        .followed_by("end", a),
        "c@1 a1@3 a2@3 a3@3 d@5 b@6 a4@7",
        "c a1, c a1 a2, c b a4, c a1 a2 a3, c a1 b a4, c a1 a2 a3 a4, c a1 a2 b a4, c a1 a2 a3 b a4",
    ),
]  # fmt: skip

# -- the documentation of CEP ------------------------------------------------------------------------------------------

LOOP = "a b1 d1 b2 d2 b3 c"
DOCS_FOUR = "c d1 a1 a2 a3 d2 a4 b"


def docs_loop(repeated: Any) -> Pattern:
    return begin("a", a).followed_by_any("b", b, times=MORE, repeated=repeated).followed_by("c", c)


DOCS = [
    Case("docs, strict contiguity", begin("a", a).next("b", b), "a c b1 b2", ""),
    Case("docs, relaxed contiguity", begin("a", a).followed_by("b", b), "a c b1 b2", "a b1"),
    Case("docs, non-deterministic relaxed contiguity", A_ANY_B, "a c b1 b2", "a b1, a b2"),
    Case("docs, strict contiguity in a loop", docs_loop("next"), LOOP, "a b3 c"),
    Case(
        "docs, relaxed contiguity in a loop", docs_loop("followed_by"), LOOP,
        "a b1 c, a b1 b2 c, a b1 b2 b3 c, a b2 c, a b2 b3 c, a b3 c",
    ),
    Case(
        "docs, non-deterministic relaxed contiguity in a loop", docs_loop(ANY), LOOP,
        "a b1 c, a b1 b2 c, a b1 b3 c, a b1 b2 b3 c, a b2 c, a b2 b3 c, a b3 c",
    ),
    Case(
        "docs, consecutive", cab("followed_by", MORE, repeated="next"), DOCS_FOUR, "c a1 b, c a1 a2 b, c a1 a2 a3 b"
    ),
    Case(
        "docs, not consecutive", cab("followed_by", MORE), DOCS_FOUR,
        "c a1 b, c a1 a2 b, c a1 a2 a3 b, c a1 a2 a3 a4 b",
    ),
    Case(
        "docs, allowCombinations", cab("followed_by", MORE, repeated=ANY), DOCS_FOUR,
        subsets("c", "a1 a2 a3 a4", "b", least=1),
    ),
    Case("docs, b+ c, NO_SKIP", AS_B, "a1 a2 a3 b", "a1 a2 a3 b, a2 a3 b, a3 b"),
    Case("docs, b+ c, SKIP_TO_NEXT", AS_B, "a1 a2 a3 b", "a1 a2 a3 b, a2 a3 b, a3 b", skip="to_next"),
    Case("docs, b+ c, SKIP_PAST_LAST_EVENT", AS_B, "a1 a2 a3 b", "a1 a2 a3 b", skip="past_last_row"),
    Case("docs, b+ c, SKIP_TO_FIRST", AS_B, "a1 a2 a3 b", "a1 a2 a3 b, a2 a3 b, a3 b", skip=("to_first", "a")),
    Case("docs, b+ c, SKIP_TO_LAST", AS_B, "a1 a2 a3 b", "a1 a2 a3 b, a3 b", skip=("to_last", "a")),
    Case(
        "docs, (a|b|c) (b|c) c+ d, NO_SKIP",
        begin("abc", col("abc")).followed_by("bc", col("bc")).followed_by("c", c, times=MORE, greedy=True)
        .followed_by("d", d),
        "a b c1 c2 c3 d", "a b c1 c2 c3 d, b c1 c2 c3 d, c1 c2 c3 d",
    ),
    Case(
        "docs, (a|b|c) (b|c) c+ d, SKIP_TO_FIRST",
        begin("abc", col("abc")).followed_by("bc", col("bc")).followed_by("c", c, times=MORE, greedy=True)
        .followed_by("d", d),
        "a b c1 c2 c3 d", "a b c1 c2 c3 d, c1 c2 c3 d", skip=("to_first", "c"),
    ),
    Case("docs, a b+, NO_SKIP", A_BS, "a b1 b2 b3", "a b1, a b1 b2, a b1 b2 b3"),
    Case("docs, a b+, SKIP_TO_NEXT", A_BS, "a b1 b2 b3", "a b1", skip="to_next"),
]  # fmt: skip

CASES = [
    *NFA, *WINDOWS, *TIMES_OR_MORE, *TIMES_RANGE, *GREEDY, *GROUPS, *NOTS, *UNTIL, *SKIPS, *SAME, *DOCS,
]  # fmt: skip
