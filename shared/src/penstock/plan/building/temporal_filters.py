"""Rows that come and go as event time passes."""

from __future__ import annotations

from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, col, row_field
from penstock.expressions.nodes import Column
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.changes import current_rows, known_keys
from penstock.plan.building.columns import free_name, project
from penstock.plan.building.keys import keyed
from penstock.plan.building.rows import Rows
from penstock.plan.logical import Node, reached
from penstock.plan.operations.temporal_filter import Bound, TemporalFilter
from penstock.types import BOOLEAN, TIMESTAMP, Field, Schema

_VERB: Final = "temporal_filter"


def temporal_filter(rows: Rows, valid_from: str | Expr | None, valid_until: str | Expr | None) -> Rows:
    """The rows that are valid at the time that event time has reached, as changes.

    Args:
        rows: facts, updates or changes.
        valid_from: from when on a row is valid; null or None: from its arrival.
        valid_until: when it is no longer valid; null or None: it stays.

    Raises:
        PipelineError: neither bound is given, one is no time, or event time does not advance here.
    """
    both = {"valid_from": valid_from, "valid_until": valid_until}
    given = {name: col(bound) if isinstance(bound, str) else bound for name, bound in both.items() if bound is not None}
    if not given:
        raise PipelineError(f"{_VERB}: give valid_from=, valid_until= or both")
    rows = current_rows(rows, _VERB)
    node = rows.node
    if not event_time_advances(node):
        raise PipelineError(
            f"{_VERB}: rows come and go as event time advances, and these have none; give the source event_time=, or "
            "write .with_event_time(...) before"
        )
    rows.check_unread(_VERB, {str(expr): expr for expr in given.values()})
    columns = {name: col(name) for name in node.row_schema.names}
    if RETRACTED in columns:
        raise PipelineError(f"{_VERB}: there is a column {RETRACTED!r} already; rename it before")
    bounds: dict[str, Bound] = {}
    for name, expr in given.items():
        kind = row_field(expr, node.row_schema, _VERB, name).type
        if kind != TIMESTAMP:
            raise PipelineError(f"{_VERB}: {name} = {expr} is {kind}; a time of type {TIMESTAMP} is needed")
        column = expr.node.name if isinstance(expr.node, Column) else free_name(name, columns)
        bounds[name] = Bound(column, expr)
        columns[column] = expr
    timed = project(rows, "with_columns", tuple(columns.items()))
    key = known_keys(node) if node.updates else None
    by_key = keyed(timed, key or [bound.column for bound in bounds.values()])
    operation = TemporalFilter(bounds.get("valid_from"), bounds.get("valid_until"))
    schema = Schema((*node.row_schema, Field(RETRACTED, BOOLEAN)))
    return by_key.derive(operation, schema, event_time=False, mode="retract")


def event_time_advances(node: Node) -> bool:
    """Whether event time advances at this place: it does where it does in all inputs."""
    untimed = reached([node], lambda each: () if each.event_time else each.inputs)
    return all(each.event_time or each.inputs for each in untimed)
