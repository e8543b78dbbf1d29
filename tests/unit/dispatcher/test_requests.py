"""What callers do wrong is 4xx with a reason, what the cluster does wrong is 503; nothing hangs, nothing is accepted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_cluster import SmallCluster, small_cluster, sources

from penstock.coordination.cluster_view import ClusterView, ScalingView
from penstock.errors import ExternalError
from penstock.protocol.messages import encode
from penstock_dispatcher import bodies, reading

JOB = "ab" * 16


def led(cluster: SmallCluster) -> Any:
    """A view as a leader leaves it."""
    view = ClusterView("someone", "there", 1, cluster.clock.now_us(), 2, 1, (), ())
    return cluster.metadata.put("view", encode(view))


def errors(response: httpx2.Response, status: int) -> str:
    """The texts of an error answer, which has this status and this form."""
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["errors"]
    return "; ".join(body["errors"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": ""}, "a name has 1 to 200 characters"),
        ({"name": 7}, "Expected `str`"),
        ({"name": "../../x"}, "name '../../x' is no name: it has '/'"),
        ({"name": "x\\y"}, "which separates names"),
        ({"name": ".."}, "it has dots alone"),
        ({"name": "x\n[info] granted"}, r"name 'x\n[info] granted' is no name: it has '\n'"),
        ({"name": "x\x1b[2K"}, r"it has '\x1b', which separates names or cannot be printed"),
        ({"name": "x\u202ey"}, r"it has '\u202e'"),
        ({"graph": {}}, "it has format None"),
        ({"graph": {"version": 1}}, "missing required field"),
        ({"graph": {"version": 99}}, "submit with the version of Penstock that the cluster runs"),
        ({"scalable": {"version": 1, "name": 3}}, "job.scalable"),
        ({"artifact": {"target": "other.py"}}, "'other.py', which artifact.target names, is not in the zip"),
        ({"job": "xyz"}, "an id has 32 hexadecimal digits"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"settings": {"restart": {"type": "sometimes"}}}, "Invalid value 'sometimes'"),
        ({"settings": {"checkpoints": {"interval_ms": 0}}}, "job.settings.checkpoints.interval_ms: 0"),
        ({"settings": {"checkpoints": {"timeout_ms": -1}}}, "job.settings.checkpoints.timeout_ms: -1"),
        ({"settings": {"checkpoints": {"max_concurrent": 0}}}, "from 1 to"),
        ({"settings": {"checkpoints": {"tolerable_failed": -1}}}, "from 0 to"),
        ({"settings": {"restart": {"type": "fixed_delay", "attempts": -1}}}, "job.settings.restart.attempts: -1"),
        ({"settings": {"restart": {"type": "failure_rate", "delay_ms": 10**30}}}, "job.settings.restart.delay_ms"),
        ({"settings": {"restart": {"type": "exponential_delay", "multiplier": 0.5}}}, "restart.multiplier: 0.5"),
    ],
)
async def test_a_malformed_submission_is_refused(change: dict[str, Any], said: str) -> None:
    """The answer names the field."""
    async with small_cluster(leads=False, slots=0) as cluster:
        await led(cluster)
        assert said in errors(await cluster.post(cluster.document(**change)), 400)
        assert await cluster.blobs.list("") == []


async def test_a_submission_that_is_no_submission() -> None:
    """No parts, wrong parts, no zip, no JSON, another content type, too large."""
    async with small_cluster(leads=False, slots=0) as cluster:
        await led(cluster)
        assert "no zip" in errors(await cluster.post(cluster.document(), b"PK nonsense"), 400)
        assert "is not JSON" in errors(await cluster.post(b"{", sources()), 400)
        url = "/penstock/v1/jobs"
        assert "multipart" in errors(await cluster.http.post(url, json=cluster.document()), 400)
        assert "missing" in errors(await cluster.http.post(url, files={"job": ("job", b"{}")}), 400)
        assert "there is no part 'more'" in errors(await cluster.http.post(url, files={"more": ("x", b"")}), 400)
        broken = await cluster.http.post(
            url, content=b"--x", headers={"content-type": "multipart/form-data; boundary=y"}
        )
        assert errors(broken, 400)
        said = {"content-length": str(1 << 40), "content-type": "multipart/form-data; boundary=y"}
        assert "larger than" in errors(await cluster.http.post(url, content=b"", headers=said), 413)

        async def endless() -> Any:
            for _ in range(3):
                yield b" " * (1 << 19)

        assert "larger than 1 MiB" in errors(
            await cluster.http.post(f"/penstock/v1/jobs/{JOB}/stop", content=endless()), 413
        )


async def test_the_id_of_another_job_is_refused() -> None:
    """The same again is a client that heard no answer; anything else would never run, and is told so."""
    async with small_cluster() as cluster:
        job = await cluster.submit(job=JOB)
        await cluster.checkpointed(job)
        again = await cluster.post(cluster.document(job=JOB))
        assert again.status_code == 202, again.text
        assert again.json() == {"job": JOB, "request": JOB}
        other = await cluster.post(cluster.document(job=JOB, name="another", restored_from=None))
        assert f"{JOB} is the id of job counts" in errors(other, 409)
        assert "something else: name." in errors(other, 409)
        settings = {"restart": {"type": "none"}}
        assert "settings" in errors(await cluster.post(cluster.document(job=JOB, settings=settings)), 409)
        assert len((await cluster.client.jobs()).jobs) == 1


async def test_a_savepoint_that_is_not_whole_is_named() -> None:
    """It was brought in by halves, or is something else: nothing that the dispatcher would be to blame for."""
    async with small_cluster(leads=False, slots=0) as cluster:
        await led(cluster)
        key = f"imported/{JOB}/manifest.json"
        await cluster.blobs.put(key, b"{")
        restored = {"checkpoint": 1, "manifest": key, "sha256": "0" * 64}
        assert f"{key}: no readable manifest" in errors(
            await cluster.post(cluster.document(restored_from=restored)), 400
        )
        found = await cluster.http.get("/penstock/v1/savepoints/find", params={"name": key})
        assert f"{key}: no readable manifest" in errors(found, 400)


async def test_unknown_jobs_and_paths() -> None:
    """404 with what is nearest; Flink's paths answer wrong methods with 404 too."""
    async with small_cluster() as cluster:
        job = await cluster.submit()
        await cluster.checkpointed(job)
        assert "did you mean 'counts'" in errors(await cluster.http.get("/penstock/v1/jobs/count"), 404)
        unknown = errors(await cluster.http.get(f"/penstock/v1/jobs/{JOB}"), 404)
        assert "there is no job" in unknown
        assert job not in unknown
        assert job not in errors(await cluster.http.get("/penstock/v1/jobs/something-else"), 404)
        assert "there is no request" in errors(await cluster.http.get(f"/penstock/v1/jobs/{job}/requests/{JOB}"), 404)
        assert "no savepoint" in errors(await cluster.http.get("/penstock/v1/savepoints/find?name=counts"), 404)
        assert "Not found" in errors(await cluster.http.post("/overview"), 404)
        assert errors(await cluster.http.get("/v2/overview"), 404)
        assert errors(await cluster.http.put("/penstock/v1/jobs"), 405)
        assert "key groups" in errors(
            await cluster.http.post(f"/penstock/v1/jobs/{job}/rescale", json={"parallelism": 1_000}), 400
        )
        for bad in (
            b'{"parallelism": 0}',
            b'{"parallelism": "x"}',
            b"[]",
            b"{",
            b"\xff",
            b'{"parallelism": 2, "x": 1}',
        ):
            assert errors(await cluster.http.post(f"/penstock/v1/jobs/{job}/rescale", content=bad), 400)
        assert errors(await cluster.http.post(f"/penstock/v1/jobs/{job}/stop", json={"request": "x"}), 400)


async def test_what_does_not_answer_is_503_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that hangs, a metadata store that fails."""
    monkeypatch.setattr(reading.within_deadline, "__defaults__", (0.2,))
    async with small_cluster() as cluster:
        job = await cluster.submit()
        await cluster.checkpointed(job)

        async def hang(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        async def fail(*_: Any, **__: Any) -> Any:
            raise ExternalError("Redis is down")

        with monkeypatch.context() as patch:
            patch.setattr(cluster.log, "append", hang)
            response = await cluster.http.post(f"/penstock/v1/jobs/{job}/cancel")
            assert "Kafka does not answer" in errors(response, 503)
            assert "may have arrived all the same" in errors(response, 503)
        with monkeypatch.context() as patch:
            patch.setattr(cluster.metadata, "get", fail)
            assert "Redis is down" in errors(await cluster.http.post(f"/penstock/v1/jobs/{job}/cancel"), 503)
            listed = (await cluster.http.get("/penstock/v1/jobs")).json()["jobs"]
            assert [(one["job"], one["live"]) for one in listed] == [(job, False)]
        with monkeypatch.context() as patch:
            patch.setattr(cluster.blobs, "list", hang)
            listed = (await cluster.http.get("/penstock/v1/jobs")).json()
            assert "the store does not answer" in listed["missing"]
            patch.setattr(cluster.metadata, "get", fail)
            assert "the store does not answer" in errors(await cluster.http.get("/penstock/v1/jobs"), 503)


async def test_the_interface_is_documented() -> None:
    """OpenAPI names every route and document; the page fetches nothing from elsewhere."""
    async with small_cluster(leads=False, slots=0) as cluster:
        described = (await cluster.http.get("/openapi.json")).json()
        assert {"/penstock/v1/jobs", "/jobs/overview", "/penstock/v1/jobs/{job}/rescale"} <= set(described["paths"])
        assert "Submission" in described["components"]["schemas"]
        page = (await cluster.http.get("/docs")).text
        assert "/penstock/v1/jobs/{job}/savepoints" in page
        assert "http://" not in page
        assert "https://" not in page
        assert (await cluster.http.get("/healthz")).text == "alive\n"


WORDS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
JSON = st.recursive(
    WORDS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3))
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(field=st.sampled_from(["name", "graph", "scalable", "settings", "artifact", "restored_from", "job"]), value=JSON)
def test_whatever_stands_in_a_field_is_answered(field: str, value: Any) -> None:
    """No 5xx, no hang."""

    async def ask() -> int:
        async with small_cluster(leads=False, slots=0) as cluster:
            await led(cluster)
            return (await cluster.post(json.dumps(cluster.document(**{field: value})).encode())).status_code

    assert asyncio.run(ask()) in (202, 400, 404)


@settings(max_examples=30, deadline=None)
@given(path=st.sampled_from(["cancel", "stop", "savepoints", "rescale"]), body=st.one_of(st.binary(max_size=40), JSON))
def test_whatever_is_sent_to_a_job_is_answered(path: str, body: Any) -> None:
    """Bytes and JSON of any shape: the caller's fault, never ours."""

    async def ask() -> int:
        async with small_cluster(leads=False, slots=0) as cluster:
            await led(cluster)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return (await cluster.http.post(f"/penstock/v1/jobs/{JOB}/{path}", content=content)).status_code

    assert asyncio.run(ask()) in (400, 404)


async def test_the_overview_tells_how_task_managers_are_scaled() -> None:
    """As the leader says: how many there are and should be, what no more are allowed for, what is wrong."""
    cluster = SmallCluster()
    try:
        scaling = ScalingView(5, 4, 1, 5, short=3, problem="not allowed; make a Role")
        view = ClusterView("someone", "there", 1, cluster.clock.now_us(), 8, 0, (), (), scaling)
        await cluster.metadata.put("view", encode(view))
        assert (await cluster.client.overview()).scaling == scaling
        await led(cluster)
        assert (await cluster.client.overview()).scaling is None
    finally:
        await cluster.stop()


async def test_submissions_are_read_a_few_at_a_time() -> None:
    """Each is kept whole, so one too many is to come again; the others are not disturbed, nor is anything else."""
    async with small_cluster(leads=False, slots=0) as cluster:
        await led(cluster)
        go_on, begun = asyncio.Event(), asyncio.Semaphore(0)

        async def slow() -> Any:
            begun.release()
            yield b"--x"
            await go_on.wait()
            yield b"--x--"

        async def submit() -> int:
            headers = {"content-type": "multipart/form-data; boundary=x"}
            return (await cluster.http.post("/penstock/v1/jobs", content=slow(), headers=headers)).status_code

        many = [asyncio.create_task(submit()) for _ in range(bodies.MAX_SUBMITTING)]
        for _ in many:
            await asyncio.wait_for(begun.acquire(), 10)
        refused = await cluster.post(cluster.document())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await cluster.http.get("/penstock/v1/jobs")).status_code == 200
        go_on.set()
        assert set(await asyncio.gather(*many)) == {400}
        assert "retry-after" not in (await cluster.post(cluster.document())).headers
