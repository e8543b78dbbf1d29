"""A job: its page with graph and vertices, its configuration, failures, result, and what it may be rescaled to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec

from penstock.client.documents import ENDED
from penstock.coordination.cluster_view import ClusterView
from penstock.graph.jobgraph import JobGraph, JobVertex, graph_from_json
from penstock.graph.rescaling import scaled
from penstock.protocol.joblog import AttemptFailed
from penstock.submission.restart_text import restart_text
from penstock_dispatcher.flink.answers import hex_id
from penstock_dispatcher.flink.cluster_shapes import times_of
from penstock_dispatcher.flink.facts import UNASSIGNED, UNKNOWN, Subtask, job_times, lasted_ms, places_of, subtasks_of
from penstock_dispatcher.flink.io_metrics import FlinkIoMetrics, io_metrics
from penstock_dispatcher.flink.states import TERMINAL, counted, flink_state, vertex_state
from penstock_dispatcher.jobs import HIDDEN, Found, summary_of
from penstock_dispatcher.refusing import RestError

_SHIPS: Final = {"forward": "FORWARD", "hash": "HASH", "rebalance": "REBALANCE", "broadcast": "BROADCAST"}
_RESULTS: Final = {"FINISHED": "SUCCEEDED", "STOPPED": "SUCCEEDED", "CANCELED": "CANCELED", "FAILED": "FAILED"}
_PLACE: Final = re.compile(r"(?P<vertex>.+)\[(?P<index>\d+)\]")
_CLASS: Final = re.compile(r"(?:[\w.]+\.)?[A-Z]\w*(?=: |$)")


# -- documents ----------------------------------------------------------------------------------------------------------


class FlinkInput(msgspec.Struct, frozen=True):
    """An edge of the plan."""

    num: int
    id: str
    ship_strategy: str
    exchange: str = "pipelined_bounded"


class FlinkNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A vertex in the plan."""

    id: str
    parallelism: int
    operator: str
    operator_strategy: str
    description: str
    optimizer_properties: dict[str, str]
    inputs: tuple[FlinkInput, ...] = ()


class FlinkPlan(msgspec.Struct, frozen=True):
    """The graph of a job."""

    jid: str
    name: str
    type: str
    nodes: tuple[FlinkNode, ...]


class FlinkJobPlan(msgspec.Struct, frozen=True):
    """GET /jobs/:jobid/plan."""

    plan: FlinkPlan


class FlinkVertexInJob(msgspec.Struct, frozen=True, rename="kebab"):
    """A vertex on the page of its job."""

    id: str
    slot_sharing_group_id: str = msgspec.field(name="slotSharingGroupId")
    name: str
    max_parallelism: int = msgspec.field(name="maxParallelism")
    parallelism: int
    status: str
    start_time: int
    end_time: int
    duration: int
    tasks: dict[str, int]
    metrics: FlinkIoMetrics


class FlinkJob(msgspec.Struct, frozen=True, rename="kebab"):
    """GET /jobs/:jobid."""

    jid: str
    application_id: str
    name: str
    is_stoppable: bool = msgspec.field(name="isStoppable")
    state: str
    job_type: str
    scheduler_type: str = msgspec.field(name="schedulerType")
    start_time: int
    end_time: int
    duration: int
    max_parallelism: int = msgspec.field(name="maxParallelism")
    now: int
    timestamps: dict[str, int]
    vertices: tuple[FlinkVertexInJob, ...]
    status_counts: dict[str, int]
    plan: FlinkPlan
    pending_operators: int = 0


class FlinkJobStatus(msgspec.Struct, frozen=True):
    """GET /jobs/:jobid/status."""

    status: str


class FlinkExecutionConfig(msgspec.Struct, frozen=True, rename="kebab"):
    """How a job is run."""

    restart_strategy: str
    job_parallelism: int
    object_reuse_mode: bool
    user_config: dict[str, str]


class FlinkJobConfig(msgspec.Struct, frozen=True, rename="kebab"):
    """GET /jobs/:jobid/config."""

    jid: str
    name: str
    execution_config: FlinkExecutionConfig


class FlinkFailure(msgspec.Struct, frozen=True, rename="camel"):
    """Why an attempt was given up."""

    exception_name: str
    stacktrace: str
    timestamp: int
    failure_labels: dict[str, str]
    task_name: str | None
    endpoint: str | None
    task_manager_id: str | None
    concurrent_exceptions: tuple[str, ...] = ()


class FlinkFailureHistory(msgspec.Struct, frozen=True):
    """Newest first."""

    entries: tuple[FlinkFailure, ...]
    truncated: bool


class FlinkFailures(msgspec.Struct, frozen=True, rename="camel"):
    """GET /jobs/:jobid/exceptions."""

    exception_history: FlinkFailureHistory


class FlinkApplicationFailure(msgspec.Struct, frozen=True, rename="camel"):
    """A failure, with the job that it is of."""

    exception_name: str
    stacktrace: str
    timestamp: int
    job_id: str


class FlinkApplicationFailureHistory(msgspec.Struct, frozen=True):
    """Newest first."""

    entries: tuple[FlinkApplicationFailure, ...]


class FlinkApplicationFailures(msgspec.Struct, frozen=True, rename="camel"):
    """GET /applications/:id/exceptions."""

    exception_history: FlinkApplicationFailureHistory


class FlinkStatusId(msgspec.Struct, frozen=True):
    """How far something is."""

    id: str


class FlinkJobResult(msgspec.Struct, frozen=True, rename="kebab"):
    """How a job ended."""

    id: str
    application_id: str
    application_status: str
    accumulator_results: dict[str, str]
    net_runtime: int
    name: str
    start_time: int
    end_time: int


class FlinkExecutionResult(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """GET /jobs/:jobid/execution-result."""

    status: FlinkStatusId
    job_execution_result: FlinkJobResult | None = None


class FlinkJobAccumulators(msgspec.Struct, frozen=True, rename="kebab"):
    """GET /jobs/:jobid/accumulators: Penstock has none."""

    job_accumulators: tuple[str, ...] = ()
    user_task_accumulators: tuple[str, ...] = ()
    serialized_user_task_accumulators: dict[str, str] = {}


class FlinkBounds(msgspec.Struct, frozen=True, rename="camel"):
    """How many subtasks a vertex may have."""

    lower_bound: int
    upper_bound: int


class FlinkRequirement(msgspec.Struct, frozen=True):
    """Of one vertex."""

    parallelism: FlinkBounds


# -- the page -----------------------------------------------------------------------------------------------------------


def graph_of(found: Found) -> JobGraph:
    """The newest graph; raises `RestError` if another version of Penstock wrote it."""
    try:
        return found.graph
    except msgspec.ValidationError as error:
        raise RestError(500, f"job {found.job}: its graph is not readable by this version: {error}") from error


def job(found: Found, view: ClusterView | None, now_us: int) -> FlinkJob:
    """The page of a job."""
    summary, graph = summary_of(found), graph_of(found)
    vertices = tuple(_vertex(found, vertex, view, now_us) for vertex in graph.vertices)
    start, end, duration = times_of(summary, now_us)
    return FlinkJob(
        jid=found.job, application_id=found.job, name=summary.name, is_stoppable=False,
        state=flink_state(summary.state), job_type="STREAMING", scheduler_type="Default", start_time=start,
        end_time=end, duration=duration, max_parallelism=graph.max_parallelism, now=now_us // 1_000,
        timestamps=job_times(found), vertices=vertices, status_counts=counted(one.status for one in vertices),
        plan=plan(found.job, graph),
    )  # fmt: skip


def _vertex(found: Found, vertex: JobVertex, view: ClusterView | None, now_us: int) -> FlinkVertexInJob:
    subtasks = subtasks_of(found, vertex, view, now_us)
    tasks = counted(subtask.state for subtask in subtasks)
    start, end = span(subtasks)
    return FlinkVertexInJob(
        id=hex_id(vertex.id), slot_sharing_group_id=hex_id(vertex.slot_group), name=vertex.name,
        max_parallelism=vertex.max_parallelism, parallelism=vertex.parallelism,
        status=vertex_state(tasks, vertex.parallelism), start_time=start, end_time=end,
        duration=lasted_ms(start, end, now_us // 1_000, all(one.state in TERMINAL for one in subtasks)), tasks=tasks,
        metrics=io_metrics(vertex, subtasks),
    )  # fmt: skip


def span(subtasks: Sequence[Subtask]) -> tuple[int, int]:
    """When the first of them started, and when the last ended; -1: not yet, or not known."""
    start = min((one.start_ms for one in subtasks if one.start_ms != UNKNOWN), default=UNKNOWN)
    ended = all(one.state in TERMINAL for one in subtasks)
    return start, max((one.end_ms for one in subtasks), default=UNKNOWN) if ended else UNKNOWN


def plan(job_id: str, graph: JobGraph) -> FlinkPlan:
    """The graph."""
    return FlinkPlan(job_id, graph.name, "STREAMING", tuple(map(_node, graph.vertices)))


def _node(vertex: JobVertex) -> FlinkNode:
    return FlinkNode(
        hex_id(vertex.id), vertex.parallelism, "", "",
        "<br/>".join(escape(f"{operator.verb} {operator.id}") for operator in vertex.operators), {},
        tuple(FlinkInput(n, hex_id(edge.vertex), _SHIPS[edge.ship]) for n, edge in enumerate(vertex.inputs)),
    )  # fmt: skip


def job_config(found: Found) -> FlinkJobConfig:
    """How it is run; of parameters the names only."""
    submit = found.submit
    parameters = submit.artifact.parameters if submit.artifact is not None else {}
    parallelism = int(found.history.graph.get("parallelism", 1))
    execution = FlinkExecutionConfig(
        restart_text(submit.settings.restart), parallelism, False, dict.fromkeys(parameters, HIDDEN)
    )  # fmt: skip
    return FlinkJobConfig(found.job, submit.name, execution)


def execution_result(found: Found, now_us: int) -> FlinkExecutionResult:
    """How it ended, or that it has not."""
    summary = summary_of(found)
    if summary.state not in ENDED:
        return FlinkExecutionResult(FlinkStatusId("IN_PROGRESS"))
    start, end, duration = times_of(summary, now_us)
    result = FlinkJobResult(found.job, found.job, _RESULTS[summary.state], {}, duration, summary.name, start, end)
    return FlinkExecutionResult(FlinkStatusId("COMPLETED"), result)


# -- failures -----------------------------------------------------------------------------------------------------------


def failures(found: Found, view: ClusterView | None, most: int) -> FlinkFailures:
    """The newest `most`."""
    known = found.history.failures[::-1]
    places, names = places_of(view), {vertex.id: vertex for vertex in found.vertices}
    entries = tuple(_failure(failure, places, names) for failure in known[:most])
    return FlinkFailures(FlinkFailureHistory(entries, len(known) > most))


def _failure(failed: AttemptFailed, places: Mapping[str, str], vertices: Mapping[str, JobVertex]) -> FlinkFailure:
    place = _PLACE.fullmatch(failed.subtask)
    vertex = vertices.get(place["vertex"]) if place else None
    task = None
    if place is not None:
        index = int(place["index"])
        name, total = (vertex.name, str(vertex.parallelism)) if vertex is not None else (place["vertex"], "?")
        task = f"{name} ({index + 1}/{total}) - execution #{failed.attempt_number - 1}"
    text = failed.reason.removeprefix(f"{failed.subtask}: ") if failed.subtask else failed.reason
    return FlinkFailure(
        exception_name=_class_in(text), stacktrace=_stack(text, failed.frames), timestamp=failed.at_us // 1_000,
        failure_labels={}, task_name=task, task_manager_id=failed.worker or None,
        endpoint=places.get(failed.worker, UNASSIGNED) if failed.worker else None,
    )  # fmt: skip


def _class_in(text: str) -> str:
    """`ValueError` in `ValueError: no such key`; what did not raise is the failure of an attempt."""
    found = _CLASS.match(text)
    return found[0] if found else "penstock.AttemptFailed"


def _stack(text: str, frames: str) -> str:
    return f"Traceback (most recent call last):\n{frames.rstrip()}\n{text}" if frames else text


def application_failures(found: Found) -> FlinkApplicationFailures:
    """Those of its one job that ended it."""
    terminated = found.history.terminated
    if terminated is None or terminated.state != "FAILED":
        return FlinkApplicationFailures(FlinkApplicationFailureHistory(()))
    one = FlinkApplicationFailure(_class_in(terminated.reason), terminated.reason, terminated.at_us // 1_000, found.job)
    return FlinkApplicationFailures(FlinkApplicationFailureHistory((one,)))


# -- rescaling ----------------------------------------------------------------------------------------------------------


def requirements(graph: JobGraph) -> dict[str, FlinkRequirement]:
    """What the vertices have now: any parallelism down to 1 may be asked for."""
    return {hex_id(vertex.id): FlinkRequirement(FlinkBounds(1, vertex.parallelism)) for vertex in graph.vertices}


def parallelism_for(wanted: Mapping[str, FlinkRequirement], found: Found) -> int | None:
    """The parallelism at which the job has what is wanted of each vertex; None: it has it already.

    Raises:
        RestError: it can be had at none, a vertex is missing, or bounds are none.
    """
    graph = graph_of(found)
    bounds = {vertex: requirement.parallelism for vertex, requirement in wanted.items()}
    known = {hex_id(vertex.id): vertex for vertex in graph.vertices}
    if set(bounds) != set(known):
        raise RestError(
            400, f"The resource requirements must name every vertex of the job, and no others: {sorted(known)}"
        )
    for vertex, bound in bounds.items():
        if not 1 <= bound.lower_bound <= bound.upper_bound <= known[vertex].max_parallelism:
            raise RestError(
                400, f"{vertex}: 1 <= lowerBound <= upperBound <= {known[vertex].max_parallelism}, its key groups"
            )
    asked = {vertex: bound.upper_bound for vertex, bound in bounds.items()}
    if asked == {vertex: one.parallelism for vertex, one in known.items()}:
        return None
    return _common(asked, found)


def _common(asked: Mapping[str, int], found: Found) -> int:
    submit: Any = found.submit
    if submit.scalable is None:
        raise RestError(400, f"job {found.job} was submitted without the form of its graph that can be rescaled")
    form = graph_from_json(submit.scalable)
    for parallelism in sorted(set(asked.values())):
        if {hex_id(one.id): one.parallelism for one in scaled(form, parallelism).vertices} == asked:
            return parallelism
    free = sorted(hex_id(one.id) for one in form.vertices if one.parallelism == form.parallelism)
    raise RestError(
        400,
        f"Penstock rescales a job as a whole: give these vertices the same upperBound, and leave the others: {free}",
    )
