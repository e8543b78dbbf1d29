"""How the jobs of a run are known in Spark: in its pages, to who follows them, and to who cancels them and no others."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock.graph.jobgraph import JobGraph, JobVertex
from penstock.spark.session import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DESCRIPTION: Final = "spark.job.description"
_GROUP: Final = ("spark.jobGroup.id", _DESCRIPTION, "spark.job.interruptOnCancel")
"""What a job group is made of."""


class RunLabels:
    """The group of a run's jobs (a tag, with Spark Connect), and what each of them computes."""

    def __init__(self, session: SparkSession, graph: JobGraph, run: str) -> None:
        self._session = session
        self._graph = graph
        self._run = run
        self.group: Final = f"penstock-{run}"
        self.cancelled = False

    @contextmanager
    def applied(self) -> Generator[None]:
        """Jobs that this thread begins meanwhile are the run's."""
        if is_remote(self._session):
            self._session.addTag(self.group)
            try:
                yield
            finally:
                self._session.removeTag(self.group)
            return
        context = self._session.sparkContext
        before = {name: context.getLocalProperty(name) for name in _GROUP}
        context.setJobGroup(self.group, f"{self._graph.name}, run {self._run}")
        try:
            yield
        finally:
            for name, value in before.items():
                context.setLocalProperty(name, value)  # pyright: ignore[reportArgumentType]  # None removes it

    def computes(self, vertex: JobVertex) -> None:
        """The next job computes everything up to this vertex."""
        if not is_remote(self._session):
            number = self._graph.vertices.index(vertex) + 1
            text = f"{self._graph.name}: {vertex.name} ({number} of {len(self._graph.vertices)}), run {self._run}"
            self._session.sparkContext.setLocalProperty(_DESCRIPTION, text)

    def jobs(self) -> Sequence[int]:
        """The numbers of the jobs begun; none are known with Spark Connect."""
        if is_remote(self._session):
            return ()
        return self._session.sparkContext.statusTracker().getJobIdsForGroup(self.group)

    def cancel(self) -> None:
        """End what is at work."""
        self.cancelled = True
        if is_remote(self._session):
            self._session.interruptTag(self.group)
        else:
            self._session.sparkContext.cancelJobGroup(self.group)
