"""`penstock run --engine spark`, `penstock backfill` and `penstock plan --engine spark`."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Console
from rich.text import Text

from penstock.cli.display import run_row_lines
from penstock.cli.spark_options import DEFAULT_STEP_RESTART
from penstock.cli.steps import run_in_steps
from penstock.coordination.job_summary import operator_name
from penstock.errors import UsageError
from penstock.graph.jobgraph import SINK_VERBS, JobVertex
from penstock.loading import load_pipeline, parse_parameters
from penstock.savepoint.places import place_of
from penstock.spark.engine import RunOptions, SparkRun, batch_graph
from penstock.spark.explain import explain_stages
from penstock.spark.local_run import LocalRun, RunWatch, choose_cluster, execute
from penstock.spark.native import ways
from penstock.spark.refusing import refusals
from penstock.spark.result import SparkResult
from penstock.spark.session import PLANNED_PARALLELISM, SparkSettings, is_remote, parse_conf, ui_address
from penstock.spark.starting import starting_point

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S: Final = 0.3


@dataclass(frozen=True)
class SessionOptions:
    """Where Spark is, and the cluster whose topics and store are meant."""

    master: str | None
    remote: str | None
    conf: list[str]
    staging: str | None
    cluster: str | None

    @property
    def spark(self) -> SparkSettings:
        """Where Spark is."""
        return SparkSettings(self.master, self.remote, parse_conf(self.conf), self.staging)


@dataclass(frozen=True)
class BatchOptions(SessionOptions):
    """What every run of a file takes."""

    file: str
    parallelism: int | None
    param: list[str]
    native: Literal["auto", "off"]
    run_id: str | None


@dataclass(frozen=True)
class RunOnSpark(BatchOptions):
    """`penstock run --engine spark`."""

    from_savepoint: str | None
    to_savepoint: str | None
    every: str | None
    dir: str | None
    fresh: bool
    restart: str


@dataclass(frozen=True)
class Backfill(BatchOptions):
    """`penstock backfill`."""

    source: list[str]
    until: Literal["kafka"]
    to_savepoint: str


@dataclass(frozen=True)
class PlanOnSpark:
    """`penstock plan --engine spark`."""

    file: str
    parallelism: int | None
    param: list[str]
    native: Literal["auto", "off"]
    json: bool
    dot: bool


def run_on_spark(command: RunOnSpark) -> int:
    """Run the pipeline, once or in steps; the exit code."""
    if command.every is not None:
        return run_in_steps(command, command.every)
    given = {"--dir": command.dir, "--fresh": command.fresh, "--restart": command.restart != DEFAULT_STEP_RESTART}
    if names := [name for name, value in given.items() if value]:
        anew = "; without --every each run begins anew" if command.fresh else ""
        raise UsageError(
            f"{', '.join(names)}: for a job on Spark that runs in steps; leave it out, or give --every{anew}"
        )
    return _run(command, {}, command.from_savepoint, command.to_savepoint)


def backfill_command(command: Backfill) -> int:
    """Run the history of a pipeline, and leave a savepoint; the exit code."""
    archives: dict[str, str] = {}
    for text in command.source:
        uid, equals, path = text.partition("=")
        if not equals or not uid or not path:
            raise UsageError(f"--source {text}: write --source UID=PATH")
        if uid in archives:
            raise UsageError(f"--source {uid}: given twice; name a folder, or a pattern with *, for several files")
        archives[uid] = path
    return _run(command, archives, None, command.to_savepoint)


def _run(command: BatchOptions, archives: dict[str, str], start: str | None, target: str | None) -> int:
    watch = ConsoleWatch()
    choose_cluster(command.cluster)
    options = RunOptions(
        starting_point(start, command.cluster) if start is not None else None,
        place_of(target, "--to-savepoint") if target is not None else None,
        archives,
        watch.warn,
        native=command.native == "auto",
    )
    parameters = parse_parameters(command.param)
    wanted = LocalRun(command.file, parameters, command.spark, options, command.parallelism, command.run_id)
    return 0 if execute(wanted, watch) is not None else 130


def plan_on_spark(command: PlanOnSpark) -> int:
    """Print the stages; the exit code."""
    if command.json or command.dot:
        raise UsageError("--json and --dot show the graph that streams; --engine spark is shown as text")
    pipeline = load_pipeline(command.file, parse_parameters(command.param))
    graph = batch_graph(pipeline.plan, command.parallelism or PLANNED_PARALLELISM)
    found = ways(graph, pipeline.plan, native=command.native == "auto")
    print(explain_stages(graph, pipeline.plan, found, refusals(graph, pipeline.plan)))
    return 0


class ConsoleWatch(RunWatch):
    """Says what becomes of a run on standard error: standard output belongs to the rows of console sinks.

    What Spark is at is a line that is kept current on a terminal, one line per job elsewhere.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._tracker: Any = None
        self._name = ""
        self._over = threading.Event()

    def say(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def began(self, run: SparkRun, session: SparkSession, master: str) -> None:
        self._tracker = None if is_remote(session) else session.sparkContext.statusTracker()
        self.say(f"{run.graph.name}: on Spark at {master}, parallelism {run.graph.parallelism}, run {run.run_id}")
        address = ui_address(session)
        if address:
            self.say(f"Spark UI: {address}")
        for operator in run.graph.operators():
            if operator.verb in SINK_VERBS:
                self.say(f"{operator_name(operator)}: {operator.guarantee}")
        for vertex in run.graph.vertices:
            for operator in vertex.operators:
                if said := run.arrival_order.said_of_order(vertex, operator):
                    self.say(f"{operator_name(operator)}: {said}")

    def entered(self, vertex: JobVertex) -> None:
        self._name = vertex.name
        if not self._console.is_terminal:
            self.say(f"computing {vertex.name}")

    @contextmanager
    def computing(self) -> Generator[None]:
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

    def interrupted(self, run: SparkRun) -> None:
        self.say(f"interrupted; --run-id {run.run_id} carries this run to its end, without doubling a row")

    def finished(self, run: SparkRun, result: SparkResult, seconds: float) -> None:
        if not result.computed:
            self.say(f"run {result.run} was computed before; its results are visible, nothing was computed again")
        for line in run_row_lines(run.graph, result.counts, seconds if result.computed else None):
            self.say(line)
        target = run.options.target
        if target is not None:
            self.say(f"savepoint: {target}; go on with: penstock submit FILE --from-savepoint {target}")
        self.say(f"{run.graph.name}: finished")

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
