"""Rows of several queries together, and rows that a text has itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.expressions import Expr, col, lit, to_polars
from penstock.expressions.typing_rules import promote
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.changes import union_of_changes
from penstock.plan.building.columns import project, union
from penstock.plan.building.sets import set_operation
from penstock.plan.operations.project import Project
from penstock.sql.binding.context import Context
from penstock.sql.binding.expressions import Expressions
from penstock.sql.binding.groups import distinct_rows
from penstock.sql.binding.names import Scope
from penstock.sql.binding.projections import shown_value
from penstock.sql.binding.relations import WINDOW_TIME, Column, Relation, changes_of, each_once
from penstock.sql.binding.seeds import constant_rows, one_row
from penstock.sql.functions.arguments import sql_name
from penstock.sql.functions.function import Argument
from penstock.sql.syntax import Part, SetOperation, Values
from penstock.types import BOOLEAN, INT32, NULL, STRING, DataType, Field, Schema

if TYPE_CHECKING:
    from penstock.plan.building.rows import Rows

UNNAMED: Final = "EXPR$"
"""What columns are called, with their number, that have no name; as in Flink."""
_NO_COLUMNS: Final = Schema((Field("is_row", NULL),))


# -- values -------------------------------------------------------------------------------------------------------------


def values_of(context: Context, part: Values) -> Relation:
    """The rows of VALUES, computed here.

    Raises:
        SqlError: a row has other columns than the first, or something that is no constant.
    """
    width = len(part.rows[0])
    for row in part.rows:
        if len(row) != width:
            raise context.error(row[0], f"the rows of VALUES have {width} columns, and this has {len(row)}")
    binds = Expressions(context, _NO_COLUMNS)
    scope = Scope(context.text, Relation(one_row(context.plan), ()))
    bound = [[_constant(binds, scope.resolve(value)) for value in row] for row in part.rows]
    fields: list[Field] = []
    for place in range(width):
        kind = _kind(context, [(row[place], written[place]) for row, written in zip(bound, part.rows, strict=True)])
        nullable = any(row[place].nullable for row in bound)
        fields.append(Field(f"{UNNAMED}{place}", kind, nullable))
    rows = constant_rows(context.plan, Schema(tuple(fields)), [_computed(row, fields) for row in bound])
    return Relation(rows, tuple(Column(each.name, each.name) for each in fields))


def _kind(context: Context, values: Sequence[tuple[Argument, Part]]) -> DataType:
    kind: DataType = NULL
    for value, written in values:
        common = promote(kind, value.type)
        if common is None:
            raise context.error(
                written, f"a column of VALUES is {sql_name(kind)} above and {sql_name(value.type)} here; CAST one"
            )
        kind = common
    return STRING if kind == NULL else kind


def _constant(binds: Expressions, part: Part) -> Argument:
    expr, found = shown_value(binds, part), binds.bind(part)
    return found if expr.node == found.expr.node else Argument(expr, INT32, False)


def _computed(row: Sequence[Argument], fields: Sequence[Field]) -> dict[str, Any]:
    import polars as pl

    cast = [
        value.expr if value.type in (field.type, NULL) else value.expr.cast(field.type)
        for value, field in zip(row, fields, strict=True)
    ]
    columns = [to_polars(expr, _NO_COLUMNS).alias(field.name) for expr, field in zip(cast, fields, strict=True)]
    return pl.DataFrame({"is_row": [None]}).select(columns).row(0, named=True)


# -- set operations -----------------------------------------------------------------------------------------------------


def combined(context: Context, part: SetOperation, left: Relation, right: Relation) -> Relation:
    """The rows of two queries, whose columns go by their places, under the names of the first.

    Raises:
        SqlError: the columns differ, or the operation is not supported.
    """
    shown = [*left.shown], [*right.shown]
    if len(shown[0]) != len(shown[1]):
        raise context.error(
            part.right,
            f"the queries of {part.kind} have {len(shown[0])} and {len(shown[1])} columns; they need the same",
        )
    kinds = [_common(context, part, left, one, right, other) for one, other in zip(*shown, strict=True)]
    unique = each_once(column.name for column in shown[0])
    own, met = (_shaped(side, columns, unique, kinds) for side, columns in zip((left, right), shown, strict=True))
    with context.at(part.span):
        rows = _operation(context, part, own, met, unique)
    times = (left.time_column(), right.time_column()) if part.kind == "UNION" else (None, None)
    columns = (
        Column(
            one.name,
            name,
            is_time=times == (one, other) and one.ahead_us == other.ahead_us,
            bound=WINDOW_TIME if one.bound == other.bound == WINDOW_TIME else None,
            lag_us=_lag_of_both(one, other) if part.kind == "UNION" else None,
        )
        for one, other, name in zip(*shown, unique, strict=True)
    )
    return Relation(rows, tuple(columns))


def _lag_of_both(one: Column, other: Column) -> int | None:
    """By how much a time may be before the event time of rows of either query, unless it is that of both."""
    lags = one.known_lag_us, other.known_lag_us
    if None in lags or (one.lag_us is None and other.lag_us is None and one.ahead_us == other.ahead_us):
        return None
    return max(each for each in lags if each is not None)


def _common(
    context: Context, part: SetOperation, left: Relation, one: Column, right: Relation, other: Column
) -> DataType:
    own, met = left.field(one).type, right.field(other).type
    common = promote(own, met)
    if common is None:
        raise context.error(
            part.right, f"{one.name!r} is {sql_name(own)} in the first query, and {sql_name(met)} in this; CAST one"
        )
    return common


def _shaped(side: Relation, columns: Sequence[Column], names: Sequence[str], kinds: Sequence[DataType]) -> Rows:
    """The columns of a side under the names, and of the types, of both."""
    made: list[tuple[str, Expr]] = []
    for column, name, kind in zip(columns, names, kinds, strict=True):
        expr = col(column.column)
        made.append((name, expr if side.field(column).type == kind else expr.cast(kind)))
    return project(changes_of(side).rows, "select", tuple(made))


def _operation(context: Context, part: SetOperation, left: Rows, right: Rows, names: Sequence[str]) -> Rows:
    if part.kind != "UNION":
        verb = "intersect" if part.kind == "INTERSECT" else "minus"
        return set_operation(verb, left, right, None, all_copies=part.all)
    if left.node.updates or right.node.updates:
        both = union_of_changes([as_changes(left), as_changes(right)])
    elif left.node.event_time != right.node.event_time:
        both = union([_without_time(left), _without_time(right)])
    else:
        both = union([left, right])
    return both if part.all else distinct_rows(both, names)


def _without_time(rows: Rows) -> Rows:
    """The rows without event time, to stand beside others that have none."""
    columns = tuple((name, col(name)) for name in rows.schema.names)
    return rows.derive(Project("select", columns), rows.schema, event_time=False, mode=rows.node.mode)


def as_changes(rows: Rows) -> Rows:
    """Facts as changes that add rows; changes as they are. Neither has event time."""
    if rows.node.updates:
        return _without_time(rows)
    columns = (*((name, col(name)) for name in rows.schema.names), (RETRACTED, lit(False)))
    schema = Schema((*rows.schema.fields, Field(RETRACTED, BOOLEAN)))
    return rows.derive(Project("select", columns), schema, event_time=False, mode="retract")
