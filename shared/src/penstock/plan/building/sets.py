"""`intersect` and `minus`: the rows of two streams are keys of one.

Which of these hold, and how often, is said by where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from penstock.errors import PipelineError
from penstock.expressions import Expr, col, count, lit, when
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.changes import current_rows
from penstock.plan.building.columns import check_alike, free_name, union
from penstock.plan.building.keys import check_keys, keyed
from penstock.plan.building.rows import Rows
from penstock.plan.operations.aggregate_changes import AggregateChanges
from penstock.plan.operations.project import Project
from penstock.types import BOOLEAN, Field, Schema

if TYPE_CHECKING:
    from penstock.core.times import Duration

Verb = Literal["intersect", "minus"]


def set_operation(verb: Verb, left: Rows, right: Rows, ttl: Duration | None, *, all_copies: bool = False) -> Rows:
    """The distinct rows of the left stream that are in the right one too, or that are not.

    Args:
        verb: which of the two.
        left: facts, updates or changes.
        right: likewise, with the same columns.
        ttl: how long the counts of a row are kept after its last change.
        all_copies: whether equal rows are counted: as many of them as both streams have, or as the left one has more.

    Raises:
        PipelineError: the columns differ, or one cannot be a key.
    """
    both = current_rows(left, verb), current_rows(right, verb)
    check_alike(verb, both)
    schema = both[0].node.row_schema
    check_keys(schema, schema.names, verb)
    if RETRACTED in schema:
        raise PipelineError(f"{verb}: there is a column {RETRACTED!r} already; rename it before")
    side, event_time = free_name("left", schema), all(rows.node.event_time for rows in both)
    sides = [
        _of_side(rows, schema.names, side, is_left=is_left, event_time=event_time)
        for rows, is_left in zip(both, (True, False), strict=True)
    ]
    by_row = keyed(union(sides), schema.names)
    ttl_us = left.ttl_us(ttl, verb)
    if all_copies:
        operation = AggregateChanges((), verb, copies=_copies(verb, col(side)), ttl_us=ttl_us)
    else:
        operation = AggregateChanges((), verb, _holds(verb, col(side)), ttl_us)
    return by_row.derive(operation, Schema((*schema, Field(RETRACTED, BOOLEAN))), keys=schema.names, mode="retract")


def _of_side(rows: Rows, names: Sequence[str], side: str, *, is_left: bool, event_time: bool) -> Rows:
    """The changes of a stream, whose facts are rows that are added, and whether they are those of the left one."""
    retracted = col(RETRACTED) if rows.node.updates else lit(False)
    columns = (*((name, col(name)) for name in names), (side, lit(is_left)), (RETRACTED, retracted))
    schema = Schema((*rows.node.row_schema.select(names), Field(side, BOOLEAN), Field(RETRACTED, BOOLEAN)))
    return rows.derive(Project("select", columns), schema, event_time=event_time, mode="retract")


def _holds(verb: Verb, is_left: Expr) -> Expr:
    others = count(filter=~is_left)
    return (count(filter=is_left) > 0) & (others > 0 if verb == "intersect" else others == 0)


def _copies(verb: Verb, is_left: Expr) -> Expr:
    own, others = count(filter=is_left), count(filter=~is_left)
    if verb == "intersect":
        return when(own < others).then(own).otherwise(others)
    return when(own > others).then(own - others).otherwise(0)
