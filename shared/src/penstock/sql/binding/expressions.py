"""Expressions of a text as expressions of the plan, with the types that the columns give them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

from penstock.core.decimals import MOST_DIGITS
from penstock.errors import PipelineError, nearest
from penstock.expressions import Expr, col, contains_aggregate, lit, output_field, when
from penstock.expressions.nodes import node_columns
from penstock.sql.binding.context import Context
from penstock.sql.binding.names import Bound, OuterColumn, within
from penstock.sql.functions.aggregates import IN_PYTHON
from penstock.sql.functions.arguments import sql_name
from penstock.sql.functions.casts import cast
from penstock.sql.functions.catalogue import AGGREGATES, SCALAR, WORDS
from penstock.sql.functions.function import AggregateFunction, Argument, ScalarFunction, counts, takes
from penstock.sql.functions.intervals import interval
from penstock.sql.syntax import (
    Call,
    Cast,
    Constant,
    Exists,
    FieldOf,
    InQuery,
    Interval,
    Name,
    NamedArgument,
    Part,
    Quantified,
    Star,
    Subquery,
    TimeConstant,
)
from penstock.types import BOOLEAN, NULL, Schema, StructType

WINDOW_FUNCTIONS: Final = frozenset(
    {
        "ROW_NUMBER", "RANK", "DENSE_RANK", "NTILE", "PERCENT_RANK", "CUME_DIST", "LAG", "LEAD", "FIRST_VALUE",
        "LAST_VALUE", "NTH_VALUE",
    }
)  # fmt: skip
"""What stands in front of OVER alone."""
NOW: Final = frozenset({"NOW", "CURRENT_TIMESTAMP", "LOCALTIMESTAMP", "CURRENT_ROW_TIMESTAMP"})
"""The current time, which conditions may compare with a time of the row."""
_TAKES_NULLS: Final = ("FIRST_VALUE", "LAST_VALUE", "ARRAY_AGG")
_LEFT_OUT: Final = {
    "CURRENT_WATERMARK": "rows behind it are late already, and are counted; compare with NOW() in WHERE",
    "CURRENT_DATABASE": "there is one database, default_database",
}
_ELSEWHERE: Final = {
    "STRING_AGG": "LISTAGG(text, separator)", "GROUP_CONCAT": "LISTAGG(text, separator)", "CONVERT": "CAST(x AS type)",
    "ISNULL": "x IS NULL", "GETDATE": "the event time of rows instead", "LEN": "CHAR_LENGTH(text)",
    "DATEADD": "TIMESTAMPADD(unit, number, time)", "DATE_TRUNC": "FLOOR(time TO unit)",
    "COUNT_IF": "COUNT(*) FILTER (WHERE ...)", "COUNTIF": "COUNT(*) FILTER (WHERE ...)",
    "SUM_IF": "SUM(x) FILTER (WHERE ...)",
}  # fmt: skip
"""Functions of other databases, and what is written here."""
_PARSES: Final[dict[str, Callable[[str], Any]]] = {"DATE": date.fromisoformat, "TIME": time.fromisoformat}
_SHOWN: Final = {"DATE": "'2020-01-31'", "TIME": "'10:00:00'", "TIMESTAMP": "'2020-01-31 10:00:00'"}


def is_aggregate(part: Part) -> bool:
    """Whether it is a call of an aggregate over a group: not one over rows."""
    return isinstance(part, Call) and part.over is None and part.function in AGGREGATES


def has_aggregate(part: Part) -> bool:
    """Whether a call of an aggregate stands within it."""
    return any(map(is_aggregate, within(part)))


class Expressions:
    """Binds resolved expressions over the columns of some rows."""

    def __init__(self, context: Context, schema: Schema) -> None:
        self._context = context
        self._schema = schema

    def bind(self, part: Part) -> Argument:
        """A value of every row.

        Raises:
            SqlError: it cannot be computed, or not here.
        """
        with self._context.at(part.span):
            made = self._made(part)
            return made if isinstance(made, Argument) else self._typed(made, part)

    def value(self, part: Part) -> Expr:
        """The same, as an expression."""
        return self.bind(part).expr

    def condition(self, part: Part) -> Expr:
        """A condition on every row.

        Raises:
            SqlError: it is not boolean.
        """
        found = self.bind(part)
        if found.type == NULL:
            return lit(False)
        if found.type != BOOLEAN:
            raise self._context.error(
                part, f"a condition is needed here, and this is {sql_name(found.type)}; compare it"
            )
        return found.expr

    def aggregate(self, call: Call) -> Expr:
        """A value of many rows.

        Raises:
            SqlError: the arguments do not fit.
        """
        function = AGGREGATES[call.function]
        for argument in call.arguments:
            for inner in within(argument):
                if is_aggregate(inner):
                    raise self._context.error(inner, "an aggregate cannot stand within another one; use a subquery")
        arguments = [self._of_rows(self.bind(argument), call) for argument in call.arguments]
        self._check_count(call, function)
        condition = None if call.filter is None else self._per_row(self.condition(call.filter))
        options = {**dict(self._options(call)), **({"distinct": True} if call.distinct else {})}
        if call.ignore_nulls is not None:
            if call.function not in _TAKES_NULLS:
                raise self._context.error(
                    call, f"IGNORE NULLS and RESPECT NULLS are for {', '.join(_TAKES_NULLS)}, not for {call.function}"
                )
            options["ignore_nulls"] = call.ignore_nulls
        if call.order:
            raise self._context.error(
                call.order[0], f"ORDER BY within {call.function} is not supported; order by event time is what it gives"
            )
        with self._context.at(call.span):
            return function.build(arguments, options, condition)

    def _of_rows(self, argument: Argument, call: Call) -> Argument:
        """An argument of an aggregate. One that reads no column is computed for every row as others are, but for plain
        constants, of which aggregates are told by the number of rows."""
        told = (
            argument.is_constant and (argument.value is None or not call.distinct) and call.function != IN_PYTHON.name
        )
        return argument if told else replace(argument, expr=self._per_row(argument.expr))

    def _per_row(self, expr: Expr) -> Expr:
        if node_columns(expr.node) or not self._schema.names:
            return expr
        return when(col(self._schema.names[-1]).is_null() | lit(True)).then(expr).otherwise(expr)

    def _typed(self, expr: Expr, part: Part) -> Argument:
        if contains_aggregate(expr):
            raise self._context.error(part, "an aggregate cannot stand here")
        try:
            field = output_field(expr, self._schema, "sql", "value")
        except PipelineError as error:  # the place says which expression it is
            raise PipelineError(str(error).removeprefix(f"sql: {expr}: ").removeprefix("sql: ")) from error
        return Argument(expr, field.type, field.nullable)

    def _made(self, part: Part) -> Expr | Argument:
        match part:
            case Bound(column=column):
                return col(column)
            case Constant():
                return self._constant(part)
            case TimeConstant():
                return lit(self._time(part))
            case Interval():
                return interval(part.text, part.unit, part.to)
            case Cast():
                operand = self.bind(part.operand)
                kind, length = part.length or ("", None)
                return cast(operand, part.type, part.strict, length=length, pads=kind in ("CHAR", "BINARY"))
            case FieldOf():
                return self._field(part)
            case Call():
                return self._call(part)
            case Subquery() | Exists() | InQuery() | Quantified():
                raise self._context.error(part, "a subquery cannot stand here; join its table, or use it in WHERE")
            case OuterColumn():
                raise self._context.error(
                    part, "a column of the query around can stand in WHERE of a subquery only, compared by ="
                )
            case Star():
                raise self._context.error(part, "'*' cannot stand here; name a column")
            case Name():
                raise AssertionError(f"{part} was not resolved")
            case NamedArgument(name=name):
                raise self._context.error(part, f"{name} => cannot stand here; write the arguments in their order")
            case _:
                raise self._context.error(part, "this cannot stand here; it is an argument of a windowing function")

    def _constant(self, part: Constant) -> Expr:
        value = part.value
        if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
            raise self._context.error(part, "the number is larger than a BIGINT; write it with a point, as a DECIMAL")
        if isinstance(value, Decimal) and len(value.as_tuple().digits) > MOST_DIGITS:
            raise self._context.error(part, f"a DECIMAL has at most {MOST_DIGITS} digits")
        return lit(value)

    def _time(self, part: TimeConstant) -> date | datetime | time:
        text = part.text.strip()
        try:
            if part.kind != "TIMESTAMP":
                return _PARSES[part.kind](text)
            moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        except ValueError:
            raise self._context.error(
                part, f"{part.text!r} is no {part.kind}; write {part.kind} {_SHOWN[part.kind]}"
            ) from None

    def _field(self, part: FieldOf) -> Expr:
        operand = self.bind(part.operand)
        if not isinstance(operand.type, StructType):
            raise self._context.error(
                part, f"{part.field!r} cannot be taken of {sql_name(operand.type)}, which is no ROW"
            )
        names = [field.name for field in operand.type.fields]
        if part.field not in names:
            raise self._context.error(part, f"the ROW has no field {part.field!r}; {nearest(part.field, names)}")
        return operand.expr.struct.field(part.field)

    def _call(self, call: Call) -> Expr:
        if call.over is not None:
            raise self._context.error(call, f"{call.function} OVER cannot stand here; compute it in a subquery")
        if call.function in AGGREGATES and call.function not in SCALAR:
            raise self._context.error(
                call, f"the aggregate {call.function} cannot stand here; use it in SELECT or HAVING, or in a subquery"
            )
        function = SCALAR.get(call.function)
        if function is None:
            raise self._context.error(call.name if call.name.end else call.span, self._unknown(call.function))
        if call.distinct or call.filter is not None or call.order or call.ignore_nulls is not None:
            raise self._context.error(
                call, f"DISTINCT, FILTER, ORDER BY and NULLS are for aggregates, and {call.function} is none"
            )
        if call.function in ("AND", "OR") and len(call.arguments) > 2:
            return self._call(_in_halves(call))
        arguments = [self.bind(argument) for argument in call.arguments]
        self._check_count(call, function)
        return function.build(arguments, dict(self._options(call)))

    def _options(self, call: Call) -> list[tuple[str, Any]]:
        bound: list[tuple[str, Any]] = []
        for name, value in call.options:
            if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Part):  # pyright: ignore
                bound.append((name, (value[0], self.bind(value[1]))))
            else:
                bound.append((name, value))
        return bound

    def _check_count(self, call: Call, function: ScalarFunction | AggregateFunction) -> None:
        given = len(call.arguments)
        if not takes(function, given):
            raise self._context.error(
                call, f"{call.function} takes {counts(function)}, not {given}: {function.signature}"
            )

    def _unknown(self, function: str) -> str:
        if function in _LEFT_OUT:
            return f"{function} is not supported: {_LEFT_OUT[function]}"
        if function in self._context.catalogue.functions:
            return f"the Python function {function} cannot stand here; compute it in a subquery before"
        if function in WINDOW_FUNCTIONS:
            return f"{function} needs OVER (...)"
        if function in ("TUMBLE_START", "TUMBLE_END", "HOP_START", "HOP_END", "SESSION_START", "SESSION_END"):
            return f"{function} names a window of GROUP BY; write GROUP BY {function.partition('_')[0]}(...)"
        if function in _ELSEWHERE:
            return f"there is no function {function}; write {_ELSEWHERE[function]}"
        near = nearest(function, WORDS)
        return f"there is no function {function}" + (f"; {near}" if near.startswith("did") else "")


def _in_halves(call: Call) -> Call:
    """Conditions in pairs of pairs, since a thousand of them one within the other would be too deep for anybody."""
    middle = len(call.arguments) // 2
    halves = [*call.arguments[:middle]], [*call.arguments[middle:]]
    return replace(
        call, arguments=tuple(half[0] if len(half) == 1 else replace(call, arguments=(*half,)) for half in halves)
    )
