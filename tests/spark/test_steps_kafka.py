"""A job in steps from topic to topic: once, whatever dies; partitions come, transactions stay open."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from embedded_runs import rows
from event_topics import PARTITIONS, Topic
from kafka_reading import committed
from pipelines import events
from spark_runs import HERE, QUICK
from test_steps import POINTS, Killed, Rounds, killed, new_id

from penstock.adapters.system_clock import SystemClock
from penstock.connectors.kafka.topics import TopicAdmin
from penstock.coordination import failpoints
from penstock.loading import load_pipeline
from penstock.protocol.restarts import NoRestart
from penstock.savepoint.folder import is_sealed
from penstock.savepoint.places import place_of
from penstock.spark import publishing
from penstock.spark.code import pack_code
from penstock.spark.continuous import ContinuousOptions, ContinuousRun, StepDone, StepWatch

pytestmark = pytest.mark.timeout(400)
FILE = HERE / "steps_pipeline.py"
SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))


class Job:
    """The pipeline over a topic of its own, in steps without Spark."""

    def __init__(self, session: Any, platform: Any, root: Path) -> None:
        settings = platform.settings("steps").kafka
        self.mark = secrets.token_hex(4)
        self.topic = Topic(settings, f"events-{self.mark}")
        self.admin = TopicAdmin(settings, "test")
        self.to = f"windows-{self.mark}"
        self.admin.create(self.to, PARTITIONS, {"retention.ms": "-1"})
        self.root, self._session = root, session
        self.given = {"brokers": settings.brokers, "topic": self.topic.name, "to": self.to, "out": str(root / "out")}
        self.done: list[StepDone] = []

    def run(self, rounds: int = 1) -> None:
        options = ContinuousOptions(1_000, self.root / "steps", NoRestart(), 2)
        pipeline, code = load_pipeline(str(FILE), self.given), pack_code(str(FILE), self.given)
        watch = StepWatch(done=self.done.append)
        ContinuousRun(pipeline, code, options, SystemClock(), new_id, lambda: self._session, watch).run(Rounds(rounds))

    async def check(self, end: int) -> None:
        """Every window of the rows before `end` is there once, in the topic and in the files."""
        at = events(np.arange(end, dtype=np.int64)).with_columns(pl.col("at").dt.truncate("10s").dt.strftime("%FT%TZ"))
        expected = {(key, start): n for key, start, n in at.group_by("key", "at").len().rows()}
        written = [json.loads(record.value) for record in await committed(self.given["brokers"], self.to, PARTITIONS)]
        for found in (written, rows(self.root / "out")):
            once = Counter({(row["key"], row["window_start"]): 0 for row in found})
            once.update((row["key"], row["window_start"]) for row in found)
            assert once.most_common(1)[0][1] == 1, "doubled"
            assert {(row["key"], row["window_start"]): row["n"] for row in found} == expected

    def close_windows(self, partitions: int) -> None:
        """Rows of a later day, after which nothing of the others is open."""
        row = events(np.arange(1, dtype=np.int64)).with_columns(pl.col("at") + timedelta(days=1))
        value = json.dumps(row.with_columns(pl.col("at").dt.strftime("%FT%T%.6fZ")).row(0, named=True)).encode()
        producer = Producer({"bootstrap.servers": self.given["brokers"], "log_level": 0})
        for partition in range(partitions):
            producer.produce(self.topic.name, value, partition=partition)
        producer.flush(30)

    def marks(self) -> list[str]:
        """The topics in which this job's sink keeps how far it is."""
        job = json.loads((self.root / "steps" / "job.json").read_bytes())["id"]
        name = publishing.publishing_job("steps", job)
        return [topic for topic in self.admin._client.list_topics(timeout=20).topics if name in topic]


async def test_steps_that_die_anywhere_write_every_window_once(platform, local, tmp_path, monkeypatch):
    """In a topic and in files, with a partition that comes later; the marks of all steps are the same."""
    rng = random.Random(f"{SEED}")
    print(f"repeat with PENSTOCK_TEST_SEED={SEED}")
    job = Job(local, platform, tmp_path)
    cuts = [0, *sorted(rng.sample(range(100, 1_500), 4)), 1_500]
    points = [*POINTS, (publishing, "_frame_itself"), (publishing._Partition, "_committed"), (publishing, "forget")]
    kills = 0
    for number, (first, end) in enumerate(itertools.pairwise(cuts)):
        if number == 3:
            admin = AdminClient({"bootstrap.servers": job.given["brokers"]})
            admin.create_partitions([NewPartitions(job.topic.name, PARTITIONS + 1)])[job.topic.name].result(20)
        job.topic.send(first, end)
        if end == 1_500:
            job.close_windows(PARTITIONS + 1)
        for _ in range(3):
            place, name = rng.choice(points)
            with monkeypatch.context() as patch:
                patch.setattr(place, name, killed)
                try:
                    job.run()
                except Killed:
                    kills += 1
        job.run()
    assert kills
    await job.check(1_500)
    assert len(job.marks()) <= 2  # of one and of two partitions


async def test_an_open_transaction_ends_a_step_before_it(platform, local, tmp_path):
    """Its rows, and those behind it, belong to the step after its end; nobody waits for it."""
    job = Job(local, platform, tmp_path)
    job.topic.send(0, 30)
    producer = Producer({"bootstrap.servers": job.given["brokers"], "log_level": 0, "transactional.id": job.mark})
    producer.init_transactions(30)
    producer.begin_transaction()
    row = events(np.arange(30, 31, dtype=np.int64)).with_columns(pl.col("at").dt.strftime("%FT%T%.6fZ"))
    producer.produce(job.topic.name, json.dumps(row.row(0, named=True)).encode(), partition=0)
    producer.flush(30)
    job.topic.send(31, 61)
    job.run()
    assert job.done[0].rows_in == 50, "the ten rows of the partition behind the open transaction wait"
    producer.commit_transaction(30)
    del producer  # or it looks for its broker when that has ended
    deadline = time.monotonic() + 60
    while sum(step.rows_in for step in job.done) < 61 and time.monotonic() < deadline:
        job.run()
    assert [step.rows_in for step in job.done] == [50, 11]


@pytest.mark.parametrize("place", ["a folder", "a store"])
def test_the_command_goes_on_where_it_was_killed_and_ends_in_order(place, platform, minio, tmp_path):
    """On Spark itself: SIGKILL between two transactions of a step; Spark's JVM dies, and the command begins another one;
    SIGTERM ends behind a step, with exit code 0. Rows and savepoints are in a folder, or in MinIO."""
    job = Job(None, platform, tmp_path)
    command = [sys.executable, "-m", "penstock.cli.main", "run", str(FILE), "--engine", "spark", "--master", "local[2]"]
    command += ["--parallelism", "2", "--every", "200ms", "--dir", "steps", "--conf", "spark.ui.enabled=false"]
    command += ["--restart", "fixed-delay:3:100ms"]
    command += ["--staging", f"{minio.url}/staged"] if place == "a store" else []
    command += [part for name, value in QUICK.items() for part in ("--conf", f"{name}={value}")]
    command += [part for name, value in job.given.items() for part in ("--param", f"{name}={value}")]
    orders = tmp_path / "orders"
    orders.mkdir()
    (orders / failpoints.AFTER_COMMIT).write_text("SIGKILL")
    job.topic.send(0, 600)
    environment = {**os.environ, failpoints.VARIABLE: str(orders)}
    with open(tmp_path / "first.log", "w") as log:
        code = subprocess.run(command, cwd=tmp_path, env=environment, stdout=log, stderr=log, timeout=200).returncode
    assert code == -signal.SIGKILL, (tmp_path / "first.log").read_text()
    job.topic.send(600, 900)
    shown: list[str] = []
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(200, process.kill)
        watchdog.start()
        assert process.stderr is not None
        for line in process.stderr:
            shown.append(line)
            if line.startswith("step 2: "):
                kill_jvm(process.pid)
                job.topic.send(900, 1_000)
                job.close_windows(PARTITIONS)
            if line.startswith("step ") and sum(_rows_in(step) for step in shown) == 1_000 + PARTITIONS:
                process.send_signal(signal.SIGTERM)
        watchdog.cancel()
    text = "".join(shown)
    assert process.returncode == 0, text
    assert "\nstep 1: 600 rows in" in text
    assert "\nstep 3 failed, and is repeated in 0.1 s: " in text
    asyncio.run(job.check(1_000))
    savepoint = next(line.rpartition(": ")[2] for line in text.splitlines() if line.startswith("savepoint of step"))
    assert is_sealed(place_of(savepoint))
    assert savepoint.startswith(f"{minio.url}/staged/" if place == "a store" else str(tmp_path))
    assert len({name.split("/")[2] for name in minio.names()}) == (2 if place == "a store" else 0), minio.names()
    assert f"penstock submit {FILE} --from-savepoint {savepoint}" in text


def kill_jvm(driver: int) -> None:
    (process,) = (child for child in psutil.Process(driver).children() if child.name() == "java")
    process.kill()


def _rows_in(line: str) -> int:
    if not line.startswith("step ") or " rows in" not in line:
        return 0
    return int(line.partition(": ")[2].partition(" rows in")[0].replace(",", ""))
