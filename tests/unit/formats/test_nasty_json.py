"""Records that readers of JSON disagree about: what the fast way makes of them is what the exact one does."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.formats.json_ways import exact_decoder, pieces_of, same

from penstock.formats.decoding import JsonDecoder, lines_of
from penstock.types import (
    BOOLEAN,
    DATE,
    FLOAT32,
    FLOAT64,
    INT8,
    INT64,
    STRING,
    TIMESTAMP,
    UINT64,
    DecimalType,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
)

MANY = Schema(
    (
        Field("i", INT64),
        Field("u", UINT64),
        Field("small", INT8, nullable=True),
        Field("f", FLOAT64),
        Field("single", FLOAT32, nullable=True),
        Field("b", BOOLEAN),
        Field("s", STRING),
        Field("note", STRING, nullable=True),
        Field("at", TIMESTAMP),
        Field("seen", TIMESTAMP, nullable=True),
        Field("day", DATE, nullable=True),
        Field("amount", DecimalType(20, 4)),
        Field("parts", StructType((Field("x", INT64), Field("y", ListType(FLOAT64), nullable=True))), nullable=True),
        Field("labels", MapType(STRING), nullable=True),
        Field("times", INT64, nullable=False, default=1),
    )
)
RIGHT = {
    "i": "1", "u": "2", "f": "0.5", "b": "true", "s": '"text"', "at": '"2026-01-01T00:00:00Z"', "amount": "1.25",
}  # fmt: skip
MOMENTS = [
    '"2026-01-01T00:00:00.1Z"', '"2026-01-01T00:00:00.123456789Z"', '"2026-01-01t00:00:00z"', '"2026-01-01 00:00:00Z"',
    '"2026-01-01T00:00:00+05:30"', '"2026-01-01T00:00:00-00:00"', '"2026-01-01T00:00:00+0530"',
    '"2026-01-01T00:00:00+05"',
    '"2026-01-01T00:00:00"', '"2026-01-01T00:00Z"', '"2026-01-01T00Z"', '"2026-01-01"', '"2026-02-29T00:00:00Z"',
    '"2024-02-29T00:00:00Z"', '"2026-01-01T24:00:00Z"', '"2026-01-01T23:59:60Z"', '"0000-01-01T00:00:00Z"',
    '"0001-01-01T00:00:00Z"', '"0001-01-01T00:00:00+00:01"', '"9999-12-31T23:59:59.999999Z"',
    '"9999-12-31T23:59:59.9999999Z"',
    '"9999-12-31T23:59:59-00:01"', '"10000-01-01T00:00:00Z"', '"+2026-01-01T00:00:00Z"', '" 2026-01-01T00:00:00Z"',
    '"2026-01-01T00:00:00,5Z"', '"2026-01-01T00:00:00.Z"', '"2026-01-01T00:00:00\\u005a"', "1767225600", "null",
    '""', "[]",
]  # fmt: skip
NUMBERS = [
    "0", "-0", "00", "01", "-01", "+1", "-", "1.", ".5", "1.0", "1.5", "1e2", "1E+2", "1e-2", "1e", "0x10", "1_0",
    "NaN",
    "Infinity", "-Infinity", "9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "18446744073709551615", "18446744073709551616", "1" * 40, "1e308", "1e309", "1e400",
    "-1e400",
    "1e-320", "1e-400", "-0.0", "0.1", "0.30000000000000004", "123456789.123456789", "3.4e38", "3.5e38", "127",
    "128", "-129",
    "16777217", '"1"', '"1.5"', '"NaN"', '"abc"', '" 1"', '"1e2"', '"0.00001"', "true", "null", "[1]", "{}", "1 2",
    "1,",
]  # fmt: skip
TEXTS = [
    '""', '"\\u00e9\\n\\t\\"\\\\\\/"', '"é"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"',
    '"\x00"', '"\t"',
    '"\x7f"', '"\\x"', '"\\u12"', '"a', 'a"', "'a'", "1", "null", "true", '["a"]', '"}"', '"{"', '"a","i":5,"z":"b"',
    '"a" ',
]  # fmt: skip
VARIED = {
    "i": NUMBERS, "u": NUMBERS, "small": NUMBERS, "f": NUMBERS, "single": NUMBERS, "amount": NUMBERS, "times": NUMBERS,
    "b": ["false", "null", "0", "1", '"true"', "True", "tru"], "s": TEXTS, "note": TEXTS, "at": MOMENTS,
    "seen": MOMENTS,
    "day": ['"2026-01-01"', '"2026-1-1"', '"2026-02-30"', '"2026-01-01T00:00:00Z"', "1", "null"],
    "parts": ['{"x":1}', '{"x":1,"y":null}', '{"x":1,"y":[1,null,1e400]}', '{"y":[]}', '{"x":"1"}', '{"x":1,"x":2}',
    "[]", "null"],
    "labels": ["{}", '{"a":"b"}', '{"a":"b","a":"c"}', '{"a":1}', '{"a":null}', "null"],
    "unknown": [*NUMBERS, *TEXTS, "[" * 20 + "]" * 20, "[" * 5_000 + "]" * 5_000, '{"a":' * 5_000, '{"i":"x"}'],
}  # fmt: skip


def record(tokens: dict[str, str]) -> bytes:
    """An object of values that are written already."""
    return ("{" + ",".join(f'"{name}":{token}' for name, token in tokens.items()) + "}").encode(
        "utf-8", "surrogatepass"
    )


def nasty() -> list[bytes]:
    """Records that readers of JSON disagree about, or get wrong."""
    good = record(RIGHT)
    found = [record({**RIGHT, name: token}) for name, tokens in VARIED.items() for token in tokens]
    found += [record({name: token for name, token in RIGHT.items() if name != left}) for left in RIGHT]
    found += [good[:-1] + b',"i":%s}' % token for token in (b"2", b'"x"', b"null", b"1.5")]
    found += [
        good.replace(b'"i":1', b'"i":"x","i":1'),
        good.replace(b'"i"', b'"\\u0069"'),
        good.replace(b'"i"', b'"I"'),
    ]
    found += [
        b"", b" ", b"\r", b"null", b"true", b"1", b'"a"', b"[]", b"[%s]" % good, b"{}", b"{", b"}", b"\xff", b"\x00",
        good + good, good + b" " + good, good + b"\n" + good, good + b",", good + b"}", good + b" x",
        b" " + good + b" \r",
        b"\xef\xbb\xbf" + good, good.replace(b"text", b"te\xffxt"), good.replace(b"text", b"\xed\xa0\x80"),
        good.replace(b"text", b"\xc0\x80"), good.replace(b",", b"\n,\n"), good.replace(b":", b" : "),
        good.replace(b"}", b",}"),
        good.decode().encode("utf-16"), good.replace(b'"unknown"', b"unknown"), good[:-1] + b',"z":"\xff"}', good[:-1],
        good[:-1] + b',"\xff":1}', good[:-1] + b",z:1}", good[:-1] + b',"z":1 // a\n}',
        good[:-1] + b',"z":"\xed\xa0\x80"}',
    ]  # fmt: skip
    return found


FAST, EXACT, NASTY = JsonDecoder(MANY), exact_decoder(MANY), nasty()


def test_both_ways_agree_about_nasty_records() -> None:
    """Among good ones and among each other: numbers at their limits, escapes, names twice, broken text and the like."""
    good = record(RIGHT)
    among = [each for one in NASTY for each in (good, one)]
    same(FAST.decode_values(among), EXACT.decode_values(among))
    expected = EXACT.decode_values(lines_of(b"\n".join(among)), skip_blank=True)
    assert expected.bad
    assert expected.frame.height > len(NASTY)
    same(FAST.decode(b"\n".join(among)), expected)
    with pieces_of(1):
        same(FAST.decode_values(NASTY), EXACT.decode_values(NASTY))
    for moment in MOMENTS:  # beside a null, so that nothing but the moment's form can be refused
        both = [good, record({**RIGHT, "seen": moment})]
        same(FAST.decode_values(both), EXACT.decode_values(both))


class _NamedTwiceError(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > len(dict(pairs)):
        raise _NamedTwiceError
    return dict(pairs)


def has_a_name_twice(record: bytes) -> bool:
    """Then the last value counts; the exact way alone looks whether a timestamp before it is one."""
    try:
        with suppress(ValueError, RecursionError):
            json.loads(record, object_pairs_hook=_once)
    except _NamedTwiceError:
        return True
    return False


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_both_ways_agree_about_damaged_records(data: st.DataObject) -> None:
    """Records in which bytes are changed, left out, doubled or exchanged with those of another."""
    records = [one for one in NASTY if len(one) < 300]
    damaged: list[bytes] = []
    for _ in range(data.draw(st.integers(1, 6))):
        one, other = data.draw(st.sampled_from(records)), data.draw(st.sampled_from(records))
        begin, end = sorted((data.draw(st.integers(0, len(one))), data.draw(st.integers(0, len(one)))))
        parts = [b"", one[begin:end] * 2, other[begin:end], b'"', b"\\", b"\n", b",", b"0", b"\x80"]
        changed = one[:begin] + data.draw(st.sampled_from(parts)) + one[end:]
        if not any(map(has_a_name_twice, [changed, *changed.split(b"\n")])):
            damaged.append(changed)
    same(FAST.decode_values(damaged), EXACT.decode_values(damaged))
    block = b"\n".join(damaged)
    same(FAST.decode(block), EXACT.decode_values(lines_of(block), skip_blank=True))
