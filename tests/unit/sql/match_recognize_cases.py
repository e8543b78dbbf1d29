"""What MATCH_RECOGNIZE gives elsewhere: input, query and rows, read in the tests and pages of Trino, Flink and Esper.

Only facts were taken over: rows, patterns and answers, each with the place where it stands. Queries are in Penstock's
dialect: rows are ordered by their event time `ts`, which is so many seconds after `START` as the column says by which
the original orders (its `id`, if nothing else is said), and names that the original gives to columns of the answer may
differ. Where more than that had to change, `source` says what. A pattern that may match no row is refused by Penstock:
where the original has such a one but matches rows everywhere, `*` became `+`.

The preference among matches is that of the standard, as Trino has it. Flink never gives back what a greedy quantifier
took: those of its tests whose answer depends on that are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

START: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""From which the seconds of event times count, unless a table says otherwise."""


@dataclass(frozen=True)
class Table:
    """An input, whose rows are in the order of their event time."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """Names and types of SQL."""
    rows: tuple[tuple[Any, ...], ...]
    event_time: str = "ts"


@dataclass(frozen=True)
class Case:
    """A query and the rows that it gives, whose order says nothing."""

    name: str
    source: str
    table: str
    query: str
    expected: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Refused:
    """A query that is no error elsewhere or has a message of its own there, and what Penstock's message is about."""

    name: str
    source: str
    query: str
    fragment: str
    """A regular expression, in which capitals do not count."""


def at(seconds: float) -> datetime:
    """A time of the tables that begin at `START`."""
    return START + timedelta(seconds=seconds)


def _table(
    name: str,
    columns: str,
    rows: Iterable[tuple[Any, ...]],
    *,
    start: datetime = START,
    seconds: Callable[[tuple[Any, ...]], float] = lambda row: row[0],
) -> Table:
    """Rows with their event time as the last column; `seconds` says how many after `start` that is."""
    timed = [(*row, start + timedelta(seconds=seconds(row))) for row in rows]
    names = [each.split() for each in (*columns.split(", "), "ts TIMESTAMP")]
    ordered = sorted(timed, key=lambda row: row[-1])
    return Table(name, tuple((column, kind) for column, kind in names), tuple(ordered))


def _letters(name: str, text: str) -> Table:
    """One row per letter, numbered from 0."""
    return _table(name, "id INT, letter STRING", enumerate(text))


def _ticker(name: str, rows: Iterable[tuple[float, int, int]], start: datetime, symbol: str) -> Table:
    """Prices of one symbol, as the pages of Flink have them: seconds, price and tax."""
    timed = _table(name, "seconds INT, price BIGINT, tax BIGINT", rows, start=start)
    columns = (("symbol", "STRING"), ("price", "BIGINT"), ("tax", "BIGINT"), ("ts", "TIMESTAMP"))
    return Table(name, columns, tuple((symbol, *row[1:]) for row in timed.rows))


_APRIL: Final = datetime(2011, 4, 1, 10, tzinfo=UTC)
_SEPTEMBER: Final = datetime(2018, 9, 17, 10, tzinfo=UTC)
_SEQUENCES: Final = {
    "twice": ("A1,B1,A2,B2", "A1,A2,B1", "A1,A2,B1,B2", "A1,B1,B2,A2"),
    "once_or_twice": ("A1,B1,C1", "A1,B1,A2,B2,C1", "C1", "A1,A2,C2", "B1,A1,C1"),
    "up_to_two": ("C1", "A1,B1,C1", "A1,B1,A2,B2,C1", "A1,B1,A2,B2", "A1,A2"),
    "two_at_least": ("A1,B1,A2,B2,C1", "A1,B1,A2,B2,A3,B3,C1", "A1,B1,C1", "A1,B1,A2,C1", "B1,A1,B2,C1"),
    "either_twice": ("A1,C1,C2", "A2,B1,B2", "B1,B2", "C1,C2", "A1,B1,C1", "A1,C1,B1"),
}
"""What Esper is sent: each of these is a partition of its own."""


def _sequences(name: str) -> Table:
    rows = [
        (part, event, place)
        for part, sequence in enumerate(_SEQUENCES[name])
        for place, event in enumerate(sequence.split(","))
    ]
    return _table(name, "part INT, event STRING, place INT", rows, seconds=lambda row: row[2])


# fmt: off
TABLES: Final = {each.name: each for each in (
    _table("prices8", "id INT, value INT", [(1, 90), (2, 80), (3, 70), (4, 80), (5, 90), (6, 50), (7, 40), (8, 60)]),
    _table("prices4", "id INT, value INT", [(1, 90), (2, 80), (3, 70), (4, 70)]),
    _table("prices6", "id INT, value INT", [(1, 90), (2, 80), (3, 70), (4, 80), (5, 70), (6, 80)]),
    _table("valley", "id INT, value INT", [(1, 90), (2, 80), (3, 70), (4, 80)]),
    _table("climb", "id INT, value INT", [(1, 90), (2, 80), (3, 70), (4, 100), (5, 200)]),
    _table("fall", "id INT, value INT", [(1, 90), (2, 80), (3, 60)]),
    _table("tens", "id INT, value INT", [(1, 10), (2, 20), (3, 30)]),
    _table("repeated", "id INT, value INT", [(1, 10), (2, 20), (3, 30), (4, 30), (5, 40)]),
    _table("hundreds", "id INT, value INT", [(1, 100), (2, 200), (3, 300), (4, 400)]),
    _table("two_ones", "value INT, id INT", [(1, 1), (1, 2)], seconds=lambda row: row[1]),
    _table("twenty_ones", "value INT, id INT", [(1, n) for n in range(20)], seconds=lambda row: row[1]),
    _table("six", "value INT", [(n,) for n in range(1, 7)]),
    _table("eight", "id INT", [(n,) for n in range(1, 9)]),
    _table("shuffled", "id INT, value INT", [(5, 10), (2, 90), (1, 80), (4, 20), (3, 30)]),
    _table("parts", "id INT, part STRING, value INT", [
        (1, "p1", 90), (2, "p1", 80), (6, "p1", 80), (2, "p2", 20), (2, "p3", 60), (1, "p3", 50), (3, "p1", 70),
        (4, "p1", 80), (5, "p1", 90), (1, "p2", 20), (3, "p3", 70), (3, "p2", 10),
    ]),
    _table("nothing", "id INT, part STRING, value INT", []),
    _table("two_parts", "id INT, part STRING, value INT",
           [(5, "p2", 10), (2, "p1", 90), (1, "p1", 80), (4, "p2", 20), (3, "p1", 30)]),
    _table("one", "part STRING, value INT", [("partitioning", 90)], seconds=lambda row: 1),
    _table("amounts", "id INT, part STRING, value INT", [
        (1, "p1", 1), (2, "p1", 1), (6, "p1", 1), (2, "p2", 10), (2, "p3", 100), (1, "p3", 100), (3, "p1", 1),
        (4, "p1", 1), (5, "p1", 1), (1, "p2", 10), (3, "p3", 100), (3, "p2", 10),
    ]),
    _table("averaged3", "id INT, value INT", [(1, 4), (2, 6), (3, 0)]),
    _table("averaged4", "id INT, value INT", [(1, 4), (2, 6), (3, 0), (4, 5)]),
    _table("constant", "id INT, part STRING, value INT",
           [(n, part, value) for part, value in (("p1", 1), ("p2", 2)) for n in range(1, 6)]),
    _table("rising", "id INT, part STRING, value INT",
           [(n, part, n * step) for part, step in (("p1", 1), ("p2", 2)) for n in range(1, 6)]),
    _table("letters", "id INT, value STRING", [(1, "a"), (2, "b"), (3, "c"), (4, "d")]),
    _table("a_column", "id INT, A STRING", [(1, "p"), (2, "q"), (3, None), (4, "s")]),
    _table("pieces", "part STRING, id INT, value STRING",
           [(f"p{n}", place, f"{n}{letter}") for n in (1, 2) for place, letter in enumerate("abcde", 1)],
           seconds=lambda row: row[1]),
    _table("balance", "id INT, value INT",
           [(1, 4), (2, 6), (3, 10), (4, 1), (5, 1), (6, 1), (7, 10), (8, 5), (9, 1)]),
    _table("heartbeats", "user_id INT, minute_of_the_day INT",
           [(1, 3), (1, 4), (1, 5), (1, 8), (1, 9), (2, 2), (2, 3), (2, 4)], seconds=lambda row: 60 * row[1]),
    _letters("abcd", "ABCD"), _letters("aabcd", "AABCD"), _letters("bcd", "BCD"), _letters("abbbcd", "ABBBCD"),
    _letters("abbcddde", "ABBCDDDE"), _letters("abcdebcdebcde", "ABCDEBCDEBCDE"), _letters("ten_a", "AAAAAAAAAA"),
    # Flink
    _table("named", "id INT, name STRING", enumerate("azbcdabch", 1)),
    _table("named11", "id BIGINT, name STRING", enumerate("azbcdabcabc", 1)),
    _table("with_nulls", "id INT, name STRING, nullField STRING",
           [(n, name, None) for n, name in enumerate(["a", "b", "c", "d", None, "a", "b", "c", None], 1)]),
    _table("two_keys", "id INT, name STRING, key1 STRING, key2 STRING", [
        (1, "a", "key1", "second_key3"), (2, "b", "key1", "second_key3"), (3, "c", "key1", "second_key3"),
        (4, "d", "key", "second_key"), (5, "e", "key", "second_key"), (6, "a", "key2", "second_key4"),
        (7, "b", "key2", "second_key4"), (8, "c", "key2", "second_key4"), (9, "f", "key", "second_key"),
    ]),
    _table("stars", "id INT, symbol STRING, tstamp BIGINT, price INT",
           [(n, "ACME", n, price) for n, price in enumerate((20, 19, 18, 17, 16, 15, 14, 20), 1)]),
    _table("acme", "tstamp BIGINT, symbol STRING, price INT, tax INT",
           [(1, "ACME", 19, 1), (2, "ACME", 17, 2), (3, "ACME", 13, 3), (4, "ACME", 20, 4)]),
    _table("rated", "id INT, name STRING, price BIGINT, rate DOUBLE, weight INT", [
        (1, "a", 1, 0.8, 1), (2, "z", 2, 0.8, 3), (3, "b", 1, 0.8, 2), (4, "c", 1, 0.8, 5), (5, "d", 4, 0.1, 5),
        (6, "a", 2, 1.5, 2), (7, "b", 2, 0.8, 3), (8, "c", 1, 0.8, 2), (9, "h", 4, 0.8, 3), (10, "h", 4, 0.8, 3),
        (11, "h", 2, 0.8, 3), (12, "h", 2, 0.8, 3),
    ]),
    _table("null_prices", "id INT, name STRING, price INT", [
        (1, "a", 10), (2, "z", 10), (3, "b", None), (4, "c", None), (5, "d", 3), (6, "c", 3), (7, "c", 3), (8, "c", 3),
        (9, "c", 2),
    ]),
    _table("counted", "id INT, name STRING, price BIGINT", [(n, name, 1) for n, name in enumerate("aaaaabaaf", 1)]),
    _table("two_symbols", "tstamp BIGINT, symbol STRING, price INT, tax INT", [
        (1, "ACME", 19, 1), (2, "BETA", 18, 1), (3, "ACME", 17, 2), (4, "ACME", 13, 3), (5, "BETA", 16, 2),
        (6, "ACME", 20, 4), (7, "BETA", 22, 4),
    ]),
    _table("engines", "n INT, vehicle_id BIGINT, engine_temperature INT",
           [(n, 1, degrees) for n, degrees in enumerate((100, 102, 104, 106, 105, 107, 101, 100, 110, 111, 99))]),
    _table("windowed", "seconds DOUBLE, symbol STRING, price INT, tax INT", [
        (1, "ACME", 1, 1), (2, "ACME", 2, 2), (4, "ACME", 1, 4), (5, "ACME", 1, 3), (7, "ACME", 2, 3),
        (8, "ACME", 2, 3), (1, "ACME1", 20, 4), (1.001, "ACME1", 24, 4), (1.002, "ACME1", 25, 3),
        (1.003, "ACME1", 19, 8),
    ]),
    _ticker("falling", [
        (0, 12, 1), (1, 17, 2), (2, 19, 1), (3, 21, 3), (4, 25, 2), (5, 18, 1), (6, 15, 1), (7, 14, 2), (8, 24, 2),
        (9, 25, 2), (10, 19, 1),
    ], _APRIL, "ACME"),
    _ticker("threshold", [
        (0, 12, 1), (1, 17, 2), (2, 13, 1), (3, 16, 3), (4, 25, 2), (5, 2, 1), (6, 4, 1), (7, 10, 2), (8, 15, 2),
        (9, 25, 2), (10, 25, 1), (11, 30, 1),
    ], _APRIL, "ACME"),
    _ticker("greedy", [(2, 10, 1), (3, 11, 2), (4, 12, 1), (5, 13, 2), (6, 14, 1), (7, 16, 2)], _SEPTEMBER, "XYZ"),
    _ticker("hour", [
        (0, 20, 1), (1200, 17, 2), (2400, 18, 1), (3600, 11, 3), (4800, 14, 2), (6000, 9, 1), (7200, 15, 1),
        (8400, 14, 2), (9600, 24, 2), (10800, 1, 2), (12000, 19, 1),
    ], _APRIL, "ACME"),
    _ticker("peak", [(2, 10, 1), (3, 12, 2), (4, 13, 1), (5, 11, 2)], _SEPTEMBER, "XYZ"),
    _ticker("skipped", [(1, 7, 1), (2, 9, 2), (3, 10, 1), (4, 5, 2), (5, 10, 2), (6, 7, 2), (7, 14, 2)],
            _SEPTEMBER, "XYZ"),
    _table("referred", "id INT, price INT", [(1, 10), (2, 15), (3, 20), (4, 31), (5, 35)]),
    _table("with_b", "id INT, price INT", [(1, 10), (2, 15), (3, 20)]),
    _table("without_b", "id INT, price INT", [(1, 10), (2, 20)]),
    # Esper
    *(_sequences(name) for name in _SEQUENCES),
    _table("temperatures", "id INT, device STRING, temp INT",
           [(n, "1", degrees) for n, degrees in enumerate((99, 100, 100, 101, 102), 1)]),
)}
# fmt: on
_MEASURED: Final = "MATCH_NUMBER() AS match_no, RUNNING LAST(value) AS val, CLASSIFIER() AS label"
_FALLS: Final = "B AS B.value < PREV(B.value)"
_RISES: Final = "C AS C.value > PREV(C.value)"


def _labels(table: str, pattern: str, define: str, *, skip: str = "PAST LAST ROW", subset: str = "") -> str:
    """The query of most tests of Trino: every row of a match with its number, value and label."""
    return (
        f"SELECT m.id, m.match_no, m.val, m.label FROM {table} MATCH_RECOGNIZE (ORDER BY ts MEASURES {_MEASURED} "
        f"ALL ROWS PER MATCH AFTER MATCH SKIP {skip} PATTERN ({pattern}) {subset} DEFINE {define}) AS m"
    )


def _rows(wanted: str, table: str, measures: str, pattern: str, define: str, *, part: str = "", more: str = "") -> str:
    """All rows per match, with the given columns; `more` stands behind the pattern."""
    partition = f"PARTITION BY {part} " if part else ""
    return (
        f"SELECT {wanted} FROM {table} MATCH_RECOGNIZE ({partition}ORDER BY ts MEASURES {measures} "
        f"ALL ROWS PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN ({pattern}) {more} DEFINE {define}) AS m"
    )


_TRINO: Final = "Trino, TestRowPatternMatching."
_TRINO_SUMS: Final = "Trino, TestAggregationsInRowPatternMatching."
_TRINO_MACHINE: Final = "Trino, TestPatternMatchingMachine."
_FLINK: Final = "Flink, MatchRecognizeITCase."
_FLINK_PROGRAMS: Final = "Flink, MatchRecognizeTestPrograms."
_FLINK_PAGE: Final = "Flink, docs/dev/table/sql/queries/match_recognize.md: "
_ESPER: Final = "Esper, TestRowPatternRecognitionRepetition."


def _patterns() -> Iterable[Case]:
    """Concatenation, alternation, permutation, groups."""
    # fmt: off
    two = ((1, 1, 90, "A"), (2, 1, 80, "B"), (3, 1, 70, "B"), (4, 1, 80, "C"), (5, 1, 90, "C"), (6, 2, 50, "A"),
           (7, 2, 40, "B"), (8, 2, 60, "C"))
    yield Case("simple", f"{_TRINO}testSimpleQuery", "prices8",
               _labels("prices8", "A B+ C+", f"{_FALLS}, {_RISES}"), two)
    equal = f"{_FALLS}, C AS C.value = PREV(C.value)"
    three = ((2, 1, 80, "A"), (3, 1, 70, "B"), (4, 1, 70, "C"))
    where = f"{_TRINO}testRowPattern"
    yield Case("concatenation", where, "prices4", _labels("prices4", "A B C", equal), three)
    yield Case("groups_of_one", where, "prices4", _labels("prices4", "((A) (B (C)))", equal), three)
    yield Case("alternation", where, "prices4",
               _labels("prices4", "B | C | A", f"{_FALLS}, C AS C.value <= PREV(C.value)"),
               ((1, 1, 90, "A"), (2, 2, 80, "B"), (3, 3, 70, "B"), (4, 4, 70, "C")))
    yield Case("permutation", where, "prices4",
               _labels("prices4", "PERMUTE(B, C)", f"{_FALLS}, C AS C.value < PREV(C.value)"),
               ((2, 1, 80, "B"), (3, 1, 70, "C")))
    # fmt: on


def _quantifiers() -> Iterable[Case]:
    """Of one variable, which falls or stays in all rows but the first."""
    alone = ((2, 1, 80, "B"), (3, 2, 70, "B"), (4, 3, 70, "B"))
    together = ((2, 1, 80, "B"), (3, 1, 70, "B"), (4, 1, 70, "B"))
    found: dict[str, tuple[tuple[Any, ...], ...]] = {
        "B+": together, "B+?": alone, "B{1,}": together, "B{1,}?": alone, "B{2,}": together, "B{2,}?": together[:2],
        "B{5,}": (), "B{5,}?": (), "B{1,1}": alone, "B{1,1}?": alone, "B{1,5}": together, "B{1,5}?": alone,
        "B{5,7}": (), "B{5,7}?": (), "B{1}": alone, "B{1}?": alone, "B{2}": together[:2], "B{2}?": together[:2],
        "B{5}": (), "B{5}?": (),
    }  # fmt: skip
    for pattern, expected in found.items():
        query = _labels("prices4", pattern, "B AS B.value <= PREV(B.value)")
        yield Case(f"quantifier {pattern}", f"{_TRINO}testPatternQuantifiers", "prices4", query, expected)


def _repeated() -> Iterable[Case]:
    """Quantifiers of groups and in front of other variables."""

    def sequences(table: str, pattern: str, found: int, test: str) -> Case:
        """Of which the first ones match as a whole, each event as its letter, and the others do not."""
        define = ", ".join(f"{each} AS {each}.event LIKE '{each}%'" for each in "ABC" if each in pattern)
        expected = [
            (part, event, event[0])
            for part, sequence in enumerate(_SEQUENCES[table][:found])
            for event in sequence.split(",")
        ]
        query = _rows("m.part, m.event, m.label", table, "CLASSIFIER() AS label", pattern, define, part="part")
        return Case(f"{table} {pattern}", f"{_ESPER}{test}", table, query, tuple(expected))

    yield sequences("twice", "(A B){2}", 1, "runTwiceAB")
    yield sequences("once_or_twice", "(A B){1,2} C", 2, "runOnceOrTwiceABThenC")
    yield sequences("once_or_twice", "(A B) (A B)? C", 2, "runOnceOrTwiceABThenC")
    yield sequences("up_to_two", "(A B){,2} C", 3, "runUpTo2ABThenC")
    yield sequences("two_at_least", "(A B){2,} C", 2, "runAtLeast2ABThenC")
    yield sequences("either_twice", "A (B{2} | C{2})", 2, "runAThen2BOr2C")
    hot = "A AS A.temp >= 100, B AS B.temp >= 102"
    firsts = "FIRST(A.id) AS a0_id, FIRST(A.id, 1) AS a1_id, FIRST(A.id, 2) AS a2_id, B.id AS b_id"
    for pattern, found, test in (
        ("A{,2} B", (3, 4, None, 5), "runDocSampleUpToN"),
        ("A{2,} B", (2, 3, 4, 5), "runDocSampleNOrMore_and_BetweenNandM"),
        ("A{2,3} B", (2, 3, 4, 5), "runDocSampleNOrMore_and_BetweenNandM"),
    ):
        query = (
            "SELECT a0_id, a1_id, a2_id, b_id FROM temperatures MATCH_RECOGNIZE (PARTITION BY device ORDER BY ts "
            f"MEASURES {firsts} PATTERN ({pattern}) DEFINE {hot})"
        )
        yield Case(f"temperatures {pattern}", f"{_ESPER}{test}", "temperatures", query, (found,))
    query = _rows("m.id", "twenty_ones", "CLASSIFIER() AS label", "(A+)+ B", "A AS `value` = 1, B AS `value` = 2")
    yield Case("nested repetitions", f"{_TRINO}testPotentiallyExponentialMatch", "twenty_ones", query, ())


def _machine() -> Iterable[Case]:
    """Rows that are letters: a variable is fulfilled by its letter."""
    define = ", ".join(f"{each} AS {each}.letter = '{each}'" for each in "ABCDE")
    found = (
        ("abcd", "A B", "0A 1B", "testLabels"),
        ("aabcd", "A* B", "0A 1A 2B", "testLabels"),
        ("bcd", "A* B", "0B", "testLabels"),
        ("abcd", "A B | B C", "0A 1B", "testLabels"),
        ("abcd", "PERMUTE(A, B, C)", "0A 1B 2C", "testLabels"),
        ("abcd", "A B?", "0A 1B", "testLabels"),
        ("abcd", "A B??", "0A", "testLabels"),
        ("ten_a", "A+", "0A 1A 2A 3A 4A 5A 6A 7A 8A 9A", "testLongMatch, with + for *"),
        ("abcd", "{- A -} B", "1B", "testCaptures"),
        ("abcd", "A {- B -}", "0A", "testCaptures"),
        ("abbbcd", "A {- B -}*", "0A", "testCaptures"),
        ("abbbcd", "A {- B* -}", "0A", "testCaptures"),
        ("abbcddde", "A {- B -}* C {- D* -}", "0A 3C", "testCaptures"),
        ("abcdebcdebcde", "A ({- B C -} D {- E -})*", "0A 3D 7D 11D", "testCaptures"),
    )
    for table, pattern, rows, test in found:
        used = ", ".join(each for each in define.split(", ") if each[0] in pattern.replace("PERMUTE", ""))
        query = _rows("m.id, m.label", table, "CLASSIFIER() AS label", pattern, used)
        expected = tuple((int(each[:-1]), each[-1]) for each in rows.split())
        yield Case(f"{table} {pattern}", _TRINO_MACHINE + test, table, query, expected)


def _exclusions() -> Iterable[Case]:
    falls_and_rises = f"{_FALLS}, {_RISES}"
    # fmt: off
    firsts = ((1, 1, 90, "A"), (6, 2, 50, "A"))
    found: dict[str, tuple[tuple[Any, ...], ...]] = {
        "A {- B+ -} C+": ((1, 1, 90, "A"), (4, 1, 80, "C"), (5, 1, 90, "C"), (6, 2, 50, "A"), (8, 2, 60, "C")),
        "{- A -} {- B+ -} C+": ((4, 1, 80, "C"), (5, 1, 90, "C"), (8, 2, 60, "C")),
        "A {- {- B+ -} C+ -}": firsts,
        "{- A B+ C+ -}": (),
        "A {- B -}+ {- C -}+": firsts,
        "A {- B -}* {- C -}*": firsts,
        "A {- B -}{1,2} {- C -}{1,2}": firsts,
        "A {- C -}{2,3} {- B -}{2,3}": ((3, 1, 70, "A"),),
    }
    # fmt: on
    for pattern, expected in found.items():
        query = _labels("prices8", pattern, falls_and_rises)
        yield Case(f"exclusion {pattern}", f"{_TRINO}testExclusionSyntax", "prices8", query, expected)
    query = _rows(
        "m.part, m.pieces", "pieces", "ARRAY_AGG(value) AS pieces", "P {- Q R -} S", "P AS id > 1", part="part"
    )
    yield Case(
        "exclusion aggregated", f"{_TRINO_SUMS}testExclusions, without the measure that aggregates CLASSIFIER()",
        "pieces", query,
        (("p1", ["1b"]), ("p1", ["1b", "1c", "1d", "1e"]), ("p2", ["2b"]), ("p2", ["2b", "2c", "2d", "2e"])),
    )  # fmt: skip


def _skips() -> Iterable[Case]:
    first = ((1, 1, 90, "A"), (2, 1, 80, "B"), (3, 1, 70, "B"), (4, 1, 80, "C"))
    overlapping = (*first, (4, 2, 80, "A"), (5, 2, 70, "B"), (6, 2, 80, "C"))
    each_row = (
        *first, (2, 2, 80, "A"), (3, 2, 70, "B"), (4, 2, 80, "C"), (4, 3, 80, "A"), (5, 3, 70, "B"), (6, 3, 80, "C"),
    )  # fmt: skip
    found = {"PAST LAST ROW": first, "TO NEXT ROW": each_row}
    found |= dict.fromkeys(("TO FIRST C", "TO LAST B", "TO B", "TO U"), overlapping)
    for skip, expected in found.items():
        query = _labels(
            "prices6", "A B+ C+ D?", f"{_FALLS}, {_RISES}, D AS FALSE", skip=skip, subset="SUBSET U = (C, D)"
        )
        yield Case(f"skip {skip}", f"{_TRINO}testAfterMatchSkip", "prices6", query, expected)
    last = (1, 100, 111)
    engines: dict[str, tuple[str, tuple[tuple[int, int, int], ...]]] = {
        "TO FIRST B": ("MATCH_SKIP_TO_FIRST", ((1, 100, 106), (1, 105, 107), (1, 101, 101), last)),
        "TO LAST B": ("MATCH_SKIP_TO_LAST", ((1, 100, 106), (1, 105, 107), (1, 101, 101), last)),
        "TO NEXT ROW": ("MATCH_SKIP_TO_NEXT_ROW", (
            (1, 100, 106), (1, 102, 106), (1, 104, 106), (1, 106, 106), (1, 105, 107), (1, 107, 107), (1, 101, 101), last,
            (1, 110, 111), (1, 111, 111),
        )),
        "PAST LAST ROW": ("MATCH_SKIP_PAST_LAST_ROW", ((1, 100, 106), (1, 107, 107), last)),
    }  # fmt: skip
    for skip, (test, temperatures) in engines.items():
        query = (
            "SELECT * FROM engines MATCH_RECOGNIZE (PARTITION BY vehicle_id ORDER BY ts "
            "MEASURES FIRST(A.engine_temperature) AS Initial_Temp, LAST(A.engine_temperature) AS Final_Temp "
            f"ONE ROW PER MATCH AFTER MATCH SKIP {skip} PATTERN (A+ B) DEFINE "
            "A AS LAST(A.engine_temperature, 1) IS NULL OR A.engine_temperature > LAST(A.engine_temperature, 1), "
            "B AS B.engine_temperature < LAST(A.engine_temperature)) MR"
        )
        yield Case(f"engines {skip}", _FLINK_PROGRAMS + test, "engines", query, temperatures)


def _modes() -> Iterable[Case]:
    """One row or all rows, and which columns these have."""
    where = f"{_TRINO}testOutputModes"
    for rows, expected in (
        ("ONE ROW PER MATCH", ((1, 70, "B"),)),
        ("", ((1, 70, "B"),)),
        ("ALL ROWS PER MATCH", ((1, 80, "B"), (1, 70, "B"))),
    ):
        query = (
            f"SELECT m.match_no, m.val, m.label FROM prices4 MATCH_RECOGNIZE (ORDER BY ts MEASURES {_MEASURED} {rows} "
            f"AFTER MATCH SKIP PAST LAST ROW PATTERN (B+) DEFINE {_FALLS}) AS m"
        )
        source = where if rows else f"{where}, where no mode is said of B* only, and has the rows of one row per match"
        yield Case(f"mode {rows or 'not said'}", source, "prices4", query, expected)
    for rows, columns in (
        ("ALL ROWS PER MATCH", ("partitioning", at(1), "A", 90)),
        ("ONE ROW PER MATCH", ("partitioning", "A")),
    ):
        query = (
            "SELECT * FROM one MATCH_RECOGNIZE (PARTITION BY part ORDER BY ts MEASURES CLASSIFIER() AS classy "
            f"{rows} PATTERN (A) DEFINE A AS TRUE) AS m"
        )
        source = f"{_TRINO}testOutputLayout, which has a column id instead of ts"
        yield Case(f"columns {rows}", source, "one", query, (columns,))


def _navigation() -> Iterable[Case]:
    """FIRST, LAST and PREV."""
    none = (None, None, None)
    found: dict[str, tuple[int | None, ...]] = {
        "value": (10, 20, 30), "LAST(value)": (10, 20, 30), "RUNNING LAST(value)": (10, 20, 30),
        "FINAL LAST(value)": (30, 30, 30), "FIRST(value)": (10, 10, 10), "RUNNING FIRST(value)": (10, 10, 10),
        "FINAL FIRST(value)": (10, 10, 10), "FINAL LAST(value, 2)": (10, 10, 10), "LAST(value, 10)": none,
        "FIRST(value, 10)": none, "PREV(value)": (None, 10, 20), "PREV(FIRST(value), 10)": none,
        "PREV(FIRST(value, 10), 2)": none, "PREV(LAST(value, 10), 2)": none,
    }  # fmt: skip
    where = f"{_TRINO}testNavigationFunctions"
    for measure, values in found.items():
        query = _rows("m.id, m.measured", "tens", f"{measure} AS measured", "A+", "A AS TRUE")
        yield Case(f"measure {measure}", where, "tens", query, tuple(enumerate(values, 1)))
    for back, value in ((4, None), (3, 10), (2, 20)):
        query = (
            f"SELECT m.measured FROM repeated MATCH_RECOGNIZE (ORDER BY ts MEASURES PREV(B.value, {back}) AS measured "
            "ONE ROW PER MATCH PATTERN (A B) DEFINE B AS B.value = PREV(B.value)) AS m"
        )
        yield Case(f"{back} rows before B", f"{where}: rows before the match", "repeated", query, ((value,),))
    # fmt: off
    yield Case("running and final", f"{_TRINO}testRunningAndFinal", "climb", _rows(
        "id, label, final_label, running_value, final_value, a_running, a_final, b_running, b_final, c_running, c_final",
        "climb",
        "CLASSIFIER() AS label, FINAL LAST(CLASSIFIER()) AS final_label, RUNNING LAST(value) AS running_value, "
        "FINAL LAST(value) AS final_value, RUNNING LAST(A.value) AS a_running, FINAL LAST(A.value) AS a_final, "
        "RUNNING LAST(B.value) AS b_running, FINAL LAST(B.value) AS b_final, RUNNING LAST(C.value) AS c_running, "
        "FINAL LAST(C.value) AS c_final",
        "A B+ C+", f"{_FALLS}, {_RISES}"),
        ((1, "A", "C", 90, 200, 90, 90, None, 70, None, 200), (2, "B", "C", 80, 200, 90, 90, 80, 70, None, 200),
         (3, "B", "C", 70, 200, 90, 90, 70, 70, None, 200), (4, "C", "C", 100, 200, 90, 90, 70, 70, 100, 200),
         (5, "C", "C", 200, 200, 90, 90, 70, 70, 200, 200)))
    for variable in "AB":
        yield Case(f"back reference to {variable}", f"{_TRINO}testBackReference", "two_ones", _rows(
            "m.value, m.classy", "two_ones", "CLASSIFIER() AS classy", "(A | B)* X", f"X AS value = {variable}.value"),
            ((1, variable), (1, "X")))
    sums = "PREV(LAST(A.value), 3) + FIRST(A.value) + PREV(LAST(B.value), 2)"
    yield Case("back reference through offsets", f"{_TRINO}testBackReference", "six", _rows(
        "m.value, m.classy, m.defining", "six", f"CLASSIFIER() AS classy, {sums} AS defining", "(A | B)* X",
        f"X AS value = {sums}"),
        ((1, "B", None), (2, "A", None), (3, "A", None), (4, "A", None), (5, "B", 6), (6, "X", 6)))
    # fmt: on


def _expressions() -> Iterable[Case]:
    """Unions of variables, functions and lists of values."""
    # fmt: off
    yield Case("unions", f"{_TRINO}testUnionVariable", "valley", _rows(
        "m.id, m.match_no, m.val, m.lower_or_higher, m.label", "valley",
        "MATCH_NUMBER() AS match_no, RUNNING LAST(value) AS val, CLASSIFIER(U) AS lower_or_higher, "
        "CLASSIFIER(W) AS label", "(L | H) A",
        "A AS A.value = 80, L AS L.value < 80, H AS H.value > 80", more="SUBSET U = (L, H), W = (A, L, H)"),
        ((1, 1, 90, "H", "H"), (2, 1, 80, "H", "A"), (3, 2, 70, "L", "L"), (4, 2, 80, "L", "A")))
    yield Case("functions", f"{_TRINO}testScalarFunctions", "fall", _rows(
        "m.id, m.label", "fall", "LOWER(LAST(CLASSIFIER())) || '_label' AS label", "A B+",
        "B AS B.value + 10 < ABS(PREV(B.value))"),
        ((2, "a_label"), (3, "b_label")))
    # fmt: on
    for measure, found in (
        ("FIRST(A.value) IN (300, LAST(A.value))", (False, False, True, True)),
        ("CLASSIFIER() IN ('X', LOWER(CLASSIFIER()))", (False, False, False, False)),
        ("MATCH_NUMBER() IN (0, MATCH_NUMBER())", (True, True, True, True)),
    ):
        query = (
            f"SELECT m.val FROM hundreds MATCH_RECOGNIZE (ORDER BY ts MEASURES {measure} AS val ONE ROW PER MATCH "
            "AFTER MATCH SKIP TO NEXT ROW PATTERN (A+) DEFINE A AS TRUE) AS m"
        )
        source = f"{_TRINO}testInPredicateWithoutSubquery"
        yield Case(f"measure {measure}", source, "hundreds", query, tuple((each,) for each in found))


def _partitions() -> Iterable[Case]:
    where = f"{_TRINO}testPartitioningAndOrdering"
    measures = "MATCH_NUMBER() AS match_no, PREV(RUNNING LAST(value)) AS val, CLASSIFIER() AS label"
    # fmt: off
    for table, expected in (
        ("parts", (("p1", 2, 1, 90, "B"), ("p1", 3, 1, 80, "B"), ("p1", 6, 2, 90, "B"), ("p2", 3, 1, 20, "B"))),
        ("nothing", ()),
    ):
        yield Case(f"partitions of {table}", where, table, _rows(
            "m.part, m.id, m.match_no, m.val, m.label", table, measures, "B+", _FALLS, part="part"), expected)
    yield Case("no partition", where, "shuffled", _labels("shuffled", "B+", _FALLS),
               ((3, 1, 30, "B"), (4, 1, 20, "B"), (5, 1, 10, "B")))
    yield Case("no measures", where, "two_parts",
               "SELECT m.id, m.part FROM two_parts MATCH_RECOGNIZE (PARTITION BY part ORDER BY ts ALL ROWS PER MATCH "
               f"AFTER MATCH SKIP PAST LAST ROW PATTERN (B+) DEFINE {_FALLS}) AS m",
               ((3, "p1"), (5, "p2")))
    # fmt: on


def _sums() -> Iterable[Case]:
    """Aggregates, most of them running."""
    sizes = (("p1", 6, 1), ("p2", 3, 10), ("p3", 3, 100))
    running = tuple((part, n, n * value) for part, rows, value in sizes for n in range(1, rows + 1))
    # fmt: off
    yield Case("running sum", f"{_TRINO_SUMS}testSimpleQuery, with + for *", "eight", _rows(
        "m.id, m.running_sum", "eight", "RUNNING SUM(id) AS running_sum", "A+", "A AS TRUE"),
        ((1, 1), (2, 3), (3, 6), (4, 10), (5, 15), (6, 21), (7, 28), (8, 36)))
    yield Case("sums of partitions", f"{_TRINO_SUMS}testPartitioning", "amounts", _rows(
        "m.part, m.id, m.running_sum", "amounts", "RUNNING SUM(value) AS running_sum", "B+", "B AS TRUE", part="part"),
        running)
    yield Case("sums of overlapping matches", f"{_TRINO_SUMS}testPartitioning", "amounts",
               "SELECT m.part, m.match_no, m.id, m.running_sum FROM amounts MATCH_RECOGNIZE (PARTITION BY part "
               "ORDER BY ts MEASURES RUNNING SUM(value) AS running_sum, MATCH_NUMBER() AS match_no ALL ROWS PER MATCH "
               "AFTER MATCH SKIP TO NEXT ROW PATTERN (B+) DEFINE B AS TRUE) AS m",
               tuple((part, first, last, (last - first + 1) * value) for part, rows, value in sizes
                     for first in range(1, rows + 1) for last in range(first, rows + 1)))
    for variable, table, expected in (
        ("B", "averaged3", ((1, "B", 4.0), (2, "B", 5.0), (3, "A", 5.0))),
        ("A", "averaged4", ((1, "B", None), (2, "B", None), (3, "B", None), (4, "A", 5.0))),
    ):
        yield Case(f"average of {variable}", f"{_TRINO_SUMS}testTentativeLabelMatch, with + for *", table, _rows(
            "m.id, m.classy, m.average", table, f"RUNNING AVG({variable}.value) AS average, CLASSIFIER() AS classy",
            "(A | B)+", f"A AS AVG({variable}.value) = 5"), expected)
    yield Case("label given up", f"{_TRINO_SUMS}testTentativeLabelMatch", "amounts", _rows(
        "m.part, m.id, m.running_sum", "amounts", "RUNNING SUM(value) AS running_sum", "B (A | B) B",
        "A AS SUM(value) > 1000", part="part"),
        tuple((part, n, (n - 1) % 3 * value + value) for part, n, value in (
            (part, n, value) for part, rows, value in sizes for n in range(1, rows + 1))))
    yield Case("sum over the bound", f"{_TRINO_SUMS}testTentativeLabelMatch, with + for *", "constant", _rows(
        "m.part, m.id, m.classy, m.running_sum", "constant",
        "RUNNING SUM(value) AS running_sum, CLASSIFIER() AS classy", "(A | B)+", "A AS SUM(value) > 4", part="part"),
        (("p1", 1, "B", 1), ("p1", 2, "B", 2), ("p1", 3, "B", 3), ("p1", 4, "B", 4), ("p1", 5, "A", 5),
         ("p2", 1, "B", 2), ("p2", 2, "B", 4), ("p2", 3, "A", 6), ("p2", 4, "A", 8), ("p2", 5, "A", 10)))
    yield Case("maximum over the bound", f"{_TRINO_SUMS}testTentativeLabelMatch, with + for *", "rising", _rows(
        "m.part, m.id, m.classy, m.running_max", "rising",
        "RUNNING MAX(value) AS running_max, CLASSIFIER() AS classy", "(A | B)+", "A AS MAX(value) > 4", part="part"),
        (("p1", 1, "B", 1), ("p1", 2, "B", 2), ("p1", 3, "B", 3), ("p1", 4, "B", 4), ("p1", 5, "A", 5),
         ("p2", 1, "B", 2), ("p2", 2, "B", 4), ("p2", 3, "A", 6), ("p2", 4, "A", 8), ("p2", 5, "A", 10)))
    yield Case("array of a union", f"{_TRINO_SUMS}testSelectiveAggregation, without what aggregates CLASSIFIER(U)",
               "letters", _rows("m.id, m.ids", "letters", "ARRAY_AGG(U.id) AS ids", "X Y Z Y", "X AS TRUE",
                                more="SUBSET U = (X, Z)"),
               ((1, [1]), (2, [1]), (3, [1, 3]), (4, [1, 3])))
    yield Case("count", f"{_TRINO_SUMS}testCountAggregation", "letters", _rows(
        "m.id, m.counted", "letters", "COUNT(*) AS counted", "X Y Z", "X AS id > 1"), ((2, 1), (3, 2), (4, 3)))
    yield Case("running and final count", f"{_TRINO_SUMS}testCountAggregation", "letters", _rows(
        "m.id, m.running_count, m.final_count", "letters",
        "RUNNING COUNT(*) AS running_count, FINAL COUNT(*) AS final_count", "A B C D", "A AS TRUE"),
        ((1, 1, 4), (2, 2, 4), (3, 3, 4), (4, 4, 4)))
    yield Case("count of variables", f"{_TRINO_SUMS}testCountAggregation", "letters", _rows(
        "m.id, m.of_c, m.of_u", "letters", "COUNT(C.*) AS of_c, COUNT(U.*) AS of_u", "A B C D", "A AS TRUE",
        more="SUBSET U = (B, D)"),
        ((1, 0, 0), (2, 0, 1), (3, 1, 1), (4, 1, 2)))
    yield Case("column with the name of a variable", f"{_TRINO_SUMS}testLabelAndColumnNames", "a_column",
               "SELECT m.id, m.classy, m.one, m.two, m.three FROM a_column MATCH_RECOGNIZE (ORDER BY ts MEASURES "
               "CLASSIFIER() AS classy, COUNT(A.A) AS one, COUNT(A) AS two, COUNT(A.*) AS three ALL ROWS PER MATCH "
               "PATTERN (A B A A) DEFINE A AS TRUE) AS m",
               ((1, "A", 1, 1, 1), (2, "B", 1, 2, 1), (3, "A", 1, 2, 2), (4, "A", 2, 3, 3)))
    yield Case("balanced sums", f"{_TRINO_SUMS}testBalancingSums, with + for *", "balance", _rows(
        "m.id, m.classy, m.sum_a, m.sum_b", "balance",
        "RUNNING SUM(A.value) AS sum_a, RUNNING SUM(B.value) AS sum_b, CLASSIFIER() AS classy", "(A | B)+",
        "A AS SUM(A.value) - A.value <= SUM(B.value)"),
        ((1, "B", None, 4), (2, "A", 6, 4), (3, "B", 6, 14), (4, "A", 7, 14), (5, "A", 8, 14), (6, "A", 9, 14),
         (7, "A", 19, 14), (8, "B", 19, 19), (9, "A", 20, 19)))
    yield Case("lengths of periods", f"{_TRINO_SUMS}testPeriodLength, with + for *", "heartbeats",
               "SELECT user_id, periods_total FROM heartbeats MATCH_RECOGNIZE (PARTITION BY user_id ORDER BY ts MEASURES "
               "COALESCE(SUM(C.minute_of_the_day) - SUM(A.minute_of_the_day), 0) AS periods_total ONE ROW PER MATCH "
               "PATTERN ((A B* C | D)+) DEFINE B AS minute_of_the_day = PREV(minute_of_the_day) + 1, "
               "C AS minute_of_the_day = PREV(minute_of_the_day) + 1)",
               ((1, 3), (2, 2)))
    # fmt: on


def _flink() -> Iterable[Case]:
    """Of the tests that run, those with an event time; where they order by processing time, `ts` says the order."""
    # fmt: off
    for table, expected, test in (
        ("named", ((6, 7, 8),), f"{_FLINK}testSimplePattern"),
        ("named11", ((6, 7, 8), (9, 10, 11)), f"{_FLINK_PROGRAMS}MATCH_SIMPLE"),
    ):
        yield Case(f"strange names in {table}", test, table,
                   f"SELECT T.aid, T.bid, T.cid FROM {table} MATCH_RECOGNIZE (ORDER BY ts MEASURES `A\"`.id AS aid, "
                   "l.id AS bid, C.id AS cid PATTERN (`A\"` l C) DEFINE `A\"` AS name = 'a', l AS name = 'b', "
                   "C AS name = 'c') AS T", expected)
    yield Case("nulls", f"{_FLINK}testSimplePatternWithNulls", "with_nulls",
               "SELECT T.aid, T.bNull, T.cid, T.aNull FROM with_nulls MATCH_RECOGNIZE (ORDER BY ts MEASURES "
               "A.id AS aid, A.nullField AS aNull, LAST(B.nullField) AS bNull, C.id AS cid PATTERN (A B C) DEFINE "
               "A AS name = 'a' AND nullField IS NULL, B AS name = 'b' AND LAST(A.nullField) IS NULL, "
               "C AS name = 'c') AS T",
               ((1, None, 3, None), (6, None, 8, None)))
    yield Case("two keys", f"{_FLINK}testCodeSplitsAreProperlyGenerated", "two_keys",
               "SELECT * FROM two_keys MATCH_RECOGNIZE (PARTITION BY key1, key2 ORDER BY ts MEASURES A.id AS aid, "
               "A.key1 AS akey1, LAST(B.id) AS bid, C.id AS cid, C.key2 AS ckey2 PATTERN (A B C) DEFINE "
               "A AS name = 'a' AND key1 LIKE '%key%' AND id > 0, B AS name = 'b' AND LAST(A.name, 2) IS NULL, "
               "C AS name = 'c' AND LAST(A.name) = 'a') AS T",
               (("key1", "second_key3", 1, "key1", 2, 3, "second_key3"),
                ("key2", "second_key4", 6, "key2", 7, 8, "second_key4")))
    offsets = [f"{name}(id, {n}) AS id{n + 8 * place}" for place, name in enumerate(("FIRST", "LAST")) for n in range(8)]
    yield Case("offsets of all variables", f"{_FLINK}testLogicalOffsetsWithStarVariable", "stars",
               f"SELECT * FROM stars MATCH_RECOGNIZE (ORDER BY ts MEASURES {', '.join(offsets)} ONE ROW PER MATCH "
               "AFTER MATCH SKIP PAST LAST ROW PATTERN (`DOWN\"`{2,} UP) DEFINE "
               "`DOWN\"` AS price < LAST(price, 1) OR LAST(price, 1) IS NULL, "
               "UP AS price = FIRST(price) AND price > FIRST(price, 3) AND price = LAST(price, 7)) AS T",
               ((1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1),))
    for table, part, expected, test in (
        ("acme", "", ((19, 13, None),), f"{_FLINK}testLogicalOffsetOutsideOfRangeInMeasures"),
        ("two_symbols", "PARTITION BY symbol", (("ACME", 19, 13, None), ("BETA", 18, 16, None)),
         f"{_FLINK_PROGRAMS}MATCH_COMPLEX"),
    ):
        yield Case(f"offset out of range in {table}", test, table,
                   f"SELECT * FROM {table} MATCH_RECOGNIZE ({part} ORDER BY ts MEASURES FIRST(DOWN.price) AS first, "
                   "LAST(DOWN.price) AS last, FIRST(DOWN.price, 5) AS nullPrice ONE ROW PER MATCH "
                   "AFTER MATCH SKIP PAST LAST ROW PATTERN (DOWN{2,} UP) DEFINE "
                   "DOWN AS price < LAST(DOWN.price, 1) OR LAST(DOWN.price, 1) IS NULL, "
                   "UP AS price > LAST(DOWN.price)) AS T", expected)
    yield Case("down and up", f"{_FLINK}testPartitionByWithParallelSource", "acme",
               "SELECT * FROM acme MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES DOWN.tax AS bottom_tax, "
               "UP.tax AS end_tax ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (DOWN UP) DEFINE "
               "DOWN AS DOWN.price = 13, UP AS UP.price = 20) AS T",
               (("ACME", 3, 4),))
    weighted = "SUM(price * weight) / SUM(weight)"
    yield Case("aggregates", f"{_FLINK}testAggregates, where weightedAvg is a function of the test (a quotient of sums "
               "here) and D? is found missing although a row is there for it (D?? in the standard's words)", "rated",
               "SELECT * FROM rated MATCH_RECOGNIZE (ORDER BY ts MEASURES FIRST(id) AS startId, SUM(A.price) AS sumA, "
               f"COUNT(D.price) AS countD, SUM(D.price) AS sumD, {weighted} AS wAvg, AVG(B.price) AS avgB, "
               "SUM(B.price * B.rate) AS sumExprB, LAST(id) AS endId AFTER MATCH SKIP PAST LAST ROW "
               "PATTERN (A+ B+ C D?? E) DEFINE A AS SUM(A.price) < 6, "
               "B AS SUM(B.price * B.rate) < SUM(A.price) AND SUM(B.price * B.rate) > 0.2 AND SUM(B.price) >= 1 AND "
               f"AVG(B.price) >= 1 AND {weighted} > 1) AS T",
               ((1, 5, 0, None, 2, 3, 3.4, 8), (9, 4, 0, None, 3, 4, 3.2, 12)))
    yield Case("aggregates of nulls", f"{_FLINK}testAggregatesWithNullInputs", "null_prices",
               "SELECT * FROM null_prices MATCH_RECOGNIZE (ORDER BY ts MEASURES SUM(A.price) AS sumA, "
               "COUNT(A.id) AS countAId, COUNT(A.price) AS countAPrice, COUNT(*) AS countAll, "
               "COUNT(price) AS countAllPrice, LAST(id) AS endId AFTER MATCH SKIP PAST LAST ROW PATTERN (A+ C) DEFINE "
               "A AS SUM(A.price) < 30, C AS C.name = 'c') AS T",
               ((29, 7, 5, 8, 6, 8),))
    yield Case("functions of aggregates", f"{_FLINK}testUserDefinedFunctions, whose functions prefix a text and count "
               "from 4 on", "counted",
               "SELECT * FROM counted MATCH_RECOGNIZE (ORDER BY ts MEASURES FIRST(id) AS firstId, "
               "'PREF:' || A.name AS prefixed, SUM(A.price) + 4 AS countFromA, LAST(id) AS lastId "
               "AFTER MATCH SKIP PAST LAST ROW PATTERN (A+ C) DEFINE "
               "A AS 'PREF:' || A.name = 'PREF:a' AND SUM(A.price) + 4 <= 8) AS T",
               ((1, "PREF:a", 8, 5), (7, "PREF:a", 6, 9)))
    yield Case("matches of windows", f"{_FLINK}testMatchRecognizeAppliedToWindowedGrouping, with the windowing function "
               "TUMBLE; rows of one time are a millisecond apart", "windowed",
               "SELECT * FROM (SELECT symbol, SUM(price) AS price, window_start AS startTime, window_time AS ts FROM "
               "TUMBLE(TABLE windowed, DESCRIPTOR(ts), INTERVAL '3' SECOND) "
               "GROUP BY symbol, window_start, window_end, window_time) MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts "
               "MEASURES B.price AS dPrice, B.startTime AS dTime ONE ROW PER MATCH PATTERN (A B) DEFINE "
               "B AS B.price < A.price)",
               (("ACME", 2, at(3)),))
    # fmt: on


def _ticked(table: str, measures: str, skip: str, pattern: str, define: str) -> str:
    return (
        f"SELECT * FROM {table} MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES {measures} ONE ROW PER MATCH "
        f"AFTER MATCH SKIP {skip} PATTERN {pattern} DEFINE {define}) MR"
    )


def _flink_page() -> Iterable[Case]:
    """The examples of Flink's page whose answer it shows; the last ones are told in tables of how conditions are met."""

    def april(seconds: float) -> datetime:
        return _APRIL + timedelta(seconds=seconds)

    def september(second: float) -> datetime:
        return _SEPTEMBER + timedelta(seconds=second)

    # fmt: off
    yield Case("falling prices", f"{_FLINK_PAGE}Examples", "falling", _ticked(
        "falling", "START_ROW.ts AS start_tstamp, LAST(PRICE_DOWN.ts) AS bottom_tstamp, LAST(PRICE_UP.ts) AS end_tstamp",
        "TO LAST PRICE_UP", "(START_ROW PRICE_DOWN+ PRICE_UP)",
        "PRICE_DOWN AS (LAST(PRICE_DOWN.price, 1) IS NULL AND PRICE_DOWN.price < START_ROW.price) OR "
        "PRICE_DOWN.price < LAST(PRICE_DOWN.price, 1), PRICE_UP AS PRICE_UP.price > LAST(PRICE_DOWN.price, 1)"),
        (("ACME", april(4), april(7), april(8)),))
    yield Case("average below a threshold", f"{_FLINK_PAGE}Aggregations", "threshold", _ticked(
        "threshold", "FIRST(A.ts) AS start_tstamp, LAST(A.ts) AS end_tstamp, AVG(A.price) AS avgPrice",
        "PAST LAST ROW", "(A+ B)", "A AS AVG(A.price) < 15"),
        (("ACME", april(0), april(3), 14.5), ("ACME", april(5), april(10), 13.5)))
    conditions = "A AS A.price > 10, B AS B.price < 15, C AS C.price > 12"
    for pattern, prices in (("(A B* C)", (16,)), ("(A B*? C)", (13, 16))):
        yield Case(f"greedy and reluctant {pattern}", f"{_FLINK_PAGE}Greedy & Reluctant Quantifiers", "greedy", _ticked(
            "greedy", "C.price AS lastPrice", "PAST LAST ROW", pattern, conditions),
            tuple(("XYZ", price) for price in prices))
    exactly = ", which says 14 from 12:00 on; but in Flink's NFA.java a match of exactly the interval has timed out"
    longer = ", with a minute more, so that the answer does not depend on whether the interval itself is too long"
    for interval, change, dropped in (("'1' HOUR", exactly, 13), ("'61' MINUTE", longer, 14)):
        yield Case(f"within {interval}", f"{_FLINK_PAGE}Time constraint{change}", "hour", _ticked(
            "hour", "C.ts AS dropTime, A.price - C.price AS dropDiff", "PAST LAST ROW",
            f"(A B* C) WITHIN INTERVAL {interval}", "B AS B.price > A.price - 10, C AS C.price < A.price - 10"),
            (("ACME", april(10800), dropped),))
    yield Case("one row", f"{_FLINK_PAGE}Output Mode", "peak", _ticked(
        "peak", "FIRST(A.price) AS startPrice, LAST(A.price) AS topPrice, B.price AS lastPrice", "PAST LAST ROW",
        "(A+ B)", "A AS LAST(A.price, 1) IS NULL OR A.price > LAST(A.price, 1), B AS B.price < LAST(A.price)"),
        (("XYZ", 10, 13, 11),))
    yield Case("past the last row", f"{_FLINK_PAGE}After Match Strategy", "skipped", _ticked(
        "skipped", "SUM(A.price) AS sumPrice, FIRST(ts) AS startTime, LAST(ts) AS endTime", "PAST LAST ROW", "(A+ C)",
        "A AS SUM(A.price) < 30"),
        (("XYZ", 26, september(1), september(4)), ("XYZ", 17, september(5), september(7))))
    yield Case("sums of variables", f"{_FLINK_PAGE}Pattern Variable Referencing, by the table of that text, "
               "which leaves out the sum of the first row", "referred",
               _rows("m.id, m.label, m.a_price, m.b_price, m.total, m.total_b", "referred",
                     "CLASSIFIER() AS label, A.price AS a_price, B.price AS b_price, SUM(price) AS total, "
                     "SUM(B.price) AS total_b", "A B+",
                     "A AS A.price >= 10, B AS B.price > A.price AND SUM(price) < 100 AND SUM(B.price) < 80"),
               ((1, "A", 10, None, 10, None), (2, "B", 10, 15, 25, 15), (3, "B", 10, 20, 45, 35),
                (4, "B", 10, 31, 76, 66)))
    yield Case("offsets of a variable", f"{_FLINK_PAGE}Logical Offsets, by the table of that text", "referred",
               _rows("m.price, m.label, m.last1, m.last2", "referred",
                     "CLASSIFIER() AS label, LAST(B.price, 1) AS last1, LAST(B.price, 2) AS last2", "A B+",
                     "A AS A.price >= 10, B AS (LAST(B.price, 1) IS NULL OR B.price > LAST(B.price, 1)) AND "
                     "(LAST(B.price, 2) IS NULL OR B.price > 2 * LAST(B.price, 2))"),
               ((10, "A", None, None), (15, "B", None, None), (20, "B", 15, None), (31, "B", 20, 15)))
    for table, expected in (("with_b", ((10, "A"), (15, "B"), (20, "C"))), ("without_b", ((10, "A"), (20, "C")))):
        yield Case(f"offset {table}", f"{_FLINK_PAGE}Logical Offsets, by the tables of that text", table, _rows(
            "m.price, m.label", table, "CLASSIFIER() AS label", "A B? C",
            "B AS B.price < 20, C AS LAST(price, 1) < C.price"), expected)
    # fmt: on


_GROUPS: Final = (
    _patterns, _quantifiers, _repeated, _machine, _exclusions, _skips, _modes, _navigation, _expressions, _partitions,
    _sums, _flink, _flink_page,
)  # fmt: skip
CASES: Final = tuple(case for group in _GROUPS for case in group())


def _refused(order: str, measures: str, pattern: str, define: str, *, rows: str = "", part: str = "") -> str:
    return (
        f"SELECT * FROM acme MATCH_RECOGNIZE ({part} {order} MEASURES {measures} {rows} PATTERN ({pattern}) "
        f"DEFINE {define}) AS T"
    )


_BY_TIME: Final = "ORDER BY ts"
_SYMBOL: Final = ("A.symbol AS aSymbol", "A B", "A AS symbol = 'a'")
_LABEL: Final = "CLASSIFIER() AS label"
_FLINK_WRONG: Final = "Flink, MatchRecognizeValidationTest."
# fmt: off
REFUSED: Final = (
    Refused("empty pattern", f"{_TRINO}testRowPattern", _refused(_BY_TIME, _LABEL, "() | A", "A AS TRUE"),
            "empty|no row"),
    Refused("start of the partition", f"{_TRINO}testRowPattern", _refused(_BY_TIME, _LABEL, "^A", "A AS TRUE"), r"\^"),
    Refused("end of the partition", f"{_TRINO}testRowPattern", _refused(_BY_TIME, _LABEL, "A$", "A AS TRUE"), r"\$"),
    Refused("pattern of no row", f"{_FLINK_WRONG}testPatternsProducingEmptyMatchesAreNotSupported; Trino, "
            "TestRowPatternMatching.testPatternQuantifiers gives empty matches",
            _refused(_BY_TIME, "A.symbol AS aSymbol", "A*", "A AS symbol = 'a'"), "empty|no row"),
    Refused("unmatched rows", f"{_TRINO}testOutputModes",
            _refused(_BY_TIME, _LABEL, "B+", "B AS B.price < PREV(B.price)",
                     rows="ALL ROWS PER MATCH WITH UNMATCHED ROWS"), "UNMATCHED"),
    Refused("empty matches", f"{_TRINO}testOutputModes",
            _refused(_BY_TIME, _LABEL, "B+", "B AS B.price < PREV(B.price)",
                     rows="ALL ROWS PER MATCH SHOW EMPTY MATCHES"), "EMPTY|SHOW"),
    Refused("label in a condition", f"{_TRINO}testBackReference, without the anchor",
            _refused(_BY_TIME, _LABEL, "(A | B)* X", "X AS LAST(CLASSIFIER(), 1) = 'B'"), "CLASSIFIER"),
    Refused("match number in a condition", f"{_TRINO_SUMS}testTentativeLabelMatchWithRuntimeEvaluatedAggregationArgument",
            _refused(_BY_TIME, _LABEL, "(A | B)+", "A AS MAX(price + MATCH_NUMBER()) > 5"), "MATCH_NUMBER"),
    Refused("next row", f"{_TRINO}testNavigationFunctions",
            _refused(_BY_TIME, "NEXT(price) AS following", "A+", "A AS TRUE"), "NEXT"),
    Refused("order that falls", f"{_FLINK_WRONG}testSortProcessingTimeDesc", _refused("ORDER BY ts DESC", *_SYMBOL),
            "DESC|ascending|ORDER BY"),
    Refused("order of another column", f"{_FLINK_WRONG}testSortProcessingTimeSecondaryField",
            _refused("ORDER BY price, ts", *_SYMBOL), "ORDER BY|event time|price"),
    Refused("no order", f"{_FLINK_WRONG}testSortNoOrder", _refused("", *_SYMBOL), "ORDER BY"),
    Refused("aggregate of two variables", f"{_FLINK_WRONG}testAggregatesOnMultiplePatternVariablesNotSupported",
            _refused(_BY_TIME, "SUM(A.price + B.tax) AS taxedPrice", "A B", "A AS A.symbol = 'a'"), "SUM|variable"),
    Refused("offset of two variables", f"{_FLINK_PAGE}Logical Offsets, by its text",
            _refused(_BY_TIME, "LAST(A.price * B.tax) AS taxed", "A B", "A AS A.symbol = 'a'"), "LAST|variable"),
)
# fmt: on
