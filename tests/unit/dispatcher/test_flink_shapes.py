"""Every answer has the keys and types of one that Flink gave, and the values are those that the cluster recorded."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest
from flink_compare import differences, sample
from recorded_cluster import JOB, RecordedCluster, at, recorded_cluster

from penstock.graph.jobgraph import JobEdge, JobGraph, JobVertex, Link, Ship
from penstock_dispatcher.flink.answers import hex_id
from penstock_dispatcher.flink.checkpoint_shapes import statistics
from penstock_dispatcher.flink.job_shapes import plan
from penstock_dispatcher.flink.metrics import skew
from penstock_dispatcher.flink.statistics import percentile

J = f"/jobs/{JOB}"
RUNNING = {
    "/config": "config", "/overview": "overview", "/jobs": "jobs", "/jobs/overview": "jobs-overview",
    "/jobs/metrics?get=uptime": "jobs-metrics-agg", "/applications/overview": "applications-overview",
    f"/applications/{JOB}": "application", f"/applications/{JOB}/exceptions": "application-exceptions",
    f"/applications/{JOB}/jobmanager/config": "jobmanager-config", "/jobmanager/config": "jobmanager-config",
    "/jobmanager/environment": "jobmanager-environment", "/jobmanager/metrics": "jobmanager-metrics-list",
    "/jobmanager/metrics?get=taskSlotsTotal": "jobmanager-metrics-get", "/jobmanager/logs": "jobmanager-logs",
    "/jars": "jars", "/datasets": "datasets", J: "job", f"{J}/status": "job-status", f"{J}/plan": "job-plan",
    f"{J}/config": "job-config", f"{J}/exceptions?maxExceptions=10": "job-exceptions",
    f"{J}/accumulators": "job-accumulators", f"{J}/execution-result": "execution-result-running",
    f"{J}/metrics": "job-metrics-list", f"{J}/metrics?get=uptime,nonexistent": "job-metrics-get",
    f"{J}/jobmanager/config": "jobmanager-config", f"{J}/jobmanager/environment": "jobmanager-environment",
    f"{J}/resource-requirements": "resource-requirements", f"{J}/checkpoints": "checkpoints-failed",
    f"{J}/checkpoints/config": "checkpoints-config", f"{J}/checkpoints/details/2": "checkpoint-detail-failed",
    f"{J}/checkpoints/details/3": "checkpoint-detail",
    f"{J}/checkpoints/details/3/subtasks/V": "checkpoint-detail-subtasks",
    f"{J}/checkpoints/details/2/subtasks/V": "checkpoint-detail-subtasks-failed",
    f"{J}/vertices/V": "vertex", f"{J}/vertices/V/backpressure": "vertex-backpressure",
    f"{J}/vertices/V/subtasktimes": "vertex-subtasktimes", f"{J}/vertices/V/taskmanagers": "vertex-taskmanagers",
    f"{J}/vertices/V/watermarks": "vertex-watermarks", f"{J}/vertices/V/accumulators": "vertex-accumulators",
    f"{J}/vertices/V/subtasks/accumulators": "vertex-subtasks-accumulators",
    f"{J}/vertices/V/subtasks/0": "vertex-subtasks-0",
    f"{J}/vertices/V/subtasks/0/attempts/1": "vertex-subtasks-0-attempts-0",
    f"{J}/vertices/V/subtasks/0/attempts/1/accumulators": "vertex-subtasks-0-attempts-0-accumulators",
    f"{J}/vertices/V/metrics": "vertex-metrics-list",
    f"{J}/vertices/V/metrics?get=0.numRecordsIn,0.busyTimeMsPerSecond,nonexistent": "vertex-metrics-get",
    f"{J}/vertices/V/subtasks/metrics": "vertex-subtasks-metrics-list",
    f"{J}/vertices/V/subtasks/metrics?get=busyTimeMsPerSecond,numRecordsIn": "vertex-subtasks-metrics-agg",
    f"{J}/vertices/V/subtasks/0/metrics?get=numRecordsIn": "vertex-subtask-metrics-get",
    f"{J}/vertices/V/jm-operator-metrics": "vertex-jm-operator-metrics",
    f"{J}/vertices/V/flamegraph?type=on_cpu": "vertex-flamegraph",
    "/taskmanagers": "taskmanagers", "/taskmanagers/worker-1": "taskmanager",
    "/taskmanagers/worker-1/metrics": "taskmanager-metrics-list",
    "/taskmanagers/worker-1/metrics?get=taskSlotsTotal": "taskmanager-metrics-get",
    "/taskmanagers/metrics?get=taskSlotsTotal": "taskmanagers-metrics-agg",
    "/taskmanagers/worker-1/logs": "taskmanager-logs",
}  # fmt: skip
"""Paths, with V for the vertex that has the window, and the sample that each is like."""
ALIVE = ("details", "attempts", "backpressure", "execution-result")
"""What is answered otherwise, or not at all, of a job of which only the log is left."""


async def get(cluster: RecordedCluster, path: str) -> Any:
    """The answer to a request as Flink's clients send it: with a body, which is dropped."""
    answer = await cluster.http.request("GET", path.replace("V", hex_id(cluster.sink_vertex.id)), content=b"{}")
    assert answer.status_code == 200, (path, answer.text)
    assert answer.headers["content-type"] == "application/json; charset=UTF-8"
    return answer.json()


async def test_every_answer_has_the_shape_of_flinks() -> None:
    """Keys and types, with and without `/v1`; what a running job has, and what a cluster has."""
    wrong: list[str] = []
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        for path, name in RUNNING.items():
            for prefix in ("", "/v1"):
                found = await get(cluster, prefix + path)
                wrong += [f"{prefix}{path}: {one}" for one in differences(sample(name), found)]
    assert wrong == []


async def test_the_answers_about_a_job_that_has_ended() -> None:
    """The same shapes where only the log is left; what nobody recorded is -1, empty, or not complete."""
    async with recorded_cluster() as cluster:
        await cluster.record_ended("FAILED", "ValueError: no such key")
        await cluster.put_manifest(1)
        for path, name in RUNNING.items():
            if path.startswith((J, "/applications")) and not any(part in path for part in ALIVE):
                found = await get(cluster, path)
                assert list(differences(sample(name), found)) == [], path
        page = await get(cluster, J)
        assert (page["state"], page["end-time"]) == ("FAILED", at(8.5) // 1_000)
        assert page["timestamps"]["FAILED"] == at(8) // 1_000
        vertex = page["vertices"][0]
        assert (vertex["status"], vertex["start-time"], vertex["duration"]) == ("FAILED", -1, -1)
        assert not vertex["metrics"]["read-records-complete"]
        result = await get(cluster, f"{J}/execution-result")
        assert result["job-execution-result"]["application-status"] == "FAILED"
        failures = (await get(cluster, f"/applications/{JOB}/exceptions"))["exceptionHistory"]["entries"]
        assert [(one["exceptionName"], one["jobId"]) for one in failures] == [("ValueError", JOB)]


async def test_a_checkpoint_whose_leader_is_no_more_is_described_by_its_manifest() -> None:
    """Sizes and times of subtasks, but not when they acknowledged; without a manifest nothing but that it was."""
    async with recorded_cluster() as cluster:
        await cluster.record_ended()
        gone = await get(cluster, f"{J}/checkpoints/details/1")
        assert (gone["state_size"], gone["num_acknowledged_subtasks"]) == (-1, 4)
        await cluster.put_manifest(1)
        detail = await get(cluster, f"{J}/checkpoints/details/1")
        assert (detail["state_size"], detail["trigger_timestamp"], detail["end_to_end_duration"]) == (402, -1, -1)
        assert detail["latest_ack_timestamp"] == at(2) // 1_000  # of COMPLETE, which the log has
        assert {task["latest_ack_timestamp"] for task in detail["tasks"].values()} == {-1}
        part = await get(cluster, f"{J}/checkpoints/details/1/subtasks/V")
        assert list(differences(sample("checkpoint-detail-subtasks"), part)) == []
        assert [row["state_size"] for row in part["subtasks"]] == [100, 101]
        assert part["summary"]["checkpoint_duration"]["async"]["max"] == 5
        assert part["summary"]["start_delay"]["p50"] == "NaN"


async def test_the_page_of_a_job_tells_what_was_recorded() -> None:
    """Times of states, vertices, subtasks, and the plan that is made of them."""
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        page = await get(cluster, J)
        assert page["plan"]["jid"] == page["jid"] == page["application-id"] == JOB
        assert {node["id"] for node in page["plan"]["nodes"]} == {vertex["id"] for vertex in page["vertices"]}
        assert page["timestamps"]["RESTARTING"] == at(3) // 1_000
        assert page["timestamps"]["RUNNING"] == page["vertices"][0]["start-time"] == at(4) // 1_000
        assert page["vertices"][1]["metrics"]["read-records"] == 3_000
        assert page["vertices"][1]["metrics"]["accumulated-busy-time"] == 4_000
        subtask = await get(cluster, f"{J}/vertices/V/subtasks/1")
        assert (subtask["attempt"], subtask["endpoint"], subtask["taskmanager-id"]) == (1, "127.0.0.1:4711", "worker-2")
        durations = subtask["status-duration"]
        assert (durations["CREATED"], durations["DEPLOYING"], durations["INITIALIZING"]) == (0, 200, 300)
        assert durations["SCHEDULED"] == -1
        times = (await get(cluster, f"{J}/vertices/V/subtasktimes"))["subtasks"][0]["timestamps"]
        assert (times["RUNNING"], times["FINISHED"]) == (at(4.5) // 1_000, 0)
        config = await get(cluster, f"{J}/config")
        assert config["execution-config"]["user-config"] == {"password": "***"}


async def test_the_metrics_that_the_pages_draw() -> None:
    """Backpressure, watermarks, and sums over subtasks."""
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        pressure = await get(cluster, f"{J}/vertices/V/backpressure")
        assert pressure["backpressureLevel"] == "high"
        assert [(one["backpressureLevel"], one["ratio"]) for one in pressure["subtasks"]] == [
            ("ok", 0.1),
            ("high", 0.6),
        ]
        assert [one["value"] for one in await get(cluster, f"{J}/vertices/V/watermarks")] == [
            str(at(0) // 1_000), str(at(1) // 1_000),
        ]  # fmt: skip
        source = hex_id(cluster.source.id)
        assert await get(cluster, f"{J}/vertices/{source}/watermarks") == []
        [busy] = await get(cluster, f"{J}/vertices/V/subtasks/metrics?get=busyTimeMsPerSecond&agg=max,sum")
        assert busy == {"id": "busyTimeMsPerSecond", "max": 200.0, "sum": 300.0}
        [only] = await get(cluster, f"{J}/vertices/V/subtasks/metrics?get=numRecordsIn&subtasks=1-7")
        assert only["sum"] == 2_000
        window = cluster.sink_vertex.operators[0].id
        values = await get(cluster, f"{J}/vertices/V/metrics?get=1.{window}.numLateRecordsDropped,0.isBackPressured")
        assert values == [
            {"id": f"1.{window}.numLateRecordsDropped", "value": "3"}, {"id": "0.isBackPressured", "value": "true"},
        ]  # fmt: skip
        [pending] = await get(
            cluster, f"{J}/vertices/{source}/metrics?get=0.{cluster.source.operators[0].id}.pendingRecords"
        )
        assert pending["value"] == "7"


async def test_nothing_is_said_of_subtasks_of_which_nobody_has_heard() -> None:
    """No rates, no backpressure, no watermarks; created is all that they are."""
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        await cluster.show(cluster.running(vertices=(), checkpoints=(), totals={}))
        assert (await get(cluster, f"{J}/vertices/V/backpressure")) == {"status": "deprecated"}
        assert await get(cluster, f"{J}/vertices/V/watermarks") == []
        assert await get(cluster, f"{J}/vertices/V/subtasks/metrics?get=busyTimeMsPerSecond") == []
        subtask = await get(cluster, f"{J}/vertices/V/subtasks/0")
        assert (subtask["status"], subtask["start-time"], subtask["duration"]) == ("CREATED", -1, -1)


async def test_the_history_of_checkpoints() -> None:
    """Complete ones, failed ones, one under way, a savepoint, and what the job was restored from."""
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        page = await get(cluster, f"{J}/checkpoints")
        assert page["counts"] == {"restored": 1, "total": 4, "in_progress": 1, "completed": 2, "failed": 1}
        assert [(one["id"], one["className"]) for one in page["history"]] == [
            (4, "in_progress"), (3, "completed"), (2, "failed"), (1, "completed"),
        ]  # fmt: skip
        pending, saved, failed, first = page["history"]
        assert (pending["num_acknowledged_subtasks"], pending["num_subtasks"]) == (1, 4)
        assert (saved["savepointFormat"], saved["checkpoint_type"], saved["end_to_end_duration"]) == (
            "CANONICAL", "SAVEPOINT", 200,
        )  # fmt: skip
        assert (failed["failure_message"], failed["failure_timestamp"]) == ("timeout", at(5.9) // 1_000)
        assert (first["discarded"], saved["discarded"], first["trigger_timestamp"]) == (True, False, -1)
        latest = page["latest"]
        assert (latest["completed"]["id"], latest["savepoint"]["id"], latest["failed"]["id"]) == (1, 3, 2)
        assert latest["restored"]["restore_timestamp"] == at(4) // 1_000
        assert page["summary"]["state_size"]["p99"] == 400
        part = await get(cluster, f"{J}/checkpoints/details/2/subtasks/V")
        assert [row["className"] for row in part["subtasks"]] == ["completed", "pending"]


async def test_failures_say_where_they_happened() -> None:
    """Class, frames, subtask, attempt; no more than were asked for."""
    async with recorded_cluster() as cluster:
        await cluster.record_running()
        history = (await get(cluster, f"{J}/exceptions"))["exceptionHistory"]
        [entry] = history["entries"]
        assert (entry["exceptionName"], entry["timestamp"], history["truncated"]) == (
            "ValueError",
            at(3) // 1_000,
            False,
        )
        assert entry["taskName"] == "window -> write (1/2) - execution #0"
        assert (entry["endpoint"], entry["taskManagerId"]) == ("127.0.0.1:4711", "worker-1")
        assert entry["stacktrace"].splitlines()[1:] == ['  File "cluster.py", line 3, in f', "ValueError: no such key"]
        assert (await get(cluster, f"{J}/exceptions?maxExceptions=0"))["exceptionHistory"] == {
            "entries": [], "truncated": True,
        }  # fmt: skip


async def test_two_dispatchers_say_the_same() -> None:
    """Nothing of an answer is known to one dispatcher only, but for the time at which it answers."""
    async with recorded_cluster() as one:
        await one.record_running()
        two = RecordedCluster(one)
        timeless = [path for path in RUNNING if "overview" not in path and "uptime" not in path]
        for path in timeless:
            found = [await get(cluster, path) for cluster in (one, two)]
            assert _without_now(found[0]) == _without_now(found[1]), path
        await two.http.aclose()
        await two.client.close()


def _without_now(value: Any) -> Any:
    if isinstance(value, dict):
        left = {"now", "duration", "end-timestamp", "RUNNING"}
        return {key: _without_now(one) for key, one in value.items() if key not in left}
    return [_without_now(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("numbers", "expected"), [((44_724, 63_895), 17.649766615417192), ((11, 12), 4.3478260869565215), ((0, 0), 0.0)]
)
def test_skew_is_flinks(numbers: tuple[float, ...], expected: float) -> None:
    """The figures of the samples."""
    assert skew(numbers) == pytest.approx(expected)


def test_percentiles_are_flinks() -> None:
    """Between two numbers in proportion; of one number that one; of none `"NaN"`."""
    assert [percentile([1, 2, 3, 4], share) for share in (25, 50, 99)] == [1.25, 2.5, 4.0]
    assert statistics([7]).p999 == 7
    assert (statistics([-1, -1]).max, statistics([]).p50) == (0, "NaN")


async def test_every_document_is_described() -> None:
    """Whatever the description of a route names is in it, Flink's documents among them."""
    async with recorded_cluster() as cluster:
        described = (await cluster.http.get("/openapi.json")).json()
    schemas = described["components"]["schemas"]
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(described)))
    assert named <= schemas.keys()
    assert {"FlinkJob", "FlinkVertex", "FlinkCompletedCheckpoint", "FlinkTriggered", "JobDetail", "RunList"} <= named
    assert "/jobs/{job_id}/vertices/{vertex_id}/backpressure" in described["paths"]
    assert "read-bytes-complete" in schemas["FlinkIoMetrics"]["properties"]


def test_the_plan_has_flinks_word_for_every_way_to_ship() -> None:
    edges = tuple(JobEdge("v0", Link("n0"), ship, [], event_time=False) for ship in get_args(Ship))
    vertices = (JobVertex("v0", "read", 1, 8, "default", ()), JobVertex("v1", "process", 1, 8, "default", (), edges))
    found = plan(JOB, JobGraph("shipped", 1, 8, vertices)).nodes[1].inputs
    assert [each.ship_strategy for each in found] == ["FORWARD", "HASH", "REBALANCE", "BROADCAST"]
