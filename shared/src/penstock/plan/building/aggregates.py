"""What a key comes to: running aggregates, `reduce`, `deduplicate`, `top`, and columns over the rows of a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.times import Duration, duration_us
from penstock.errors import PipelineError
from penstock.expressions import Expr, accumulators_without_retract, decided_by_arrival
from penstock.functions.windows.definitions import RANK
from penstock.plan.building.changes import aggregated_changes
from penstock.plan.building.grouping_sets import check_grouped
from penstock.plan.building.rows import Rows
from penstock.plan.building.schemas import aggregates_schema, over_schema, top_schema
from penstock.plan.building.times import check_in_event_time
from penstock.plan.logical import Node
from penstock.plan.operation import Named
from penstock.plan.operations.aggregate_changes import AggregateChanges
from penstock.plan.operations.deduplicate import Deduplicate
from penstock.plan.operations.over import Over
from penstock.plan.operations.running_aggregate import RunningAggregate
from penstock.plan.operations.running_reduce import RunningReduce
from penstock.plan.operations.top import Top
from penstock.plan.order import Order
from penstock.types import Field

if TYPE_CHECKING:
    from penstock.expressions import AggregatePlan


def planned_aggregates(node: Node, aggregates: Mapping[str, Expr]) -> AggregatePlan:
    """How aggregates of the rows of a key are computed.

    Raises:
        PipelineError: one does not fit the columns, or reads a grouping column of grouping sets.
    """
    from penstock.expressions.aggregates import AggregatePlan  # loads Polars

    check_grouped(node, "agg", aggregates)
    return AggregatePlan.build(tuple(aggregates.items()), node.schema, event_time=node.event_time)


def aggregate(keyed: Rows, aggregates: Mapping[str, Expr], ttl: Duration | None) -> Rows:
    """The running result per key: updates of facts, changes of changes.

    Raises:
        PipelineError: an aggregate does not fit the columns, or cannot be made of changes.
    """
    if keyed.node.mode == "retract":
        operation = AggregateChanges(tuple(aggregates.items()), ttl_us=keyed.ttl_us(ttl, "agg"))
        return aggregated_changes(keyed, operation, results_of_changes(keyed, aggregates))
    node = keyed.node
    plan = planned_aggregates(node, aggregates)
    schema = aggregates_schema(node.schema.select(node.keys), (), plan.output_fields)
    running = RunningAggregate(tuple(aggregates.items()), keyed.ttl_us(ttl, "agg"))
    return keyed.derive(running, schema, keys=node.keys, mode="upsert")


def results_of_changes(keyed: Rows, aggregates: Mapping[str, Expr]) -> tuple[Field, ...]:
    """The columns that these aggregates of changes make.

    Raises:
        PipelineError: one cannot be made of changes.
    """
    for name, expr in aggregates.items():
        if without := accumulators_without_retract(expr):
            raise PipelineError(
                f"agg: {name} = {expr} is made of rows that may be retracted, and {', '.join(without)} does not say how "
                "one is taken away; give the class a method `def retract(self, accumulator, value)`, which returns the "
                "accumulator without a row that was added before"
            )
        if reasons := decided_by_arrival(expr, of_changes=True):
            raise PipelineError(
                f"agg: {name} = {expr} depends on {', '.join(reasons)}, and rows that are taken back have no place "
                'among them; take min, max, mode("least") or collect_distinct'
            )
    keyed.check_unread("agg", aggregates)
    return planned_aggregates(keyed.node, aggregates).output_fields


def reduce(keyed: Rows, function: Callable[[Any, Any], Any], ttl: Duration | None) -> Rows:
    """A running fold per key."""
    node = keyed.node
    operation = RunningReduce(function, keyed.ttl_us(ttl, "reduce"))
    return keyed.derive(operation, node.schema, node.row_type, keys=node.keys, mode="upsert")


def deduplicate(keyed: Rows, keep: Literal["first", "last"], ttl: Duration | None) -> Rows:
    """One row per key: the first one as a fact, or each newer one as an update."""
    node, operation = keyed.node, Deduplicate(keep, keyed.ttl_us(ttl, "deduplicate"))
    if keep == "first":
        return keyed.derive(operation, node.schema, node.row_type)
    return keyed.derive(operation, node.schema, node.row_type, keys=node.keys, mode="upsert")


def top(
    keyed: Rows, n: int | None, by: Sequence[Order], ttl: Duration | None, *, offset: int = 0, rank: str | None = RANK
) -> Rows:
    """The first rows of every key in an order, with their rank: updates of facts, changes of changes.

    Without a rank, or without a limit, they are changes in any case.

    Args:
        keyed: facts or changes by key.
        n: how many rows; None: all.
        by: the order.
        ttl: how long ranks are kept, or rows where all of them are.
        offset: how many of the first rows are left out; the ranks of others count them.
        rank: the name of the column of ranks; None: there is none, and the columns are those of the input.

    Raises:
        PipelineError: such values have no order, numbers are less than they may be, or a column is called as a new one.
    """
    node = keyed.node
    for order in by:
        keyed.check_unread("top", {str(order.expr): order.expr})
        check_grouped(node, "top", {"by": order.expr})
    operation = Top(n, tuple(by), keyed.ttl_us(ttl, "top"), offset, rank)
    changes = operation.sends_changes(node)
    schema = top_schema(n, by, node, offset=offset, rank=rank, changes=changes)
    return keyed.derive(operation, schema, keys=node.keys, mode="retract" if changes else "upsert")


def over_frame(node: Node, within: Duration | None, rows: int | None) -> Over:
    """Which rows of a key an aggregate over rows sees, up to each row: all, those within a time, or so many.

    Raises:
        PipelineError: the rows have no event time, or both are given.
    """
    check_in_event_time(node, "over")
    if within is not None and rows is not None:
        raise PipelineError("over: give within= or rows=, not both")
    if rows is not None and rows < 1:
        raise PipelineError(f"over: rows must be 1 or more, this one included; got {rows}")
    return Over((), None if within is None else duration_us(within, "over: within"), rows)


def over(keyed: Rows, frame: Over, columns: Named) -> Rows:
    """Every row with columns that are computed from the rows of its frame.

    Raises:
        PipelineError: an expression does not fit the columns, or there is none.
    """
    node = keyed.node
    check_grouped(node, "over", columns)
    return keyed.derive(replace(frame, columns=columns), over_schema(columns, node.schema), late=frame.late)
