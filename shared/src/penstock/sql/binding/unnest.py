"""UNNEST: a row for each element of a list, or for each entry of a map, of a row.

A function in Python that gives rows is one whose lists are unnested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.expressions import Expr, col
from penstock.plan.building.columns import explode
from penstock.sql.binding.context import Context
from penstock.sql.binding.expressions import Expressions
from penstock.sql.binding.names import Scope
from penstock.sql.binding.python_calls import with_python_calls
from penstock.sql.binding.ranks import settled
from penstock.sql.binding.relations import Column, Relation, changes_of, fresh, with_computed
from penstock.sql.functions.arguments import call as function_of
from penstock.sql.functions.arguments import sql_name
from penstock.sql.syntax import Constant, Joined, Part, TableFunction
from penstock.sql.text import counted
from penstock.types import DataType, ListType, MapType, StructType

ORDINALITY: Final = "ordinality"
"""What the column of WITH ORDINALITY is called if the text does not name it; as in Flink."""


def is_unnest(context: Context, part: Part) -> bool:
    """Whether it is UNNEST in FROM, or a function in Python that gives rows, which reads columns of the tables before."""
    return isinstance(part, TableFunction) and (part.call.function == "UNNEST" or _is_python(context, part))


def _is_python(context: Context, part: TableFunction) -> bool:
    return context.catalogue.of_row(part.call.function.upper()) is not None


def conditions_left(context: Context, part: Joined, conditions: Sequence[Part]) -> list[Part]:
    """What ON of a join with UNNEST says beside TRUE.

    Raises:
        SqlError: it is a LEFT JOIN, which would have a row of nulls for those whose elements are all left out.
    """
    found = [each for each in conditions if not (isinstance(each, Constant) and each.value is True)]
    if part.kind == "left" and found:
        raise context.error(found[0], "LEFT JOIN UNNEST takes ON TRUE only; write other conditions in WHERE")
    return found


def unnested(context: Context, part: Joined, left: Relation, outer: Scope | None) -> Relation:
    """The rows of a relation once for each element of UNNEST, which is on the right of the join.

    Raises:
        SqlError: it is joined in another way, or what it is given has no elements.
    """
    function = part.right
    assert isinstance(function, TableFunction)
    _check(context, part, function)
    left = settled(context, changes_of(left))
    if left.rows.node.mode != "append":
        raise context.error(
            function.call,
            f"{function.call.function} of rows that may be replaced is not supported; do it before grouping",
        )
    left, elements, kind = _elements(context, function, left, outer)
    name = fresh(function.columns[0] if function.columns else "element", left.rows.schema.names)
    relation = with_computed(left, {name: elements})
    position = fresh(ORDINALITY, relation.rows.schema.names) if function.ordinality else None
    with context.at(function.call.span):
        rows = explode(relation.rows, (name,), position=position, keep_empty=part.kind == "left")
    relation = Relation(rows, left.columns)
    made = [(function.alias or "EXPR$0", name)]
    if isinstance(kind, StructType):
        fields = {fresh(each.name, rows.schema.names): each.name for each in kind.fields}
        relation = with_computed(relation, {own: col(name).struct.field(each) for own, each in fields.items()})
        made = [(shown, own) for own, shown in fields.items()]
    if position is not None:
        made.append((ORDINALITY, position))
    return _named(context, relation, function, made)


def _check(context: Context, part: Joined, function: TableFunction) -> None:
    if len(function.call.arguments) != 1 and not _is_python(context, function):
        raise context.error(function.call, "UNNEST takes one ARRAY or MAP")
    if part.using or part.natural or part.kind not in ("inner", "cross", "left"):
        raise context.error(part, f"{function.call.function} is joined by CROSS JOIN or LEFT JOIN ... ON TRUE")


def _elements(
    context: Context, function: TableFunction, left: Relation, outer: Scope | None
) -> tuple[Relation, Expr, DataType]:
    """The list, what its elements are, and the rows with what functions in Python compute for it."""
    call = function.call
    written = replace(call, function=call.function.upper()) if _is_python(context, function) else call.arguments[0]
    resolved = Scope(context.text, left, outer).resolve(written)
    left, change = with_python_calls(context, left, [resolved])
    value = Expressions(context, left.rows.node.row_schema).bind(change(resolved))
    match value.type:
        case ListType(inner=inner):
            return left, value.expr, inner
        case MapType():
            return left, function_of("sql.map_entries", value), value.type.entries.inner
        case kind if written is call.arguments[0]:
            raise context.error(written, f"UNNEST takes an ARRAY or a MAP, and this is {sql_name(kind)}")
        case kind:
            raise context.error(
                call,
                f"{call.function} gives {sql_name(kind)}, and a function in FROM gives rows; annotate what it returns "
                "with Iterator[...] or list[...]",
            )


def _named(context: Context, relation: Relation, function: TableFunction, made: Sequence[tuple[str, str]]) -> Relation:
    """The columns of UNNEST behind those of the relation, under the names of the text as far as it gives any.

    Raises:
        SqlError: it gives more names.
    """
    names = function.columns
    if len(names) > len(made):
        raise context.error(function, f"{len(names)} names are given, and there {counted(len(made))}")
    columns = (
        Column(names[place] if place < len(names) else shown, column, function.alias)
        for place, (shown, column) in enumerate(made)
    )
    return Relation(relation.rows, (*relation.columns, *columns))
