"""`python -m benchmarks.steps_state [--keys N] [--touched N] [--steps N]`: what the steps of a job with much state cost.

Two jobs in steps on one Spark session with two tasks at a time: running aggregates, and a process function that numbers
the rows of a key. The first step brings every key, each further one rows of some keys drawn anew. A line tells of a step
the seconds, the CPU-seconds of this process and all that it started, and the bytes that it wrote for its savepoint beside
those of the whole: files that a step has in common with the one before were not written.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.spark import _TICKS, CORES, cpu_ticks, processes

PIPELINES = Path(__file__).with_name("steps_state_pipelines.py")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps_state", description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--touched", type=int, default=10_000, help="keys that have a row in a step")
    parser.add_argument("--steps", type=int, default=12, help="behind the one that brings all keys")
    parser.add_argument("--case", choices=("aggregates", "process"), action="append")
    arguments = parser.parse_args()
    from penstock.spark.session import SparkSettings, open_session

    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": str(CORES)}
    spark = open_session("benchmark", SparkSettings(master=f"local[{CORES}]", conf=conf))
    print(f"{arguments.keys:,} keys, {arguments.touched:,} touched by a step", flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for case in arguments.case or ("aggregates", "process"):
            _job(spark, Path(folder) / case, case, arguments)
    spark.stop()
    return 0


def _job(spark: Any, root: Path, case: str, arguments: argparse.Namespace) -> None:
    from penstock.adapters.system_clock import SystemClock
    from penstock.loading import load_pipeline
    from penstock.spark.code import pack_code
    from penstock.spark.continuous import ContinuousOptions, ContinuousRun

    given = {"case": case, "in": str(root / "in"), "out": str(root / "out")}
    pipeline, code = load_pipeline(str(PIPELINES), given), pack_code(str(PIPELINES), given)
    options = ContinuousOptions(1, root / "steps", parallelism=CORES)
    run = ContinuousRun(pipeline, code, options, SystemClock(), lambda: uuid.uuid4().hex, lambda: spark)
    rng, written = np.random.default_rng(1), set[int]()
    (root / "in").mkdir(parents=True)
    for number in range(arguments.steps + 1):
        keys = rng.permutation(arguments.keys)[: arguments.touched if number else None]
        at = pl.lit(number * 1_000_000).cast(pl.Datetime("us", "UTC"))
        pl.DataFrame({"key": keys, "value": keys % 100}).with_columns(at=at).write_parquet(
            root / "in" / f"{number:04}.parquet"
        )
        before, began, load = processes(), time.perf_counter(), os.getloadavg()[0]
        stop = run.run(_Once())
        seconds, cpu = time.perf_counter() - began, cpu_ticks(before, processes()) / _TICKS
        files = list((Path(stop.savepoint or "") / "objects").iterdir())
        new = sum(path.stat().st_size for path in files if path.stat().st_ino not in written)
        written = {path.stat().st_ino for path in files}
        whole = sum(path.stat().st_size for path in files)
        print(
            f"  {case} step {number}: {seconds:.2f} s, {cpu:.2f} CPU-s, {new / 1e6:.2f} MB of {whole / 1e6:.2f} MB "
            f"written, {len(files)} files, load {load:.1f}",
            flush=True,
        )


class _Once(threading.Event):
    """Asks for the end behind the first step."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


if __name__ == "__main__":
    sys.exit(main())
