"""A job that reads topics of changes and is killed: what it writes is what a loop over the changes comes to."""

from __future__ import annotations

import asyncio
import os
import uuid
from dataclasses import dataclass

import pytest
from changes_of_topics import Changes, Topics, towns
from tests.integration.one_job import until
from tests.integration.test_kafka_changes import finished, sources

from penstock import Pipeline, col, count
from penstock.connectors import collecting, kafka
from penstock.connectors.kafka import default_cluster
from penstock.embedded import EmbeddedJob, EmbeddedSettings
from penstock.settings import KafkaSettings

pytestmark = pytest.mark.timeout(180)
SEED = int(os.environ.get("PENSTOCK_TEST_SEED", "2026"))


@pytest.fixture
def settings(platform, monkeypatch) -> KafkaSettings:
    """The Kafka of this run."""
    found = platform.settings("changes").kafka
    monkeypatch.setattr(default_cluster, "_platform", default_cluster._platform)
    kafka.use_cluster(found, "changes-test")
    return found


@dataclass
class Town:
    town: str
    n: int
    most: int


async def test_a_job_that_is_killed_again_and_again_reads_the_same_table(settings, tmp_path):
    """Topics grow meanwhile; state is restored, and what was before is taken back once."""
    print(f"PENSTOCK_TEST_SEED={SEED}")
    topics, changes = Topics(settings, uuid.uuid4().hex[:8]), Changes(SEED)
    out = [f"{topic}-towns" for topic in (topics.upserts, topics.keyed, topics.events)]

    def pipeline() -> Pipeline:
        p = Pipeline("killed")
        for topic, (name, source) in zip(out, sources(topics, end=None).items(), strict=True):
            totals = (
                p.read(source).uid(name).key_by("town").agg(n=count(), most=col("balance").max()).uid(f"{name} sum")
            )
            sink = kafka.Sink(topic, key="town", delivery="upsert", create_partitions=2)
            totals.write(sink).uid(f"{name} out")
        return p

    async def look(topic: str) -> dict[str, tuple[int, int]]:
        p, rows = Pipeline("look"), collecting.Sink()
        p.read(kafka.ChangeSource(topic, key="town", schema=Town, end="latest")).final().write(rows)
        await finished(p, tmp_path / uuid.uuid4().hex)
        return {row["town"]: (row["n"], row["most"]) for row in rows.rows}

    for attempt in range(4):
        topics.send(changes, 150)
        how = EmbeddedSettings(durable=False, parallelism=1 + attempt % 2, checkpoint_interval_ms=50)
        job = EmbeddedJob(pipeline(), tmp_path / "job", how)
        run = asyncio.create_task(job.run(resume=attempt > 0))

        async def further(job: EmbeddedJob = job) -> bool:
            return job.started and len(job.progress.completed_checkpoints) >= 3

        async def all_there() -> bool:
            return all([await look(topic) == towns(changes.table) for topic in out])

        await until(further, "checkpoints are complete")
        if attempt < 3:
            topics.send(changes, 50)  # it is in the middle of them when it is killed
        else:
            await until(all_there, "what was written is what holds")
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
