"""What Flink's clients ask for: which requests reach the leader, and what is removed from the store."""

from __future__ import annotations

from typing import Any

import pytest
from recorded_cluster import JOB, OTHER, RecordedCluster, manifest_of, recorded_cluster
from small_cluster import small_cluster, until

from penstock.coordination.job_catalog import JobCatalog
from penstock.errors import ExternalError
from penstock.protocol.joblog import Leader, Savepoint, log_key
from penstock.protocol.messages import Restore
from penstock.protocol.requests import (
    Answer,
    CancelJob,
    RescaleJob,
    StopJob,
    TakeCheckpoint,
    TakeSavepoint,
)
from penstock_dispatcher.flink.answers import hex_id

J = f"/jobs/{JOB}"
OWN = "9" * 32


async def test_which_requests_reach_the_leader() -> None:
    """Each of the ways to ask, with the client's own trigger where it gave one."""
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        ask = cluster.http
        for answer, body in (
            (await ask.patch(f"/v1{J}?mode=cancel", content=b"{}"), {}),
            (await ask.patch(J), {}),
            (await ask.get(f"{J}/yarn-cancel"), {}),
            (await ask.post(f"/applications/{JOB}/cancel"), {}),
            (await ask.post(f"{J}/stop", json={"drain": True, "triggerId": OWN.upper()}), {"request-id": OWN}),
            (await ask.post(f"{J}/savepoints", json={"triggerId": OWN, "bogus": 1}), {"request-id": OWN}),
            (await ask.post(f"{J}/savepoints", json={"cancel-job": True, "triggerId": OWN}), {"request-id": OWN}),
            (await ask.post(f"{J}/checkpoints", json={"triggerId": OWN}), {"request-id": OWN}),
        ):
            assert (answer.status_code, answer.json()) == (202, body)
        assert len((await ask.post(f"{J}/savepoints")).json()["request-id"]) == 32  # nothing at all counts as `{}`
        kinds = [type(request) for request in await cluster.asked()]
        assert kinds == [*[CancelJob] * 4, StopJob, TakeSavepoint, StopJob, TakeCheckpoint, TakeSavepoint]


async def test_what_became_of_a_trigger() -> None:
    """In progress, complete with place or number, failed: the last as an error, which Flink's client takes at once."""
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        await cluster.http.post(f"{J}/checkpoints", json={"triggerId": OWN})
        pending = {"status": {"id": "IN_PROGRESS"}, "operation": None}
        assert (await cluster.http.get(f"{J}/checkpoints/{OWN}")).json() == pending
        catalog, restore = JobCatalog(cluster.blobs), Restore(7, manifest_of(7), "0" * 64)
        await catalog.answer(Answer(OWN, JOB, "checkpoint", "completed", savepoint=restore))
        done = {"id": "COMPLETED"}
        assert (await cluster.http.get(f"/v1{J}/checkpoints/{OWN}")).json() == {
            "status": done, "operation": {"checkpointId": 7},
        }  # fmt: skip
        assert (await cluster.http.get(f"{J}/savepoints/{OWN}")).json()["operation"] == {"location": manifest_of(7)}
        await catalog.answer(Answer(OWN, JOB, "checkpoint", "refused", "checkpoint 7 failed: timeout"))
        failed = await cluster.http.get(f"{J}/checkpoints/{OWN}")
        assert (failed.status_code, failed.json()) == (409, {"errors": ["checkpoint 7 failed: timeout"]})


async def test_an_ended_job_takes_no_requests() -> None:
    """409 where it ended otherwise than it is asked to; cancelled twice is no error."""
    async with recorded_cluster() as cluster:
        await cluster.record_ended("CANCELED")
        await cluster.show()
        assert (await cluster.http.patch(J)).status_code == 202
        assert (await cluster.http.get(f"{J}/yarn-cancel")).status_code == 202
        assert (await cluster.http.post(f"/applications/{JOB}/cancel")).status_code == 404
        for path in ("stop", "savepoints", "checkpoints"):
            assert (await cluster.http.post(f"{J}/{path}")).status_code == 409
        assert await cluster.asked() == []


# -- rescaling ----------------------------------------------------------------------------------------------------------


def bounds(cluster: RecordedCluster, *uppers: int, lower: int = 1) -> dict[str, Any]:
    """Upper bounds of the vertices, in their order."""
    return {
        hex_id(vertex.id): {"parallelism": {"lowerBound": lower, "upperBound": upper}}
        for vertex, upper in zip(cluster.graph.vertices, uppers, strict=False)
    }


async def test_resource_requirements_rescale_the_job_as_a_whole() -> None:
    """What is asked of every vertex is a parallelism of the job; what it has already asks for nothing."""
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        same = await cluster.http.put(f"{J}/resource-requirements", json=bounds(cluster, 2, 2))
        more = await cluster.http.put(f"/v1{J}/resource-requirements", json=bounds(cluster, 3, 3))
        assert [(one.status_code, one.json()) for one in (same, more)] == [(200, {})] * 2
        [request] = await cluster.asked()
        assert isinstance(request, RescaleJob)
        assert (request.parallelism, request.wait) == (3, True)


async def test_requirements_that_cannot_be_met_are_refused() -> None:
    """A vertex is missing, vertices differ, bounds cross, more subtasks than key groups."""
    impossible = (((3,), 1), ((2, 3), 1), ((0, 0), 0), ((1, 1), 2), ((1_000, 1_000), 1), ((), 1))
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        for uppers, lower in impossible:
            answer = await cluster.http.put(f"{J}/resource-requirements", json=bounds(cluster, *uppers, lower=lower))
            assert (answer.status_code, list(answer.json())) == (400, ["errors"])
        assert await cluster.asked() == []


# -- removing savepoints ------------------------------------------------------------------------------------------------


async def dispose(cluster: RecordedCluster, path: str, trigger: str = OWN) -> Any:
    """What Flink's client sends."""
    return await cluster.http.post("/v1/savepoint-disposal", json={"savepoint-path": path, "triggerId": trigger})


async def with_savepoint(cluster: RecordedCluster, newest: int) -> str:
    """A running job with savepoint 3 and a newer checkpoint, both in the store; the savepoint's key."""
    saved = Savepoint(checkpoint=3, manifest=manifest_of(3), sha256="0" * 64, request="e" * 32, published=True)
    later = [cluster.complete(newest, 9, parent=3)] if newest > 3 else []
    await cluster.write(
        cluster.submitted(), Leader(epoch=1), cluster.begun(), cluster.complete(3, 2), saved, *later
    )  # fmt: skip
    await cluster.show(cluster.running())
    return await cluster.put_manifest(3)


async def test_a_savepoint_that_nobody_needs_is_removed() -> None:
    """All of it, and nothing else; every dispatcher knows that it was done; done twice is done."""
    async with recorded_cluster() as cluster:
        path = await with_savepoint(cluster, 4)
        newest = await cluster.put_manifest(4)
        answer = await dispose(cluster, path)
        assert (answer.status_code, answer.json()) == (200, {"request-id": OWN})
        other = RecordedCluster(cluster)
        done = (await other.http.get(f"/savepoint-disposal/{OWN}")).json()
        assert done == {"status": {"id": "COMPLETED"}, "operation": {}}
        await other.http.aclose()
        await other.client.close()
        assert (await cluster.http.get("/penstock/v1/savepoints")).json() == {"savepoints": []}
        for name in (path, JOB):
            assert (await cluster.http.get("/penstock/v1/savepoints/find", params={"name": name})).status_code == 404
        assert (await dispose(cluster, path, "8" * 32)).status_code == 404
        left = await cluster.blobs.list(f"jobs/{JOB}/checkpoints/")
        assert left == sorted([newest, newest.replace("manifest.json", "v1-0-state")])
        assert (await dispose(cluster, path)).status_code == 200


async def test_a_removal_that_was_interrupted_is_carried_on() -> None:
    """Its manifest is gone, its objects are not."""
    async with recorded_cluster() as cluster:
        path = await with_savepoint(cluster, 4)
        await cluster.put_manifest(4)
        await cluster.blobs.delete(path)
        assert (await dispose(cluster, path)).status_code == 200
        assert not [key for key in await cluster.blobs.list(f"jobs/{JOB}/checkpoints/") if "0000000003" in key]


async def test_a_savepoint_that_a_job_needs_stays() -> None:
    """Its own job would go on from it, another has started from it, or a newer checkpoint names an object of it."""
    async with recorded_cluster() as cluster:
        path = await with_savepoint(cluster, 3)
        assert (await dispose(cluster, path)).status_code == 409
    async with recorded_cluster() as cluster:
        path = await with_savepoint(cluster, 4)
        await cluster.put_manifest(4, refers_to=path.replace("manifest.json", "v1-0-state"))
        refused = await dispose(cluster, path)
        assert (refused.status_code, JOB in refused.json()["errors"][0]) == (409, True)
    async with recorded_cluster() as cluster:
        path = await with_savepoint(cluster, 4)
        await cluster.put_manifest(4)
        restored = Restore(3, path, "0" * 64)
        await cluster.write(cluster.submitted(job=OTHER, restored_from=restored), Leader(epoch=1), job=OTHER)
        assert (await dispose(cluster, path)).status_code == 409
        assert path in await cluster.blobs.list("")
        assert (await cluster.http.get(f"/savepoint-disposal/{OWN}")).status_code == 404


async def test_what_is_no_savepoint_cannot_be_removed() -> None:
    """Not the log of a job, no checkpoint, nothing elsewhere."""
    elsewhere = ("", "nope", f"jobs/{JOB}/log/0", "imported/../x", "jobs/../../x", "/etc/x")
    elsewhere += ("imported/abc/other", "imported/abc/object", "imported/coming/manifest.json")
    async with recorded_cluster() as cluster:
        await with_savepoint(cluster, 4)
        await cluster.put_manifest(4)
        await cluster.blobs.put("imported/abc/manifest.json", b"x")
        await cluster.blobs.put("imported/abc/object", b"x")
        await cluster.blobs.put("imported/coming/object", b"x")
        before = await cluster.blobs.list("")
        for path in (*elsewhere, manifest_of(4)):
            assert (await dispose(cluster, path)).status_code == 404, path
        assert await cluster.blobs.list("") == before


async def test_a_savepoint_that_was_brought_in_is_removed() -> None:
    """With the folder that came with it."""
    async with recorded_cluster() as cluster:
        await cluster.blobs.put("imported/abc/manifest.json", b"x")
        await cluster.blobs.put("imported/abc/object", b"x")
        await cluster.blobs.put("imported/abcd/object", b"x")
        assert (await dispose(cluster, "imported/abc/manifest.json")).status_code == 200
        assert await cluster.blobs.list("imported/") == ["imported/abcd/object"]


async def test_the_removal_of_what_was_brought_in_is_carried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest goes first; who tries again removes the rest."""
    async with recorded_cluster() as cluster:
        for key in ("imported/abc/manifest.json", "imported/abc/object"):
            await cluster.blobs.put(key, b"x")
        delete = cluster.blobs.delete

        async def fail(key: str) -> None:
            if not key.endswith("manifest.json"):
                raise ExternalError("the store is away")
            await delete(key)

        with monkeypatch.context() as patch:
            patch.setattr(cluster.blobs, "delete", fail)
            assert (await dispose(cluster, "imported/abc/manifest.json")).status_code == 503
        assert await cluster.blobs.list("imported/") == ["imported/abc/object"]
        assert (await dispose(cluster, "imported/abc/manifest.json")).status_code == 200
        assert await cluster.blobs.list("imported/") == []


async def test_a_savepoint_that_a_job_may_need_stays() -> None:
    """Nobody can tell: the other job's log, or the manifest that it would go on from, is not readable."""
    async with recorded_cluster() as cluster:
        path = await with_savepoint(cluster, 4)
        await cluster.blobs.put(await cluster.put_manifest(4), b"{")
        refused = await dispose(cluster, path)
        assert (refused.status_code, JOB in refused.json()["errors"][0]) == (409, True)
    async with recorded_cluster() as cluster:
        path = await with_savepoint(cluster, 4)
        await cluster.put_manifest(4)
        await cluster.write(cluster.submitted(job=OTHER), job=OTHER)
        await cluster.blobs.put(log_key(OTHER, 1), b"of another version")
        refused = await dispose(cluster, path)
        assert (refused.status_code, OTHER in refused.json()["errors"][0]) == (409, True)
        assert path in await cluster.blobs.list("")


# -- with a leader ------------------------------------------------------------------------------------------------------


async def test_a_checkpoint_is_taken_when_it_is_asked_for() -> None:
    """Long before its time; and it is answered by its number, which the history has."""
    async with small_cluster() as cluster:
        job = await cluster.submit(settings={"checkpoints": {"interval_ms": 3_600_000}})

        async def runs() -> bool:
            listed = (await cluster.http.get("/jobs/overview")).json()["jobs"]
            return any(one["tasks"]["running"] == one["tasks"]["total"] > 0 for one in listed)

        await until(runs, "all subtasks run")
        trigger = (await cluster.http.post(f"/jobs/{job}/checkpoints", json={})).json()["request-id"]

        async def taken() -> bool:
            answer = (await cluster.http.get(f"/jobs/{job}/checkpoints/{trigger}")).json()
            return answer["status"]["id"] == "COMPLETED"

        await until(taken, "the checkpoint is complete")
        found = (await cluster.http.get(f"/jobs/{job}/checkpoints/{trigger}")).json()
        number = found["operation"]["checkpointId"]

        async def acknowledged() -> bool:
            part = (await cluster.http.get(f"/jobs/{job}/checkpoints/details/{number}")).json()
            return part["num_subtasks"] == part["num_acknowledged_subtasks"] == 4 and part["latest_ack_timestamp"] > 0

        await until(acknowledged, "the view has the acknowledgements")
