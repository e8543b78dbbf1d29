"""`python -m benchmarks.spark_shape [--rows N] [--runs N]`: what it is worth to read in packs, and less than everything.

`small`: a window over 1,000 small Parquet files on Spark, as it is, with a task per file (as it was), and as the query
that one would write for Spark alone. `columns` and `groups`: a wide Parquet file read by the source alone, whole and
narrowed to two columns, or to a tenth of its row groups. CPU-seconds are those of all processes.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from benchmarks.report import machine
from benchmarks.spark import CORES, INTERVAL, KEYS, cpu_ticks, penstock_run, processes, spark_query
from penstock import col
from penstock.connectors import files
from penstock.connectors.base import EndOfSplit, ReadContext, Wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES: Final = 1_000
_TICKS: Final = 100


def main() -> None:
    """Print every run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_shape", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print(f"load {machine()['load']:.1f}")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        _reading(Path(folder) / "wide.parquet", arguments.rows, arguments.runs)
        _small(Path(folder), arguments.rows, arguments.runs)


def _measured(name: str, work: Callable[[], Any]) -> None:
    started, before = time.perf_counter(), processes()
    work()
    took = time.perf_counter() - started
    print(f"  {name:<24} {took:7.2f} s {cpu_ticks(before, processes()) / _TICKS:7.2f} CPU-s", flush=True)


def _reading(path: Path, rows: int, runs: int) -> None:
    import polars as pl

    from penstock.connectors import nexmark

    content = nexmark.bids(columns=("auction", "price", "at"), keys=KEYS, interval=INTERVAL)
    import numpy as np

    frame = content.frame(np.arange(rows, dtype=np.int64), 42)
    texts = [
        pl.format(f"{name} {{}} of {{}}", "auction", "price").alias(name)
        for name in ("url", "channel", "extra", "note")
    ]
    frame.with_columns(texts).write_parquet(path, row_group_size=max(1, rows // 20))
    source, least = files.Source(path, event_time="at"), frame["at"][rows * 9 // 10]
    ways = {
        "whole": source,
        "two of seven columns": source.narrowed(Wanted(columns=frozenset({"auction", "at"}))),
        "a tenth of the groups": source.narrowed(Wanted(predicate=col("at") >= least)),
    }
    print(f"reading {rows:,} rows of seven columns")
    for _ in range(runs):
        for name, way in ways.items():
            _measured(name, lambda way=way: asyncio.run(_read(way)))


async def _read(source: files.Source[Any]) -> None:
    for split in source.discover():
        reader = source.open(split, None, ReadContext(lambda: 0, lambda: 0))
        try:
            while True:
                await reader.read(65_536)
        except EndOfSplit:
            await reader.close()


def _small(place: Path, rows: int, runs: int) -> None:
    import numpy as np

    from penstock.connectors import nexmark
    from penstock.spark.session import SparkSettings, open_session

    content = nexmark.bids(columns=("auction", "price", "at"), keys=KEYS, interval=INTERVAL)
    given = place / "bids"
    given.mkdir()
    for number, part in enumerate(np.array_split(np.arange(rows, dtype=np.int64), FILES)):
        content.frame(part, 42).write_parquet(given / f"bids-{number:04}.parquet")
    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": str(CORES)}
    spark = open_session("benchmark", SparkSettings(master=f"local[{CORES}]", conf=conf))
    print(f"{rows:,} rows in {FILES:,} files, on Spark")
    for run in range(runs):
        _ways(spark, given, place / f"out-{run}")
    spark.stop()


def _ways(spark: SparkSession, given: Path, out: Path) -> None:
    out.mkdir()
    alone = mock.patch(
        "penstock.spark.lowering.packs", lambda splits, *_: [range(n, n + 1) for n in range(len(splits))]
    )
    _measured("packed", lambda: penstock_run(spark, "window", given, out / "packed", native=True))
    with alone:
        _measured("a task per file", lambda: penstock_run(spark, "window", given, out / "alone", native=True))
    _measured("query", lambda: spark_query(spark, "window", given, out / "query"))


if __name__ == "__main__":
    main()
