"""What a cluster says about the jobs of a resource, through its dispatchers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.client.client import ClusterClient
from penstock.client.documents import JobDetail, Overview, Requested, SavepointSummary, TaskView
from penstock.client.errors import RefusedError
from penstock.graph.jobgraph import JobVertex, graph_from_json
from penstock_operator.autoscaling import LoadSample, VertexCounts
from penstock_operator.resources import StartPoint
from penstock_operator.terms import Answered, JobSeen

NOT_FOUND = 404


async def look_at_job(cluster: ClusterClient, job: str, measured_us: int | None = None) -> JobSeen | None:
    """A job by its id; None if the cluster does not know it. `measured_us`: the time, if its load is wanted, too."""
    try:
        detail = await cluster.job(job)
    except RefusedError as error:
        if error.status == NOT_FOUND:
            return None
        raise
    seen = _seen(detail)
    if not seen.ended:
        return seen if measured_us is None else replace(seen, load=load_of(detail, measured_us))
    left = (await cluster.savepoints(job)).savepoints
    return _seen(detail, max(left, key=lambda one: one.checkpoint, default=None))


def _seen(detail: JobDetail, left: SavepointSummary | None = None) -> JobSeen:
    summary = detail.summary
    completed = [one.ended_us for one in detail.checkpoints if one.duration_us is not None and one.ended_us is not None]
    return JobSeen(
        state=summary.state,
        parallelism=summary.parallelism,
        all_running=0 < summary.tasks == summary.running_tasks,
        last_checkpoint=summary.last_checkpoint,
        checkpointed_us=max(completed, default=None),
        behind=summary.load.records_behind if summary.load is not None else None,
        reason=summary.reason or _trouble(detail),
        is_ending=bool(summary.reason),
        left=start_point(left) if left is not None else None,
    )


def load_of(detail: JobDetail, now_us: int) -> LoadSample | None:
    """What the vertices of a job do; None while not all of it runs, or where that is not measured or not up to date."""
    summary = detail.summary
    if not summary.live or detail.deaf_us or summary.state != "RUNNING" or not detail.vertices:
        return None
    tasks = {vertex.id: vertex.tasks for vertex in detail.vertices}
    graph = graph_from_json(detail.graph)
    everyone = [task for vertex in graph.vertices for task in tasks.get(vertex.id, ())]
    if len(everyone) != sum(vertex.parallelism for vertex in graph.vertices):
        return None
    if any(task.state not in ("running", "ended") for task in everyone):
        return None
    sent = {
        operator.node: _counted(tasks[vertex.id], operator.id)[1]
        for vertex in graph.vertices
        for operator in vertex.operators
    }
    vertices = tuple(_counts(vertex, tasks[vertex.id], sent, graph.parallelism) for vertex in graph.vertices)
    since_us = max(task.since_us.get("running", 0) for task in everyone)
    return LoadSample(now_us, since_us, graph.parallelism, vertices)


def _counts(vertex: JobVertex, tasks: Sequence[TaskView], sent: Mapping[str, int], parallelism: int) -> VertexCounts:
    inputs: dict[str, int] = {}
    for edge in vertex.inputs:
        inputs[edge.vertex] = inputs.get(edge.vertex, 0) + sent[edge.link.source]
    tasks = sorted(tasks, key=lambda task: task.index)
    progress = [task.progress for task in tasks]
    behind = [one.records_behind for one in progress if isinstance(one.records_behind, int)]
    return VertexCounts(
        id=vertex.id, name=vertex.name, parallelism=vertex.parallelism,
        spent_us=tuple((one.busy_us, one.busy_us + one.idle_us + one.blocked_us) for one in progress),
        workers=tuple(task.worker for task in tasks), rows=_counted(tasks, vertex.operators[0].id)[0],
        inputs=tuple(inputs.items()),
        behind=sum(behind) if behind else None, scales=vertex.parallelism == parallelism,
        key_groups=vertex.max_parallelism, slot_group=vertex.slot_group,
    )  # fmt: skip


def _counted(tasks: Sequence[TaskView], operator: str) -> tuple[int, int]:
    """Rows that have come into an operator, and gone out."""
    known = [task.metrics[operator] for task in tasks if operator in task.metrics]
    return sum(one.rows_in for one in known), sum(one.rows_out for one in known)


def spare_slots(overview: Overview) -> int:
    """Slots that no job has, with those of task managers that the cluster may start.

    For those that it has asked for somebody waits already.
    """
    scaling = overview.scaling
    if scaling is None or not scaling.standing:
        return overview.free_slots
    more = scaling.most - max(scaling.standing, scaling.wanted or 0)
    return overview.free_slots + max(0, more) * (overview.slots // scaling.standing)


def _trouble(detail: JobDetail) -> str:
    """What a job waits for, or why it failed last."""
    if missing := detail.summary.missing_slots:
        return f"the job waits for {missing} more slot{'s' if missing > 1 else ''}"
    return detail.failures[-1] if detail.failures else ""


def start_point(savepoint: SavepointSummary) -> StartPoint:
    """How a job is started from it."""
    return StartPoint(
        manifest=savepoint.manifest, checkpoint=savepoint.checkpoint, savepoint=savepoint.kind == "savepoint"
    )


async def answer_to(cluster: ClusterClient, job: str, request: str) -> Answered:
    """What has become of a request; that for a new job has the job's own id."""
    try:
        state = await cluster.request_state(Requested(job, request))
    except RefusedError as error:
        if error.status == NOT_FOUND:
            return Answered()
        raise
    restore = state.savepoint
    point = StartPoint(manifest=restore.manifest, checkpoint=restore.checkpoint) if restore is not None else None
    return Answered(state.state, state.reason, point)


async def find_savepoint(cluster: ClusterClient, name: str) -> tuple[StartPoint | None, str]:
    """The savepoint of that key, request or job; or why there is none."""
    try:
        return start_point(await cluster.savepoint(name)), ""
    except RefusedError as error:
        return None, f"fromSavepoint: {error}"
