"""Which types can be cast to which, and how Polars does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.expressions.typing_rules import TypeMismatchError
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    INT64,
    NULL,
    NUMERIC,
    STRING,
    TIMESTAMP,
    DataType,
    ListType,
    polars_type,
)

if TYPE_CHECKING:
    import polars as pl

_SINGLE: Final[frozenset[tuple[DataType, DataType]]] = frozenset({
    (STRING, BINARY), (BINARY, STRING),
    (DATE, STRING), (TIMESTAMP, STRING),
    (DATE, TIMESTAMP), (TIMESTAMP, DATE),
    (TIMESTAMP, INT64), (INT64, TIMESTAMP),
    (DURATION, INT64), (INT64, DURATION),
})  # fmt: skip
_ADVICE: Final[dict[tuple[DataType, DataType], str]] = {
    (STRING, TIMESTAMP): "use .str.to_datetime(format)",
    (STRING, DATE): "use .str.to_date(format)",
    (STRING, BOOLEAN): "compare it with the text that means true",
    (DURATION, STRING): "use .dt.total_seconds() or its kin first",
}
_RFC_3339: Final = "%Y-%m-%dT%H:%M:%S%.fZ"
"""Without a fraction if it is zero, else with 3 or 6 digits."""


def check_cast(origin: DataType, to: DataType, *, strict: bool) -> None:
    """Whether a cast is possible.

    Raises:
        TypeMismatchError: it is not, and what to do instead.
    """
    if origin == BINARY and to == STRING and not strict:
        raise TypeMismatchError("cannot cast binary to string with strict=False; leave strict=False out")
    if _possible(origin, to):
        return
    advice = _ADVICE.get((origin, to), "there is no such conversion")
    if DURATION in (origin, to) or TIMESTAMP in (origin, to):
        advice = _ADVICE.get((origin, to), "cast by way of int64, which counts microseconds")
    raise TypeMismatchError(f"cannot cast {origin} to {to}; {advice}")


def _possible(origin: DataType, to: DataType) -> bool:
    if origin in (to, NULL):
        return True
    if isinstance(origin, ListType) and isinstance(to, ListType):
        plain = NUMERIC | {BOOLEAN, STRING}
        return origin.inner in plain and to.inner in plain and _possible(origin.inner, to.inner)
    if origin == STRING:
        return to in NUMERIC or to == BINARY
    if origin in NUMERIC or origin == BOOLEAN:
        return to in NUMERIC or to in (BOOLEAN, STRING) or (origin, to) in _SINGLE
    return (origin, to) in _SINGLE


def cast_polars(expression: pl.Expr, origin: DataType, to: DataType, *, strict: bool) -> pl.Expr:
    """The cast in Polars."""
    if origin == to:
        return expression
    if origin == TIMESTAMP and to == STRING:
        return expression.dt.strftime(_RFC_3339)
    return expression.cast(polars_type(to), strict=strict)
