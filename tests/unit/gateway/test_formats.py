"""Types and values as Flink's endpoint writes them; what is expected here was read from Flink 2.3's own gateway."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from small_gateway import small_gateway

from penstock.gateway.logical_types import logical_type
from penstock.gateway.row_formats import json_of, text_of, value_in
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
    StructType,
)

LONGEST = 2_147_483_647
MOMENT = datetime(2024, 1, 2, 10, 11, 12, 500_000, UTC)
ROW = StructType((Field("a", INT64), Field("b", STRING, nullable=True)))
BIGINT = {"type": "BIGINT", "nullable": True}


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (BOOLEAN, {"type": "BOOLEAN"}),
        (INT8, {"type": "TINYINT"}),
        (INT16, {"type": "SMALLINT"}),
        (INT32, {"type": "INTEGER"}),
        (INT64, {"type": "BIGINT"}),
        (UINT8, {"type": "SMALLINT"}),
        (UINT16, {"type": "INTEGER"}),
        (UINT32, {"type": "BIGINT"}),
        (UINT64, {"type": "DECIMAL", "precision": 20, "scale": 0}),
        (FLOAT32, {"type": "FLOAT"}),
        (FLOAT64, {"type": "DOUBLE"}),
        (STRING, {"type": "VARCHAR", "length": LONGEST}),
        (BINARY, {"type": "VARBINARY", "length": LONGEST}),
        (DATE, {"type": "DATE"}),
        (TIME, {"type": "TIME_WITHOUT_TIME_ZONE", "precision": 6}),
        (TIMESTAMP, {"type": "TIMESTAMP_WITHOUT_TIME_ZONE", "precision": 6}),
        (
            DURATION,
            {"type": "INTERVAL_DAY_TIME", "precision": 6, "fractionalPrecision": 6, "resolution": "DAY_TO_SECOND"},
        ),
        (DecimalType(12, 2), {"type": "DECIMAL", "precision": 12, "scale": 2}),
        (ListType(INT64), {"type": "ARRAY", "elementType": BIGINT}),
        (
            MapType(INT64),
            {
                "type": "MAP",
                "keyType": {"type": "VARCHAR", "nullable": False, "length": LONGEST},
                "valueType": BIGINT,
            },
        ),
        (
            ROW,
            {
                "type": "ROW",
                "fields": [
                    {"name": "a", "fieldType": {"type": "BIGINT", "nullable": False}},
                    {"name": "b", "fieldType": {"type": "VARCHAR", "nullable": True, "length": LONGEST}},
                ],
            },
        ),
    ],
)
def test_types(kind: DataType, document: dict[str, Any]) -> None:
    for nullable in (True, False):
        found = logical_type(kind, nullable=nullable)
        assert found == {**document, "nullable": nullable}
        assert list(found)[:2] == ["type", "nullable"]


def test_the_type_of_null_has_no_other_fields() -> None:
    assert logical_type(NULL) == {"type": "NULL"}


@pytest.mark.parametrize(
    ("value", "kind", "as_json", "as_text"),
    [
        (True, BOOLEAN, "true", "TRUE"),
        (-3, INT8, "-3", "-3"),
        (Decimal("1.50"), DecimalType(10, 2), "1.5", "1.50"),
        (Decimal("100.00"), DecimalType(10, 2), "1E+2", "100.00"),
        (Decimal("0.00"), DecimalType(10, 2), "0", "0.00"),
        (0.1, FLOAT64, "0.1", "0.1"),
        (0.10000000149011612, FLOAT32, "0.1", "0.1"),
        (12345678.5, FLOAT64, "12345678.5", "1.23456785E7"),
        (1e-5, FLOAT64, "0.00001", "1.0E-5"),
        (100.0, FLOAT64, "100.0", "100.0"),
        (0.0, FLOAT64, "0.0", "0.0"),
        (math.nan, FLOAT64, '"NaN"', "NaN"),
        (-math.inf, FLOAT32, '"-Infinity"', "-Infinity"),
        ("x'y", STRING, '"x\'y"', "x'y"),
        (b"Hello", BINARY, '"SGVsbG8="', "x'48656c6c6f'"),
        (date(2024, 1, 2), DATE, '"2024-01-02"', "2024-01-02"),
        (date(1, 1, 2), DATE, '"0001-01-02"', "0001-01-02"),
        (time(10, 11, 12), TIME, '"10:11:12"', "10:11:12"),
        (time(10, 11, 0, 120_000), TIME, '"10:11:00.12"', "10:11:00.12"),
        (MOMENT, TIMESTAMP, '"2024-01-02T10:11:12.5"', "2024-01-02 10:11:12.500000"),
        (MOMENT.replace(microsecond=0), TIMESTAMP, '"2024-01-02T10:11:12"', "2024-01-02 10:11:12.000000"),
        (timedelta(days=1, hours=2, minutes=3, seconds=4.5), DURATION, "93784500", "+1 02:03:04.500"),
        (-timedelta(seconds=1), DURATION, "-1000", "-0 00:00:01.000"),
        ([1, 2, None], ListType(INT64), "[1,2,null]", "[1, 2, NULL]"),
        ({"a": 1, "b": None}, MapType(INT64), '{"a":1,"b":null}', "{a=1, b=NULL}"),
        ({"a": 1, "b": "x"}, ROW, '{"a":1,"b":"x"}', "(1, x)"),
        ([MOMENT], ListType(TIMESTAMP), '["2024-01-02T10:11:12.5"]', "[2024-01-02 10:11:12.500000]"),
    ],
)
def test_values(value: Any, kind: DataType, as_json: str, as_text: str) -> None:
    found = msgspec.json.Encoder(decimal_format="number").encode(json_of(value, kind)).decode()
    assert found == as_json or float(found) == float(as_json)
    assert text_of(value, kind) == as_text


def test_decimals_have_all_of_their_digits() -> None:
    value = Decimal("12345678901234567890123456789012345678.0")
    assert value_in("JSON", value, DecimalType(38, 0)) == Decimal("12345678901234567890123456789012345678")


def test_null_is_null_in_both_formats() -> None:
    assert value_in("JSON", None, INT64) is None
    assert value_in("PLAIN_TEXT", None, INT64) is None


async def test_a_row_of_all_types() -> None:
    statement = """
        SELECT CAST(1 AS TINYINT), CAST(1.5 AS DECIMAL(10, 2)), TRUE, CAST(0.1 AS FLOAT), 12345678.5e0, 'x''y',
            x'48656c6c6f', DATE '2024-01-02', TIME '10:11:12', TIMESTAMP '2024-01-02 10:11:12.5', ARRAY[1, 2, NULL],
            MAP['a', 1], ROW(1, 'b'), CAST(NULL AS INT), INTERVAL '1 2:3:4.5' DAY TO SECOND
        """
    async with small_gateway() as gateway:
        assert await gateway.run(statement) == [[
            1, 1.5, True, 0.1, 12345678.5, "x'y", "SGVsbG8=", "2024-01-02", "10:11:12", "2024-01-02T10:11:12.5",
            [1, 2, None], {"a": 1}, {"EXPR$0": 1, "EXPR$1": "b"}, None, 93784500,
        ]]  # fmt: skip
        assert await gateway.run(statement, "PLAIN_TEXT") == [[
            "1", "1.50", "TRUE", "0.1", "1.23456785E7", "x'y", "x'48656c6c6f'", "2024-01-02", "10:11:12",
            "2024-01-02 10:11:12.500000", "[1, 2, NULL]", "{a=1}", "(1, b)", None, "+1 02:03:04.500",
        ]]  # fmt: skip
