"""What stored values look like as columns: from the described type of a state to a Polars type, there and back.

A savepoint names the type of every state as `penstock.state.declarations.describe_type` does and holds its values as
msgpack, so they become typed columns without the user's classes: a record is a struct, a list, set or tuple of any
length a list, a dictionary a list of structs `key` and `value`. What no column can have (`Any`, unions of several types,
tagged or recursive records) is JSON text. Responsible for single values; which rows there are is `tables`' business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final, cast

import msgspec
import polars as pl

from penstock.errors import CorruptDataError

_INT64: Final = range(-(2**63), 2**63)
_UTC_MICROS: Final = pl.Datetime("us", "UTC")
_OMITTED: Final = object()
"""Stands for a field that is left out of a record, so that its default holds."""


class UnstorableError(ValueError):
    """A value of a column that its state cannot hold; the message ends a sentence that began with the state's name."""


class _WideIntegerError(ValueError):
    """An integer that 64 bits do not hold."""


@dataclass(frozen=True)
class Shape:
    """A stored type as a column."""

    dtype: pl.DataType
    nullable: bool
    _read: Callable[[Any], Any]
    _write: Callable[[Any], Any]

    def read(self, value: Any) -> Any:
        """The column's value of one that msgpack gave."""
        return None if value is None else self._read(value)

    def write(self, value: Any) -> Any:
        """The inverse; raises `UnstorableError`."""
        if value is not None:
            return self._write(value)
        if not self.nullable:
            raise UnstorableError("is null, which its declared type is not")
        return None


def shape_of(described: Any, *, wide: bool = False) -> Shape:
    """The shape of a described type; integers have 128 bits if `wide`."""
    if isinstance(described, str):
        return _scalar(described, wide)
    match cast("dict[str, Any]", described):
        case {"union": parts}:
            return _union(parts, wide)
        case {"list": item}:
            inner = shape_of(item, wide=wide)
            return _plain(pl.List(inner.dtype), _each(inner.read), _each(inner.write))
        case {"tuple": [_, *_] as parts}:
            return _tuple([shape_of(part, wide=wide) for part in parts])
        case {"dict": [keys, values]}:
            return _dictionary(shape_of(keys, wide=wide), shape_of(values, wide=wide))
        case {"struct": _, "fields": [_, *_]} if "tag" not in described:
            return _record(described, wide)
        case {"enum": members}:
            return _enum(members)
        case _:
            return _JSON


def values_column(name: str, described: Any, stored: Sequence[bytes], where: str) -> pl.Series:
    """Stored values as a column.

    Integers that 64 bits do not hold make all integers of the column `Int128`.

    Raises:
        CorruptDataError: a value is not msgpack, or not of the described type.
    """
    try:
        raw = [msgspec.msgpack.decode(data, strict=False) for data in stored]
        try:
            return _column(name, shape_of(described), raw)
        except _WideIntegerError:
            return _column(name, shape_of(described, wide=True), raw)
    except (
        msgspec.MsgspecError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        pl.exceptions.PolarsError,
    ) as error:
        raise CorruptDataError(f"{where}: a stored value is not readable: {error}") from error


def _column(name: str, shape: Shape, raw: Sequence[Any]) -> pl.Series:
    return pl.Series(name, [shape.read(value) for value in raw], shape.dtype, strict=True)


def accepted_types(described: Any) -> tuple[pl.DataType, ...]:
    """The column types that a state of this type can be replaced from, the usual one first."""
    usual, wide = shape_of(described).dtype, shape_of(described, wide=True).dtype
    return (usual,) if usual == wide else (usual, wide)


# -- scalars ------------------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


def _plain(
    dtype: pl.DataType | type[pl.DataType], read: Callable[[Any], Any] = _same, write: Callable[[Any], Any] = _same
) -> Shape:
    return Shape(dtype() if isinstance(dtype, type) else dtype, False, read, write)


def _scalar(name: str, wide: bool) -> Shape:
    if name == "int":
        return _plain(pl.Int128) if wide else _plain(pl.Int64, _narrow)
    return _SCALARS.get(name, _JSON)


def _narrow(value: Any) -> int:
    if value not in _INT64:
        raise _WideIntegerError
    return value


def _moment(value: Any) -> datetime:
    """A datetime; one without a zone is shown as UTC, because a column has one zone."""
    moment = msgspec.convert(value, datetime)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _of_json(text: Any) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise UnstorableError(f"is not JSON: {error}") from error


_JSON: Final = Shape(pl.String(), True, _json_text, _of_json)
_SCALARS: Final[dict[str, Shape]] = {
    "none": Shape(pl.Null(), True, _same, _same),
    "bool": _plain(pl.Boolean),
    "float": _plain(pl.Float64, float),
    "str": _plain(pl.String),
    "bytes": _plain(pl.Binary),
    "bytearray": _plain(pl.Binary),
    "memoryview": _plain(pl.Binary),
    "uuid": _plain(pl.String, str),
    "decimal": _plain(pl.String, str),
    "datetime": _plain(_UTC_MICROS, _moment),
    "date": _plain(pl.Date, lambda value: msgspec.convert(value, date)),
    "time": _plain(pl.Time, lambda value: msgspec.convert(value, time)),
    "timedelta": _plain(pl.Duration("us"), lambda value: msgspec.convert(value, timedelta)),
}


def _enum(members: Sequence[str]) -> Shape:
    """Members by value: numbers where all are numbers, else text."""
    numbers = bool(members) and all(member.removeprefix("-").isdecimal() for member in members)

    def write(value: Any) -> Any:
        if str(value) not in members:
            raise UnstorableError(f"is {value!r}, and there are: {', '.join(members)}")
        return value

    return _plain(pl.Int64, int, write) if numbers else _plain(pl.String, str, write)


# -- types with parts ---------------------------------------------------------------------------------------------------


def _each(convert: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return lambda values: [convert(value) for value in values]


def _union(parts: Sequence[Any], wide: bool) -> Shape:
    others = [part for part in parts if part != "none"]
    if sorted(map(str, others)) == ["float", "int"]:
        others = ["float"]
    shape = shape_of(others[0], wide=wide) if len(others) == 1 else _JSON
    nullable = shape.nullable or "none" in parts
    return Shape(shape.dtype, nullable, shape.read, shape.write)


def _tuple(parts: Sequence[Shape]) -> Shape:
    names = [f"field_{index}" for index in range(len(parts))]

    def read(value: Any) -> dict[str, Any]:
        return {name: part.read(item) for name, part, item in zip(names, parts, value, strict=True)}

    def write(value: Any) -> list[Any]:
        return [_part(name, part, value[name]) for name, part in zip(names, parts, strict=True)]

    return _plain(pl.Struct([pl.Field(name, part.dtype) for name, part in zip(names, parts, strict=True)]), read, write)


def _dictionary(keys: Shape, values: Shape) -> Shape:
    def read(value: Any) -> list[dict[str, Any]]:
        return [{"key": keys.read(key), "value": values.read(item)} for key, item in value.items()]

    def write(entries: Any) -> dict[Any, Any]:
        if any(entry is None for entry in entries):
            raise UnstorableError("has an entry that is null")
        written = [(_hashable(keys.write(entry["key"])), values.write(entry["value"])) for entry in entries]
        if len(dict(written)) < len(written):
            raise UnstorableError("has the same key twice")
        return dict(written)

    return _plain(pl.List(pl.Struct([pl.Field("key", keys.dtype), pl.Field("value", values.dtype)])), read, write)


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, cast("list[Any]", value))) if isinstance(value, list) else value


def _record(described: dict[str, Any], wide: bool) -> Shape:
    """A dataclass or Struct. A field that a stored record lacks is null; null for such a field leaves it out again."""
    fields = {
        field["name"]: (shape_of(field["type"], wide=wide), bool(field["required"])) for field in described["fields"]
    }
    dtype = pl.Struct([pl.Field(name, shape.dtype) for name, (shape, _) in fields.items()])
    array_like = bool(described.get("array_like"))

    def read(value: Any) -> dict[str, Any]:
        found = dict(zip(fields, value, strict=False)) if array_like else value
        return {name: shape.read(found.get(name)) for name, (shape, _) in fields.items()}

    def write(value: Any) -> Any:
        written = {name: _field(name, shape, required, value[name]) for name, (shape, required) in fields.items()}
        if not array_like:
            return {name: item for name, item in written.items() if item is not _OMITTED}
        items = list(written.values())
        while items and items[-1] is _OMITTED:
            items.pop()
        if _OMITTED in items:
            raise UnstorableError("is null in a field before others that are not")
        return items

    return _plain(dtype, read, write)


def _field(name: str, shape: Shape, required: bool, value: Any) -> Any:
    if value is None and not required and not shape.nullable:
        return _OMITTED
    return _part(name, shape, value)


def _part(name: str, shape: Shape, value: Any) -> Any:
    try:
        return shape.write(value)
    except UnstorableError as error:
        raise UnstorableError(f"in field {name!r} {error}") from error
