"""The examples that need no server come to what plain Python comes to, with one subtask and with two.

Those of Nexmark have a file of their own, and those with Kafka are run as the README's commands.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from running_examples import EXAMPLES, example, rows_of, same

from penstock import Pipeline, col
from penstock.connectors import files, iterables
from penstock.embedded import EmbeddedSettings, run_pipeline
from penstock.loading import load_pipeline

Row = dict[str, Any]
Run = Callable[..., list[Row]]


@pytest.fixture(params=[1, 2], ids=["alone", "two subtasks"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs an example and gives what it has written."""
    return lambda name, **parameters: rows_of(EXAMPLES / name, tmp_path, request.param, **parameters)


def test_the_statements_of_departures_come_to_the_rows_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    written = load_pipeline(str(EXAMPLES / "departures.sql"), {"out": str(tmp_path / "sql")})
    run_pipeline(written, EmbeddedSettings(durable=False), directory=tmp_path / "state", resume=False)
    lines = [line for part in (tmp_path / "sql").glob("part-*") for line in part.read_text().splitlines()]
    same(map(json.loads, lines), rows_of(EXAMPLES / "departures.py", tmp_path / "python"))


def flights() -> list[Row]:
    """In the order in which they left."""
    return [json.loads(line) for line in (EXAMPLES / "data/flights.jsonl").read_text().splitlines()]


def by_origin() -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for flight in flights():
        found[flight["origin"]].append({**flight, "departed": datetime.fromisoformat(flight["departed"])})
    return found


# -- of files -----------------------------------------------------------------------------------------------------------


def test_word_count(run: Run) -> None:
    with (EXAMPLES / "data/airports.csv").open(newline="") as file:
        names = [row["name"] for row in csv.DictReader(file)]
    words = Counter(word for name in names for word in re.findall("[a-z]+", name.lower()))
    same(run("word_count.py"), [{"word": word, "times": times} for word, times in words.items()])


def test_sessions(run: Run) -> None:
    expected: list[Row] = []
    for origin, leaving in by_origin().items():
        for rush in _cut(leaving, timedelta(minutes=30)):
            worst = max(flight["delay_min"] for flight in rush)
            end = rush[-1]["departed"] + timedelta(minutes=30)
            row = {"origin": origin, "window_start": rush[0]["departed"], "window_end": end}
            expected += [{**row, "flights": len(rush), "worst_min": worst}] if len(rush) >= 3 else []
    assert len(expected) > 100
    same(run("sessions.py"), expected)


def _cut(flights: list[Row], gap: timedelta) -> Iterator[list[Row]]:
    rush: list[Row] = []
    for flight in flights:
        if rush and flight["departed"] - rush[-1]["departed"] > gap:
            yield rush
            rush = []
        rush.append(flight)
    yield rush


def test_top_n(run: Run) -> None:
    expected: list[Row] = []
    for leaving in by_origin().values():
        latest = sorted(leaving, key=lambda flight: -flight["delay_min"])[
            :3
        ]  # stable: the first of equal ones is better
        for rank, flight in enumerate(latest, start=1):
            columns = {name: flight[name] for name in ("origin", "scheduled", "delay_min", "destination")}
            expected.append({**columns, "rank": rank})
    same(run("top_n.py"), expected)


def test_top_n_per_day(run: Run) -> None:
    expected: list[Row] = []
    for leaving in by_origin().values():
        days: dict[datetime, list[Row]] = defaultdict(list)
        for flight in leaving:
            days[flight["departed"].replace(hour=0, minute=0, second=0)].append(flight)
        for day, flights_of_day in days.items():
            latest = sorted(flights_of_day, key=lambda flight: (-flight["delay_min"], flight["departed"]))
            window = {"window_start": _text(day), "window_end": _text(day + timedelta(days=1))}
            for rank, flight in enumerate(latest[:3], start=1):
                columns = {name: flight[name] for name in ("origin", "delay_min", "destination")}
                expected.append({**columns, **window, "rank": rank, "departed": _text(flight["departed"])})
    assert len(expected) > 1_000
    same(run("top_n_per_day.py"), expected)


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def test_moving_average(run: Run) -> None:
    expected: dict[str, list[tuple[float, float, int]]] = {}
    for origin, leaving in by_origin().items():
        expected[origin] = []
        for index, flight in enumerate(leaving):
            ten = [other["delay_min"] for other in leaving[max(0, index - 9) : index + 1]]
            since, until = flight["departed"] - timedelta(hours=1), flight["departed"]
            hour = [other["delay_min"] for other in leaving if since <= other["departed"] <= until]
            expected[origin].append((sum(ten) / len(ten), sum(hour) / len(hour), len(hour)))
    found: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for row in run("moving_average.py"):
        found[row["origin"]].append((row["of_ten"], row["of_hour"], row["in_hour"]))
    assert found == expected


# -- of made-up rows ----------------------------------------------------------------------------------------------------


def test_deduplication(run: Run) -> None:
    made = example(EXAMPLES / "deduplication.py").deliveries(np.arange(10_000))
    expected: dict[int, int] = {}
    for order, delivery in zip(made["order"].tolist(), made["delivery"].tolist(), strict=True):
        expected.setdefault(order, delivery)
    assert 7_000 < len(expected) < 9_500
    same(run("deduplication.py"), [{"order": order, "delivery": number} for order, number in expected.items()])


def test_unpaid_orders(run: Run, tmp_path: Path) -> None:
    """Of 3,000 orders: those with a payment within half an hour, and the large ones without."""
    made, rows = example(EXAMPLES / "unpaid_orders.py"), 3_000
    orders = list(made.orders(np.arange(rows)).iter_rows(named=True))
    payments = {row["order"]: row["paid_at"] for row in made.payments(np.arange(rows // 3)).iter_rows(named=True)}
    after = {row["id"]: payments[row["id"]] - row["at"] for row in orders if row["id"] in payments}
    paid = {order: late for order, late in after.items() if late <= timedelta(minutes=30)}
    expected = [
        {"id": row["id"], "euros": row["euros"], "minutes": paid[row["id"]] // timedelta(minutes=1)}
        for row in orders
        if row["id"] in paid
    ]
    assert 600 < len(expected) < 900
    same(run("unpaid_orders.py", rows=rows, unpaid=tmp_path / "unpaid"), expected)
    unpaid = [
        json.loads(line) for part in (tmp_path / "unpaid").glob("part-*") for line in part.read_text().splitlines()
    ]
    same(unpaid, [row for row in orders if row["id"] not in paid and row["euros"] > 1_000])


def test_fraud(run: Run) -> None:
    last: dict[int, Row] = {}
    expected: list[Row] = []
    for payment in example(EXAMPLES / "fraud.py").payments(np.arange(20_000)).iter_rows(named=True):
        before = last.get(payment["account"])
        small_then_large = before and before["euros"] < 1 and payment["euros"] > 500
        if before and small_then_large and payment["at"] - before["at"] < timedelta(minutes=1):
            expected.append({**payment, "tried": before["at"]})
        last[payment["account"]] = payment
    assert len(expected) > 50
    same(run("fraud.py"), expected)


def test_funnel(run: Run) -> None:
    visits: dict[int, list[Row]] = defaultdict(list)
    for click in example(EXAMPLES / "funnel.py").clicks(np.arange(20_000)).iter_rows(named=True):
        visits[click["visitor"]].append(click)
    reached = Counter(steps for clicks in visits.values() for steps in _attempts(clicks))
    assert set(reached) == {1, 2, 3}
    same(run("funnel.py"), [{"steps": steps, "attempts": attempts} for steps, attempts in reached.items()])


def _attempts(clicks: list[Row]) -> Iterator[int]:
    while clicks:
        begin = next((index for index, click in enumerate(clicks) if click["step"] == "look"), None)
        if begin is None:
            return
        end = clicks[begin]["at"] + timedelta(minutes=10)
        clicks, steps = clicks[begin + 1 :], 1
        while clicks and clicks[0]["at"] < end and steps < 3:
            steps += clicks[0]["step"] == ("look", "basket", "buy")[steps]
            clicks = clicks[1:]
        yield steps


# -- of an archive ------------------------------------------------------------------------------------------------------


def test_the_daily_table_of_orders(tmp_path: Path) -> None:
    """`orders_daily.py` over what `orders_archive.py` would have kept: windows of the day's orders and of no others."""
    feed = example(EXAMPLES / "orders_feed.py")
    orders = feed.orders(np.arange(4_000)).with_columns(at=pl.col("at") + timedelta(hours=23, minutes=59, seconds=59))
    archive = Pipeline("archive")
    kept = archive.read(iterables.Source(orders.to_dicts(), schema=feed.Order)).with_columns(day=col("at").dt.date())
    kept.write(files.Sink(tmp_path / "archive", format="parquet", partition_by=["day"]))
    assert archive.run(directory=tmp_path / "state").state == "FINISHED"
    for day in ("2026-01-01", "2026-01-02"):
        rows_of(EXAMPLES / "orders_daily.py", tmp_path / day, 2, archive=tmp_path / "archive", day=day)
        found = pl.read_parquet(tmp_path / day / "out" / f"day={day}" / "part-*")
        of_day = orders.filter(pl.col("at").dt.date() == pl.lit(day).str.to_date())
        assert 0 < of_day.height < orders.height
        wanted = of_day.group_by("customer", window_start=pl.col("at").dt.truncate("10s")).agg(
            orders=pl.len().cast(pl.Int64), euros=pl.col("euros").sum().round(2)
        )
        got = found.with_columns(pl.col("euros").round(2)).select(wanted.columns)
        assert sorted(got.rows()) == sorted(wanted.rows())
