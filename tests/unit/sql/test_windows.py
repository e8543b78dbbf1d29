"""Windows of SQL whose results are final: rows that are never replaced, whatever their bounds are called."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from penstock import Pipeline
from penstock.api.stream import Stream
from penstock.connectors import iterables
from penstock.plan.operations.event_time import AssignEventTime
from penstock.plan.operations.join import Join

START = datetime(2026, 1, 1, tzinfo=UTC)

HOTTEST = """
SELECT bids.auction, bids.num, bids.starts
FROM (
    SELECT auction, COUNT(*) AS num, window_start AS starts, window_end AS ends
    FROM HOP(TABLE bid, DESCRIPTOR(at), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
    GROUP BY auction, window_start, window_end
) AS bids
JOIN (
    SELECT MAX(counts.num) AS most, counts.starts, counts.ends
    FROM (
        SELECT COUNT(*) AS num, window_start AS starts, window_end AS ends
        FROM HOP(TABLE bid, DESCRIPTOR(at), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
        GROUP BY auction, window_start, window_end
    ) AS counts
    GROUP BY counts.starts, counts.ends
) AS greatest
ON bids.starts = greatest.starts AND bids.ends = greatest.ends AND bids.num >= greatest.most
"""
"""Nexmark's query 5: windows of results of windows, joined with those, under other names."""


@dataclass
class Bid:
    auction: int
    at: datetime


def test_results_of_windows_are_grouped_and_joined_by_these_and_are_final() -> None:
    rows = [Bid(number * 7 % 5 % 3, START + timedelta(milliseconds=700 * number)) for number in range(60)]
    pipeline = Pipeline("hottest")
    found = pipeline.sql(HOTTEST, bid=pipeline.read(iterables.Source(rows, event_time="at")))
    assert isinstance(found, Stream)
    counts: Counter[tuple[datetime, int]] = Counter()
    for row in rows:
        last = row.at.replace(microsecond=0, second=row.at.second // 2 * 2)
        counts.update((last - timedelta(seconds=2 * back), row.auction) for back in range(5))
    most = {start: max(n for (other, _), n in counts.items() if other == start) for start, _ in counts}
    expected = {(auction, n, start) for (start, auction), n in counts.items() if n == most[start]}
    assert sorted(found.collect().rows()) == sorted(expected)


def test_the_best_results_of_windows_are_final() -> None:
    """By one column that is never null: they are known when the window ends."""
    rows = [Bid(number * 7 % 11 % 4, START + timedelta(milliseconds=700 * number)) for number in range(60)]
    pipeline = Pipeline("best")
    found = pipeline.sql(
        """
        SELECT auction, num, starts, place FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY starts, ends ORDER BY num DESC) AS place FROM (
                SELECT auction, COUNT(*) * 10 + auction AS num, window_start AS starts, window_end AS ends
                FROM CUMULATE(TABLE bid, DESCRIPTOR(at), INTERVAL '5' SECOND, INTERVAL '20' SECOND)
                GROUP BY auction, window_start, window_end
            )
        ) WHERE place <= 2
        """,
        bid=pipeline.read(iterables.Source(rows, event_time="at")),
    )
    assert isinstance(found, Stream)
    counts: Counter[tuple[datetime, int, int]] = Counter()
    for row in rows:
        start = row.at.replace(microsecond=0, second=row.at.second // 20 * 20)
        passed = (row.at - start) // timedelta(seconds=5)
        counts.update((start, step, row.auction) for step in range(passed, 4))
    expected: list[tuple[int, int, datetime, int]] = []
    for window in {(start, step) for start, step, _ in counts}:
        ranked = sorted(
            ((n * 10 + key, key) for (*other, key), n in counts.items() if (*other,) == window), reverse=True
        )
        expected += [(key, num, window[0], place) for place, (num, key) in enumerate(ranked[:2], 1)]
    assert sorted(found.collect().rows()) == sorted(expected)


def test_arguments_of_windowing_functions_may_have_names() -> None:
    """In any order, and in capitals or not."""
    rows = [Bid(1, START + timedelta(seconds=second)) for second in range(0, 60, 7)]

    def starts(function: str) -> list[tuple[datetime, datetime, int]]:
        pipeline = Pipeline("named")
        text = f"SELECT window_start, window_end, COUNT(*) FROM {function} GROUP BY window_start, window_end"
        return sorted(pipeline.sql(text, bid=pipeline.read(iterables.Source(rows, event_time="at"))).collect().rows())

    plain, named = "TABLE bid, DESCRIPTOR(at)", "TIMECOL => DESCRIPTOR(at), DATA => TABLE bid"
    ten, two, one = (f"INTERVAL '{seconds}' SECOND" for seconds in (10, 2, 1))
    assert starts(f"TUMBLE({plain}, {ten}, {two})") == starts(f"TUMBLE({named}, offset => {two}, size => {ten})")
    assert starts(f"TUMBLE({plain}, {ten})") == starts(f"TUMBLE(SIZE => {ten}, {named})")
    assert starts(f"HOP({plain}, {two}, {ten}, {one})") == starts(
        f"HOP({named}, SIZE => {ten}, OFFSET => {one}, SLIDE => {two})"
    )
    assert starts(f"CUMULATE({plain}, {two}, {ten})") == starts(f"CUMULATE({named}, SIZE => {ten}, STEP => {two})")
    assert starts(f"SESSION({plain}, {two})") == starts(f"SESSION({named}, GAP => {two})")
    assert starts(f"TUMBLE({plain}, {ten}, {two})") != starts(f"TUMBLE({plain}, {ten})")


def test_numbers_of_intervals_have_the_digits_that_the_text_says() -> None:
    """A precision that holds changes nothing."""
    pipeline = Pipeline("digits")
    rows = pipeline.read(iterables.Source([Bid(1, START)], event_time="at"))
    intervals = ("'100' DAY(3)", "'1 10' DAY(2) TO HOUR", "'1.5' SECOND(2, 3)")
    hours = (2400, 34, 1.5 / 3600)
    found = pipeline.sql(f"SELECT {', '.join(f'at + INTERVAL {each}' for each in intervals)} FROM bid", bid=rows)
    assert found.collect().rows() == [tuple(START + timedelta(hours=each) for each in hours)]


Row = dict[str, int]
"""The times of a row by their columns, in seconds, and `now`, its event time."""

JOINED = """
WITH pairs AS (SELECT a.at AS a, b.at AS b FROM bid AS a JOIN bid AS b
    ON b.at BETWEEN a.at - INTERVAL '2' SECOND AND a.at + INTERVAL '3' SECOND),
threes AS (SELECT a, b, c.at AS c FROM {join} ON c.at BETWEEN {first} - INTERVAL '1' SECOND AND {first}),
again AS (SELECT a, b, c, COUNT(*) OVER (ORDER BY {second}) AS n FROM threes)
SELECT COUNT(*) AS n FROM TUMBLE(TABLE again, DESCRIPTOR({last}), INTERVAL '1' SECOND) GROUP BY window_end
"""
"""Rows that met in time, and with a third one by one of their times; each again by another of their times."""


@pytest.mark.parametrize("second", ["a", "b", "c"])
@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("join", ["pairs JOIN bid AS c", "bid AS c JOIN pairs"])
def test_no_time_behind_joins_in_time_is_before_the_watermark_that_is_held_back(
    join: str, first: str, second: str
) -> None:
    """By all rows that there may be: the watermark is just before the event time of a row at most, when it is emitted."""
    for last in ("a", "b", "c"):
        pipeline = Pipeline("times")
        query = JOINED.format(join=join, first=first, second=second, last=last)
        pipeline.sql(query, bid=pipeline.read(iterables.Source([], schema=Bid, event_time="at")))
        rows = [{"a": a, "b": b} for a, b in product(range(-6, 7), repeat=2) if -2 <= b - a <= 3]
        rows = [{**row, "now": max(row.values())} for row in rows]
        _, threes = (node for node in pipeline.plan if isinstance(node.operation, Join))
        for node in pipeline.plan:
            if node is threes:
                pairs = ({**row, "c": c} for row in rows for c in range(-9, 9) if -1 <= c - row[first] <= 0)
                rows = [{**row, "now": max(row["now"], row["c"])} for row in pairs]
            if isinstance(node.operation, AssignEventTime):
                rows = _moved(rows, node.operation)
        assert all(row["now"] == row[last] for row in rows)


def _moved(rows: list[Row], operation: AssignEventTime) -> list[Row]:
    time, delay = str(operation.event_time.form.name), operation.event_time.watermarks.lag_us // 1_000_000
    assert operation.delays_input
    moved = [{**row, "now": row[time]} for row in rows]
    assert all(row["now"] - after["now"] <= delay for row, after in zip(rows, moved, strict=True)), time
    return moved
