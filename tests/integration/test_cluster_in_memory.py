"""The services of a cluster in one process on in-memory ports: several workers, several candidates for leadership."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from tests.integration.one_job import Cluster, until

from penstock.adapters.memory import MemoryLog
from penstock.coordination.control_topics import EVENTS
from penstock.coordination.job_catalog import JobCatalog
from penstock.jobmanager import coordinator, job_cleanup
from penstock.ports import NewRecord
from penstock.protocol import joblog
from penstock.protocol.joblog import Savepoint
from penstock.protocol.messages import Acknowledged, BarrierMarker, decode_event
from penstock.protocol.requests import Answer, CancelJob, RescaleJob, StopJob, TakeSavepoint
from penstock.task import snapshots


async def test_a_job_runs_on_two_workers():
    """Slots of two workers hold the job; the result is complete and exact."""
    cluster = Cluster()
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        cluster.worker()
        cluster.worker()
        outcome = await asyncio.wait_for(ended, 30)
        assert outcome.state == "FINISHED", outcome.reason
    finally:
        await cluster.stop()
    cluster.check()


class SlowSync(MemoryLog):
    """A log that takes its time for `sync`: longer than whatever a subtask said before needs to reach the leader."""

    def __init__(self) -> None:
        super().__init__()
        self.synced = 0
        self.acked = 0
        self.early = 0
        """Acks that came before so many calls of `sync` had returned."""
        self._events = 0

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        if topic == EVENTS:
            self._events += 1
            self.acked += sum(isinstance(decode_event(record.value), Acknowledged) for record in records)
            self.early += self.acked > self.synced
        return await super().append(topic, partition, records)

    async def sync(self) -> None:
        heartbeats = self._events + 2
        await until(lambda: self._events >= heartbeats, "the worker says how it is")
        self.synced += 1


async def test_no_checkpoint_is_acknowledged_before_the_log_is_synced():
    """The frames that an ack speaks of must survive a power loss before anybody relies on it."""
    log = SlowSync()
    cluster = Cluster(log=log)
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        cluster.worker(2)
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
    finally:
        await cluster.stop()
    assert log.acked
    assert not log.early


async def test_a_job_waits_for_slots_and_says_how_many_are_missing():
    """One slot is too few for parallelism 2; a second worker lets the job begin."""
    cluster = Cluster()
    await cluster.submit()
    try:
        service, ended, _ = await cluster.candidate()
        cluster.worker()
        await until(lambda: service.progress(cluster.job).missing_slots == 1, "one slot is missing")
        cluster.worker()
        assert (await asyncio.wait_for(ended, 30)).state == "FINISHED"
    finally:
        await cluster.stop()
    cluster.check()


async def test_a_dead_worker_is_replaced_and_nothing_is_lost_or_doubled():
    """The job restarts from the newest checkpoint on the slots that are left."""
    cluster = Cluster(rate=4_000, held=True)
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        first = cluster.tasks[cluster.worker().name]
        cluster.worker()

        await until(cluster.checkpointed, "a checkpoint is complete")
        first.cancel()
        cluster.worker()
        cluster.input.end()
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
        begins = [record for record in (await cluster.history()).records if type(record).__name__ == "Begin"]
        assert len(begins) >= 2
    finally:
        await cluster.stop()
    cluster.check()


async def test_state_beside_the_manifest_survives_restarts_and_leaders(monkeypatch):
    """The same with splits and staged rows in objects of their own, as if there were very many."""
    monkeypatch.setattr(snapshots, "MAX_BESIDE_BYTES", 0)
    await test_a_dead_worker_is_replaced_and_nothing_is_lost_or_doubled()
    await test_requests_are_carried_out_and_answered_once()


async def test_a_new_leader_adopts_what_runs():
    """When the leader dies another takes over, and restarts nothing."""
    cluster = Cluster(rate=3_000, held=True)
    await cluster.submit()
    try:
        _, _, leading = await cluster.candidate()
        cluster.worker(slots=2)

        await until(cluster.checkpointed, "a checkpoint is complete")
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        _, ended, _ = await cluster.candidate()
        cluster.input.end()
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
        records = [type(record).__name__ for record in (await cluster.history()).records]
        assert records.count("Begin") == 1
        assert records.count("Leader") == 2
    finally:
        await cluster.stop()
    cluster.check()


async def test_a_new_leader_goes_on_from_a_compacted_log(monkeypatch):
    """The log stays small while the job runs, and says all that the next leader needs."""
    monkeypatch.setattr(job_cleanup, "COMPACT_AFTER", 4)
    monkeypatch.setattr(joblog, "KEPT_COMPLETES", 1)
    cluster = Cluster(rate=3_000, held=True)
    await cluster.submit()
    try:
        _, _, leading = await cluster.candidate()
        cluster.worker(slots=2)

        async def compacted() -> bool:
            return (await cluster.history()).compacted > 4

        await until(compacted, "the log is compacted")
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        _, ended, _ = await cluster.candidate()
        cluster.input.end()
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
        history = await cluster.history()
        assert sum(isinstance(record, joblog.Begin) for record in history.records) == 1
        assert len(history.fences) == 3, "SUBMIT and two leaders"
        keys = await cluster.blobs.list(joblog.log_prefix(cluster.job))
        assert len(keys) < history.next_seq
    finally:
        await cluster.stop()
    cluster.check()


async def test_commands_are_kept_for_a_while_only(monkeypatch):
    """Trimmed while the leader leads, but never past a marker whose number no record says; the next leader adopts."""
    monkeypatch.setattr(coordinator, "COMMANDS_KEPT_MS", 200)
    monkeypatch.setattr(coordinator, "LEADER_TICK_MS", 20)
    cluster = Cluster(rate=2_000, held=True)
    await cluster.submit()
    try:
        service, _, leading = await cluster.candidate()
        cluster.worker(slots=2)

        async def start() -> int:
            return (await cluster.log.offsets("commands", 0))[0]

        await until(cluster.checkpointed, "there was a marker")  # the leader's ticks alone are trimmed as well
        await until(start, "old commands are gone")
        (shell,) = service.shells
        shell.markers.append(BarrierMarker(epoch=1, job=cluster.job, attempt="a", checkpoint=10**6, nonce="n"))
        later_ms = cluster.clock.monotonic_ms() + 1_000
        assert shell.marked_before(later_ms)
        assert not shell.marked_before(0)
        shell.markers.pop()
        monkeypatch.setattr(shell, "marked_before", lambda _: True)
        held, ends = await start(), [(await cluster.log.offsets("commands", 0))[1]]

        async def many_more() -> bool:
            ends.append((await cluster.log.offsets("commands", 0))[1])
            return ends[-1] - ends[0] > 20_000

        await until(many_more, "much more is commanded")
        assert await start() == held
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        _, ended, _ = await cluster.candidate()
        cluster.input.end()
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
        assert [type(record).__name__ for record in (await cluster.history()).records].count("Begin") == 1
    finally:
        await cluster.stop()
    cluster.check()


async def test_requests_are_carried_out_and_answered_once():
    """Savepoint, rescale up and down, stop: each has its answer; nothing is lost, nothing doubled, no topic is left."""
    cluster = Cluster(rate=3_000, held=True)
    await cluster.submit()
    try:
        _, ended, leading = await cluster.candidate()
        for _ in range(3):
            cluster.worker()

        await until(cluster.checkpointed, "a checkpoint is complete")
        await cluster.request(TakeSavepoint(request="save", job=cluster.job))
        saved = await cluster.answer("save")
        assert saved.outcome == "completed", saved.reason
        assert saved.savepoint is not None
        await cluster.request(RescaleJob(request="wider", job=cluster.job, parallelism=3))
        wider = await cluster.answer("wider")
        assert wider.outcome == "completed", wider.reason
        assert (await cluster.history()).graph["parallelism"] == 3
        await cluster.request(RescaleJob(request="too-wide", job=cluster.job, parallelism=1_000))
        assert "key groups" in (await cluster.answer("too-wide")).reason
        await cluster.request(TakeSavepoint(request="nobody", job="f" * 32))
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await cluster.metadata.put("requests-read", b"0")  # a store that forgot: all requests are read again
        _, ended, _ = await cluster.candidate()
        cluster.input.end()
        outcome = await asyncio.wait_for(ended, 60)
        assert outcome.state == "FINISHED", outcome.reason
        records = (await cluster.history()).records
        assert [type(record).__name__ for record in records].count("Begin") == 2
        assert sum(isinstance(record, Savepoint) for record in records) == 1
        assert [topic for topic in await cluster.log.topics() if cluster.job in topic] == []
        kept = await cluster.blobs.list(f"jobs/{cluster.job}/checkpoints/")
        assert saved.savepoint.manifest in kept
        assert all(key.startswith(saved.savepoint.manifest.rpartition("/")[0]) for key in kept)
        assert (await JobCatalog(cluster.blobs).finished())[0].state == "FINISHED"
        assert await JobCatalog(cluster.blobs).active() == []
    finally:
        await cluster.stop()
    cluster.check()


async def test_a_request_outlives_the_leader_that_read_it():
    """A leader reads a request and dies before it has answered: the next one carries it out."""
    cluster = Cluster(rate=1_000, held=True)
    await cluster.submit()
    try:
        _, _, leading = await cluster.candidate()

        async def opened() -> bool:
            return (await cluster.history()).submit is not None

        await until(opened, "the job is submitted")  # without workers it can only wait
        await cluster.request(TakeSavepoint(request="save", job=cluster.job))
        _, end = await cluster.log.offsets("requests", 0)
        await cluster.request(TakeSavepoint(request="nobody", job="f" * 32))
        nobody = lambda: JobCatalog(cluster.blobs).answer_to("f" * 32, "nobody")  # noqa: E731
        await until(nobody, "the request behind it is answered, so it was read")
        assert int(await cluster.metadata.get("requests-read") or 0) < end
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        assert await JobCatalog(cluster.blobs).answer_to(cluster.job, "save") is None
        for _ in range(2):
            cluster.worker()
        _, ended, _ = await cluster.candidate()
        saved = await cluster.answer("save")
        assert saved.outcome == "completed", saved.reason
        await cluster.request(StopJob(request="stop", job=cluster.job))
        assert (await cluster.answer("stop")).outcome == "completed"
        assert (await asyncio.wait_for(ended, 60)).state == "STOPPED"
        answers = f"jobs/{cluster.job}/answers/"
        before = await cluster.blobs.get(answers + "stop")
        await cluster.blobs.delete(answers + "stop")  # as if that leader had died before it could answer
        await cluster.request(StopJob(request="stop", job=cluster.job))
        again = await cluster.answer("stop")
        assert (again.outcome, again.savepoint) == ("completed", msgspec.json.decode(before, type=Answer).savepoint)
    finally:
        await cluster.stop()


async def test_a_cancelled_job_leaves_nothing_behind():
    """Topics and checkpoints are gone; the job log stays, so that the job never runs again."""
    cluster = Cluster(rate=3_000, held=True)
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        for _ in range(2):
            cluster.worker()

        await until(cluster.checkpointed, "a checkpoint is complete")
        await cluster.request(CancelJob(request="enough", job=cluster.job))
        assert (await cluster.answer("enough")).outcome == "completed"
        assert (await asyncio.wait_for(ended, 30)).state == "CANCELED"
        assert [topic for topic in await cluster.log.topics() if cluster.job in topic] == []
        assert await cluster.blobs.list(f"jobs/{cluster.job}/checkpoints/") == []
        await cluster.submit()
        await cluster.request(CancelJob(request="again", job=cluster.job))
        assert "no such job" in (await cluster.answer("again")).reason
        assert (await cluster.history()).terminated is not None
    finally:
        await cluster.stop()
