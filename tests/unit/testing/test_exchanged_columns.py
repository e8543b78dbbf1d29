"""What an operator looks at crosses the exchange before it, and what comes out does not depend on there being one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated

import pytest

from penstock import DecimalType, Pipeline, col, count, session, tumbling
from penstock.connectors import files, iterables
from penstock.testing import run_pipeline

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Visit:
    at: datetime
    key: int
    patience: timedelta
    paid: Annotated[Decimal, DecimalType(12, 2)]


VISITS = [
    Visit(START + timedelta(seconds=n * n % 40), n % 3, timedelta(seconds=1 + n % 4), Decimal(n) / 4) for n in range(40)
]


@pytest.mark.parametrize("lateness", [None, "8s"])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_the_gap_of_a_session_crosses(parallelism, lateness):
    """Though no aggregate looks at it."""
    p = Pipeline("gaps")
    read = p.read(iterables.Source(VISITS, event_time="at", max_out_of_orderness="1h"))
    sessions = read.key_by("key").window(session(col("patience")))
    windows = sessions if lateness is None else sessions.allowed_lateness(lateness)
    windows.agg(n=count(), paid=col("paid").sum()).write(files.Sink("never-written"))
    found = run_pipeline(p, VISITS, parallelism=parallelism)
    assert sum(row["n"] for row in found) == len(VISITS)
    assert sum(row["paid"] for row in found) == sum(visit.paid for visit in VISITS)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_the_best_rows_by_a_decimal(parallelism):
    """Of each key and window."""
    p = Pipeline("best")
    read = p.read(iterables.Source(VISITS, event_time="at", max_out_of_orderness="1h"))
    best = read.key_by("key").window(tumbling("1h")).top(2, by="paid")
    best.write(files.Sink("never-written"))
    found = run_pipeline(p, VISITS, parallelism=parallelism)
    expected = {key: sorted((v.paid for v in VISITS if v.key == key), reverse=True)[:2] for key in range(3)}
    assert {key: [row["paid"] for row in found if row["key"] == key] for key in range(3)} == expected


@dataclass
class Gift:
    at: datetime
    key: int
    given: Annotated[Decimal, DecimalType(12, 2)] | None


@pytest.mark.parametrize("batch", [1, 100])
def test_empty_lists_of_decimals_cross(batch):
    """Also such as are cut out of others."""
    gifts = [Gift(START + timedelta(seconds=10 * n), 1, Decimal(n) if n < 9 else None) for n in range(10)]
    p = Pipeline("gifts")
    sessions = p.read(iterables.Source(gifts, event_time="at")).key_by("key").window(session("3s"))
    each = sessions.agg(given=col("given").collect_distinct()).key_by("window_start").deduplicate("first")
    each.write(files.Sink("never-written"))
    found = run_pipeline(p, gifts, parallelism=2, batch=batch)
    assert sorted(row["given"] for row in found) == [[], *([Decimal(n)] for n in range(9))]
