"""A job that runs on Spark in steps, one bounded run after the other, for as long as nobody ends it.

What a step is and which one is next is decided in `steps`, where it is kept in `step_folder`; how a run commits once is
`engine`'s and `committing`'s business. Here are the session, the clock, failures, and the wish to end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.adapters.directory.claim import claimed
from penstock.api.pipeline import DeclaredPipeline
from penstock.connectors.base import Source
from penstock.core.times import MIN_WATERMARK
from penstock.errors import ExternalError, IncompatibleStateError, PenstockError, PipelineError, UsageError
from penstock.graph.jobgraph import SINK_VERBS, JobGraph
from penstock.ports import Clock
from penstock.protocol.restarts import FixedDelay, RestartStrategy, restart_decider
from penstock.savepoint.places import LocalPlace
from penstock.spark.code import TaskCode
from penstock.spark.engine import RunOptions, SparkRun, check_options, spark_graph
from penstock.spark.local_run import execute_in_thread
from penstock.spark.result import SparkResult
from penstock.spark.session import PLANNED_PARALLELISM
from penstock.spark.splits import RunBeginning, sources_of
from penstock.spark.starting import StartingPoint, starting_point
from penstock.spark.step_folder import StepFolder, Stopped
from penstock.spark.steps import NextStep, Silence, StepsJob, is_due, next_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_RESTART: RestartStrategy = FixedDelay(attempts=3, delay_ms=10_000)


@dataclass(frozen=True)
class ContinuousOptions:
    """How a job runs in steps."""

    every_us: int
    """Between the beginnings of two steps; one that takes longer is followed at once."""
    folder: Path
    """Where the steps are kept; every executor must reach it, unless `staging` is on an object store."""
    restart: RestartStrategy = DEFAULT_RESTART
    """How often, and after which delay, a step that failed is repeated."""
    parallelism: int | None = None
    start: str | None = None
    """The savepoint that the job starts from: a folder, or the key of a manifest in a cluster's store."""
    cluster: str | None = None
    """The file with that cluster's settings."""
    staging: str | None = None
    """As in `SparkSettings`; on an object store the savepoints of steps go there, too."""
    fresh: bool = False
    """Begin a new job whatever is in the folder."""


@dataclass(frozen=True)
class StepDone:
    """What became of a step."""

    number: int
    rows_in: int
    rows_out: int
    seconds: float
    lag_us: int | None
    """How far event time is behind the clock; None where no row had one."""
    result: SparkResult
    graph: JobGraph

    @property
    def line(self) -> str:
        """The same in a line for people."""
        lag = "" if self.lag_us is None else f", event time {self.lag_us / 1_000_000:,.1f} s behind"
        again = "" if self.result.computed else ", computed before"
        return f"step {self.number}: {self.rows_in:,} rows in, {self.rows_out:,} out, {self.seconds:.1f} s{lag}{again}"


@dataclass
class StepWatch:
    """Is told what becomes of steps."""

    done: Callable[[StepDone], None] = lambda _: None
    failed: Callable[[int, PenstockError, int], None] = lambda *_: None
    """The step, why, and the milliseconds until it is repeated."""
    warn: Callable[[str], None] = lambda _: None
    warned: set[str] = field(default_factory=set[str])

    def warn_once(self, text: str) -> None:
        """Every step finds the same again: say it once."""
        if text not in self.warned:
            self.warned.add(text)
            self.warn(text)


class Stop(Protocol):
    """What ends a run behind the step at work."""

    def is_set(self) -> bool:
        """Whether it is to end."""
        ...

    def wait(self, timeout: float) -> bool:
        """Whether it is within so many seconds."""
        ...


class ContinuousRun:
    """A job in steps."""

    def __init__(
        self,
        pipeline: DeclaredPipeline,
        code: TaskCode,
        options: ContinuousOptions,
        clock: Clock,
        new_id: Callable[[], str],
        open_session: Callable[[], SparkSession],
        watch: StepWatch | None = None,
        end_session: Callable[[SparkSession | None], None] = lambda _: None,
    ) -> None:
        """`new_id` gives 32 fresh hex digits; `end_session` ends what `open_session` opened, or failed to open (None).

        Raises:
            PipelineError: the pipeline cannot run on Spark.
            UsageError: it reads what has no position.
        """
        self._pipeline = pipeline
        self._code = code
        self._options = options
        self._clock = clock
        self._new_id = new_id
        self._open_session = open_session
        self._end_session = end_session
        self._watch = watch or StepWatch()
        self._session: SparkSession | None = None
        self._folder = StepFolder(options.folder, options.staging)
        graph = spark_graph(pipeline.plan, options.parallelism or PLANNED_PARALLELISM, until_now=True)
        check_options(graph, pipeline.plan, RunOptions(target=LocalPlace(options.folder)))
        self._sources: Mapping[str, Source[Any]] = sources_of(graph, pipeline.plan)
        self._silence = Silence(self._sources)

    def run(self, stop: Stop) -> Stopped:
        """Do one step after the other until `stop` is set; the step at work is finished first.

        Raises:
            UsageError: another process runs the job, or the folder holds another one.
            PenstockError: a step failed for good. What is done is done; the same command repeats that step.
            KeyboardInterrupt: Ctrl-C came, and the step at work was cancelled.
        """
        options = self._options
        with claimed(self._folder.path):
            job = self._folder.job(self._new_id(), options.start, fresh=options.fresh)
            self._clean()
            try:
                while not stop.is_set():
                    next_us = self._clock.monotonic_us() + options.every_us
                    self._until_done(job, stop)
                    wait_s = max(0, next_us - self._clock.monotonic_us()) / 1_000_000
                    stop.wait(min(wait_s, threading.TIMEOUT_MAX / 2))  # the system adds what time it is
            finally:
                self._close_session()
            return self.stopped()

    def stopped(self) -> Stopped:
        """Where the job is, from what is in its folder."""
        return self._folder.stopped()

    def _until_done(self, job: StepsJob, stop: Stop) -> None:
        """Do the next step, repeating it as the strategy says."""
        decider = restart_decider(self._options.restart)
        while True:
            step = next_step(job, self._folder.steps())
            try:
                self._step(job, step)
                return
            except (UsageError, PipelineError, IncompatibleStateError):
                raise
            except PenstockError as error:
                delay_ms = None if error.terminal else decider.delay_ms(self._clock.monotonic_ms())
                if delay_ms is None or stop.is_set():
                    raise
                self._watch.failed(step.number, error, delay_ms)
                if isinstance(error, ExternalError):
                    self._close_session()  # it may be the session that is broken
                if stop.wait(delay_ms / 1_000):
                    raise

    def _step(self, job: StepsJob, step: NextStep) -> None:
        """Do a step, if there is anything to do."""
        session = self._opened()
        began_us = self._clock.monotonic_us()
        run = self._run_of(session, job, step)
        try:
            beginning = self._new_beginning(run)
            if beginning is not None and not is_due(beginning, self._sources):
                return
            result = execute_in_thread(run, beginning)
        except UsageError as error:
            raise UsageError(
                f"step {step.number} was begun, and is carried out as it was begun: {error}; or, as long as nothing of "
                "the step is visible, begin a new job with --fresh"
            ) from error
        if result is None:
            raise KeyboardInterrupt
        self._folder.note_sealed(step.number)
        self._clean()
        seconds = (self._clock.monotonic_us() - began_us) / 1_000_000
        self._watch.done(self._done(step.number, run, result, seconds))

    def _clean(self) -> None:
        """Remove what is over. Where that fails nothing is lost: it is tried again behind the next step."""
        try:
            self._folder.clean()
        except ExternalError as error:
            self._watch.warn_once(str(error))

    def _new_beginning(self, run: SparkRun) -> RunBeginning | None:
        """What a step reads that was not begun before; None if it was."""
        if run.find_beginning() is not None:
            return None
        return self._silence.with_awake_splits(run.look(), self._clock.monotonic_us())

    def _run_of(self, session: SparkSession, job: StepsJob, step: NextStep) -> SparkRun:
        options = self._options
        return SparkRun(
            session,
            self._pipeline,
            self._code,
            run=job.run_id(step.number),
            clock=self._clock,
            parallelism=options.parallelism,
            folder=self._folder.of(step.number),
            staging=options.staging,
            options=RunOptions(
                self._start(job, step),
                self._folder.savepoint(step.number),
                warn=self._watch.warn_once,
                job=job.id,
                incremental=step.former is not None,
            ),
        )

    def _start(self, job: StepsJob, step: NextStep) -> StartingPoint | None:
        if step.former is not None:
            return starting_point(self._folder.savepoint(step.former).address)
        return starting_point(job.start, self._options.cluster) if job.start else None

    def _done(self, number: int, run: SparkRun, result: SparkResult, seconds: float) -> StepDone:
        operators = list(run.graph.operators())
        rows_in = sum(result.total(each.id, "rows_in") for each in operators if each.verb == "read")
        rows_out = sum(result.total(each.id, "rows_in") for each in operators if each.verb in SINK_VERBS)
        return StepDone(number, rows_in, rows_out, seconds, self._lag_us(number), result, run.graph)

    def _lag_us(self, number: int) -> int | None:
        """How far behind the clock the source is that holds event time back."""
        splits = starting_point(self._folder.savepoint(number).address).splits()
        marks = [entry.watermark for entries in splits.values() for entry in entries if not entry.idle]
        reached = min(marks, default=MIN_WATERMARK)
        return None if reached == MIN_WATERMARK else max(0, self._clock.now_us() - reached)

    def _opened(self) -> SparkSession:
        if self._session is None:
            self._session = self._open_session()
        return self._session

    def _close_session(self) -> None:
        session, self._session = self._session, None
        self._end_session(session)
