"""Object stores on Spark: tasks read and stage there, the driver makes visible; the rows of the embedded run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import obstore
import polars as pl
import pytest
from large_files import ROWS, events, parts_of
from pipelines import source
from spark_runs import run

from penstock import Pipeline
from penstock.connectors import files
from penstock.connectors.files.store_clients import location
from penstock.loading import load_pipeline

FILE = Path(__file__).parent / "stored_pipeline.py"


def test_from_store_to_store(spark, platform, tmp_path):
    """Parquet in, Parquet out, a folder per day; another run replaces the table, the same one changes nothing."""
    settings = platform.settings("stored")
    store = settings.store
    options = {
        "endpoint_url": store.endpoint,
        "access_key_id": store.access_key,
        "secret_access_key": store.secret_key.reveal(),
    }
    place = f"s3://{store.bucket}/{settings.name}"
    archive = Pipeline("archive")
    rows = archive.read(source(None))
    rows.write(files.Sink(f"{place}/in", format="parquet", storage_options=options))
    rows.write(files.Sink(tmp_path / "in", format="parquet"))
    assert archive.run(parallelism=2, directory=tmp_path / "archive").state == "FINISHED"

    local = {"source": str(tmp_path / "in"), "out": str(tmp_path / "out")}
    assert load_pipeline(str(FILE), local).run(directory=tmp_path / "embedded").state == "FINISHED"
    expected = sorted(pl.read_parquet(tmp_path / "out/**/*.parquet", hive_partitioning=True).rows())
    assert len({row[-1] for row in expected}) == 2

    parameters = {"s3": "yes", "source": f"{place}/in", "out": f"{place}/out", **options}
    for run_id in ("first", "first", "second"):
        run(spark, FILE, tmp_path / "spark", parameters, run_id)
        written = files.Source(f"{place}/out", storage_options=options)
        found = Pipeline("check").read(written).collect()
        assert sorted(found.rows()) == expected
        names = [split.id for split in written.discover()]
        assert all(name.startswith(("day=2025-12-31/part-", "day=2026-01-01/part-")) for name in names)


@dataclass
class Event:
    number: int
    key: str
    at: datetime
    text: str | None


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_large_objects_are_read_in_parts(kind, spark, platform, tmp_path):
    """Every row once, by several tasks."""
    settings = platform.settings(f"large-{kind}")
    store = settings.store
    options = {
        "endpoint_url": store.endpoint,
        "access_key_id": store.access_key,
        "secret_access_key": store.secret_key.reveal(),
    }
    place = location(f"s3://{store.bucket}/{settings.name}", options, "test")
    assert place is not None
    path = events(tmp_path / "in", kind)
    for each in sorted((tmp_path / "in").iterdir()):
        obstore.put(place.store, place.below(each.name).key, each.read_bytes())
    made = Pipeline("large")
    read = made.read(files.Source(str(place), schema=Event, event_time="at", storage_options=options))
    read.select("number").write(files.Sink(tmp_path / "out"))
    with parts_of(spark, path.stat().st_size // 6), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.run(engine="spark", spark=spark, directory=tmp_path / "runs")
    parts = [pl.read_ndjson(part)["number"].to_list() for part in (tmp_path / "out").glob("part-*")]
    assert len(parts) >= 6
    assert sorted(number for part in parts for number in part) == list(range(ROWS + 20))
