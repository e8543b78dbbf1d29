"""The coordinator as resource manager: workers come and go with the number that it sets, and jobs lose nothing."""

from __future__ import annotations

import asyncio

from penstock.adapters.memory import MemoryScale
from penstock.errors import ExternalError
from penstock.jobmanager.autoscaling import Scaling
from penstock.jobmanager.coordinator import CoordinatorService
from penstock.ports import Scale
from penstock.protocol.autoscaling import ScalingLimits
from penstock.protocol.joblog import JobSettings
from penstock.protocol.requests import SubmitJob
from penstock_coordinator.metrics import coordinator_samples

from .one_job import Cluster, until


class Workload(MemoryScale):
    """Keeps as many workers of one slot as are asked for; refuses as long as it is told to."""

    def __init__(self, cluster: Cluster, task_managers: int) -> None:
        super().__init__("tm", task_managers)
        self.cluster = cluster
        self.running: dict[int, asyncio.Task[None]] = {}
        self.refused = ""
        self.written: list[int] = []
        self.keep(task_managers)

    def keep(self, wanted: int) -> None:
        """Start and end workers."""
        for number in range(wanted):
            if number not in self.running:
                worker = self.cluster.worker(host=f"tm-{number} x")
                self.running[number] = self.cluster.tasks[worker.name]
        for number in [number for number in self.running if number >= wanted]:
            self.running.pop(number).cancel()

    async def read(self) -> Scale:
        if self.refused:
            raise ExternalError(self.refused)
        return await super().read()

    async def write(self, task_managers: int, version: str) -> Scale:
        scale = await super().write(task_managers, version)
        self.written.append(task_managers)
        self.keep(task_managers)
        return scale


def coordinator(
    cluster: Cluster, workload: Workload, *, most: int, idle_ms: int = 500, settle_ms: int = 500
) -> CoordinatorService:
    """A candidate that scales the workload."""
    limits = ScalingLimits(slots=1, least=1, most=most, idle_ms=idle_ms, settle_ms=settle_ms)
    return cluster.coordinator(scaling=Scaling(workload, limits))


async def test_a_job_gets_the_workers_it_wants_and_gives_them_back():
    """One stands there, four are wanted; after the job has ended one is left."""
    cluster = Cluster(parallelism=4, rate=4_000)
    workload = Workload(cluster, 1)
    await cluster.submit()
    try:
        service = coordinator(cluster, workload, most=6)
        ended = service.job_ended(cluster.job)
        await until(lambda: len(workload.running) == 4, "four workers")
        await until(lambda: service.view().scaling.standing == 4, "the leader knows them")
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
        await until(lambda: len(workload.running) == 1, "one worker again")
        assert workload.written == [4, 1]
        shown = {sample.metric.name: sample.value for sample in coordinator_samples(service, 0)}
        assert shown["penstock_task_managers_wanted"] == 1
        assert shown["penstock_scaling_short_slots"] == shown["penstock_scaling_fails"] == 0
        begins = [record for record in (await cluster.history()).records if type(record).__name__ == "Begin"]
        assert len(begins) == 1
    finally:
        await cluster.stop()
    cluster.check()


async def test_more_than_is_allowed_stays_missing():
    """The job waits and the view says how many slots are short; what came stays while it waits."""
    cluster = Cluster(parallelism=4)
    workload = Workload(cluster, 1)
    await cluster.submit()
    try:
        service = coordinator(cluster, workload, most=2, idle_ms=200)
        await until(lambda: service.view().scaling is not None and service.view().scaling.short == 2, "two are short")
        await until(lambda: service.view().scaling.standing == 2, "two stand there")
        await until(lambda: service.progress(cluster.job).missing_slots == 2, "the job waits for two")
        assert workload.written == [2]
    finally:
        await cluster.stop()


async def test_a_new_leader_takes_nothing_away_that_is_used():
    """However impatient it is: it learns from the workers who uses them before it decides."""
    cluster = Cluster(parallelism=3, rate=2_000)
    workload = Workload(cluster, 1)
    await cluster.submit()
    try:
        leading = coordinator(cluster, workload, most=3)

        async def checkpointed() -> bool:
            return (await cluster.history()).complete is not None

        await until(checkpointed, "a checkpoint is complete")
        await cluster.end(leading.name)
        service = coordinator(cluster, workload, most=3, idle_ms=1, settle_ms=0)
        outcome = await asyncio.wait_for(service.job_ended(cluster.job), 60)
        assert outcome.state == "FINISHED", outcome.reason
        await until(lambda: workload.written == [3, 1], "they were there to the end, and are given back then")
        begins = [record for record in (await cluster.history()).records if type(record).__name__ == "Begin"]
        assert len(begins) == 1
    finally:
        await cluster.stop()
    cluster.check()


async def test_trouble_with_the_workload_is_shown_and_tried_again():
    """The coordinator leads on; once it is allowed to, the job gets its workers."""
    cluster = Cluster(parallelism=2)
    workload = Workload(cluster, 1)
    workload.refused = "not allowed; make a Role"
    await cluster.submit()
    try:
        service = coordinator(cluster, workload, most=3)
        await until(
            lambda: service.view().scaling is not None and service.view().scaling.problem, "the problem is shown"
        )
        assert service.view().scaling.problem == "not allowed; make a Role"
        shown = {sample.metric.name: sample.value for sample in coordinator_samples(service, 0)}
        assert shown["penstock_scaling_fails"] == 1
        assert "penstock_task_managers_wanted" not in shown
        workload.refused = ""
        assert (await asyncio.wait_for(service.job_ended(cluster.job), 60)).state == "FINISHED"
        assert service.view().scaling.problem == ""
    finally:
        await cluster.stop()
    cluster.check()


async def test_a_number_that_somebody_else_set():
    """A write that comes too late is decided anew."""
    cluster = Cluster(parallelism=3)
    workload = Workload(cluster, 1)
    write = workload.write

    async def overtaken(task_managers: int, version: str) -> Scale:
        workload.write = write
        await write(2, version)
        return await write(task_managers, version)

    workload.write = overtaken
    await cluster.submit()
    try:
        service = coordinator(cluster, workload, most=3)
        assert (await asyncio.wait_for(service.job_ended(cluster.job), 60)).state == "FINISHED"
        assert workload.written[:2] == [2, 3]
        assert service.view().scaling.problem == ""
    finally:
        await cluster.stop()
    cluster.check()


async def test_a_job_of_its_own_is_refused_where_no_process_may_be_started():
    """With what to do instead; the client need not wait for ever."""
    cluster = Cluster()
    own = JobSettings(per_job=True)
    request = SubmitJob(
        request=cluster.job, job=cluster.job, name="own", graph=cluster.graph.to_json(), settings=own
    )  # fmt: skip
    await cluster.request(request)
    try:
        await cluster.candidate()
        answer = await cluster.answer(cluster.job)
        assert answer.outcome == "refused"
        assert "submit it without --per-job" in answer.reason
        assert "application.enabled=true" in answer.reason
    finally:
        await cluster.stop()
