"""Topics of changes on Spark: a bounded part of them is the table that a stream makes of it."""

from __future__ import annotations

import json

import pytest
from changes_of_topics import Changes, Topics, towns
from embedded_runs import rows
from kafka_reading import committed
from spark_runs import HERE, run

pytestmark = pytest.mark.timeout(300)


async def test_topics_of_changes_are_tables_on_spark(platform, spark, tmp_path):
    """Upserts and tombstones, events with former rows and without: what holds at the end, and what is written of it."""
    settings = platform.settings("spark").kafka
    topics, changes = Topics(settings, platform.settings("table").name), Changes(7)
    topics.send(changes, 400)
    given = {
        "brokers": settings.brokers, "upserts": topics.upserts, "keyed": topics.keyed, "events": topics.events,
        "sink": f"{topics.upserts}-towns", "out": str(tmp_path / "spark"),
    }  # fmt: skip
    run(spark, HERE / "changes_pipeline.py", tmp_path, given)
    for name in ("upserts", "keyed", "whole"):
        found = list(rows(tmp_path / "spark" / name))
        assert {row["account"]: row for row in found} == changes.table, name
        assert len(found) == len(changes.table)
        found = list(rows(tmp_path / "spark" / f"{name}-towns"))
        assert {row["town"]: (row["n"], row["most"]) for row in found} == towns(changes.table), name
        held: dict[str, tuple[int, int]] = {}
        for event in [
            json.loads(each.value) for each in await committed(settings.brokers, f"{topics.upserts}-towns-{name}", 2)
        ]:
            if event["after"] is None:
                del held[event["before"]["town"]]
            else:
                held[event["after"]["town"]] = (event["after"]["n"], event["after"]["most"])
        assert held == towns(changes.table), name
