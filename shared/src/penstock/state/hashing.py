"""Key hashing: the canonical encoding of a key, its 64-bit hash, and the key group that follows from it.

Responsible for one function of a key that never changes: savepoints, exchanges and other engines depend on it, so
golden vectors pin it (`tests/unit/state/test_hashing.py`). Which subtask owns a key group is `protocol.keygroups`.

**Encoding of a value**: one tag byte, then the value.

=========== ==== ============================================================================================
type        tag  value
=========== ==== ============================================================================================
null        0x00 nothing, whatever the column's type
boolean     0x01 one byte, 0 or 1
integers    0x02 8 bytes little endian, two's complement, for every width (an int32 key meets an int64 key);
                 uint64 by its bits
floats      0x03 8 bytes little endian IEEE 754 double; -0.0 is encoded as 0.0, every NaN as 0x7ff8000000000000
string      0x04 UTF-8
binary      0x05 the bytes
date        0x06 8 bytes little endian: days since 1970-01-01
timestamp   0x07 8 bytes little endian: microseconds since the epoch, UTC
duration    0x08 8 bytes little endian: microseconds
decimal     0x09 UTF-8 of the number without exponent and without zeros at the end of its fraction: `-1.5`, `0`, `100`
                 (so that decimals of different digits meet)
=========== ==== ============================================================================================

**Hash**: MurmurHash64A (Austin Appleby, public domain) over the encoding with the seed `SEED`. It needs only 64-bit
multiplications, shifts and xors, so it is exact and fast as numpy arithmetic over whole columns, and easy to repeat in
any language.

**Key of several columns**: MurmurHash64A over the concatenated hashes of its parts, 8 bytes little endian each, in the
order of the key columns. A key of one column is the hash of its value itself.

**Key group**: hash modulo `max_parallelism`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from penstock.core.batches import KEY_GROUP
from penstock.core.times import to_micros
from penstock.errors import PipelineError
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOATS,
    INTEGERS,
    STRING,
    TIMESTAMP,
    DataType,
    DecimalType,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEED: Final = 0x50656E73746F636B
"""The letters "Penstock"."""

_TAG_NULL: Final = 0
_TAG_BOOLEAN: Final = 1
_TAG_INTEGER: Final = 2
_TAG_FLOAT: Final = 3
_TAG_STRING: Final = 4
_TAG_BINARY: Final = 5
_TAG_DATE: Final = 6
_TAG_TIMESTAMP: Final = 7
_TAG_DURATION: Final = 8
_TAG_DECIMAL: Final = 9

_MASK: Final = 0xFFFFFFFFFFFFFFFF
_MULTIPLIER: Final = 0xC6A4A7935BD1E995
_SHIFT: Final = 47
_M: Final = np.uint64(_MULTIPLIER)
_R: Final = np.uint64(_SHIFT)
_EPOCH_DAY: Final = date(1970, 1, 1)
_ONE_MICROSECOND: Final = timedelta(microseconds=1)
_CANONICAL_NAN: Final = 0x7FF8000000000000

_CHUNK: Final = 8192
"""Rows per step of the arithmetic: the two arrays in flight stay in the first-level caches."""
_FEW_ROWS: Final = 8
"""Below so many remaining long values numpy's cost per call exceeds that of plain Python."""


# -- the reference ------------------------------------------------------------------------------------------------------


def encode_value(value: Any, kind: DataType) -> bytes:
    """The canonical encoding of one value of a column of type `kind`; slow, the definition of what is hashed."""
    if value is None:
        return bytes([_TAG_NULL])
    if kind == BOOLEAN:
        return bytes([_TAG_BOOLEAN, int(value)])
    if kind in INTEGERS:
        return struct.pack("<BQ", _TAG_INTEGER, value & _MASK)
    if kind in FLOATS:
        bits = struct.pack("<Q", _CANONICAL_NAN) if value != value else struct.pack("<d", value + 0.0)
        return bytes([_TAG_FLOAT]) + bits
    if kind == STRING:
        return bytes([_TAG_STRING]) + value.encode()
    if kind == BINARY:
        return bytes([_TAG_BINARY]) + value
    if kind == DATE:
        return struct.pack("<Bq", _TAG_DATE, (value - _EPOCH_DAY).days)
    if kind == TIMESTAMP:
        return struct.pack("<Bq", _TAG_TIMESTAMP, to_micros(value) if isinstance(value, datetime) else value)
    if kind == DURATION:
        return struct.pack("<Bq", _TAG_DURATION, value // _ONE_MICROSECOND)
    if isinstance(kind, DecimalType):
        text = f"{value:f}" if value else "0"  # there is no -0 in a column
        return bytes([_TAG_DECIMAL]) + (text.rstrip("0").rstrip(".") if "." in text else text).encode()
    raise _no_key(kind)


def hash64_bytes(data: bytes) -> int:
    """MurmurHash64A of `data` with `SEED`; slow, the definition of the hash."""
    whole = len(data) & ~7
    state = SEED ^ ((len(data) * _MULTIPLIER) & _MASK)
    for (word,) in struct.iter_unpack("<Q", data[:whole]):
        state = _mix_scalar(state, word)
    return _finish_scalar(state, data[whole:])


def hash64_value(values: Sequence[Any], kinds: Sequence[DataType]) -> int:
    """The hash of one key, given as its parts."""
    parts = [hash64_bytes(encode_value(value, kind)) for value, kind in zip(values, kinds, strict=True)]
    return parts[0] if len(parts) == 1 else hash64_bytes(struct.pack(f"<{len(parts)}Q", *parts))


def _mix_scalar(state: int, word: int) -> int:
    word = (word * _MULTIPLIER) & _MASK
    word ^= word >> _SHIFT
    word = (word * _MULTIPLIER) & _MASK
    return ((state ^ word) * _MULTIPLIER) & _MASK


def _finish_scalar(state: int, tail: bytes) -> int:
    if tail:
        state = ((state ^ int.from_bytes(tail, "little")) * _MULTIPLIER) & _MASK
    state ^= state >> _SHIFT
    state = (state * _MULTIPLIER) & _MASK
    return state ^ (state >> _SHIFT)


# -- whole columns ------------------------------------------------------------------------------------------------------


def hash64(series: pl.Series) -> NDArray[np.uint64]:
    """The hash of every value of a column, exactly `hash64_bytes(encode_value(value, type))`.

    Raises:
        PipelineError: values of this type cannot be keys (lists, structs).
    """
    dtype = series.dtype
    if dtype == pl.String or dtype == pl.Binary:
        hashes = _hash_bytes(series, _TAG_STRING if dtype == pl.String else _TAG_BINARY)
    elif dtype == pl.Boolean:
        table = np.array([hash64_bytes(bytes([_TAG_BOOLEAN, bit])) for bit in (0, 1)], np.uint64)
        hashes = table[_filled(series, False).cast(pl.UInt8).to_numpy()]
    elif isinstance(dtype, pl.Decimal):
        hashes = _hash_bytes(_shortest(series, dtype), _TAG_DECIMAL)
    elif dtype == pl.Null:
        return np.full(len(series), _null_hash(), np.uint64)
    else:
        tag, words = _fixed_words(series)
        hashes = _in_chunks(words, lambda chunk: _hash_tagged_words(tag, chunk))
    if series.null_count():
        hashes[series.is_null().to_numpy()] = _null_hash()
    return hashes


def hash64_frame(frame: pl.DataFrame, keys: Sequence[str]) -> NDArray[np.uint64]:
    """The hash of every row's key: that of the one column, or the combination of several."""
    parts = [hash64(frame[key]) for key in keys]
    if len(parts) == 1:
        return parts[0]
    result = np.empty(frame.height, np.uint64)
    start_state = np.uint64(SEED ^ ((8 * len(parts) * _MULTIPLIER) & _MASK))
    for start in range(0, frame.height, _CHUNK):
        state = np.full(min(_CHUNK, frame.height - start), start_state, np.uint64)
        for part in parts:
            _mix(state, part[start : start + _CHUNK])
        result[start : start + _CHUNK] = _avalanche(state)
    return result


def is_among(hashes: NDArray[Any], keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of the hashes are among the keys, which rise. A test of sets would sort both for every segment anew."""
    if not len(keys):
        return np.zeros(len(hashes), np.bool_)
    places = np.searchsorted(keys, hashes)
    return keys[np.minimum(places, len(keys) - 1)] == hashes


def key_groups(frame: pl.DataFrame, keys: Sequence[str], max_parallelism: int) -> pl.Series:
    """The key group of every row: a UInt16 series named `KEY_GROUP`."""
    hashes = hash64_frame(frame, keys)
    groups = np.empty(len(hashes), np.uint16)
    divisor = np.uint64(max_parallelism)
    for start in range(0, len(hashes), _CHUNK):
        chunk = hashes[start : start + _CHUNK]
        # numpy divides by one scalar with multiplications (unlike its remainder), so this form is several times faster
        groups[start : start + _CHUNK] = chunk - (chunk // divisor) * divisor
    return pl.Series(KEY_GROUP, groups)


def key_group_of(values: Sequence[Any], kinds: Sequence[DataType], max_parallelism: int) -> int:
    """The key group of one key; for rare single look-ups."""
    return hash64_value(values, kinds) % max_parallelism


def _fixed_words(series: pl.Series) -> tuple[int, NDArray[np.uint64]]:
    """Tag and 8-byte words of a column whose values have a fixed width; null slots hold anything."""
    dtype = series.dtype
    if dtype.is_integer():
        wide = _filled(series, 0).cast(pl.UInt64 if dtype == pl.UInt64 else pl.Int64)
        return _TAG_INTEGER, wide.to_numpy().view(np.uint64)
    if dtype.is_float():
        values = _filled(series, 0.0).cast(pl.Float64).to_numpy() + 0.0  # which turns -0.0 into 0.0
        values[np.isnan(values)] = np.nan
        return _TAG_FLOAT, values.view(np.uint64)
    if dtype == pl.Date:
        return _TAG_DATE, _filled(series.to_physical(), 0).cast(pl.Int64).to_numpy().view(np.uint64)
    if isinstance(dtype, pl.Datetime):
        micros = series.dt.cast_time_unit("us").to_physical()
        return _TAG_TIMESTAMP, _filled(micros, 0).to_numpy().view(np.uint64)
    if isinstance(dtype, pl.Duration):
        micros = series.dt.cast_time_unit("us").to_physical()
        return _TAG_DURATION, _filled(micros, 0).to_numpy().view(np.uint64)
    raise _no_key(dtype)


def _shortest(series: pl.Series, kind: pl.Decimal) -> pl.Series:
    """Decimals as text without the zeros at the end of a fraction."""
    text = series.cast(pl.String)
    return text.str.strip_chars_end("0").str.strip_chars_end(".") if kind.scale else text


def _filled(series: pl.Series, value: Any) -> pl.Series:
    return series.fill_null(value) if series.null_count() else series


def _in_chunks(
    words: NDArray[np.uint64], compute: Callable[[NDArray[np.uint64]], NDArray[np.uint64]]
) -> NDArray[np.uint64]:
    result = np.empty(len(words), np.uint64)
    for start in range(0, len(words), _CHUNK):
        result[start : start + _CHUNK] = compute(words[start : start + _CHUNK])
    return result


def _hash_tagged_words(tag: int, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes of 9-byte encodings: one block of the tag and seven bytes, and a tail of one byte."""
    state = words << np.uint64(8)
    state |= np.uint64(tag)
    state *= _M
    state ^= state >> _R
    state *= _M
    state ^= np.uint64(SEED ^ ((9 * _MULTIPLIER) & _MASK))
    state *= _M
    state ^= words >> np.uint64(56)
    state *= _M
    return _avalanche(state)


def _mix(state: NDArray[np.uint64], words: NDArray[np.uint64]) -> None:
    mixed = words * _M
    mixed ^= mixed >> _R
    mixed *= _M
    state ^= mixed
    state *= _M


def _avalanche(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state ^= state >> _R
    state *= _M
    state ^= state >> _R
    return state


def _null_hash() -> int:
    return hash64_bytes(bytes([_TAG_NULL]))


def _no_key(kind: object) -> PipelineError:
    return PipelineError(
        f"key_by: values of type {kind} cannot be keys; key by a boolean, number, decimal, string, binary, date, "
        "timestamp or duration column, for example one field of it"
    )


# -- strings and binaries -----------------------------------------------------------------------------------------------


def _hash_bytes(series: pl.Series, tag: int) -> NDArray[np.uint64]:
    """Hashes of a column of variable width, eight bytes of all values at a time."""
    arrow: Any = series.rechunk().to_arrow()
    _, offsets_buffer, data_buffer = arrow.buffers()
    count = len(arrow)
    if count == 0:
        return np.empty(0, np.uint64)
    offsets = np.frombuffer(offsets_buffer, np.int64)[arrow.offset : arrow.offset + count + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    # Eight bytes in front and behind let every load of a word stay inside, whatever its alignment.
    data = np.zeros(last - first + 16, np.uint8)
    if data_buffer is not None:
        data[8 : 8 + last - first] = np.frombuffer(data_buffer, np.uint8)[first:last]
    starts = offsets[:-1] - (first - 8)
    result = np.empty(count, np.uint64)
    for begin in range(0, count, _CHUNK):
        rows = slice(begin, begin + _CHUNK)
        result[rows] = _hash_slices(data, starts[rows], np.diff(offsets[begin : begin + _CHUNK + 1]), tag)
    return result


def _hash_slices(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], tag: int
) -> NDArray[np.uint64]:
    """Hashes of `tag` followed by `data[start : start + length]` for each start and length."""
    # A window of eight bytes at every byte: the unaligned load that the processor does at no cost.
    windows: Any = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, 0, (1,))
    sizes = (lengths + 1).astype(np.uint64)
    state = (sizes * _M) ^ np.uint64(SEED)
    positions = starts - 1
    blocks = lengths + 1 >> 3
    rows: NDArray[np.int64] | None = None  # None while all values still have a whole block
    block = 0
    while True:
        active = np.flatnonzero(blocks > block)
        if len(active) == 0:
            break
        rows = None if len(active) == len(starts) else active
        if block > 0 and len(active) < _FEW_ROWS:
            _mix_rest(data, positions, blocks, state, active, block)
            break
        words = windows[(positions if rows is None else positions[rows]) + 8 * block]
        if block == 0:
            words = (words & np.uint64(0xFFFFFFFFFFFFFF00)) | np.uint64(tag)
        if rows is None:
            _mix(state, words)
        else:
            part = state[rows]
            _mix(part, words)
            state[rows] = part
        block += 1
    return _avalanche(_mix_tails(windows, positions, lengths + 1, state, tag))


def _mix_rest(
    data: NDArray[np.uint8],
    positions: NDArray[np.int64],
    blocks: NDArray[np.int64],
    state: NDArray[np.uint64],
    rows: NDArray[np.int64],
    block: int,
) -> None:
    """The remaining whole blocks of a few long values."""
    for row in rows.tolist():
        start = int(positions[row]) + 8 * block
        mixed = int(state[row])
        for (word,) in struct.iter_unpack("<Q", data[start : int(positions[row]) + 8 * int(blocks[row])].tobytes()):
            mixed = _mix_scalar(mixed, word)
        state[row] = mixed


def _mix_tails(
    windows: Any,
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    state: NDArray[np.uint64],
    tag: int,
) -> NDArray[np.uint64]:
    """The last one to seven bytes of every value that has such."""
    tails = sizes & 7
    words = windows[positions + (sizes - tails)]
    words = np.where(sizes < 8, (words & np.uint64(0xFFFFFFFFFFFFFF00)) | np.uint64(tag), words)
    words &= (np.uint64(1) << (tails.astype(np.uint64) << np.uint64(3))) - np.uint64(1)
    return np.where(tails > 0, (state ^ words) * _M, state)
