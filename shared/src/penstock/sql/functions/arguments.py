"""What builders of functions share: calls of the catalogue of expressions, and checks of arguments and their messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, lit
from penstock.expressions.nodes import Call, Cast, Literal, Option, Value
from penstock.expressions.surface import as_node
from penstock.sql.functions.function import Argument, ScalarFunction
from penstock.types import (
    ANY_NUMBER,
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    INT8,
    INT16,
    INT32,
    INT64,
    INTEGERS,
    NULL,
    STRING,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Scalar,
    StructType,
    family,
)

TEXT: Final = frozenset[DataType]({STRING})
DAYS: Final = frozenset[DataType]({DATE, TIMESTAMP})
_NAMES: Final[dict[DataType, str]] = {
    BOOLEAN: "BOOLEAN", INT8: "TINYINT", INT16: "SMALLINT", INT32: "INT", INT64: "BIGINT", STRING: "STRING",
    BINARY: "BYTES", DATE: "DATE", TIME: "TIME", TIMESTAMP: "TIMESTAMP", DURATION: "INTERVAL", NULL: "NULL",
    Scalar("float32"): "FLOAT", Scalar("float64"): "DOUBLE", Scalar("uint8"): "SMALLINT", Scalar("uint16"): "INT",
    Scalar("uint32"): "BIGINT", Scalar("uint64"): "DECIMAL(20, 0)",
}  # fmt: skip


def sql_name(kind: DataType) -> str:
    """The type as SQL writes it."""
    match kind:
        case Scalar():
            return _NAMES[kind]
        case DecimalType(precision=precision, scale=scale):
            return f"DECIMAL({precision}, {scale})"
        case ListType(inner=inner):
            return f"ARRAY<{sql_name(inner)}>"
        case MapType(value=value):
            return f"MAP<STRING, {sql_name(value)}>"
        case StructType(fields=fields):
            return f"ROW<{', '.join(f'{field.name} {sql_name(field.type)}' for field in fields)}>"


def python_signature(name: str, parameters: Sequence[Field]) -> str:
    """A function in Python as SQL calls it: `DISCOUNTED(price DOUBLE, percent BIGINT)`."""
    return f"{name}({', '.join(f'{each.name} {sql_name(each.type)}' for each in parameters)})"


def call(function: str, *args: Argument | Expr | Value, **options: Option) -> Expr:
    """A function of the catalogue of expressions; options that are None are left out."""
    nodes = tuple(arg.expr.node if isinstance(arg, Argument) else as_node(arg, function) for arg in args)
    return Expr(Call(function, nodes, tuple((name, value) for name, value in options.items() if value is not None)))


def cast_to(value: Argument | Expr, kind: DataType, *, strict: bool = True) -> Expr:
    """The cast of the catalogue of expressions, which knows nothing of SQL's spellings."""
    expr = value.expr if isinstance(value, Argument) else value
    return Expr(Cast(expr.node, kind, strict))


def null_of(kind: DataType) -> Expr:
    """NULL of a type."""
    return cast_to(lit(None), kind)


def is_null_constant(argument: Argument) -> bool:
    """Whether it is NULL itself."""
    return argument.type == NULL or (argument.is_constant and argument.value is None)


def is_kind(argument: Argument, kinds: Collection[DataType]) -> bool:
    """Whether it has one of these types, or is NULL."""
    return argument.type == NULL or family(argument.type) in kinds


def need(name: str, argument: Argument, kinds: Collection[DataType], what: str) -> Argument:
    """The argument, which must have one of these types.

    Raises:
        PipelineError: it has not.
    """
    if not is_kind(argument, kinds):
        raise PipelineError(f"{name} needs {what}, got {sql_name(argument.type)}; write CAST(... AS ...)")
    return argument


def need_text(name: str, argument: Argument) -> Argument:
    """The argument, which must be text."""
    return need(name, argument, TEXT, "text")


def need_number(name: str, argument: Argument) -> Argument:
    """The argument, which must be a number."""
    return need(name, argument, ANY_NUMBER, "a number")


def need_integer(name: str, argument: Argument) -> Argument:
    """The argument, which must be an integer."""
    return need(name, argument, INTEGERS, "an integer")


def need_boolean(name: str, argument: Argument) -> Argument:
    """The argument, which must be a condition; NULL is one that is unknown."""
    need(name, argument, {BOOLEAN}, "a condition")
    return Argument(null_of(BOOLEAN), BOOLEAN, True) if argument.type == NULL else argument


def need_day(name: str, argument: Argument) -> Argument:
    """The argument, which must be a date or timestamp."""
    return need(name, argument, DAYS, "a DATE or TIMESTAMP")


def constant_text(name: str, argument: Argument, what: str) -> str:
    """The value of a constant text.

    Raises:
        PipelineError: it is none.
    """
    if not argument.is_constant or not isinstance(argument.value, str):
        raise PipelineError(f"{name} needs {what} that is a text constant, got {_shown(argument)}")
    return argument.value


def constant_integer(name: str, argument: Argument, what: str) -> int:
    """The value of a constant integer.

    Raises:
        PipelineError: it is none.
    """
    value = argument.value if argument.is_constant else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise PipelineError(f"{name} needs {what} that is an integer constant, got {_shown(argument)}")
    return value


def _shown(argument: Argument) -> str:
    return repr(argument.value) if argument.is_constant else f"a {sql_name(argument.type)} of every row"


def constant_of(value: Value) -> Argument:
    """A constant as an argument."""
    literal = Literal(value)
    return Argument(Expr(literal), literal.type, value is None)


def argument(expr: Expr, kind: DataType, *, nullable: bool) -> Argument:
    """An argument that a builder made itself."""
    return Argument(expr, kind, nullable)


def by_name(rows: Collection[ScalarFunction]) -> dict[str, ScalarFunction]:
    """Rows by their names and aliases."""
    return {name: row for row in rows for name in (row.name, *row.aliases)}
