"""Verbs over columns, which look at one row at a time: projections, filters, `explode`, `as_`, and `union`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final, Literal

from penstock.errors import PipelineError, nearest
from penstock.expressions import (
    Expr,
    Operand,
    col,
    contains_aggregate,
    lit,
    needs_over,
    output_field,
    output_name,
)
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.rows import Rows
from penstock.plan.operation import Named
from penstock.plan.operations.as_ import As
from penstock.plan.operations.call_function import CallFunction
from penstock.plan.operations.check import Check
from penstock.plan.operations.explode import Explode
from penstock.plan.operations.filter import Filter
from penstock.plan.operations.project import Project
from penstock.plan.operations.union import Union
from penstock.types import BOOLEAN, INT32, Field, ListType, Schema, schema_of

_MANY: Final = 8
Projection = Literal["select", "with_columns", "drop", "rename"]


def select(rows: Rows, exprs: Sequence[Expr | str], named: Mapping[str, Operand]) -> Rows:
    """Only these columns."""
    return project(rows, "select", _named(rows, "select", exprs, named))


def with_columns(rows: Rows, exprs: Sequence[Expr], named: Mapping[str, Operand]) -> Rows:
    """All columns and these; one that exists is replaced in its place."""
    columns: dict[str, Expr] = {name: col(name) for name in rows.schema.names}
    columns.update(_named(rows, "with_columns", exprs, named))
    return project(rows, "with_columns", tuple(columns.items()))


def drop(rows: Rows, names: Sequence[str]) -> Rows:
    """All columns but these."""
    for name in names:
        rows.schema.field(name, "drop")
    return project(rows, "drop", tuple((name, col(name)) for name in rows.schema.names if name not in names))


def rename(rows: Rows, names: Mapping[str, str]) -> Rows:
    """The same columns with other names."""
    for name in names:
        rows.schema.field(name, "rename")
    return project(rows, "rename", tuple((names.get(name, name), col(name)) for name in rows.schema.names))


def project(rows: Rows, verb: Projection, columns: Named) -> Rows:
    """Every column as an expression over the input.

    Raises:
        PipelineError: an expression does not fit the columns, or is an aggregate.
    """
    if rows.node.mode == "retract":
        columns = _with_retracted(rows, verb, columns)
    fields: list[Field] = []
    for name, expr in columns:
        if contains_aggregate(expr):
            raise PipelineError(f"{verb}: {_of_many(expr)}")
        field = output_field(expr, rows.schema, verb)
        fields.append(Field(name, field.type, field.nullable))
    return rows.derive(Project(verb, columns), Schema(tuple(fields)), mode=rows.node.mode)


def _named(rows: Rows, verb: str, exprs: Sequence[Expr | str], named: Mapping[str, Operand]) -> Named:
    for name, text in named.items():
        if isinstance(text, str) and text not in rows.schema:
            known = nearest(text, rows.schema.names)
            raise PipelineError(
                f"{verb}: there is no column {text!r}; {known}; the text itself is {name}=lit({text!r})"
            )
    columns = [(output_name(e), e) for e in map(_as_expr, exprs)] + [(n, _as_expr(e)) for n, e in named.items()]
    if not columns:
        raise PipelineError("select: name at least one column")
    return tuple(columns)


def _with_retracted(rows: Rows, verb: str, columns: Named) -> Named:
    """The columns, and the one that tells what a change does, as it is and last."""
    kept = col(RETRACTED)
    others = {name: expr for name, expr in columns if (name, expr.node) != (RETRACTED, kept.node)}
    rows.check_unread(verb, others)
    if RETRACTED in others:
        raise PipelineError(f"{verb}: {RETRACTED} says which changes take rows back; give the column another name")
    return (*others.items(), (RETRACTED, kept))


def filter_rows(rows: Rows, predicates: Sequence[Expr]) -> Rows:
    """Only the rows for which every predicate is true.

    Raises:
        PipelineError: there is none, or one is not boolean.
    """
    if not predicates:
        raise PipelineError("filter: give at least one predicate, such as col('price') > 0")
    predicate = _all_of(predicates)
    field = output_field(predicate, rows.schema, "filter")
    if field.type != BOOLEAN or contains_aggregate(predicate):
        raise PipelineError(f"filter: {predicate} is {field.type}, not boolean; compare it with something")
    rows.check_unread("filter", {str(predicate): predicate})
    return rows.derive(Filter(predicate), rows.schema, rows.node.row_type, mode=rows.node.mode)


def check_rows(rows: Rows, predicate: Expr, otherwise: str) -> Rows:
    """The rows as they are; one for which the predicate is not true fails the job.

    Args:
        rows: any. A change that takes a row back is not looked at: it was, when it was added.
        predicate: a condition on the columns.
        otherwise: what is said then.
    """
    if rows.node.mode == "retract":
        predicate = predicate | col(RETRACTED)
    return rows.derive(Check(predicate, otherwise), rows.schema, rows.node.row_type, mode=rows.node.mode)


def free_name(name: str, taken: Container[str]) -> str:
    """The name, or one like it, of a column that is not there."""
    while name in taken:
        name += "_"
    return name


def _all_of(predicates: Sequence[Expr]) -> Expr:
    """Two of them as they are written, many in pairs of pairs: a thousand one within the other would be too deep."""
    if len(predicates) < _MANY:
        return functools.reduce(operator.and_, predicates)
    middle = len(predicates) // 2
    return _all_of(predicates[:middle]) & _all_of(predicates[middle:])


def call_function(rows: Rows, name: str, function: Callable[..., Any], arguments: Sequence[str], gives: Field) -> Rows:
    """Every row with one more column, which a Python function computes of others.

    Args:
        rows: any.
        name: what the column is called.
        function: it is given the values of a row's arguments, null as None.
        arguments: columns.
        gives: the type of the column, and whether it may be null.
    """
    fields = [*rows.node.row_schema, Field(name, gives.type, gives.nullable)]
    if rows.node.mode == "retract":
        fields.append(rows.schema.field(RETRACTED))
    operation = CallFunction(name, function, tuple(arguments))
    return rows.derive(operation, Schema(tuple(fields)), mode=rows.node.mode)


def explode(rows: Rows, columns: Sequence[str], *, position: str | None = None, keep_empty: bool = True) -> Rows:
    """One row per element of these list columns.

    Args:
        rows: facts.
        columns: their names.
        position: a new column, which says which element of the list it is, from 1.
        keep_empty: whether an empty list or null gives one row with null, and not none.

    Raises:
        PipelineError: none is named, or one is no list.
    """
    if not columns:
        raise PipelineError("explode: name at least one list column")
    fields: list[Field] = []
    for field in rows.schema:
        if field.name in columns:
            if not isinstance(field.type, ListType):
                raise PipelineError(f"explode: {field.name} is {field.type}, not a list")
            field = Field(field.name, field.type.inner, nullable=True)
        fields.append(field)
    for name in columns:
        rows.schema.field(name, "explode")
    if position is not None:
        fields.append(Field(position, INT32, nullable=keep_empty))
    return rows.derive(Explode(tuple(columns), position, keep_empty), Schema(tuple(fields)))


def with_row_class(rows: Rows, row_type: type[Any]) -> Rows:
    """The columns with a row class: `as_`.

    Raises:
        PipelineError: names or types do not agree.
    """
    schema, where = schema_of(row_type, "as_"), f"as_({row_type.__name__})"
    for field in schema:
        have = rows.schema.field(field.name, where)
        if have.type != field.type:
            raise PipelineError(f"{where}: {field.name} is {have.type}, the class says {field.type}")
        if have.nullable and not field.nullable:
            raise PipelineError(
                f"{where}: {field.name} may be null; declare it '| None', use fill_null, "
                "or give schema= at the source, which then takes no row without it"
            )
    extra = [name for name in rows.schema.names if name not in schema]
    if extra:
        raise PipelineError(f"{where}: the class lacks {', '.join(extra)}; drop them first")
    if schema.names != rows.schema.names:
        return with_row_class(project(rows, "select", tuple((name, col(name)) for name in schema.names)), row_type)
    return rows.derive(As(), schema, row_type)


def union(all_rows: Sequence[Rows]) -> Rows:
    """The rows of several with the same columns, in any order.

    Raises:
        PipelineError: there is only one, they are of different kinds, or their columns differ.
    """
    first, *others = all_rows
    if not others:
        raise PipelineError("union: give at least one other stream")
    if any(other.node.updates != first.node.updates for other in others):
        raise PipelineError(
            "union: some of these are streams of updates and some of rows; make those of rows newest rows of a key "
            'before, .key_by("id").deduplicate("last"), or take .final() of the updates'
        )
    check_alike("union", all_rows)
    schema, nodes = first.schema, [first.node]
    for other in others:
        moved = other.schema.names != schema.names
        nodes.append(select(other, schema.names, {}).node if moved else other.node)
    if len({id(node) for node in nodes}) < len(nodes):
        raise PipelineError("union: the same stream is there twice")
    fields = tuple(
        Field(field.name, field.type, any(node.schema.fields[place].nullable for node in nodes))
        for place, field in enumerate(schema)
    )
    event_time = all(node.event_time for node in nodes)
    if not event_time and any(node.event_time for node in nodes):
        without = ", ".join(str(number) for number, node in enumerate(nodes, 1) if not node.event_time)
        raise PipelineError(
            f"union: some streams have event time and some have none (without: number {without} of {len(nodes)}); "
            "say event_time='column' at their sources, or with_event_time(...) before union"
        )
    node = first.node
    united = first.plan.add(Union(), tuple(nodes), Schema(fields), node.row_type, event_time=event_time, mode=node.mode)
    return first.of(united)


def check_alike(verb: str, all_rows: Sequence[Rows]) -> None:
    """Several rows can stand in one stream.

    Raises:
        PipelineError: they are of different plans, or their columns differ.
    """
    if any(rows.plan is not all_rows[0].plan for rows in all_rows):
        raise PipelineError(f"{verb}: another stream is of another pipeline; read all of them in one")
    schemas = [rows.node.row_schema for rows in all_rows]
    for schema in schemas[1:]:
        if {field.name: field.type for field in schema} != {field.name: field.type for field in schemas[0]}:
            raise PipelineError(f"{verb}: the columns differ: ({schemas[0]}) and ({schema})")


def _of_many(expr: Expr) -> str:
    """What to write instead of an aggregate where rows are seen one by one."""
    beside = "write .key_by(...).over().with_columns(...)"
    if needs_over(expr):
        return f"{expr} looks at other rows of a key; {beside}"
    return (
        f"{expr} is an aggregate; it needs key_by and agg (after window, if any); to have it beside every row, {beside}"
    )


def _as_expr(value: Expr | str | Any) -> Expr:
    if isinstance(value, str):
        return col(value)
    if isinstance(value, Expr):
        return value
    return lit(value)
