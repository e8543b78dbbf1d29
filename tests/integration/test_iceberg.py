"""Tables of Iceberg through restarts: every row once, whenever a job is cancelled, from one table into another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from embedded_runs import Attempt, Stress, assert_same, counted, finish, rows, settings
from pipelines import AGGREGATES, source
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from penstock import Pipeline, col, tumbling
from penstock.connectors import files, iceberg
from penstock.connectors.iceberg.appending import PROOF
from penstock.embedded import EmbeddedJob

Settings = dict[str, str]
COLUMNS = pa.schema([("n", pa.int64())])


def lake(folder: Path, **more: str) -> Settings:
    """A SQL catalog in a folder, and its warehouse, if none is given."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": (folder / "warehouse").as_uri()}
    return settings | more


def table(settings: Settings, name: str) -> Table:
    return load_catalog("default", **settings).load_table(name)


def windows(catalog: Settings, sink: Any, rate: float | None) -> Pipeline:
    """Windows of ten seconds, by day and key."""
    p = Pipeline("windows")
    made = p.read(source(rate)).key_by("key").window(tumbling("10s")).agg(**AGGREGATES)
    made.write(sink)
    return p


def as_rows(frame: pl.DataFrame) -> Counter[str]:
    return Counter(str(row) for row in frame.select(sorted(frame.columns)).to_dicts())


def uninterrupted(tmp_path: Path) -> Counter[str]:
    finish(windows({}, files.Sink(tmp_path / "disk", format="parquet"), None), tmp_path / "whole")
    return as_rows(pl.read_parquet(tmp_path / "disk/*.parquet"))


def check(found: Table, expected: Counter[str], what: object) -> None:
    """The rows, as pyiceberg and DuckDB see them; nothing staged is listed, and few proofs are left."""
    assert_same(as_rows(pl.DataFrame(found.scan().to_arrow())), expected, what)
    scanned = found.scan().to_arrow_batch_reader()
    assert duckdb.sql("select count(*) from scanned").fetchall() == [(expected.total(),)]
    assert scanned.schema.names
    assert len([name for name in found.properties if name.startswith(PROOF)]) <= 40


def test_interruptions_change_nothing(tmp_path: Path, seed: int) -> None:
    """Cancelled anywhere and resumed at 1, 2 or 3 subtasks, by commits of each: the rows of one run."""
    expected = uninterrupted(tmp_path)
    print(f"seed {seed}: repeat with PENSTOCK_TEST_SEED={seed}")
    catalog = lake(tmp_path / "lake")
    sink = iceberg.Sink("shop.windows", catalog=catalog, partition_by=["day(window_start)", "bucket(2, key)"])
    stress = Stress(lambda _: windows(catalog, sink, 6_000), tmp_path, f"{seed}-iceberg")
    stress.run()
    check(table(catalog, "shop.windows"), expected, stress.history)
    assert not list(tmp_path.glob("lake/**/penstock-*.avro")) or stress.resumed < len(stress.history)


def archived(catalog: Settings) -> None:
    """The events as a table of many files."""
    p = Pipeline("archive")
    p.read(source(30_000)).write(iceberg.Sink("shop.events", catalog=catalog))
    assert p.run(parallelism=2, checkpoint_interval="50ms").state == "FINISHED"


def test_a_table_that_is_read_again_is_the_same(tmp_path: Path, seed: int) -> None:
    """Interrupted while others append to it: its snapshot was fixed when the job began."""
    print(f"seed {seed}: repeat with PENSTOCK_TEST_SEED={seed}")
    catalog = lake(tmp_path / "lake")
    archived(catalog)
    expected = table(catalog, "shop.events").scan().to_arrow()
    assert expected.num_rows > 1_000

    def copying(_: Path) -> Pipeline:
        now = table(catalog, "shop.events")
        if len(stress.history) > 1:  # each attempt finds more
            now.append(expected.slice(0, 5))
        p = Pipeline("copy")
        read = p.read(iceberg.Source("shop.events", catalog=catalog))
        read.filter(col("value") >= 0).write(iceberg.Sink("shop.copy", catalog=catalog))
        return p

    stress = Stress(
        copying, tmp_path, f"{seed}-copy", planned=tuple(Attempt(n, 5, 60, after_checkpoints=n) for n in (1, 2, 3))
    )
    stress.run()
    check(table(catalog, "shop.copy"), as_rows(pl.DataFrame(expected)), stress.history)


async def eventually(condition: Callable[[], bool], run: asyncio.Task[Any], seconds: float = 30) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert not run.done(), run.result()
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.wait([run], timeout=0.02)


def test_a_stream_from_table_to_table(tmp_path: Path) -> None:
    """Rows are appended while it runs and while it stands still; cancelled in between, resumed at other parallelisms."""
    catalog = lake(tmp_path / "lake")
    made = load_catalog("default", **catalog)
    made.create_namespace("shop")
    made.create_table("shop.numbers", COLUMNS)
    written: list[int] = []

    def append(count: int) -> None:
        more = list(range(len(written), len(written) + count))
        table(catalog, "shop.numbers").append(pa.table({"n": more}, schema=COLUMNS))
        written.extend(more)

    def found() -> list[int]:
        if not made.table_exists("shop.out"):
            return []
        return sorted(table(catalog, "shop.out").scan().to_arrow()["n"].to_pylist())

    async def live(parallelism: int, resume: bool) -> None:
        p = Pipeline("live")
        read = p.read(iceberg.Source("shop.numbers", catalog=catalog, follow=True, splits=3, look_every="20ms"))
        read.write(iceberg.Sink("shop.out", catalog=catalog))
        run = asyncio.create_task(EmbeddedJob(p, tmp_path / "state", settings(parallelism, 30)).run(resume=resume))
        for _ in range(3):
            append(7)
            await eventually(lambda: len(found()) >= len(written) - 7, run)
        await eventually(lambda: found() == written, run)
        append(5)
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    for number, parallelism in enumerate((1, 3, 2)):
        asyncio.run(live(parallelism, resume=number > 0))
    asyncio.run(live(1, resume=True))
    assert found()[: len(written) - 5] == written[:-5]


def test_a_warehouse_on_an_object_store(platform: Any, tmp_path: Path, seed: int) -> None:
    """MinIO, by pyiceberg's own client: interrupted, and read back by a pipeline."""
    own = platform.settings("iceberg")
    store = own.store
    catalog = lake(
        tmp_path / "lake",
        **{
            "warehouse": f"s3://{store.bucket}/{own.name}",
            "s3.endpoint": store.endpoint,
            "s3.access-key-id": store.access_key,
            "s3.secret-access-key": store.secret_key.reveal(),
            "s3.region": "us-east-1",
        },
    )
    expected = uninterrupted(tmp_path)
    sink = iceberg.Sink("shop.windows", catalog=catalog)
    stress = Stress(lambda _: windows(catalog, sink, 6_000), tmp_path, f"{seed}-minio", interruptions=2, longest_s=1.0)
    stress.run()
    check(table(catalog, "shop.windows"), expected, stress.history)
    back = Pipeline("check").read(iceberg.Source("shop.windows", catalog=catalog)).collect()
    assert_same(as_rows(back), expected, "read back")
    assert store.secret_key.reveal() not in repr(sink)


@pytest.mark.parametrize("where", ["one", "both"])
def test_several_sinks(where: str, tmp_path: Path, seed: int) -> None:
    """Of a job into one table, and beside files: all of them exactly once."""
    catalog = lake(tmp_path / "lake")

    def make(out: Path) -> Pipeline:
        p = Pipeline("several")
        read = p.read(source(6_000))
        for part in (0, 1):
            name = "shop.both" if where == "both" else f"shop.part{part}"
            read.filter(col("number") % 2 == part).write(iceberg.Sink(name, catalog=catalog)).uid(f"s{part}")
        read.select("number").write(files.Sink(out))
        return p

    stress = Stress(make, tmp_path, f"{seed}-several-{where}")
    out = stress.run()
    names = ["shop.both"] if where == "both" else ["shop.part0", "shop.part1"]
    found = [n for name in names for n in table(catalog, name).scan().to_arrow()["number"].to_pylist()]
    assert_same(counted({"number": n} for n in found), counted(rows(out)), stress.history)
