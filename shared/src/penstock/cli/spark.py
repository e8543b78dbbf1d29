"""`penstock run --engine spark`, `penstock backfill` and `penstock plan --engine spark`."""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from penstock.api.loading import load_pipeline, parse_parameters
from penstock.api.pipeline import DeclaredPipeline
from penstock.cli.display import operator_name, row_lines
from penstock.connectors.kafka.default_cluster import use_cluster
from penstock.errors import PenstockError, UsageError
from penstock.graph.jobgraph import SINK_VERBS, JobVertex
from penstock.settings import FILE_VARIABLE, ClusterSettings, load_settings
from penstock.spark.engine import RunOptions, SparkResult, SparkRun, batch_graph, check_options, spark_graph
from penstock.spark.explain import explain_stages
from penstock.spark.native import ways
from penstock.spark.refusing import refusals
from penstock.spark.session import (
    PLANNED_PARALLELISM,
    SparkSettings,
    is_remote,
    open_session,
    parse_conf,
    ui_address,
)
from penstock.spark.starting import starting_point

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S: Final = 0.3


@dataclass(frozen=True)
class Wanted:
    """A run as a command wants it."""

    target: str
    """`file.py` or `file.py:name`."""
    parameters: dict[str, str]
    spark: SparkSettings
    options: RunOptions
    parallelism: int | None = None
    run: str | None = None
    folder: Path | None = None
    """Where the manifests of the pipeline's runs are, if not in their usual place."""


def run_on_spark(arguments: argparse.Namespace) -> int:
    """Run the pipeline; the exit code."""
    console = _console()
    return 0 if execute_run(_wanted(arguments, console, {}), console) else 130


def backfill_command(arguments: argparse.Namespace) -> int:
    """Run the history of a pipeline, and leave a savepoint; the exit code."""
    console = _console()
    archives: dict[str, str] = {}
    for text in arguments.source:
        uid, equals, path = text.partition("=")
        if not equals or not uid or not path:
            raise UsageError(f"--source {text}: write --source UID=PATH")
        if uid in archives:
            raise UsageError(f"--source {uid}: given twice; name a folder, or a pattern with *, for several files")
        archives[uid] = path
    return 0 if execute_run(_wanted(arguments, console, archives), console) else 130


def _console() -> Console:
    """Standard output belongs to the rows of console sinks: everything about a run goes to standard error."""
    return Console(stderr=True, highlight=False)


def mean_cluster(file: str | None) -> ClusterSettings:
    """Make the cluster of `--cluster` the one that sources, sinks and archives mean, in the processes of Spark too."""
    settings = load_settings(file)
    if file is not None:
        os.environ[FILE_VARIABLE] = str(Path(file).absolute())
        use_cluster(settings.kafka, settings.name)
    return settings


def _wanted(arguments: argparse.Namespace, console: Console, archives: dict[str, str]) -> Wanted:
    mean_cluster(arguments.cluster)
    start = arguments.from_savepoint
    options = RunOptions(
        starting_point(start, arguments.cluster) if start is not None else None,
        Path(arguments.to_savepoint) if arguments.to_savepoint is not None else None,
        archives,
        lambda text: _say(console, f"warning: {text}"),
        native=arguments.native == "auto",
    )
    settings = SparkSettings(arguments.master, arguments.remote, parse_conf(arguments.conf))
    parameters = parse_parameters(arguments.param)
    return Wanted(arguments.file, parameters, settings, options, arguments.parallelism, arguments.run_id)


def execute_run(wanted: Wanted, console: Console, pipeline: DeclaredPipeline | None = None) -> bool:
    """Do it, and say so; False if it was interrupted. `pipeline` is that of the target, if it is loaded already."""
    pipeline = pipeline or load_pipeline(wanted.target, wanted.parameters)
    # What can be refused is refused before a JVM is started.
    until_now = wanted.options.target is not None
    graph = spark_graph(pipeline.plan, wanted.parallelism or PLANNED_PARALLELISM, until_now=until_now)
    check_options(graph, pipeline.plan, wanted.options)
    session = open_session(pipeline.name, wanted.spark)
    try:
        progress = _Progress(session, console)
        run = SparkRun(
            session,
            pipeline,
            wanted.target,
            wanted.parameters,
            parallelism=wanted.parallelism,
            run=wanted.run,
            folder=wanted.folder,
            entered=progress.entered,
            options=wanted.options,
        )
        _announce(console, session, run, wanted.spark.remote)
        started = time.monotonic()
        with progress.shown():
            result = _execute(session, run)
        if result is None:
            _say(console, f"interrupted; --run-id {run.run_id} carries this run to its end, without doubling a row")
            return False
        _summarise(console, run, result, time.monotonic() - started)
    finally:
        session.stop()
    return True


def plan_on_spark(arguments: argparse.Namespace) -> int:
    """Print the stages; the exit code."""
    pipeline = load_pipeline(arguments.file, parse_parameters(arguments.param))
    graph = batch_graph(pipeline.plan, arguments.parallelism or PLANNED_PARALLELISM)
    found = ways(graph, pipeline.plan, native=arguments.native == "auto")
    print(explain_stages(graph, found, refusals(graph, pipeline.plan)))
    return 0


def _execute(session: SparkSession, run: SparkRun) -> SparkResult | None:
    """The result, or None if Ctrl-C came before there was one.

    The run has a thread of its own: what PySpark does when Ctrl-C comes (it cancels all jobs) must not come in between
    when this thread talks to the JVM.
    """
    with ThreadPoolExecutor(1, "spark-run") as thread:
        running = thread.submit(run.execute)
        try:
            return running.result()
        except KeyboardInterrupt:
            return _interrupt(session, running)


def _interrupt(session: SparkSession, running: Future[SparkResult]) -> SparkResult | None:
    """Cancel whatever Spark is at, and what it may begin meanwhile, until the run is over."""
    while True:
        if is_remote(session):
            session.interruptAll()
        else:
            session.sparkContext.cancelAllJobs()
        try:
            return running.result(timeout=_POLL_S)
        except TimeoutError:
            continue
        except PenstockError:
            return None


def _announce(console: Console, session: SparkSession, run: SparkRun, remote: str | None) -> None:
    master = remote or session.sparkContext.master
    _say(console, f"{run.graph.name}: on Spark at {master}, parallelism {run.graph.parallelism}, run {run.run_id}")
    address = ui_address(session)
    if address:
        _say(console, f"Spark UI: {address}")
    for operator in run.graph.operators():
        if operator.verb in SINK_VERBS:
            _say(console, f"{operator_name(operator)}: {operator.guarantee}")


def _summarise(console: Console, run: SparkRun, result: SparkResult, seconds: float) -> None:
    if not result.computed:
        _say(console, f"run {result.run} was computed before; its results are visible, nothing was computed again")
    _say(console, *row_lines(run.graph, result.total, seconds if result.computed else None))
    target = run.options.target
    if target is not None:
        _say(console, f"savepoint: {target}; go on with: penstock submit FILE --from-savepoint {target}")
    _say(console, f"{run.graph.name}: finished")


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(Text(line), soft_wrap=True)


class _Progress:
    """What Spark is at: a line that is kept current on a terminal, one line per job elsewhere."""

    def __init__(self, session: SparkSession, console: Console) -> None:
        self._tracker: Any = None if is_remote(session) else session.sparkContext.statusTracker()
        self._console = console
        self._name = ""
        self._over = threading.Event()

    def entered(self, vertex: JobVertex) -> None:
        """A job begins that computes everything up to this vertex."""
        self._name = vertex.name
        if not self._console.is_terminal:
            _say(self._console, f"computing {vertex.name}")

    @contextmanager
    def shown(self) -> Generator[None]:
        """Show it while the block runs."""
        if not self._console.is_terminal or self._tracker is None:
            yield
            return
        thread = threading.Thread(target=self._follow, name="spark-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _follow(self) -> None:
        with self._console.status("") as status:
            while not self._over.wait(_POLL_S):
                status.update(Text(f"{self._name}: {self._stages()}"))

    def _stages(self) -> str:
        """The active stages with their tasks."""
        stages: list[str] = []
        for number in self._tracker.getActiveStageIds():
            info = self._tracker.getStageInfo(number)
            if info is not None:  # it may have ended meanwhile
                stages.append(f"stage {number}: {info.numCompletedTasks} of {info.numTasks} tasks done")
        return ", ".join(stages) or "waiting for tasks"
