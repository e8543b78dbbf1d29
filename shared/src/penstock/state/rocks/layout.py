"""How object state stands in sorted bytes: what the keys and values of the database mean.

A key is put together of::

    2 bytes  key group, so that the state of a range of key groups is a range of keys
    2 bytes  slot: event timers, processing timers, or a declared state
    n bytes  the key as msgpack; timers have 8 bytes of time before it, in order of time
    rest     map state: the map key as msgpack; list state: 8 bytes that rise with every element

No msgpack value is the beginning of another one, so what belongs to a key is what begins with its bytes. Values begin
with a byte that says whether 8 bytes of expiry follow; msgpack is the rest.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
import polars as pl

from penstock.state.columns import NAN
from penstock.state.hashing import key_group_of, key_groups
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOATS,
    INTEGERS,
    NULL,
    STRING,
    TIMESTAMP,
    DataType,
    DecimalType,
    Schema,
)

EVENT_SLOT: Final = 0
PROCESSING_SLOT: Final = 1
FIRST_STATE_SLOT: Final = 2
GROUP_BYTES: Final = 2
HEADER_BYTES: Final = 4
"""Key group and slot."""
END: Final = b"\xff\xff"
"""Above every key group: nothing of a key stands there."""
NUMBER_BYTES: Final = 8
_MOST_PLACES: Final = 200_000
"""Keys whose place is remembered."""
_LEAST_TIME: Final = 1 << 63

Place = tuple[bytes, bytes]
"""Of a key: the two bytes of its key group, and its msgpack."""


class Places:
    """Where keys stand: key group and bytes, remembered for the keys that are in use."""

    def __init__(self, keys: Schema, max_parallelism: int) -> None:
        self._kinds = [field.type for field in keys]
        self._max_parallelism = max_parallelism
        self._known: dict[Any, Place] = {}
        self._encode = msgspec.msgpack.Encoder().encode
        hints = [_python_type(kind) | None for kind in self._kinds]
        hint: Any = hints[0] if len(hints) == 1 else tuple[tuple(hints)]  # pyright: ignore[reportInvalidTypeArguments]
        self._decode = msgspec.msgpack.Decoder(hint).decode
        self._floats = any(kind in FLOATS for kind in self._kinds)

    def __contains__(self, key: Any) -> bool:
        """Whether it is remembered where this key stands."""
        return key in self._known

    def learn(self, frame: pl.DataFrame, keys: list[Any]) -> None:
        """Compute the key groups of the key columns' rows at once: one by one it takes much longer."""
        self.forget_if_many()
        known = self._known
        groups = key_groups(frame, frame.columns, self._max_parallelism).to_list()
        encode = self._encode
        for key, group in zip(keys, groups, strict=True):
            if key not in known:
                known[key] = (group.to_bytes(2), encode(key))

    def forget_if_many(self) -> None:
        """Make room for those that come next."""
        if len(self._known) > _MOST_PLACES:
            self._known.clear()

    def of(self, key: Any) -> Place:
        """Where a key stands; raises the `UserCodeError` of `NO_KEY`."""
        place = self._known.get(key)
        if place is None:
            parts = key if len(self._kinds) > 1 else (key,)
            group = key_group_of(parts, self._kinds, self._max_parallelism)
            place = self._known[key] = (group.to_bytes(2), self._encode(key))
        return place

    def encode(self, key: Any) -> bytes:
        """The bytes of a key."""
        return self._encode(key)

    def decode(self, data: bytes) -> Any:
        """The key of its bytes, as `key_values` spells it."""
        key = self._decode(data)
        if not self._floats:
            return key
        if len(self._kinds) == 1:
            return key if key == key else NAN
        return tuple(part if part == part else NAN for part in key)


def _python_type(kind: DataType) -> Any:
    if kind in INTEGERS:
        return int
    if kind in FLOATS:
        return float
    if isinstance(kind, DecimalType):
        return Decimal
    others: dict[DataType, Any] = {
        BOOLEAN: bool, STRING: str, BINARY: bytes, DATE: date, TIMESTAMP: datetime, DURATION: timedelta,
        NULL: type(None),
    }  # fmt: skip
    return others[kind]


def slot_bytes(slot: int) -> bytes:
    """How a slot stands in a key."""
    return slot.to_bytes(2)


def end_of(prefix: bytes) -> bytes:
    """The least bytes above all that begin with `prefix`, which is not all ones."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1])


def size_of_msgpack(data: bytes, start: int) -> int:
    """How many bytes the msgpack value at `start` has."""
    lead = data[start]
    if lead < 0x80 or lead >= 0xE0 or lead in (0xC0, 0xC2, 0xC3):
        return 1
    if 0xA0 <= lead < 0xC0:
        return 1 + (lead & 0x1F)
    if 0x90 <= lead < 0xA0:
        return _size_of_parts(data, start, 1, lead & 0x0F)
    if lead == 0xDC:  # so many columns that their number takes two bytes
        return _size_of_parts(data, start, 3, int.from_bytes(data[start + 1 : start + 3]))
    if lead in _FIXED:
        return _FIXED[lead]
    if lead in _COUNTED:
        count, beside = _COUNTED[lead]
        return 1 + count + beside + int.from_bytes(data[start + 1 : start + 1 + count])
    raise ValueError(f"byte {lead:#x} begins no key")


def _size_of_parts(data: bytes, start: int, size: int, count: int) -> int:
    for _ in range(count):
        size += size_of_msgpack(data, start + size)
    return size


_FIXED: Final = {
    0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9,
    0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18,
}  # fmt: skip
_COUNTED: Final = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
                   0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}  # fmt: skip


def time_bytes(time: int) -> bytes:
    """A time in microseconds as bytes in the order of time."""
    return (time + _LEAST_TIME).to_bytes(8)


def time_of(data: bytes) -> int:
    """The inverse of `time_bytes`."""
    return int.from_bytes(data) - _LEAST_TIME


def framed(data: bytes, expires: int | None) -> bytes:
    """A value with its expiry."""
    return b"\0" + data if expires is None else b"\1" + time_bytes(expires) + data


def unframed(data: bytes) -> tuple[bytes, int | None]:
    """The inverse of `framed`."""
    return (data[1:], None) if data[0] == 0 else (data[9:], time_of(data[1:9]))
