"""What Spark is at, asked of it once a second and handed on when it has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from penstock.graph.jobgraph import JobVertex
from penstock.runs.run_views import RunProgress
from penstock.spark.labels import RunLabels
from penstock.spark.session import is_local, ui_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.engine import SparkRun

PERIOD_S: Final = 1.0


class RunTracker:
    """Follows the Spark jobs of one session."""

    def __init__(self, session: SparkSession, changed: Callable[[RunProgress], None]) -> None:
        """`changed` is told every new state, from a thread of its own."""
        context: Any = session.sparkContext
        self._tracker = context.statusTracker()
        self._context = context._jsc.sc()
        self._stages = self._context.statusStore()  # rows are in no public interface of PySpark
        self._local = is_local(context.master)
        self._ui = ui_address(session) or ""
        self._changed = changed
        self._at = RunProgress().at
        self._labels: RunLabels | None = None
        self._parallelism = 0
        self._told: RunProgress | None = None
        self._over = threading.Event()

    def begins(self, run: SparkRun) -> None:
        """The session is there; what comes now is the run."""
        self._at, self._labels = "planning", run.labels
        self._parallelism = run.graph.parallelism

    def entered(self, vertex: JobVertex) -> None:
        """A job begins that computes everything up to this vertex."""
        self._at = vertex.name

    @contextmanager
    def followed(self) -> Generator[None]:
        """Follow while the block runs."""
        thread = threading.Thread(target=self._follow, name="run-tracker", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _follow(self) -> None:
        while True:
            over = self._over.wait(PERIOD_S)
            try:
                progress = self._look()
            except Exception:  # whatever the gateway to the JVM raises when Spark is going: the run itself will say so
                return
            if progress != self._told:
                self._told = progress
                self._changed(progress)
            if over:
                return

    def _look(self) -> RunProgress:
        begun = self._labels.jobs() if self._labels is not None else ()
        jobs = [self._tracker.getJobInfo(number) for number in begun]
        numbers = sorted({stage for job in jobs if job is not None for stage in job.stageIds})
        found = [(number, info) for number in numbers if (info := self._tracker.getStageInfo(number)) is not None]
        active = set(self._tracker.getActiveStageIds())
        at_work = [info for number, info in found if number in active]
        waits = ", waiting for executors: none is there" if at_work and not self._has_executors() else ""
        return RunProgress(
            at=self._at + waits,
            stages=len(numbers),
            stages_done=sum(info.numCompletedTasks == info.numTasks for _, info in found),
            tasks=sum(info.numTasks for info in at_work),
            tasks_done=sum(info.numCompletedTasks for info in at_work),
            rows=sum(self._rows(number) for number in numbers),
            parallelism=self._parallelism,
            ui=self._ui,
        )

    def _has_executors(self) -> bool:
        """Whether somebody is there to run tasks; a cluster that is full lets a run wait without a word."""
        return self._local or int(self._context.getExecutorMemoryStatus().size()) > 1  # the driver is one of them

    def _rows(self, stage: int) -> int:
        """What a stage has handed to the next exchange."""
        from py4j.protocol import Py4JJavaError

        try:
            return int(self._stages.lastStageAttempt(stage).shuffleWriteRecords())
        except Py4JJavaError:  # it has not begun, or is forgotten
            return 0
