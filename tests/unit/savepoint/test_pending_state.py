"""The rows that wait for their calls in a savepoint: shown as a table, and asked for again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from stored import GROUPS, UID, export, restored

from penstock import savepoint
from penstock.plan.logical import Node
from penstock.plan.operations.calls import CallSettings
from penstock.plan.operations.map_async import MapAsync
from penstock.savepoint.listing import entries_of, rows_of
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import schema_of


@dataclass
class Ping:
    name: str


async def never(row: Ping) -> Ping:
    await asyncio.Event().wait()
    return row


async def echo(row: Ping) -> Ping:
    return row


def node(function) -> Node:
    calls = CallSettings(10, None, 0, 0, (Exception,), ordered=True)
    schema = schema_of(Ping)
    return Node("n1", MapAsync(function, calls), (input_node(schema, Ping),), schema, Ping, event_time=False, uid=UID)


def test_rows_that_wait_are_shown_and_go_on(tmp_path: Path):
    """As the rows that came, of all subtasks, however many there are later."""

    async def waiting() -> OperatorHarness:
        harness = OperatorHarness(node(never), parallelism=2, max_parallelism=GROUPS)
        harness.frame(pl.DataFrame({"name": ["a", "b"]}))
        harness.frame(pl.DataFrame({"name": ["c"]}))
        await asyncio.sleep(0)
        return harness

    folder = export(asyncio.run(waiting()), node(never), tmp_path / "one")
    found = savepoint.read(folder)
    assert sorted(found.table(UID)["name"]) == ["a", "b", "c"]
    assert sorted(rows_of(found, UID)["name"]) == ["a", "b", "c"]
    assert entries_of(found.manifest, UID) == {"pending": []}
    later = restored(folder, node(echo), 3)
    later.watermark(1)
    later.close()
    assert sorted(row["name"] for row in later.output()) == ["a", "b", "c"]
    empty = export(OperatorHarness(node(echo), max_parallelism=GROUPS), node(echo), tmp_path / "two")
    assert savepoint.read(empty).table(UID).columns == ["name"]
