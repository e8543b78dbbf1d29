"""`python -m benchmarks.spark_shape [CASE ...] [--rows N] [--runs N]`: what it is worth to read less, in packs, in parts.

`small`: a window over 1,000 small Parquet files on Spark, as it is, with a task per file (as it was), and as the query
that one would write for Spark alone. `large`: the same over one large file, Parquet and JSON lines, in parts, as a whole
(as it was), and of Parquet as the query. `reading`: a wide Parquet file read by the source alone, whole and narrowed to
two columns, or to a tenth of its row groups. All by default. CPU-seconds are those of all processes.
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
from penstock.connectors.base import EndOfSplit, ReadContext, ScanRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES: Final = 1_000
_TICKS: Final = 100


def main() -> None:
    """Print every run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_shape", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"which: {', '.join(_CASES)}; all by default")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.cases if name not in _CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(_CASES)}")
    print(f"load {machine()['load']:.1f}")
    for name in arguments.cases or _CASES:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            _CASES[name](Path(folder), arguments.rows, arguments.runs)


def _measured(name: str, work: Callable[[], Any]) -> None:
    started, before = time.perf_counter(), processes()
    work()
    took = time.perf_counter() - started
    print(f"  {name:<24} {took:7.2f} s {cpu_ticks(before, processes()) / _TICKS:7.2f} CPU-s", flush=True)


def _reading(place: Path, rows: int, runs: int) -> None:
    import polars as pl

    from penstock.connectors import nexmark

    content = nexmark.bids(columns=("auction", "price", "at"), keys=KEYS, interval=INTERVAL)
    import numpy as np

    frame = content.frame(np.arange(rows, dtype=np.int64), 42)
    texts = [
        pl.format(f"{name} {{}} of {{}}", "auction", "price").alias(name)
        for name in ("url", "channel", "extra", "note")
    ]
    path = place / "wide.parquet"
    frame.with_columns(texts).write_parquet(path, row_group_size=max(1, rows // 20))
    source, least = files.Source(path, event_time="at"), frame["at"][rows * 9 // 10]
    ways = {
        "whole": source,
        "two of seven columns": source.narrowed(ScanRequest(columns=frozenset({"auction", "at"}))),
        "a tenth of the groups": source.narrowed(ScanRequest(predicate=col("at") >= least)),
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


def _session() -> SparkSession:
    from penstock.spark.session import SparkSettings, open_session

    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": str(CORES)}
    return open_session("benchmark", SparkSettings(master=f"local[{CORES}]", conf=conf))


def _small(place: Path, rows: int, runs: int) -> None:
    import numpy as np

    from penstock.connectors import nexmark

    content = nexmark.bids(columns=("auction", "price", "at"), keys=KEYS, interval=INTERVAL)
    given = place / "bids"
    given.mkdir()
    for number, part in enumerate(np.array_split(np.arange(rows, dtype=np.int64), FILES)):
        content.frame(part, 42).write_parquet(given / f"bids-{number:04}.parquet")
    spark = _session()
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


def _large(place: Path, rows: int, runs: int) -> None:
    import numpy as np

    from penstock.connectors import nexmark

    frame = nexmark.bids(columns=("auction", "price", "at"), keys=KEYS, interval=INTERVAL).frame(
        np.arange(rows, dtype=np.int64), 42
    )
    (place / "parquet").mkdir()
    frame.write_parquet(place / "parquet" / "bids.parquet", row_group_size=max(1, rows // 20))
    (place / "jsonl").mkdir()
    frame.with_columns(frame["at"].dt.to_string("iso")).write_ndjson(place / "jsonl" / "bids.jsonl")
    spark = _session()
    for run in range(runs):
        for kind in ("parquet", "jsonl"):
            (out := place / f"out-{kind}-{run}").mkdir()
            _in_parts(spark, place / kind, out, turned=run % 2 == 1)
    spark.stop()


def _in_parts(spark: SparkSession, given: Path, out: Path, *, turned: bool) -> None:
    (file,) = given.iterdir()
    print(f"one file, {file.name}, {file.stat().st_size >> 20} MiB, on Spark, load {machine()['load']:.1f}")
    sizes = {"in parts": "128m", "as a whole": "1t"}
    for name, size in reversed(sizes.items()) if turned else sizes.items():
        spark.conf.set("spark.sql.files.maxPartitionBytes", size)
        spark.conf.set("spark.sql.files.openCostInBytes", "1t" if size == "1t" else "4m")
        _measured(name, lambda name=name: penstock_run(spark, "window", given, out / name, native=True))
    if file.suffix == ".parquet":
        _measured("query", lambda: spark_query(spark, "window", given, out / "query"))


_CASES: Final[dict[str, Callable[[Path, int, int], None]]] = {"reading": _reading, "small": _small, "large": _large}


if __name__ == "__main__":
    main()
