"""What Flink's clients are told of what there is not: a body with the one key `errors`, with Flink's status."""

from __future__ import annotations

import re

import pytest
from recorded_cluster import JOB, OTHER, at, recorded_cluster

from penstock.coordination.worker_logs import WorkerLog, WorkerLogList
from penstock_dispatcher.cluster import Cluster
from penstock_dispatcher.flink.answers import hex_id

J = f"/jobs/{JOB}"
NO_VERTEX = "0" * 32
WRONG = [
    ("GET", "/jobs/abc", 400), ("GET", f"/jobs/{OTHER}", 404), ("GET", f"/jobs/{OTHER}/checkpoints", 404),
    ("GET", f"/jobs/{JOB[:8]}", 400), ("GET", "/jobs/counts", 400), ("GET", "/applications/abc", 400),
    ("GET", f"/applications/{OTHER}", 404), ("GET", f"{J}/vertices/abc", 400), ("GET", f"{J}/vertices/{NO_VERTEX}", 404),
    ("GET", f"{J}/vertices/{NO_VERTEX}/metrics", 404), ("GET", f"{J}/vertices/V/subtasks/2", 404),
    ("GET", f"{J}/vertices/V/subtasks/-1", 400), ("GET", f"{J}/vertices/V/subtasks/0/attempts/0", 404),
    ("GET", f"{J}/vertices/V/subtasks/metrics?get=numRecordsIn&agg=mean", 400),
    ("GET", f"{J}/vertices/V/subtasks/metrics?get=numRecordsIn&subtasks=x", 400),
    ("GET", f"{J}/checkpoints/details/99", 404), ("GET", f"{J}/checkpoints/details/x", 400),
    ("GET", f"{J}/checkpoints/details/3/subtasks/{NO_VERTEX}", 404), ("GET", f"{J}/checkpoints/{NO_VERTEX}", 404),
    ("GET", f"{J}/checkpoints/xyz", 400), ("GET", f"{J}/savepoints/{NO_VERTEX}", 404), ("GET", f"{J}/savepoints/x", 400),
    ("GET", f"{J}/exceptions?maxExceptions=-1", 400), ("GET", f"{J}/exceptions?maxExceptions=²", 400),
    ("GET", f"{J}/rescales/overview", 404), ("GET", f"/savepoint-disposal/{NO_VERTEX}", 404),
    ("GET", "/savepoint-disposal/x", 400), ("GET", "/taskmanagers/nope", 404), ("GET", "/taskmanagers/nope/log", 404),
    ("GET", "/taskmanagers/worker-1/thread-dump", 404), ("GET", "/taskmanagers/worker-1/stdout", 404),
    ("GET", "/taskmanagers/worker-1/profiler", 404), ("GET", "/jobmanager/profiler", 404),
    ("GET", "/jobmanager/log", 404), ("GET", "/nope", 404), ("GET", "/v2/overview", 404),
    ("PUT", "/overview", 404), ("HEAD", "/overview", 404),
    ("OPTIONS", "/overview", 404), ("DELETE", J, 404), ("POST", "/jobs", 400), ("POST", "/jars/upload", 404),
    ("PATCH", f"{J}?mode=foo", 400), ("PATCH", f"{J}?mode=stop", 308), ("PATCH", f"/jobs/{OTHER}", 404),
    ("PATCH", f"{J}/rescaling?parallelism=3", 404), ("POST", f"/applications/{OTHER}/cancel", 404),
]  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_every_error_is_flinks(prefix: str) -> None:
    """The status, and nothing but `errors`; with a body where Flink's client sends one."""
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        for method, path, status in WRONG:
            url = prefix + path.replace("V", hex_id(cluster.sink_vertex.id))
            answer = await cluster.http.request(method, url, content=b"{}")
            assert answer.status_code == status, (method, path, answer.text)
            if method != "HEAD":
                errors = answer.json()
                assert list(errors) == ["errors"], path
                assert all(isinstance(text, str) and text for text in errors["errors"]), path
        assert await cluster.asked() == []


async def test_unknown_paths_and_wrong_methods_are_told_as_flink_does() -> None:
    """No preflight is granted, and nothing says which methods there are."""
    async with recorded_cluster() as cluster:
        for method, path, text in (
            ("GET", "/nope", "Unable to load requested file /nope."),
            ("GET", "/v1/nope", "Unable to load requested file /v1/nope."),
            ("PUT", "/overview", "Not found: /overview"),
            ("OPTIONS", "/overview", "Not found: /overview"),
        ):
            answer = await cluster.http.request(method, path)
            assert (answer.status_code, answer.json()) == (404, {"errors": [text]})
            assert "allow" not in answer.headers


async def test_bodies_that_are_none_change_nothing() -> None:
    """Bad JSON, wrong types, ids that are none, a place for savepoints, a kind of checkpoint: 400 each."""
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        bad: tuple[tuple[str, bytes], ...] = (
            ("savepoints", b"{"), ("savepoints", b'{"triggerId": "x"}'), ("savepoints", b'{"cancel-job": 3}'),
            ("savepoints", b'{"target-directory": "file:///x"}'), ("stop", b'{"targetDirectory": "/x"}'),
            ("checkpoints", b'{"checkpointType": "FULL"}'), ("checkpoints", b'{"checkpointType": "NONE"}'),
        )  # fmt: skip
        for path, body in bad:
            answer = await cluster.http.post(f"{J}/{path}", content=body)
            assert (answer.status_code, list(answer.json())) == (400, ["errors"]), (path, body)
        assert await cluster.asked() == []


async def test_without_a_leader_what_the_store_knows_is_said() -> None:
    """Jobs, their graphs and checkpoints; but nothing can be asked for, and nobody knows the task managers."""
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        await cluster.metadata.put("view", _stale())
        page = (await cluster.http.get(J)).json()
        assert (page["state"], page["vertices"][0]["status"]) == ("RUNNING", "CREATED")
        assert (await cluster.http.get("/overview")).json()["slots-total"] == 0
        assert (await cluster.http.get(f"{J}/checkpoints")).json()["counts"]["completed"] == 2
        assert (await cluster.http.get("/taskmanagers")).status_code == 503
        assert (await cluster.http.patch(J)).status_code == 503


def _stale() -> bytes:
    """A view that nobody has renewed for a while."""
    return b'{"leader":"","address":"","epoch":1,"seen_us":%d,"slots":0,"free_slots":0,"workers":[],"jobs":[]}' % at(0)


async def test_the_log_of_a_task_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last lines of the worker, as a text and as the one log file that there is."""

    async def logs(_: Cluster, job: str, lines: int, worker: str = "") -> WorkerLogList:
        assert (job, worker) == ("", "worker-1")
        return WorkerLogList((WorkerLog("worker-1", False, ("first", "zweite ü")), WorkerLog("worker-9", True, ("x",))))

    monkeypatch.setattr(Cluster, "worker_logs", logs)
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        for path in ("log", "logs/worker-1.log"):
            answer = await cluster.http.get(f"/taskmanagers/worker-1/{path}")
            assert answer.text == "first\nzweite ü\n"
            assert answer.headers["content-type"].startswith("text/plain")
        [file] = (await cluster.http.get("/taskmanagers/worker-1/logs")).json()["logs"]
        assert file == {"name": "worker-1.log", "size": 16, "mtime": at(9) // 1_000}
        assert (await cluster.http.get("/taskmanagers/worker-1/logs/other.log")).status_code == 404


async def test_the_log_of_a_task_manager_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """503, with the reason: an empty log would say that it is quiet."""

    async def logs(_: Cluster, job: str, lines: int, worker: str = "") -> WorkerLogList:
        return WorkerLogList((), ("127.0.0.1:4711: refused",))

    monkeypatch.setattr(Cluster, "worker_logs", logs)
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        answer = await cluster.http.get("/taskmanagers/worker-1/log")
        assert (answer.status_code, answer.json()) == (503, {"errors": ["127.0.0.1:4711: refused"]})


async def test_whatever_stands_in_a_path_or_query_is_answered() -> None:
    """No route of Flink's fails of what it is asked: neither of odd ids and numbers nor of odd lists of metrics."""
    odd = ("%00", "..", "%F0%9F%92%A5", "١", "-1", "9" * 40, "a" * 32, "g" * 32, JOB.upper(), "%20", "a,b", "1e3")
    queries = "get={0}&agg={0}&subtasks={0}&jobs={0}&taskmanagers={0}&maxExceptions={0}&mode={0}"
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        vertex = hex_id(cluster.sink_vertex.id)
        described = (await cluster.http.get("/openapi.json")).json()["paths"]
        paths = [path for path, methods in described.items() if "get" in methods and not path.startswith("/penstock/")]
        assert len(paths) > 50
        for path in paths:
            for text in odd:
                everywhere = re.sub(r"\{\w+\}", text, path)
                last = re.sub(r"\{\w+\}", text, path.replace("{job_id}", JOB).replace("{vertex_id}", vertex))
                for url in (everywhere, last, f"{last}?{queries.format(text)}"):
                    answer = await cluster.http.get(url)
                    assert answer.status_code in (200, 202, 400, 404, 409, 503), (url, answer.text)
