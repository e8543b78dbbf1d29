"""Files on a real object store: restarts change nothing, others read what is written, and errors say what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import obstore
import polars as pl
import pyarrow as pa
import pytest
from embedded_runs import Stress, assert_same, finish
from pipelines import AGGREGATES, source

from penstock import Pipeline, col, tumbling
from penstock.adapters.s3_blobs import s3_store
from penstock.connectors import files, iterables
from penstock.errors import ExternalError, PipelineError

HOURS = ["day", "minute"]
ONE = pa.schema([("n", pa.int64())])


class Bucket:
    """A folder of its own in the bucket of this test run."""

    def __init__(self, settings: Any) -> None:
        store = settings.store
        self.store = s3_store(store)
        self.folder = settings.name
        self.options = {
            "endpoint_url": store.endpoint,
            "access_key_id": store.access_key,
            "secret_access_key": store.secret_key.reveal(),
        }
        self.bucket = store.bucket

    def url(self, path: str) -> str:
        return f"s3://{self.bucket}/{self.folder}/{path}"

    def names(self, path: str) -> list[str]:
        """All objects below the folder, without it."""
        prefix = f"{self.folder}/{path}/"
        found = [item["path"] for chunk in obstore.list(self.store, prefix) for item in chunk]
        return sorted(name.removeprefix(prefix) for name in found)

    def sink(self, path: str, **options: Any) -> files.Sink:
        return files.Sink(self.url(path), storage_options=self.options, **options)

    def source(self, path: str, **options: Any) -> files.Source[Any]:
        return files.Source(self.url(path), storage_options=self.options, **options)


@pytest.fixture(scope="module")
def bucket(platform: Any) -> Bucket:
    return Bucket(platform.settings("files"))


def windows(sink: files.Sink, rate: float | None) -> Pipeline:
    """Windows of ten seconds, in a folder per day and minute."""
    p = Pipeline("stored")
    made = p.read(source(rate)).key_by("key").window(tumbling("10s")).agg(**AGGREGATES)
    start = col("window_start")
    made.with_columns(day=start.dt.date(), minute=start.dt.minute()).write(sink)
    return p


def as_rows(frame: pl.DataFrame) -> Counter[str]:
    return Counter(str(row) for row in frame.select(sorted(frame.columns)).to_dicts())


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_interruptions_change_nothing(format: Any, bucket: Bucket, tmp_path: Path, seed: int) -> None:
    """Cancelled anywhere and resumed at 1, 2 or 3 subtasks: the rows of one run to a disk, and nothing staged is left."""
    finish(windows(files.Sink(tmp_path / "disk", format="parquet", partition_by=HOURS), None), tmp_path / "whole")
    expected = pl.read_parquet(tmp_path / "disk/**/*.parquet", hive_partitioning=True)
    print(f"seed {seed}: repeat with PENSTOCK_TEST_SEED={seed}")
    out = f"windows-{format}"
    stress = Stress(
        lambda _: windows(bucket.sink(out, format=format, partition_by=HOURS), 6_000), tmp_path, f"{seed}-{format}"
    )
    stress.run()
    read = bucket.source(out, schema=pl.DataFrame(schema=expected.schema).to_arrow().schema)
    assert_same(as_rows(Pipeline("check").read(read).collect()), as_rows(expected), stress.history)
    assert [name for name in bucket.names(out) if name.startswith(".staging")] == []
    assert all(name.startswith(("day=2025-12-31/minute=", "day=2026-01-01/minute=")) for name in bucket.names(out))


def write(bucket: Bucket, path: str, rows: Iterable[dict[str, Any]], columns: list[str]) -> None:
    frame = pl.DataFrame(list(rows))
    p = Pipeline("odd")
    p.read(iterables.Source(frame.to_dicts(), schema=frame.to_arrow().schema)).write(
        bucket.sink(path, format="parquet", partition_by=columns)
    )
    assert p.run().state == "FINISHED"


def test_odd_names_are_as_others_read_them(bucket: Bucket) -> None:
    """What a key must not hold is encoded once: Polars, with a client of its own, reads the same rows."""
    rows = [
        {"n": n, "shop": text} for n, text in enumerate(["a/b", "50%", "ü €", "x=y", "q?*[]", " a ", "__HIVE", None])
    ]
    write(bucket, "odd", rows, ["shop"])
    assert any(name.startswith("shop=a%2Fb/part-") for name in bucket.names("odd"))
    found = Pipeline("check").read(bucket.source("odd")).collect()
    assert sorted(found.select("n", "shop").rows()) == [(row["n"], row["shop"]) for row in rows]
    keys = {
        name.removeprefix("endpoint_").replace("url", "endpoint_url"): text for name, text in bucket.options.items()
    }
    other = pl.read_parquet(
        f"{bucket.url('odd')}/**/*.parquet",
        hive_partitioning=True,
        storage_options={f"aws_{name}": text for name, text in keys.items()} | {"aws_allow_http": "true"},
    )
    assert sorted(other.select("n", "shop").rows()) == [(row["n"], row["shop"]) for row in rows]


def test_settings_of_the_environment(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """As AWS's own clients read them."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.options["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket.options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", bucket.options["secret_access_key"])
    p = Pipeline("environment")
    p.read(iterables.Source([{"n": 1}], schema=ONE)).write(files.Sink(bucket.url("environment")))
    assert p.run().state == "FINISHED"
    assert len(bucket.names("environment")) == 1


def test_what_cannot_be_reached_says_why(bucket: Bucket) -> None:
    """Wrong keys, no such bucket, nobody there: the place, the store's own words, and what to look at."""
    wrong = bucket.options | {"secret_access_key": "wrong"}
    with pytest.raises(
        ExternalError, match=r"cannot list s3://.*signature.*; check the credentials in storage_options="
    ):
        files.Source(bucket.url("x/*"), storage_options=wrong).discover()
    with pytest.raises(PipelineError, match="there is no bucket s3://nobodys-bucket; create it, or correct the URL"):
        files.Source("s3://nobodys-bucket/x/*", storage_options=bucket.options).discover()
    p = Pipeline("nowhere")
    p.read(iterables.Source([{"n": 1}], schema=ONE)).write(
        files.Sink("s3://nobodys-bucket/out", storage_options=bucket.options)
    )
    with pytest.raises(PipelineError, match="there is no bucket s3://nobodys-bucket"):
        p.run()
