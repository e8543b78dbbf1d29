"""The cluster, its jobs in lists, and its applications: one per job, as Flink makes of what is submitted by itself."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock import __version__
from penstock.client.documents import ENDED, JobSummary
from penstock.coordination.cluster_view import ClusterView
from penstock_dispatcher.flink.facts import UNKNOWN, job_times
from penstock_dispatcher.flink.states import APPLICATION_STATES, OF_ENDED, TASK_STATES, application_state, flink_state
from penstock_dispatcher.jobs import Found, summary_of

FLINK_VERSION: Final = "2.3.0"
"""The version whose interface this is."""
REFRESH_MS: Final = 3_000


class FlinkFeatures(msgspec.Struct, frozen=True, rename="kebab"):
    """What Flink's pages offer. Jars are none of Penstock's, and its jobs are rescaled as a whole."""

    web_submit: bool = False
    web_cancel: bool = True
    web_rescale: bool = False
    web_history: bool = False


class FlinkConfig(msgspec.Struct, frozen=True, rename="kebab"):
    """GET /config: how Flink's pages behave."""

    refresh_interval: int
    timezone_name: str
    timezone_offset: int
    flink_version: str
    flink_revision: str
    features: FlinkFeatures = FlinkFeatures()


class FlinkOverview(msgspec.Struct, frozen=True, rename="kebab"):
    """GET /overview: the cluster in numbers."""

    taskmanagers: int
    slots_total: int
    slots_available: int
    jobs_running: int
    jobs_finished: int
    jobs_cancelled: int
    jobs_failed: int
    flink_version: str
    flink_commit: str


class FlinkJobId(msgspec.Struct, frozen=True):
    """A job and its state."""

    id: str
    status: str


class FlinkJobIds(msgspec.Struct, frozen=True):
    """GET /jobs."""

    jobs: tuple[FlinkJobId, ...]


class FlinkJobInList(msgspec.Struct, frozen=True, rename="kebab"):
    """A job in a list. Times in milliseconds."""

    jid: str
    name: str
    job_type: str = msgspec.field(name="jobType")
    scheduler_type: str = msgspec.field(name="schedulerType")
    start_time: int
    end_time: int
    duration: int
    state: str
    last_modification: int
    tasks: dict[str, int]
    """State in lower case, and `total`, to subtasks."""
    pending_operators: int = 0


class FlinkJobs(msgspec.Struct, frozen=True):
    """GET /jobs/overview."""

    jobs: tuple[FlinkJobInList, ...]


class FlinkApplicationInList(msgspec.Struct, frozen=True, rename="kebab"):
    """An application in a list."""

    id: str
    name: str
    status: str
    start_time: int
    end_time: int
    duration: int
    jobs: dict[str, int]
    """State to jobs."""


class FlinkApplications(msgspec.Struct, frozen=True):
    """GET /applications/overview."""

    applications: tuple[FlinkApplicationInList, ...]


class FlinkApplication(msgspec.Struct, frozen=True, rename="kebab"):
    """GET /applications/:id."""

    id: str
    name: str
    status: str
    start_time: int
    end_time: int
    duration: int
    timestamps: dict[str, int]
    jobs: tuple[FlinkJobInList, ...]


class FlinkSetting(msgspec.Struct, frozen=True):
    """A setting of the cluster; what is secret is masked."""

    key: str
    value: str


class FlinkMachine(msgspec.Struct, frozen=True):
    """What runs the process that answers: an interpreter, where Flink has a virtual machine."""

    version: str
    arch: str
    options: tuple[str, ...]


class FlinkEnvironment(msgspec.Struct, frozen=True):
    """GET /jobmanager/environment."""

    jvm: FlinkMachine
    classpath: tuple[str, ...]


class FlinkJars(msgspec.Struct, frozen=True):
    """GET /jars: there are none."""

    address: str
    files: tuple[str, ...] = ()


class FlinkDataSets(msgspec.Struct, frozen=True):
    """GET /datasets: results that Flink keeps between jobs; there are none."""

    data_sets: tuple[str, ...] = msgspec.field(name="dataSets", default=())


def revision() -> str:
    """Which program this really is."""
    return f"penstock-{__version__}"


def config(offset_ms: int, zone: str) -> FlinkConfig:
    """How the pages behave, for people in this zone."""
    return FlinkConfig(REFRESH_MS, zone, offset_ms, FLINK_VERSION, f"{revision()} @ 1970-01-01T00:00:00Z")


def overview(view: ClusterView | None, jobs: Sequence[JobSummary]) -> FlinkOverview:
    """The cluster in numbers; without a leader no task manager is known."""
    states = [flink_state(job.state) for job in jobs]
    return FlinkOverview(
        len(view.workers) if view else 0, view.slots if view else 0, view.free_slots if view else 0,
        sum(state not in ENDED for state in states), states.count("FINISHED"), states.count("CANCELED"),
        states.count("FAILED"), FLINK_VERSION, revision(),
    )  # fmt: skip


def job_ids(jobs: Sequence[JobSummary]) -> FlinkJobIds:
    """Ids and states."""
    return FlinkJobIds(tuple(FlinkJobId(job.job, flink_state(job.state)) for job in jobs))


def jobs_overview(jobs: Sequence[JobSummary], now_us: int) -> FlinkJobs:
    """All jobs."""
    return FlinkJobs(tuple(job_in_list(job, now_us) for job in jobs))


def job_in_list(job: JobSummary, now_us: int) -> FlinkJobInList:
    """A job in a list."""
    start, end, duration = times_of(job, now_us)
    return FlinkJobInList(
        jid=job.job, name=job.name, job_type="STREAMING", scheduler_type="Default", start_time=start, end_time=end,
        duration=duration, state=flink_state(job.state), last_modification=_changed_us(job) // 1_000,
        tasks={"total": job.tasks, **_task_counts(job)},
    )  # fmt: skip


def _changed_us(job: JobSummary) -> int:
    return job.ended_us or job.changed_us or job.submitted_us


def times_of(job: JobSummary, now_us: int) -> tuple[int, int, int]:
    """Start, end (-1: it goes on) and duration, in milliseconds."""
    if job.state not in ENDED:
        return job.submitted_us // 1_000, UNKNOWN, max(0, now_us - job.submitted_us) // 1_000
    end_us = _changed_us(job)
    return job.submitted_us // 1_000, end_us // 1_000, max(0, end_us - job.submitted_us) // 1_000


def _task_counts(job: JobSummary) -> dict[str, int]:
    counts = {state.lower(): 0 for state in TASK_STATES}
    ended = OF_ENDED.get(job.state)
    if ended is not None:
        counts[ended.lower()] = job.tasks
    else:
        counts["running"] = job.running_tasks
        counts["created"] = job.tasks - job.running_tasks
    return counts


# -- applications -------------------------------------------------------------------------------------------------------


def application_name(job: str) -> str:
    """What Flink calls the application of a job that was submitted by itself."""
    return f"SingleJobApplication({job})"


def applications(jobs: Sequence[JobSummary], now_us: int) -> FlinkApplications:
    """All of them."""
    return FlinkApplications(tuple(_application_in_list(job, now_us) for job in jobs))


def _application_in_list(job: JobSummary, now_us: int) -> FlinkApplicationInList:
    status, count = application_state(job.state), {flink_state(job.state): 1}
    return FlinkApplicationInList(job.job, application_name(job.name), status, *times_of(job, now_us), count)


def application(found: Found, now_us: int) -> FlinkApplication:
    """That of one job."""
    summary = summary_of(found)
    times, status = job_times(found), application_state(found.state)
    shown = dict.fromkeys(APPLICATION_STATES, 0) | {"CREATED": times["CREATED"], "RUNNING": times["RUNNING"]}
    if found.state in ENDED:
        shown[status] = times[status]
    return FlinkApplication(
        found.job, application_name(summary.name), status, *times_of(summary, now_us), shown,
        (job_in_list(summary, now_us),),
    )  # fmt: skip


# -- the process that answers -------------------------------------------------------------------------------------------


def settings_shown(settings: Mapping[str, str]) -> tuple[FlinkSetting, ...]:
    """Settings by key."""
    return tuple(FlinkSetting(key, value) for key, value in sorted(settings.items()))


def environment() -> FlinkEnvironment:
    """The interpreter and where it looks for modules."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    options = (f"-X{name}" for name in sorted(sys._xoptions))
    return FlinkEnvironment(FlinkMachine(version, platform.machine(), tuple(options)), tuple(sys.path))


def cluster_metrics(view: ClusterView | None, jobs: Iterable[JobSummary]) -> dict[str, Any]:
    """What is measured of the cluster, by Flink's names."""
    running = {"numRunningJobs": sum(job.state not in ENDED for job in jobs)}
    if view is None:
        return running
    slots = {"taskSlotsTotal": view.slots, "taskSlotsAvailable": view.free_slots}
    return running | slots | {"numRegisteredTaskManagers": len(view.workers)}
