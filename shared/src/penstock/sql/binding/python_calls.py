"""Calls of Python functions: columns that are computed row by row before the expressions that they stand in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import cast

from penstock.plan.building.columns import call_function
from penstock.sql.binding.context import Context
from penstock.sql.binding.expressions import Expressions, has_aggregate
from penstock.sql.binding.names import Bound, columns_in, has_query, is_correlated, rewritten, within
from penstock.sql.binding.relations import Relation, fresh, updates_with_keys, with_computed
from penstock.sql.functions.aggregates import IN_PYTHON
from penstock.sql.functions.arguments import python_signature
from penstock.sql.functions.casts import as_parameter
from penstock.sql.functions.function import PythonAggregate
from penstock.sql.syntax import Call, Part, Query

Change = Callable[[Part], Part]


def with_aggregates(context: Context, query: Query) -> Query:
    """A query in which calls of aggregates in Python are such of `IN_PYTHON`, which whatever binds aggregates knows."""
    functions = context.catalogue.functions
    known = {name: each for name, each in functions.items() if isinstance(each, PythonAggregate)}

    def change(each: Part) -> Part | None:
        if not isinstance(each, Call) or each.function not in known:
            return None
        arguments = tuple(rewritten(argument, change, queries=True) for argument in each.arguments)
        option = ("function", known[each.function])
        return replace(each, function=IN_PYTHON.name, arguments=arguments, options=(*each.options, option))

    return cast("Query", rewritten(query, change, queries=True)) if known else query


def calls_python(context: Context, part: Part) -> bool:
    """Whether a call of a Python function stands within a part."""
    return any(isinstance(each, Call) and context.catalogue.of_row(each.function) for each in within(part))


def with_python_calls(
    context: Context, relation: Relation, parts: Iterable[Part], taken: Iterable[str] = ()
) -> tuple[Relation, Change]:
    """The rows with a column for each call whose arguments are columns of these rows, and what puts it into expressions.

    Calls of aggregates, of values over other rows, and of columns of other rows stay until these are known.

    Args:
        context: the text.
        relation: the rows.
        parts: the expressions.
        taken: names that the columns must not have, beside those of the rows.

    Raises:
        SqlError: the arguments do not fit the function.
    """
    waiting = [part for part in parts if calls_python(context, part)]
    replaced: dict[Part, Part] = {}

    def change(part: Part) -> Part:
        return rewritten(part, replaced.get)

    while True:
        waiting = [change(part) for part in waiting]
        known = {*relation.rows.schema.names}
        calls = dict.fromkeys(each for part in waiting for each in within(part) if _can_be_called(context, each, known))
        if not calls:
            return relation, lambda part: _changed(part, replaced)
        for call in calls:
            assert isinstance(call, Call)
            relation, column = _called(context, relation, call, tuple(taken))
            replaced[call] = Bound(column, span=call.span)


def _changed(part: Part, replaced: dict[Part, Part]) -> Part:
    """With calls within calls, from the innermost outwards."""
    while True:
        found = rewritten(part, replaced.get)
        if found == part:
            return part
        part = found


def _can_be_called(context: Context, part: Part, known: set[str]) -> bool:
    if not isinstance(part, Call) or context.catalogue.of_row(part.function) is None:
        return False
    inner = [each for argument in part.arguments for each in within(argument)]
    waits = any(isinstance(each, Call) and (each.over or context.catalogue.of_row(each.function)) for each in inner)
    foreign = has_aggregate(part) or has_query(part) or is_correlated(part)
    return not waits and not foreign and columns_in(part) <= known


def _called(context: Context, relation: Relation, call: Call, taken: Sequence[str]) -> tuple[Relation, str]:
    function = context.catalogue.of_row(call.function)
    assert function is not None
    if call.distinct or call.filter is not None or call.order or call.over is not None:
        raise context.error(
            call, f"{call.function} is a function of one row; leave out DISTINCT, FILTER, ORDER BY and OVER"
        )
    count, most = len(call.arguments), len(function.parameters)
    if not function.least <= count <= most:
        takes = str(most) if function.least == most else f"{function.least} to {most}"
        signature = python_signature(function.name, function.parameters)
        raise context.error(call, f"{call.function} takes {takes} arguments, not {count}: {signature}")
    relation = updates_with_keys(relation)
    binds = Expressions(context, relation.rows.node.row_schema)
    made = {}
    for part, parameter in zip(call.arguments, function.parameters, strict=False):
        with context.at(part.span):
            fitted = as_parameter(call.function, parameter, binds.bind(part))
        name = fresh(f"{call.function.lower()}_{parameter.name}", relation.rows.schema.names, made, taken)
        made[name] = fitted
    relation = with_computed(relation, made)
    column = fresh(call.function.lower(), relation.rows.schema.names, taken)
    rows = call_function(relation.rows, column, function.function, tuple(made), function.gives)
    return relation.with_rows(rows), column
