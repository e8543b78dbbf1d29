"""Key hashing: golden vectors that must never change, and the vectorised form against the reference."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.batches import KEY_GROUP
from penstock.core.decimals import of_units
from penstock.errors import PipelineError
from penstock.protocol.keygroups import DEFAULT_MAX_PARALLELISM
from penstock.state.hashing import (
    encode_value,
    hash64,
    hash64_bytes,
    hash64_frame,
    hash64_value,
    key_group_of,
    key_groups,
)
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
    STRING,
    TIMESTAMP,
    UINT8,
    UINT64,
    DecimalType,
    polars_type,
)

GOLDEN = [
    (None, INT64, 0x7BB9A34FAA3CFC98),
    (True, BOOLEAN, 0x05E8687F4F38921B),
    (False, BOOLEAN, 0x0CE9719D0844E982),
    (0, INT64, 0x44445501EB3D8F84),
    (1, INT32, 0x4E97D4FD933BC88F),
    (-1, INT64, 0x006FC997719807B1),
    (2**63, UINT64, 0x0BFECFEAE96645F9),
    (1.5, FLOAT64, 0xDE423E4DAD159FC7),
    (0.0, FLOAT64, 0x8A0138CAF7EE5D3B),
    (float("nan"), FLOAT32, 0x308714C3E96520F6),
    ("", STRING, 0xEC5B6558AB8E43C8),
    ("penstock", STRING, 0x24B4096FEC52F5D0),
    ("Grüße, 世界", STRING, 0x96FD4C6A21E4AC18),
    (b"\x00\xff", BINARY, 0xF38EF319D371EC63),
    (date(2026, 1, 2), DATE, 0x24D867837C6DBF3A),
    (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), TIMESTAMP, 0x0EA1A7FA5F651E64),
    (timedelta(seconds=-1), DURATION, 0x353E3A5B8DBE4225),
    (Decimal("1.10"), DecimalType(12, 2), 0x484BE4ECC466F38E),
    (Decimal("-0.5"), DecimalType(38, 38), 0x64E1C7529E63A1CF),
    (Decimal("100"), DecimalType(38, 0), 0x482DB5568B12E112),
]


@pytest.mark.parametrize(("value", "kind", "expected"), GOLDEN)
def test_golden_vectors(value, kind, expected):
    """Savepoints and other engines depend on these: a change here is a change of the format."""
    assert hash64_bytes(encode_value(value, kind)) == expected
    assert hash64(pl.Series([value], dtype=polars_type(kind))).tolist() == [expected]


def test_the_reference_is_murmurhash64a():
    """Values computed with Appleby's C source and our seed."""
    assert hash64_bytes(b"") == 0xF12584686F8A87FE
    assert hash64_bytes(b"abcdefgh") == 0x9C8AB6BD3F4F1
    assert hash64_bytes(b"\x04penstock") == 0x24B4096FEC52F5D0


def test_a_key_of_two_columns_combines_their_hashes():
    """Golden as well: the order of the columns matters."""
    frame = pl.DataFrame({"a": [7], "b": ["x"]})
    assert hash64_frame(frame, ["a", "b"]).tolist() == [0x4F84EEB5FC420F20]
    assert hash64_value((7, "x"), (INT64, STRING)) == 0x4F84EEB5FC420F20
    assert hash64_frame(frame, ["b", "a"]).tolist() != [0x4F84EEB5FC420F20]


VALUES = {
    INT64: st.integers(-(2**63), 2**63 - 1),
    INT8: st.integers(-128, 127),
    UINT64: st.integers(0, 2**64 - 1),
    FLOAT64: st.floats(),
    FLOAT32: st.floats(width=32),
    BOOLEAN: st.booleans(),
    STRING: st.one_of(st.text(), st.text(min_size=7, max_size=9), st.text("ab", min_size=60, max_size=300)),
    BINARY: st.binary(max_size=40),
    DATE: st.dates(),
    TIMESTAMP: st.datetimes(timezones=st.just(UTC)),
    DURATION: st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
    DecimalType(38, 4): st.integers(-(10**38) + 1, 10**38 - 1).map(lambda units: of_units(units, 4)),
    DecimalType(20, 0): st.integers(-(10**20) + 1, 10**20 - 1).map(Decimal),
}


@settings(max_examples=100, deadline=None)
@given(data=st.data(), kind=st.sampled_from(list(VALUES)), offset=st.integers(0, 2))
def test_columns_hash_as_the_reference_says(data, kind, offset):
    """Every type, nulls, slices, lengths around the eight-byte blocks."""
    values = data.draw(st.lists(st.one_of(st.none(), VALUES[kind]), max_size=30))
    series = pl.Series(values, dtype=polars_type(kind)).slice(offset)
    assert hash64(series).tolist() == [hash64_bytes(encode_value(value, kind)) for value in values[offset:]]


def test_long_columns_hash_as_the_reference_says():
    """Past the size of a chunk, with chunked series and a few very long strings."""
    strings = [f"{'x' * (row % 41)}{row}" for row in range(20_000)]
    strings[5] = "y" * 5_003
    series = pl.concat([pl.Series(strings[:7_000]), pl.Series(strings[7_000:])])
    expected = [hash64_bytes(encode_value(value, STRING)) for value in strings]
    assert hash64(series).tolist() == expected
    numbers = np.arange(20_000)
    assert hash64(pl.Series(numbers)).tolist()[-1] == hash64_bytes(encode_value(19_999, INT64))


def test_equal_keys_of_different_widths_meet():
    """An int32 key of one stream and an int64 key of another are one key; so are -0.0 and 0.0, all NaNs, 1.5 and 1.50."""
    hashes = [hash64(pl.Series([5], dtype=polars_type(kind))).item() for kind in (INT8, INT16, INT32, INT64, UINT8)]
    assert len(set(hashes)) == 1
    amounts = [pl.Series([Decimal("1.5")], dtype=pl.Decimal(12, scale)) for scale in (1, 2, 7)]
    assert len({hash64(amount).item() for amount in amounts}) == 1
    assert hash64(pl.Series([-0.0])).item() == hash64(pl.Series([0.0])).item()
    odd_nan = np.array([0xFFF8_0000_0000_1234], np.uint64).view(np.float64)
    assert hash64(pl.Series(odd_nan)).item() == hash64(pl.Series([float("nan")])).item()


def test_key_groups_are_the_remainder_and_spread_evenly():
    """The named UInt16 column; sequential keys do not pile up."""
    frame = pl.DataFrame({"key": np.arange(240_000)})
    groups = key_groups(frame, ["key"], DEFAULT_MAX_PARALLELISM)
    assert groups.name == KEY_GROUP
    assert groups.dtype == pl.UInt16
    assert groups[17] == key_group_of((17,), (INT64,), DEFAULT_MAX_PARALLELISM)
    counts = groups.value_counts()["count"]
    assert counts.len() == DEFAULT_MAX_PARALLELISM
    assert counts.min() > 850
    assert counts.max() < 1150


def test_lists_and_structs_cannot_be_keys():
    """The message says what can."""
    with pytest.raises(PipelineError, match="cannot be keys; key by a boolean, number, decimal, string"):
        hash64(pl.Series([[1]]))
