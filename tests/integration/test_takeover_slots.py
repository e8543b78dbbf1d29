"""Slots after a takeover: who hears of subtasks without being told which jobs end takes none of them for used."""

from __future__ import annotations

import pytest
from tests.integration.one_job import until

from penstock.coordination.control_topics import EVENTS, create_control_topics
from penstock.jobmanager.coordinator import CoordinatorService
from penstock.jobmanager.leadership import LEASE
from penstock.ports import NewRecord
from penstock.protocol.messages import Heartbeat, SubtaskId, TaskStatus, encode
from penstock.testing.memory_cluster import MemoryCluster

ENDED = TaskStatus("e" * 32, "a" * 32, SubtaskId("v0", 0), "running")


async def heard(cluster: MemoryCluster, service: CoordinatorService, *tasks: TaskStatus, worker: str = "w") -> None:
    """Heartbeats of a worker, until the candidate has read one."""
    record = NewRecord(encode(Heartbeat(worker=worker, slots=1, tasks=tasks)))

    async def listed() -> bool:
        await cluster.log.append(EVENTS, 0, [record])
        known = service._workers.get(worker)
        return known is not None and known.heartbeat.tasks == tasks

    await until(listed, "the heartbeat is read", 20)


@pytest.mark.parametrize("gone", [True, False], ids=["ended long ago", "ending"])
async def test_a_new_leader_does_not_count_the_slots_of_jobs_that_ended_under_the_former(gone: bool):
    """It heard the subtask run, as everybody does, and not that its job has ended."""
    cluster = MemoryCluster()
    await create_control_topics(cluster.log)
    await cluster.metadata.acquire(LEASE, b"former", 60_000)
    service = cluster.coordinator()
    try:
        await heard(cluster, service, ENDED)
        if gone:
            await heard(cluster, service)
        await cluster.metadata.release(LEASE, b"former")
        await until(lambda: service.epoch, "it leads")
        await until(lambda: service.view().free_slots == 1, "the slot is free", 10)
    finally:
        await cluster.stop()


async def test_a_worker_that_comes_back_with_an_ended_job_offers_its_slots():
    """It was given up, the job went on elsewhere and has ended; then its process goes on."""
    cluster = MemoryCluster()
    await create_control_topics(cluster.log)
    service = cluster.coordinator()
    try:
        await until(lambda: service.epoch, "it leads")
        await heard(cluster, service, worker="other")
        await until(lambda: service.view().free_slots == 1, "it has taken over")
        await heard(cluster, service, ENDED)
        assert service.view().free_slots == 2
    finally:
        await cluster.stop()
