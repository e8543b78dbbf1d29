"""Exactly-once Kafka sinks on Spark: rows are staged by tasks and published by the driver, once per run."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from embedded_runs import finish
from kafka_reading import Record, committed
from spark_runs import HERE, QUICK, run

from penstock.adapters.system_clock import SystemClock
from penstock.connectors.kafka.marks import delete_marks
from penstock.connectors.kafka.topics import TopicAdmin
from penstock.coordination import failpoints
from penstock.errors import ExternalError, PipelineError
from penstock.loading import load_pipeline
from penstock.settings import KafkaSettings
from penstock.spark import engine, publishing
from penstock.spark.code import pack_code
from penstock.spark.committing import RunManifests
from penstock.spark.publishing import publishing_job
from penstock.spark.staging import StagedPart, check_shared, staging_folder
from penstock.task.transaction_loop import PublishingError

pytestmark = pytest.mark.timeout(300)
FILE = HERE / "kafka_sink_pipelines.py"
PARTITIONS = {"rows": 3, "counts": 2}


@dataclass
class Topics:
    """Two topics of a test, and what the pipeline is given to write to them."""

    settings: KafkaSettings
    rows: int = 600
    padding: int = 0
    mark: str = field(default_factory=lambda: secrets.token_hex(4))
    jobs: list[str] = field(default_factory=list)
    """What stands for jobs in the names of the marks of this test's runs."""

    def __post_init__(self) -> None:
        """The records have times of long ago, and Kafka removes old records whenever it comes to look."""
        for which, partitions in PARTITIONS.items():
            TopicAdmin(self.settings, "test").create(self.name(which), partitions, {"retention.ms": "-1"})

    @property
    def parameters(self) -> dict[str, str]:
        return {
            "brokers": self.settings.brokers,
            "rows": str(self.rows),
            "padding": str(self.padding),
            "rows_topic": self.name("rows"),
            "counts_topic": self.name("counts"),
        }

    def name(self, which: str) -> str:
        return f"{which}-{self.mark}"

    async def records(self, which: str) -> list[Record]:
        """All committed records, those of a partition in their order."""
        return await committed(self.settings.brokers, self.name(which), PARTITIONS[which])

    async def numbers(self) -> list[int]:
        """The numbers of all rows that are visible, in ascending order."""
        return sorted(json.loads(record.value)["number"] for record in await self.records("rows"))

    async def marks(self) -> list[str]:
        """The topics of marks of this test's runs."""
        listed = TopicAdmin(self.settings, "test")._client.list_topics(timeout=20).topics
        return [topic for topic in listed if any(job in topic for job in self.jobs)]

    def run_id(self) -> str:
        """A run id that no other test has: the marks of all of them stand in one Kafka."""
        chosen = f"{self.mark}.{len(self.jobs)}"
        self.jobs.append(publishing_job("kafka-sinks", chosen))
        return chosen


@pytest.fixture
def topics(platform) -> Topics:
    return Topics(platform.settings("sinks").kafka)


def sent(records: list[Record], *, timed: bool = False) -> Counter[Any]:
    return Counter((r.partition, r.key, r.value, r.headers, r.timestamp if timed else None) for r in records)


async def test_the_records_are_those_of_streaming(topics, spark, tmp_path):
    """Partition, key, value, headers and timestamp; rows of a key in their order; the newest update of a key counts."""
    streamed = Topics(topics.settings, topics.rows)
    await asyncio.to_thread(finish, load_pipeline(str(FILE), streamed.parameters), tmp_path / "state")
    result = run(spark, FILE, tmp_path, topics.parameters, topics.run_id())
    rows = await topics.records("rows")
    assert sent(rows, timed=True) == sent(await streamed.records("rows"), timed=True)
    assert len(rows) == topics.rows
    assert result.total("n1-write", "rows_out") == topics.rows
    newest, expected = [{r.key: r.value for r in await each.records("counts")} for each in (topics, streamed)]
    assert newest == expected
    ordered = defaultdict(list)
    for record in await topics.records("counts"):
        ordered[record.key].append(json.loads(record.value)["n"])
    assert all(counts == sorted(counts) for counts in ordered.values())


async def test_a_run_given_again_publishes_nothing_another_one_everything(topics, spark, tmp_path):
    """After the end of a run its marks, its notes and its staged files are gone."""
    first = topics.run_id()
    assert run(spark, FILE, tmp_path, topics.parameters, first).computed
    assert not run(spark, FILE, tmp_path, topics.parameters, first).computed
    assert await topics.numbers() == list(range(topics.rows))
    run(spark, FILE, tmp_path, topics.parameters, topics.run_id())
    assert await topics.numbers() == sorted([*range(topics.rows)] * 2)
    assert await topics.marks() == []
    assert list((tmp_path / "runs" / ".staging").iterdir()) == []
    assert list((tmp_path / "runs" / publishing.NOTES).iterdir()) == []


async def visible(topics) -> int:
    """How many records of both sinks can be read: which of them has the first transaction is chance."""
    return len(await topics.records("rows")) + len(await topics.records("counts"))


async def test_a_driver_killed_at_every_step_doubles_and_loses_nothing(topics, spark, tmp_path):
    """SIGKILL between two transactions of a run on Spark, then at each named step of whoever carries on."""
    topics.rows, topics.padding = 24_000, 1_000  # transactions for all kills, also where another partition is ahead
    chosen = topics.run_id()
    command = [sys.executable, "-m", "penstock.cli.main", "run", str(FILE), "--engine", "spark", "--master", "local[2]"]
    command += ["--parallelism", "2", "--run-id", chosen, "--conf", "spark.ui.enabled=false"]
    command += [part for name, value in QUICK.items() for part in ("--conf", f"{name}={value}")]
    command += [part for name, value in topics.parameters.items() for part in ("--param", f"{name}={value}")]
    assert killed_at(failpoints.AFTER_COMMIT, command, tmp_path)
    seen = [await visible(topics)]  # perhaps none yet: a transaction that another publisher left open hides them
    folder = tmp_path / ".penstock" / "kafka-sinks" / "spark"
    commit = [sys.executable, str(HERE / "committing_driver.py"), str(folder), chosen]
    commit += [f"{name}={value}" for name, value in topics.parameters.items()]
    for step in (
        failpoints.BEFORE_COMMIT,
        failpoints.AFTER_COMMIT,
        failpoints.BEFORE_INIT,
        failpoints.AFTER_INIT,
        failpoints.AFTER_COMMIT,
    ):
        assert killed_at(step, commit, tmp_path)
        seen.append(await visible(topics))
    assert seen == sorted(seen)
    given = topics.parameters
    last = engine.SparkRun(
        spark,
        load_pipeline(str(FILE), given),
        pack_code(str(FILE), given),
        run=chosen,
        clock=SystemClock(),
        folder=folder,
    )
    assert not last.execute().computed
    assert seen[-1] < await visible(topics), "no transaction lay behind the kills"
    assert await topics.numbers() == list(range(topics.rows))
    newest = {record.key: json.loads(record.value)["n"] for record in await topics.records("counts")}
    assert sum(newest.values()) == topics.rows
    assert list((folder / ".staging").iterdir()) == []


async def test_rows_that_another_folder_computed_are_not_doubled(topics, spark, tmp_path, monkeypatch):
    """A run that is half visible is refused where its manifest is not, and where a mark is missing that was there."""
    chosen = topics.run_id()
    with monkeypatch.context() as patch:
        patch.setattr(RunManifests, "note_committed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(spark, FILE, tmp_path, topics.parameters, chosen)
    with pytest.raises(PipelineError, match="give a new run another id"):
        run(spark, FILE, tmp_path / "elsewhere", topics.parameters, chosen)
    for topic in await topics.marks():
        await delete_marks(topics.settings, topic)
    with pytest.raises(PublishingError, match="mark of this sink is missing"):
        run(spark, FILE, tmp_path, topics.parameters, chosen)
    assert await topics.numbers() == list(range(topics.rows))


async def test_staged_rows_are_there_until_they_are_visible(topics, spark, tmp_path, monkeypatch):
    """Another run leaves them alone; without them the run is refused, with what to do."""
    first = topics.run_id()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(spark, FILE, tmp_path, topics.parameters, first)
    run(spark, FILE, tmp_path, topics.parameters, topics.run_id())
    assert not run(spark, FILE, tmp_path, topics.parameters, first).computed
    assert await topics.numbers() == sorted([*range(topics.rows)] * 2)


def test_a_folder_that_is_not_shared_is_noticed_before_the_run_is_decided(tmp_path):
    """What tasks staged on other machines cannot be published by the driver."""
    with pytest.raises(ExternalError, match="all machines share"):
        check_shared(staging_folder(str(tmp_path)), [StagedPart("n1-write--0-x.arrow", 0, 1, 10)])


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def killed_at(step: str, command: list[str], folder: Path) -> bool:
    """Run a driver that is to be killed at a step; whether it was."""
    orders = folder / "steps"
    orders.mkdir(exist_ok=True)
    (orders / step).write_text("SIGKILL")
    environment = {**os.environ, failpoints.VARIABLE: str(orders)}
    with open(folder / "driver.log", "w") as log:  # a pipe would stay open as long as the JVM that the driver leaves
        code = subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log, timeout=200).returncode
    assert code == -signal.SIGKILL, (folder / "driver.log").read_text()
    return (orders / step).with_suffix(".hit").exists()
