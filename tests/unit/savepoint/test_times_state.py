"""What operators without keys and declared states leave in a savepoint, and how it is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from stored import GROUPS, UID, export, restored

from penstock import savepoint
from penstock.core.batches import EVENT_TIME
from penstock.errors import UsageError
from penstock.plan.logical import Node
from penstock.plan.operations.event_time import AssignProcessingTime
from penstock.savepoint.listing import entries_of, rows_of
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import schema_of


@dataclass
class Ping:
    name: str


SCHEMA = schema_of(Ping)
NODE = Node("n1", AssignProcessingTime(200), (input_node(SCHEMA, Ping),), SCHEMA, Ping, event_time=True, uid=UID)


def test_how_far_the_clock_had_come_is_shown_and_goes_on(tmp_path: Path):
    """As an entry per subtask; there is no table of keys."""
    harness = OperatorHarness(NODE, parallelism=2, max_parallelism=GROUPS, now_us=7_000)
    for _ in range(2):
        harness.frame(pl.DataFrame({"name": ["a"]}))
    folder = export(harness, NODE, tmp_path / "one")
    found = savepoint.read(folder)
    assert entries_of(found.manifest, UID) == {"reached": ["6999", "6999"]}
    assert rows_of(found, UID).is_empty()
    with pytest.raises(UsageError, match="keeps nothing but how far the clock had come"):
        found.table(UID)
    later = restored(folder, NODE, 3, now_us=1_000)
    later.frame(pl.DataFrame({"name": ["a"]}))
    assert later.collected.frames[0][EVENT_TIME].to_list() == [7_000]
