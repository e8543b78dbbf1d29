"""Flink's paths: the shapes of its REST interface, as its command line needs them."""

from __future__ import annotations

import uuid

from small_cluster import small_cluster, until

from penstock.coordination.cluster_view import JobState


async def test_what_flinks_command_line_calls() -> None:
    """list, savepoint, stop: with `/v1`, with bodies on GET, with every field that it cannot do without."""
    async with small_cluster(slots=3) as cluster:
        job = await cluster.submit()
        await cluster.checkpointed(job)
        listed = (await cluster.http.request("GET", "/v1/jobs/overview", content=b"{}")).json()["jobs"][0]
        assert (listed["jid"], listed["name"], listed["state"], listed["end-time"]) == (job, "counts", "RUNNING", -1)
        assert {"total", "running", "failed", "reconciling"} <= set(listed["tasks"])
        assert all(isinstance(listed[name], int) for name in ("start-time", "duration", "last-modification"))
        body = {"target-directory": None, "cancel-job": False, "formatType": "CANONICAL", "triggerId": None}
        trigger = (await cluster.http.post(f"/v1/jobs/{job}/savepoints", json=body)).json()["request-id"]

        async def completed() -> bool:
            status = await cluster.http.get(f"/v1/jobs/{job}/savepoints/{trigger}")
            return status.json()["status"]["id"] == "COMPLETED"

        await until(completed, "the savepoint is complete")
        found = (await cluster.http.get(f"/v1/jobs/{job}/savepoints/{trigger}")).json()
        assert found["operation"]["location"].startswith(f"jobs/{job}/checkpoints/")
        own = uuid.uuid4().hex
        stop = {"targetDirectory": None, "drain": False, "formatType": "CANONICAL", "triggerId": own}
        assert (await cluster.http.post(f"/v1/jobs/{job}/stop", json=stop)).json() == {"request-id": own}
        assert await cluster.ended(job) == "STOPPED"
        assert (await cluster.http.get(f"/jobs/{job}/status")).json() == {"status": "FINISHED"}
        refused = await cluster.http.patch(f"/jobs/{job}?mode=cancel")
        assert refused.status_code == 409
        assert list(refused.json()) == ["errors"]
        unknown = await cluster.http.get(f"/jobs/{job}/savepoints/{'0' * 32}")
        assert unknown.status_code == 404


async def test_cancel_and_the_pages_of_the_dashboard() -> None:
    """The job page has a plan whose nodes are the vertices; cancel is 202, twice, and 404 for others."""
    async with small_cluster() as cluster:
        job = await cluster.submit()
        await cluster.checkpointed(job)
        page = (await cluster.http.get(f"/jobs/{job}")).json()
        vertices = {vertex["id"] for vertex in page["vertices"]}
        nodes = page["plan"]["nodes"]
        assert {node["id"] for node in nodes} == vertices
        assert {edge["id"] for node in nodes for edge in node.get("inputs", [])} <= vertices
        assert page["plan"]["jid"] == page["jid"] == job

        async def seen() -> bool:
            overview = (await cluster.http.get("/overview")).json()
            return (overview["jobs-running"], overview["slots-total"]) == (1, 2)

        await until(seen, "the view shows the job and both slots")
        assert len((await cluster.http.get("/taskmanagers")).json()["taskmanagers"]) == 2
        assert (await cluster.http.get("/config")).json()["features"]["web-cancel"]
        assert (await cluster.http.get("/jobs")).json() == {"jobs": [{"id": job, "status": "RUNNING"}]}
        assert (await cluster.http.patch(f"/jobs/{job}", params={"mode": "foo"})).status_code == 400
        assert (await cluster.http.patch(f"/jobs/{job}", params={"mode": "stop"})).status_code == 308
        assert (await cluster.http.patch("/jobs/abc")).status_code == 400
        assert (await cluster.http.patch(f"/jobs/{'0' * 32}")).status_code == 404
        for _ in range(2):
            answer = await cluster.http.patch(f"/jobs/{job}", params={"mode": "cancel"})
            assert (answer.status_code, answer.json()) == (202, {})
        state: JobState = "CANCELED"
        assert await cluster.ended(job) == state
