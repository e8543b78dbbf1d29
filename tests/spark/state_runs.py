"""What the tests of state in and out share: input in parts, runs from and to savepoints on either engine."""

from __future__ import annotations

import asyncio
import shutil
import uuid
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from embedded_runs import settings
from pipelines import events
from spark_runs import HERE

from penstock import Pipeline, savepoint
from penstock.adapters.directory.blobs import DirectoryBlobs
from penstock.adapters.system_clock import SystemClock
from penstock.coordination.job_catalog import JobCatalog
from penstock.embedded import CURRENT, EmbeddedJob
from penstock.graph.jobgraph import build_job_graph
from penstock.loading import load_pipeline
from penstock.protocol.joblog import Submit
from penstock.savepoint.places import place_of
from penstock.savepoint.transfer import export_savepoint, import_savepoint
from penstock.spark.code import pack_code
from penstock.spark.engine import RunOptions, SparkRun
from penstock.spark.result import SparkResult
from penstock.spark.starting import starting_point
from penstock.submission.admission import check_compatible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE_FILE = HERE / "state_pipelines.py"
SPLITS = 3


def write_part(folder: Path, name: str, first: int, end: int) -> None:
    """Rows `first` up to `end` of the integration tests' events, dealt to files of this name."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    rows = events(np.arange(first, end, dtype=np.int64))
    for split in range(SPLITS):
        rows.filter(pl.col("number") % SPLITS == split).write_ndjson(folder / f"{name}{split}.jsonl")


def run_part(
    spark: SparkSession,
    root: Path,
    given: dict[str, str],
    *,
    start: Path | str | None = None,
    target: Path | str | None = None,
    parallelism: int = 2,
    run: str | None = None,
    warned: list[str] | None = None,
    file: Path = STATE_FILE,
    archives: dict[str, str] | None = None,
    folder: Path | None = None,
) -> SparkResult:
    """Run on Spark, from a savepoint if there is one, leaving one if that is asked for."""
    pipeline = load_pipeline(str(file), given)
    options = RunOptions(
        starting_point(str(start)) if start is not None else None,
        place_of(target) if target is not None else None,
        archives or {},
        (warned if warned is not None else []).append,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        made = SparkRun(
            spark,
            pipeline,
            pack_code(str(file), given),
            parallelism=parallelism,
            run=run or uuid.uuid4().hex,
            clock=SystemClock(),
            folder=folder or root / "runs",
            options=options,
        )
        return made.execute()


def begin_embedded(pipeline: Pipeline, folder: Path | str, directory: Path, parallelism: int = 2) -> None:
    """Make a new job in an empty directory that begins with a savepoint, as `submit --from-savepoint` makes it."""

    async def begin() -> None:
        blobs = DirectoryBlobs(directory / "blobs")
        restore = await import_savepoint(blobs, folder)
        graph = build_job_graph(pipeline.plan, parallelism)
        check_compatible(graph, savepoint.read(folder).manifest)
        job = uuid.uuid4().hex
        submit = Submit(seq=0, nonce="n", job=job, name=graph.name, graph=graph.to_json(), restored_from=restore)
        await JobCatalog(blobs).create(submit)
        await blobs.put(CURRENT, submit.job.encode())

    asyncio.run(begin())


def continue_embedded(pipeline: Pipeline, folder: Path | str, directory: Path, parallelism: int) -> None:
    """Run such a job to its end."""
    begin_embedded(pipeline, folder, directory, parallelism)

    async def go_on() -> None:
        result = await EmbeddedJob(pipeline, directory, settings(parallelism)).run(resume=True)
        assert result.state == "FINISHED", (result.state, result.reason, result.error)

    asyncio.run(go_on())


def interrupt_embedded(
    pipeline: Pipeline, directory: Path, parallelism: int, after_rows: int, kept: Path, *, resume: bool = False
) -> None:
    """Run until so many rows are read, stop at a checkpoint, and keep it as a savepoint in a folder."""

    async def stop() -> None:
        engine = EmbeddedJob(pipeline, directory, settings(parallelism))
        source = next(operator.id for operator in engine.graph.operators() if operator.verb == "read")
        running = asyncio.create_task(engine.run(resume=resume))
        async with asyncio.timeout(60):
            while not running.done() and not (
                engine.started and engine.progress.total(source, "rows_in") >= after_rows
            ):
                await asyncio.wait([running], timeout=0.005)
            engine.suspend()
            result = await running
        assert result.state == "SUSPENDED", (result.state, result.reason, result.error)
        found = await engine.find()
        assert found is not None
        assert found.history.restore is not None
        await export_savepoint(DirectoryBlobs(directory / "blobs"), found.history.restore, kept)

    asyncio.run(stop())


def merged(outs: list[Path], folder: Path) -> Path:
    """The files that runs wrote, one run after the other, as if they were one run's."""
    for number, out in enumerate(outs):
        for part in sorted(out.rglob("part-*")):
            place = folder / part.parent.relative_to(out) / f"part-{number}-{part.name}"
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(part, place)
    return folder
