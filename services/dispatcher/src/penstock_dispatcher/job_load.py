"""How a running job does at the moment, in a few numbers: for lists of jobs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.client.documents import JobLoad
from penstock.coordination.cluster_view import JobView, TaskView
from penstock.graph.jobgraph import ENCODE, JobVertex

WRITES = ("write", ENCODE)
"""Operators at which rows leave a job. What publishes them later takes batches of bytes."""


def load_of(vertices: Iterable[JobVertex], view: JobView | None) -> JobLoad | None:
    """The load of a job as its leader measured it; None as long as no subtask was measured."""
    if view is None:
        return None
    read, written = _ends(vertices)
    tasks = [task for vertex in view.vertices for task in vertex.tasks]
    rates = [task.rates for task in tasks if task.rates is not None]
    if not rates:
        return None
    return JobLoad(
        rows_in=sum(one.rows[operator][1] for one in rates for operator in read if operator in one.rows),
        rows_out=sum(one.rows[operator][0] for one in rates for operator in written if operator in one.rows),
        busy=max(one.busy for one in rates),
        blocked=max(one.blocked for one in rates),
        records_behind=_behind(tasks),
    )


def _ends(vertices: Iterable[JobVertex]) -> tuple[set[str], set[str]]:
    """The operators that read, and those that write."""
    operators = [operator for vertex in vertices for operator in vertex.operators]
    read = {operator.id for operator in operators if operator.verb == "read"}
    return read, {operator.id for operator in operators if operator.verb in WRITES}


def _behind(tasks: Iterable[TaskView]) -> int | None:
    found = [task.progress.records_behind for task in tasks]
    known = [behind for behind in found if behind is not msgspec.UNSET]
    return sum(known) if known else None
