"""Decimals in Debezium's images: by what an event's schema says of them, or else by what the source says.

In its default mode, `precise`, they are the two's complement of the unscaled number, big-endian, in base64, or an object
of `scale` and `value` where a column has no scale. In the mode `string` they are digits, in `double` numbers of JSON.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, Literal

import msgspec

from penstock.connectors.kafka.change_forms import DecimalMode, holds_decimals
from penstock.types import DataType, DecimalType, Field, ListType, MapType, Schema, StructType

_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_MAY_BE_BYTES: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_SAY: Final = (
    'write decimals="precise" at the source if Debezium writes decimals as bytes in base64, as it does by default, or '
    'decimals="string" with decimal.handling.mode=string'
)

Described = Mapping[str, Any]
"""What a schema of Kafka Connect says of a value."""


class DebeziumDecimals:
    """Makes decimals of images digits, which the decoder of rows reads.

    Args:
        rows: the columns of an image.
        mode: how decimals are written where an event does not say it.
    """

    def __init__(self, rows: Schema, mode: DecimalMode | None) -> None:
        self._fields = [field for field in rows if holds_decimals(Schema((field,)))]
        self._mode: DecimalMode | None = mode
        self._known: tuple[bytes, dict[str, Mapping[str, Described]]] = (b"", {})
        self._parts = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def in_digits(self, image: bytes, which: Literal["before", "after"], schema: bytes) -> bytes:
        """An image as JSON, of an event with this schema; `null` if it has none.

        Raises:
            ValueError: a decimal is none.
        """
        if not image.startswith(b"{"):
            return image  # it is no row, which its decoder says
        said = self._said(schema).get(which, {})
        return self._row(self._fields, image, said)

    def _said(self, schema: bytes) -> dict[str, Mapping[str, Described]]:
        """By image, what its columns are; most events of a topic have the same schema."""
        if self._known[0] != schema:
            described = msgspec.json.decode(schema)
            images = described.get("fields") if isinstance(described, dict) else None
            self._known = (schema, {str(each.get("field")): _members(each) for each in images or ()})
        return self._known[1]

    def _row(self, fields: list[Field], image: bytes, said: Mapping[str, Described]) -> bytes:
        parts = self._parts.decode(image)
        for field in fields:
            if field.name in parts:
                try:
                    found = self._value(field.type, bytes(parts[field.name]), said.get(field.name, {}))
                except ValueError as error:
                    raise ValueError(f"{field.name}: {error}") from None
                parts[field.name] = msgspec.Raw(found)
        return msgspec.json.encode(parts)

    def _value(self, kind: DataType, value: bytes, said: Described) -> bytes:
        if value == b"null":
            return value
        match kind:
            case DecimalType():
                return self._decimal(kind, value, said)
            case ListType(inner=inner) if value.startswith(b"["):
                items = msgspec.json.decode(value, type=list[msgspec.Raw])
                of_items = said.get("items", {})
                return msgspec.json.encode([msgspec.Raw(self._value(inner, bytes(each), of_items)) for each in items])
            case StructType(fields=fields) if value.startswith(b"{"):
                return self._row([each for each in fields if holds_decimals(Schema((each,)))], value, _members(said))
            case MapType(value=inner) if value.startswith(b"{"):
                parts, of_values = self._parts.decode(value), said.get("values", {})
                found = {key: self._value(inner, bytes(each), of_values) for key, each in parts.items()}
                return msgspec.json.encode({key: msgspec.Raw(each) for key, each in found.items()})
            case _:
                return value

    def _decimal(self, kind: DecimalType, value: bytes, said: Described) -> bytes:
        if value.startswith(b"{"):  # io.debezium.data.VariableScaleDecimal
            both = msgspec.json.decode(value, type=_OfAnyScale)
            return _digits(both.value, both.scale)
        if not value.startswith(b'"'):
            return value
        text = msgspec.json.decode(value, type=str)
        match said.get("type"), said.get("name"):
            case "bytes", name if name == _DECIMAL:
                return _digits(text, int(said["parameters"]["scale"]))
            case "bytes", _:
                raise ValueError("the event's schema says that it is bytes, and not that they are a decimal")
            case None, _:
                return self._unsaid(kind, value, text)
            case _:
                return value

    def _unsaid(self, kind: DecimalType, value: bytes, text: str) -> bytes:
        """Where the event has no schema."""
        if self._mode == "precise":
            return _digits(text, kind.scale)
        if self._mode is None and _MAY_BE_BYTES.fullmatch(text):
            raise ValueError(f"a decimal as text, which may be digits or bytes; {_SAY}")
        return value


class _OfAnyScale(msgspec.Struct):
    scale: int
    value: str


def _members(said: Described) -> dict[str, Described]:
    return {str(each.get("field")): each for each in said.get("fields") or ()}


def _digits(text: str, scale: int) -> bytes:
    """A number as JSON text with all its digits.

    Raises:
        ValueError: the text is no base64 of one.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        data = b""
    if not data:
        raise ValueError(f"no base64 of an unscaled number; {_SAY}")
    unscaled = int.from_bytes(data, "big", signed=True)
    number = Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
    return msgspec.json.encode(format(number, "f"))
