"""Topics of changes on a real broker: what is written to them is read as the same table, also by a job that fails."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from changes_of_topics import Changes, Topics, towns

from penstock import Pipeline, col, count
from penstock.connectors import collecting, iterables, kafka
from penstock.connectors.kafka import default_cluster
from penstock.embedded import EmbeddedJob, EmbeddedSettings, JobResult
from penstock.settings import KafkaSettings

pytestmark = pytest.mark.timeout(180)
SEED = int(os.environ.get("PENSTOCK_TEST_SEED", "2026"))


@dataclass
class Account:
    account: str
    town: str
    balance: int


@dataclass
class Step:
    """A row of an account, or that there is none any more."""

    account: str
    town: str
    balance: int
    holds: bool


@pytest.fixture
def settings(platform, monkeypatch) -> KafkaSettings:
    """The Kafka of this run."""
    found = platform.settings("changes").kafka
    monkeypatch.setattr(default_cluster, "_platform", default_cluster._platform)
    kafka.use_cluster(found, "changes-test")
    return found


async def finished(pipeline: Pipeline, folder, **options: Any) -> JobResult:
    settings = EmbeddedSettings(durable=False, parallelism=2, **options)
    result = await EmbeddedJob(pipeline, folder, settings).run(resume=False)
    assert result.state == "FINISHED", (result.state, result.reason, result.error)
    return result


def sources(topics: Topics, end: str | None = "latest") -> dict[str, kafka.ChangeSource[Account]]:
    """The same table in every way in which a topic can have it."""
    of_keyed = kafka.ChangeSource(topics.keyed, key="account", schema=Account, format="debezium", end=end)
    of_events = kafka.ChangeSource(
        topics.events, key="account", schema=Account, format="debezium", before_images=True, end=end
    )
    return {
        "upserts": kafka.ChangeSource(topics.upserts, key="account", schema=Account, end=end),
        "keyed events": of_keyed,
        "whole events": of_events,
    }


async def test_a_table_is_read_from_every_kind_of_topic(settings, tmp_path):
    """Its rows, and aggregates of them, are those of a loop over the same changes."""
    print(f"PENSTOCK_TEST_SEED={SEED}")
    topics, changes = Topics(settings, uuid.uuid4().hex[:8]), Changes(SEED)
    topics.send(changes, 600)
    p, found = Pipeline("tables"), dict[str, tuple[collecting.Sink, collecting.Sink]]()
    for name, source in sources(topics).items():
        found[name] = collecting.Sink(), collecting.Sink()
        accounts = p.read(source)
        accounts.final().write(found[name][0])
        accounts.key_by("town").agg(n=count(), most=col("balance").max()).final().write(found[name][1])
    await finished(p, tmp_path)
    for name, (rows, totals) in found.items():
        assert {row["account"]: row for row in rows.rows} == changes.table, name
        assert len(rows.rows) == len(changes.table)
        assert {row["town"]: (row["n"], row["most"]) for row in totals.rows} == towns(changes.table), name


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"delivery": "upsert"}, {}),
        ({"delivery": "upsert", "format": "avro"}, {"format": "avro"}),
        ({"format": "debezium"}, {"format": "debezium"}),
        ({"format": "debezium", "delivery": "at-least-once"}, {"format": "debezium", "before_images": True}),
    ],
)
async def test_a_table_that_is_written_is_read_again(settings, tmp_path, written, read):
    """Upserts and tombstones, or events: the same rows, with deletes among the changes."""
    print(f"PENSTOCK_TEST_SEED={SEED}")
    topic, changes = f"written-{uuid.uuid4().hex[:8]}", Changes(SEED)
    steps: list[Step] = []
    for _ in range(500):
        name, before, after = changes.next()
        row = after or before
        assert row is not None
        steps.append(Step(name, row["town"], row["balance"], after is not None))
    write, read_again, rows = Pipeline("write"), Pipeline("read"), collecting.Sink()
    last = write.read(iterables.Source(steps, rate=2_000.0)).key_by("account").deduplicate("last")
    last.filter(col("holds")).drop("holds").write(kafka.Sink(topic, key="account", create_partitions=3, **written))
    await finished(write, tmp_path / "write", checkpoint_interval_ms=50)
    source = kafka.ChangeSource(topic, key="account", schema=Account, end="latest", **read)
    read_again.read(source).final().write(rows)
    await finished(read_again, tmp_path / "read")
    assert {row["account"]: row for row in rows.rows} == changes.table
    assert len(rows.rows) == len(changes.table)
