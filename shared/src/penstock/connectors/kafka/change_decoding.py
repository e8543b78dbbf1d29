"""Records to changes: those of an upsert topic, and Debezium's envelopes. A batch of records at a time."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

from penstock.connectors.change_rows import RECORD, UNCHANGED, ImagesOfRows, bad_lines
from penstock.connectors.kafka.change_forms import BINARY_KEYS, KeyFormat, holds_decimals
from penstock.connectors.kafka.debezium_decimals import DebeziumDecimals
from penstock.connectors.kafka.decoding import JsonValues, Records, ValueDecoder, value_decoder
from penstock.connectors.keyed_rows import RETRACTED
from penstock.formats.decoding import BadLine, Decoded
from penstock.types import BINARY, BOOLEAN, NUMERIC, STRING, DataType, DecimalType, Field, Schema

if TYPE_CHECKING:
    from penstock.connectors.kafka.change_source import ChangeSource

_SHOWN_BYTES: Final = 40


class _KeyDecoder:
    """The columns of the key from a record's key."""

    def __init__(self, columns: Schema, zone: tzinfo | None, form: KeyFormat) -> None:
        self._columns = columns
        self._json = JsonValues(columns, zone)
        self._form = form

    def decode(self, keys: Sequence[bytes]) -> Decoded:
        """A row per key that is one."""
        if self._form == "json":
            decoded, _ = self._json.decode(keys)
            return Decoded(decoded.frame, [_bad_key(line, keys, line.error) for line in decoded.bad])
        [field] = self._columns.fields
        if self._form == "binary":
            return self._binary(field, keys)
        if field.type == BINARY:
            return Decoded(pl.DataFrame({field.name: pl.Series(keys, dtype=pl.Binary)}))
        decoded, _ = self._json.decode([self._object(key) for key in keys])
        return Decoded(decoded.frame, [self._no_text(line, keys) for line in decoded.bad])

    @staticmethod
    def _binary(field: Field, keys: Sequence[bytes]) -> Decoded:
        """Numbers as Java's serializers write them."""
        layout = np.dtype(BINARY_KEYS[field.type])
        wrong = [index for index, key in enumerate(keys) if len(key) != layout.itemsize]
        fitting = b"".join(key for key in keys if len(key) == layout.itemsize)
        numbers = pl.Series(field.name, np.frombuffer(fitting, layout).astype(layout.newbyteorder("=")))
        reason = f"{field.name} is {field.type}, which has {layout.itemsize} bytes"
        return Decoded(numbers.to_frame(), [_bad_key(BadLine(index, "", b""), keys, reason) for index in wrong])

    def _no_text(self, line: BadLine, keys: Sequence[bytes]) -> BadLine:
        [field] = self._columns.fields
        layout = BINARY_KEYS.get(field.type)
        reason = "not UTF-8" if field.type == STRING else f"no {field.type} as text ({line.error})"
        if layout is not None and len(keys[line.index]) == np.dtype(layout).itemsize:
            reason += '; if Java\'s serializers wrote it, write key_format="binary"'
        return _bad_key(line, keys, reason)

    def _object(self, key: bytes) -> bytes:
        """An object with the value, which decodes as the key is meant."""
        name = json.dumps(self._columns.names[0]).encode()
        kind = self._columns.fields[0].type
        if isinstance(kind, DecimalType) or kind in NUMERIC or kind == BOOLEAN:
            value = b'""' if b"," in key else key  # more than one value is none
        else:
            value = json.dumps(key.decode("utf-8", "surrogateescape")).encode()
        return b"{" + name + b":" + value + b"}"


def _bad_key(line: BadLine, keys: Sequence[bytes], reason: str) -> BadLine:
    key = keys[line.index]
    shown = repr(key[:_SHOWN_BYTES]) + ("..." if len(key) > _SHOWN_BYTES else "")
    return BadLine(line.index, f"key {shown}: {reason}", b"")


class UpsertDecoder:
    """The newest rows of keys: a record is one, or says that there is none any more."""

    keep_messages = True
    rows_per_value = True

    def __init__(self, source: ChangeSource[Any], zone: tzinfo | None) -> None:
        self._names = source.schema.names
        self._rows = source.rows
        self._key_names = list(source.keys)
        self._keys = _KeyDecoder(source.rows.select(source.keys), zone, source.key_format)
        self._values: ValueDecoder = value_decoder(source, source.value_schema, zone)
        self.asks = self._values.asks

    def decode(self, records: Records) -> Decoded:
        """See `RecordDecoder.decode`."""
        bad: dict[int, str] = {}
        keyed = self._keyed([message.key() for message in records.messages], bad)
        valued = [index for index in keyed[RECORD] if records.values[index] is not None]
        decoded, _ = self._values.decode([value for index in valued if (value := records.values[index]) is not None])
        bad |= {valued[line.index]: line.error for line in decoded.bad}
        kept = [index for index in valued if index not in bad]
        others = decoded.frame.drop(self._key_names, strict=False).with_columns(pl.Series(RECORD, kept, pl.Int64))
        rows = keyed.filter(~pl.col(RECORD).is_in(list(bad))).join(others, RECORD, "left", maintain_order="left")
        rows = rows.with_columns(
            _with_unchanged(field.name, field.type) for field in self._rows if field.name in others
        )
        gone = pl.Series(RETRACTED, [records.values[index] is None for index in rows[RECORD]], pl.Boolean)
        misspelt = {name: near for name, near in decoded.misspelt.items() if near not in self._key_names}
        return Decoded(rows.with_columns(gone).select(self._names), bad_lines(bad, records.values), misspelt)

    def _keyed(self, keys: Sequence[bytes | None], bad: dict[int, str]) -> pl.DataFrame:
        """The columns of the key with the numbers of their records; adds what is wrong with the others."""
        there = [index for index, key in enumerate(keys) if key is not None]
        bad |= {index: "the record has no key" for index, key in enumerate(keys) if key is None}
        decoded = self._keys.decode([key for key in keys if key is not None])
        wrong = {there[line.index]: f"the record's {line.error}" for line in decoded.bad}
        bad |= wrong
        return decoded.frame.with_columns(pl.Series(RECORD, [each for each in there if each not in wrong], pl.Int64))


_PLACEHOLDER: Final = b"__debezium_unavailable_value"
"""What Debezium writes for a large value (TOAST) that an update left as it was and that Postgres did not log."""
_PLACEHOLDERS: Final = (_PLACEHOLDER, base64.b64encode(_PLACEHOLDER))
"""As text, and as bytes."""
_STANDS_FOR: Final[dict[DataType, bytes]] = {
    STRING: json.dumps(UNCHANGED).encode(),
    BINARY: b'"' + base64.b64encode(UNCHANGED.encode()) + b'"',
}


def _is_placeholder(value: msgspec.Raw | None) -> bool:
    """Whether a value, or what a list or map has in it alone, stands for one that is not there."""
    return value is not None and bytes(value).strip(b'[]" \n') in _PLACEHOLDERS


def _with_unchanged(name: str, kind: DataType) -> pl.Expr:
    """A column of an upsert topic into which Debezium's rows were unwrapped."""
    column = pl.col(name)
    match kind:
        case _ if kind == STRING:
            return pl.when(column == _PLACEHOLDER.decode()).then(pl.lit(UNCHANGED)).otherwise(column).alias(name)
        case _ if kind == BINARY:
            return pl.when(column == _PLACEHOLDER).then(pl.lit(UNCHANGED.encode())).otherwise(column).alias(name)
        case _:
            return column


_NULL: Final = msgspec.Raw(b"null")


class _Envelope(msgspec.Struct):
    """Parts that are null are `_NULL`; the wrapper has `payload` and `schema` alone."""

    op: str | None = None
    before: msgspec.Raw = _NULL
    after: msgspec.Raw = _NULL
    payload: msgspec.Raw = _NULL
    schema: msgspec.Raw = _NULL


class _Images:
    """Decodes the images of envelopes."""

    def __init__(self, columns: Schema, zone: tzinfo | None) -> None:
        self._json = JsonValues(columns, zone)
        self.misspelt: Mapping[str, str] = {}

    def decode(self, values: Sequence[bytes]) -> Decoded:
        decoded = self._json.decode(values)[0]
        self.misspelt = decoded.misspelt
        return decoded


class DebeziumDecoder:
    """Changes of Debezium's envelopes: what was before is retracted, as a whole or by its key."""

    keep_messages = False
    rows_per_value = True
    asks = False

    def __init__(self, source: ChangeSource[Any], zone: tzinfo | None) -> None:
        self._schema = source.schema
        self._rows = source.rows
        self._keys = source.keys
        self._complete = source.complete
        self._after = _Images(source.rows, zone)
        self._before = self._after if source.complete else _Images(source.rows.select(source.keys), zone)
        self._envelopes = msgspec.json.Decoder(_Envelope)
        self._decimals = DebeziumDecimals(source.rows, source.decimals) if holds_decimals(source.rows) else None

    def decode(self, records: Records) -> Decoded:
        """See `RecordDecoder.decode`."""
        bad: dict[int, str] = {}
        rows = ImagesOfRows(self._schema, self._after, self._before)
        for index, value in enumerate(records.values):
            if value is None:
                continue  # it lets compaction forget the key, whose row the record before it has taken back
            try:
                images = self._images(value)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                bad[index] = str(error)
                continue
            for image, retracted in images:
                rows.add(image, index, retracted=retracted)
        return Decoded(rows.rows(bad), bad_lines(bad, records.values), self._after.misspelt)

    def _images(self, value: bytes) -> list[tuple[bytes, bool]]:
        """What an event takes back, and what it adds.

        Raises:
            ValueError: it is none.
        """
        event, schema = self._envelopes.decode(value), b"null"
        if event.op is None and bytes(event.payload) != b"null":
            event, schema = self._envelopes.decode(event.payload), bytes(event.schema)
        before, after = bytes(event.before), bytes(event.after)
        if self._decimals is not None:
            before = self._decimals.in_digits(before, "before", schema)
            after = self._decimals.in_digits(after, "after", schema)
        match event.op:
            case "c" | "r" | "u":
                if after == b"null":
                    raise ValueError(f"an event with op {event.op!r} has no `after`")
                if any(each in after for each in _PLACEHOLDERS):
                    after = self._with_former(event.op, before, after)
                if event.op != "u" or (before == b"null" and not self._complete):
                    return [(after, False)]
            case "d":
                pass
            case None:
                raise ValueError("no event of Debezium: `op` is missing")
            case _:
                raise ValueError(f"an event with op {event.op!r} is no change of a row")
        if before == b"null":
            raise ValueError(f"an event with op {event.op!r} has no `before`, so nobody knows what it takes back")
        return [(before, True), (after, False)] if event.op == "u" else [(before, True)]

    def _with_former(self, op: str, before: bytes, after: bytes) -> bytes:
        """The new row with what `before` has of large values that Debezium was not told, or with what stands for these.

        Raises:
            ValueError: nobody knows one of them.
        """
        old, new = (msgspec.json.decode(each, type=dict[str, msgspec.Raw] | None) or {} for each in (before, after))
        moved = any(name in old and bytes(old[name]) != bytes(new.get(name, _NULL)) for name in self._keys)
        made: dict[str, msgspec.Raw] = {}
        for field in self._rows:
            if not _is_placeholder(new.get(field.name)):
                continue
            if field.name in old and not _is_placeholder(old[field.name]):
                made[field.name] = old[field.name]
                continue
            stands_for = _STANDS_FOR.get(field.type)
            if op != "u" or moved or self._complete or stands_for is None:
                raise ValueError(
                    f"after: {field.name}: the event does not have this large value (TOAST), which was left as it was; "
                    "run `alter table ... replica identity full` before such updates"
                )
            made[field.name] = msgspec.Raw(stands_for)
        return msgspec.json.encode(new | made)
