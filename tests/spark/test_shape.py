"""How work is cut on Spark: small files share tasks, folders that a filter leaves out are not read."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from penstock import Pipeline, col, count, session
from penstock.connectors import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Order:
    shop: str
    euros: int
    at: datetime
    day: date


START = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days of ten small files each, rows out of order among files."""
    root = tmp_path_factory.mktemp("orders")
    chance = random.Random(7)
    for day in range(3):
        folder = root / f"day=2026-03-0{day + 1}"
        folder.mkdir()
        for number in range(10):
            times = sorted(START + timedelta(days=day, seconds=chance.randrange(600)) for _ in range(20))
            rows = {"shop": [f"s{chance.randrange(4)}" for _ in times], "euros": list(range(20)), "at": times}
            frame = pl.DataFrame(rows, schema_overrides={"at": pl.Datetime("us", "UTC")})
            frame.write_parquet(folder / f"{number}.parquet")
    return root


def pipeline(given: Path, out: Path, first: date) -> Pipeline:
    made = Pipeline("shape")
    orders = made.read(files.Source(given, schema=Order, event_time="at", max_out_of_orderness="1h"))
    sessions = orders.filter(col("day") >= first).key_by("shop").window(session("5s"))
    sessions.agg(n=count(), euros=col("euros").sum()).write(files.Sink(out, format="parquet"))
    return made


def written(out: Path) -> list[Any]:
    parts = sorted(out.glob("part-*"))
    return sorted(pl.concat(map(pl.read_parquet, parts)).rows()) if parts else []


@pytest.mark.parametrize("first", [date(2026, 1, 1), date(2026, 3, 2), date(2027, 1, 1)], ids=str)
def test_rows_are_those_of_the_embedded_run(
    first: date, given: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all folders, some of them, and none."""
    monkeypatch.chdir(tmp_path)
    pipeline(given, tmp_path / "embedded", first).run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = pipeline(given, tmp_path / "spark", first).run(engine="spark", spark=spark)
    expected = written(tmp_path / "embedded")
    assert written(tmp_path / "spark") == expected
    assert bool(expected) == (first.year < 2027)
    read = result.counts.get("n0-read", {}).get("rows_in", 0)
    assert read == {date(2026, 1, 1): 600, date(2026, 3, 2): 400, date(2027, 1, 1): 0}[first]
