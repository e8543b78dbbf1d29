"""A worker process: which subtasks it lists, what becomes of those that end, and what they hear of credit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.adapters.memory import MemoryBlobs, MemoryLog
from penstock.adapters.system_clock import SystemClock
from penstock.coordination.control_topics import COMMANDS, EVENTS, create_control_topics
from penstock.errors import ExternalError
from penstock.graph.executiongraph import credits_topic
from penstock.ports import LogRecord, NewRecord
from penstock.protocol.messages import (
    CancelAttempt,
    Deploy,
    FinishAttempt,
    SubtaskId,
    TaskChanged,
    TaskStatus,
    decode_event,
    encode,
)
from penstock.protocol.worker import LEADER_SILENCE_MS
from penstock.task.environment import Services, TaskEnvironment
from penstock.task.exchange_io import CreditReport
from penstock.taskmanager import worker as worker_module
from penstock.taskmanager.worker import WorkerService

JOB = "j" * 32


class Loader:
    """Loads when it is allowed to."""

    bound_to = ""

    def __init__(self) -> None:
        self.allowed = asyncio.Event()
        self.asked = 0

    async def load(self, deploy: Deploy) -> Any:
        self.asked += 1
        await self.allowed.wait()
        vertex = SimpleNamespace(publishes=False)
        return SimpleNamespace(
            graph=SimpleNamespace(vertex=lambda _: vertex), plan=None, manifest=None, state_backend=None
        )


class AwayLog(MemoryLog):
    """Its brokers are away when that is said."""

    away = False
    refused = 0
    served = 0

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 4 << 20, timeout_s: float = 0.0
    ) -> list[LogRecord]:
        if self.away:
            self.refused += 1
            raise ExternalError("the brokers are away")
        found = await super().read(topic, partition, offset, max_bytes=max_bytes, timeout_s=0.01)
        self.served += bool(self.refused) and topic == COMMANDS
        if not found and not self.away:
            await asyncio.sleep(0.01)
        return found


class Runner:
    """A subtask that runs until it is cancelled, and remembers what it was told."""

    def __init__(self, environment: TaskEnvironment) -> None:
        deploy = environment.deploy
        self.status = TaskStatus(deploy.job, deploy.attempt, deploy.subtask, "running")
        self.credits: list[CreditReport] = []

    async def run(self) -> None:
        await asyncio.Event().wait()

    def credit(self, report: CreditReport) -> None:
        self.credits.append(report)


def deploy(worker: WorkerService, index: int = 0, attempt: str = "a") -> Deploy:
    return Deploy(
        epoch=1, job=JOB, attempt=attempt, attempt_number=1, subtask=SubtaskId("v", index), worker=worker.name,
        generation=0, restore=None, start_offset=0,
    )  # fmt: skip


@asynccontextmanager
async def serving(
    log: MemoryLog, loader: Loader, leader_silence_ms: int = LEADER_SILENCE_MS
) -> AsyncIterator[WorkerService]:
    """A worker at work."""
    await create_control_topics(log)
    worker = WorkerService("w", 1, Services(log, MemoryBlobs(), SystemClock()), loader, leader_silence_ms)
    task = asyncio.create_task(worker.run())
    await until(lambda: asyncio.sleep(0, worker._events.empty()), "it has registered")
    try:
        yield worker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition, perhaps a coroutine."""
    try:
        async with asyncio.timeout(20):
            while True:
                found = condition()
                if await found if asyncio.iscoroutine(found) else found:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(what) from None


async def changes(log: MemoryLog) -> list[TaskStatus]:
    """What subtasks were reported to have become."""
    events = [decode_event(record.value) for record in await log.read(EVENTS, 0, 0)]
    return [event.status for event in events if isinstance(event, TaskChanged)]


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[Runner]:
    """All subtasks that were started."""
    made: list[Runner] = []

    def make(environment: TaskEnvironment) -> Runner:
        made.append(Runner(environment))
        return made[-1]

    monkeypatch.setattr(worker_module, "SubtaskRunner", make)
    return made


async def test_a_subtask_that_is_cancelled_before_its_first_step_leaves_its_slot():
    """Deploy and Cancel read at once: nothing stays listed, and the leader hears of the end."""
    log = MemoryLog()
    async with serving(log, Loader()) as worker:
        cancel = CancelAttempt(epoch=1, job=JOB, attempt="a")
        await log.append(COMMANDS, 0, [NewRecord(encode(command)) for command in (deploy(worker), cancel)])

        async def told() -> bool:
            return [status.state for status in await changes(log)] == ["canceled"]

        await until(told, "its end is told")
        assert worker.statuses() == []


@pytest.mark.parametrize("deployed", ["before", "after"])
async def test_credit_reported_before_a_subtask_runs_is_not_lost(runners: list[Runner], deployed: str):
    """Whether the report comes before the deploy is read, or while the subtask is being loaded."""
    log, loader = MemoryLog(), Loader()
    topic = credits_topic(JOB)
    await log.create_topic(topic, 1, compacted=True)
    report = CreditReport("a", "consumer", 0, ((0, 0, 1_000),))
    record = NewRecord(msgspec.json.encode(report), b"a/consumer/0")
    async with serving(log, loader) as worker:
        if deployed == "after":
            await log.append(topic, 0, [record])
        await log.append(COMMANDS, 0, [NewRecord(encode(deploy(worker)))])
        await until(lambda: loader.asked, "the subtask is being loaded")
        if deployed == "before":
            await log.append(topic, 0, [record])
            await until(lambda: worker._credits, "the report is read")
        loader.allowed.set()
        await until(lambda: runners and runners[0].credits, "it hears of it")
        assert runners[0].credits[0] == report


async def test_a_worker_waits_for_a_broker_that_is_away(runners: list[Runner], monkeypatch: pytest.MonkeyPatch):
    """Neither the process nor its subtasks end, however long commands and credit cannot be read: that is no silence
    of the leader."""
    monkeypatch.setattr(worker_module, "DEAF_MS", 50)
    monkeypatch.setattr("penstock.coordination.retrying_ports.PAUSE_MS", 20)
    log, loader = AwayLog(), Loader()
    loader.allowed.set()
    await log.create_topic(credits_topic(JOB), 1, compacted=True)
    async with serving(log, loader, leader_silence_ms=1_200) as worker:
        await log.append(COMMANDS, 0, [NewRecord(encode(deploy(worker)))])
        await until(lambda: runners, "it runs")
        log.away = True
        began_s = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() - began_s > 1.6, "longer than a leader may be silent")
        refused, log.away = log.refused, False
        await until(lambda: log.served > 2, "commands are read again")
        assert refused > 1
        assert [status.state for status in worker.statuses()] == ["running"]


async def test_a_worker_survives_the_end_of_a_job_that_it_has_just_begun(runners: list[Runner]):
    """The job's topics are gone when credit is to be read: nothing else is touched."""
    log, loader = MemoryLog(), Loader()
    loader.allowed.set()
    async with serving(log, loader) as worker:
        await log.append(COMMANDS, 0, [NewRecord(encode(deploy(worker)))])
        await until(lambda: runners, "it runs")
        await until(lambda: not worker._credit_readers, "there is nothing to read")
        assert [status.state for status in worker.statuses()] == ["running"]


class FailsWhenStopped(Runner):
    """A subtask that meets an error on its way out."""

    async def run(self) -> None:
        try:
            await super().run()
        except asyncio.CancelledError:
            raise ExternalError("what it reads is gone") from None


async def test_a_subtask_that_fails_while_it_is_stopped_is_not_listed(
    runners: list[Runner], monkeypatch: pytest.MonkeyPatch
):
    """Nobody stops its attempt once more: it would be in every heartbeat for as long as the process lives."""
    monkeypatch.setattr(worker_module, "SubtaskRunner", FailsWhenStopped)
    log, loader = MemoryLog(), Loader()
    loader.allowed.set()
    async with serving(log, loader) as worker:
        await log.append(COMMANDS, 0, [NewRecord(encode(deploy(worker)))])
        await until(lambda: [s.state for s in worker.statuses()] == ["running"], "it runs")
        await log.append(COMMANDS, 0, [NewRecord(encode(CancelAttempt(epoch=1, job=JOB, attempt="a")))])

        async def told() -> bool:
            return [status.state for status in await changes(log)] == ["failed"]

        await until(told, "its end is told")
        assert worker.statuses() == []


class FailsAtOnce(Runner):
    """A subtask that does not come far."""

    async def run(self) -> None:
        raise ExternalError("it cannot begin")


async def test_a_failed_subtask_is_not_listed_behind_the_end_of_its_attempt(
    runners: list[Runner], monkeypatch: pytest.MonkeyPatch
):
    """It is until then, so that the leader hears of it; what follows the end of the attempt ends nothing of it."""
    monkeypatch.setattr(worker_module, "SubtaskRunner", FailsAtOnce)
    log, loader = MemoryLog(), Loader()
    loader.allowed.set()
    async with serving(log, loader) as worker:
        await log.append(COMMANDS, 0, [NewRecord(encode(deploy(worker)))])
        await until(lambda: [s.state for s in worker.statuses()] == ["failed"], "it has failed")
        await log.append(COMMANDS, 0, [NewRecord(encode(FinishAttempt(epoch=1, job=JOB, attempt="a")))])
        await until(lambda: worker.statuses() == [], "nothing is listed")
