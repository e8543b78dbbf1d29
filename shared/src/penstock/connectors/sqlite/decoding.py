"""Values of SQLite to columns of a schema, strictly: what is not of the type of its column makes a bad row."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.connectors.sqlite.column_types import MOST_REAL_DIGITS
from penstock.core.decimals import of_text
from penstock.formats.columns import FrameBuilder
from penstock.formats.decoding import JsonDecoder
from penstock.types import (
    BOOLEAN,
    DATE,
    DURATION,
    FLOATS,
    TIME,
    TIMESTAMP,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
)

if TYPE_CHECKING:
    import polars as pl

Row = tuple[Any, ...]
_BOOLEANS: Final = {0: False, 1: True}
_OF_TEXT: Final[dict[DataType, Any]] = {DATE: date, TIME: time, TIMESTAMP: datetime, DURATION: timedelta}
_FINER: Final = re.compile(r"(\.[0-9]{6})[0-9]+")
_NOT_FINER: Final = len("2026-01-01T00:00:00.123456")
"""A timestamp of so many characters, without the `Z`, has nothing behind microseconds that would have to be cut."""


class RowDecoder:
    """Makes frames of a schema of what SQLite gives for its columns.

    Args:
        schema: the columns, in the order in which values are given.
        zone: the zone of timestamps without offset; None: they make bad rows.
    """

    def __init__(self, schema: Schema, zone: tzinfo | None) -> None:
        self._builder = FrameBuilder(schema, zone)
        self._zone = zone
        self._conversions = [self._conversion(field) for field in schema]

    def frame(self, rows: Sequence[Row]) -> tuple[pl.DataFrame, list[tuple[int, str]]]:
        """The rows that fit, in order, and for each other one its index and what is wrong."""
        bad: dict[int, str] = {}
        columns: list[Sequence[Any]] = [list(column) for column in zip(*rows, strict=True)]
        for place, convert in enumerate(self._conversions):
            if convert is not None:
                columns[place] = convert(columns[place], bad)
        kept = [index for index in range(len(rows)) if index not in bad] if bad else range(len(rows))
        if bad:
            columns = [[column[index] for index in kept] for column in columns]
        frame, wrong = self._builder.frame(columns)
        return frame, sorted([*bad.items(), *((kept[index], reason) for index, reason in wrong)])

    def _conversion(self, field: Field) -> Callable[[Sequence[Any], dict[int, str]], Sequence[Any]] | None:
        """What a column needs before it is built; it adds bad rows. A value that is left as it is meets the builder."""
        if isinstance(field.type, ListType | MapType | StructType):
            decoder = JsonDecoder(Schema((Field(field.name, field.type, nullable=True),)), self._zone)
            return lambda values, bad: _json(decoder, field.name, values, bad)
        one = _converter(field.type)
        return None if one is None else lambda values, bad: _converted(one, field, values, bad)


def _converter(kind: DataType) -> Callable[[Any], Any] | None:
    """Makes a value of another type, or raises a `ValueError` that says why it cannot; None: nothing is to be made."""
    if isinstance(kind, DecimalType):
        return _decimal
    if kind == BOOLEAN:
        return lambda value: _BOOLEANS.get(value, value)
    if kind in FLOATS:
        return _exact_float
    target = _OF_TEXT.get(kind)
    if target is None:
        return None

    def parse(value: Any) -> Any:
        return msgspec.convert(_FINER.sub(r"\1", value), target) if isinstance(value, str) else value

    return parse


def _converted(one: Callable[[Any], Any], field: Field, values: Sequence[Any], bad: dict[int, str]) -> Sequence[Any]:
    """The values of a column: as a whole where that is the same and faster, else one by one."""
    if field.type in FLOATS and not any(type(value) is int for value in values):
        return values
    if field.type == TIMESTAMP:
        with contextlib.suppress(msgspec.ValidationError, TypeError):
            if all(value is None or len(value) - (value[-1:] == "Z") <= _NOT_FINER for value in values):
                return msgspec.convert(values, list[datetime | None])
    made: list[Any] = []
    for index, value in enumerate(values):
        try:
            made.append(None if value is None else one(value))
        except (ValueError, msgspec.MsgspecError, OverflowError) as error:
            bad.setdefault(index, f"{field.name}: expected {field.type}, got {value!r:.100}; {error}")
            made.append(None)
    return made


def _decimal(value: Any) -> Any:
    """A number with a floating point is what SQLite shows of it: 15 digits, so a sum of 1.1 and 2.2 is 3.3."""
    if isinstance(value, float):
        return of_text(f"{value:.{MOST_REAL_DIGITS}g}") or Decimal(value)
    if isinstance(value, str):
        found = of_text(value)
        if found is None:
            raise ValueError("it is no number")
        return found
    return value


def _exact_float(value: Any) -> Any:
    if isinstance(value, int) and int(float(value)) != value:
        raise ValueError("a number with a floating point would round it")
    return value


def _json(decoder: JsonDecoder, name: str, values: Sequence[Any], bad: dict[int, str]) -> Sequence[Any]:
    """The values of a column of JSON texts."""
    begin, documents = b"{" + msgspec.json.encode(name) + b":", list[bytes]()
    for index, value in enumerate(values):
        if value is not None and not isinstance(value, str):
            bad.setdefault(index, f"{name}: expected a text of JSON, got {value!r:.100}")
            value = None
        text = b"null" if value is None else value.encode(errors="surrogateescape")
        documents.append(begin + text + b"}")
    decoded = decoder.decode_values(documents)
    wrong = {line.index: line.error for line in decoded.bad}
    for index, reason in wrong.items():
        told = reason if reason.startswith(name) else f"{name}: {reason}"
        bad.setdefault(index, f"{told}; the value is {values[index]!r:.100}")
    found = iter(decoded.frame[name].to_list())
    return [None if index in wrong else next(found) for index in range(len(values))]
