"""The forms in which a topic of changes has its keys and values, as `kafka.ChangeSource` calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from penstock.types import FLOAT32, FLOAT64, INT16, INT32, INT64, DataType, DecimalType, Schema, parts_of

ChangeFormat = Literal["json", "csv", "avro", "raw", "debezium"]
KeyFormat = Literal["plain", "json", "binary"]
DecimalMode = Literal["precise", "string"]

BINARY_KEYS: Final[Mapping[DataType, str]] = {
    INT16: ">i2", INT32: ">i4", INT64: ">i8", FLOAT32: ">f4", FLOAT64: ">f8",
}  # fmt: skip
"""How Java's serializers write numbers."""


def holds_decimals(schema: Schema) -> bool:
    """Whether any column has some, within lists and structs too."""
    return any(isinstance(part, DecimalType) for field in schema for part in parts_of(field.type))
