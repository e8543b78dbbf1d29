"""Patterns in the rows of keys."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.errors import PipelineError
from penstock.plan.building.times import check_in_event_time
from penstock.types import TIMESTAMP, Field, Schema

if TYPE_CHECKING:
    from penstock.plan.building.rows import Rows
    from penstock.plan.operations.match_rows import MatchRows

_VERB: Final = "match"


def match_rows(keyed: Rows, operation: MatchRows) -> Rows:
    """What is measured of every match, as facts.

    Raises:
        PipelineError: the rows have no event time or are no facts, the pattern cannot be searched for, or an expression
            does not fit the columns and the names of the pattern.
    """
    node = keyed.node
    check_in_event_time(node, _VERB)
    schema = Schema(operation.plan(node.schema).fields)
    if operation.regular is not None and operation.regular.rowtime is not None:
        schema = Schema((*schema, Field(operation.regular.rowtime, TIMESTAMP)))
    found = keyed.derive(operation, schema)
    sides = {} if operation.late is None else {operation.late.name: node.schema}
    if operation.timed_out is not None:
        if operation.within_us is None:
            raise PipelineError(f"{_VERB}: timed_out_to is for patterns with a time; give within=")
        if operation.timed_out.name in sides:
            raise PipelineError(f"{_VERB}: late_to and timed_out_to are given the same tag; give each one of its own")
        sides[operation.timed_out.name] = Schema(tuple(replace(field, nullable=True) for field in schema))
    found.node.sides = sides
    return found
