"""Which types can be cast to which, and how Polars does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.expressions.typing_rules import TypeMismatchError
from penstock.types import (
    ANY_NUMBER,
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOATS,
    INT64,
    NULL,
    NUMERIC,
    STRING,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    ListType,
    family,
    polars_type,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

_SINGLE: Final[frozenset[tuple[DataType, DataType]]] = frozenset({
    (STRING, BINARY), (BINARY, STRING),
    (DATE, STRING), (TIMESTAMP, STRING), (TIME, STRING),
    (DATE, TIMESTAMP), (TIMESTAMP, DATE),
    (TIMESTAMP, INT64), (INT64, TIMESTAMP),
    (DURATION, INT64), (INT64, DURATION),
})  # fmt: skip
_ADVICE: Final[dict[tuple[DataType, DataType], str]] = {
    (STRING, TIMESTAMP): "use .str.to_datetime(format)",
    (STRING, DATE): "use .str.to_date(format)",
    (DURATION, STRING): "use .dt.total_seconds() or its kin first",
}
_SPELLINGS: Final[dict[str, bool]] = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
"""What Flink reads as a boolean, in upper or lower case (its BinaryStringDataUtil)."""
_RFC_3339: Final = "%Y-%m-%dT%H:%M:%S%.fZ"
_TIME_OF_DAY: Final = "%H:%M:%S%.f"
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
    if isinstance(origin, DecimalType) or isinstance(to, DecimalType):
        other = to if isinstance(origin, DecimalType) else origin
        return family(other) in ANY_NUMBER or other == STRING
    if origin == STRING:
        return to in NUMERIC or to in (BINARY, BOOLEAN)
    if origin in NUMERIC or origin == BOOLEAN:
        return to in NUMERIC or to in (BOOLEAN, STRING) or (origin, to) in _SINGLE
    return (origin, to) in _SINGLE


def cast_polars(expression: pl.Expr, origin: DataType, to: DataType, *, strict: bool) -> pl.Expr:
    """The cast in Polars."""
    if origin == to:
        return expression
    if origin in (TIME, TIMESTAMP) and to == STRING:
        return expression.dt.to_string(_RFC_3339 if origin == TIMESTAMP else _TIME_OF_DAY)
    if isinstance(to, DecimalType):
        return _decimal_of(expression, origin, to, strict=strict)
    if origin == STRING and to == BOOLEAN:
        return _boolean_of(expression, strict=strict)
    return expression.cast(polars_type(to), strict=strict)


def _decimal_of(value: pl.Expr, origin: DataType, to: DecimalType, *, strict: bool) -> pl.Expr:
    # Imported here because it loads Polars.
    from penstock.expressions.decimal_arithmetic import parsed, rounded

    if origin in FLOATS:  # the number that is shown: 1.105 and not what comes next to it in binary
        return parsed(value.cast(polars_type(STRING)), to, strict=strict)
    if origin == STRING:
        return parsed(value, to, strict=strict)
    if isinstance(origin, DecimalType) and origin.scale > to.scale:
        return rounded(value, origin, to, strict=strict)
    return value.cast(polars_type(to), strict=strict)


def _boolean_of(text: pl.Expr, *, strict: bool) -> pl.Expr:
    import polars as pl

    words, values = list(_SPELLINGS), list(_SPELLINGS.values())
    found = text.str.to_lowercase().replace_strict(words, values, default=None, return_dtype=pl.Boolean())
    if not strict:
        return found

    def checked(columns: Sequence[pl.Series]) -> pl.Series:
        unread = columns[0].filter(columns[0].is_not_null() & columns[1].is_null())
        if len(unread):
            raise pl.exceptions.InvalidOperationError(
                f"conversion from text to boolean failed for {unread[0]!r:.100}; there are true, t, yes, y, 1 and "
                "false, f, no, n, 0"
            )
        return columns[1]

    return pl.map_batches([text, found], checked, pl.Boolean(), is_elementwise=True)
