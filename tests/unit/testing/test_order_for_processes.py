"""Rows of a key in order of event time, for a function: what the page on time says of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from penstock import Context, KeyedProcess, Pipeline, row_number
from penstock.connectors import iterables

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Reading:
    sensor: int
    at: datetime


@dataclass
class Numbered:
    sensor: int
    at: datetime
    n: int


class AsDicts(KeyedProcess[Numbered, Numbered]):
    def on_row(self, row: Numbered, ctx: Context[Numbered]) -> None:
        assert row.at == ctx.timestamp
        ctx.emit({"sensor": row.sensor, "at": row.at, "n": row.n})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_behind_over_a_process_sees_rows_in_order_of_event_time(seed: int) -> None:
    """Whatever the order in which they came, within what the source waits for; a dict is a row that it sends."""
    rows = [Reading(number % 3, START + timedelta(seconds=number)) for number in range(60)]
    random.Random(seed).shuffle(rows)
    source = iterables.Source(rows, schema=Reading, event_time="at", max_out_of_orderness="1m")
    numbered = Pipeline("order").read(source).key_by("sensor").over().with_columns(n=row_number()).as_(Numbered)
    seen = numbered.key_by("sensor").process(AsDicts()).collect()
    for sensor in range(3):
        own = seen.filter(seen["sensor"] == sensor)
        assert own["at"].is_sorted()
        assert own["n"].to_list() == list(range(1, 21))
