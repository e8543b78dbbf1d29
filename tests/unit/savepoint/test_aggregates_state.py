"""Windows, sessions, running aggregates and reduced rows as tables, there and back."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import UID, export, restored

from penstock import Pipeline, col, count, savepoint, session, sliding, tumbling
from penstock.cli.main import main
from penstock.connectors import collecting, iterables
from penstock.core.times import MAX_WATERMARK, to_micros
from penstock.errors import IncompatibleStateError, UsageError
from penstock.testing.harness import OperatorHarness

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Event:
    key: str | None
    value: int
    at: datetime


def pipeline_of(verb: str) -> Pipeline:
    """A pipeline of that verb."""
    pipeline = Pipeline("p")
    keyed = pipeline.read(iterables.Source([], schema=Event, event_time="at")).key_by("key")
    aggregates = {"n": count(), "total": col("value").sum(), "mean": col("value").mean()}
    match verb:
        case "tumbling":
            stream = keyed.window(tumbling("10s", offset="3s")).agg(**aggregates)
        case "sliding":
            stream = keyed.window(sliding("15s", every="10s")).agg(**aggregates)
        case "session":
            stream = keyed.window(session("5s")).agg(**aggregates)
        case "agg":
            stream = keyed.agg(**aggregates)
        case _:
            stream = keyed.reduce(lambda old, new: Event(old.key, old.value + new.value, new.at))
    stream.uid(UID).write(collecting.Sink())
    return pipeline


PIPELINES = {verb: pipeline_of(verb) for verb in ("tumbling", "sliding", "session", "agg", "reduce")}
NODES = {verb: node for verb, pipeline in PIPELINES.items() for node in pipeline.plan if node.operator_id == UID}
EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-9, 9), st.integers(0, 60)), min_size=1, max_size=40
)


def filled(verb: str, events, parallelism: int) -> OperatorHarness:
    harness = OperatorHarness(NODES[verb], parallelism=parallelism, max_parallelism=16)
    harness._event_time_column = "at"
    harness.rows(*(Event(key, value, START + timedelta(seconds=second)) for key, value, second in events))
    return harness


def finished(harness: OperatorHarness) -> list[tuple]:
    """What comes out at the end of event time, in an order of its own."""
    harness.watermark(MAX_WATERMARK)
    return sorted((tuple(row.values()) for row in harness.output()), key=repr)


def brute(verb: str, events) -> dict:
    """Count and sum per key and pane, session or nothing."""
    found: dict = {}
    for key, value, second in sorted(events, key=lambda event: event[2]):
        if verb == "session":
            open_ones = [bounds for bounds in found if bounds[0] == key and second <= bounds[2]]
            n, total, first = 0, 0, second
            if open_ones:
                n, total = found.pop(open_ones[0])
                first = open_ones[0][1]
            found[key, first, second + 5] = (n + 1, total + value)
            continue
        length, offset = (10, 3) if verb == "tumbling" else (5, 0)
        start = second - (second - offset) % length
        n, total = found.get((key, start, start + length), (0, 0))
        found[key, start, start + length] = (n + 1, total + value)
    return found


@settings(max_examples=15, deadline=None)
@given(events=EVENTS, verb=st.sampled_from(["tumbling", "sliding", "session"]), parallelism=st.integers(1, 3))
def test_windows_are_tables_of_partial_results(events, verb, parallelism):
    """Bounds, count and sum of each key's windows are those of a brute-force model."""
    bounds = ["pane_start", "pane_end"] if verb == "sliding" else ["window_start", "window_end"]
    with tempfile.TemporaryDirectory() as folder:
        table = savepoint.read(export(filled(verb, events, parallelism), NODES[verb], Path(folder) / "one")).table(UID)
        assert table.columns[:3] == ["key", *bounds]
        seconds = [(pl.col(name).cast(pl.Int64) - to_micros(START)) // 1_000_000 for name in bounds]
        rows = table.select("key", *seconds, "__p0", "__p1").rows()
    assert {row[:3]: row[3:] for row in rows} == brute(verb, events)


@settings(max_examples=15, deadline=None)
@given(events=EVENTS, verb=st.sampled_from(sorted(NODES)), before=st.integers(1, 3), after=st.integers(1, 3))
def test_a_table_replaced_by_itself_continues_to_the_same_results(events, verb, before, after):
    """Half of the rows before the savepoint, half of them after a copy of it."""
    half = len(events) // 2 + 1
    events = sorted(events, key=lambda event: event[2])
    whole = filled(verb, events, 1)
    with tempfile.TemporaryDirectory() as folder:
        sp = savepoint.read(export(filled(verb, events[:half], before), NODES[verb], Path(folder) / "one"))
        state = "reduced" if verb == "reduce" else None
        copied = sp.edit().replace(UID, state, sp.table(UID, state)).write(Path(folder) / "two")
        assert sorted(copied.table(UID).rows(), key=repr) == sorted(sp.table(UID).rows(), key=repr)
        successor = restored(Path(folder) / "two", NODES[verb], after)
        successor._event_time_column = "at"
        rest = [Event(key, value, START + timedelta(seconds=second)) for key, value, second in events[half:]]
        if rest:
            successor.rows(*rest)
        if verb in ("agg", "reduce"):
            tables = [
                savepoint.read(export(harness, NODES[verb], Path(folder) / f"end-{n}")).table(UID)
                for n, harness in enumerate((whole, successor))
            ]
            assert sorted(tables[0].rows(), key=repr) == sorted(tables[1].rows(), key=repr)
        else:
            assert finished(successor) == finished(whole)


def test_results_have_the_names_of_the_pipeline(tmp_path):
    """Means are computed from the sums and counts that a savepoint holds; other aggregates are refused."""
    for verb in ("tumbling", "agg"):
        harness = filled(verb, [("a", 1, 5), ("a", 2, 6)], 2)
        sp = savepoint.read(export(harness, NODES[verb], tmp_path / verb))
        (row,) = sp.results(UID, PIPELINES[verb]).to_dicts()
        assert (row["key"], row["n"], row["total"], row["mean"]) == ("a", 2, 3, 1.5)
        assert sp.results(UID, PIPELINES[verb], key_groups=(0, 16)).height == 1
    with pytest.raises(UsageError, match="the pipeline has no aggregates of that uid"):
        sp.results(UID, PIPELINES["reduce"])
    other = Pipeline("other")
    keyed = other.read(iterables.Source([], schema=Event, event_time="at")).key_by("key")
    keyed.agg(top=col("at").max()).uid(UID).write(collecting.Sink())
    with pytest.raises(IncompatibleStateError, match="the snapshot holds partial aggregates"):
        sp.results(UID, other)


@pytest.mark.parametrize("verb", ["tumbling", "sliding"])
def test_an_incremental_checkpoint_of_windows_is_no_table(tmp_path, capsys, verb):
    """Its parts are put together by a job alone; whoever asks for them is told what to do."""
    harness = filled(verb, [("a", 1, 5), ("a", 2, 6)], 2)
    sp = savepoint.read(export(harness, NODES[verb], tmp_path / "one", incremental=True))
    for ask in (sp.table, sp.keys, lambda uid: list(sp.tables(uid)), lambda uid: sp.results(uid, PIPELINES[verb])):
        with pytest.raises(UsageError, match=r"'tested': this checkpoint is incremental.* take a savepoint"):
            ask(UID)
    assert main(["state", str(tmp_path / "one"), "--uid", UID]) != 0
    assert "this checkpoint is incremental" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("verb", ["session", "agg", "reduce"])
def test_an_incremental_checkpoint_of_keys_is_a_table(tmp_path, verb):
    """Its parts say which rows they replace."""
    harness = filled(verb, [("a", 1, 5), ("a", 2, 6), ("b", 3, 7)], 2)
    tables = [
        savepoint.read(export(harness, NODES[verb], tmp_path / str(incremental), incremental=incremental)).table(UID)
        for incremental in (False, True)
    ]
    assert tables[0].height == 2
    assert tables[0].equals(tables[1])


def test_an_edited_window_gives_the_edited_result(tmp_path):
    """A count that is raised, a window that never had a row, one that is taken away."""
    harness = filled("tumbling", [("a", 1, 5), ("b", 2, 25)], 2)
    sp = savepoint.read(export(harness, NODES["tumbling"], tmp_path / "one"))
    table = sp.table(UID)
    raised = table.filter(pl.col("key") == "a").with_columns(__p0=pl.col("__p0") + 10)
    new = raised.with_columns(key=pl.lit("new"))
    sp.edit().replace(UID, None, pl.concat([raised, new])).write(tmp_path / "two")
    results = finished(restored(tmp_path / "two", NODES["tumbling"], 3))
    assert [(row[0], row[3], row[4]) for row in results] == [("a", 11, 1), ("new", 11, 1)]


@pytest.mark.parametrize(
    ("verb", "change", "message"),
    [
        ("tumbling", {"window_start": pl.col("window_start") + timedelta(seconds=1)}, "the windows have no such pane"),
        ("tumbling", {"window_end": pl.lit(None, pl.Datetime("us", "UTC"))}, "column 'window_end' has a null"),
        ("tumbling", {"key": pl.lit("a")}, "has the same entry twice"),
        ("session", {"window_end": pl.col("window_start")}, "lasts at least its gap of 5s"),
        ("session", {"key": pl.lit("a")}, "overlap or touch"),
        ("session", {"fired": pl.lit(None, pl.Boolean)}, "column 'fired' has a null"),
        ("agg", {"__p0": pl.lit(1.5)}, "column '__p0' is Float64, need Int64"),
        ("agg", {"key": pl.lit("a")}, "has the same entry twice"),
    ],
)
def test_windows_that_cannot_be_are_refused(tmp_path, verb, change, message):
    """Before anything is written."""
    events = [("a", 1, 5), ("b", 2, 7 if verb == "session" else 5)]
    sp = savepoint.read(export(filled(verb, events, 1), NODES[verb], tmp_path / "one"))
    with pytest.raises(UsageError, match=message):
        sp.edit().replace(UID, None, sp.table(UID).with_columns(**change))


def test_an_operator_that_held_nothing_is_an_empty_table(tmp_path):
    """Its key columns are known, and reduced rows; windows cannot be filled, because their columns are not known."""
    for verb, node in NODES.items():
        harness = OperatorHarness(node, parallelism=2, max_parallelism=16)
        sp = savepoint.read(export(harness, node, tmp_path / verb))
        assert sp.table(UID).height == sp.keys(UID).height == 0
        assert list(sp.tables(UID)) == []
        assert sp.table(UID).columns[0] == "key"
    sp = savepoint.read(tmp_path / "tumbling")
    with pytest.raises(UsageError, match="it held nothing"):
        sp.edit().replace(UID, None, sp.table(UID))
    sp = savepoint.read(tmp_path / "reduce")
    at = pl.Series([START], dtype=pl.Datetime("us", "UTC"))
    row = pl.DataFrame({"key": ["a"], "value": [4], "at": at}).select(
        "key", pl.struct("key", "value", "at").alias("value")
    )
    sp.edit().replace(UID, "reduced", row).write(tmp_path / "filled")
    successor = restored(tmp_path / "filled", NODES["reduce"], 2)
    successor._event_time_column = "at"
    successor.rows(Event("a", 3, START))
    assert [row["value"] for row in successor.output()] == [7]
