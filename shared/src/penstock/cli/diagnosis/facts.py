"""What is known of a job at one moment, in the terms in which the checks of `penstock doctor JOB` ask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec

from penstock.client.documents import Failures, JobDetail, Overview, TaskView
from penstock.coordination.cluster_view import TaskRates
from penstock.coordination.job_summary import operator_name
from penstock.graph.jobgraph import JobGraph, JobVertex, graph_from_json

NAMED: Final = 3
"""So many subtasks are named; of more it is said how many."""


class JobFinding(msgspec.Struct, frozen=True):
    """What one check found about a job."""

    check: str
    ok: bool
    seen: str
    """With the numbers from which it follows."""
    meaning: str = ""
    advice: str = ""
    """What to do."""
    doc: str = ""
    """The page and section that tell more, in the repository's `docs`."""
    frames: str = ""
    """Where in the user's code, as in a traceback."""


@dataclass(frozen=True)
class Load:
    """A vertex with what its subtasks say."""

    vertex: JobVertex
    tasks: tuple[TaskView, ...]

    @property
    def name(self) -> str:
        """For people: the id, and its operators."""
        return f"{self.vertex.id} ({self.vertex.name})"

    @property
    def measured(self) -> list[tuple[TaskView, TaskRates]]:
        """The subtasks whose rates are known."""
        return [(task, task.rates) for task in self.tasks if task.rates is not None]

    @property
    def busy(self) -> float:
        """Share of its time, 0 to 1, that the busiest subtask works."""
        return max((rates.busy for _, rates in self.measured), default=0.0)

    @property
    def amidst(self) -> list[TaskView]:
        """Subtasks that have accounted for no time lately: their process is in the midst of one batch or call."""
        return [
            task
            for task, rates in self.measured
            if task.state == "running" and not task.waits_for and not rates.busy + rates.idle + rates.blocked
        ]

    @property
    def blocked(self) -> float:
        """Share of its time, 0 to 1, that the subtask waits for what is downstream that waits most."""
        return max((rates.blocked for _, rates in self.measured), default=0.0)

    def rows(self, rates: TaskRates) -> float:
        """Rows a second that a subtask takes; of a source, those that it emits."""
        came, went = rates.rows.get(self.vertex.operators[0].id, (0.0, 0.0))
        return went if self.vertex.is_source else came

    @property
    def rate(self) -> float:
        """Rows a second of all subtasks."""
        return sum(self.rows(rates) for _, rates in self.measured)

    @property
    def records_behind(self) -> int | None:
        """Records that are there and not read; None where nobody can tell."""
        found = [task.progress.records_behind for task in self.tasks]
        known = [behind for behind in found if behind is not msgspec.UNSET]
        return sum(known) if known else None


@dataclass(frozen=True)
class JobFacts:
    """The documents about a job, and when they were read."""

    detail: JobDetail
    failures: Failures
    overview: Overview
    now_us: int

    @cached_property
    def graph(self) -> JobGraph | None:
        """None if another version of Penstock wrote it."""
        try:
            return graph_from_json(self.detail.graph)
        except msgspec.ValidationError:
            return None

    @cached_property
    def loads(self) -> dict[str, Load]:
        """All vertices, each behind those that it reads from."""
        if self.graph is None:
            return {}
        tasks = {vertex.id: vertex.tasks for vertex in self.detail.vertices}
        return {vertex.id: Load(vertex, tasks.get(vertex.id, ())) for vertex in _downstream(self.graph)}

    @property
    def sources(self) -> list[Load]:
        """The vertices that read."""
        return [load for load in self.loads.values() if load.vertex.is_source]

    def consumers(self, load: Load) -> list[Load]:
        """The vertices that read from this one, each once."""
        return [other for other in self.loads.values() if any(e.vertex == load.vertex.id for e in other.vertex.inputs)]

    def behind(self, load: Load) -> set[str]:
        """A vertex and all that its rows come to, by id."""
        found = {load.vertex.id}
        for other in self.loads.values():
            if any(edge.vertex in found for edge in other.vertex.inputs):
                found.add(other.vertex.id)
        return found

    def records_behind(self) -> int | None:
        """Records that no source has read; None where none can tell."""
        known = [load.records_behind for load in self.sources if load.records_behind is not None]
        return sum(known) if known else None

    def ago(self, at_us: int) -> int:
        """Microseconds since then."""
        return max(0, self.now_us - at_us)


def _downstream(graph: JobGraph) -> Iterator[JobVertex]:
    """Each vertex behind those that it reads from."""
    left, done = list(graph.vertices), set[str]()
    while left:
        ready = [vertex for vertex in left if all(edge.vertex in done for edge in vertex.inputs)] or left
        yield from ready
        done.update(vertex.id for vertex in ready)
        left = [vertex for vertex in left if vertex.id not in done]


def operators(load: Load) -> str:
    """What runs in a vertex, by the names that its author gave."""
    return ", ".join(operator_name(operator) for operator in load.vertex.operators)


def named(subtasks: Iterable[str]) -> str:
    """Some of them by name, and how many more there are."""
    found = list(subtasks)
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more
