"""What is wrong with one job, one request or one event costs that one; the leader and all others go on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from tests.integration.one_job import Cluster, until

from penstock.adapters.memory import MemoryBlobs
from penstock.coordination.control_topics import EVENTS, REQUESTS, create_control_topics
from penstock.jobmanager import unopened_jobs
from penstock.jobmanager.coordinator import CoordinatorService
from penstock.jobmanager.job_shell import JobShell
from penstock.ports import NewRecord
from penstock.protocol.jobevents import Requested
from penstock.protocol.joblog import Savepoint, Submit, encode_record, log_key
from penstock.protocol.jobmaster import JobMaster
from penstock.protocol.requests import CancelJob, RescaleJob, StopJob, SubmitJob, TakeSavepoint

STRANGE_GRAPH = {"version": 99, "vertices": "of another version"}


@asynccontextmanager
async def running(cluster: Cluster, workers: int = 2) -> AsyncIterator[CoordinatorService]:
    """The cluster, one coordinator, some workers."""
    await create_control_topics(cluster.log)
    try:
        service, _, _ = await cluster.candidate()
        for _ in range(workers):
            cluster.worker()
        yield service
    finally:
        await cluster.stop()


async def strange_job(cluster: Cluster) -> str:
    """A job whose graph no coordinator of this version reads."""
    submit = Submit(seq=0, nonce="n", job="e" * 32, name="strange", graph=STRANGE_GRAPH)
    await cluster.blobs.create(log_key(submit.job, 0), encode_record(submit))
    await cluster.blobs.put(f"active/{submit.job}", b"")
    return submit.job


async def checkpoint(cluster: Cluster) -> None:
    """Wait for a COMPLETE of the job."""

    async def there() -> bool:
        return (await cluster.history()).complete is not None

    await until(there, "a checkpoint is complete")


async def test_a_job_of_another_version_does_not_end_leadership(monkeypatch):
    """It is shown with the reason and tried again; the other job runs to its end under the first leader."""
    monkeypatch.setattr(unopened_jobs, "FIRST_PAUSE_MS", 20)
    cluster = Cluster()
    strange = await strange_job(cluster)
    await cluster.blobs.put("active/no-such-job", b"")
    await cluster.submit()
    async with running(cluster) as service:
        ended = service.job_ended(cluster.job)
        assert (await asyncio.wait_for(ended, 30)).state == "FINISHED"
        cluster.check()  # the other job is to write there too
        assert service.epoch == 1
        views = {view.job: view for view in service.view().jobs}
        assert views[strange].state == "UNOPENED"
        assert "the coordinator cannot look after the job" in views[strange].failures[0]
        assert "has no log of" in views["no-such-job"].failures[0]
        await cluster.request(StopJob(request="stop", job=strange))
        answer = await cluster_answer(cluster, strange, "stop")
        assert answer.outcome == "refused"
        assert "tried again" in answer.reason
        good = encode_record(Submit(seq=0, nonce="n", job=strange, name="mended", graph=cluster.graph.to_json()))
        await cluster.blobs.put(log_key(strange, 0), good)
        await until(lambda: strange in {shell.job for shell in service.shells}, "it is opened once it can be read")
        assert service.epoch == 1


async def cluster_answer(cluster: Cluster, job: str, request: str):
    """The answer to a request about any job."""
    return await super(Cluster, cluster).answer(job, request)


async def test_an_odd_request_is_refused_and_costs_nobody_else(monkeypatch):
    """With the reason, if it can be read who asks; one that cannot even be answered is passed over."""
    cluster = Cluster(rate=3_000)
    await cluster.submit()
    async with running(cluster) as service:
        await checkpoint(cluster)
        odd = {"type": "SplitJob", "request": "odd", "job": cluster.job}
        shapeless = {"type": "StopJob", "request": "shapeless", "job": cluster.job, "drain": "perhaps"}
        for value in (b"\xff", b"[]", msgspec.json.encode(odd), msgspec.json.encode(shapeless)):
            await cluster.log.append(REQUESTS, 0, [NewRecord(value)])
        await cluster.request(CancelJob(request="../../x", job="../.."))
        form = SubmitJob(request="f" * 32, job="f" * 32, name="odd", graph=cluster.graph.to_json(), scalable={"a": 1})
        await cluster.request(form)
        await cluster.request(RescaleJob(request="odd-form", job="f" * 32, parallelism=2))
        assert "SplitJob" in (await cluster.answer("odd")).reason
        assert (await cluster.answer("shapeless")).outcome == "refused"
        assert (await cluster_answer(cluster, "f" * 32, "odd-form")).outcome == "refused"
        await cluster.request(StopJob(request="stop", job=cluster.job))
        assert (await cluster.answer("stop")).outcome == "completed"
        assert service.epoch == 1


async def test_an_event_that_cannot_be_read_is_passed_over():
    """The next heartbeat says what it said."""
    cluster = Cluster()
    await cluster.submit()
    async with running(cluster, workers=0) as service:
        await until(lambda: service.epoch, "it leads")
        for value in (b"\xff", b'{"type":"Danced"}'):
            await cluster.log.append(EVENTS, 0, [NewRecord(value)])
        ended = service.job_ended(cluster.job)
        for _ in range(2):
            cluster.worker()
        assert (await asyncio.wait_for(ended, 30)).state == "FINISHED"


async def test_a_master_that_fails_is_opened_again(monkeypatch):
    """What nobody expected costs that master: the next adopts what runs, and requests are answered."""
    monkeypatch.setattr(unopened_jobs, "FIRST_PAUSE_MS", 20)
    handle, faults = JobMaster.handle, [0]
    cluster = Cluster(rate=700)  # a request is looked at again once a second, and the job is to run until then
    await cluster.submit()

    def faulty(master, event, now_ms):
        if faults[0] and isinstance(event, Requested):  # asked for again by every new master
            faults[0] -= 1
            raise RuntimeError("nobody expected this")
        return handle(master, event, now_ms)

    monkeypatch.setattr(JobMaster, "handle", faulty)
    async with running(cluster) as service:
        await checkpoint(cluster)
        ended = service.job_ended(cluster.job)
        faults[0] = 3
        await cluster.request(TakeSavepoint(request="save", job=cluster.job))
        assert (await cluster.answer("save")).outcome == "completed"
        assert faults == [0]
        assert "nobody expected this" in service.progress(cluster.job).failures[-1]
        assert (await asyncio.wait_for(ended, 60)).state == "FINISHED"
        assert service.epoch == 1
        records = (await cluster.history()).records
        assert [type(record).__name__ for record in records].count("Begin") == 1
        assert sum(isinstance(record, Savepoint) for record in records) == 1
    cluster.check()


async def test_a_refused_submission_stays_refused():
    """Also if the store that remembers which requests were read has forgotten it, and the reason has passed."""
    cluster = Cluster()
    request = SubmitJob(request=cluster.job, job=cluster.job, name="odd", graph={"version": 0})
    await cluster.request(request)
    async with running(cluster, workers=0) as service:
        assert (await cluster.answer(cluster.job)).outcome == "refused"
        await cluster.request(msgspec.structs.replace(request, graph=cluster.graph.to_json()))
        other = uuid.uuid4().hex
        await cluster.request(CancelJob(request="behind", job=other))
        assert (await cluster_answer(cluster, other, "behind")).outcome == "refused"
        assert service.shells == []
        assert await cluster.catalog.active() == []


async def test_a_request_is_asked_until_its_answer_is_stored(monkeypatch):
    """A leader that dies while it stores an answer leaves the request to the next one."""
    cluster = Cluster(rate=1_000)
    await cluster.submit()
    storing, store = asyncio.Event(), MemoryBlobs.put

    async def slow(blobs, key, data):
        if key.endswith("/answers/save"):
            storing.set()
            await asyncio.Event().wait()
        await store(blobs, key, data)

    async with running(cluster) as service:
        await checkpoint(cluster)
        monkeypatch.setattr(MemoryBlobs, "put", slow)
        _, end = await cluster.log.offsets(REQUESTS, 0)
        await cluster.request(TakeSavepoint(request="save", job=cluster.job))
        await asyncio.wait_for(storing.wait(), 30)
        await cluster.request(CancelJob(request="nobody", job="f" * 32))
        await cluster_answer(cluster, "f" * 32, "nobody")
        await until(noted_past(cluster, end - 1), "what is before it is noted as handled")
        assert int(await cluster.metadata.get("requests-read") or 0) <= end
        await cluster.end(service.name)
        monkeypatch.setattr(MemoryBlobs, "put", store)
        await cluster.candidate()
        assert (await cluster.answer("save")).outcome == "completed"
        await cluster.request(StopJob(request="stop", job=cluster.job))
        await cluster.answer("stop")
        assert sum(isinstance(record, Savepoint) for record in (await cluster.history()).records) == 2


def noted_past(cluster: Cluster, offset: int):
    """Whether the leader has noted so far."""

    async def noted() -> bool:
        return int(await cluster.metadata.get("requests-read") or 0) > offset

    return noted


async def test_a_master_that_fails_while_leadership_ends_is_left_to_the_next_leader(monkeypatch):
    """It is not opened again by who leads no longer."""
    opened: list[str] = []

    async def run(shell: JobShell, epoch: int, markers: object) -> None:
        opened.append(shell.job)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("nobody expected this") from None

    monkeypatch.setattr(JobShell, "run", run)
    cluster = Cluster()
    await cluster.submit()
    async with running(cluster, workers=0) as service:
        await until(lambda: opened, "the job is looked after")
        await service._stop("the test says so")
        left = [coroutine for task in asyncio.all_tasks() if (coroutine := task.get_coro()) is not None]
        assert not [found for found in left if "_open_later" in found.__qualname__]
        assert service.shells == []
