"""Conditional functions: CASE, IF, COALESCE, NULLIF, GREATEST and their kin.

What a branch computes is not asked where the branch is not taken: `CASE WHEN b = 0 THEN 0 ELSE a / b END` never divides
by zero. Polars computes all branches, so one in which a row can fail sees nulls in the rows that do not take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, lit
from penstock.expressions.nodes import Aggregate, Call, Case, Cast, Column, Literal, Node, walk, with_parts
from penstock.expressions.typing_rules import Operand, common_type
from penstock.sql.functions.arguments import (
    argument,
    call,
    cast_to,
    is_null_constant,
    need_boolean,
    sql_name,
)
from penstock.sql.functions.casts import constant_as
from penstock.sql.functions.function import Argument, Options, ScalarFunction
from penstock.types import ANY_NUMBER, DATE, NULL, STRING, TIME, TIMESTAMP, DataType, family

_FAILING: Final = frozenset({
    "sql.div", "sql.mod", "sql.divisor", "truediv", "str.to_date", "str.to_datetime", "str.to_integer", "json.decode",
    "str.from_base64", "str.from_hex", "sql.element", "sql.map_from_arrays", "sql.json_value", "sql.json_query",
    "sql.json_exists",
})  # fmt: skip
"""Functions of which a value can fail the row."""


_SMALL: Final = 64
"""Parts of a condition that can fail itself and is still asked again for each value that it guards: without a bound a
text would grow with every condition that is guarded by those before it."""


def guarded(value: Expr, taken: Expr) -> Expr:
    """The value, in which what could fail sees nulls in rows in which `taken` is not true."""
    if not _can_fail(value.node):
        return value
    return Expr(_guarded(value.node, taken.node))


def _can_fail(node: Node) -> bool:
    return any(map(_fails, walk(node)))


def _fails(node: Node) -> bool:
    if isinstance(node, Cast):
        return node.strict and node.to != STRING and not isinstance(node.operand, Literal)
    return isinstance(node, Call) and node.function in _FAILING


def _guarded(node: Node, taken: Node) -> Node:
    match node:
        case Column() | Aggregate():
            return Case(((taken, node),))
        case Case(branches=((before, Column() | Aggregate() as leaf),), otherwise=None):  # guarded already
            return Case(((Call("and", (taken, before)), leaf),))
        case _:
            return with_parts(node, lambda part: _guarded(part, taken))


def joined(conditions: Sequence[Expr], function: str) -> Expr:
    """AND or OR ("and" or "or") of conditions in order, where what stands behind one that decides fails no row."""
    found, *others = conditions
    before = _parts(found.node, function)
    for condition in others:
        asked = _behind(condition.node, before, function)
        before += _parts(asked, function)
        found = call(function, found, Expr(asked))
    return found


def _behind(node: Node, before: Sequence[Node], function: str) -> Node:
    """The parts of a condition, each guarded by those before it; a part that cannot fail stays as it is."""
    if isinstance(node, Call) and node.function == function:
        return replace(node, args=tuple(_behind(arg, before, function) for arg in node.args))
    if not _can_fail(node):
        return node
    known = [Expr(part) for part in before if _is_asked_again(part)]
    if not known:
        return node
    undecided = call("fill_null", _balanced(known, function), function == "and")
    return _guarded(node, (undecided if function == "and" else ~undecided).node)


def _parts(node: Node, function: str) -> list[Node]:
    """What conditions AND or OR joins, however it is bracketed."""
    if isinstance(node, Call) and node.function == function:
        return [part for arg in node.args for part in _parts(arg, function)]
    return [node]


def _is_asked_again(condition: Node) -> bool:
    return not _can_fail(condition) or sum(1 for _ in walk(condition)) <= _SMALL


def _balanced(conditions: Sequence[Expr], function: str) -> Expr:
    """Joined in halves, since a thousand one within the other would be too deep."""
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    return call(function, _balanced(conditions[:middle], function), _balanced(conditions[middle:], function))


def is_true(condition: Expr) -> Expr:
    """Whether it is true, neither false nor null."""
    return call("fill_null", condition, False)


def aligned(arguments: Sequence[Argument], where: str) -> list[Argument]:
    """Arguments that meet in one type: text constants become moments beside such, dates become timestamps.

    Raises:
        PipelineError: there is no type in which they meet.
    """
    kinds = {value.type for value in arguments if value.type != NULL}
    moments = kinds & {DATE, TIME, TIMESTAMP}
    if TIMESTAMP in moments and DATE in moments:
        arguments = [
            argument(cast_to(value, TIMESTAMP), TIMESTAMP, nullable=value.nullable) if value.type == DATE else value
            for value in arguments
        ]
        moments = moments - {DATE}
    if len(moments) == 1 and STRING in kinds:
        (kind,) = moments
        arguments = [_read(value, kind, where) for value in arguments]
    if common_type([Operand(value.type, value.nullable, value.expr.node) for value in arguments]) is None:
        names = list(dict.fromkeys(sql_name(value.type) for value in arguments))
        raise PipelineError(f"{where}: {' and '.join(names)} have no common type; write CAST(... AS ...) around one")
    return list(arguments)


def _read(value: Argument, kind: DataType, where: str) -> Argument:
    if value.type != STRING:
        return value
    if not value.is_constant:
        raise PipelineError(
            f"{where}: STRING and {sql_name(kind)} have no common type; write CAST(... AS {sql_name(kind)})"
        )
    return constant_as(value, kind, where)


def common_of(arguments: Sequence[Argument]) -> DataType:
    """The type in which aligned arguments meet."""
    found = common_type([Operand(value.type, value.nullable, value.expr.node) for value in arguments])
    assert found is not None
    return found


def _case(arguments: Sequence[Argument], _: Options) -> Expr:
    conditions, values = arguments[:-1:2], [*arguments[1:-1:2], arguments[-1]]
    if len(arguments) % 2 == 0:
        conditions, values = arguments[::2], list(arguments[1::2])
    asked = [need_boolean("CASE WHEN", condition).expr for condition in conditions]
    return _branches(asked, aligned(values, "CASE"))


def _branches(conditions: Sequence[Expr], values: Sequence[Argument]) -> Expr:
    """The value of the first condition that is true."""
    branches: list[tuple[Node, Node]] = []
    before: list[Expr] = []
    for condition, value in zip(conditions, values, strict=False):
        asked = guarded(condition, ~_balanced(before, "or")) if before and _can_fail(condition.node) else condition
        holds = is_true(asked)
        made = value.expr
        if _can_fail(made.node):
            made = guarded(made, holds & ~_balanced(before, "or") if before else holds)
        branches.append((asked.node, made.node))
        if _is_asked_again(holds.node):
            before.append(holds)
    otherwise = values[len(conditions) :]
    if not otherwise:
        return Expr(Case(tuple(branches)))
    made = otherwise[0].expr
    if before and _can_fail(made.node):
        made = guarded(made, ~_balanced(before, "or"))
    return Expr(Case(tuple(branches), made.node))


def _if(arguments: Sequence[Argument], _: Options) -> Expr:
    return _branches([need_boolean("IF", arguments[0]).expr], aligned(arguments[1:], "IF"))


def _coalesce(arguments: Sequence[Argument], _: Options) -> Expr:
    values = aligned(arguments, "COALESCE")
    first, *others = values
    made = [first.expr]
    absent = first.expr.is_null()
    for value in others:
        made.append(guarded(value.expr, absent))
        absent = absent & value.expr.is_null()
    return made[0] if len(made) == 1 else call("coalesce", *made)


def _nullif(arguments: Sequence[Argument], _: Options) -> Expr:
    left, right = aligned(arguments, "NULLIF")
    if is_null_constant(right) or is_null_constant(left):
        return left.expr
    return Expr(Case(((call("eq", left, right).node, Literal(None)),), left.expr.node))


def _extreme(name: str, function: str) -> ScalarFunction:
    def build(arguments: Sequence[Argument], _: Options) -> Expr:
        values = aligned(arguments, name)
        found = values[0].expr if len(values) == 1 else call(function, *values)
        absent = [value.expr.is_null() for value in values if value.nullable or value.type == NULL]
        if not absent:
            return found
        anywhere = absent[0]
        for condition in absent[1:]:
            anywhere = anywhere | condition
        return Expr(Case(((anywhere.node, Literal(None)),), found.node))

    what = "greatest" if name == "GREATEST" else "least"
    return ScalarFunction(name, f"{name}(x, y, ...)", f"The {what} of the values; null if any is null.", build, 1, None)


def _typeof(arguments: Sequence[Argument], _: Options) -> Expr:
    (value,) = arguments
    return lit(sql_name(value.type) + ("" if value.nullable or value.type == NULL else " NOT NULL"))


def is_comparable(left: DataType, right: DataType) -> bool:
    """Whether one is text and the other a number, which SQL does not compare without a cast."""
    numbers = (family(left) in ANY_NUMBER, family(right) in ANY_NUMBER)
    return not (numbers[0] and right == STRING) and not (numbers[1] and left == STRING)


ROWS: Final = (
    ScalarFunction(
        "CASE", "CASE WHEN condition THEN value ... ELSE value END",
        "The value of the first condition that is true; without ELSE null. A branch that is not taken fails no row.",
        _case, 2, None,
    ),
    ScalarFunction(
        "IF", "IF(condition, value, otherwise)", "The one value if the condition is true, else the other.", _if, 3, 3,
    ),
    ScalarFunction(
        "COALESCE", "COALESCE(x, y, ...)", "The first value that is not null.", _coalesce, 1, None,
    ),
    ScalarFunction(
        "IFNULL", "IFNULL(x, y)", "The value, or the other one where it is null.", _coalesce, 2, 2, ("NVL",),
    ),
    ScalarFunction(
        "NULLIF", "NULLIF(x, y)", "The value, or null where it equals the other one.", _nullif, 2, 2,
    ),
    _extreme("GREATEST", "max_horizontal"),
    _extreme("LEAST", "min_horizontal"),
    ScalarFunction(
        "TYPEOF", "TYPEOF(x)", "The type as text, with NOT NULL where it is never null.", _typeof, 1, 1,
    ),
)  # fmt: skip
