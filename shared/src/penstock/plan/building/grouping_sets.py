"""`grouping_sets`, `rollup` and `cube`: every row once per set of columns that it is to be grouped by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from penstock.errors import PipelineError
from penstock.expressions import col, columns_of
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.keys import check_keys, keyed
from penstock.plan.building.rows import Rows
from penstock.plan.operations.expand import GROUPING_ID, Expand
from penstock.types import BOOLEAN, INT64, Field, Schema

if TYPE_CHECKING:
    from penstock.expressions import Expr
    from penstock.plan.logical import Node

_MOST_SETS: Final = 1024
"""Of `cube` with ten columns. Every row is sent once per set, so more are a mistake."""


def rollup_sets(columns: Sequence[str]) -> list[Sequence[str]]:
    """The columns, and one less each time from the end: subtotals of a hierarchy."""
    return [columns[:size] for size in range(len(columns), -1, -1)]


def cube_sets(columns: Sequence[str]) -> list[Sequence[str]]:
    """All subsets, the largest first.

    Raises:
        PipelineError: there are too many.
    """
    if 2 ** len(columns) > _MOST_SETS:
        raise PipelineError(
            f"cube: {len(columns)} columns make {2 ** len(columns):,} sets, and every row is sent once per set; name the "
            f"sets that are needed with grouping_sets(...), at most {_MOST_SETS:,}"
        )
    return [each for size in range(len(columns), -1, -1) for each in combinations(columns, size)]


def grouped(rows: Rows, verb: str, sets: Sequence[Sequence[str]]) -> Rows:
    """The rows of a stream keyed by all grouping columns and the id of the set.

    Raises:
        PipelineError: there are no sets or no columns, one is there twice, or a column is not there or cannot be a key.
    """
    columns = tuple(dict.fromkeys(name for each in sets for name in each))
    if not columns:
        raise PipelineError(f"{verb}: name at least one column, such as .{verb}({_EXAMPLES[verb]})")
    if len(sets) > _MOST_SETS:
        raise PipelineError(
            f"{verb}: there are {len(sets):,} sets, and every row is sent once per set; name at most {_MOST_SETS:,}"
        )
    found = [frozenset(each) for each in sets]
    if any(len(each) < len(named) for each, named in zip(found, sets, strict=True)) or len({*found}) < len(found):
        raise PipelineError(f"{verb}: a column or a set is there twice, and would be counted twice; name each once")
    node = rows.node
    check_keys(node.schema, columns, verb)
    rows.check_unread(verb, {name: col(name) for name in columns})
    if GROUPING_ID in node.schema:
        raise PipelineError(f"{verb}: there is a column {GROUPING_ID!r} already; rename it before")
    nulled = {name for name in columns if any(name not in each for each in found)}
    fields = [replace(field, nullable=field.nullable or field.name in nulled) for field in node.row_schema]
    retracted = [Field(RETRACTED, BOOLEAN)] if node.mode == "retract" else []
    schema = Schema((*fields, Field(GROUPING_ID, INT64), *retracted))
    expanded = rows.derive(Expand(columns, tuple(found)), schema, mode=node.mode)
    return keyed(expanded, (*columns, GROUPING_ID))


def check_grouped(node: Node, verb: str, read_by: Mapping[str, Expr] | Iterable[tuple[str, Expr]]) -> None:
    """What is computed of the rows of grouping sets reads no grouping column: it is null in those of sets that do not
    have it.

    Raises:
        PipelineError: an expression does, by its name.
    """
    operation = node.inputs[0].operation if node.inputs else None
    if not isinstance(operation, Expand):
        return
    named = read_by.items() if isinstance(read_by, Mapping) else read_by
    for name, expr in named:
        if read := [column for column in operation.columns if column in columns_of(expr)]:
            raise PipelineError(
                f"{verb}: {name} = {expr} reads the grouping column {read[0]!r}, which is null where a set does not have "
                f"it; read a copy of it, .with_columns({read[0]}_value=col({read[0]!r})) before the grouping sets"
            )


_EXAMPLES: Final = {
    "grouping_sets": '["country", "city"], ["country"], []',
    "rollup": '"country", "city"',
    "cube": '"country", "city"',
}
