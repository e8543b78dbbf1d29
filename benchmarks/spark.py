"""`python -m benchmarks.spark [CASE ...] [--rows N] [--files N]`: pipelines on Spark, as queries, embedded, in DuckDB.

`replay` is every stage by the streaming operators, `native` what `penstock run` does where Spark's own plan computes a
window, `query` what one would write for Spark without Penstock.

All read the same Parquet files and write Parquet; what they write is compared row by row in DuckDB. Spark runs with two
tasks at a time, the embedded engine with two worker processes, DuckDB with two threads. The clock covers a run from
reading to the last file, not the start of the session. The time of the embedded engine has the start of its processes in
it. A process function has no counterpart in a query: the queries come to the same rows without it. Beside it stands what
PySpark has for a function of a key and its rows: `applyInPandas`, which holds all rows of a key.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.report import keep, machine

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

CORES: Final = 2
FILES: Final = 4
_RUNS: Final = 2
"""The second run counts: in the first one the JVM still compiles."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
KEYS: Final = 10_000
INTERVAL: Final = "100us"
"""Between two events: 100,000 in a window of ten seconds, ten for each key."""
QUERY: Final = "query"
"""The one written for Spark alone: what the others are compared with."""
PIPELINES: Final = Path(__file__).with_name("spark_pipelines.py")

_AGGREGATES: Final = "count(*) AS bids, sum(price)::BIGINT AS total, max(price) AS highest"
_WINDOW: Final = f"""
        SELECT auction, time_bucket(INTERVAL '10 seconds', "at") AS window_start,
               window_start + INTERVAL '10 seconds' AS window_end, {_AGGREGATES} FROM bids GROUP BY ALL"""
CASES: Final = {
    "window": _WINDOW,
    "patient": _WINDOW,
    "chain": """SELECT auction, price * 2 AS doubled, "at" FROM bids WHERE price % 10 < 9""",
    "session": f"""
        SELECT auction, min("at") AS window_start, max("at") + INTERVAL '3 seconds' AS window_end, {_AGGREGATES} FROM (
            SELECT *, sum(is_new) OVER (PARTITION BY auction ORDER BY "at") AS number FROM (
                SELECT *, coalesce("at" - lag("at") OVER (PARTITION BY auction ORDER BY "at")
                                   > INTERVAL '3 seconds', FALSE)::INT AS is_new FROM bids))
        GROUP BY auction, number""",
    "process": "SELECT auction, sum(price)::BIGINT AS total FROM bids GROUP BY auction",
}
"""What comes out, as DuckDB says it. `patient` is the window with a minute of allowed lateness; `chain` has no key."""


def main() -> int:
    """Run what was asked for; 1 if results differ."""
    arguments = _arguments()
    if arguments.if_there and shutil.which("java") is None:
        print("benchmarks.spark: there is no java here, nothing was measured")
        return 0
    before = machine()
    print(f"{before['time']}  {before['processor']}, {CORES} of {before['cores']} cores, load {before['load']:.1f}")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.folder) as folder:
        place = Path(folder)
        _write_bids(place / "bids", arguments.rows, arguments.files)
        results = _measure(place, arguments.cases or list(CASES), arguments.rows)
    print(f"\nkept in {keep(results, None, {'cores': CORES, 'before': before})}")
    return 0 if all(result["equal"] for result in results) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"which: {', '.join(CASES)}; all by default")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--files", type=int, default=FILES, help="how many files the rows are in")
    parser.add_argument("--folder", help="where temporary files go")
    parser.add_argument("--if-there", action="store_true", help="do nothing where there is no Java")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.cases if name not in CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]!r}; there are {', '.join(CASES)}")
    return arguments


def _write_bids(folder: Path, rows: int, files: int) -> None:
    """Bids in order of event time; by default in as many files as there are splits to read at a time, twice."""
    import numpy as np

    from penstock.connectors import nexmark

    content = nexmark.bids(columns=("auction", "price", "at"), keys=KEYS, interval=INTERVAL)
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(rows, dtype=np.int64), files)):
        content.frame(part, 42).write_parquet(folder / f"bids-{number}.parquet")


def _measure(place: Path, cases: list[str], rows: int) -> list[dict[str, Any]]:
    import duckdb

    from penstock.spark.session import SparkSettings, open_session

    warnings.simplefilter("ignore")  # PySpark's imports warn
    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": str(CORES)}
    spark = open_session("benchmark", SparkSettings(master=f"local[{CORES}]", conf=conf))
    with duckdb.connect(config={"threads": CORES}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        systems: dict[str, Callable[[str, Path, Path], None]] = {
            "replay": lambda case, given, out: penstock_run(spark, case, given, out, native=False),
            "native": lambda case, given, out: penstock_run(spark, case, given, out, native=True),
            QUERY: lambda case, given, out: spark_query(spark, case, given, out),
            "embedded": _embedded,
            "duckdb": lambda case, given, out: _duckdb(connection, case, given, out),
        }
        functions = {"applyInPandas": lambda _, given, out: grouped_query(spark, given, out)}
        results = [
            _case(connection, place, case, rows, systems | (functions if case == "process" else {})) for case in cases
        ]
    spark.stop()
    return results


def _case(
    connection: duckdb.DuckDBPyConnection,
    place: Path,
    case: str,
    rows: int,
    systems: dict[str, Callable[[str, Path, Path], None]],
) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    cpu_seconds: dict[str, float] = {}
    if not _goes_native(case, place):
        systems = {name: run for name, run in systems.items() if name != "native"}
    for name, run in systems.items():
        for _ in range(_RUNS):
            shutil.rmtree(place / "out" / case / name, ignore_errors=True)
            started, before = time.perf_counter(), processes()
            run(case, place / "bids", place / "out" / case / name)
            seconds[name] = time.perf_counter() - started
            cpu_seconds[name] = cpu_ticks(before, processes()) / _TICKS
    equal = _equal(connection, place / "out" / case, list(systems))
    print(f"\n{case}, {rows:,} rows; outputs {'equal' if equal else 'NOT EQUAL'}")
    print(f"  {'':<13} {'seconds':>8} {'rows/s':>12} {'CPU-s':>8} {'CPU-s, query = 1':>18}")
    for name, took in seconds.items():
        worked = cpu_seconds[name]
        share = worked / cpu_seconds[QUERY]
        print(f"  {name:<13} {took:8.2f} {rows / took:12,.0f} {worked:8.2f} {share:18.2f}")
    shutil.rmtree(place / "out" / case)
    return {"name": case, "rows": rows, "seconds": seconds, "cpu_seconds": cpu_seconds, "equal": equal}


def cpu_ticks(before: dict[int, int], after: dict[int, int]) -> int:
    """What was worked between two looks at `processes`."""
    return sum(ticks - before.get(pid, 0) for pid, ticks in after.items())


def processes() -> dict[int, int]:
    """Clock ticks that this process and all that it started have worked: the JVM, Spark's Python workers, ours.

    What has ended counts to the process that waited for it.
    """
    found: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = int(fields[1]), sum(int(ticks) for ticks in fields[11:15])
    ours, waiting = dict[int, int](), [os.getpid()]
    while waiting:
        process = waiting.pop()
        ours[process] = found[process][1]
        waiting += [child for child, (parent, _) in found.items() if parent == process]
    return ours


def _parameters(case: str, given: Path, out: Path) -> dict[str, str]:
    return {"case": case, "input": str(given), "out": str(out)}


def _goes_native(case: str, place: Path) -> bool:
    """Whether Spark's own plan computes something of a pipeline."""
    from penstock.loading import load_pipeline
    from penstock.spark.engine import batch_graph
    from penstock.spark.native import native_windows, ways

    plan = load_pipeline(str(PIPELINES), _parameters(case, place / "bids", place / "out")).plan
    return bool(native_windows(ways(batch_graph(plan, CORES), plan, native=True)))


def penstock_run(spark: SparkSession, case: str, given: Path, out: Path, *, native: bool) -> None:
    """A case as Penstock runs it."""
    from penstock.adapters.system_clock import SystemClock
    from penstock.loading import load_pipeline
    from penstock.spark.code import pack_code
    from penstock.spark.engine import RunOptions, SparkRun

    parameters = _parameters(case, given, out)
    pipeline = load_pipeline(str(PIPELINES), parameters)
    folder, options = out.parent / "runs", RunOptions(native=native)
    SparkRun(
        spark, pipeline, pack_code(str(PIPELINES), parameters), run=uuid.uuid4().hex, clock=SystemClock(),
        parallelism=CORES, folder=folder, options=options,
    ).execute()  # fmt: skip


def spark_query(spark: SparkSession, case: str, given: Path, out: Path) -> None:
    """The query that one would write for Spark alone."""
    from pyspark.sql import functions

    bids = spark.read.parquet(str(given))
    price = functions.col("price")
    totals = [
        functions.count("*").alias("bids"),
        functions.sum(price).alias("total"),
        functions.max(price).alias("highest"),
    ]
    if case == "process":
        result: DataFrame = bids.groupBy("auction").agg(totals[1])
    elif case == "chain":
        result = bids.where(price % 10 < 9).select("auction", (price * 2).alias("doubled"), "at")
    else:
        window = (
            functions.session_window("at", "3 seconds") if case == "session" else functions.window("at", "10 seconds")
        )
        grouped = bids.groupBy("auction", window.alias("w")).agg(*totals)
        bounds = [functions.col("w.start").alias("window_start"), functions.col("w.end").alias("window_end")]
        result = grouped.select("auction", *bounds, "bids", "total", "highest")
    result.write.parquet(str(out))


def grouped_query(spark: SparkSession, given: Path, out: Path) -> None:
    """The process function, row by row, by what PySpark has for functions of a key."""

    def totals(rows: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        so_far = 0
        for price in rows.sort_values("at")["price"]:
            so_far += price
        return pd.DataFrame({"auction": [rows["auction"].iloc[0]], "total": [so_far]})

    bids = spark.read.parquet(str(given)).groupBy("auction")
    bids.applyInPandas(totals, "auction long, total long").write.parquet(str(out))


def _embedded(case: str, given: Path, out: Path) -> None:
    from penstock.embedded import EmbeddedJob, EmbeddedSettings, PipelineFile
    from penstock.loading import load_pipeline

    parameters = _parameters(case, given, out)
    pipeline = load_pipeline(str(PIPELINES), parameters)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        file = PipelineFile(str(PIPELINES), parameters)
        result = asyncio.run(
            EmbeddedJob(pipeline, Path(folder), EmbeddedSettings(parallelism=CORES), file).run(resume=False)
        )
    if result.state != "FINISHED":
        raise SystemExit(f"{case}: {result.state}: {result.reason}")


def _duckdb(connection: duckdb.DuckDBPyConnection, case: str, given: Path, out: Path) -> None:
    out.mkdir(parents=True)
    connection.execute(f"""CREATE OR REPLACE VIEW bids AS
        SELECT auction, price, "at"::TIMESTAMP AS "at" FROM read_parquet('{given}/*.parquet')""")
    connection.execute(f"COPY ({CASES[case]}) TO '{out}/part-0.parquet' (FORMAT parquet)")


def _equal(connection: duckdb.DuckDBPyConnection, place: Path, names: list[str]) -> bool:
    """Whether all wrote the same rows, as multisets."""
    columns = [
        name for name, *_ in connection.execute(
            f"DESCRIBE SELECT * FROM read_parquet('{place / 'duckdb'}/*.parquet')"
        ).fetchall()
    ]  # fmt: skip
    listed = ", ".join(
        f'"{name}"::TIMESTAMP AS "{name}"' if name in ("at", "window_start", "window_end") else f'"{name}"::BIGINT'
        for name in columns
    )
    equal = True
    for name in names:
        ours, theirs = (f"SELECT {listed} FROM read_parquet('{place / n}/*.parquet')" for n in (name, "duckdb"))
        query = f"SELECT count(*) FROM (({ours} EXCEPT ALL {theirs}) UNION ALL ({theirs} EXCEPT ALL {ours}))"
        differing = connection.execute(query).fetchone()
        if differing is None or differing[0]:
            print(f"{name} and duckdb differ in {differing} rows", file=sys.stderr)
            equal = False
    return equal


if __name__ == "__main__":
    sys.exit(main())
