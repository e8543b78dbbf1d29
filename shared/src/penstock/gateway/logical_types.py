"""Types of columns as Flink's REST endpoint writes them: what its LogicalTypeJsonSerializer makes of a type."""

from __future__ import annotations

from typing import Any, Final

from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    NULL,
    STRING,
    TIME,
    TIMESTAMP,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Scalar,
    StructType,
)

_NO_LIMIT: Final = 2_147_483_647
"""The length of STRING and BYTES."""
_MICROS: Final = 6
"""The digits of a second that times are kept with."""
_SCALARS: Final[dict[DataType, dict[str, Any]]] = {
    BOOLEAN: {"type": "BOOLEAN"},
    INT8: {"type": "TINYINT"},
    INT16: {"type": "SMALLINT"},
    INT32: {"type": "INTEGER"},
    INT64: {"type": "BIGINT"},
    UINT8: {"type": "SMALLINT"},  # of files: Flink has no unsigned types, and these hold all their values
    UINT16: {"type": "INTEGER"},
    UINT32: {"type": "BIGINT"},
    UINT64: {"type": "DECIMAL", "precision": 20, "scale": 0},
    FLOAT32: {"type": "FLOAT"},
    FLOAT64: {"type": "DOUBLE"},
    STRING: {"type": "VARCHAR", "length": _NO_LIMIT},
    BINARY: {"type": "VARBINARY", "length": _NO_LIMIT},
    DATE: {"type": "DATE"},
    TIME: {"type": "TIME_WITHOUT_TIME_ZONE", "precision": _MICROS},
    TIMESTAMP: {"type": "TIMESTAMP_WITHOUT_TIME_ZONE", "precision": _MICROS},
    DURATION: {
        "type": "INTERVAL_DAY_TIME", "precision": _MICROS, "fractionalPrecision": _MICROS, "resolution": "DAY_TO_SECOND",
    },
}  # fmt: skip


def logical_type(kind: DataType, *, nullable: bool = True) -> dict[str, Any]:
    """The document of a type."""
    if kind == NULL:
        return {"type": "NULL"}
    document = _document(kind)
    return {"type": document.pop("type"), "nullable": nullable, **document}


def _document(kind: DataType) -> dict[str, Any]:
    match kind:
        case Scalar():
            return dict(_SCALARS[kind])
        case DecimalType(precision=precision, scale=scale):
            return {"type": "DECIMAL", "precision": precision, "scale": scale}
        case ListType(inner=inner):
            return {"type": "ARRAY", "elementType": logical_type(inner)}
        case MapType(value=value):
            return {"type": "MAP", "keyType": logical_type(STRING, nullable=False), "valueType": logical_type(value)}
        case StructType(fields=fields):
            return {"type": "ROW", "fields": [_member(each) for each in fields]}


def _member(field: Field) -> dict[str, Any]:
    return {"name": field.name, "fieldType": logical_type(field.type, nullable=field.nullable)}


def column(field: Field) -> dict[str, Any]:
    """The document of a column of a result."""
    return {"name": field.name, "logicalType": logical_type(field.type, nullable=field.nullable), "comment": None}
