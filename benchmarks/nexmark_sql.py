"""Nexmark in SQL, embedded, beside DuckDB and Flink SQL: `python -m benchmarks.nexmark_sql [QUERY ...] [--flink PYTHON]`.

The texts are those that the tests compare (`tests/integration/sql/nexmark.sql`). Each system runs each query in a process
of its own, on one core, from files of Parquet into a file. DuckDB does it in one batch, without checkpoints; Penstock and
Flink checkpoint every two seconds. Rows that are replaced on the way are written by Penstock when they are final, as
INSERT INTO a table of files does; Flink, whose files take no changes, sends them to `blackhole`. The results have to be
equal (of Flink: as many rows, where none is replaced).

`--flink` is a Python that has `apache-flink`, with the jars of `flink-sql-parquet`, `hadoop-client-api` and
`hadoop-client-runtime` in its `pyflink/lib`. A run of Flink is a whole process, with the start of the JVM, the planning
of the query and what the JIT compiler learns; the figures are those of all events less those of a run over a tenth of
them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.child import note_opening, peak_mib, touch_memory
from benchmarks.report import print_head

if TYPE_CHECKING:
    import polars as pl

ROOT: Final = Path(__file__).parent.parent
TEXTS: Final = ROOT / "tests" / "integration" / "sql" / "nexmark.sql"
QUERIES: Final = {
    "q0": ["bid"], "q1": ["bid"], "q2": ["bid"], "q3": ["auction", "person"], "q4": ["auction", "bid"], "q5": ["bid"],
    "q7": ["bid"], "q8": ["auction", "person"], "q9": ["auction", "bid"], "q15": ["bid"], "q18": ["bid"],
    "q20": ["auction", "bid"],
}  # fmt: skip
"""What is measured, with the tables that it reads."""
PER_ROUND: Final = {"person": 1, "auction": 3, "bid": 46}
"""Events of each kind among 50."""
APPENDED: Final = frozenset(["q0", "q1", "q2", "q3", "q5", "q7", "q8", "q20"])
"""Queries whose rows are never replaced."""
CALLED: Final = {"at": "dateTime", "item_name": "itemName", "initial_bid": "initialBid"}
BATCH: Final = 65_536


def texts() -> dict[str, tuple[str, str]]:
    """Each query, and what DuckDB is asked."""
    found: dict[str, tuple[str, str]] = {}
    for name, part in re.findall(r"^-- (q\d+): .*\n((?:(?!-- q).*\n?)*)", TEXTS.read_text(), re.MULTILINE):
        ours, _, theirs = part.partition("-- DuckDB\n")
        found[name] = (ours.strip().rstrip(";"), (theirs or ours).strip().rstrip(";"))
    return found


def prepare(folder: Path, events: int) -> None:
    """Write the events, 10,000 of them to a second of event time."""
    import numpy as np
    from pyarrow import parquet

    from penstock.connectors import nexmark

    for name, per_round in PER_ROUND.items():
        content = {"person": nexmark.people, "auction": nexmark.auctions, "bid": nexmark.bids}[name]()
        called = [CALLED.get(column, column) for column in content.schema.names]
        schema = content.schema.arrow()
        rows = events // 50 * per_round
        with parquet.ParquetWriter(
            folder / f"{name}.parquet", schema.empty_table().rename_columns(called).schema
        ) as file:
            for start in range(0, rows, BATCH):
                made = content.frame(np.arange(start, min(rows, start + BATCH), dtype=np.int64), 42)
                file.write_table(made.to_arrow().cast(schema).rename_columns(called))


def run_engine(name: str, folder: Path) -> dict[str, Any]:
    """The clock starts when the first source is opened and stops when the job has finished."""
    from penstock import Pipeline
    from penstock.api.update_streams import UpsertStream
    from penstock.connectors import files
    from penstock.embedded import EmbeddedJob, EmbeddedSettings
    from penstock.observability.logs import configure_logging

    configure_logging("text", "warning")
    pipeline = Pipeline(f"nexmark-{name}")
    sources = {
        table: files.Source(folder / f"{table}.parquet", event_time="dateTime", max_out_of_orderness="0s")
        for table in QUERIES[name]
    }
    opened = note_opening(list(sources.values()))
    found = pipeline.sql(texts()[name][0], **{table: pipeline.read(source) for table, source in sources.items()})
    replaced = isinstance(found, UpsertStream)
    final: Any = found.final() if isinstance(found, UpsertStream) else found
    final.write(files.Sink(folder / name / "penstock", format="parquet"))
    job = EmbeddedJob(pipeline, folder / name / "job", EmbeddedSettings(checkpoint_interval_ms=2_000))
    touch_memory()
    result = asyncio.run(job.run(resume=False))
    ended, cpu = time.perf_counter(), time.process_time()
    if result.state != "FINISHED":
        raise SystemExit(f"{name}: {result.state}: {result.reason}")
    return {
        "seconds": ended - opened[0][0],
        "cpu_seconds": cpu - opened[0][1],
        "peak_mib": peak_mib(),
        "state_mib": max([one.size_bytes for one in result.progress.completed_checkpoints], default=0) / 2**20,
        "replaced": replaced,
    }


def run_duckdb(name: str, folder: Path) -> dict[str, Any]:
    """With one thread."""
    import duckdb

    out = folder / name / "duckdb"
    out.mkdir(parents=True)
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("set timezone = 'UTC'")
    connection.execute(
        "create macro date_format(t, form) as strftime(t, case form when 'HH:mm' then '%H:%M' else '%Y-%m-%d' end)"
    )
    for table in PER_ROUND:
        connection.execute(f"create view {table} as from '{folder / table}.parquet'")
    touch_memory()
    began, cpu = time.perf_counter(), time.process_time()
    connection.execute(f"copy ({texts()[name][1]}) to '{out}/part-0.parquet'")
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mib": peak_mib(),
    }


def run_flink(name: str, folder: Path, python: str) -> dict[str, Any]:
    """What all events cost beyond the tenth of them in the folder `tenth`, per event of the whole."""
    whole, tenth = (_flink_process(name, place, python) for place in (folder, folder / "tenth"))
    return {**whole, **{key: (whole[key] - tenth[key]) / 0.9 for key in ("seconds", "cpu_seconds")}}


def _flink_process(name: str, folder: Path, python: str) -> dict[str, Any]:
    """The figures of a whole process."""
    import psutil

    asked, out = folder / f"{name}-flink.json", folder / name / "flink"
    asked.write_text(json.dumps(_for_flink(name, folder, out)))
    began, cpu, peak, state = time.perf_counter(), dict[int, float](), 0, 0
    command = [python, str(Path(__file__).with_name("nexmark_flink.py")), str(asked)]
    with (folder / f"{name}-flink.log").open("w+") as log:
        process = psutil.Popen(command, stdout=log, stderr=log)
        while process.poll() is None:
            resident = 0
            with suppress(psutil.NoSuchProcess):
                for one in [process, *process.children(recursive=True)]:
                    times = one.cpu_times()
                    cpu[one.pid] = times.user + times.system
                    resident += one.memory_info().rss
            peak = max(peak, resident)
            state = max([state, *(_size(at.parent) for at in (out / "checkpoints").glob("*/chk-*/_metadata"))])
            time.sleep(0.05)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{name}, flink: failed:\n{log.read()[-3_000:]}")
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": sum(cpu.values()),
        "peak_mib": peak >> 20,
        "state_mib": state / 2**20,
    }


def _size(folder: Path) -> int:
    """The bytes of a folder's files, of which some may be deleted meanwhile."""
    found = 0
    for place in folder.glob("*"):
        with suppress(FileNotFoundError):
            found += place.stat().st_size
    return found


def _for_flink(name: str, folder: Path, out: Path) -> dict[str, Any]:
    """What `nexmark_flink` is told: the configuration, the tables, the query, and where its rows go."""
    import pyarrow as pa
    from pyarrow import parquet

    declarations: list[str] = []
    for table in QUERIES[name]:
        columns = [
            f"`{field.name}` "
            + (
                "BIGINT"
                if pa.types.is_int64(field.type)
                else "TIMESTAMP(3)"
                if pa.types.is_timestamp(field.type)
                else "STRING"
            )
            for field in parquet.read_schema(folder / f"{table}.parquet")
        ]
        declarations.append(
            f"CREATE TABLE {table} ({', '.join(columns)}, WATERMARK FOR `dateTime` AS `dateTime`) WITH "
            f"('connector' = 'filesystem', 'path' = 'file://{folder / table}.parquet', 'format' = 'parquet', "
            "'parquet.utc-timezone' = 'true')"
        )
    to_files = f"'connector' = 'filesystem', 'path' = 'file://{out}/result', 'format' = 'parquet'"
    return {
        "configuration": {
            "parallelism.default": "1",
            "restart-strategy.type": "none",
            "execution.checkpointing.interval": "2s",
            "execution.checkpointing.dir": f"file://{out}/checkpoints",
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        },
        "declarations": declarations,
        "query": re.sub(r"\b(dateTime|each)\b", r"`\1`", texts()[name][0]),  # which are reserved
        "sink": to_files if name in APPENDED else "'connector' = 'blackhole'",
    }


def check(name: str, folder: Path) -> dict[str, Any]:
    """Whether both have found the same rows, in any order."""
    from polars.testing import assert_frame_equal

    ours, theirs = (_rows(folder / name / system) for system in ("penstock", "duckdb"))
    try:
        assert_frame_equal(ours, theirs, check_exact=False, abs_tol=1e-6)
    except AssertionError as error:
        print(error, file=sys.stderr)
        return {"equal": False, "rows": len(ours)}
    return {"equal": len(ours) > 0, "rows": len(ours)}


def _rows(folder: Path) -> pl.DataFrame:
    """In order, with columns named by their place and of the same types."""
    import polars as pl
    import polars.selectors as cs

    found = pl.concat([pl.read_parquet(part) for part in sorted(folder.glob("part-*"))])
    placed = found.rename(dict(zip(found.columns, map(str, range(found.width)), strict=True)))
    same = placed.with_columns(
        cs.decimal().cast(pl.Float64), cs.integer().cast(pl.Int64), cs.datetime().dt.replace_time_zone(None)
    )
    return same.sort(pl.all())


DOES: Final = {"penstock": run_engine, "duckdb": run_duckdb, "check": check}


def _rows_of_flink(name: str, folder: Path) -> int:
    """How many rows Flink has written."""
    from pyarrow import parquet

    return sum(parquet.read_metadata(part).num_rows for part in (folder / name / "flink" / "result").glob("*"))


def child(mode: str, name: str, folder: Path, core: int) -> dict[str, Any]:
    """What a process of its own says."""
    command = [sys.executable, "-m", "benchmarks.nexmark_sql", "--child", mode, name, "--folder", str(folder)]
    environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
    done = subprocess.run(
        [*command, "--core", str(core)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name}, {mode}: failed")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Run what was asked for; 1 if a result is not that of DuckDB."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark_sql", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="QUERY", help=f"by default all: {' '.join(QUERIES)}")
    parser.add_argument("--events", type=int, default=1_000_000, help="of all kinds together")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="the core everything runs on")
    parser.add_argument("--folder", help="where temporary files go; they need about 2 GB")
    parser.add_argument("--flink", metavar="PYTHON", help="a Python that has apache-flink, to measure Flink as well")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names: list[str] = arguments.names or list(QUERIES)
    if unknown := [name for name in names if name not in QUERIES]:
        parser.error(f"{unknown[0]!r} is not measured; {', '.join(QUERIES)} are")
    os.sched_setaffinity(0, {arguments.core})
    if arguments.child:
        print(json.dumps(DOES[arguments.child](names[0], Path(arguments.folder))))
        return 0
    print_head(arguments.core)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.folder) as made:
        folder = Path(made)
        prepare(folder, arguments.events)
        if arguments.flink:
            (folder / "tenth").mkdir()
            prepare(folder / "tenth", arguments.events // 10)
        return max(measure(name, folder, arguments.events, arguments.core, arguments.flink) for name in names)


def measure(name: str, folder: Path, events: int, core: int, flink: str | None) -> int:
    """Run one query in all systems and print the figures; 1 if the results differ."""
    found = {system: child(system, name, folder, core) for system in ("penstock", "duckdb")}
    checked = child("check", name, folder, core)
    kind, equal = "final rows" if found["penstock"]["replaced"] else "rows sent once", checked["equal"]
    if flink:
        found["flink"] = run_flink(name, folder, flink)
        equal = equal and (name not in APPENDED or _rows_of_flink(name, folder) == checked["rows"])
    for system, figures in found.items():
        state = f" {figures['state_mib']:8.1f} MiB of state" if "state_mib" in figures else ""
        print(
            f"{name:>4} {system:<9} {figures['seconds']:8.2f} s {events / figures['seconds']:>12,.0f} events/s "
            f"{figures['cpu_seconds'] * 1e6 / events:8.2f} CPU-s/M {figures['peak_mib']:>6} MiB{state}",
            flush=True,
        )
    print(f"     {checked['rows']:,} {kind}, {'equal' if equal else 'NOT EQUAL'}", flush=True)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
