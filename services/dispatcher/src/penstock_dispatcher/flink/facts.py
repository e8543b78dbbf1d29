"""What is known of the subtasks of a job, put together from the leader's view and the job log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.coordination.cluster_view import ClusterView, TaskView
from penstock.graph.jobgraph import JobVertex
from penstock.protocol.joblog import AttemptFailed, Begin
from penstock_dispatcher.flink.states import JOB_STATES, OF_ENDED, OF_TASK, TASK_STATES, TERMINAL, flink_state
from penstock_dispatcher.jobs import Found

UNASSIGNED: Final = "(unassigned)"
"""Flink's word for the place of a subtask that has none, or none that anybody remembers."""
NEVER: Final = 0
"""In maps of times: it was never in that state, or nobody noted when."""
UNKNOWN: Final = -1
_PLACE: Final = re.compile(r"\S+:\d+")


@dataclass(frozen=True)
class Subtask:
    """A subtask in Flink's words. Times in milliseconds since the epoch."""

    index: int
    state: str
    attempt: int
    """Counted from 0."""
    timestamps: Mapping[str, int]
    """When it came into every state; `NEVER`."""
    now_ms: int
    worker: str = ""
    endpoint: str = UNASSIGNED
    task: TaskView | None = None
    """What its worker says; None if nobody does."""

    @property
    def start_ms(self) -> int:
        """When it was deployed, -1 if it was not, or nobody knows."""
        return self.timestamps["DEPLOYING"] or self.timestamps["INITIALIZING"] or UNKNOWN

    @property
    def end_ms(self) -> int:
        """When it ended, -1 if it did not."""
        return (self.timestamps[self.state] or UNKNOWN) if self.state in TERMINAL else UNKNOWN

    @property
    def duration_ms(self) -> int:
        """From its start to its end or now; -1 where these are not known."""
        return lasted_ms(self.start_ms, self.end_ms, self.now_ms, self.state in TERMINAL)

    @property
    def status_duration(self) -> dict[str, int]:
        """Milliseconds in each state on the way to running; -1: never, or unknown."""
        durations: dict[str, int] = {}
        after = self.end_ms if self.state in TERMINAL else self.now_ms
        for state in ("RUNNING", "INITIALIZING", "DEPLOYING", "SCHEDULED", "CREATED"):
            since = self.timestamps[state]
            durations[state] = max(0, after - since) if since and after > 0 else UNKNOWN
            after = since or after
        return durations


def lasted_ms(start_ms: int, end_ms: int, now_ms: int, ended: bool) -> int:
    """From a start to an end, or to now; -1 where these are not known."""
    if start_ms == UNKNOWN or (ended and end_ms == UNKNOWN):
        return UNKNOWN
    return max(0, (end_ms if ended else now_ms) - start_ms)


def subtasks_of(found: Found, vertex: JobVertex, view: ClusterView | None, now_us: int) -> list[Subtask]:
    """The subtasks of a vertex: those of the newest attempt, or of the last one of a job that has ended."""
    shown = next((v for v in found.view.vertices if v.id == vertex.id), None) if found.view is not None else None
    tasks = {task.index: task for task in shown.tasks} if shown is not None else {}
    places = places_of(view)
    return [_subtask(found, index, tasks.get(index), places, now_us) for index in range(vertex.parallelism)]


def _subtask(found: Found, index: int, task: TaskView | None, places: Mapping[str, str], now_us: int) -> Subtask:
    begin, terminated = found.history.begin, found.history.terminated
    timestamps: dict[str, int] = dict.fromkeys(TASK_STATES, NEVER)
    attempt = begin.attempt_number - 1 if begin is not None else 0
    if begin is not None:
        timestamps["CREATED"] = begin.at_us // 1_000
    if terminated is not None:
        state = OF_ENDED[terminated.state]
        timestamps[state] = terminated.at_us // 1_000
        return Subtask(index, state, attempt, timestamps, now_us // 1_000)
    if task is None:
        return Subtask(index, "CREATED", attempt, timestamps, now_us // 1_000)
    for name, at_us in task.since_us.items():
        known = OF_TASK.get(name)  # a leader of a later version may know more states
        if known is not None:
            timestamps[known] = timestamps[known] or at_us // 1_000
    place = places.get(task.worker, UNASSIGNED)
    return Subtask(
        index, OF_TASK.get(task.state, "RUNNING"), attempt, timestamps, now_us // 1_000, task.worker, place, task
    )


def places_of(view: ClusterView | None) -> dict[str, str]:
    """Worker to the address of its task manager, `host:port`."""
    return {worker.worker: endpoint(worker.host) for worker in view.workers} if view is not None else {}


def endpoint(host: str) -> str:
    """The address in what a worker says of where it runs."""
    found = _PLACE.findall(host)
    return found[-1] if found else host or UNASSIGNED


# -- jobs ---------------------------------------------------------------------------------------------------------------


def job_times(found: Found) -> dict[str, int]:
    """When a job came into its states: the newest time of each, as its log has it; 0: never."""
    times: dict[str, int] = dict.fromkeys(JOB_STATES, NEVER)
    submit, terminated = found.submit, found.history.terminated
    times["INITIALIZING"] = submit.submitted_us // 1_000
    times["CREATED"] = (submit.at_us or submit.submitted_us) // 1_000
    for record in found.history.records:
        if isinstance(record, Begin):
            times["RUNNING"] = record.at_us // 1_000
        elif isinstance(record, AttemptFailed):
            times["RESTARTING"] = record.at_us // 1_000
    if terminated is not None:
        times[flink_state(terminated.state)] = terminated.at_us // 1_000
    return times
