"""The best rows of a key and window, and its first and last: what sorting all rows of the window comes to."""

from __future__ import annotations

import polars as pl
from brute_force import Groups, SessionModel, WindowModel
from hypothesis import given, settings
from hypothesis import strategies as st
from test_windows import SHAPES, TIMES, windows_of
from window_cases import GROUPS, LATE, SCHEMA, comparable, frame_of, group_of, histories, late_rows, run

from penstock.core.batches import EVENT_TIME
from penstock.expressions import col, struct
from penstock.functions.windows.definitions import SessionWindow, TumblingWindow
from penstock.plan.building.schemas import top_schema, window_rows_schema
from penstock.plan.logical import Node
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.plan.order import Order
from penstock.state.segments import decode_segments
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import row_class

KIND = col("value") % 7


def rows_node(window, verb, packed, out):
    source = input_node(SCHEMA, row_class(SCHEMA), ("key",), event_time=True)
    operation = WindowAggregate(window, ((verb, packed),), 0, LATE, unpacked=True)
    return Node("n1", operation, (source,), out, row_class(out), True, keys=("key",))


def top_node(window, n, descending):
    packed = struct("value")
    packed = packed.top_k_by(KIND, n) if descending else packed.bottom_k_by(KIND, n)
    source = input_node(SCHEMA, row_class(SCHEMA), ("key",), event_time=True)
    best = top_schema(n, (Order(KIND, descending),), source)
    return rows_node(window, "top", packed, window_rows_schema("top", best, ("key",)))


def deduplicate_node(window, keep):
    packed = struct("value")
    packed = packed.first() if keep == "first" else packed.last()
    return rows_node(window, "deduplicate", packed, window_rows_schema("deduplicate", SCHEMA, ("key",)))


class Timed:
    """A model whose windows hold the times of their rows beside the values."""

    def row(self, key, time, value):
        super().row(key, time, (time, value))


class TimedWindows(Timed, WindowModel):
    """Of fixed windows."""


class TimedSessions(Timed, SessionModel):
    """Of sessions."""


def model_of(window):
    if isinstance(window, SessionWindow):
        return TimedSessions(lambda _: window.gap_us, 0, Groups(group_of))
    return TimedWindows(lambda time: windows_of(window, time), 0, Groups(group_of))


def sent(harness, window):
    """The results by key and window, each sent at once and in order of rank."""
    found = {}
    before_end = 0 if isinstance(window, SessionWindow) else 1
    for frame in harness.collected.frames:
        bounds = [frame[name].to_physical().to_list() for name in ("window_start", "window_end")]
        assert frame[EVENT_TIME].to_list() == [end - before_end for end in bounds[1]]
        together = set()
        for *of, row in zip(frame["key"].to_list(), *bounds, frame.to_dicts(), strict=True):
            assert tuple(of) not in found or tuple(of) in together
            together.add(tuple(of))
            found.setdefault(tuple(of), []).append((row.get("rank"), row["value"]))
    return found


def check_late(harness, model):
    assert comparable(late_rows(harness)) == comparable([(key, time, value) for key, time, (_, value) in model.late])


@settings(max_examples=60, deadline=None)
@given(
    window=SHAPES | st.just(SessionWindow(9)), steps=histories(TIMES), parallelism=st.integers(1, 4),
    n=st.integers(1, 4), descending=st.booleans(),
)  # fmt: skip
def test_every_window_gives_its_best_rows_once(window, steps, parallelism, n, descending):
    """Of equal rows those with the smallest event time, then those that came first; late rows are those of windows."""
    model = model_of(window)
    harness = run(top_node(window, n, descending), steps, model, parallelism)
    expected = {}
    for key, start, end, rows in model.emitted:
        sign = -1 if descending else 1
        best = sorted(rows, key=lambda row: (sign * (row[1] % 7), row[0]))[:n]
        expected[key, start, end] = [(rank, value) for rank, (_, value) in enumerate(best, 1)]
    found = sent(harness, window)
    if isinstance(window, SessionWindow):  # in which order rows of joined sessions came is not in the model
        found, expected = (
            {of: [value % 7 for _, value in rows] for of, rows in each.items()} for each in (found, expected)
        )
    assert found == expected
    check_late(harness, model)


@settings(max_examples=60, deadline=None)
@given(
    window=SHAPES | st.just(SessionWindow(9)), steps=histories(TIMES), parallelism=st.integers(1, 4),
    keep=st.sampled_from(["first", "last"]),
)  # fmt: skip
def test_every_window_gives_one_row_by_event_time(window, steps, parallelism, keep):
    """Of rows with equal times any."""
    model = model_of(window)
    harness = run(deduplicate_node(window, keep), steps, model, parallelism)
    found = sent(harness, window)
    assert len(found) == len(model.emitted)
    for key, start, end, rows in model.emitted:
        time = (min if keep == "first" else max)(time for time, _ in rows)
        ((_, value),) = found[key, start, end]
        assert value in {value for at, value in rows if at == time}
    check_late(harness, model)


def test_only_the_best_rows_are_kept():
    """A window of a thousand rows keeps three."""
    harness = OperatorHarness(top_node(TumblingWindow(100), 3, True), max_parallelism=GROUPS)
    harness.frame(frame_of([("a", 1, value) for value in range(1000)]))
    ((_, _, rows),) = decode_segments(harness.snapshot().keyed, "n1", "window", SCHEMA.select(("key",)))
    assert [len(kept) for kept in rows["__p0"].to_list()] == [3]


def test_columns_come_in_the_declared_order():
    """Keys, window, rank, others."""
    node = top_node(TumblingWindow(10), 2, True)
    assert node.schema.names == ("key", "window_start", "window_end", "rank", "value")
    harness = OperatorHarness(node)
    harness.frame(frame_of([("a", 1, 3), ("a", 2, 5), (None, 3, 4)]))
    harness.watermark(9)
    frame = pl.concat(harness.collected.frames)
    assert frame.columns == [*node.schema.names, EVENT_TIME]
    assert {name: frame.schema[name] for name in node.schema.names} == node.schema.polars()
    assert frame.filter(pl.col("key") == "a").select("rank", "value", EVENT_TIME).rows() == [(1, 5, 9), (2, 3, 9)]
