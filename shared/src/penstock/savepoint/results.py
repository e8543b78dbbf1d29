"""What the partial results in a savepoint come to: needs the pipeline, which alone knows its aggregates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import polars as pl

from penstock.errors import UsageError, nearest
from penstock.plan.logical import Node
from penstock.plan.operations.running_aggregate import RunningAggregate
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.savepoint import tables

if TYPE_CHECKING:
    from penstock.api.pipeline import DeclaredPipeline


def result_maker(uid: str, pipeline: DeclaredPipeline) -> Callable[[tables.Segment], pl.DataFrame]:
    """The function from a segment of windows or aggregates to the results so far.

    Raises:
        UsageError: the pipeline has no aggregates of that uid.
        IncompatibleStateError: when it is called: its aggregates are not those of the savepoint.
    """
    from penstock.task.operators.keyed_table import WRITTEN
    from penstock.task.operators.partials import Partials

    partials = Partials(_node(uid, pipeline))

    def make(segment: tables.Segment) -> pl.DataFrame:
        header, rows = segment
        if "partials" not in header:  # an operator that held nothing
            return rows
        table = partials.restored(uid, header["partials"], tables.aggregate_table(segment))
        leading = [name for name in table.columns if name not in (*partials.names, "fired", WRITTEN)]
        return partials.results(table, leading, [*leading, *(field.name for field in partials.plan.output_fields)])

    return make


def _node(uid: str, pipeline: DeclaredPipeline) -> Node:
    found = {
        node.operator_id: node
        for node in pipeline.plan
        if isinstance(node.operation, WindowAggregate | RunningAggregate)
    }
    if uid not in found:
        raise UsageError(f"{uid}: the pipeline has no aggregates of that uid; {nearest(uid, found)}")
    return found[uid]
