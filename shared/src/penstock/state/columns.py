"""Columns of scalars to lists of Python values and back, exactly and fast.

Used wherever Python code meets columns: rows of per-row functions (`penstock.task.rows`), keys of object state. A
value that does not belong into a column is found and named; what is said about it is the caller's business.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np
import polars as pl

from penstock.core.arguments import plain
from penstock.core.batches import of_calendar
from penstock.core.decimals import checked_units
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOATS,
    INTEGERS,
    NULL,
    STRING,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    Field,
    Schema,
    polars_type,
)
from penstock.types.decimal_columns import decimals_of, exact_decimals

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_MICROSECOND: Final = timedelta(microseconds=1)
_BESIDE: Final = "__beside"
NAN: Final = float("nan")
"""The one NaN that keys have: a dictionary finds a NaN only by identity."""


class WrongValueError(ValueError):
    """A value that its column cannot hold."""

    def __init__(self, field: Field, value: Any, reason: str = "") -> None:
        super().__init__(f"column {field.name!r} is {field.type}, got {value!r}{reason}")


# -- to Python ----------------------------------------------------------------------------------------------------------


def to_python(series: pl.Series, kind: DataType) -> list[Any]:
    """The values of a column of scalars; timestamps are aware datetimes in UTC."""
    if kind not in (TIMESTAMP, DATE):
        return series.to_list()
    with of_calendar([series]):
        return _datetimes(series) if kind == TIMESTAMP else series.to_list()


def _datetimes(series: pl.Series) -> list[datetime | None]:
    """Aware datetimes. Adding a timedelta to the epoch is four times as fast as Polars' own conversion."""
    nulls = series.is_null().to_numpy() if series.null_count() else None
    micros = series.to_physical()
    deltas: NDArray[Any] = (micros if nulls is None else micros.fill_null(0)).to_numpy().view("m8[us]")
    moments: list[datetime | None] = list(map(_EPOCH.__add__, deltas.tolist()))
    if nulls is not None:
        for row in np.flatnonzero(nulls).tolist():
            moments[row] = None
    return moments


def key_values(frame: pl.DataFrame, keys: Schema) -> list[Any]:
    """The key of every row: the value of the one key column, or a tuple of several.

    Equal keys are equal and hash alike as Python objects, NaN included, and are spelled as in `canonical_keys`.
    """
    parts = [_key_part(frame[field.name], field.type) for field in keys]
    return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def _key_part(series: pl.Series, kind: DataType) -> list[Any]:
    if kind not in FLOATS:
        return to_python(series, kind)
    series = series.to_frame().select(_canonical(series.name, kind)).to_series()
    if series.is_nan().any():
        # A dictionary finds a NaN only by identity, so all of them become one object.
        return [NAN if value != value else value for value in series.to_list()]
    return series.to_list()


def joined_by_keys(
    left: pl.DataFrame, right: pl.DataFrame, names: Sequence[str], how: Literal["left", "semi", "anti"]
) -> pl.DataFrame:
    """`left.join(right)` by columns of keys, in the order of `left`; nulls are equal, and so are all NaN.

    Where both sides have one such column that Polars knows to be sorted, as every column of one row is, it merges them,
    and then no NaN finds another. It does not merge by two columns.
    """
    if len(names) > 1 or not left.schema[names[0]].is_float():
        return left.join(right, on=names, how=how, nulls_equal=True, maintain_order="left")
    beside = pl.lit(0, pl.UInt8).alias(_BESIDE)
    both = joined_by_keys(left.with_columns(beside), right.with_columns(beside), [*names, _BESIDE], how)
    return both.drop(_BESIDE)


def canonical_keys(frame: pl.DataFrame, keys: Schema) -> pl.DataFrame:
    """The frame with one spelling of keys that are equal: 0.0 for -0.0, one NaN. They are hashed in that form as well.

    Otherwise results would be those of -0.0 or of 0.0 by which row happens to come first.
    """
    spelled = [_canonical(field.name, field.type) for field in keys if field.type in FLOATS]
    return frame.with_columns(spelled) if spelled else frame


def _canonical(name: str, kind: DataType) -> pl.Expr:
    value, float_type = pl.col(name), polars_type(kind)
    zero, nan = pl.lit(0.0, float_type), pl.lit(NAN, float_type)
    return pl.when(value == 0).then(zero).when(value.is_nan()).then(nan).otherwise(value).alias(name)


def key_frame(keys: Sequence[Any], schema: Schema) -> pl.DataFrame:
    """The inverse of `key_values`."""
    if len(schema.fields) == 1:
        columns: Sequence[Sequence[Any]] = [keys]
    else:
        columns = list(zip(*keys, strict=True)) if keys else [[] for _ in schema.fields]
    return pl.DataFrame(
        [
            scalar_column(Field(field.name, field.type, nullable=True), column)
            for field, column in zip(schema.fields, columns, strict=True)
        ]
    )


# -- from Python --------------------------------------------------------------------------------------------------------

_PYTHON_OF: Final[dict[DataType, tuple[type, ...]]] = {
    BOOLEAN: (bool,), STRING: (str,), BINARY: (bytes,), DATE: (date,), TIME: (time,), TIMESTAMP: (datetime,),
    DURATION: (timedelta,), NULL: (), **dict.fromkeys(INTEGERS, (int,)), **dict.fromkeys(FLOATS, (float, int)),
}  # fmt: skip


def scalar_column(field: Field, values: Sequence[Any]) -> pl.Series:
    """A column of exactly the field's type from Python values.

    An int may stand for a float, and numpy's scalars for Python's; nothing else is converted.

    Raises:
        WrongValueError: a value does not belong into the column.
    """
    kinds = set(map(type, values))
    if type(None) in kinds:
        if not field.nullable and field.type != NULL:
            raise WrongValueError(field, None, f"; declare it as '... | None' if {field.name} may be missing")
        kinds.discard(type(None))
    if isinstance(field.type, DecimalType):
        return _decimal_column(field, field.type, values)
    if not kinds.issubset(_PYTHON_OF[field.type]):
        values = _converted(field, values)
    try:
        if field.type == TIMESTAMP:
            return _timestamp_column(field, values)
        if field.type == TIME:
            _refuse_offsets(field, values)
        return pl.Series(field.name, values, polars_type(field.type), strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise _culprit(field, values, error) from error


def _decimal_column(field: Field, kind: DecimalType, values: Sequence[Any]) -> pl.Series:
    found = exact_decimals(field.name, values, kind)
    if found is not None:
        return found
    units: list[int | None] = []
    for value in values:
        try:
            units.append(None if value is None else checked_units(plain(value), kind.precision, kind.scale))
        except ValueError as error:
            raise WrongValueError(field, value, f"; {error}") from None
    return decimals_of(field.name, units, kind)


def _timestamp_column(field: Field, values: Sequence[Any]) -> pl.Series:
    for value in values:
        if value is not None and value.tzinfo is None:
            raise WrongValueError(field, value, " without a time zone; use datetime(..., tzinfo=UTC)")
    micros = [None if value is None else (value - _EPOCH) // _ONE_MICROSECOND for value in values]
    return pl.Series(field.name, micros, pl.Int64).cast(pl.Datetime("us", "UTC"))


def _refuse_offsets(field: Field, values: Sequence[time | None]) -> None:
    """Polars would leave them out of times of day without a word."""
    for value in values:
        if value is not None and value.tzinfo is not None:
            raise WrongValueError(field, value, ", which has an offset, and a time of day has none; make it one of UTC")


def _converted(field: Field, values: Sequence[Any]) -> list[Any]:
    """Values of subclasses and of numpy's scalar types as the plain Python values that they are."""
    convert = _converter(field)
    return [None if value is None else convert(value) for value in values]


def _converter(field: Field) -> Callable[[Any], Any]:
    kind = field.type
    accepted = _PYTHON_OF[kind]
    abstract: tuple[type, ...] = ()
    plain: Callable[[Any], Any] = _same
    if kind in INTEGERS:
        abstract, plain = (numbers.Integral,), int
    elif kind in FLOATS:
        abstract, plain = (numbers.Real,), float
    elif kind == BOOLEAN:
        abstract, plain = (np.bool_,), bool
    elif kind == STRING:
        plain = str.__str__
    elif kind == BINARY:
        plain = bytes

    def convert(value: Any) -> Any:
        wrong = (
            not isinstance(value, accepted + abstract)
            or (isinstance(value, bool) and kind != BOOLEAN)
            or (isinstance(value, datetime) and kind == DATE)
        )
        if wrong:
            raise WrongValueError(field, value)
        return plain(cast("Any", value))

    return convert


def _same(value: Any) -> Any:
    return value


def _culprit(field: Field, values: Sequence[Any], error: Exception) -> WrongValueError:
    """The first value that cannot be stored alone: a number out of range, text that is no Unicode."""
    for value in values:
        try:
            pl.Series(field.name, [value], polars_type(field.type), strict=True)
        except (TypeError, OverflowError, UnicodeError, pl.exceptions.PolarsError):
            return WrongValueError(field, value, ", which does not fit")
    return WrongValueError(field, values[0] if values else None, f": {error}")
