"""Aggregates, best rows and deduplicated rows of windows whose results are computed as rows arrive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from penstock.errors import PipelineError
from penstock.expressions import Expr, col, columns_of, contains_aggregate, output_field, struct
from penstock.functions.process_functions import OutputTag
from penstock.functions.windows.definitions import (
    RETRACTED,
    FixedWindow,
    GlobalWindow,
    RowWindow,
    SessionWindow,
    window_bounds,
)
from penstock.functions.windows.triggers import at_watermark
from penstock.plan.building.aggregates import planned_aggregates, results_of_changes
from penstock.plan.building.grouping_sets import check_grouped
from penstock.plan.building.keys import keyed
from penstock.plan.building.row_windows import RowWindows, aggregate_fired_windows
from penstock.plan.building.rows import Rows
from penstock.plan.building.schemas import aggregates_schema, others_than, top_schema, window_rows_schema
from penstock.plan.logical import Node, reached
from penstock.plan.operations.assign_windows import AssignWindows
from penstock.plan.operations.event_time import AssignEventTime
from penstock.plan.operations.expand import Expand
from penstock.plan.operations.filter import Filter
from penstock.plan.operations.key_by import KeyBy
from penstock.plan.operations.project import Project
from penstock.plan.operations.union import Union
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.plan.operations.window_changes import WindowChanges
from penstock.plan.order import Order
from penstock.plan.traits import Mode
from penstock.types import BOOLEAN, DURATION, INTEGERS, Field, Schema

_KEEPING_TIME: Final = Filter | Project | Expand | KeyBy | Union


def check_windows(node: Node, window: RowWindow) -> None:
    """Rows by key can be cut into these windows.

    Raises:
        PipelineError: they have no event time, or the gap of sessions does not fit the columns.
    """
    if not node.event_time and not isinstance(window, GlobalWindow):
        raise PipelineError(
            "window: the stream has no event time; say event_time='column' at the source "
            "(a map or process keeps the event time of its input), or with_processing_time() before key_by"
        )
    if isinstance(window, SessionWindow) and window.gap is not None:
        kind = output_field(window.gap, node.schema, "session").type
        if contains_aggregate(window.gap) or (kind != DURATION and kind not in INTEGERS):
            raise PipelineError(
                f"session: the gap {window.gap} is {kind}; it must say of each row how long a session waits behind it: a "
                "duration, or whole microseconds"
            )
        check_grouped(node, "session", {"gap": window.gap})


def aggregate_windows(
    by_key: Rows, window: RowWindow, aggregates: Mapping[str, Expr], lateness_us: int, late: OutputTag[Any] | None
) -> Rows:
    """Aggregates per key and window: facts, or updates where late rows correct them.

    Raises:
        PipelineError: an aggregate does not fit the columns.
    """
    if isinstance(window, GlobalWindow):
        return aggregate_fired_windows(by_key, RowWindows(window, at_watermark()), dict(aggregates))
    node = by_key.node
    plan = planned_aggregates(node, aggregates)
    operation = WindowAggregate(window, tuple(aggregates.items()), lateness_us, late)
    schema = aggregates_schema(node.schema.select(node.keys), operation.window_fields, plan.output_fields)
    return _derived(by_key, operation, schema)


def top_of_windows(
    by_key: Rows, window: RowWindow, n: int, by: Expr | str, descending: bool, late: OutputTag[Any] | None
) -> Rows:
    """The best rows of every key and window, with their rank.

    Raises:
        PipelineError: such values have no order, a column is called as one of the results, or the window has no end.
    """
    order, node = col(by) if isinstance(by, str) else by, by_key.node
    check_grouped(node, "top", {"by": order})
    schema = window_rows_schema("top", top_schema(n, (Order(order, descending),), node), node.keys)
    packed = _packed(node, "top")
    best = packed.top_k_by(order, n) if descending else packed.bottom_k_by(order, n)
    return _rows_of_windows(by_key, window, "top", best, schema, late)


def deduplicate_windows(
    by_key: Rows, window: RowWindow, keep: Literal["first", "last"], late: OutputTag[Any] | None
) -> Rows:
    """One row per key and window.

    Raises:
        PipelineError: a column is called as one of the results, or the window has no end.
    """
    node = by_key.node
    schema = window_rows_schema("deduplicate", node.schema, node.keys)
    packed = _packed(node, "deduplicate")
    kept = packed.first() if keep == "first" else packed.last()
    return _rows_of_windows(by_key, window, "deduplicate", kept, schema, late)


def _packed(node: Node, verb: str) -> Expr:
    """All columns but the keys as one value."""
    others = [field.name for field in others_than(node.keys, node.schema)]
    if not others:
        raise PipelineError(f"{verb}: all columns are keys, so rows of a key do not differ; write .agg(rows=count())")
    return struct(*others)


def _rows_of_windows(
    by_key: Rows, window: RowWindow, verb: str, packed: Expr, schema: Schema, late: OutputTag[Any] | None
) -> Rows:
    if isinstance(window, GlobalWindow):
        raise PipelineError(
            f"{verb}: a global window has no end; write key_by(...).{verb}(...), whose rows are updates"
        )
    return _derived(by_key, WindowAggregate(window, ((verb, packed),), 0, late, unpacked=True), schema)


def _derived(by_key: Rows, operation: WindowAggregate, schema: Schema) -> Rows:
    mode: Mode = "upsert" if operation.allowed_lateness_us > 0 else "append"
    return by_key.derive(operation, schema, keys=by_key.node.keys, mode=mode, late=operation.late)


def check_windows_of_changes(node: Node, window: RowWindow) -> FixedWindow:
    """The windows into which changes by key can be cut.

    Raises:
        PipelineError: they are no such windows, or the changes have no time of their own.
    """
    if not isinstance(window, FixedWindow):
        raise PipelineError(
            "window: of changes there are tumbling, sliding and cumulative windows; a row that is taken back may "
            "part a session, and for all rows together write .agg(...) without a window"
        )
    if not _has_own_time(node):
        raise PipelineError(
            "window: a row that is taken back comes at the time of the change, so it would be looked for in another "
            'window than its own; say which column is its time: .with_event_time("at", max_out_of_orderness="1h") '
            "before key_by"
        )
    return window


def _has_own_time(node: Node) -> bool:
    """Whether the event time of a change is computed from the row, so that its retraction has the same event time."""
    made = reached([node], lambda each: each.inputs if isinstance(each.operation, _KEEPING_TIME) else ())
    return all(isinstance(each.operation, AssignEventTime | _KEEPING_TIME) for each in made)


def aggregate_windows_of_changes(by_key: Rows, window: FixedWindow, aggregates: Mapping[str, Expr]) -> Rows:
    """Aggregates per key and window of the rows that are current when the window ends.

    Raises:
        PipelineError: a result depends on the order of rows, or a column that is read is called `window_start` or
            `window_end`.
    """
    results = results_of_changes(by_key, aggregates)
    node, bounds = by_key.node, window_bounds(retracts=False)
    read = {*node.keys}.union(*(columns_of(expr) for expr in aggregates.values()))
    if taken := [name for name in (field.name for field in bounds) if name in read]:
        raise PipelineError(f"window: {', '.join(taken)} says which window a row is in; rename that of yours before")
    fields = [field for field in node.row_schema if field.name in read]
    changes = by_key.of(node.inputs[0])  # by key and window they go their way at once
    windows = changes.derive(
        AssignWindows(window), Schema((*fields, *bounds, Field(RETRACTED, BOOLEAN))), mode="retract"
    )
    keys = (*node.keys, *(field.name for field in bounds))
    by_window = keyed(windows, keys)
    schema = Schema((*by_window.schema.select(keys), *results))
    return by_window.derive(WindowChanges(window, tuple(aggregates.items())), schema, keys=keys)


def assign_windows(rows: Rows, window: FixedWindow) -> Rows:
    """Every row once for each window that it is in, with `window_start` and `window_end`.

    Raises:
        PipelineError: the rows have no event time of their own, or a column is called as a bound.
    """
    check_windows(rows.node, window)
    if rows.node.updates:
        check_windows_of_changes(rows.node, window)
    bounds = window_bounds(retracts=False)
    for bound in bounds:
        if bound.name in rows.schema:
            raise PipelineError(f"window: there is a column {bound.name!r} already; rename it before")
    kept = [field for field in rows.schema if field.name != RETRACTED or rows.node.mode != "retract"]
    retracted = [Field(RETRACTED, BOOLEAN)] if rows.node.mode == "retract" else []
    return rows.derive(AssignWindows(window), Schema((*kept, *bounds, *retracted)), mode=rows.node.mode)
