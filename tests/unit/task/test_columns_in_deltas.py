"""What operators that keep columns have behind a restore from a full run and deltas, where it once was something else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from test_changes import a_change, aggregate_node, frame_of_changes
from test_joins import join_node
from test_over import over_node
from test_regular_joins import TTL
from test_regular_joins import frame_of as changes_of_join
from test_regular_joins import join_node as regular_join_node
from test_top_changes import frame_of as frame_of_top
from test_top_changes import top_node
from window_cases import frame_of, kept_in, window_node

from penstock.adapters.memory import MemoryBlobs
from penstock.core.batches import EVENT_TIME
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.expressions import col, count, lag
from penstock.functions.windows.definitions import (
    RETRACTED,
    AsOf,
    CumulativeWindow,
    SessionWindow,
    TumblingWindow,
    Within,
)
from penstock.plan.logical import Node
from penstock.protocol.incremental import SnapshotChains
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import SubtaskSnapshot
from penstock.state import sorted_runs
from penstock.state.hashing import key_group_of
from penstock.task.operator import OperatorContext, OperatorSnapshot
from penstock.task.operators import build_operator, waiting_rows
from penstock.task.snapshots import FrozenSubtask, chains_of, restore_operator, upload
from penstock.testing.harness import Collector
from penstock.types import STRING

GROUPS = 16


class Subtask:
    """An operator whose checkpoints all become COMPLETE."""

    def __init__(
        self, node: Node, restored: Any = None, *, incremental: bool = True, folder: Path | None = None
    ) -> None:
        self.node = node
        self.output = Collector()
        self.operator = build_operator(node)
        self.blobs, self.chains, self.checkpoint = MemoryBlobs(), SnapshotChains(), 0
        self.reached, self.now_us = MIN_WATERMARK, 0
        whole = KeyGroupRange(0, GROUPS)
        context = OperatorContext(
            "op", 0, 1, GROUPS, whole, lambda: self.now_us, local_state=folder, incremental=incremental
        )
        self.operator.open(context, restored)
        self.incremental, self.folder = incremental, folder

    def feed(self, frame: pl.DataFrame, number: int = 0) -> list[dict[str, Any]]:
        """A batch; what is sent for it."""
        self.operator.process_input(number, frame, self.output)
        return self._sent()

    def advance(self, watermark: int) -> list[dict[str, Any]]:
        """Event time comes on; what is sent because of that."""
        self.reached = watermark
        self.operator.advance(watermark, self.output)
        return self._sent()

    def _sent(self) -> list[dict[str, Any]]:
        rows = [row for frame in self.output.frames for row in frame.to_dicts()]
        self.output.frames.clear()
        return rows

    def take(self) -> SubtaskSnapshot:
        """A checkpoint."""
        self.checkpoint += 1
        frozen = FrozenSubtask({"op": self.operator.snapshot() or OperatorSnapshot()}, self.reached, 0)
        base = self.chains.base if self.incremental else None
        snapshot = asyncio.run(upload(frozen, f"{self.checkpoint}/", self.blobs, "fs", lambda: 0, base))
        self.chains.snapshot_stored(self.checkpoint, chains_of(frozen, snapshot))
        self.chains.completed(self.checkpoint)
        return snapshot

    def restored(self, snapshot: SubtaskSnapshot) -> Subtask:
        """Another one that begins with it."""
        manifest = Manifest(
            job="j", checkpoint=1, attempt="a", parallelism=1, max_parallelism=GROUPS, subtasks={"v": {0: snapshot}},
            operators={},
        )  # fmt: skip
        state = asyncio.run(restore_operator(manifest, "op", KeyGroupRange(0, GROUPS), 0, 1, self.blobs))
        return Subtask(self.node, state, folder=self.folder)


SCHEMAS = {name: {"key": pl.String(), name: pl.Int64(), EVENT_TIME: pl.Int64()} for name in ("value", "other")}


def pair_of(value: int, column: str) -> pl.DataFrame:
    return pl.DataFrame({"key": ["a"], column: [value], EVENT_TIME: [10]})


@pytest.mark.parametrize("how", ["inner", "semi", "anti", "left", "right", "full"])
def test_what_was_sent_of_a_row_that_met_one_is_not_sent_again(how):
    """Behind a restore a second partner gives what it gives without one."""
    first = Subtask(join_node(how, Within(-5, 5)))
    first.feed(pair_of(1, "value"), 0)
    first.take()
    first.feed(pair_of(2, "other"), 1)
    second = first.restored(first.take())
    assert second.feed(pair_of(3, "other"), 1) == first.feed(pair_of(3, "other"), 1)
    assert second.feed(pair_of(4, "value"), 0) == first.feed(pair_of(4, "value"), 0)


@pytest.mark.parametrize("how", ["inner", "semi", "anti", "left", "right", "full"])
@pytest.mark.parametrize("time", [Within(-5, 5), TumblingWindow(10)], ids=str)
@pytest.mark.parametrize("key", ["a", None])
def test_a_delta_tells_rows_apart_that_have_met_one_by_a_condition_from_others_of_their_key_and_time(how, time, key):
    """Behind a restore those that have not are sent as before."""
    first = Subtask(join_node(how, time, col("value") > col("other"), nulls_equal=True))
    for number, (column, low) in enumerate((("value", 0), ("other", 20))):
        rows = {"key": [key] * 3, column: [low, low + 3, low + 6], EVENT_TIME: [10] * 3}
        first.feed(pl.DataFrame(rows, SCHEMAS[column]), number)
    first.take()
    first.feed(pl.DataFrame({"key": [key], "value": [24], EVENT_TIME: [11]}, SCHEMAS["value"]), 0)
    first.feed(pl.DataFrame({"key": [key], "other": [4], EVENT_TIME: [11]}, SCHEMAS["other"]), 1)
    second = first.restored(first.take())
    assert by_content(second.advance(MAX_WATERMARK)) == by_content(first.advance(MAX_WATERMARK))


@pytest.mark.parametrize("how", ["semi", "anti", "left", "right", "full"])
@pytest.mark.parametrize("time", [Within(-5, 5), TumblingWindow(10)], ids=str)
def test_a_delta_of_a_join_in_time_has_the_rows_that_came_and_says_which_others_have_met_one(how, time):
    """Of a thousand of either input one of each meets one, others are over, and are not sent a second time."""
    first = Subtask(join_node(how, time))
    for number, column in enumerate(["value", "other"]):
        rows = {
            "key": [f"{column} {place}" for place in range(1_000)],
            column: [*range(1_000)],
            EVENT_TIME: [95] * 1_000,
        }
        over = {"key": [f"over {column}", "over", "null"], column: [1, 2, 3], EVENT_TIME: [10, 10, 95]}
        frame = pl.concat([pl.DataFrame(rows), pl.DataFrame(over)])
        first.feed(frame.with_columns(pl.when(pl.col("key") != "null").then("key").alias("key")), number)
    full = first.take()
    first.feed(pl.DataFrame({"key": ["other 3", "value 4"], "value": [7, 8], EVENT_TIME: [94, 95]}), 0)
    first.feed(pl.DataFrame({"key": ["value 3"] * 2, "other": [7, 8], EVENT_TIME: [94, 95]}), 1)
    first.advance(19)  # up to which windows are of use that have 10
    snapshot = first.take()
    assert len(snapshot.operators["op"].runs) == 2
    assert snapshot.written_bytes is not None
    assert snapshot.written_bytes < full.size_bytes / 5
    second = first.restored(snapshot)
    last = {column: pl.DataFrame({"key": ["value 3", "other 3"], column: [9, 9], EVENT_TIME: [96, 96]}) for column in (
        "value", "other")}  # fmt: skip
    for number, column in enumerate(last):
        assert by_content(second.feed(last[column], number)) == by_content(first.feed(last[column], number))
    assert by_content(second.advance(MAX_WATERMARK)) == by_content(first.advance(MAX_WATERMARK))


def changes_of_values(*rows: tuple[str, int, bool]) -> pl.DataFrame:
    return frame_of_changes([a_change(key, value, gone=gone) for key, value, gone in rows])


def changes_of_ranks(*rows: tuple[str, int, bool]) -> pl.DataFrame:
    return frame_of_top([(key, float(value), value, gone) for key, value, gone in rows])


@pytest.mark.parametrize("on_disk", [False, True], ids=["fs", "rocksdb"])
@pytest.mark.parametrize(
    ("node", "frame"),
    [
        (aggregate_node({"n": count()}, ttl=80), changes_of_values),
        (aggregate_node({"n": count(), "most": col("i").max()}, ttl=80), changes_of_values),
        (top_node(2, ttl=80), changes_of_ranks),
    ],
    ids=["sums", "rows", "top"],
)
def test_a_delta_knows_which_keys_were_forgotten_and_when_the_others_were_touched(node, frame, on_disk, tmp_path):
    first = Subtask(node, folder=tmp_path if on_disk else None)
    others = [(f"key {number}", 1, False) for number in range(1_000)]
    first.feed(frame(("a", 1, False), ("b", 1, False)))
    first.now_us = 60
    first.feed(frame(("a", 2, False), *others))
    first.take()
    for now, key in ((100, "c"), (110, "d")):
        first.now_us = now
        first.feed(frame((key, 1, False)))
        snapshot = first.take()
    assert len(snapshot.operators["op"].runs) == 3
    second = first.restored(snapshot)
    for now, rows in (
        (115, [("b", 1, True), ("a", 2, True), ("b", 3, False)]),
        (170, [("c", 1, True), ("d", 1, True)]),
        (200, [("a", 1, True), ("a", 5, False), ("d", 5, False)]),
    ):
        first.now_us = second.now_us = now
        assert second.feed(frame(*rows)) == first.feed(frame(*rows))
    again = [each.restored(each.take()).feed(frame(("a", 9, False), ("b", 9, False))) for each in (first, second)]
    assert again[0] == again[1] != []


@pytest.mark.parametrize("how", ["inner", "semi", "anti", "left", "right", "full"])
def test_a_delta_of_a_join_with_a_time_to_live_has_the_rows_that_came_and_what_was_forgotten_stays_so(how):
    """Also where the clock goes back behind a restore, and in key groups of which the delta has nothing."""
    first = Subtask(regular_join_node(how, ("append", "retract"), ttl=TTL))
    keys, met = [f"key {place}" for place in range(1_000)], [f"key {place}" for place in range(100)]
    first.feed(changes_of_join([(key, None, 0.0, False) for key in keys], 0, "append", [0] * 1_000), 0)
    first.feed(changes_of_join([((), key, False) for key in met], 1, "retract", [0] * 100), 1)
    first.now_us = TTL // 2
    first.feed(changes_of_join([(key, None, 1.5, False) for key in keys], 0, "append", [0] * 1_000), 0)
    full = first.take()
    first.now_us = TTL  # those of the beginning are forgotten
    first.feed(changes_of_join([("key 3", None, 2.5, False)], 0, "append", [0]), 0)
    snapshot = first.take()
    assert len(snapshot.operators["op"].runs) == 2
    assert snapshot.written_bytes is not None
    assert snapshot.written_bytes < full.size_bytes / 5
    second = first.restored(snapshot)
    second.now_us = TTL // 2
    for gone in (True, False):
        for key in met:
            frame = changes_of_join([((), key, gone)], 1, "retract", [0])
            assert by_content(second.feed(frame, 1)) == by_content(first.feed(frame, 1))


def by_content(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


def pairs_sent(subtask: Subtask, watermark: int) -> list[tuple[Any, ...]]:
    """What an as-of join sends up to there."""
    return [(row["key"], row["value"], row["other"]) for row in subtask.advance(watermark)]


def versions_of(rows: list[tuple[str, int, int]]) -> pl.DataFrame:
    return frame_of(rows).rename({"value": "other"})


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_delta_of_an_as_of_join_has_versions_and_rows_that_came_and_no_others(place):
    """Of a thousand that wait at the full run two have left since, and are not sent again."""
    with kept_in(place) as folder:
        first = Subtask(join_node("left", AsOf()), folder=folder)
        first.feed(versions_of([(f"key {number}", 1, number) for number in range(1_000)]), 1)
        first.feed(frame_of([("over", 5, 1), ("key 3", 9, 2), *((f"key {each}", 500, each) for each in range(1_000))]))
        full = first.take()
        assert pairs_sent(first, 10) == [("over", 1, None), ("key 3", 2, 3)]
        first.feed(versions_of([("key 3", 400, -3), ("key 5", 600, -5)]), 1)
        first.feed(frame_of([("key 3", 500, 4), ("left", 20, 5), ("key 5", 500, 6)]))
        assert pairs_sent(first, 20) == [("left", 5, None)]
        snapshot = first.take()
        assert len(snapshot.operators["op"].runs) == 2
        assert snapshot.written_bytes is not None
        assert snapshot.written_bytes < full.size_bytes / 5
        groups = {group for handle in snapshot.operators["op"].runs[1] for group in handle.key_groups}
        assert groups == {key_group_of((f"key {each}",), (STRING,), GROUPS) for each in (3, 5)}
        second = first.restored(snapshot)
        sent = pairs_sent(second, MAX_WATERMARK)
        assert sorted(sent) == sorted(pairs_sent(first, MAX_WATERMARK))
        assert len(sent) == 1_002
        assert [row for row in sent if row[0] == "key 3"] == [("key 3", 3, -3), ("key 3", 4, -3)]
        del first, second


def test_a_version_that_is_too_old_to_be_met_is_in_no_delta_and_meets_none_behind_a_restore():
    first = Subtask(join_node("inner", AsOf(10)))
    first.feed(versions_of([(f"key {number}", 1, number) for number in range(100)]), 1)
    first.take()
    first.feed(versions_of([("key 3", 2, -3)]), 1)
    assert pairs_sent(first, 12) == []
    assert first.take().written_bytes == 0
    first.feed(versions_of([("key 5", 20, -5)]), 1)
    second = first.restored(first.take())
    for subtask in (first, second):
        subtask.feed(frame_of([("key 3", 13, 1), ("key 5", 21, 2), ("key 7", 13, 3)]))
        assert pairs_sent(subtask, MAX_WATERMARK) == [("key 5", 2, -5)]


def changes(*rows: tuple[str, float, int, bool]) -> pl.DataFrame:
    schema = {"key": pl.String, "x": pl.Float64, "id": pl.Int64, RETRACTED: pl.Boolean}
    return pl.DataFrame(list(rows), schema, orient="row").with_columns(pl.lit(7, pl.Int64).alias(EVENT_TIME))


@pytest.mark.parametrize("incremental", [False, True])
def test_a_row_that_was_taken_back_and_came_again_is_the_newer_one_whatever_is_merged(incremental):
    """Also where both stand in windows of their own for a while; with many rows, so that runs are not merged at once."""
    subtask = Subtask(top_node(1), incremental=incremental)
    subtask.feed(changes(*((f"other {number}", 0.0, 0, False) for number in range(3_000))))
    steps = [(1, False), (2, False), (1, True), (1, False)]
    for number, gone in steps:
        subtask.feed(changes(("a", 1.0, number, gone)))
        subtask.take()
    for number in range(3):
        subtask.take()
        subtask.feed(changes((f"another {number}", 0.0, 0, False), (f"one more {number}", 0.0, 0, False)))
    sent = subtask.feed(changes(("a", 1.0, 2, True)))
    assert [(row["id"], row[RETRACTED]) for row in sent] == [(2, True), (1, False)]
    sent = subtask.feed(changes(("a", 1.0, 1, True)))
    assert [(row["id"], row[RETRACTED]) for row in sent] == [(1, True)]


def test_a_window_fires_once_per_key_whatever_layers_its_rows_come_back_from():
    """A full run of many keys, and two deltas that have one of them again."""
    subtask = Subtask(window_node(TumblingWindow(10), aggregates=[("n", count()), ("total", col("value").sum())]))
    subtask.feed(frame_of([(f"key {number}", 1, number) for number in range(1_000)]))
    subtask.take()
    for value in (20, 400):
        subtask.feed(frame_of([("key 3", 2, value)]))
        snapshot = subtask.take()
        assert len(snapshot.operators["op"].runs) > 1
    restored = subtask.restored(snapshot)
    fired = restored.advance(MAX_WATERMARK)
    assert len(fired) == 1_000
    assert [(row["n"], row["total"]) for row in fired if row["key"] == "key 3"] == [(3, 423)]


def test_a_delta_of_windows_that_grow_has_what_came_also_where_panes_were_brought_together_since():
    """Of a thousand keys in the first pane one comes again in the second, and both are in the third window."""
    window = CumulativeWindow(100, 10)
    first = Subtask(window_node(window, aggregates=[("n", count()), ("total", col("value").sum())]))
    first.feed(frame_of([(f"key {number}", 1, number) for number in range(1_000)]))
    full = first.take()
    first.feed(frame_of([("key 3", 11, 20)]))
    assert len(fired(first, 10)) == 1_000
    assert len(first.take().operators["op"].runs) == 2
    first.feed(frame_of([("key 5", 12, 300), ("key 5", 25, 4_000)]))
    assert {("key 3", 2, 23), ("key 5", 2, 305)} <= set(fired(first, 20))
    snapshot = first.take()
    assert len(snapshot.operators["op"].runs) == 3
    assert snapshot.written_bytes is not None
    assert snapshot.written_bytes < full.size_bytes / 5
    second = first.restored(snapshot)
    sent = fired(second, 30)
    assert sent == fired(first, 30)
    assert len(sent) == 1_000
    assert {("key 3", 2, 23), ("key 5", 3, 4_305)} <= set(sent)
    assert fired(second, MAX_WATERMARK) == fired(first, MAX_WATERMARK)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_delta_of_rows_beside_rows_has_the_keys_that_changed_and_rows_that_came(on_disk, tmp_path, monkeypatch):
    """A thousand wait at the full run; those of which it was time since are not computed again behind a restore."""
    monkeypatch.setattr(waiting_rows, "_HELD_ROWS", 500)
    columns = {"n": count(), "total": col("value").sum(), "before": lag("value")}
    first = Subtask(over_node(columns), folder=tmp_path if on_disk else None)
    first.feed(frame_of([(f"key {number}", 1, number) for number in range(1_000)]))
    assert len(first.advance(1)) == 1_000
    first.feed(frame_of([(f"key {number}", 500, 2 * number) for number in range(1_000)]))
    first.feed(frame_of([("key 3", 9, 100), ("new", 9, 1)]))
    full = first.take()
    assert [(row["key"], row["n"], row["total"], row["before"]) for row in first.advance(9)] == [
        ("key 3", 2, 103, 3), ("new", 1, 1, None)]  # fmt: skip
    first.feed(frame_of([("key 5", 500, 7), ("key 3", 20, 1_000)]))
    snapshot = first.take()
    assert len(snapshot.operators["op"].runs) == 2
    assert snapshot.written_bytes is not None
    assert snapshot.written_bytes < full.size_bytes / 5
    second = first.restored(snapshot)
    sent = second.advance(MAX_WATERMARK)
    assert by_content(sent) == by_content(first.advance(MAX_WATERMARK))
    assert len(sent) == 1_002
    assert [(row["total"], row["before"]) for row in sent if row["key"] == "key 3"] == [(1_103, 100), (1_109, 1_000)]
    assert [row["before"] for row in sent if row["key"] == "key 5"] == [5, 10]
    second.operator.close()
    first.operator.close()


def fired(subtask: Subtask, watermark: int) -> list[tuple[Any, ...]]:
    """What is sent up to there, of windows that count and add."""
    return sorted((row["key"], row["n"], row["total"]) for row in subtask.advance(watermark))


def test_a_delta_of_sessions_has_those_that_came_changed_or_went_and_no_others():
    """Of a thousand that wait at the first freeze one goes on, one is joined to another, one is over, and one is new."""
    first = Subtask(window_node(SessionWindow(100), aggregates=[("n", count()), ("total", col("value").sum())]))
    first.feed(frame_of([(f"key {number}", 500, number) for number in range(1_000)]))
    first.feed(frame_of([("over", 1, 1), ("two", 250, 1), ("two", 400, 2)]))
    full = first.take()
    first.feed(frame_of([("key 3", 550, 20), ("two", 325, 4), ("new", 600, 8)]))
    assert fired(first, 150) == [("over", 1, 1)]
    snapshot = first.take()
    assert len(snapshot.operators["op"].runs) == 2
    assert snapshot.written_bytes is not None
    assert snapshot.written_bytes < full.size_bytes / 2  # a segment has about a kilobyte, however few rows
    second = first.restored(snapshot)
    assert fired(second, 499) == []
    sent = fired(second, MAX_WATERMARK)
    assert sent == fired(first, MAX_WATERMARK)
    assert len(sent) == 1_002
    assert {("key 3", 2, 23), ("two", 3, 7), ("new", 1, 8)} <= set(sent)


def test_rows_that_waited_at_a_freeze_are_not_written_again_when_they_become_sessions():
    """They do behind it, and the snapshot has had the sessions ever since."""
    subtask = Subtask(window_node(SessionWindow(100), aggregates=[("n", count()), ("total", col("value").sum())]))
    subtask.feed(frame_of([(f"key {number}", 500, number) for number in range(1_000)]))
    assert len(subtask.take().operators["op"].runs) == 1
    subtask.feed(frame_of([("ends", 0, 1)]))
    assert fired(subtask, 100) == [("ends", 1, 1)]  # what waited was merged before
    assert subtask.take().written_bytes == 0
    subtask.feed(frame_of([("key 3", 510, 1)]))
    snapshot = subtask.take()
    assert len(snapshot.operators["op"].runs[1][0].key_groups) == 1
    assert fired(subtask.restored(snapshot), MAX_WATERMARK) == fired(subtask, MAX_WATERMARK)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_delta_of_aggregates_of_rows_has_the_rows_that_came_or_went_and_no_others(on_disk, tmp_path, monkeypatch):
    """Of a key with ten thousand of them, too, whose least one is taken back before and behind a restore."""
    monkeypatch.setattr(sorted_runs, "_ON_DISK_ROWS", 1_000)
    node = aggregate_node({"n": count(), "least": col("i").min(), "kinds": col("i").n_unique()})
    first = Subtask(node, folder=tmp_path if on_disk else None)
    first.feed(frame_of_changes([a_change("many", number) for number in range(10_000)]))
    first.feed(frame_of_changes([a_change(f"key {number}", number) for number in range(1_000)]))
    full = first.take()
    first.feed(frame_of_changes([a_change("many", 0, gone=True), a_change("many", -5), a_change("many", 7)]))
    first.feed(frame_of_changes([a_change("key 3", 3, gone=True), a_change("new", 8)]))
    first.take()
    first.feed(frame_of_changes([a_change("many", -5, gone=True)]))
    snapshot = first.take()
    assert len(snapshot.operators["op"].runs) == 3
    assert snapshot.written_bytes is not None
    assert snapshot.written_bytes < full.size_bytes / 20
    second = first.restored(snapshot)
    largest = max((run.rows for run in second.operator._others.kept_rows._runs.runs), key=lambda rows: rows.height)
    assert (largest.at_random is not None) == on_disk
    gone = [a_change("many", number, gone=True) for number in (1, 7)]
    for more in (*gone, a_change("key 3", 4), a_change("new", 9)):
        sent = second.feed(frame_of_changes([more]))
        assert sent == first.feed(frame_of_changes([more]))
        assert sent
    assert sent[-1] == {"key": "new", "n": 2, "least": 8, "kinds": 2, RETRACTED: False, EVENT_TIME: 7}
