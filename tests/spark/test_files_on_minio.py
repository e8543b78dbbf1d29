"""Object stores on Spark: tasks read and stage there, the driver makes visible; the rows of the embedded run."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from pipelines import source
from spark_runs import run

from penstock import Pipeline
from penstock.api.loading import load_pipeline
from penstock.connectors import files

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
