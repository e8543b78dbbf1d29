"""Windows of counts and with triggers, whose states have names and whose timers are those of a process."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from stored import UID, export, restored

from penstock import Pipeline, col, every, savepoint, tumbling
from penstock.connectors import collecting, iterables
from penstock.core.times import MAX_WATERMARK
from penstock.errors import UsageError
from penstock.testing.harness import OperatorHarness

START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["memory", "partials", "rows", "timers", "windows"]


@dataclass
class Event:
    key: str | None
    value: int
    at: datetime


def node_of(verb: str) -> Any:
    pipeline = Pipeline("p")
    keyed = pipeline.read(iterables.Source([], schema=Event, event_time="at")).key_by("key")
    match verb:
        case "count":
            stream: Any = keyed.count_window(5).agg(total=col("value").sum())
        case "trigger":
            stream = keyed.window(tumbling("1m")).trigger(every("10s", time="event")).agg(total=col("value").sum())
        case _:
            stream = keyed.deduplicate("last")
    stream.uid(UID).write(collecting.Sink())
    return next(node for node in pipeline.plan if node.operator_id == UID)


def filled(node: Any) -> OperatorHarness:
    harness = OperatorHarness(node, parallelism=2, max_parallelism=16)
    harness._event_time_column = "at"
    harness.rows(*(Event(key, 2, START + timedelta(seconds=second)) for second in range(3) for key in ("a", "b", None)))
    return harness


@pytest.mark.parametrize("verb", ["count", "trigger"])
def test_windows_with_states_by_name(verb: str) -> None:
    """Are a row per key with their states, whole and by key group; none of them is a table without a name."""
    node = node_of(verb)
    with tempfile.TemporaryDirectory() as folder:
        found = savepoint.read(export(filled(node), node, Path(folder)))
        table = found.table(UID)
        assert table.columns == ["key", *NAMES]
        assert sorted(table["key"].to_list(), key=str) == [None, "a", "b"]
        assert [len(windows) for windows in table["windows"]] == [1, 1, 1]
        assert sum(part.height for _, part in found.tables(UID)) == 3
        with pytest.raises(UsageError, match=f"a window has states by name: {', '.join(NAMES)}; say which one"):
            found.edit().replace(UID, None, table)


def test_timers_of_triggers() -> None:
    """Those of event time, there and back."""
    node = node_of("trigger")
    with tempfile.TemporaryDirectory() as folder:
        found = savepoint.read(export(filled(node), node, Path(folder) / "one"))
        timers = found.timers(UID)
        assert {row["key"] for row in timers.iter_rows(named=True)} == {"a", "b", None}
        assert set(timers["domain"]) == {"event"}
        assert START + timedelta(seconds=10) in set(timers["timestamp"])
        edited = found.edit().replace_timers(UID, timers).replace(UID, "windows", found.table(UID, "windows"))
        written = edited.write(Path(folder) / "two")
        assert written.timers(UID).equals(timers)
        again = restored(Path(folder) / "two", node, 1)
        again.watermark(MAX_WATERMARK)
        assert {(row["key"], row["total"]) for row in again.output()} == {("a", 6), ("b", 6), (None, 6)}


def test_windows_that_held_nothing() -> None:
    """Have the same columns."""
    node = node_of("count")
    with tempfile.TemporaryDirectory() as folder:
        empty = OperatorHarness(node, parallelism=2, max_parallelism=16)
        found = savepoint.read(export(empty, node, Path(folder)))
        assert found.table(UID).columns == ["key", *NAMES]
        assert found.timers(UID).height == 0


def test_what_cannot_be_replaced() -> None:
    """By its verb, where it has no states by name."""
    node = node_of("deduplicate")
    with tempfile.TemporaryDirectory() as folder:
        found = savepoint.read(export(filled(node), node, Path(folder)))
        with pytest.raises(UsageError, match=f"operator '{UID}': the state of a deduplicate cannot be replaced"):
            found.edit().replace(UID, None, found.table(UID))
        with pytest.raises(UsageError, match="a deduplicate has no timers"):
            found.timers(UID)
