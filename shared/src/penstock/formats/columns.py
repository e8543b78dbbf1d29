"""Python values to columns of a schema, strictly: the one place that says which value fits which column.

Columns are built as a whole, which is fast; if one does not fit, the rows are looked at one by one, so that the bad ones
are found with their reason and the others stay. Decoders and the iterables source share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.core.decimals import checked_units, of_units
from penstock.errors import closest
from penstock.types import (
    FLOATS,
    INTEGERS,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Scalar,
    Schema,
    StructType,
    polars_type,
)
from penstock.types.decimal_columns import decimals_of, exact_decimals

if TYPE_CHECKING:
    import polars as pl

Columns = Sequence[Sequence[Any]]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
MIN_MICROS: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
MAX_MICROS: Final = (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""Between these a timestamp is a `datetime`, so that every row can become an object."""

_PYTHON: Final[dict[str, tuple[type, ...]]] = {
    "boolean": (bool,), "string": (str,), "binary": (bytes, bytearray), "duration": (timedelta,), "null": (),
    "time": (time,),
}  # fmt: skip


MISSING: Final = "missing; declare it as '... | None' if it may be (the event time never may)"
"""What is said of a value that is not there."""


def missing(name: str, there: Iterable[str]) -> str:
    """What is said of a value that is not there, where the record has these names: one may be spelled otherwise."""
    near = closest(name, list(there))
    return MISSING if near is None else f"missing, and the record has {near!r}; call the field so, if that is meant"


def number_for_moment(name: str) -> str:
    """What to do about a column of `datetime` of which the data has numbers."""
    return (
        f"{name}: a number, and the field is a datetime; declare it as int (or float), and if it is the event "
        f'time, say in which unit: event_time="{name}", time_unit="s" ("ms", "us", "ns")'
    )


class WrongValueError(ValueError):
    """A value does not fit its column; the message says which and why."""


class FrameBuilder:
    """Builds frames of one schema.

    Args:
        schema: the columns, in the order in which values are given.
        zone: the zone of naive datetimes; None: they are wrong values.
    """

    def __init__(self, schema: Schema, zone: tzinfo | None = None) -> None:
        self.schema = schema
        self._zone = zone

    def frame(self, columns: Columns) -> tuple[pl.DataFrame, list[tuple[int, str]]]:
        """The rows that fit, and for each other row its index and what is wrong."""
        import polars as pl

        try:
            return self.strict(columns), []
        except (ValueError, TypeError, AttributeError, OverflowError, pl.exceptions.PolarsError):
            return self._row_by_row(columns)

    def strict(self, columns: Columns) -> pl.DataFrame:
        """The frame; raises one of several exceptions if any value does not fit."""
        import polars as pl

        pairs = zip(self.schema.fields, columns, strict=True)
        return pl.DataFrame([self.series(field, values) for field, values in pairs])

    def series(self, field: Field, values: Sequence[Any]) -> pl.Series:
        """One column; raises as `strict` does."""
        import polars as pl

        kind = field.type
        if isinstance(kind, DecimalType):
            return not_null(_decimals(field.name, values, kind), field)
        if isinstance(kind, Scalar) and kind.name == "timestamp":
            series = timestamps(field.name, [None if value is None else self._micros(value) for value in values])
        elif isinstance(kind, Scalar) and kind.name == "duration":
            micros = [None if value is None else value // _MICROSECOND for value in values]
            series = pl.Series(field.name, micros, dtype=pl.Int64).cast(pl.Duration("us"))
        elif isinstance(kind, Scalar) and kind.name not in ("date", "time"):
            series = pl.Series(field.name, values, dtype=polars_type(kind), strict=True)
        else:
            checked = [self._checked(value, kind, field.name) for value in values]
            series = pl.Series(field.name, checked, dtype=polars_type(kind), strict=True)
        return not_null(series, field)

    def _micros(self, moment: datetime) -> int:
        if moment.tzinfo is None and self._zone is not None:
            return self._of_clock(moment, self._zone)
        return (moment - _EPOCH) // _MICROSECOND  # a TypeError if it is naive

    def _of_clock(self, clock: datetime, zone: tzinfo) -> int:
        """The moment at which clocks show this time, of two the first (or by `fold` the second)."""
        micros = (clock.replace(tzinfo=zone) - _EPOCH) // _MICROSECOND
        try:
            shown = (_EPOCH + micros * _MICROSECOND).astimezone(zone).replace(tzinfo=None)
        except OverflowError:  # at the ends of the calendar, which others check
            return micros
        if shown != clock:
            raise WrongValueError(f"there is no {clock.isoformat()} in {zone}, where clocks skip it")
        return micros

    def _row_by_row(self, columns: Columns) -> tuple[pl.DataFrame, list[tuple[int, str]]]:
        good: list[list[Any]] = [[] for _ in columns]
        bad: list[tuple[int, str]] = []
        for index, row in enumerate(zip(*columns, strict=True)):
            try:
                values = [
                    self._required(value, field, field.name)
                    for field, value in zip(self.schema.fields, row, strict=True)
                ]
            except WrongValueError as error:
                bad.append((index, str(error)))
                continue
            for column, value in zip(good, values, strict=True):
                column.append(value)
        return self.strict(good), bad

    def _required(self, value: Any, field: Field, path: str) -> Any:
        if value is None and not field.nullable:
            raise WrongValueError(f"{path}: {MISSING}")
        return self._checked(value, field.type, path)

    def _checked(self, value: Any, kind: DataType, path: str) -> Any:
        """The value as Polars takes it."""
        if value is None:
            return None
        if isinstance(kind, ListType):
            if not isinstance(value, list | tuple):
                raise _wrong(value, kind, path)
            items = cast("Sequence[Any]", value)
            return [self._checked(item, kind.inner, f"{path}[{index}]") for index, item in enumerate(items)]
        if isinstance(kind, MapType):
            return self._checked_map(value, kind, path)
        if isinstance(kind, StructType):
            return {
                member.name: self._required(_part(value, member, kind, path), member, f"{path}.{member.name}")
                for member in kind.fields
            }
        if isinstance(kind, DecimalType):
            return _decimal(value, kind, path)
        return self._scalar(value, kind, path)

    def _checked_map(self, value: Any, kind: MapType, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _wrong(value, kind, path)
        entries = cast("Mapping[Any, Any]", value)
        for key in entries:
            if not isinstance(key, str):
                raise WrongValueError(f"{path}: the key {key!r:.100} is no text")
            _check_unicode(key, path)
        return {key: self._checked(part, kind.value, f"{path}[{key!r}]") for key, part in entries.items()}

    def _scalar(self, value: Any, kind: Scalar, path: str) -> Any:
        if kind in INTEGERS:
            return _integer(value, kind, path)
        if kind in FLOATS:
            if not isinstance(value, Real | Decimal):
                raise _wrong(value, kind, path)
            try:
                return float(value)
            except OverflowError:
                raise WrongValueError(f"{path}: {value!s:.40}... does not fit into {kind}") from None
        if kind.name == "timestamp":
            return self._timestamp(value, kind, path)
        if kind.name == "date":
            if not isinstance(value, date) or isinstance(value, datetime):
                raise _wrong(value, kind, path)
            return value
        if kind.name == "boolean" and getattr(value, "dtype", None) == "bool":
            return bool(value)  # NumPy's
        if not isinstance(value, _PYTHON[kind.name]):
            raise _wrong(value, kind, path)
        if isinstance(value, time) and value.tzinfo is not None:
            raise WrongValueError(f"{path}: the time {value.isoformat()} has an offset; a time of day has none")
        if isinstance(value, timedelta) and not -(2**63) <= value // _MICROSECOND < 2**63:
            raise WrongValueError(f"{path}: the duration {value} does not fit into 64 bits of microseconds")
        if isinstance(value, str):
            _check_unicode(value, path)
        return bytes(value) if isinstance(value, bytearray) else value

    def _timestamp(self, value: Any, kind: Scalar, path: str) -> datetime:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise WrongValueError(
                f"{path}: expected {kind}, got the number {value!r}; declare the column as int or float, and say what it "
                f"counts: event_time={path!r}, time_unit='ms', or with_event_time(..., time_unit='ms')"
            )
        if not isinstance(value, datetime):
            raise _wrong(value, kind, path)
        if value.tzinfo is None and self._zone is None:
            raise WrongValueError(
                f"{path}: the timestamp {value.isoformat()} has no time zone; name its zone with timezone= at the source"
            )
        try:
            micros = self._micros(value)
        except WrongValueError as error:
            raise WrongValueError(f"{path}: {error}") from None
        if not MIN_MICROS <= micros <= MAX_MICROS:
            raise WrongValueError(f"{path}: the timestamp {value.isoformat()} is not within the years 1 to 9999 of UTC")
        return _EPOCH + micros * _MICROSECOND


def timestamps(name: str, micros: Sequence[int | None]) -> pl.Series:
    """A timestamp column; an `OverflowError` if one is outside of what a datetime can be."""
    import polars as pl

    return within_years(pl.Series(name, micros, dtype=pl.Int64)).cast(pl.Datetime("us", "UTC"))


def within_years(micros: pl.Series) -> pl.Series:
    """The Int64 series unchanged; an `OverflowError` if one value is outside of what a datetime can be."""
    least, most = cast("int | None", micros.min()), cast("int | None", micros.max())
    if least is not None and most is not None and not MIN_MICROS <= least <= most <= MAX_MICROS:
        raise OverflowError(micros.name)
    return micros


def not_null(series: pl.Series, field: Field) -> pl.Series:
    """The series unchanged; a `WrongValueError` if it must not have the nulls that it has."""
    if not field.nullable and series.null_count():
        raise WrongValueError(f"{field.name}: missing")
    return series


def _decimals(name: str, values: Sequence[Any], kind: DecimalType) -> pl.Series:
    found = exact_decimals(name, values, kind)
    if found is not None:
        return found
    units = [None if value is None else checked_units(value, kind.precision, kind.scale) for value in values]
    return decimals_of(name, units, kind)


def _decimal(value: Any, kind: DecimalType, path: str) -> Decimal:
    try:
        return of_units(checked_units(value, kind.precision, kind.scale), kind.scale)
    except ValueError as error:
        if isinstance(value, Decimal):
            raise WrongValueError(f"{path}: {value} does not fit into {kind}; {error}") from None
        raise WrongValueError(f"{_wrong(value, kind, path)}; {error}") from None


def _integer(value: Any, kind: Scalar, path: str) -> int:
    if not isinstance(value, Integral):
        raise _wrong(value, kind, path)
    value = int(value)
    bits = int(kind.name.removeprefix("u").removeprefix("int"))
    least, most = (0, 2**bits - 1) if kind.name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if not least <= value <= most:
        raise WrongValueError(f"{path}: {value} does not fit into {kind}, {least} to {most}")
    return value


def _part(value: Any, member: Field, kind: StructType, path: str) -> Any:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get(member.name, member.default)
    try:
        return getattr(value, member.name)
    except AttributeError:
        raise _wrong(value, kind, path) from None


def _check_unicode(value: str, path: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise WrongValueError(
            f"{path}: the text has a lone surrogate at index {error.start}, which no file can hold"
        ) from error


def _wrong(value: Any, kind: DataType, path: str) -> WrongValueError:
    return WrongValueError(f"{path}: expected {kind}, got {value!r:.100}")
