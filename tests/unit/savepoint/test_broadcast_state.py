"""Broadcast state in savepoints: one table whatever the parallelism, replaced as a whole, the same in every subtask."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from stored import UID, export, restored

from penstock import (
    BroadcastProcess,
    BroadcastState,
    Context,
    KeyedBroadcastProcess,
    KeyedContext,
    OperatorListState,
    ValueState,
    savepoint,
)
from penstock.adapters.memory import MemoryBlobs
from penstock.errors import CorruptDataError, UsageError
from penstock.plan.logical import Node
from penstock.plan.operations.process_rows import ProcessRows
from penstock.protocol.keygroups import key_group_range
from penstock.protocol.manifests import Manifest, objects_beside, with_beside
from penstock.protocol.messages import BesideKeys
from penstock.savepoint.listing import entries_of
from penstock.task import snapshots
from penstock.task.snapshots import FrozenSubtask, restore_operator, upload
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import schema_of


@dataclass
class Bid:
    auction: int


@dataclass
class Limit:
    most: float
    notes: list[str]


@dataclass
class Rule:
    name: str
    most: float


@dataclass
class Shown:
    rules: str


class Ruled(KeyedBroadcastProcess[Bid, Rule, Shown]):
    limits = BroadcastState(str, Limit)
    names = BroadcastState(str, int)
    seen = ValueState(int)

    def on_row(self, row: Bid, ctx: KeyedContext[Shown]) -> None:
        self.seen.set(self.seen.get(default=0) + 1)
        ctx.emit(Shown(repr(sorted((name, limit.most) for name, limit in self.limits.items()))))

    def on_broadcast(self, row: Rule, ctx: Context[Shown]) -> None:
        self.limits.set(row.name, Limit(row.most, [row.name]))
        self.names.set(row.name, len(row.name))


class Alone(BroadcastProcess[Bid, Rule, Shown]):
    limits = BroadcastState(str, Limit)
    seen = OperatorListState(int)

    def on_row(self, row: Bid, ctx: Context[Shown]) -> None:
        self.seen.add(row.auction)
        ctx.emit(Shown(repr(sorted((name, limit.most) for name, limit in self.limits.items()))))

    def on_broadcast(self, row: Rule, ctx: Context[Shown]) -> None:
        self.limits.set(row.name, Limit(row.most, [row.name]))


def node_of(process: Any) -> Node:
    keys = ("auction",) if isinstance(process, Ruled) else ()
    inputs = input_node(schema_of(Bid, "left"), Bid, keys), input_node(schema_of(Rule, "right"), Rule)
    return Node("n2", ProcessRows(process), inputs, schema_of(Shown, "out"), Shown, event_time=False, uid=UID)


def harness_with(node: Node, rules: dict[str, float], parallelism: int, bids: int = 9) -> OperatorHarness:
    harness = OperatorHarness(node, parallelism=parallelism)
    if rules:
        harness.frame(pl.DataFrame({"name": list(rules), "most": list(rules.values())}), 1)
    harness.frame(pl.DataFrame({"auction": list(range(bids))}, {"auction": pl.Int64}))
    return harness


RULES = st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False, width=32), max_size=4)


@settings(max_examples=25, deadline=None)
@given(rules=RULES, parallelism=st.integers(1, 3), later=st.integers(1, 4), keyed=st.booleans())
def test_the_table_is_what_every_subtask_holds_and_goes_back(tmp_path_factory, rules, parallelism, later, keyed):
    """Read, replaced by itself, restored at another parallelism: every subtask has all of it."""
    node, folder = node_of(Ruled() if keyed else Alone()), tmp_path_factory.mktemp("sp")
    sp = savepoint.read(export(harness_with(node, rules, parallelism), node, folder / "one"))
    table = sp.table(UID, "limits")
    assert dict(zip(table["map_key"], table["value"], strict=True)) == {
        name: {"most": most, "notes": [name]} for name, most in rules.items()
    }
    copied = sp.edit().replace(UID, "limits", table).write(folder / "two")
    assert_frame_equal(copied.table(UID, "limits"), table)
    assert sp.operator(UID).entries["limits"] == len(rules)
    successor = restored(folder / "two", node, later)
    for operator in successor.operators:
        snapshot = operator.snapshot()
        assert snapshot is not None
        found = msgspec.msgpack.decode(snapshot.broadcast["limits"])
        assert {key: limit["most"] for key, limit in found} == rules


def test_an_edited_rule_is_what_the_job_goes_on_with(tmp_path):
    node = node_of(Ruled())
    sp = savepoint.read(export(harness_with(node, {"a": 1.0}, 2), node, tmp_path / "one"))
    frame = pl.DataFrame({"map_key": ["b", "c"], "value": [{"most": 2.0, "notes": ["x"]}, {"most": 3.0, "notes": []}]})
    sp.edit().replace(UID, "limits", frame).write(tmp_path / "two")
    successor = restored(tmp_path / "two", node, 3)
    successor.frame(pl.DataFrame({"auction": list(range(9))}))
    assert {row["rules"] for row in successor.output()} == {"[('b', 2.0), ('c', 3.0)]"}
    named = pl.DataFrame({"map_key": ["b"], "value": [1]})
    third = sp.edit().replace(UID, "new", named, declared=BroadcastState(str, int)).write(tmp_path / "three")
    assert third.table(UID, "new").rows() == [("b", 1)]


def test_listed_beside_keyed_states_which_stay_what_they_are(tmp_path):
    node = node_of(Ruled())
    sp = savepoint.read(export(harness_with(node, {"ab": 1.5}, 2), node, tmp_path / "one"))
    assert entries_of(sp.manifest, UID) == {
        "limits": ['"ab": {"most":1.5,"notes":["ab"]}'], "names": ['"ab": 2'],
    }  # fmt: skip
    assert sp.table(UID).columns == ["auction", "seen"]
    assert sp.table(UID, "seen").height == sp.keys(UID).height == 9
    assert sp.operator(UID).broadcast == {"limits", "names"}
    empty = savepoint.read(export(OperatorHarness(node), node, tmp_path / "empty"))
    assert empty.table(UID).columns == ["auction", "seen"]
    assert empty.table(UID, "names").schema == {"map_key": pl.String, "value": pl.Int64}


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (pl.DataFrame({"map_key": ["a", "a"], "value": [1, 2]}), "names an entry twice"),
        (pl.DataFrame({"map_key": [1], "value": [1]}), "column 'map_key' is Int64"),
        (pl.DataFrame({"value": [1]}), "map_key"),
        (pl.DataFrame({"map_key": ["a", None], "value": [1, 2]}), "map_key"),
    ],
)
def test_a_table_that_is_no_such_state_is_refused(tmp_path, frame, said):
    node = node_of(Ruled())
    sp = savepoint.read(export(harness_with(node, {"a": 1.0}, 1), node, tmp_path / "one"))
    with pytest.raises(UsageError, match=said):
        sp.edit().replace(UID, "names", frame)


def test_it_is_not_read_or_replaced_by_key_group(tmp_path):
    node = node_of(Ruled())
    sp = savepoint.read(export(harness_with(node, {"a": 1.0}, 1), node, tmp_path / "one"))
    with pytest.raises(UsageError, match="'limits' is broadcast"):
        sp.tables(UID, "limits")
    with pytest.raises(UsageError, match="replace it as a whole"):
        sp.edit().replacement(UID, "limits")


def test_damaged_bytes_are_said():
    part = snapshots.OperatorHandles(broadcast={"limits": b"\xc1"})
    manifest = Manifest("j", 1, "a", 1, 16, {"v1": {0: snapshots.SubtaskSnapshot({UID: part}, 0, 0)}}, {UID: "{}"})
    with pytest.raises(CorruptDataError, match=f"operator '{UID}', state 'limits'"):
        entries_of(manifest, UID)


def test_a_large_one_goes_into_an_object_of_its_own(monkeypatch):
    """Acks stay small; what is restored is the same."""
    monkeypatch.setattr(snapshots, "MAX_BESIDE_BYTES", 10)

    async def scenario() -> list[bytes]:
        blobs, node = MemoryBlobs(), node_of(Ruled())
        harness = harness_with(node, {"x" * 20: 1.0}, 2)
        found = [operator.snapshot() for operator in harness.operators]
        kept = {
            index: await upload(FrozenSubtask({UID: each}, 0, 1), f"p/{index}-", blobs, "fs", lambda: 0)
            for index, each in enumerate(found)
            if each is not None
        }
        assert all(
            each.operators[UID].beside is not None and not each.operators[UID].broadcast for each in kept.values()
        )
        bare = Manifest("j", 3, "a", 2, 16, {"v1": kept}, {UID: "{}"})
        stored = {handle.key: await blobs.get(handle.key) for handle in objects_beside(bare)}
        manifest = with_beside(bare, {key: msgspec.json.decode(data, type=BesideKeys) for key, data in stored.items()})
        states = [
            await restore_operator(manifest, UID, key_group_range(index, 3, 16), index, 3, blobs) for index in range(3)
        ]
        return [each.broadcast["names"] for each in states if each is not None]

    assert len(set(asyncio.run(scenario()))) == 1
