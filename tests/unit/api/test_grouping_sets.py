"""Grouping sets of updates in windows of the rows' own time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from penstock import Pipeline, col, count, tumbling
from penstock.connectors import iterables


@dataclass
class Order:
    id: int
    town: str | None
    amount: int
    at: datetime


def at(minute: int) -> datetime:
    return datetime(2026, 1, 1, 12, minute, tzinfo=UTC)


def test_windows_of_updates_have_subtotals():
    """The newest row of order 1 is of another town than its first."""
    orders = [
        Order(1, "Bonn", 5, at(0)),
        Order(2, "Bonn", 7, at(1)),
        Order(3, None, 1, at(2)),
        Order(1, "Ulm", 6, at(3)),
        Order(4, "Ulm", 9, at(15)),
    ]
    p = Pipeline("subtotals")
    newest = p.read(iterables.Source(orders, schema=Order)).key_by("id").deduplicate("last")
    timed = newest.with_event_time("at", max_out_of_orderness="1h")
    subtotals = timed.rollup("town").window(tumbling("10m")).agg(orders=count(), amount=col("amount").sum())
    rows = subtotals.select("window_end", "grouping_id", "town", "orders", "amount").collect().rows()
    assert sorted((end.minute, *others) for end, *others in rows if others[0] == 1) == [
        (10, 1, None, 3, 14),
        (20, 1, None, 1, 9),
    ]
    assert {(end.minute, *others) for end, *others in rows if others[0] == 0} == {
        (10, 0, "Bonn", 1, 7),
        (10, 0, "Ulm", 1, 6),
        (10, 0, None, 1, 1),
        (20, 0, "Ulm", 1, 9),
    }
