"""Rows that a text makes itself: VALUES, SELECT without FROM, and the row that a group of all rows begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.connectors import iterables
from penstock.expressions import col, lit
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.columns import union
from penstock.plan.building.rows import Rows
from penstock.plan.building.sources import read
from penstock.plan.operations.project import Project
from penstock.types import BOOLEAN, Field, Schema

if TYPE_CHECKING:
    from penstock.plan.logical import LogicalPlan


def constant_rows(plan: LogicalPlan, schema: Schema, rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Rows that the plan holds itself."""
    return read(plan, iterables.Constants([*rows], schema=schema))


def one_row(plan: LogicalPlan) -> Rows:
    """One row, for SELECT without FROM. Its only column is not for users."""
    return constant_rows(plan, Schema((Field("is_row", BOOLEAN),)), [{"is_row": True}])


def with_seed(rows: Rows, flag: str) -> Rows:
    """The rows and one more, for which `flag` is true and all else null; all have the key `all_rows`."""
    fields = rows.node.row_schema.fields
    schema = Schema(
        (*(replace(field, nullable=True) for field in fields), Field(flag, BOOLEAN), Field("all_rows", BOOLEAN))
    )
    retracts = rows.node.mode == "retract"
    hidden = Schema((*schema.fields, *([Field(RETRACTED, BOOLEAN)] if retracts else [])))
    given = [*((field.name, col(field.name)) for field in fields), (flag, lit(False)), ("all_rows", lit(True))]
    if retracts:
        given.append((RETRACTED, col(RETRACTED)))
    mode = rows.node.mode
    real = rows.derive(Project("select", tuple(given)), hidden, event_time=False, mode=mode)
    seed = constant_rows(rows.plan, schema, [{flag: True, "all_rows": True}])
    names = [*((name, col(name)) for name in schema.names), *([(RETRACTED, lit(False))] if retracts else [])]
    return union([real, seed.derive(Project("select", tuple(names)), hidden, event_time=False, mode=mode)])
