"""A run whose driver is this process: its session, a thread to compute in, and what Ctrl-C means meanwhile.

What to say about it is left to the `RunWatch` of whoever started it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.adapters.system_clock import SystemClock
from penstock.api.pipeline import DeclaredPipeline
from penstock.connectors.kafka.default_cluster import use_cluster
from penstock.core.arguments import checked
from penstock.errors import PenstockError
from penstock.graph.jobgraph import JobVertex
from penstock.loading import load_pipeline
from penstock.savepoint.places import place_of
from penstock.settings import FILE_VARIABLE, ClusterSettings, load_settings
from penstock.spark.code import pack_code
from penstock.spark.engine import RunOptions, SparkRun, check_options, spark_graph
from penstock.spark.result import SparkResult
from penstock.spark.session import (
    PLANNED_PARALLELISM,
    SparkSettings,
    active_session,
    check_workers,
    open_session,
)
from penstock.spark.splits import RunBeginning
from penstock.spark.starting import starting_point

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S: Final = 0.3


@dataclass(frozen=True)
class LocalRun:
    """A run as somebody wants it."""

    target: str
    """`file.py` or `file.py:name`."""
    parameters: dict[str, str]
    spark: SparkSettings
    options: RunOptions
    parallelism: int | None = None
    run: str | None = None
    folder: Path | None = None
    """Where the manifests of the pipeline's runs are, if not in their usual place."""


class RunWatch:
    """Is told what becomes of a run; this one passes lines on to standard error, and keeps the rest to itself."""

    def say(self, line: str) -> None:
        """Something that the user should know."""
        sys.stderr.write(f"{line}\n")

    def warn(self, text: str) -> None:
        """Something that the user should think about."""
        self.say(f"warning: {text}")

    def began(self, run: SparkRun, session: SparkSession, master: str) -> None:
        """The session is open."""

    def entered(self, vertex: JobVertex) -> None:
        """A job of Spark begins that computes everything up to this vertex."""

    @contextmanager
    def computing(self) -> Generator[None]:
        """Surrounds the time in which Spark is at work."""
        yield

    def interrupted(self, run: SparkRun) -> None:
        """Ctrl-C came before the run was decided."""

    def finished(self, run: SparkRun, result: SparkResult, seconds: float) -> None:
        """Everything of the run is visible."""


def choose_cluster(file: str | Path | None) -> ClusterSettings:
    """Make the cluster of a settings file the one that sources, sinks and archives mean, in the processes of Spark too;
    without a file, they find it themselves."""
    settings = load_settings(file)
    if file is not None:
        os.environ[FILE_VARIABLE] = str(Path(file).absolute())
        use_cluster(settings.kafka, settings.name)
    return settings


def execute(wanted: LocalRun, watch: RunWatch, pipeline: DeclaredPipeline | None = None) -> SparkResult | None:
    """Do it; None if Ctrl-C came before there was a result. `pipeline` is that of the target, if it is loaded already.

    Raises:
        PenstockError: it cannot be run so, or failed.
    """
    pipeline = pipeline or load_pipeline(wanted.target, wanted.parameters)
    # What can be refused is refused before a JVM is started.
    until_now = wanted.options.target is not None
    graph = spark_graph(pipeline.plan, wanted.parallelism or PLANNED_PARALLELISM, until_now=until_now)
    check_options(graph, pipeline.plan, wanted.options)
    session = open_session(pipeline.name, wanted.spark)
    try:
        return _watched(session, _run_of(session, pipeline, wanted, watch), wanted, watch)
    finally:
        session.stop()


@checked
def run(
    pipeline: DeclaredPipeline,
    *,
    parallelism: int | None,
    directory: str | Path | None,
    spark: SparkSession | None = None,
    run_id: str | None = None,
    native: bool = True,
    from_savepoint: str | Path | None = None,
    to_savepoint: str | Path | None = None,
    staging: str | None = None,
) -> SparkResult:
    """A run that a script or a notebook asks for, see `Pipeline.run`. Tasks get the plan as it is here."""
    options = RunOptions(
        starting_point(str(from_savepoint)) if from_savepoint is not None else None,
        place_of(to_savepoint, "to_savepoint") if to_savepoint is not None else None,
        native=native,
        warn=RunWatch().warn,
    )
    # What can be refused is, before a JVM is started.
    graph = spark_graph(pipeline.plan, parallelism or PLANNED_PARALLELISM, until_now=to_savepoint is not None)
    check_options(graph, pipeline.plan, options)
    from penstock.spark.pickling import pickle_plan

    with contextlib.ExitStack() as opened:
        session = spark or active_session()
        if session is None:
            session = open_session(pipeline.name, SparkSettings())
            opened.callback(session.stop)
        check_workers(session)
        result = execute_in_thread(
            SparkRun(
                session,
                pipeline,
                pickle_plan(pipeline.plan),
                parallelism=parallelism,
                run=run_id if run_id is not None else uuid.uuid4().hex,
                clock=SystemClock(),
                folder=None if directory is None else Path(directory),
                staging=staging,
                options=options,
            ),
        )
    if result is None:
        raise KeyboardInterrupt
    return result


def _run_of(session: SparkSession, pipeline: DeclaredPipeline, wanted: LocalRun, watch: RunWatch) -> SparkRun:
    return SparkRun(
        session,
        pipeline,
        pack_code(wanted.target, wanted.parameters),
        parallelism=wanted.parallelism,
        run=wanted.run if wanted.run is not None else uuid.uuid4().hex,
        clock=SystemClock(),
        folder=wanted.folder,
        staging=wanted.spark.staging,
        entered=watch.entered,
        options=wanted.options,
    )


def _watched(session: SparkSession, run: SparkRun, wanted: LocalRun, watch: RunWatch) -> SparkResult | None:
    watch.began(run, session, wanted.spark.remote or str(session.sparkContext.master))
    started = time.monotonic()
    with watch.computing():
        result = execute_in_thread(run)
    if result is None:
        watch.interrupted(run)
    else:
        watch.finished(run, result, time.monotonic() - started)
    return result


def execute_in_thread(run: SparkRun, beginning: RunBeginning | None = None) -> SparkResult | None:
    """The result, or None if Ctrl-C came before there was one; `beginning` as of `SparkRun.execute`.

    The run has a thread of its own: what PySpark does when Ctrl-C comes (it cancels all jobs) must not come in between
    when this thread talks to the JVM.
    """
    with ThreadPoolExecutor(1, "spark-run") as thread:
        running = thread.submit(run.execute, beginning)
        try:
            return running.result()
        except KeyboardInterrupt:
            return _interrupt(run, running)


def _interrupt(run: SparkRun, running: Future[SparkResult]) -> SparkResult | None:
    """Cancel what Spark is at for the run, and what it may begin meanwhile, until the run is over."""
    while True:
        run.labels.cancel()
        try:
            return running.result(timeout=_POLL_S)
        except TimeoutError:
            continue
        except PenstockError:
            return None
