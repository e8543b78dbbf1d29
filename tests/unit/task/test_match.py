"""Patterns in streams: results are those of the definition, whatever batches, watermarks, keys and restores are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import PLACES, kept_in

from penstock import DecimalType, OutputTag, Pattern, Pipeline, col, count, lit
from penstock.api.patterns import skip_of
from penstock.connectors import iterables
from penstock.core.batches import EVENT_TIME
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import IncompatibleStateError, PipelineError, UserCodeError
from penstock.expressions import Expr
from penstock.functions.patterns import regular
from penstock.plan.building.keys import keyed
from penstock.plan.building.matches import match_rows
from penstock.plan.building.sources import read
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.match_rows import MatchRows
from penstock.state.segments import decode_segment, encode_segment
from penstock.testing.harness import OperatorHarness
from penstock.types import INT64, STRING, TIMESTAMP, Field, Schema

OVER: OutputTag[Any] = OutputTag("over")
LATE: OutputTag[Any] = OutputTag("late")
ROWS = Schema(
    (
        Field("key", STRING, nullable=True),
        Field("number", INT64),
        Field("value", INT64, nullable=True),
        Field("at", TIMESTAMP),
    )
)
SECOND = 1_000_000


def node_of(pattern: Pattern, within: int | None, after_match: Any) -> Node:
    rows = keyed(read(LogicalPlan("p"), iterables.Source([], schema=ROWS, event_time="at")), ["key"])
    measures = {"key": col("key"), "rows": col("number").collect(), "first": col("low.number"), "last": col("value")}
    timed_out = OVER if within is not None else None
    operation = MatchRows(pattern.group, tuple(measures.items()), skip_of(after_match), within, LATE, timed_out)
    return match_rows(rows, operation).node


def node_of_sql(query: str) -> Node:
    """The node of MATCH_RECOGNIZE in a query of `rows`."""
    p = Pipeline("p")
    found = p.sql(query, rows=p.read(iterables.Source([], schema=ROWS, event_time="at")))
    node = found._node  # pyright: ignore[reportPrivateUsage]
    while not isinstance(node.operation, MatchRows):
        node = node.inputs[0]
    return node


CLIMBS = """
SELECT * FROM `rows` MATCH_RECOGNIZE (
    PARTITION BY key ORDER BY at MEASURES ARRAY_AGG(number) AS numbers, MATCH_NUMBER() AS nth
    PATTERN (LOW UP+) DEFINE LOW AS LOW.value < 3, UP AS UP.value > LOW.value AND COUNT(UP.*) <= 3
)
"""


def climbing(rows: list[tuple[int, int | None, int]]) -> list[list[int] | None]:
    """What `CLIMBS` matches: a low row, and at most three rows above it, as many as there are."""
    return [[row[0] for row in climb] for climb in climbs(rows) if len(climb) > 1]


def climbs(rows: list[tuple[int, int | None, int]]) -> Iterator[list[tuple[int, int | None, int]]]:
    """The rows of every attempt, of which there may be one."""
    place = 0
    while place < len(rows):
        _, low, _ = rows[place]
        end = place + 1
        while low is not None and low < 3 and end < min(len(rows), place + 4) and (rows[end][1] or 0) > low:
            end += 1
        yield rows[place:end]
        place = end


FALLS = """
SELECT * FROM `rows` MATCH_RECOGNIZE (
    PARTITION BY key ORDER BY at MEASURES ARRAY_AGG(number) AS numbers, MATCH_NUMBER() AS nth
    PATTERN (HIGH DOWN{2} UP) WITHIN INTERVAL '6' SECOND
    DEFINE DOWN AS DOWN.value < LAST(value, 1), UP AS UP.value > PREV(UP.value)
)"""
WITHIN = 6


def attempts(
    rows: list[tuple[int, int | None, int]], now: int | None
) -> Iterator[tuple[bool, list[tuple[int, int | None, int]]]]:
    """The rows of every attempt of `FALLS` and whether they are a match, and what goes on when it is `now`."""
    place = 0
    while place < len(rows):
        end = place + 1
        while end < min(len(rows), place + 4) and rows[end][2] - rows[place][2] < WITHIN:
            before, value = rows[end - 1][1], rows[end][1]
            if before is None or value is None or not (value > before if end == place + 3 else value < before):
                break
            end += 1
        if end == len(rows) < place + 4 and now is not None and now - rows[place][2] < WITHIN:
            yield False, rows[place:end]
            return
        matched = end == place + 4
        if matched:
            yield True, rows[place:end]
        place = end if matched else place + 1


def falling(rows: list[tuple[int, int | None, int]]) -> list[list[int] | None]:
    return [[row[0] for row in found] for _, found in attempts(rows, None)]


def still_falling(rows: list[tuple[int, int | None, int]], now: int) -> list[int]:
    return [found[0][2] for matched, found in attempts(rows, now) if not matched]


def still_climbing(rows: list[tuple[int, int | None, int]], now: int) -> list[int]:
    """The time of the row with which the attempt begins that goes on behind the last row."""
    last = [*climbs(rows)][-1:]
    return [climb[0][2] for climb in last if climb[0][1] is not None and climb[0][1] < 3]


def rising(rows: list[tuple[int, int | None, int]]) -> list[list[int] | None]:
    found: list[list[int] | None] = []
    for place, (_, value, _) in enumerate(rows):
        if value is None or value >= 3:
            continue
        end = place + 1
        while end < len(rows) and rows[end][1] is not None and rows[end][1] > value:
            end += 1
            found.append([rows[each][0] for each in range(place, end)])
    return found


def still_rising(rows: list[tuple[int, int | None, int]], now: int) -> list[int]:
    """The times of rows with which partial matches begin."""
    return [
        time
        for place, (_, value, time) in enumerate(rows)
        if value is not None and value < 3 and all((other or 0) > value for _, other, _ in rows[place + 1 :])
    ]


def still_alone(rows: list[tuple[int, int | None, int]], now: int) -> list[int]:
    low = [place for place, (_, value, _) in enumerate(rows) if value is not None and value < 3]
    return [rows[place][2] for place in low if first_after(rows, place) is None]


def first_after(rows: list[tuple[int, int | None, int]], place: int) -> list[int] | None:
    number, value, _ = rows[place]
    if value is None or value >= 3:
        return None
    return next(([number, other[0]] for other in rows[place + 1 :] if other[1] is not None and other[1] > value), None)


RISES = Pattern.begin("low", col("value") < 3).next(
    "high", col("value") > col("low.value"), times=(1, None), repeated="next"
)
LATER = Pattern.begin("low", col("value") < 3).followed_by("high", col("value") > col("low.value").max())
LATER_BY_FUNCTIONS = Pattern.begin("low", lambda row: row.value is not None and row.value < 3).followed_by(
    "high", lambda row, matched: row.value is not None and row.value > max(low.value for low in matched["low"])
)
PATTERNS: dict[str, tuple[Callable[[], Node], Any, Any]] = {
    "rises": (lambda: node_of(RISES, None, "no_skip"), rising, still_rising),
    "climbs": (lambda: node_of_sql(CLIMBS), climbing, still_climbing),
    "falls": (lambda: node_of_sql(FALLS), falling, still_falling),
    "later": (
        lambda: node_of(LATER, None, "no_skip"),
        lambda rows: [first_after(rows, place) for place in range(len(rows))],
        still_alone,
    ),
    "later by functions": (
        lambda: node_of(LATER_BY_FUNCTIONS, None, "no_skip"),
        lambda rows: [first_after(rows, place) for place in range(len(rows))],
        still_alone,
    ),
}


def frame_of(rows: list[tuple[str | None, int, int | None, int]]) -> pl.DataFrame:
    data = [(key, number, value, datetime.fromtimestamp(time, UTC), time * SECOND) for key, number, value, time in rows]
    return pl.DataFrame(data, schema={**ROWS.polars(), EVENT_TIME: pl.Int64()}, orient="row")


KEYS = ("a", "b", None)


def rows_of(key: str | None, rows: list[tuple[str | None, int, int | None, int]]) -> list[tuple[int, int | None, int]]:
    return [row[1:] for row in sorted((row for row in rows if row[0] == key), key=lambda row: row[3])]


def check_metrics(
    harness: OperatorHarness, judge: Any, rows: list[tuple[str | None, int, int | None, int]], now: int
) -> None:
    """The partial matches and the age of the oldest one are those of the rows that event time has passed."""
    passed = [row for row in rows if row[3] * SECOND <= now]
    begun = [time for key in KEYS for time in judge(rows_of(key, passed), now // SECOND)]
    assert sum(each.partial_matches for each in harness.metrics) == len(begun)
    assert max(each.partial_match_age_s for each in harness.metrics) == (now // SECOND - min(begun) if begun else 0)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9), place=PLACES, name=st.sampled_from(list(PATTERNS)))
def test_matches_are_those_of_each_key(seed: int, place: str, name: str) -> None:
    chance = random.Random(seed)
    made, judge, judge_begun = PATTERNS[name]
    kept: list[tuple[str | None, int, int | None, int]] = []
    late: list[int] = []
    now, number = MIN_WATERMARK, 0
    with kept_in(place) as folder:
        harness = OperatorHarness(made(), max_parallelism=8, local_state=folder)
        for _ in range(chance.randrange(1, 12)):
            batch: list[tuple[str | None, int, int | None, int]] = []
            for _ in range(chance.choice([1, 4, 20])):
                number += 1
                row = (chance.choice(["a", "b", None]), number, chance.choice([None, *range(6)]), chance.randrange(30))
                batch.append(row)
                if row[3] * SECOND <= now:
                    late.append(number)
                else:
                    kept.append(row)
            harness.frame(frame_of(batch))
            if chance.random() < 0.5:
                now = max(now, chance.randrange(30) * SECOND)
                harness.watermark(now)
                check_metrics(harness, judge_begun, kept, now)
            if chance.random() < 0.4:
                before = harness
                harness = before.restored(before.freeze()(), chance.randrange(1, 4))
                before.close()
                check_metrics(harness, judge_begun, kept, now)
        harness.watermark(MAX_WATERMARK)
        check_metrics(harness, lambda *_: [], kept, MAX_WATERMARK)
        harness.close()
    expected: Counter[tuple[Any, ...]] = Counter()
    for key in KEYS:
        rows = rows_of(key, kept)
        expected.update((key, tuple(found)) for found in judge(rows) if found is not None)
    seen = [row for frame in harness.collected.frames for row in frame.iter_rows()]
    assert Counter((row[0], tuple(row[1])) for row in seen) == expected
    in_sql = name in ("climbs", "falls")
    if in_sql:
        for key in ("a", "b", None):
            numbers = [row[2] for row in seen if row[0] == key]
            assert numbers == list(range(1, len(numbers) + 1))
    told_late = {row[1] for frame in harness.collected.sides.get("late", []) for row in frame.iter_rows()}
    assert told_late == (set[int]() if in_sql else {*late})  # SQL has no name for them


@dataclass
class Login:
    user: str
    status: str
    amount: float
    at: datetime


START = datetime(2026, 1, 1, tzinfo=UTC)
STATUS = {"f": "fail", "o": "ok", "x": "other", "r": "reset"}


def logins(letters: str, **options: Any) -> Any:
    rows = [
        Login("u", STATUS[letter], float(n), START + timedelta(minutes=n))
        for n, letter in enumerate(letters)
        if letter in STATUS
    ]
    return Pipeline("p").read(iterables.Source(rows, schema=Login, event_time="at", **options)).key_by("user")


FAILS = Pattern.begin("fails", col("status") == "fail", times=(3, None))
BURST = FAILS.followed_by("ok", col("status") == "ok")


def test_measures_are_of_the_rows_of_their_names() -> None:
    matches = logins("ffxfo").match(BURST, after_match="past_last_row").select(
        "user", "fails.amount", col("ok.at"), fails=col("fails").count(), first=col("fails.amount").first(),
        total=col("fails.amount").sum(), all=count(), last=col("amount"),
        mean=col("fails.amount").mean() + col("ok.amount"),
    )  # fmt: skip
    assert matches.schema.names == ("user", "fails.amount", "ok.at", "fails", "first", "total", "all", "last", "mean")
    assert matches.collect().rows() == [("u", 3.0, START + timedelta(minutes=4), 3, 0.0, 4.0, 4, 4.0, 4.0 + 4 / 3)]


def test_constants_are_measures() -> None:
    """Of every match, also of one whose time is over, and beside aggregates or alone."""
    matches = logins("ffxfo fo").match(BURST, within="9m").timed_out_to(OVER)
    found = matches.select(kind=lit("burst"), fails=col("fails").count(), half=lit(1) / 2, nothing=lit(None).cast(str))
    assert found.collect().rows() == [("burst", fails, 0.5, None) for fails in (3, 4, 3)]
    assert {row[::2] for row in found.side(OVER).collect().rows()} == {("burst", 0.5)}
    alone = logins("ffxfo").match(BURST).select(kind=lit("burst"))
    assert alone.schema.field("kind").type == STRING
    assert not alone.schema.field("kind").nullable
    assert alone.collect().rows() == [("burst",)]


def test_what_was_matched_in_time_and_what_was_not() -> None:
    """The times of two first rows are over when the input ends."""
    matches = logins("fff  o  f").match(BURST, within="6m", after_match="past_last_row").timed_out_to(OVER)
    found = matches.select(fails=col("fails").count(), ok=col("ok.amount"), first=col("fails.amount").first())
    assert found.collect().rows() == [(3, 5.0, 0.0)]
    assert found.side(OVER).collect().rows() == [(1, None, 8.0)]


@pytest.mark.parametrize(
    ("after_match", "expected"),
    [
        ("no_skip", [(3, 0.0), (4, 0.0), (3, 1.0)]),
        ("to_next", [(4, 0.0), (3, 1.0)]),
        ("past_last_row", [(4, 0.0)]),
        (("to_last", "fails"), [(4, 0.0)]),
        (("to_first", "ok"), [(4, 0.0)]),
    ],
)
def test_where_the_search_goes_on(after_match: Any, expected: list[tuple[int, float]]) -> None:
    found = logins("ffffo").match(BURST, after_match=after_match)
    rows = found.select(fails=col("fails").count(), first=col("fails.amount").first()).collect().rows()
    assert sorted(rows, key=lambda row: (row[1], row[0])) == expected


def test_nothing_happens_for_a_time() -> None:
    quiet = Pattern.begin("fail", col("status") == "fail").not_followed_by("ok", col("status") == "ok")
    found = logins("f o  f   o  f").match(quiet, within="4m").select("amount")
    assert found.collect().rows() == [(5.0,), (12.0,)]


def test_results_have_the_time_at_which_they_are_decided() -> None:
    """So that none of them is late behind."""
    quiet = Pattern.begin("fail", col("status") == "fail").not_followed_by("ok", col("status") == "ok")
    found = logins("fxxxxxx").match(quiet, within="4m").select("amount")
    node = found._node
    harness = OperatorHarness(node)
    rows = [("u", "fail", 1.0, START, 0), ("u", "x", 2.0, START, 600 * SECOND)]
    frame = pl.DataFrame(rows, {**node.inputs[0].schema.polars(), EVENT_TIME: pl.Int64()}, orient="row")
    harness.frame(frame)
    harness.watermark(239 * SECOND)
    assert harness.collected.frames == []
    harness.watermark(240 * SECOND - 1)
    assert [row for each in harness.collected.frames for row in each.iter_rows()] == [(1.0, 240 * SECOND - 1)]


def test_columns_of_every_type_are_kept_with_partial_matches() -> None:
    import pyarrow as pa

    schema = pa.schema(
        [("key", pa.string()), ("price", pa.decimal128(12, 2)), ("tags", pa.list_(pa.string())), ("day", pa.date32()),
         ("at", pa.timestamp("us", "UTC")), ("long", pa.duration("us")), ("yes", pa.bool_()),
         ("both", pa.struct([("a", pa.int64())])), ("moments", pa.list_(pa.timestamp("us", "UTC"))),
         ("days", pa.list_(pa.list_(pa.date32())))]
    )  # fmt: skip
    rows = [
        {"key": "k", "price": Decimal(n) / 4, "tags": ["x"] * n, "day": START.date(), "at": START + timedelta(n),
         "long": timedelta(n), "yes": n > 1, "both": {"a": n}, "moments": [START, None], "days": [[START.date()], None]}
        for n in range(1, 4)
    ]  # fmt: skip
    pattern = Pattern.begin("low").next("high", (col("price") > col("low.price")) & (col("long") > col("low.long")))
    stream = Pipeline("p").read(iterables.Source(rows, schema=schema, event_time="at")).key_by("key").match(pattern)
    found = stream.select(
        "low.price", "low.tags", "low.day", "low.at", "low.long", "low.yes", "low.both", "low.moments", "low.days",
        sum=col("price").sum(),
    )  # fmt: skip
    harness = OperatorHarness(found._node, max_parallelism=8)
    source = found._node.inputs[0].schema.polars()
    frame = pl.DataFrame(rows, schema=source).with_columns(pl.col("at").to_physical().alias(EVENT_TIME))
    harness.frame(frame.head(1))
    harness.watermark(frame[EVENT_TIME][0])
    harness = harness.restored(harness.freeze()(), 2)
    harness.frame(frame.tail(2))
    harness.watermark(MAX_WATERMARK)
    seen = [row[:-1] for each in harness.collected.frames for row in each.iter_rows()]
    expected = [
        (*(row[name] for name in source if name != "key"), row["price"] * 2 + Decimal("0.25")) for row in rows[:2]
    ]
    order = ["price", "tags", "day", "at", "long", "yes", "both", "moments", "days"]
    assert seen == [(*(row[name] for name in order), row["price"] * 2 + Decimal("0.25")) for row in rows[:2]], expected
    assert isinstance(found.schema.field("sum").type, DecimalType)


A = Pattern.begin("a", col("status") == "fail")


def test_columns_may_be_called_as_what_conditions_read() -> None:
    rows = Pipeline("p").read(
        iterables.Source([Login("u", "f", 0.0, START), Login("u", "o", 1.0, START)], event_time="at")
    )
    stream = rows.rename({"status": "asked 0"}).with_columns(lit(-1.0).alias("now amount"))
    pattern = Pattern.begin("a").next("b", col("amount") > col("a.amount"))
    found = stream.key_by("user").match(pattern).select("a.asked 0", "now amount")
    assert found.collect().rows() == [("f", -1.0)]


@pytest.mark.parametrize(
    ("pattern", "measure", "message"),
    [
        (Pattern.begin("a", col("status").cast(int) > 0), "amount", "the conditions failed on rows: conversion"),
        (Pattern.begin("a").next("b", col("status").cast(int) > col("a.amount")), "amount", "conditions failed"),
        (A, col("a.status").cast(int), "the measures could not be computed: conversion"),
    ],
)
def test_values_that_expressions_cannot_be_computed_of(pattern: Pattern, measure: Any, message: str) -> None:
    with pytest.raises(UserCodeError, match=rf"match \(\w+-match\): .*{message}"):
        logins("ff").match(pattern).select(x=measure if isinstance(measure, Expr) else col(measure)).collect()


def test_a_snapshot_with_other_columns_of_matched_rows_is_refused() -> None:
    first, then = (logins("f").match(A.next("b")).select(*names)._node for names in (["a.amount"], ["a.status"]))
    harness = OperatorHarness(first, max_parallelism=8)
    source = first.inputs[0].schema.polars()
    harness.frame(pl.DataFrame([("u", "fail", 1.0, START, 0)], {**source, EVENT_TIME: pl.Int64()}, orient="row"))
    harness.watermark(0)
    with pytest.raises(IncompatibleStateError, match="keeps other columns of matched rows"):
        OperatorHarness(then, max_parallelism=8, restored=harness.freeze()())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.match(A).select("b.at"), "no rows of the pattern are called 'b'; did you mean 'a'|there are: a"),
        (lambda s: s.match(A).select("amnt"), "there is no column 'amnt'; did you mean 'amount'"),
        (lambda s: s.match(A).select(x=col("a")), r"'a' are rows; write col\('a.column'\)"),
        (lambda s: s.match(A).select(), "name at least one"),
        (lambda s: s.match(A.next("a", col("status") == "ok")).select("user"), "two parts are called 'a'"),
        (lambda s: s.match(A.next("no name")).select("user"), "'no name' cannot be the name of a part"),
        (lambda s: s.match(Pattern.begin("user")).select("user"), "'user' is a column"),
        (lambda s: s.match(Pattern.begin("b", optional=True)).select("user"), "could match no row at all"),
        (lambda s: s.match(A.next("b", col("amount"))).select("user"), "float64, not boolean"),
        (lambda s: s.match(A.next("b", col("a.amount").std() > 1)).select("user"), "a condition cannot ask for"),
        (lambda s: s.match(A.not_followed_by("b", col("amount") > 1)).select("user"), "needs a time; give within="),
        (lambda s: s.match(A, within="0s").select("user"), "within"),
        (lambda s: s.match(A).timed_out_to(OVER).select("user"), "timed_out_to is for patterns with a time"),
        (lambda s: s.match(A, within="1m").timed_out_to(OVER).late_to(OVER).select("user"), "the same tag"),
        (lambda s: s.match(A, after_match=("to_last", "b")).select("user"), "after_match names 'b'"),
        (lambda s: s.match(A.next("b")).select(x=(col("a.amount") + col("b.amount")).sum()), "of the rows of a, b"),
        (lambda s: s.match(A.next(Pattern.begin("b", optional=True), times=2)).select("user"), "all of it is optional"),
        (lambda s: Pattern.begin("b", times=(3, 2)), "cannot occur"),
        (lambda s: Pattern.begin("b", times=(1, 2, 3)), r"cannot occur \(1, 2, 3\) times"),
        (lambda s: Pattern.begin("b", times=(None, 2)), r"cannot occur \(None, 2\) times"),
        (lambda s: Pattern.begin("b", "amount > 1"), "condition= takes an expression"),
        (lambda s: Pattern.begin(None), "part= takes text or a Pattern"),
        (lambda s: Pattern.begin("b", within="1s"), "there is no argument within="),
        (lambda s: Pattern.begin("b", times=2, repeated="consecutive"), "there is no repeated='consecutive'"),
        (lambda s: Pattern.any_of("a", "b"), "takes a Pattern"),
        (lambda s: s.match(A, after_match=("to_first",)).select("user"), "a tuple is"),
        (lambda s: Pattern.begin(A, col("amount") > 1), "a group has no condition"),
        (lambda s: Pattern.begin(A, times=2, greedy=True), "greedy= is for rows"),
        (lambda s: Pattern.any_of(A), "two patterns or more"),
        (lambda s: s.match(A).agg(n=count()), "agg"),
    ],
)  # fmt: skip
def test_what_cannot_be_matched_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        make(logins("f"))


def asking(conditions: int) -> Pattern:
    some = Pattern.begin("start")
    for number in range(conditions):
        some = some.next(f"p{number}", col("amount") > number)
    return some


def choosing(edges: int) -> Pattern:
    ways = [Pattern.begin(f"p{number}") for number in range(edges)]
    return Pattern.begin("start").next(Pattern.any_of(*ways))


@pytest.mark.parametrize(
    ("make", "most", "message"),
    [
        (asking, 61, "more than 61 conditions"),
        (choosing, 62, "may be followed by one of more than 62"),
        (lambda rows: Pattern.begin("a", times=rows), 2000, "more than 2000 rows"),
    ],
)
def test_patterns_are_as_large_as_the_documentation_says(make: Any, most: int, message: str) -> None:
    logins("f").match(make(most)).select("user")
    with pytest.raises(PipelineError, match=message):
        logins("f").match(make(most + 1)).select("user")


def test_rows_without_event_time_have_no_order() -> None:
    with pytest.raises(PipelineError, match="match: the stream has no event time"):
        Pipeline("p").read(iterables.Source([Login("u", "x", 1.0, START)])).key_by("user").match(A).select("user")


# -- functions as conditions -------------------------------------------------------------------------------------------


def fails(login: Login) -> bool:
    return login.status == "fail"


def is_twice_the_last(login: Login, matched: dict[str, list[Login]]) -> bool:
    return login.amount >= 2 * matched["fails"][-1].amount and not matched["ok"]


def test_functions_and_expressions_are_conditions_of_one_pattern() -> None:
    pattern = (
        Pattern.begin("fails", fails, times=(1, None), repeated="next", until=lambda login: login.amount > 2)
        .not_followed_by("reset", lambda login: login.status == "reset")
        .followed_by("ok", is_twice_the_last)
        .next("other", col("status") == "other")
    )
    assert str(pattern).startswith("fails[fails(row)]{1,} next until ")
    found = logins("ffxrffxx").match(pattern).select(n=col("fails").count(), ok=col("ok.amount"))
    assert found.collect().rows() == [(1, 1.0)]


def test_a_function_reads_the_class_of_the_rows_that_are_kept() -> None:
    seen: list[Any] = []

    def look(row: Any, matched: dict[str, list[Any]]) -> bool:
        seen.extend([row, *matched["low"]])
        return len(matched["low"]) == 1

    harness = OperatorHarness(node_of(Pattern.begin("low").next("high", look), None, "no_skip"), max_parallelism=8)
    harness.frame(frame_of([("k", 1, 5, 1)]))
    harness.watermark(SECOND)
    harness = harness.restored(harness.freeze()())
    harness.frame(frame_of([("k", 2, None, 2)]))
    harness.watermark(MAX_WATERMARK)
    assert [(row.key, row.number, row.value, row.at) for row in seen] == [
        ("k", 2, None, datetime.fromtimestamp(2, UTC)), ("k", 1, 5, datetime.fromtimestamp(1, UTC))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda row: row.amount, r"the condition .*<lambda> returned 0.0, not True or False; row: Login\(user='u'"),
        (lambda row: 1 / row.amount > 0, "the condition .*<lambda> raised ZeroDivisionError: .*; row: Login"),
        (lambda row, matched: matched["b"][0], "the condition .*<lambda> raised IndexError: .*; row: Login"),
        (lambda row, matched: None, "the condition .*<lambda> returned None, not True or False"),
    ],
)
def test_a_function_that_does_not_say_yes_or_no_fails_the_job(function: Any, message: str) -> None:
    with pytest.raises(UserCodeError, match=rf"^match \(\w+-match\): {message}"):
        logins("ff").match(Pattern.begin("a", function).next("b")).select(x=col("a.status")).collect()


def test_a_function_takes_a_row_or_also_the_rows_before() -> None:
    with pytest.raises(PipelineError, match="write a function of one argument or of two"):
        Pattern.begin("a", lambda: True)
    with pytest.raises(PipelineError, match="write a function of one argument or of two"):
        Pattern.begin("a").not_next("b", lambda one, two, three: True)


# -- MATCH_RECOGNIZE ---------------------------------------------------------------------------------------------------


def logins_by_sql(letters: str, query: str) -> list[tuple[Any, ...]]:
    rows = [
        Login("u", STATUS[letter], float(n), START + timedelta(minutes=n))
        for n, letter in enumerate(letters)
        if letter in STATUS
    ]
    p = Pipeline("p")
    return p.sql(query, logins=p.read(iterables.Source(rows, schema=Login, event_time="at"))).collect().rows()


@pytest.mark.parametrize("rows", ["ONE ROW PER MATCH", "ALL ROWS PER MATCH"])
def test_measures_may_read_no_row(rows: str) -> None:
    query = f"""
    SELECT one, none, word, n FROM logins MATCH_RECOGNIZE (
        ORDER BY at MEASURES 1 AS one, CAST(NULL AS INT) AS none, 'f' || 'o' AS word, COUNT(*) AS n
        {rows} PATTERN (A B) DEFINE B AS B.status = 'ok'
    )"""
    expected = [(1, None, "fo", 1), (1, None, "fo", 2)]
    assert logins_by_sql("fxo", query) == (expected if rows.startswith("ALL") else expected[1:])


@pytest.mark.parametrize(
    ("clauses", "message"),
    [
        (
            "AFTER MATCH SKIP TO C PATTERN (A B C?) DEFINE C AS FALSE",
            "the search cannot go on at the last C of it: the match has no such row; write AFTER MATCH SKIP TO NEXT ROW",
        ),
        (
            "PATTERN (A B) DEFINE B AS SUM(CAST(amount AS BIGINT) + 9223372036854775806) > 0",
            r"a sum that does not fit into int64; add floats instead: .*, in SQL SUM\(CAST\(... AS DOUBLE\)\)",
        ),
        (
            "PATTERN (A B+ C) DEFINE B AS 3 / (CAST(FIRST(amount) AS BIGINT) - 1) < 9, C AS FALSE",  # at the end
            "the conditions failed on rows: division by zero",
        ),
    ],
)
def test_what_fails_in_the_search_names_the_operator(clauses: str, message: str) -> None:
    with pytest.raises(UserCodeError, match=rf"^match \(\w+-match\): .*{message}"):
        logins_by_sql("foxf", f"SELECT * FROM logins MATCH_RECOGNIZE (ORDER BY at MEASURES COUNT(*) AS n {clauses})")


def test_a_search_that_would_have_no_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may be A or B, and every sum is another one."""
    monkeypatch.setattr(regular, "MOST_THREADS", 100)
    query = """
    SELECT * FROM logins MATCH_RECOGNIZE (
        ORDER BY at MEASURES COUNT(*) AS n PATTERN ((A | B)+ C)
        DEFINE A AS SUM(POWER(2, A.amount)) < 1000000, B AS TRUE, C AS C.status = 'ok'
    )"""
    assert logins_by_sql("ffffffo", query) == [(7,)]
    with pytest.raises(
        UserCodeError, match=r"^match \(\w+-match\): more than 100 ways to go on .*; let them ask for less"
    ):
        logins_by_sql("fffffffffo", query)


def test_rows_that_were_kept_keep_what_they_fulfilled() -> None:
    """Also if conditions of other variables come and go."""
    query = """
    SELECT * FROM `rows` MATCH_RECOGNIZE (
        PARTITION BY key ORDER BY at MEASURES ARRAY_AGG(number) AS numbers PATTERN (A B C) DEFINE %s
    )"""
    harness = OperatorHarness(node_of_sql(query % "A AS A.value > 1"), max_parallelism=8)
    harness.frame(frame_of([("k", 1, 5, 1), ("k", 2, 0, 2)]))
    harness.watermark(2 * SECOND)
    later = node_of_sql(query % "B AS B.value < 9, C AS C.value = 3")
    harness = OperatorHarness(later, max_parallelism=8, restored=harness.freeze()())
    harness.frame(frame_of([("k", 3, 3, 3)]))
    harness.watermark(MAX_WATERMARK)
    assert [row[:2] for frame in harness.collected.frames for row in frame.iter_rows()] == [("k", [1, 2, 3])]


def test_conditions_of_rows_that_an_earlier_version_kept_are_computed() -> None:
    """It asked for the row right before row by row; what it kept says of all rows that they might fulfil these."""
    node = node_of_sql("""
    SELECT * FROM `rows` MATCH_RECOGNIZE (
        PARTITION BY key ORDER BY at MEASURES DOWN.number AS down, UP.number AS up PATTERN (A (DOWN | UP) OTHER)
        DEFINE DOWN AS DOWN.value < LAST(value, 1), UP AS UP.value > LAST(value, 1)
    )""")
    harness = OperatorHarness(node, max_parallelism=8)
    harness.frame(frame_of([("k", 1, 5, 1), ("k", 2, 6, 2), ("l", 3, 5, 1), ("l", 4, 4, 2), ("m", 5, 1, 1)]))
    harness.watermark(2 * SECOND)
    snapshot = harness.freeze()()

    def of_earlier_version(segment: bytes) -> bytes:
        header, rows = decode_segment(segment, "match")
        del header["right_before"]
        everything = pl.col("__search").list.eval(pl.when(pl.int_range(pl.len()) == 0).then(0).otherwise(31))
        return encode_segment(header, rows.with_columns(everything))

    kept = replace(snapshot, keyed=[(group, of_earlier_version(segment)) for group, segment in snapshot.keyed])
    harness = OperatorHarness(node, max_parallelism=8, restored=kept)
    harness.frame(frame_of([(key, 6, 0, 3) for key in "klm"]))
    harness.watermark(MAX_WATERMARK)
    seen = {row[:3] for frame in harness.collected.frames for row in frame.iter_rows()}
    assert seen == {("k", None, 2), ("l", 4, None)}
