"""Values as Postgres writes them in text, to rows: JSON first, which the decoder of all JSON reads, as strict as ever."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from datetime import tzinfo
from decimal import Decimal
from typing import Final

import msgspec

from penstock.connectors.postgres.pgoutput import UNCHANGED
from penstock.formats.decoding import Decoded, JsonDecoder
from penstock.types import (
    BINARY,
    BOOLEAN,
    DURATION,
    FLOATS,
    INTEGERS,
    STRING,
    TIMESTAMP,
    DataType,
    ListType,
    MapType,
    Schema,
    StructType,
)

SESSION: Final = " -c bytea_output=hex"
"""How a session has to write values, beside what `TablePlace.connect` says."""
_INTERVAL: Final = re.compile(
    rb"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)W)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+)S)?)?"
)
_NO_NUMBER: Final = (b"NaN", b"Infinity", b"-Infinity")
_UNKNOWN: Final = (
    "an update left this large value as it was, Postgres did not log it, and no kept row tells it; run "
    "`alter table ... replica identity full` before such updates, and start the job anew for the one that is in the log "
    "already"
)
ToJson = Callable[[bytes], bytes]


def _text(value: bytes) -> bytes:
    return msgspec.json.encode(value.decode())


def _number(value: bytes) -> bytes:
    if value in _NO_NUMBER:
        raise ValueError(f"{value.decode()} is no number that a row can have")
    return value


def _whole(value: bytes) -> bytes:
    """`5.00` of a `numeric(12, 2)` is 5; of 5.50 the decoder says what it is."""
    return _number(value.rstrip(b"0").rstrip(b".") if b"." in value else value)


def _boolean(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def _binary(value: bytes) -> bytes:
    return b'"' + base64.b64encode(bytes.fromhex(value[2:].decode())) + b'"'


def _bytes_themselves(value: bytes) -> bytes:
    return b'"' + base64.b64encode(value) + b'"'


def _timestamp(value: bytes) -> bytes:
    """`2026-01-01 12:30:15.5+00` in the form of RFC 3339; one without a zone keeps none."""
    day, _, clock = value.partition(b" ")
    clock = clock.removesuffix(b"+00") + (b"Z" if clock.endswith(b"+00") else b"")
    return b'"' + day + b"T" + clock + b'"'


def _duration(value: bytes) -> bytes:
    """Days have 24 hours; how long a month is nobody knows."""
    found = _INTERVAL.fullmatch(value)
    if found is None or int(found[1] or 0) or int(found[2] or 0):
        raise ValueError(f"{value.decode()} is no interval without months and years")
    weeks, days, hours, minutes = (int(part or 0) for part in found.group(3, 4, 5, 6))
    seconds = ((weeks * 7 + days) * 24 + hours) * 3_600 + minutes * 60 + Decimal((found[7] or b"0").decode())
    return f'"{"-" if seconds < 0 else ""}PT{abs(seconds):f}S"'.encode()


def _document(value: bytes) -> bytes:
    """JSON as it is, on one line: line ends stand between its parts only. A text may hold anything."""
    msgspec.json.decode(value, type=msgspec.Raw)
    return value.replace(b"\n", b" ").replace(b"\r", b" ")


def to_json(kind: DataType) -> ToJson:
    """What makes JSON of a value of this type."""
    if isinstance(kind, ListType | MapType | StructType):
        return _document
    if kind in INTEGERS or kind in FLOATS:
        return _whole if kind in INTEGERS else _number
    special: dict[DataType, ToJson] = {
        BOOLEAN: _boolean, BINARY: _binary, TIMESTAMP: _timestamp, DURATION: _duration,
    }  # fmt: skip
    return special.get(kind, _text)


class RowTexts:
    """Makes JSON of the values of rows."""

    def __init__(self, columns: Schema, *, keeps: bool = False) -> None:
        """`keeps`: what a text or bytes were is known by who keeps the former row."""
        kinds = {STRING: _text, BINARY: _bytes_themselves} if keeps else {}
        self._unchanged = {field.name: kinds[field.type](UNCHANGED) for field in columns if field.type in kinds}
        self._names = columns.names
        self._parts = [(msgspec.json.encode(field.name) + b":", to_json(field.type)) for field in columns]

    def image(self, values: Sequence[bytes | None]) -> bytes:
        """An object with these columns, on one line.

        Raises:
            ValueError: a value is none of its type; names the column.
        """
        try:
            if UNCHANGED in values:
                return self._with_unchanged(values)
            return b"{" + b",".join([
                name + (b"null" if value is None else make(value))
                for (name, make), value in zip(self._parts, values, strict=True)
            ]) + b"}"  # fmt: skip
        except ValueError:
            for (name, make), value in zip(self._parts, values, strict=True):
                self._check(name, make, value)
            raise

    def _with_unchanged(self, values: Sequence[bytes | None]) -> bytes:
        """With what stands for values that are not logged, where that can be told from a value."""
        pairs: list[bytes] = []
        for column, (name, make), value in zip(self._names, self._parts, values, strict=True):
            if value == UNCHANGED and column not in self._unchanged:
                raise ValueError(_UNKNOWN)
            made = self._unchanged[column] if value == UNCHANGED else b"null" if value is None else make(value)
            pairs.append(name + made)
        return b"{" + b",".join(pairs) + b"}"

    def _check(self, name: bytes, make: ToJson, value: bytes | None) -> None:
        try:
            if value == UNCHANGED and msgspec.json.decode(name[:-1]) in self._unchanged:
                return
            if value == UNCHANGED:
                raise ValueError(_UNKNOWN)
            if value is not None:
                make(value)
        except ValueError as error:
            raise ValueError(f"{msgspec.json.decode(name[:-1])}: {error}") from error


class RowImages:
    """Decodes what `RowTexts` makes."""

    def __init__(self, columns: Schema, zone: tzinfo | None) -> None:
        self._json = JsonDecoder(columns, zone)

    def decode(self, values: Sequence[bytes]) -> Decoded:
        """See `ImageDecoder.decode`."""
        return self._json.decode(b"\n".join(values))
