"""Jobs through the REST interface: submitted, looked at, operated, ended."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from small_cluster import ROWS, SmallCluster, small_cluster, until

from penstock.cli.diagnosis import diagnose
from penstock.cli.job_doctor import look
from penstock.client import NoAnswerError, RefusedError
from penstock.coordination.cluster_view import ClusterView
from penstock.errors import ExternalError
from penstock.jobmanager.coordinator import REQUESTS_READ
from penstock.protocol.joblog import Submit, encode_record, log_key
from penstock.protocol.messages import encode


async def test_a_job_from_submission_to_its_end() -> None:
    """Listed while it runs, found by id, its beginning and its name; then it has ended, with all rows."""
    async with small_cluster() as cluster:
        job = await cluster.submit()
        await cluster.checkpointed(job)

        async def live() -> bool:
            return (await cluster.client.job(job)).summary.live

        await until(live, "the leader shows the job")
        for name in (job, job[:8], "counts"):
            assert (await cluster.client.job(name)).summary.job == job
        detail = await cluster.client.job(job)
        assert {vertex.parallelism for vertex in detail.vertices} == {2}
        listed = await cluster.client.jobs()
        assert [(one.job, one.state) for one in listed.jobs] == [(job, "RUNNING")]
        assert listed.leader
        assert len((await cluster.client.workers()).workers) == 2
        checkpoints = (await cluster.client.checkpoints(job)).checkpoints
        assert checkpoints[0].checkpoint >= 1
        assert await cluster.client.artifact(job)
        cluster.set_rate(None)
        assert (await cluster.client.outcome(await cluster.client.rescale(job, 1), 20)).state == "completed"
        assert await cluster.ended(job) == "FINISHED"
        kinds = [record["type"] for record in (await cluster.client.log(job)).records]
        assert (kinds[0], kinds[-1]) == ("Submit", "Terminated")
        assert all("graph" not in record for record in (await cluster.client.log(job)).records)
        cluster.check()


async def test_savepoint_rescale_and_stop_are_answered() -> None:
    """Each request is pending, then completed; the stop's savepoint starts another job, which counts the rest."""
    async with small_cluster(slots=3) as cluster:
        job = await cluster.submit()
        await cluster.checkpointed(job)
        saved = await cluster.client.outcome(await cluster.client.take_savepoint("counts"), 20)
        assert saved.state == "completed", saved.reason
        assert saved.savepoint is not None
        wider = await cluster.client.outcome(await cluster.client.rescale(job, 3), 20)
        assert wider.state == "completed", wider.reason
        stopped = await cluster.client.outcome(await cluster.client.stop(job), 20)
        assert stopped.state == "completed", stopped.reason
        assert stopped.savepoint is not None
        assert await cluster.ended(job) == "STOPPED"
        listed = (await cluster.client.savepoints(job)).savepoints
        assert [one.restore for one in listed] == [saved.savepoint, stopped.savepoint]
        for name in (stopped.savepoint.manifest, stopped.request, job):
            assert (await cluster.client.savepoint(name)).restore == stopped.savepoint
        first = sum(row["n"] for row in cluster.sink.rows)
        assert first < ROWS
        cluster.set_rate(None)
        again = await cluster.submit(restored_from=msgspec.to_builtins(stopped.savepoint))
        assert await cluster.ended(again) == "FINISHED"
        assert (await cluster.client.job(again)).restored == stopped.savepoint.checkpoint
        cluster.check()


async def test_cancel_and_what_is_asked_afterwards() -> None:
    """An ended job refuses everything, with the state that it ended in."""
    async with small_cluster() as cluster:
        job = await cluster.submit()
        await cluster.checkpointed(job)
        cancelled = await cluster.client.outcome(await cluster.client.cancel(job), 20)
        assert cancelled.state == "completed", cancelled.reason
        assert await cluster.ended(job) == "CANCELED"
        for ask in (cluster.client.cancel, cluster.client.stop, cluster.client.take_savepoint):
            with pytest.raises(RefusedError, match="has ended: CANCELED") as refused:
                await ask("counts")
            assert refused.value.status == 409


async def test_missing_slots_are_said() -> None:
    """A job that waits says how many slots it waits for."""
    async with small_cluster(slots=1) as cluster:
        job = await cluster.submit()

        async def waits() -> bool:
            found = [one for one in (await cluster.client.jobs()).jobs if one.job == job]
            return bool(found) and found[0].missing_slots == 1

        await until(waits, "one slot is missing")


async def test_jobs_of_another_version_are_listed_with_the_reason() -> None:
    """Neither a graph nor a log that cannot be read hides the other jobs; the status and both renderings say so."""
    strange, unreadable = "d" * 32, "e" * 32
    async with small_cluster() as cluster:
        submit = Submit(seq=0, nonce="n", job=strange, name="strange", graph={"version": 99, "parallelism": 4})
        await cluster.blobs.put(log_key(strange, 0), encode_record(submit))
        await cluster.blobs.put(log_key(unreadable, 0), b"{}")
        for job in (strange, unreadable):
            await cluster.blobs.put(f"active/{job}", b"")
        await cluster.services.end(next(iter(cluster.services.tasks)))
        cluster.services.coordinator()
        job = await cluster.submit()
        await cluster.checkpointed(job)

        async def all_shown() -> bool:
            found = {one.job: one for one in (await cluster.client.jobs()).jobs}
            return {strange, unreadable, job} <= found.keys() and found[strange].live and found[job].live

        await until(all_shown, "all jobs are listed")
        listed = {one.job: one for one in (await cluster.client.jobs()).jobs}
        for one in (strange, unreadable):
            assert listed[one].state == "UNOPENED"
            assert "cannot look after the job" in listed[one].reason
        detail = await cluster.client.job(strange)
        assert (detail.summary.state, detail.vertices) == ("UNOPENED", ())
        assert "cannot look after the job" in detail.failures[-1]
        flink = (await cluster.http.get("/jobs/overview")).json()["jobs"]
        assert {one["jid"]: one["state"] for one in flink}[strange] == "INITIALIZING"


async def test_a_submission_sent_twice_is_one_job() -> None:
    """The id that the client chose decides."""
    async with small_cluster(rate=None) as cluster:
        job = await cluster.submit(job="a" * 32)
        assert await cluster.submit(job="A" * 32) == job == "a" * 32
        assert await cluster.ended(job) == "FINISHED"
        assert len((await cluster.client.jobs()).jobs) == 1
        cluster.check()


async def test_a_noted_position_that_is_none_stops_no_leader() -> None:
    """All requests that are kept are looked at again."""
    async with small_cluster(leads=False, slots=0) as cluster:
        await cluster.metadata.put(REQUESTS_READ, b"nonsense")
        await cluster.led()
        cluster.worker(2)
        await cluster.checkpointed(await cluster.submit())


async def test_without_a_leader_lists_work_and_requests_do_not() -> None:
    """What stands in the store is said; what needs a leader is 503; a view that is not readable is named."""
    async with small_cluster() as cluster:
        job = await cluster.submit()
        await cluster.checkpointed(job)
        await cluster.services.end(next(iter(cluster.services.tasks)))
        long_ago = ClusterView("gone", "", 1, cluster.clock.now_us() - 60_000_000, 0, 0, (), ())
        await cluster.metadata.put("view", encode(long_ago))
        replica = SmallCluster(other=cluster)
        try:
            listed = await replica.client.jobs()
            assert [(one.job, one.state, one.live) for one in listed.jobs] == [(job, "RUNNING", False)]
            assert not listed.leader
            with pytest.raises(NoAnswerError, match="no coordinator leads this cluster now"):
                await replica.client.cancel(job)
            with pytest.raises(NoAnswerError, match="no coordinator leads"):
                await replica.client.workers()
            await cluster.metadata.put("view", b"{}")
            broken = await replica.http.get("/penstock/v1/taskmanagers")
            assert broken.status_code == 500
            assert "view is not readable" in broken.text
        finally:
            await replica.stop()


async def test_what_sinks_gathered_is_handed_out() -> None:
    """The names of the parts, each part, and 404 for others."""
    async with small_cluster(collects=True) as cluster:
        job = await cluster.submit()

        async def gathered() -> bool:
            return bool((await cluster.client.collected(job)).parts)

        await until(gathered, "a part is in the store")
        name = (await cluster.client.collected(job)).parts[0]
        part = await cluster.client.collected_part(job, name)
        assert part.checkpoint == int(name.rpartition("/")[2].partition("-")[0])
        assert not cluster.sink.rows
        for wrong in ("none", "../../active", "a/%2e%2e/b"):
            response = await cluster.http.get(f"/penstock/v1/jobs/{job}/collected/{wrong}")
            assert response.status_code == 404
        assert (await cluster.client.outcome(await cluster.client.cancel(job), 20)).state == "completed"
        assert await cluster.ended(job) == "CANCELED"
        assert (await cluster.client.collected(job)).parts == ()


async def test_values_of_parameters_are_for_the_job_alone() -> None:
    """Their names are shown; nothing that the interface says about a job holds the values."""
    async with small_cluster() as cluster:
        artifact = {"target": "cluster.py", "parameters": {"password": "hunter2"}}
        job = await cluster.submit(artifact=artifact)
        await cluster.checkpointed(job)
        submitted = (await cluster.client.log(job)).records[0]
        assert submitted["artifact"]["parameters"] == {"password": "***"}
        for path in ("", "/log", "/checkpoints", "/failures"):
            assert "hunter2" not in (await cluster.http.get(f"/penstock/v1/jobs/{job}{path}")).text
        history = await cluster.store.history(job)
        assert history.submit is not None
        assert history.submit.artifact is not None
        assert history.submit.artifact.parameters == {"password": "hunter2"}


async def test_with_the_store_away_what_the_leader_shows_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """In lists and by id, beginning of the id and name; it says what is missing. What asks for a change is 503."""
    async with small_cluster() as cluster:
        job = await cluster.submit()
        await cluster.checkpointed(job)

        async def shown() -> bool:
            detail = await cluster.client.job(job)
            return detail.summary.live and bool(detail.checkpoints) and any(vertex.tasks for vertex in detail.vertices)

        await until(shown, "the view has the job, its subtasks and a checkpoint")

        async def fail(*_: Any, **__: Any) -> Any:
            raise ExternalError("the store is away")

        for method in ("get", "list"):
            monkeypatch.setattr(cluster.blobs, method, fail)
        other = SmallCluster(other=cluster)  # one that has nothing in its memory
        try:
            listed = await other.client.jobs()
            assert [(one.job, one.name, one.state, one.live) for one in listed.jobs] == [
                (job, "counts", "RUNNING", True)
            ]
            assert "the store is away" in listed.missing
            for name in (job, job[:8], "counts"):
                assert (await other.client.find(name)).id == job
                detail = await other.client.job(name)
                assert (detail.summary.job, detail.summary.state) == (job, "RUNNING")
                assert detail.summary.last_checkpoint > 0
                assert "the store is away" in detail.missing
                assert sum(len(vertex.tasks) for vertex in detail.vertices) > 0
            assert len((await other.client.checkpoints(job)).checkpoints) > 0
            assert (await other.client.failures(job)).failures == ()
            assert "store" in [one.check for one in diagnose(await look(other.client, "counts")) if not one.ok]
            assert (await other.http.get("/jobs/overview")).json()["jobs"][0]["jid"] == job
            for ask in (other.client.cancel(job), other.client.job("unknown"), other.client.log(job)):
                with pytest.raises(NoAnswerError, match="the store is away"):
                    await ask
        finally:
            await other.client.close()
            await other.http.aclose()


async def test_a_leader_that_hears_no_broker_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """No heartbeat comes through then: without that a job would be shown as it was, with no word of why it stands."""
    async with small_cluster() as cluster:
        job = await cluster.submit()
        await cluster.checkpointed(job)

        async def away(*_: Any, **__: Any) -> Any:
            await asyncio.sleep(0.05)
            raise ExternalError("no broker answers")

        async def deaf() -> bool:
            heard = {(await cluster.client.job(job)).deaf_us, (await cluster.client.jobs()).deaf_us}
            return all(us >= 3_000_000 for us in heard)

        async def heard() -> bool:
            return not (await cluster.client.job(job)).deaf_us and not (await cluster.client.overview()).deaf_us

        assert await heard()
        with monkeypatch.context() as patch:
            for call in ("read", "append"):
                patch.setattr(cluster.log, call, away)
            await until(deaf, "the leader says that it hears nobody", 15)
        await until(heard, "the leader hears the brokers again", 15)
