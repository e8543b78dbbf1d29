"""`penstock catch-up` as users type it: the job, its backlog on Spark, the job again; whatever fails, a way to go on."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.services import wait_for

from penstock import savepoint
from penstock.connectors.kafka.topics import TopicAdmin
from penstock.settings import KafkaSettings
from penstock.spark.session import SparkSettings

from .test_cluster_commands import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PARTITIONS = 2
START = datetime(2026, 1, 1, tzinfo=UTC)
PIPELINE = """
from dataclasses import dataclass
from datetime import datetime

from penstock import Pipeline, col, count, param, session, tumbling
from penstock.connectors import files, kafka


@dataclass
class Event:
    number: int
    key: int
    at: datetime


p = Pipeline("windows")
topic = kafka.Source(param("topic", ""), schema=Event, event_time="at", max_out_of_orderness="1s")
keyed = p.read(topic).uid("events").key_by("key")
aggregates = {"n": count(), "total": col("number").sum()}
out = param("out", "")
keyed.window(tumbling("100s")).agg(**aggregates).uid("windows").write(files.Sink(out + "/windows")).uid("to-windows")
keyed.window(session("500s")).agg(**aggregates).uid("sessions").write(files.Sink(out + "/sessions")).uid("to-sessions")
"""
QUICK = ("--conf", "spark.sql.codegen.wholeStage=false", "--conf", "spark.driver.extraJavaOptions=-XX:+UseSerialGC")


@pytest.fixture
def cluster(platform: Any, tmp_path: Path) -> Generator[Cluster]:
    """Coordinator, dispatcher and a task manager."""
    found = Cluster(tmp_path, platform.settings("catch-up"))
    found.pipeline.write_text(PIPELINE)
    try:
        asyncio.run(found.start())
        yield found
    finally:
        asyncio.run(found.end())


def send(settings: KafkaSettings, topic: str, first: int, end: int) -> None:
    """A row per second of event time, in order: a batch that is sent again behind the next one would be late."""
    ordered = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 1}
    producer = Producer({"bootstrap.servers": settings.brokers, "log_level": 0, **ordered})
    for number in range(first, end):
        row = {"number": number, "key": number % 3, "at": (START + timedelta(seconds=number)).isoformat()}
        producer.produce(topic, json.dumps(row).encode(), partition=number % PARTITIONS)
    producer.flush(30)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("part-*")) for line in path.read_text().splitlines()]


def windows(end: int) -> dict[tuple[int, int], tuple[int, int]]:
    """Key and window to what the rows up to `end` come to in it."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for number in range(end):
        place = (number % 3, number // 100)
        n, total = found.get(place, (0, 0))
        found[place] = (n + 1, total + number)
    return found


def catch_up(cluster: Cluster, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    process = cluster.start_command("catch-up", *arguments, *QUICK)
    out, err = process.communicate(timeout=250)
    assert process.returncode == code, f"{out}\n{err}\n{cluster.logs()}"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def in_python(cluster: Cluster, job: str) -> str:
    """The same from a program: the job that goes on."""
    conf = dict(setting.split("=", 1) for setting in QUICK[1::2])
    settings = SparkSettings("local[2]", conf=conf)
    program = (
        "from penstock.spark.catching_up import catch_up\n"
        "from penstock.spark.session import SparkSettings\n"
        f"print(catch_up({job!r}, {str(cluster.file)!r}, spark={settings!r}, parallelism=2).requested.job)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=cluster.folder, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_backlog_is_caught_up_on_spark(cluster: Cluster, platform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by Spark, the job can go on as it was; done by Spark, it goes on from there; done twice, the
    second time from Python, nothing doubles.

    The savepoint of the run on Spark is in the store, where it was to stage. Every window and session comes once, those
    that were open at either seam among them.
    """
    settings = platform.settings("catch-up").kafka
    topic = cluster.folder.name
    TopicAdmin(settings, "test").create(topic, PARTITIONS)
    send(settings, topic, 0, 1_050)
    parameters = ["--param", f"topic={topic}", "--param", f"out={cluster.out}", "--checkpoint-interval", "300ms"]
    job = cluster.run("submit", cluster.pipeline, *parameters, "--parallelism", "2", "--detach").stdout.strip()
    wait_for(lambda: len(rows(cluster.out / "windows")) == 30, "the job has read what there is")

    refused = catch_up(cluster, job, "--master", "bogus://nowhere", code=1).stderr
    assert "Spark at bogus://nowhere cannot be reached or does not start" in refused
    resume = re.search(r"penstock submit .*? --detach.*", refused)
    assert resume is not None, refused
    assert "nothing that Spark did is visible" in refused
    first = shlex.split(resume[0])
    kept = first[first.index("--from-savepoint") + 1]
    assert savepoint.read(kept, store=cluster.file).table("windows").height > 0
    assert first[first.index("--parallelism") + 1] == "2"

    send(settings, topic, 1_050, 5_000)
    store = platform.settings("catch-up").store
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.secret_key.reveal())
    staging = f"s3://{store.bucket}/staged-{cluster.folder.name}"
    done = catch_up(cluster, job, "--master", "local[2]", "--parallelism", "2", "--staging", staging)
    second = done.stdout.strip()
    assert list((cluster.folder / ".penstock/catch-up").glob("*/savepoint")) == []
    assert rows(cluster.out / "windows")[-1]["n"]
    assert in_python(cluster, job) == second
    assert {one["job"]: one["parallelism"] for one in cluster.json("jobs")} == {second: 2}
    send(settings, topic, 5_000, 6_000)
    wait_for(lambda: len(rows(cluster.out / "windows")) == 59 * 3, "the job has gone on")
    cluster.run("stop", second, "--drain")
    wait_for(lambda: cluster.state(second)["state"] == "STOPPED", "the job has stopped")

    found = rows(cluster.out / "windows")
    got = {
        (row["key"], int((datetime.fromisoformat(row["window_start"]) - START).total_seconds()) // 100): (
            row["n"],
            row["total"],
        )
        for row in found
    }
    assert len(found) == len(got)
    assert got == windows(6_000)
    assert sorted(row["n"] for row in rows(cluster.out / "sessions")) == [2_000] * 3
