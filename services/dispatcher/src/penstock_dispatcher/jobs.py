"""Finds jobs by what people call them, and describes them from the leader's view and the job logs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.client.documents import (
    Checkpoint,
    CheckpointList,
    FailedAttempt,
    Failures,
    JobDetail,
    JobList,
    JobLog,
    JobSummary,
    SavepointSummary,
    VertexView,
)
from penstock.coordination.cluster_view import ClusterView, JobState, JobView
from penstock.coordination.job_catalog import FinishedJob
from penstock.errors import CorruptDataError, ExternalError
from penstock.graph.jobgraph import JobGraph, JobVertex, graph_from_json
from penstock.protocol.joblog import AttemptFailed, Begin, Complete, JobHistory, Submit
from penstock.protocol.joblog import Savepoint as SavepointRecord
from penstock_dispatcher.cluster import Cluster
from penstock_dispatcher.job_load import load_of
from penstock_dispatcher.naming import LIST_THEM, SHORTEST_PREFIX, has_ended, meant_by_name, meant_by_prefix
from penstock_dispatcher.refusing import RestError

HIDDEN: Final = "***"
"""In the place of values that only the job itself needs to know."""
SHOWN: Final = 100
"""How many checkpoints are listed."""
_HEX: Final = frozenset("0123456789abcdef")
_RUNNING: Final = ("running", "ended")


@dataclass(frozen=True)
class Found:
    """A job: as the leader shows it, where one does, and as its log says."""

    job: str
    history: JobHistory
    view: JobView | None = None
    finished: FinishedJob | None = None
    missing: str = ""
    """Why the log could not be read: the history is then no more than what the view says."""

    @property
    def submit(self) -> Submit:
        """Its first record."""
        if self.history.submit is None:
            raise CorruptDataError(f"job {self.job}: the store names it, but has no log of it")
        return self.history.submit

    @property
    def graph(self) -> JobGraph:
        """Its newest graph."""
        return graph_from_json(self.history.graph)

    @property
    def vertices(self) -> tuple[JobVertex, ...]:
        """Those of its newest graph; none if another version of Penstock wrote that."""
        try:
            return tuple(self.graph.vertices)
        except msgspec.ValidationError:
            return ()

    @property
    def state(self) -> JobState:
        """What it is doing."""
        return state_of(self.history, self.view)


def state_of(history: JobHistory, view: JobView | None) -> JobState:
    """The log has the last word about an end; about everything else the leader."""
    if history.terminated is not None:
        return history.terminated.state
    if view is not None:
        return view.state
    return "RUNNING" if history.begin is not None else "CREATED"


class Jobs:
    """The jobs of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # -- finding --------------------------------------------------------------------------------------------------------

    async def look(self, name: str) -> Found:
        """As `find`, but where the store does not answer, what the leader shows of the job.

        Raises:
            RestError: there is none, or there are several.
            ExternalError: neither the store nor a leader knows.
        """
        try:
            return await self.find(name)
        except ExternalError as error:
            view = await self._cluster.view.if_any()
            shown = [job for job in view.jobs if _is_called(job, name)] if view is not None else []
            if len(shown) != 1:
                raise
            return found_in_view(shown[0], str(error))

    async def find(self, name: str) -> Found:
        """The job of this id, of the only id that begins so, or of this name; of those that have ended, the newest.

        Raises:
            RestError: there is none, or there are several.
        """
        active, finished = await self._cluster.ids()
        known = {*active, *finished}
        text = name.lower()
        if _is_id(text):
            return await self.exact(text)
        job = meant_by_prefix("job", text, known)
        return await self.exact(job if job is not None else await self._by_name(name, active))

    async def exact(self, job: str) -> Found:
        """The job of this id; raises `RestError` 404."""
        history = await self._cluster.history(job)
        if history.submit is None:
            raise RestError(404, f"there is no job {job}; {LIST_THEM}")
        view = await self._cluster.view.if_any()
        return Found(job, history, _view_of(view, job), await self._finished(job) if history.terminated else None)

    async def alive(self, name: str) -> Found:
        """The same, of a job that something can be asked of; raises `RestError` 409 if it has ended."""
        found = await self.find(name)
        terminated = found.history.terminated
        if terminated is not None:
            raise has_ended("job", found.submit.name, found.job, terminated.state, terminated.reason)
        return found

    async def _by_name(self, name: str, active: Iterable[str]) -> str:
        histories = await self._cluster.histories(active)
        names = {job: history.submit.name for job, history in histories.items() if history.submit is not None}
        finished = await self._cluster.finished()
        alike = sorted((job for job in finished if job.name == name), key=lambda job: job.ended_us)
        newest = {job.job: name for job in alike[-1:]}
        view = await self._cluster.view.if_any()
        states = {job: state_of(history, _view_of(view, job)) for job, history in histories.items()}
        known = [*names.values(), *(job.name for job in finished)]
        return meant_by_name("job", name, names, newest, known=known, states=states)

    async def _finished(self, job: str) -> FinishedJob | None:
        return next((finished for finished in await self._cluster.finished() if finished.job == job), None)

    # -- describing -----------------------------------------------------------------------------------------------------

    async def list(self) -> JobList:
        """All jobs; where the store does not answer, those that the leader shows.

        Raises:
            ExternalError: neither the store nor a leader knows.
        """
        view = await self._cluster.view.if_any()
        try:
            return await self._list_stored(view)
        except ExternalError as error:
            if view is None:
                raise
            shown = sorted(
                (found_in_view(job, str(error)) for job in view.jobs), key=lambda one: -one.submit.submitted_us
            )
            missing = f"{error}; jobs that have ended are not shown"
            return JobList(tuple(map(summary_of, shown)), view.leader, missing, view.deaf_us)

    async def _list_stored(self, view: ClusterView | None) -> JobList:
        active = await self._cluster.active()
        histories = await self._cluster.histories(active)
        ended = {job.job: job for job in await self._cluster.finished()}
        shown = {job.job: job for job in view.jobs} if view is not None else {}
        found = [Found(job, histories[job], shown.get(job)) for job in active if job not in ended]
        running = [summary_of(job) for job in found if job.history.submit is not None]
        running += [summary_of_unreadable(job.view) for job in found if job.history.submit is None and job.view]
        summaries = [
            *sorted(running, key=lambda job: -job.submitted_us),
            *sorted(map(summary_of_finished, ended.values()), key=lambda job: -job.submitted_us),
        ]
        if view is None:
            return JobList(tuple(summaries), "")
        return JobList(tuple(summaries), view.leader, deaf_us=view.deaf_us)


def found_in_view(view: JobView, missing: str) -> Found:
    """A job as far as its leader shows it."""
    submit = Submit(
        job=view.job, name=view.name, graph=view.graph, artifact=view.artifact, submitted_us=view.submitted_us, seq=0
    )
    history = JobHistory(submit=submit, graph=view.graph, highest_checkpoint=view.last_checkpoint)
    return Found(view.job, history, view, None, missing)


def _is_called(view: JobView, name: str) -> bool:
    text = name.lower()
    return name == view.name or text == view.job or (len(text) >= SHORTEST_PREFIX and view.job.startswith(text))


def summary_of(found: Found) -> JobSummary:
    """A job in short."""
    submit, view, history, finished = found.submit, found.view, found.history, found.finished
    tasks = [task for vertex in view.vertices for task in vertex.tasks] if view is not None else []
    terminated = history.terminated
    failed = failed_since_checkpoint(history)
    wrong = "" if view is None else view.failures[-1] if view.state == "UNOPENED" else view.ending
    return JobSummary(
        job=found.job,
        name=submit.name,
        state=found.state,
        parallelism=int(history.graph.get("parallelism", 1)),
        submitted_us=submit.submitted_us,
        ended_us=finished.ended_us if finished is not None else None,
        reason=terminated.reason if terminated is not None else wrong,
        running_tasks=sum(task.state in _RUNNING for task in tasks) if terminated is None else 0,
        tasks=sum(vertex.parallelism for vertex in found.vertices),
        missing_slots=view.missing_slots if view is not None and terminated is None else 0,
        last_checkpoint=history.highest_checkpoint,
        live=view is not None,
        changed_us=max((record.at_us for record in history.records), default=0),
        attempts=attempts_of(found),
        load=load_of(found.vertices, view) if terminated is None else None,
        last_checkpoint_us=max((record.at_us for record in history.records if isinstance(record, Complete)), default=0),
        failures=len(failed) if terminated is None else 0,
        failure=failed[-1].reason if failed and terminated is None else "",
    )


def failed_since_checkpoint(history: JobHistory) -> list[AttemptFailed]:
    """The attempts that failed behind the newest complete checkpoint, oldest first."""
    complete = (record.seq for record in history.records if isinstance(record, Complete | SavepointRecord))
    newest = max(complete, default=-1)
    return [failure for failure in history.failures if failure.seq > newest]


def attempts_of(found: Found) -> int:
    """How often it was started; a log that was compacted may tell of fewer than its leader."""
    begins = sum(isinstance(record, Begin) for record in found.history.records)
    return max(begins, found.view.attempts if found.view is not None else 0)


def summary_of_unreadable(view: JobView) -> JobSummary:
    """A job whose log cannot be read: there is nothing but what the leader says."""
    reason = view.failures[-1] if view.failures else ""
    return JobSummary(view.job, view.name, view.state, view.parallelism, view.submitted_us, reason=reason, live=True)


def summary_of_finished(job: FinishedJob) -> JobSummary:
    """A job that has ended."""
    state: Any = job.state
    return JobSummary(
        job=job.job, name=job.name, state=state, parallelism=job.parallelism, submitted_us=job.submitted_us,
        ended_us=job.ended_us, reason=job.reason, last_checkpoint=job.checkpoint, changed_us=job.ended_us,
    )  # fmt: skip


def detail_of(found: Found) -> JobDetail:
    """All that is known about a job."""
    view, history = found.view, found.history
    restored = history.begin.restore if history.begin is not None else history.submit and history.submit.restored_from
    if view is not None and view.state != "UNOPENED":
        vertices, checkpoints, failures = view.vertices, view.checkpoints, view.failures
    else:
        vertices = tuple(VertexView(v.id, v.name, v.parallelism, ()) for v in found.vertices)
        checkpoints, failures = (), view.failures if view is not None else ()
    return JobDetail(
        summary=summary_of(found),
        attempts=attempts_of(found),
        restored=restored.checkpoint if restored else view.restored if view is not None else None,
        vertices=vertices,
        checkpoints=checkpoints,
        failures=failures,
        graph=history.graph,
        missing=found.missing,
        deaf_us=view.deaf_us if view is not None else 0,
        checkpoint_interval_us=found.submit.settings.checkpoints.interval_ms * 1_000,
    )


def checkpoints_of(found: Found) -> CheckpointList:
    """The newest checkpoints: what the log says, and the sizes and times that the leader remembers."""
    checkpoints: dict[int, Checkpoint] = {}
    for record in found.history.records:
        if isinstance(record, Complete):
            checkpoints[record.checkpoint] = Checkpoint(record.checkpoint, "complete", manifest=record.manifest)
        elif isinstance(record, SavepointRecord):
            checkpoints[record.checkpoint] = Checkpoint(
                record.checkpoint, "complete", savepoint=True, manifest=record.manifest
            )
    for seen in found.view.checkpoints if found.view is not None else ():
        known = checkpoints.get(seen.checkpoint, Checkpoint(seen.checkpoint, seen.state))
        checkpoints[seen.checkpoint] = msgspec.structs.replace(
            known, triggered_us=seen.triggered_us, duration_us=seen.duration_us, size_bytes=seen.size_bytes,
            sync_us=seen.sync_us, reason=seen.reason,
        )  # fmt: skip
    newest = sorted(checkpoints.values(), key=lambda checkpoint: -checkpoint.checkpoint)[:SHOWN]
    return CheckpointList(found.job, tuple(newest), detail_of(found).restored)


def failures_of(found: Found) -> Failures:
    """What went wrong."""
    terminated = found.history.terminated
    reason = terminated.reason if terminated is not None and terminated.state == "FAILED" else ""
    attempts = tuple(
        FailedAttempt(one.attempt_number, one.reason, one.subtask, one.worker, one.frames, one.at_us)
        for one in found.history.failures
    )
    said = found.view.failures if found.view is not None else tuple(one.reason for one in attempts)
    return Failures(found.job, said, reason, attempts)


def log_of(found: Found) -> JobLog:
    """The records, without the graphs, which stand in the job's description."""
    return JobLog(found.job, tuple(shown_record(record) for record in found.history.records))


def shown_record(record: msgspec.Struct) -> dict[str, Any]:
    """A record of a log as it is shown: without graphs, and without values that may be secrets."""
    plain: dict[str, Any] = msgspec.to_builtins(record)
    plain.pop("graph", None)
    plain.pop("scalable", None)
    for holder, name in ((plain.get("artifact"), "parameters"), (plain.get("options"), "conf")):
        if isinstance(holder, dict):
            holder[name] = dict.fromkeys(holder.get(name) or {}, HIDDEN)
    return plain


def savepoints_of(job: str, history: JobHistory) -> list[SavepointSummary]:
    """The savepoints of a job, oldest first; and the checkpoint that a failed or cancelled one has left."""
    submit = history.submit
    if submit is None:
        return []
    found = [
        SavepointSummary(job, submit.name, record.checkpoint, record.manifest, record.sha256, record.request)
        for record in history.records
        if isinstance(record, SavepointRecord) and record.published
    ]
    retained = history.retained
    if retained is not None:
        number, manifest, digest = retained.checkpoint, retained.manifest, retained.sha256
        if all(savepoint.checkpoint != number for savepoint in found):
            found.append(SavepointSummary(job, submit.name, number, manifest, digest, "", "checkpoint"))
    return found


def _view_of(view: ClusterView | None, job: str) -> JobView | None:
    return next((found for found in view.jobs if found.job == job), None) if view is not None else None


def _is_id(text: str) -> bool:
    return len(text) == 32 and set(text) <= _HEX
