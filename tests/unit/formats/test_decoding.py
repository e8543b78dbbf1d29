"""JSON lines to frames: what is a row, what is a bad record, and that both ways of decoding agree."""

# ruff: noqa: DTZ001 (naive datetimes are what is tested, and the bounds that hypothesis wants)

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tests.unit.formats.json_ways import exact_decoder, pieces_of, same

from penstock.formats import decoding
from penstock.formats.decoding import JsonDecoder, lines_of
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT64,
    INT8,
    INT64,
    NULL,
    STRING,
    TIME,
    TIMESTAMP,
    UINT64,
    Field,
    ListType,
    Schema,
    StructType,
)

FLIGHT = Schema((Field("id", INT64), Field("at", TIMESTAMP), Field("note", STRING, nullable=True)))


def decode_one(kind: Any, text: str, *, nullable: bool = False) -> Any:
    """The value of a column of one record, or the error."""
    decoder = JsonDecoder(Schema((Field("x", kind, nullable),)))
    decoded = decoder.decode(b'{"x":%s}\n' % text.encode())
    again = decoder.decode_values([b'{"x":%s}' % text.encode()])
    assert_frame_equal(decoded.frame, again.frame)
    assert [line.error for line in decoded.bad] == [line.error for line in again.bad]
    return decoded.bad[0].error if decoded.bad else decoded.frame["x"][0]


def test_rows_have_exactly_the_schemas_columns_and_types() -> None:
    """Unknown fields are left out, a missing nullable field is null, offsets are converted to UTC."""
    block = (
        b'{"at":"2001-01-01T02:00:00+02:00","id":1,"other":[1,{}]}\n{"id":2,"at":"2001-01-01 00:00:00.5Z","note":"n"}\n'
    )
    decoded = JsonDecoder(FLIGHT).decode(block)
    assert not decoded.bad
    assert decoded.frame.schema == pl.Schema(FLIGHT.polars())
    midnight = datetime(2001, 1, 1, tzinfo=UTC)
    assert decoded.frame.rows() == [(1, midnight, None), (2, midnight + timedelta(microseconds=500_000), "n")]


def test_bad_lines_are_found_one_by_one() -> None:
    """Every bad line is told with its number, its bytes and what is wrong; the good ones stay in order."""
    lines = [
        b'{"id":1,"at":"2001-01-01T00:00:00Z"}',
        b'{"id":"x","at":"2001-01-01T00:00:00Z"}',
        b"",
        b"garbage",
        b'{"id":2}',
        b'{"id":3,"at":null}',
        b'{"id":4,"at":"2001-01-01T00:00:00"}',
        b'{"id":9223372036854775808,"at":"2001-01-01T00:00:00Z"}',
        b'{"id":5,"at":"2001-01-01T00:00:00Z"} {"id":6,"at":"2001-01-01T00:00:00Z"}',
        b'{"id":7,"at":"2001-01-01T00:00:00Z","note":"\xff"}',
        b'{"id":8,"at":"0001-01-01T00:00:00+01:00"}',
        b'{"id":10,"at":"2001-01-01T00:00:00Z"}',
    ]
    decoded = JsonDecoder(FLIGHT).decode(b"\n".join(lines))
    assert decoded.frame["id"].to_list() == [1, 10]
    assert [(line.index, line.raw) for line in decoded.bad] == [
        (index, lines[index]) for index in (1, 3, 4, 5, 6, 7, 8, 9, 10)
    ]
    reasons = [line.error for line in decoded.bad]
    for reason, expected in zip(
        reasons,
        (
            "Expected `int`",
            "malformed",
            "at: missing",
            "missing",
            "timezone=",
            "does not fit into int64",
            "trailing",
            "UTF-8",
            "years 1 to 9999",
        ),
        strict=True,
    ):
        assert expected in reason, (reason, expected)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (INT64, "-9223372036854775808", -(2**63)),
        (UINT64, "18446744073709551615", 2**64 - 1),
        (INT8, "127", 127),
        (FLOAT64, "1", 1.0),
        (FLOAT64, "1e-320", 1e-320),
        (BOOLEAN, "true", True),
        (STRING, '"\\u00e9\\n"', "é\n"),
        (BINARY, '"aGk="', b"hi"),
        (DATE, '"2001-02-03"', date(2001, 2, 3)),
        (DURATION, '"-PT1.000001S"', timedelta(microseconds=-1_000_001)),
        (TIMESTAMP, '"2001-01-01T00:00:00.000001-23:59"', datetime(2001, 1, 1, 23, 59, 0, 1, tzinfo=UTC)),
        (TIMESTAMP, '"2001-01-01t00:00:00z"', datetime(2001, 1, 1, tzinfo=UTC)),
        (TIMESTAMP, '"9999-12-31T23:59:59.999999Z"', datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        (ListType(INT64), "[1,null]", [1, None]),
        (StructType((Field("y z", INT64), Field("t", TIMESTAMP, True))), '{"y z":1,"o":2}', {"y z": 1, "t": None}),
    ],
)
def test_values(kind: Any, text: str, expected: Any) -> None:
    """Each type takes its values exactly."""
    found = decode_one(kind, text)
    assert (found.to_list() if isinstance(found, pl.Series) else found) == expected


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (INT64, "1.0", "Expected `int`"),
        (INT64, "true", "Expected `int`"),
        (INT64, '"1"', "Expected `int`"),
        (INT8, "128", "does not fit into int8, -128 to 127"),
        (UINT64, "-1", "does not fit into uint64"),
        (FLOAT64, '"NaN"', "Expected `float`"),
        (FLOAT64, "NaN", "malformed"),
        (BOOLEAN, "1", "Expected `bool`"),
        (STRING, "1", "Expected `str`"),
        (STRING, "null", "x: missing"),
        (DATE, '"2001-02-30"', "Invalid"),
        (TIMESTAMP, "978307200", "x: a number, and the field is a datetime"),
        (TIMESTAMP, '"2001-02-30T00:00:00Z"', "Invalid"),
        (TIMESTAMP, '"2001-01-01T00:00Z"', "Invalid"),
        (TIMESTAMP, '"2001-01-01"', "Invalid"),
        (TIMESTAMP, '""', "Invalid"),
        (NULL, "1", "Expected `null`"),
        (STRING, '"\\ud800"', "x: the text has a lone surrogate"),
        (STRING, '"\\udc00a"', "x: the text has a lone surrogate"),
        (
            StructType((Field("y", ListType(STRING)),)),
            '{"y":["a","b\\ud800"]}',
            "x.y[1]: the text has a lone surrogate",
        ),
        (STRING, '"\\ud83d\\ude00"x', "malformed"),
        (STRING, '"a', "the record ends within its JSON"),
        (ListType(INT8), "[300]", "x[0]: 300 does not fit"),
        (StructType((Field("y", INT64),)), '{"z":1}', "x.y: missing"),
        (ListType(TIMESTAMP), '["2001-01-01T00:00:00"]', "no time zone"),
    ],
)
def test_wrong_values(kind: Any, text: str, reason: str) -> None:
    """A value of another type makes the record bad and never null."""
    assert reason in decode_one(kind, text)


def test_naive_timestamps_get_the_zone() -> None:
    """With a zone, timestamps without offset are local times of it; those with one keep theirs."""
    decoded = JsonDecoder(FLIGHT, ZoneInfo("Europe/Berlin")).decode(
        b'{"id":1,"at":"2001-07-01T12:00:00"}\n{"id":2,"at":"2001-07-01T12:00:00Z"}\n'
    )
    assert decoded.frame["at"].to_list() == [datetime(2001, 7, 1, hour, tzinfo=UTC) for hour in (10, 12)]


def test_empty_and_blank_blocks() -> None:
    """Nothing, blank lines and carriage returns are no rows and no errors."""
    for block in (b"", b"\n", b"\r\n  \n\n"):
        decoded = JsonDecoder(FLIGHT).decode(block)
        assert decoded.frame.height == 0
        assert decoded.frame.schema == pl.Schema(FLIGHT.polars())
        assert not decoded.bad
    assert JsonDecoder(FLIGHT).decode(b'{"id":1,"at":"2001-01-01T00:00:00Z"}\r\n').frame.height == 1


def test_messages_may_hold_newlines_but_not_be_empty() -> None:
    """A message of a queue is one record, however it is laid out."""
    decoded = JsonDecoder(FLIGHT).decode_values([b'{\n"id":1,\n"at":"2001-01-01T00:00:00Z"}\n', b"", b" "])
    assert decoded.frame["id"].to_list() == [1]
    assert [line.index for line in decoded.bad] == [1, 2]


def test_objects_over_lines_are_not_taken() -> None:
    """What a stream decoder would accept, an object over two lines and two on one, is bad: positions go by line."""
    at = b'"at":"2001-01-01T00:00:00Z"}'
    decoded = JsonDecoder(FLIGHT).decode(b'{"id":1,%s{"id":2,%s\n{"id":3,\n%s\n' % (at, at, at))
    assert decoded.frame.height == 0
    assert [line.index for line in decoded.bad] == [0, 1, 2]


WIDE = Schema(
    (
        Field("i", INT64),
        Field("small", INT8, nullable=True),
        Field("f", FLOAT64, nullable=True),
        Field("s", STRING, nullable=True),
        Field("at", TIMESTAMP),
        Field("seen", TIMESTAMP, nullable=True),
        Field("l", ListType(INT64), nullable=True),
    )
)

times = st.one_of(
    st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)).map(lambda moment: moment.isoformat() + "Z"),
    st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)).map(lambda moment: moment.isoformat(" ") + "+05:30"),
    st.from_regex(
        r"\A[0-9]{3,5}-[0-9]{1,2}-[0-3][0-9][Tt ][0-2][0-9]:[0-6][0-9](:[0-6][0-9])?(\.[0-9]{0,8})?"
        r"(Z|z|[+-][0-2][0-9](:?[0-6][0-9])?)?\Z"
    ),
    st.sampled_from(
        [
            "2001-01-01",
            "2001-01-01T00:00Z",
            "2001-01-01T00Z",
            "2001-01-01T00:00:00",
            "",
            "x",
            "0000-01-01T00:00:00Z",
            "2001-01-01T00:00+05:30",
            "2001-01-01T00:00:00.Z",
            "2001-01-01T00:00:00+05",
            "2001-01-01T00:00:00+0530",
        ]
    ),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.integers(-200, 200),
    st.floats(allow_nan=False),
    st.text(max_size=4),
)
right = st.fixed_dictionaries(
    {"i": st.integers(-(2**63), 2**63 - 1), "at": times},
    optional={
        "small": st.one_of(st.none(), st.integers(-128, 127)),
        "f": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        "s": st.one_of(st.none(), st.text(max_size=6)),
        "seen": st.one_of(st.none(), times),
        "l": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(-5, 5)), max_size=3)),
        "unknown": scalars,
    },
)
anything = st.dictionaries(
    st.sampled_from([*WIDE.names, "z"]), st.one_of(scalars, times, st.lists(scalars, max_size=2))
)
line = st.one_of(
    right.map(msgspec.json.encode),
    right.map(msgspec.json.encode),
    anything.filter(lambda row: all(not isinstance(v, float) or math.isfinite(v) for v in row.values())).map(
        lambda row: msgspec.json.encode(row)
    ),
    st.sampled_from([b"", b" ", b"{", b"}", b"[]", b"1", b"{} {}", b'{"i":1}{', b"\r", b'{"s":"\xff"}', b'{"a":{}']),
    st.binary(max_size=6).filter(lambda value: b"\n" not in value),
)


FAST, EXACT = JsonDecoder(WIDE), exact_decoder(WIDE)


@settings(max_examples=150, deadline=None)
@given(st.lists(line, max_size=12), st.booleans(), st.integers(1, 5))
def test_both_ways_give_the_same(lines: list[bytes], ended: bool, size: int) -> None:
    """A block as a whole, and its lines as messages, give the rows and bad records of each record on its own."""
    block = b"\n".join(lines) + (b"\n" if ended else b"")
    with pieces_of(size):
        same(FAST.decode_values(lines), EXACT.decode_values(lines))
        same(FAST.decode(block), EXACT.decode_values(lines_of(block), skip_blank=True))


class Reference(msgspec.Struct):
    """What the rows of WIDE are by msgspec's own rules."""

    i: int
    at: datetime
    small: int | None = None
    f: float | None = None
    s: str | None = None
    seen: datetime | None = None
    l: list[int | None] | None = None  # noqa: E741 (the column's name)


@settings(max_examples=300, deadline=None)
@given(st.lists(right.map(msgspec.json.encode), max_size=5))
def test_rows_are_what_msgspec_reads(lines: list[bytes]) -> None:
    """The rows are those of a plain typed msgspec decoder, apart from what a column cannot hold."""
    expected: list[Reference] = []
    for text in lines:
        try:
            row = msgspec.json.decode(text, type=Reference)
        except msgspec.MsgspecError:
            continue
        if all(moment is None or moment.tzinfo is not None for moment in (row.at, row.seen)):
            expected.append(row)
    found = JsonDecoder(WIDE).decode(b"\n".join(lines)).frame.to_dicts()
    assert found == [{name: getattr(row, name) for name in WIDE.names} for row in expected]


@settings(deadline=None, max_examples=60)
@given(
    lines=st.lists(
        st.sampled_from(
            [
                b'{"id":1,"at":"2001-01-01T00:00:00Z"}',
                b'{"id":2,"at":"2001-01-01T00:00:00.25Z","note":"a longer note"}',
                b'{"id":3,"at":"2001-01-01T00:00:00Z"} ',
                b'{"id":4,',
                b'"at":"2001-01-01T00:00:00Z"}',
                b'{"id":"x","at":"2001-01-01T00:00:00Z"}',
                b"",
            ]
        ),
        max_size=30,
    ),
    size=st.integers(1, 200),
)
def test_the_size_of_pieces_changes_nothing(lines: list[bytes], size: int) -> None:
    """A large block is decoded in pieces; its rows and bad records are those of its lines, wherever it is cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "_PIECE_BYTES", size)
        decoded = JsonDecoder(FLIGHT).decode(b"\n".join(lines))
    same(decoded, JsonDecoder(FLIGHT).decode_values(lines, skip_blank=True))


@pytest.mark.parametrize("zone", [None, ZoneInfo("Europe/Berlin")])
@pytest.mark.parametrize("beside", ["", "oops\n"])
def test_what_is_behind_microseconds_is_cut(zone: ZoneInfo | None, beside: str) -> None:
    """On the fast way and on the exact one, within others too: rounded it could be another day."""
    inner = StructType((Field("time", TIME), Field("text", STRING)))
    schema = Schema((Field("at", TIMESTAMP), Field("moments", ListType(TIMESTAMP)), Field("inner", inner)))
    row = (
        '{"at":"2026-01-01T23:59:59.9999999Z","moments":["2026-01-02T01:59:59.999999999+02:00",null],'
        '"inner":{"time":"23:59:59.9999999","text":"it is 23:59:59.9999999"}}\n'
    )
    lines = (row + beside + row).encode()
    at = datetime(2026, 1, 1, 23, 59, 59, 999_999, tzinfo=UTC)
    expected = (at, [at, None], {"time": at.time(), "text": "it is 23:59:59.9999999"})
    for decoded in (JsonDecoder(schema, zone).decode(lines), JsonDecoder(schema, zone).decode_values(lines_of(lines))):
        assert decoded.frame.rows() == [expected, expected]
        assert len(decoded.bad) == bool(beside)


def test_values_that_are_none_are_said_alike_beside_nanoseconds() -> None:
    """Whichever decoder looks at them."""
    schema = Schema((Field("at", TIMESTAMP), Field("text", STRING)))
    for value in ("3", "null", '"zz"', "[]"):
        said = [
            JsonDecoder(schema).decode(b'{"at":%s,"text":"%s"}' % (value.encode(), text))
            for text in (b"", b":11.1234567")
        ]
        assert said[0].bad[0].error == said[1].bad[0].error
