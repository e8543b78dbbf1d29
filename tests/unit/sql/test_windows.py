"""Windows of SQL whose results are final: rows that are never replaced, whatever their bounds are called."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock import Pipeline
from penstock.api.stream import Stream
from penstock.connectors import iterables

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
