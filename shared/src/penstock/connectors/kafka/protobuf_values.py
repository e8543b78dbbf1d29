"""Protobuf in Kafka records: a message, in Confluent's wire format where a schema registry is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.connectors.kafka.row_values import RowValues
from penstock.connectors.kafka.schema_registry import MAGIC, PREFIX
from penstock.formats.protobuf import Descriptor, ProtobufMessage
from penstock.types import Schema

_MORE = 0x80


class ProtobufValues(RowValues):
    """Decodes one message per record. Fields are told by their numbers, so no schema of another version is needed."""

    def __init__(self, schema: Schema, message: ProtobufMessage, *, prefixed: bool) -> None:
        """`prefixed`: whether the id of a schema and the message's place in its file stand before it."""
        super().__init__(schema, f"message {message.name}")
        self._read = message.type().FromString
        self._getters = message.getters(schema, "kafka.Source")
        self._defaults = [field.default for field in schema]
        self._places = [_place_of(message.type().DESCRIPTOR, entries=entries) for entries in (True, False)]
        self._prefixed = prefixed

    def _row(self, value: bytes) -> Sequence[Any]:
        data = self._behind_prefix(value) if self._prefixed else value
        message = self._read(data)
        found = [get(message) for get in self._getters]
        return [default if each is None else each for each, default in zip(found, self._defaults, strict=True)]

    def _behind_prefix(self, value: bytes) -> bytes:
        magic, _ = PREFIX.unpack_from(value)
        if magic != MAGIC:
            raise ValueError(f"begins with {magic}, not with 0 and the id of a schema")
        count, begin = _varint(value, PREFIX.size)
        found = [] if count else [0]
        for _ in range(count):
            index, begin = _varint(value, begin)
            found.append(index)
        if found not in self._places:
            raise ValueError(f"it is the message {found} of its file, and not {self._places[0]}")
        return value[begin:]


def _place_of(message: Descriptor, *, entries: bool) -> list[int]:
    """Which message of its file it is, and which one within that, and so on; `entries`: those of maps count, as with
    clients that go by descriptors, but not with those that go by the text of the .proto file."""
    outer = message.containing_type
    if outer is None:
        return [list(message.file.message_types_by_name).index(message.name)]
    others = [each.name for each in outer.nested_types if entries or not each.GetOptions().map_entry]
    return [*_place_of(outer, entries=entries), others.index(message.name)]


def _varint(value: bytes, begin: int) -> tuple[int, int]:
    """A number in zigzag encoding, and where it ends."""
    found = shift = 0
    while True:
        byte = value[begin]
        found |= (byte & ~_MORE) << shift
        begin, shift = begin + 1, shift + 7
        if not byte & _MORE:
            return (found >> 1) ^ -(found & 1), begin
