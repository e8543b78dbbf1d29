"""What is asked of a job whose slots, checkpoints or store are gone is done or refused, and no row is lost over it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.integration.one_job import ROWS, TIMEOUTS, Cluster, until
from tests.integration.published import Destination, Sink

from penstock.adapters.memory import MemoryLog
from penstock.connectors import files
from penstock.errors import ExternalError
from penstock.graph.executiongraph import exchange_topic
from penstock.ports import LogRecord, NewRecord
from penstock.protocol import endings
from penstock.protocol.joblog import Begin
from penstock.protocol.messages import Restore
from penstock.protocol.requests import CancelJob, RescaleJob, StopJob, TakeSavepoint
from penstock.protocol.restarts import FixedDelay, NoRestart
from penstock.task.environment import SubtaskSettings


async def test_a_parallelism_that_has_no_slots_is_refused_before_anything_stops():
    """The job goes on as it is; with `wait` it is carried out once there are slots, under another leader too."""
    cluster = Cluster(rate=1_500)
    await cluster.submit()
    try:
        _, _, leading = await cluster.candidate()
        cluster.worker(slots=2)
        await until(cluster.checkpointed, "a checkpoint is complete")
        await cluster.request(RescaleJob(request="wide", job=cluster.job, parallelism=100))
        assert "98 more slots" in (await cluster.answer("wide")).reason
        await cluster.request(RescaleJob(request="wait", job=cluster.job, parallelism=3, wait=True))
        await cluster.request(TakeSavepoint(request="save", job=cluster.job))
        assert (await cluster.answer("save")).outcome == "completed"
        assert await _begins(cluster) == 1
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        _, ended, _ = await cluster.candidate()
        cluster.worker()
        answer = await cluster.answer("wait")
        assert answer.outcome == "completed", answer.reason
        assert (await cluster.history()).graph["parallelism"] == 3
        assert (await asyncio.wait_for(ended, 60)).state == "FINISHED"
    finally:
        await cluster.stop()
    cluster.check()


async def test_of_two_that_wait_for_slots_the_newest_counts():
    """Who asked for the other one is told. The parallelism that the job has ends the waiting, and the job runs on."""
    cluster = Cluster(rate=1_000)
    await cluster.submit()
    try:
        await cluster.candidate()
        cluster.worker(slots=2)
        await until(cluster.checkpointed, "a checkpoint is complete")
        await cluster.request(RescaleJob(request="first", job=cluster.job, parallelism=50, wait=True))
        await cluster.request(RescaleJob(request="second", job=cluster.job, parallelism=60, wait=True))
        assert "another parallelism was asked for" in (await cluster.answer("first")).reason
        await cluster.request(RescaleJob(request="second", job=cluster.job, parallelism=60, wait=True))
        await cluster.request(RescaleJob(request="stay", job=cluster.job, parallelism=2, wait=True))
        assert (await cluster.answer("stay")).outcome == "completed"
        assert "another parallelism was asked for" in (await cluster.answer("second")).reason
        assert await _begins(cluster) == 1
        await cluster.request(RescaleJob(request="third", job=cluster.job, parallelism=50, wait=True))
        await cluster.request(CancelJob(request="cancel", job=cluster.job))
        assert (await cluster.answer("cancel")).outcome == "completed"
        assert "the job ended before" in (await cluster.answer("third")).reason
    finally:
        await cluster.stop()


async def test_another_job_starts_from_what_a_failed_one_has_left():
    """Before it has failed its sinks publish what is complete, so nothing is lost by it and nothing doubled."""
    destination = Destination()
    cluster = Cluster(rate=2_000, sink=Sink(destination))
    await cluster.submit(NoRestart())
    try:
        _, ended, _ = await cluster.candidate()
        first = cluster.worker(slots=2)
        await until(lambda: destination.rows, "a window is visible")
        destination.refuses_rows = True
        await until(lambda: destination.refused, "a checkpoint is complete whose rows are not published")
        cluster.tasks[first.name].cancel()
        cluster.worker(slots=2)
        destination.refuses_rows = False
        assert (await asyncio.wait_for(ended, 60)).state == "FAILED"
        history = await cluster.history()
        assert [record.publishes_only for record in history.records if isinstance(record, Begin)] == [False, True]
        (failed,) = history.failures
        assert (failed.worker, failed.attempt_number, failed.at_us > 0) == (first.name, 1, True)
        retained = history.retained
        assert retained is not None
        restore = Restore(retained.checkpoint, retained.manifest, retained.sha256)
        await cluster.submit(restored_from=restore)
        outcome = await asyncio.wait_for(cluster.coordinators[0].job_ended(cluster.job), 60)
        assert outcome.state == "FINISHED", outcome.reason
    finally:
        await cluster.stop()
    assert sum(row["n"] for row in destination.rows) == ROWS
    windows = [(row["key"], row["window_start"]) for row in destination.rows]
    assert len(windows) == len(set(windows))


async def test_a_job_whose_rows_are_gone_from_the_log_fails_without_restarts(monkeypatch: pytest.MonkeyPatch):
    """They are complete and not published, and no attempt can bring them back: its restart strategy is not asked."""
    monkeypatch.setattr(endings, "PUBLISH_DEADLINE_MS", 2_000)
    destination = Destination()
    cluster = Cluster(rate=2_000, sink=Sink(destination))
    await cluster.submit(FixedDelay(attempts=1_000, delay_ms=10))
    try:
        _, ended, _ = await cluster.candidate()
        first = cluster.worker(slots=2)
        await until(lambda: destination.rows, "a window is visible")
        destination.refuses_rows = True
        complete = (await cluster.history()).highest_checkpoint
        await until(lambda: _is_above(cluster, complete + 1), "checkpoints are complete whose rows are not published")
        cluster.tasks[first.name].cancel()
        for vertex in cluster.graph.vertices:
            if vertex.publishes:
                topic = exchange_topic(cluster.job, vertex.id, 0)
                for partition in range(vertex.parallelism):
                    await cluster.log.trim(topic, partition, (await cluster.log.offsets(topic, partition))[1])
        cluster.worker(slots=2)
        outcome = await asyncio.wait_for(ended, 30)
        assert outcome.state == "FAILED"
        assert "the log has lost frames that were confirmed" in outcome.reason
        begins = [record.publishes_only for record in (await cluster.history()).records if isinstance(record, Begin)]
        assert begins[:2] == [False, False]
        assert all(begins[2:])
    finally:
        await cluster.stop()


@pytest.mark.parametrize("ending", ["FINISHED", "STOPPED"])
async def test_an_ended_job_leaves_no_proofs_of_commits(tmp_path: Path, ending: str):
    """Its last checkpoint is restored as a savepoint only, and whoever does that knows that all of it is visible."""
    cluster = Cluster(rate=2_000 if ending == "STOPPED" else None, sink=files.Sink(tmp_path))
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        worker = cluster.worker(slots=2)
        if ending == "STOPPED":
            await until(lambda: list(tmp_path.glob("part-*")), "a window is visible")
            await cluster.request(StopJob(request="stop", job=cluster.job))
        assert (await asyncio.wait_for(ended, 60)).state == ending
        await until(lambda: not worker.statuses(), "the subtasks have ended")
    finally:
        await cluster.stop()
    assert list(tmp_path.glob("part-*"))
    assert list((tmp_path / ".staging").iterdir()) == []


@pytest.mark.parametrize("again", [False, True], ids=["until it is published", "until it is cancelled once more"])
async def test_a_cancelled_job_goes_on_publishing(monkeypatch: pytest.MonkeyPatch, again: bool):
    """Rows that are complete are in nobody's hands but its own: it says what it waits for, and loses none."""
    monkeypatch.setattr(endings, "PUBLISH_DEADLINE_MS", 300)
    destination = Destination()
    cluster = Cluster(rate=2_000, sink=Sink(destination))
    await cluster.submit()
    try:
        service, ended, _ = await cluster.candidate()
        cluster.worker(slots=2)
        await until(lambda: destination.rows, "a window is visible")
        destination.refuses_rows = True
        await until(lambda: destination.refused, "a checkpoint is complete whose rows are not published")
        await cluster.request(CancelJob(request="cancel", job=cluster.job))
        await until(lambda: any("cancel it again" in job.ending for job in service.view().jobs), "it says so")
        assert not ended.done()
        if again:
            await cluster.request(CancelJob(request="again", job=cluster.job))
            assert (await cluster.answer("again")).outcome == "completed"
        destination.refuses_rows = again
        assert (await cluster.answer("cancel")).outcome == "completed"
        assert (await asyncio.wait_for(ended, 60)).state == "CANCELED"
        history = await cluster.history()
        assert history.terminated is not None
        assert history.terminated.unpublished == again
        assert (history.retained is not None) == again
    finally:
        await cluster.stop()


async def test_a_stopped_job_needs_one_slot_to_publish():
    """The slots for all of it do not come back: its savepoint is the newest checkpoint, published by its sinks alone."""
    cluster = Cluster(rate=2_000, parallelism=3)
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        first = cluster.worker(slots=3)
        await until(cluster.checkpointed, "a checkpoint is complete")
        cluster.tasks[first.name].cancel()
        cluster.worker()
        await cluster.request(StopJob(request="stop", job=cluster.job))
        stopped = await cluster.answer("stop")
        assert stopped.outcome == "completed", stopped.reason
        assert stopped.savepoint is not None
        assert (await asyncio.wait_for(ended, 60)).state == "STOPPED"
    finally:
        await cluster.stop()


async def test_a_job_whose_checkpoint_is_gone_is_cancelled():
    """It cannot go on, and says why; what else is asked of it is refused."""
    cluster = Cluster(rate=2_000)
    await cluster.submit()
    try:
        _, _, leading = await cluster.candidate()
        cluster.worker(slots=2)
        await until(cluster.checkpointed, "a checkpoint is complete")
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        complete = (await cluster.history()).complete
        assert complete is not None
        await cluster.blobs.delete(complete.manifest)
        _, ended, _ = await cluster.candidate()
        await cluster.request(TakeSavepoint(request="save", job=cluster.job))
        assert "cancel it" in (await cluster.answer("save")).reason
        await cluster.request(CancelJob(request="cancel", job=cluster.job))
        assert (await cluster.answer("cancel")).outcome == "completed"
        assert (await asyncio.wait_for(ended, 60)).state == "CANCELED"
    finally:
        await cluster.stop()


async def test_a_manifest_that_is_put_back_is_gone_on_from(monkeypatch: pytest.MonkeyPatch):
    """Whoever restores the store from a backup need not restart anything."""
    monkeypatch.setattr("penstock.jobmanager.job_shell.UNREADABLE_PAUSE_MS", 50)
    cluster = Cluster(rate=2_000)
    await cluster.submit()
    try:
        _, _, leading = await cluster.candidate()
        cluster.worker(slots=2)
        await until(cluster.checkpointed, "a checkpoint is complete")
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        complete = (await cluster.history()).complete
        assert complete is not None
        data = await cluster.blobs.get(complete.manifest)
        await cluster.blobs.delete(complete.manifest)
        service, ended, _ = await cluster.candidate()
        await until(lambda: service.progress(cluster.job).failures, "the leader says what is missing")
        await cluster.blobs.put(complete.manifest, data)
        assert (await asyncio.wait_for(ended, 60)).state == "FINISHED"
    finally:
        await cluster.stop()
    cluster.check()


async def test_a_store_that_is_away_costs_checkpoints_and_no_attempt(monkeypatch: pytest.MonkeyPatch):
    """Uploads fail one after the other, more than are tolerated; the job goes on, and is exact."""
    cluster = Cluster(rate=1_500)
    await cluster.submit()
    try:
        service, ended, _ = await cluster.candidate()
        cluster.worker(slots=2)
        await until(cluster.checkpointed, "a checkpoint is complete")
        put = cluster.blobs.put

        async def away(key: str, data: bytes) -> None:
            if "/checkpoints/" in key and not key.endswith("manifest.json"):
                raise ExternalError("503")
            await put(key, data)

        monkeypatch.setattr(cluster.blobs, "put", away)
        await until(lambda: service.progress(cluster.job).totals["aborted"] > 5, "checkpoints fail")
        shown = service.progress(cluster.job).checkpoints.values()
        assert any("503" in checkpoint.reason for checkpoint in shown)
        monkeypatch.setattr(cluster.blobs, "put", put)
        assert (await asyncio.wait_for(ended, 60)).state == "FINISHED"
        assert await _begins(cluster) == 1
    finally:
        await cluster.stop()
    cluster.check()


async def test_a_task_manager_that_stands_still_is_one_failure():
    """Its workers fall silent one after the other; the next attempt begins on none of them."""
    cluster = Cluster(rate=1_500)
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        frozen = [cluster.worker(host="one") for _ in range(2)]
        await until(cluster.checkpointed, "a checkpoint is complete")
        for _ in range(2):
            cluster.worker(host="other")
        cluster.tasks[frozen[0].name].cancel()
        await asyncio.sleep(TIMEOUTS.worker_ms / 3_000)  # as the last heartbeats of two workers lie apart
        cluster.tasks[frozen[1].name].cancel()
        assert (await asyncio.wait_for(ended, 60)).state == "FINISHED"
        assert len((await cluster.history()).failures) == 1
    finally:
        await cluster.stop()
    cluster.check()


class AwayLog(MemoryLog):
    """A log whose brokers can be away; some of what is sent arrives all the same, without an answer."""

    away = False

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        if self.away and len(records) % 2:
            await super().append(topic, partition, records)
        await self._answers()
        return await super().append(topic, partition, records)

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 4 << 20, timeout_s: float = 0.0
    ) -> list[LogRecord]:
        await self._answers()
        return await super().read(topic, partition, offset, max_bytes=max_bytes, timeout_s=timeout_s)

    async def _answers(self) -> None:
        if self.away:
            await asyncio.sleep(0.05)
            raise ExternalError("no broker answers")


async def test_brokers_that_are_away_cost_no_attempt():
    """For longer than a silent worker counts as alive; then it goes on where it stood, frames that came twice aside."""
    log = AwayLog()
    cluster = Cluster(rate=1_500, log=log, data=SubtaskSettings(broker_patience_ms=60_000))
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        worker = cluster.worker(slots=2)
        await until(cluster.checkpointed, "a checkpoint is complete")
        log.away = True
        await until(lambda: any("no broker answers" in s.waits_for for s in worker.statuses()), "subtasks say it")
        began = time.monotonic()
        await until(lambda: time.monotonic() - began > 2 * TIMEOUTS.worker_ms / 1_000, "silence has lasted")
        log.away = False
        assert (await asyncio.wait_for(ended, 60)).state == "FINISHED"
        assert not any(status.waits_for for status in worker.statuses())
        assert await _begins(cluster) == 1
    finally:
        await cluster.stop()
    cluster.check()


async def _is_above(cluster: Cluster, checkpoint: int) -> bool:
    return (await cluster.history()).highest_checkpoint > checkpoint


async def _begins(cluster: Cluster) -> int:
    return sum(isinstance(record, Begin) for record in (await cluster.history()).records)
