"""All keyed object state of one operator in a database on the local disk.

The same to an operator as `penstock.state.keyed_backend`. Reads and writes go through what the states hold in memory;
`flush` writes what has changed as one batch. Snapshots see the database at one moment and are written in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, count, groupby, islice, takewhile
from pathlib import Path
from typing import Any, Final, cast

import polars as pl

from penstock.protocol.keygroups import KeyGroupRange
from penstock.state.codec import ValueCodec
from penstock.state.columns import key_frame, key_values
from penstock.state.compatibility import check_states
from penstock.state.declarations import State
from penstock.state.deltas import CHANGES, NUMBERED
from penstock.state.keyed_backend import (
    EVENT_TIMERS,
    KIND,
    PROCESSING_TIMERS,
    ROWS_PER_FRAME,
    described,
    warn_left_behind,
)
from penstock.state.keyed_state import Binding, KeyCursor, StoredRow, array_of, folding
from penstock.state.rocks.changed import ChangedKeys, ClosedEpochs
from penstock.state.rocks.layout import (
    END,
    EVENT_SLOT,
    FIRST_STATE_SLOT,
    HEADER_BYTES,
    PROCESSING_SLOT,
    Places,
    size_of_msgpack,
    slot_bytes,
    time_bytes,
    time_of,
    unframed,
)
from penstock.state.rocks.states import RocksState, Slot, bind, living, runs
from penstock.state.rocks.store import MOST_HELD_BYTES, Changes, FrozenEntries, Pairs, RocksStore
from penstock.state.rocks.timers import RocksTimers
from penstock.state.segments import decode_segments, encode_segment
from penstock.state.widening import as_declared
from penstock.types import Schema, schema_to_json

_SEGMENT_BYTES: Final = 4 << 20
"""A segment ends with the row that makes it larger, whatever else its key group has."""
_CLEANED_AT_ONCE: Final = 1_000
"""Entries of states with a time to live that are looked at per batch at most."""

_TIMERS: Final = {EVENT_SLOT: EVENT_TIMERS, PROCESSING_SLOT: PROCESSING_TIMERS}
_SLOTS: Final = {name: slot for slot, name in _TIMERS.items()}

EncodedRow = tuple[bytes, bytes | None, bytes | None, int | None]
"""The bytes of a key, map key, value and time of one row of a segment."""
StoredPair = tuple[bytes, bytes | None]
"""Key and value of an entry of the database; None: it was removed."""


class KeyedRocks:
    """Frozen state of an operator: a `KeyedPart`."""

    def __init__(self, header: Mapping[str, Any], keys: Schema, places: Places, frozen: Pairs, now_us: int) -> None:
        self._header: dict[str, Any] = {**header, "keys": schema_to_json(keys)}
        self._keys = keys
        self._places = places
        self._frozen = frozen
        self._now_us = now_us

    def segments(self) -> Iterable[tuple[int, bytes]]:
        """Segments of every key group that has state; one at a time is in memory."""
        pairs, self._frozen = takewhile(lambda pair: pair[0] < END, self._frozen), iter(())
        return self.encoded(pairs)

    def encoded(self, pairs: Iterable[StoredPair]) -> Iterator[tuple[int, bytes]]:
        """Segments of these entries, in the order of their keys."""
        for group, of_group in groupby(pairs, lambda pair: pair[0][:2]):
            for frames in _cut(self._frames_of_group(of_group)):
                yield int.from_bytes(group), encode_segment(self._header, pl.concat(frames, rechunk=True))

    def _frames_of_group(self, pairs: Iterator[StoredPair]) -> Iterator[pl.DataFrame]:
        for slot, of_slot in groupby(pairs, lambda pair: pair[0][2:HEADER_BYTES]):
            yield from self._frames(int.from_bytes(slot), of_slot)

    def _frames(self, slot: int, pairs: Iterator[StoredPair]) -> Iterator[pl.DataFrame]:
        names = self._header["names"]
        name = _TIMERS.get(slot) or names[slot - FIRST_STATE_SLOT]
        rows = self.timer_rows(pairs) if slot in _TIMERS else self.state_rows(self._header["states"][name], pairs)
        for chunk in _chunks(rows):
            keys, subkeys, values, times = zip(*chunk, strict=True)
            yield key_frame(list(map(self._places.decode, keys)), self._keys).with_columns(
                pl.Series("__state", [names.index(name)], pl.UInt16).new_from_index(0, len(chunk)),
                pl.Series("__subkey", subkeys, pl.Binary),
                pl.Series("__value", values, pl.Binary),
                pl.Series("__time_us", times, pl.Int64),
            )

    def state_rows(self, state: Mapping[str, Any], pairs: Iterator[StoredPair]) -> Iterator[EncodedRow]:
        """The rows of one state."""
        timed = "ttl_us" in state
        found = living(cast("Pairs", pairs), self._now_us if timed else None)
        for key, subkey, value, expires in runs(found) if state["kind"] == "list" else found:
            yield key, subkey if state["kind"] == "map" else None, value, expires if timed else None

    def timer_rows(self, pairs: Iterator[StoredPair]) -> Iterator[EncodedRow]:
        """The rows of timers."""
        for place, data in pairs:
            yield place[HEADER_BYTES + 8 :], None, data, time_of(place[HEADER_BYTES : HEADER_BYTES + 8])


def _chunks(rows: Iterator[EncodedRow]) -> Iterator[list[EncodedRow]]:
    chunk: list[EncodedRow] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row[0]) + len(row[1] or b"") + len(row[2] or b"")
        if len(chunk) == ROWS_PER_FRAME or size > _SEGMENT_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _cut(frames: Iterator[pl.DataFrame]) -> Iterator[list[pl.DataFrame]]:
    """The frames of a key group by segments."""
    together: list[pl.DataFrame] = []
    for frame in frames:
        together.append(frame)
        if sum(one.estimated_size() for one in together) > _SEGMENT_BYTES:
            yield together
            together = []
    if together:
        yield together


class IncrementalRocks(KeyedRocks):
    """Frozen state that knows what has changed since earlier freezes: an `IncrementalPart`."""

    def __init__(
        self, header: Mapping[str, Any], keys: Schema, places: Places, frozen: Pairs, now_us: int,
        changed: ClosedEpochs, entries: FrozenEntries,
    ) -> None:  # fmt: skip
        super().__init__(header, keys, places, frozen, now_us)
        self._changed = changed
        self._entries = entries
        self._by_entry = False

    @property
    def epoch(self) -> int:
        """The number of this freeze."""
        return self._changed.number

    def knows_since(self, epoch: int) -> bool:
        """Whether all is known that was changed since that freeze."""
        return self._changed.known_from <= epoch

    def full(self) -> Iterable[tuple[int, bytes]]:
        """Segments of all entries, to which deltas may be added."""
        self._begin(NUMBERED)
        return self.segments()

    def delta(self, epoch: int) -> Iterable[tuple[int, bytes]]:
        """Segments of what was changed since that freeze, which is in a COMPLETE: earlier changes may be forgotten."""
        self._begin(CHANGES)
        self._frozen = iter(())
        entries = self._entries
        return self.encoded((place, entries.get(place)) for place in self._changed.since(epoch))

    def _begin(self, kind: str) -> None:
        self._header["kind"] = kind
        self._by_entry = True

    def state_rows(self, state: Mapping[str, Any], pairs: Iterator[StoredPair]) -> Iterator[EncodedRow]:
        """The rows of one state; by entry, each element of a list is one, with its number."""
        if not self._by_entry:
            yield from super().state_rows(state, pairs)
            return
        timed, listed = "ttl_us" in state, state["kind"] == "list"
        for place, data in pairs:
            value, expires = (None, None) if data is None else unframed(data)
            if timed and expires is not None and expires <= self._now_us:
                value = None
            end = HEADER_BYTES + size_of_msgpack(place, HEADER_BYTES)
            subkey = place[end:] if listed or state["kind"] == "map" else None
            stored = array_of([value]) if listed and value is not None else value
            yield place[HEADER_BYTES:end], subkey, stored, expires if timed and value is not None else None


class KeyedRocksBackend:
    """Object state of one operator.

    Args:
        operator: its id, for messages.
        keys: the key columns.
        max_parallelism: number of key groups.
        cursor: says which key is current.
        now_us: processing time, for times to live.
        root: the folder in which the database has its folder.
        key_groups: those of the subtask.
        incremental: whether snapshots can tell what has changed between two of them.

    Raises:
        UsageError: `rocksdict` is not installed.
        ExternalError: the folder cannot be used.
    """

    def __init__(
        self,
        operator: str,
        keys: Schema,
        max_parallelism: int,
        cursor: KeyCursor,
        now_us: Callable[[], int],
        root: Path,
        key_groups: KeyGroupRange,
        *,
        incremental: bool = False,
    ) -> None:
        self._operator = operator
        self._keys = keys
        self._cursor = cursor
        self._now_us = now_us
        self._key_groups = key_groups
        self._places = Places(keys, max_parallelism)
        self._store = RocksStore(operator, root)
        self._changed = ChangedKeys() if incremental else None
        self._numbers = count()
        self._states: dict[str, RocksState] = {}
        self._descriptions: dict[str, Mapping[str, Any]] = {}
        self._codecs: dict[str, ValueCodec] = {}
        """Of their values."""
        self._timed: set[bytes] = set()
        """Of the states with a time to live."""
        self._cleaned = b""
        """Up to where they were cleaned."""
        self.event_timers = RocksTimers(self._store, EVENT_SLOT, self._places, self._write)
        self.processing_timers = RocksTimers(self._store, PROCESSING_SLOT, self._places, self._write)

    def bind(self, declaration: State, description: Mapping[str, Any] | None = None) -> State:
        """The state that stands in for a declaration; `description` is what `describe_states` says of it."""
        binding = Binding(declaration, self._cursor, self._now_us, self._operator)
        slot = Slot(self._store, FIRST_STATE_SLOT + len(self._states), self._places, binding)
        state = bind(declaration, slot, binding, self._numbers)
        self._states[declaration.name] = cast("RocksState", state)
        self._descriptions[declaration.name] = description or described(declaration, self._operator)
        self._codecs[declaration.name] = binding.codecs[-1]
        if declaration.ttl_us is not None:
            self._timed.add(slot.bytes)
        return folding(declaration, state, binding)

    def learn(self, frame: pl.DataFrame, keys: list[Any]) -> None:
        """These keys come next: `frame` has their columns, however they are named, and nothing else."""
        self._places.learn(frame, keys)

    def maintain(self, rows: int) -> None:
        """Called per batch of `rows` rows: write what it has changed, and forget a part of what has expired."""
        self.flush()
        budget = min(_CLEANED_AT_ONCE, 2 * rows)
        if budget and self._timed:
            self._clean(budget)

    def _held(self) -> int:
        return sum(state.held for state in self._states.values())

    def flush(self) -> None:
        """Write what has changed since the last time."""
        timers = [self.event_timers, self.processing_timers]
        changes = {
            key: value
            for part in (*(state.changes() for state in self._states.values()), *(one.changes for one in timers))
            for key, value in part.items()
        }
        if changes:
            self._write(changes)
        for one in timers:
            one.changes.clear()
        if self._held() > MOST_HELD_BYTES:
            for state in self._states.values():
                state.forget()

    def _clean(self, budget: int) -> None:
        """Remove what has expired among the next entries."""
        now = self._now_us()
        expired: dict[bytes, bytes | None] = {}
        place = b""
        for place, data in islice(self._store.scan(self._cleaned, END), budget):
            if place[2:HEADER_BYTES] in self._timed and (until := unframed(data)[1]) is not None and until <= now:
                expired[place] = None
        self._cleaned = place + b"\0" if place else b""
        if expired:
            self._write(expired)

    def _write(self, changes: Changes) -> None:
        self._store.write(changes)
        if self._changed is not None:
            self._changed.note(changes)

    def freeze(self) -> KeyedRocks:
        """The state as it is now. Little waits to be written: what was changed since the last batch."""
        self.flush()
        header = {
            "kind": KIND,
            "names": [*self._states, EVENT_TIMERS, PROCESSING_TIMERS],
            "states": dict(self._descriptions),
        }
        frozen = (header, self._keys, self._places, self._store.frozen(), self._now_us())
        if self._changed is None:
            return KeyedRocks(*frozen)
        return IncrementalRocks(*frozen, self._changed.close(), self._store.frozen_entries())

    def restore(self, segments: Iterable[tuple[int, bytes]]) -> None:
        """Add the state of segments.

        Raises:
            IncompatibleStateError: it does not fit what is declared.
            CorruptDataError: a segment is damaged.
        """
        left_behind: set[str] = set()
        for group, header, rows in decode_segments(segments, self._operator, KIND, self._keys):
            left_behind.update(check_states(self._operator, header["states"], self._descriptions))
            for part in rows.partition_by("__state", maintain_order=True):
                self._restore_part(group.to_bytes(2), header, header["names"][part["__state"][0]], part)
        warn_left_behind(self._operator, left_behind)
        names = [group.to_bytes(2) for group in range(self._key_groups.start, self._key_groups.end)]
        for timers in (self.event_timers, self.processing_timers):
            timers.open(names)

    def _restore_part(self, group: bytes, header: Mapping[str, Any], name: str, part: pl.DataFrame) -> None:
        encode = self._places.encode
        columns = [part[column].to_list() for column in ("__subkey", "__value", "__time_us")]
        rows: Iterable[StoredRow] = zip(map(encode, key_values(part, self._keys)), *columns, strict=True)
        if name in self._states:
            rows = as_declared(rows, header["states"][name], self._descriptions[name], self._codecs[name])
        pairs = chain.from_iterable(self._stored(group, name, row) for row in rows)
        while chunk := dict(islice(pairs, ROWS_PER_FRAME)):
            self._store.write(chunk)

    def _stored(self, group: bytes, name: str, row: StoredRow) -> Iterable[tuple[bytes, bytes]]:
        slot = _SLOTS.get(name)
        if slot is not None:
            return [(group + slot_bytes(slot) + time_bytes(cast("int", row[3])) + row[0], b"")]
        state = self._states.get(name)
        return () if state is None else state.restored((group, row[0]), row)

    def close(self) -> None:
        """Give back the disk."""
        self._store.close()
