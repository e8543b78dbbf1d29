"""Keyed state bound to a database: the same meaning as `penstock.state.keyed_state`, behind a write-back cache.

What a batch touches is held as Python objects; `changes` says what of it the database has to learn. Values that can be
changed in place count as written if they are not as they were when they are written back, so that the answers are those
of the object backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import count, repeat
from typing import Any, Final, cast

import msgspec
import polars as pl

from penstock.core.arguments import plain
from penstock.state.backend import ABSENT
from penstock.state.codec import is_scalar
from penstock.state.declarations import ListState, MapState, State, ValueState
from penstock.state.keyed_state import Binding, StoredRow, array_of, items_of
from penstock.state.rocks.layout import (
    HEADER_BYTES,
    NUMBER_BYTES,
    Place,
    Places,
    end_of,
    framed,
    size_of_msgpack,
    slot_bytes,
    unframed,
)
from penstock.state.rocks.store import Changes, RocksStore

_BESIDE_BYTES: Final = 128
"""What an entry takes in memory besides its value, about."""
_UNKNOWN: Final = object()
"""The cache knows nothing of it; the database may."""

Entry = tuple[int | None, Any]
"""Expiry or None, and value."""


class Slot:
    """What the states of an operator share: where they stand, and the size of what they hold in memory."""

    def __init__(self, store: RocksStore, slot: int, places: Places, binding: Binding) -> None:
        self.store = store
        self.places = places
        self.bytes = slot_bytes(slot)
        self.cursor = binding.cursor
        self.now_us = binding.now_us
        self.until = binding.until
        self.ttl_us = binding.ttl_us
        self.renewed_by_reads = binding.renewed_by_reads

    def prefix(self, key: Any) -> bytes:
        """Where the state of a key begins."""
        group, data = self.places.of(key)
        return group + self.bytes + data

    def entry(self, data: bytes, decode: Callable[[bytes], Any]) -> Entry:
        """The entry of stored bytes; what was stored without a time to live has a fresh one."""
        value, expires = unframed(data)
        return self.expiry(expires), decode(value)

    def expiry(self, stored: int | None) -> int | None:
        """When a value expires that was stored with this."""
        return None if self.ttl_us is None else (self.until() if stored is None else stored)

    def lives(self, entry: Any) -> bool:
        """Whether it is not past its time to live."""
        return entry[0] is None or entry[0] > self.now_us()


class MapKeys:
    """The bytes of map keys: equal keys have equal bytes, as they are one entry of a dictionary."""

    def __init__(self, hint: Any) -> None:
        self._float = hint is float
        self._boolean = hint is bool
        self._has_parts = not is_scalar(hint)
        self._encode = msgspec.msgpack.Encoder(enc_hook=plain, order="deterministic").encode
        self._decode = msgspec.msgpack.Decoder(hint).decode

    def encode(self, key: Any) -> bytes:
        """The msgpack of a key in the one spelling of it."""
        kind = key.__class__
        if kind is str or kind is bytes:
            return self._encode(key)
        if self._has_parts:
            return self._encode(_spelled(msgspec.to_builtins(self._typed(key), builtin_types=_KEPT)))
        if isinstance(key, Decimal):
            return self._encode(_spelled(key))
        if self._float and isinstance(key, (int, float)):
            return self._encode(float(key) + 0.0)  # which turns -0.0 into 0.0
        return self._encode(int(key) if kind is bool and not self._boolean else key)

    def _typed(self, key: Any) -> Any:
        """With floats where floats are declared; what is none of the declared type is no key that there is."""
        try:
            return self._decode(self._encode(key))
        except msgspec.MsgspecError:
            return key


_KEPT: Final = (bytes, datetime, Decimal)


def _spelled(key: Any) -> Any:
    """Numbers that are equal in one spelling, also as parts of a key."""
    if isinstance(key, Decimal):
        text = format(key, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(key, float):
        return key + 0.0  # which turns -0.0 into 0.0
    if isinstance(key, list | tuple):
        return [*map(_spelled, cast("Sequence[Any]", key))]
    if isinstance(key, dict):
        return {name: _spelled(part) for name, part in cast("dict[Any, Any]", key).items()}
    return key


class RocksState:
    """The side of a state that the backend sees."""

    held: int
    """Bytes read and written since the cache was emptied, about."""

    def changes(self) -> Changes:
        """What the database has to learn; afterwards it knows."""
        raise NotImplementedError

    def forget(self) -> None:
        """Empty the cache, of which there are no changes."""
        raise NotImplementedError

    def restored(self, place: Place, row: StoredRow) -> Iterator[tuple[bytes, bytes]]:
        """A row of a segment as it stands in the database."""
        raise NotImplementedError


class RocksValueState(ValueState[Any], RocksState):
    """One value per key."""

    def __init__(self, declaration: State, slot: Slot, binding: Binding) -> None:
        State.__init__(self, *declaration.types)
        self.name = declaration.name
        self.held = 0
        self._slot = slot
        self._cursor = binding.cursor
        self._codec = binding.codecs[0]
        self._column = binding.column
        self._timed = binding.ttl_us is not None
        self._live: dict[Any, Any] = {}
        """Entry or `ABSENT` by key."""
        self._written: dict[Any, None] = {}
        self._handed: dict[Any, bytes] = {}
        """Of values that can be changed in place: what the database has."""

    def get(self, default: Any = None) -> Any:
        return self._of(self._cursor.key, default)

    def _of(self, key: Any, default: Any) -> Any:
        entry = self._live.get(key, _UNKNOWN)
        if entry is _UNKNOWN:
            entry = self._load(key)
        if entry is ABSENT:
            return default
        if entry[0] is not None and not self._slot.lives(entry):
            self._clear(key)
            return default
        if self._slot.renewed_by_reads:
            self._live[key] = (self._slot.until(), entry[1])
            self._written[key] = None
        return entry[1]

    def _load(self, key: Any) -> Any:
        slot = self._slot
        data = slot.store.get(slot.prefix(key))
        self.held += _BESIDE_BYTES
        if data is None:
            entry: Any = ABSENT
        else:
            self.held += len(data)
            entry = slot.entry(data, self._codec.decode)
            if not self._codec.immutable:
                self._handed[key] = data
        self._live[key] = entry
        return entry

    def set(self, value: Any) -> None:
        if value.__class__ is not self._codec.exact:
            value = self._codec.checked(value)
        key = self._cursor.key
        self._live[key] = (self._slot.until() if self._timed else None, value)
        self._written[key] = None

    def clear(self) -> None:
        self._clear(self._cursor.key)

    def _clear(self, key: Any) -> None:
        self._live[key] = ABSENT
        self._written[key] = None

    def get_many(self, keys: pl.Series, default: Any = None) -> pl.Series:
        return self._column.series([self._of(key, default) for key in self._cursor.keys_of(keys)])

    def set_many(self, keys: pl.Series, values: pl.Series) -> None:
        of = self._cursor.keys_of(keys)
        until = repeat(self._slot.until())
        entries = zip(until, self._column.values(values, len(of)), strict=False)
        self._live.update(zip(of, entries, strict=True))
        self._written.update(dict.fromkeys(of))

    def clear_many(self, keys: pl.Series) -> None:
        for key in self._cursor.keys_of(keys):
            self._clear(key)

    def changes(self) -> Changes:
        changes: dict[bytes, bytes | None] = {}
        prefix, live = self._slot.prefix, self._live
        for key in self._written:
            changes[prefix(key)] = self._encoded(live[key])
        for key, before in self._handed.items():
            if key not in self._written and (after := self._encoded(live[key])) != before:
                changes[prefix(key)] = after
        self._written.clear()
        if not self._codec.immutable:
            self.forget()
        return changes

    def _encoded(self, entry: Any) -> bytes | None:
        if entry is ABSENT:
            return None
        data = framed(self._codec.encode(entry[1]), entry[0])
        self.held += len(data) + _BESIDE_BYTES
        return data

    def forget(self) -> None:
        self._live.clear()
        self._handed.clear()
        self.held = 0

    def restored(self, place: Place, row: StoredRow) -> Iterator[tuple[bytes, bytes]]:
        group, data = place
        yield group + self._slot.bytes + data, framed(row[2], self._slot.expiry(row[3]))


class _Element:
    """One element of a list."""

    __slots__ = ("data", "expires", "number", "value")

    def __init__(self, number: int, expires: int | None, value: Any, data: bytes | None) -> None:
        self.number = number
        self.expires = expires
        self.value = value
        self.data = data
        """What the database has of it."""


class RocksListState(ListState[Any], RocksState):
    """The elements of a key, each under a number of its own; one is added without reading the others."""

    def __init__(self, declaration: State, slot: Slot, binding: Binding, numbers: count[int]) -> None:
        State.__init__(self, *declaration.types)
        self.name = declaration.name
        self.held = 0
        self._slot = slot
        self._cursor = binding.cursor
        self._codec = binding.codecs[0]
        self._numbers = numbers
        self._lists: dict[Any, list[_Element]] = {}
        """All elements of keys that were read."""
        self._added: dict[Any, list[_Element]] = {}
        """New elements of keys that were not."""
        self._removed: dict[bytes, None] = {}

    def _elements(self) -> list[_Element]:
        """The elements of the current key that live, in place."""
        key = self._cursor.key
        elements = self._lists.get(key)
        if elements is None:
            elements = self._lists[key] = [*self._stored(key), *self._added.pop(key, ())]
        if self._slot.ttl_us is not None:
            now = self._slot.now_us()
            expired = [one for one in elements if one.expires is not None and one.expires <= now]
            if expired:
                self._remove(key, expired)
                elements[:] = [one for one in elements if one.expires is None or one.expires > now]
        return elements

    def _stored(self, key: Any) -> Iterator[_Element]:
        slot = self._slot
        prefix = slot.prefix(key)
        for found, data in slot.store.scan(prefix, end_of(prefix)):
            self.held += len(data) + _BESIDE_BYTES
            expires, value = slot.entry(data, self._codec.decode)
            yield _Element(int.from_bytes(found[len(prefix) :]), expires, value, data)

    def _remove(self, key: Any, elements: Sequence[_Element]) -> None:
        prefix = self._slot.prefix(key)
        self._removed.update((prefix + one.number.to_bytes(NUMBER_BYTES), None) for one in elements if one.data)

    def _element(self, value: Any) -> _Element:
        if value.__class__ is not self._codec.exact:
            value = self._codec.checked(value)
        return _Element(next(self._numbers), self._slot.until(), value, None)

    def get(self) -> list[Any]:
        elements = self._elements()
        if self._slot.renewed_by_reads:
            until = self._slot.until()
            for one in elements:
                one.expires = until
        return [one.value for one in elements]

    def add(self, value: Any) -> None:
        key = self._cursor.key
        elements = self._lists.get(key)
        (self._added.setdefault(key, []) if elements is None else elements).append(self._element(value))

    def update(self, values: list[Any]) -> None:
        fresh = [self._element(value) for value in values]
        elements = self._elements()
        self._remove(self._cursor.key, elements)
        elements[:] = fresh

    def clear(self) -> None:
        self.update([])

    def changes(self) -> Changes:
        changes: dict[bytes, bytes | None] = dict.fromkeys(self._removed)
        for lists in (self._lists, self._added):
            for key, elements in lists.items():
                prefix = self._slot.prefix(key)
                for one in elements:
                    if one.data is None or not self._codec.immutable or self._slot.renewed_by_reads:
                        data = framed(self._codec.encode(one.value), one.expires)
                        if data != one.data:
                            changes[prefix + one.number.to_bytes(NUMBER_BYTES)] = data
        self.forget()
        return changes

    def forget(self) -> None:
        self._lists.clear()
        self._added.clear()
        self._removed.clear()
        self.held = 0

    def restored(self, place: Place, row: StoredRow) -> Iterator[tuple[bytes, bytes]]:
        group, data = place
        prefix = group + self._slot.bytes + data
        for item in items_of(row[2]):
            yield prefix + next(self._numbers).to_bytes(NUMBER_BYTES), framed(item, self._slot.expiry(row[3]))


class RocksMapState(MapState[Any, Any], RocksState):
    """Every entry of a key under its own bytes: reading one does not read the others."""

    def __init__(self, declaration: State, slot: Slot, binding: Binding) -> None:
        State.__init__(self, *declaration.types)
        self.name = declaration.name
        self.held = 0
        self._slot = slot
        self._cursor = binding.cursor
        self._key_codec, self._codec = binding.codecs
        self._subkey = MapKeys(declaration.types[0]).encode
        self._live: dict[Any, dict[Any, Any]] = {}
        """Entry or `ABSENT` by key and map key."""
        self._whole: set[Any] = set()
        """Keys of which everything is in memory."""
        self._written: dict[tuple[Any, Any], None] = {}
        self._handed: dict[tuple[Any, Any], bytes] = {}

    def _entries(self) -> dict[Any, Any]:
        return self._live.setdefault(self._cursor.key, {})

    def _known(self, key: Any) -> Any:
        """The living entry of a map key, or `ABSENT`."""
        entries = self._entries()
        entry = entries.get(key, _UNKNOWN)
        if entry is _UNKNOWN:
            entry = ABSENT if self._cursor.key in self._whole else self._load(entries, key)
        if entry is not ABSENT and not self._slot.lives(entry):
            self._put(key, ABSENT)
            return ABSENT
        return entry

    def _load(self, entries: dict[Any, Any], key: Any) -> Any:
        slot = self._slot
        data = slot.store.get(slot.prefix(self._cursor.key) + self._subkey(key))
        self.held += _BESIDE_BYTES
        entries[key] = ABSENT if data is None else self._decode_entry(key, data)
        return entries[key]

    def _decode_entry(self, key: Any, data: bytes) -> Entry:
        self.held += len(data) + _BESIDE_BYTES
        if not self._codec.immutable:
            self._handed[self._cursor.key, key] = data
        return self._slot.entry(data, self._codec.decode)

    def _put(self, key: Any, entry: Any) -> None:
        self._entries()[key] = entry
        self._written[self._cursor.key, key] = None

    def get(self, key: Any, default: Any = None) -> Any:
        entry = self._known(key)
        if entry is ABSENT:
            return default
        if self._slot.renewed_by_reads:
            self._put(key, (self._slot.until(), entry[1]))
        return entry[1]

    def set(self, key: Any, value: Any) -> None:
        if key.__class__ is not self._key_codec.exact:
            key = self._key_codec.checked(key)
        if value.__class__ is not self._codec.exact:
            value = self._codec.checked(value)
        self._put(key, (self._slot.until(), value))

    def remove(self, key: Any) -> None:
        if self._known(key) is not ABSENT:
            self._put(key, ABSENT)

    def contains(self, key: Any) -> bool:
        return self.get(key, ABSENT) is not ABSENT

    def items(self) -> Iterator[tuple[Any, Any]]:
        # A list first: users may change the state while they iterate.
        lives = self._slot.lives
        entries = self._all().items()
        living = [(key, entry[1]) for key, entry in entries if entry is not ABSENT and lives(entry)]
        if self._slot.renewed_by_reads:
            until = self._slot.until()
            for key, value in living:
                self._put(key, (until, value))
        return iter(living)

    def _all(self) -> dict[Any, Any]:
        current, entries, slot = self._cursor.key, self._entries(), self._slot
        if current not in self._whole:
            prefix = slot.prefix(current)
            for found, data in slot.store.scan(prefix, end_of(prefix)):
                key = self._key_codec.decode(found[len(prefix) :])
                if key not in entries:
                    entries[key] = self._decode_entry(key, data)
            self._whole.add(current)
        return entries

    def keys(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        return (value for _, value in self.items())

    def clear(self) -> None:
        for key, entry in list(self._all().items()):
            if entry is not ABSENT:
                self._put(key, ABSENT)

    def changes(self) -> Changes:
        changes: dict[bytes, bytes | None] = {}
        for current, key in self._written:
            changes[self._place(current, key)] = self._encoded(self._live[current][key])
        for (current, key), before in self._handed.items():
            if (current, key) not in self._written and (after := self._encoded(self._live[current][key])) != before:
                changes[self._place(current, key)] = after
        self._written.clear()
        if not self._codec.immutable:
            self.forget()
        return changes

    def _place(self, current: Any, key: Any) -> bytes:
        return self._slot.prefix(current) + self._subkey(key)

    def _encoded(self, entry: Any) -> bytes | None:
        if entry is ABSENT:
            return None
        data = framed(self._codec.encode(entry[1]), entry[0])
        self.held += len(data) + _BESIDE_BYTES
        return data

    def forget(self) -> None:
        self._live.clear()
        self._whole.clear()
        self._handed.clear()
        self.held = 0

    def restored(self, place: Place, row: StoredRow) -> Iterator[tuple[bytes, bytes]]:
        group, data = place
        subkey = self._subkey(self._key_codec.decode(cast("bytes", row[1])))
        yield group + self._slot.bytes + data + subkey, framed(row[2], self._slot.expiry(row[3]))


def bind(declaration: State, slot: Slot, binding: Binding, numbers: count[int]) -> State:
    """The bound state of a keyed declaration; of one that folds that of its value (see `folding`)."""
    if isinstance(declaration, ListState):
        return RocksListState(declaration, slot, binding, numbers)
    if isinstance(declaration, MapState):
        return RocksMapState(declaration, slot, binding)
    return RocksValueState(declaration, slot, binding)


# -- what stands in the database as rows of a segment -------------------------------------------------------------------

Found = tuple[bytes, bytes, bytes, int | None]
"""The bytes of a key, what follows them, a value and its expiry."""


def living(pairs: Iterator[tuple[bytes, bytes]], now_us: int | None) -> Iterator[Found]:
    """The entries of one state that live; all of them without a time."""
    for place, data in pairs:
        value, expires = unframed(data)
        if expires is None or now_us is None or expires > now_us:
            end = HEADER_BYTES + size_of_msgpack(place, HEADER_BYTES)
            yield place[HEADER_BYTES:end], place[end:], value, expires


def runs(found: Iterator[Found]) -> Iterator[Found]:
    """The elements of lists, as one array per key and per run of elements that expire together."""
    run: list[bytes] = []
    last: tuple[bytes, int | None] | None = None
    for key, _, value, expires in found:
        if last != (key, expires) and last is not None:
            yield last[0], b"", array_of(run), last[1]
            run = []
        last = (key, expires)
        run.append(value)
    if last is not None:
        yield last[0], b"", array_of(run), last[1]
