"""Rows in an order: of an input that ends by any columns, of one that does not by event time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PipelineError
from penstock.expressions import col, lit
from penstock.plan.building.changes import has_end
from penstock.plan.building.columns import free_name, project
from penstock.plan.building.keys import keyed
from penstock.plan.building.rows import Rows
from penstock.plan.building.schemas import check_orders
from penstock.plan.building.times import event_time_column
from penstock.plan.operations.sort import Sort

if TYPE_CHECKING:
    from penstock.functions.process_functions import OutputTag
    from penstock.plan.logical import Node
    from penstock.plan.order import Order

_VERB: Final = "sort"


def sort(rows: Rows, by: Sequence[Order], late: OutputTag[Any] | None = None, *, by_event_time: bool = False) -> Rows:
    """All rows in one order.

    Args:
        rows: facts.
        by: the order. Of an input without an end the first part is the event time, rising.
        late: the side output of rows that come when the watermark has passed them.
        by_event_time: the caller knows that the first part of the order is that of event time.

    Raises:
        PipelineError: values have no order, the input has no end and the order does not begin with the event time, or
            `late` is given where no row is late.
    """
    node = rows.node
    check_orders(_VERB, by, node.row_schema)
    ends = has_end(node)
    if not ends and not (by_event_time or begins_with_event_time(node, by)):
        raise PipelineError(
            f"{_VERB}: the input has no end, so no row is the last one; sort by its event time first, ascending, or "
            "take the first rows of the order: .key_by(all=lit(1)).top(n, by=...)"
        )
    if ends and late is not None:
        raise PipelineError(f"{_VERB}: late_to= is for inputs without an end; of one that ends, no row is late")
    names = node.row_schema.names
    key = free_name("all", names)
    together = project(rows, "with_columns", (*((name, col(name)) for name in names), (key, lit(True))))
    operation = Sort(tuple(by[not ends :]), not ends, late)
    found = keyed(together, (key,)).derive(operation, node.row_schema, node.row_type)
    if late is not None:
        found.node.sides = {late.name: node.row_schema}
    return found


def begins_with_event_time(node: Node, by: Sequence[Order]) -> bool:
    """Whether the first part of an order is the event time of the rows, ascending."""
    time = event_time_column(node)
    return time is not None and not by[0].descending and by[0].expr.node == col(time).node
