"""Schedules by the pipeline service: what it lets begin, whatever dies, whoever else writes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace
from small_pipeline import DONE, Process, SetClock, SmallPipeline, until

from penstock.adapters.memory import MemoryBlobs
from penstock.core.times import to_micros
from penstock.observability import metrics
from penstock.ports import BlobExistsError
from penstock.protocol.joblog import Artifact
from penstock.protocol.requests import RunOptions
from penstock.runs.run_log import AttemptBegan, RunEnded, RunOutcome, Submitted
from penstock.runs.schedule import Definition, Schedule, added, paused, removed, resumed
from penstock.runs.schedule_store import KEPT, SCHEDULES, ScheduleStore
from penstock_pipeline import schedules as schedules_module
from penstock_pipeline import service as service_module
from penstock_pipeline.metrics import pipeline_samples
from penstock_pipeline.service import PipelinePorts, PipelineService, PipelineSettings

ZONE = ZoneInfo("Europe/Berlin")
FAILED = RunOutcome("FAILED", "no such column")
DAYS = ["orders-2026-11-01", "orders-2026-11-02", "orders-2026-11-03"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions follow each other faster than in life."""
    monkeypatch.setattr(service_module, "TICK_MS", 5)
    monkeypatch.setattr(schedules_module, "REFRESH_MS", 10)


def at(text: str) -> int:
    return to_micros(datetime.fromisoformat(text).replace(tzinfo=ZONE))


class Scheduled(SmallPipeline):
    """A pipeline service with a schedule, at ten o'clock on the fourth of November."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.clock: SetClock = SetClock(at("2026-11-04T10:00"))
        self.numbers = itertools.count()
        self.store = type(self.store)(self.blobs, self.clock, self.new_id)
        self.schedules = ScheduleStore(self.blobs, self.clock, self.new_id)
        self.definition = replace(
            Definition(
                cron="0 2 * * *", timezone="Europe/Berlin", start="2026-11-01", end="", pipeline="flights", graph={},
                artifact=Artifact("artifacts/a.zip", "a", "flights.py", {"day": "{day}"}), options=RunOptions(),
                retries=2, retry_pause_ms=0, on_failure="stop",
            ),
            **changes,
        )  # fmt: skip

    def new_id(self) -> str:
        return f"{next(self.numbers):032x}"

    async def add(self, name: str = "orders", **changes: Any) -> None:
        """Add the schedule, or put another in its place."""

        def act(before: Schedule | None) -> Schedule:
            definition = replace(self.definition, **changes)
            return added(before, name, definition, self.clock.now_us(), replaces=True)

        await self.change(act, name)

    async def change(self, act: Callable[[Any], Schedule], name: str = "orders") -> None:
        """Do what a dispatcher does."""
        while True:
            before = await self.schedules.read(name)
            if await self.schedules.write(before, act(before)) is not None:
                return

    async def now(self, name: str = "orders") -> Schedule:
        """How the schedule stands."""
        found = await self.schedules.read(name)
        assert found is not None
        return found

    async def until_ended(self, *runs: str) -> None:
        """Wait until these are what the schedule is done with."""

        async def are() -> bool:
            return [period.run for period in (await self.now()).ended] == list(runs)

        await until(are, f"the schedule is done with {runs}")

    async def until_state(self, state: str) -> None:
        async def is_so() -> bool:
            return (await self.now()).state == state

        await until(is_so, f"the schedule is {state}")

    async def finish(self, run: str, outcome: RunOutcome = DONE, attempts: int | None = None) -> None:
        """Let a run come to an end once it is at work."""
        await self.state(run, "RUNNING", attempts)
        self.children.change(run, alive=False, outcome=outcome, decided=outcome is DONE)

    async def submissions(self, run: str) -> int:
        return sum(isinstance(record, Submitted) for record in (await self.store.history(run)).records)

    async def ticks(self) -> None:
        """Let the service decide a few times."""
        key, seen = "pipeline-view", set[bytes | None]()

        async def several() -> bool:
            seen.add(await self.metadata.get(key))
            self.clock.wall_us += 1
            return len(seen) > 5

        await until(several, "the service decides")


async def test_missed_days_are_caught_up_one_after_the_other() -> None:
    """Each with its own parameters; the next one when it is due."""
    small = Scheduled()
    await small.add()
    async with small.service(concurrent=3) as service:
        for run in DAYS:
            await small.state(run, "RUNNING")
            assert len(service.running()) <= 1
            assert (await small.store.history(run)).submitted.artifact.parameters == {
                "day": run.removeprefix("orders-")
            }
            await small.finish(run)
        await small.until_ended(*DAYS)
        await small.ticks()
        assert small.children.started == [(run, 1) for run in DAYS]
        small.clock.wall_us = at("2026-11-05T02:00")
        await small.finish("orders-2026-11-04")
        await small.until_ended(*DAYS, "orders-2026-11-04")


async def test_a_day_that_fails_again_and_again_stops_the_schedule() -> None:
    """Also for the service that comes next; resumed, it goes on with that very day."""
    small = Scheduled()
    await small.add()
    async with small.service() as service:
        for _ in range(3):
            await small.finish(DAYS[0], FAILED, attempts=1)

            async def gone() -> bool:
                return (await small.store.history(DAYS[0])).attempt is None or small.children.processes[DAYS[0]].alive

            await until(gone, "it is over")
        await small.until_state("STOPPED")
        assert await small.submissions(DAYS[0]) == 3
        samples = pipeline_samples(service, small.clock.now_us())
        assert metrics.Sample(metrics.SCHEDULE_STOPPED, {"schedule": "orders"}, 1) in samples
        assert metrics.Sample(metrics.SCHEDULE_FAILURES, {"schedule": "orders"}, 3) in samples
        assert metrics.Sample(metrics.SCHEDULE_BEHIND, {"schedule": "orders"}, 3) in samples
    async with small.service():
        await small.ticks()
        assert await small.submissions(DAYS[0]) == 3
        assert "has failed 3 times" in (await small.now()).reason
        await small.change(resumed)
        for run in DAYS:
            await small.finish(run)
        await small.until_ended(*DAYS)


async def test_cancelled_by_a_person_a_day_is_skipped() -> None:
    """And remembered as that."""
    small = Scheduled()
    await small.add()
    async with small.service():
        await small.state(DAYS[0], "RUNNING")
        await small.cancel(DAYS[0])
        await small.finish(DAYS[1])
        await small.finish(DAYS[2])
        await small.until_ended(*DAYS)
    assert [period.state for period in (await small.now()).ended] == ["CANCELED", "FINISHED", "FINISHED"]


async def test_a_pause_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even before the service has looked for changes: it reads a schedule again before it asks for a run."""
    small = Scheduled(start="2026-11-04")
    await small.add()
    async with small.service() as service:

        async def known() -> bool:
            return "orders" in service.schedules.known

        await until(known, "the service has read it")
        monkeypatch.setattr(schedules_module, "REFRESH_MS", 1 << 40)
        await small.change(paused)
        small.clock.wall_us = at("2026-11-05T02:00")
        await small.ticks()
        assert service.schedules.known["orders"].state == "PAUSED"
        assert small.children.started == []
        samples = pipeline_samples(service, small.clock.now_us())
        assert metrics.Sample(metrics.SCHEDULES, {"state": "PAUSED"}, 1) in samples
        assert metrics.SCHEDULE_BEHIND not in {sample.metric for sample in samples}
        monkeypatch.setattr(schedules_module, "REFRESH_MS", 10)
        await small.change(resumed)
        await small.finish("orders-2026-11-04")
        await small.until_ended("orders-2026-11-04")


async def test_removed_while_its_run_is_at_work() -> None:
    """The run comes to its end, nothing follows; added again, that day is not repeated."""
    small = Scheduled()
    await small.add()
    async with small.service() as service:
        await small.state(DAYS[0], "RUNNING")
        await small.change(removed)

        async def noticed() -> bool:
            return service.schedules.known["orders"].state == "REMOVED"

        await until(noticed, "the service has read it")
        await small.finish(DAYS[0])
        await small.state(DAYS[0], "FINISHED")
        await small.ticks()
        assert small.children.started == [(DAYS[0], 1)]
        assert all("orders" not in one.labels.values() for one in pipeline_samples(service, small.clock.now_us()))
        await small.add()
        await small.finish(DAYS[1])
        await small.finish(DAYS[2])
        await small.until_ended(*DAYS)
        assert [await small.submissions(run) for run in DAYS] == [1, 1, 1]


async def test_a_clock_that_is_set_back_repeats_nothing() -> None:
    """What is done is done; when the time has come again, it goes on."""
    small = Scheduled()
    await small.add()
    async with small.service():
        await small.finish(DAYS[0])
        await small.state(DAYS[1], "RUNNING")
        small.clock.wall_us = at("2026-11-01T12:00")
        await small.finish(DAYS[1])
        await small.state(DAYS[1], "FINISHED")
        await small.ticks()
        assert small.children.started == [(DAYS[0], 1), (DAYS[1], 1)]
        small.clock.wall_us = at("2026-11-04T10:00")
        await small.finish(DAYS[2])
        await small.until_ended(*DAYS)
        assert [await small.submissions(run) for run in DAYS] == [1, 1, 1]


async def test_two_services_make_every_run_once() -> None:
    """A second one is refused, but what counts does not depend on that."""
    small = Scheduled()
    await small.add()
    async with small.service(), small.service():
        for run in DAYS:
            await small.finish(run)
            await small.state(run, "FINISHED")
        await small.until_ended(*DAYS)
    assert [await small.submissions(run) for run in DAYS] == [1, 1, 1]


async def test_the_end_of_a_run_that_another_service_has_is_seen() -> None:
    """It stands in its log alone."""
    small = Scheduled(start="2026-11-03")
    run = DAYS[2]
    record = Submitted(
        run=run, request="by hand", name="flights", graph={}, artifact=small.definition.artifact, options=RunOptions()
    )
    history = await small.store.append(run, await small.store.history(run), record)
    await small.add()
    async with small.service():
        await small.ticks()
        for following in (AttemptBegan(attempt=1, place="there", host="two"), RunEnded(state="FINISHED")):
            assert history is not None
            history = await small.store.append(run, history, following)
        await small.until_ended(run)
        assert small.children.started == []


async def test_what_cannot_be_read_keeps_nobody_else_from_running() -> None:
    """A schedule of another version has no runs; the others have theirs."""
    small = Scheduled()
    await small.add()
    await small.blobs.put(f"{SCHEDULES}another/{1:020d}", b"{}")
    unknown = replace(await small.now(), name="mars", definition=replace(small.definition, timezone="Mars/Base"))
    assert await small.schedules.write(None, unknown) is not None
    await small.blobs.put(f"runs/log/{DAYS[1]}/{0:020d}", b"{}")
    async with small.service():
        await small.finish(DAYS[0])
        await small.until_state("STOPPED")
    assert f"run {DAYS[1]}: its log cannot be read" in (await small.now()).reason


async def test_a_day_whose_work_folder_is_gone_is_left_to_people() -> None:
    """Repeated in another folder its rows could be there twice."""
    small = Scheduled()
    await small.add()
    async with small.service():
        await small.state(DAYS[0], "RUNNING")
    small.children.place = "another"
    async with small.service():
        await small.until_state("STOPPED")
    assert await small.submissions(DAYS[0]) == 1
    assert "could double its rows" in (await small.now()).reason


# -- deaths -------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


class DeadlyBlobs(MemoryBlobs):
    """A store whose client dies at its n-th write: before it, or behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.dies_at: int | None = None
        self.behind = False
        self.dead = False

    async def _write(self, write: Callable[[], Awaitable[None]]) -> None:
        if self.dead:
            raise Killed
        self.writes += 1
        if self.writes == self.dies_at:
            self.dead = True
            if self.behind:
                await write()
            raise Killed
        await write()

    async def put(self, key: str, data: bytes) -> None:
        await self._write(lambda: super(DeadlyBlobs, self).put(key, data))

    async def create(self, key: str, data: bytes) -> None:
        await self._write(lambda: super(DeadlyBlobs, self).create(key, data))

    async def delete(self, key: str) -> None:
        await self._write(lambda: super(DeadlyBlobs, self).delete(key))


async def lived(small: Scheduled, blobs: DeadlyBlobs) -> None:
    """One life of a service: until the schedule has caught up, or its death. Runs fail once on the second day."""
    ports = PipelinePorts(small.log, blobs, small.metadata, small.clock)
    settings = PipelineSettings("one", "host", "address", 1, RunOptions(master="local[2]"), False)
    service = PipelineService(ports, small.store, small.schedules, small.children, settings)  # pyright: ignore[reportArgumentType]
    serving = asyncio.ensure_future(service.run())
    while not serving.done() and len((await small.now()).ended) < len(DAYS):
        for run, process in list(small.children.processes.items()):
            if process.alive:
                fails = run == DAYS[1] and await small.submissions(run) == 1
                small.children.processes[run] = Process(False, FAILED if fails else DONE, decided=not fails)
        await asyncio.sleep(0.002)
    serving.cancel()
    [ended] = await asyncio.gather(serving, return_exceptions=True)
    if not isinstance(ended, asyncio.CancelledError):
        assert isinstance(ended, BaseExceptionGroup), ended
        assert ended.subgroup(Killed) is not None, ended


async def test_every_day_has_one_run_wherever_the_service_dies() -> None:
    """Killed at each of its writes, before it and behind it, and started again: no day is left out, none comes twice."""
    whole = await life_and_death(None, behind=False)
    assert whole.writes > 20
    for number in range(1, whole.writes + 1):
        for behind in (False, True):
            blobs = await life_and_death(number, behind=behind)
            assert blobs.dead is False


async def life_and_death(dies_at: int | None, *, behind: bool) -> DeadlyBlobs:
    small, blobs = Scheduled(), DeadlyBlobs()
    small.blobs = blobs
    small.store = type(small.store)(blobs, small.clock, small.new_id)
    small.schedules = ScheduleStore(blobs, small.clock, small.new_id)
    await blobs.put("artifacts/a.zip", b"zip")
    await small.add()
    blobs.writes, blobs.dies_at, blobs.behind = 0, dies_at, behind
    await lived(small, blobs)
    if dies_at is not None:
        assert blobs.dead
        blobs.dead, blobs.dies_at = False, None
        await lived(small, blobs)
    assert [period.run for period in (await small.now()).ended] == DAYS
    assert [period.state for period in (await small.now()).ended] == ["FINISHED"] * 3
    assert [await small.submissions(run) for run in DAYS] == [1, 2, 1]
    return blobs


# -- the store ----------------------------------------------------------------------------------------------------------


async def test_of_two_that_write_one_is_refused() -> None:
    """Also one that read so long ago that what it would have met is deleted; old versions do not stay."""
    small = Scheduled()
    await small.add()
    old = await small.now()
    assert await small.schedules.write(old, paused(old)) is not None
    assert await small.schedules.write(old, removed(old)) is None
    for _ in range(2 * KEPT):
        await small.change(lambda one: replace(one, round=one.round + 1))
    assert len(await small.blobs.list(SCHEDULES)) == KEPT + 1
    assert await small.schedules.write(old, removed(old)) is None
    assert (await small.now()).state == "PAUSED"
    assert (await small.now()).round == 2 * KEPT


async def test_a_write_without_an_answer_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been done."""
    small = Scheduled()
    await small.add()
    create = small.blobs.create

    async def uncertain(key: str, data: bytes) -> None:
        await create(key, data)
        raise BlobExistsError(key)

    monkeypatch.setattr(small.blobs, "create", uncertain)
    old = await small.now()
    written = await small.schedules.write(old, paused(old))
    assert written is not None
    assert await small.now() == written
