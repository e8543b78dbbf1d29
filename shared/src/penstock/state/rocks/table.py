"""Rows by key in a database on the local disk: what `penstock.state.backend.Table` is in memory.

Rows that a batch reads or writes are held as Python objects until they are many; what it has written stands in the
database when it is over. The bytes of rows there are Python's own, since nobody else ever reads them: snapshots are
columns, the same on every backend.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from penstock.state.backend import ABSENT
from penstock.state.columns import key_frame
from penstock.state.rocks.changed import ChangedKeys, ClosedEpochs
from penstock.state.rocks.layout import END, GROUP_BYTES, Places
from penstock.state.rocks.store import MOST_HELD_BYTES, Changes, FrozenEntries, Pairs, RocksStore
from penstock.types import Schema

_BESIDE_BYTES: Final = 256
"""What a row takes in memory besides its bytes in the database, about."""
_ROWS_AT_ONCE: Final = 65_536


class FrozenRocksTable:
    """The content of a table at the moment of `freeze`. Readable from any thread until `release`."""

    by_key_group: Final = True

    def __init__(self, places: Places, pairs: Pairs, changes: tuple[ClosedEpochs, FrozenEntries] | None) -> None:
        self._places = places
        self._pairs = pairs
        self._changes = changes
        """What is known of earlier freezes, and where the rows are read; None: nothing, as checkpoints are full."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Every key once, with its row."""
        for place, data in self._pairs:
            yield self._key(place), pickle.loads(data)

    def knows_since(self, epoch: int) -> bool:
        """Whether all is known that was changed since that freeze."""
        return self._changes is not None and self._changes[0].known_from <= epoch

    def since(self, epoch: int) -> Iterator[tuple[Any, Any]]:
        """Every key that was written or removed behind that epoch once, with its row, or `ABSENT`."""
        assert self._changes is not None
        changed, entries = self._changes
        for place in changed.since(epoch):
            data = entries.get(place)
            yield self._key(place), ABSENT if data is None else pickle.loads(data)

    def _key(self, place: bytes) -> Any:
        return self._places.decode(place[GROUP_BYTES:])

    def release(self) -> None:
        """The snapshot is written or given up."""
        self._pairs, self._changes = iter(()), None


class RocksTable:
    """A dictionary of rows on the local disk that is frozen in constant time.

    Args:
        operator: whose rows they are, for messages.
        keys: the key columns.
        max_parallelism: number of key groups.
        root: the folder in which the database has its folder.
        incremental: whether a snapshot can tell what has changed between two of them.

    Raises:
        UsageError: `rocksdict` is not installed.
        ExternalError: the folder cannot be used.
    """

    def __init__(self, operator: str, keys: Schema, max_parallelism: int, root: Path, *, incremental: bool) -> None:
        self._keys = keys
        self._places = Places(keys, max_parallelism)
        self._store = RocksStore(operator, root)
        self._changed = ChangedKeys() if incremental else None
        self._held: dict[Any, Any] = {}
        """Row or `ABSENT` by key."""
        self._rows = self._bytes = 0
        """Read and written so far: how large a row is, about."""
        self._written: set[Any] = set()
        """Keys whose row in the database is an older one."""

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        """The row of each key, or `ABSENT`."""
        held = self._held
        unknown = [key for key in keys if key not in held]
        self._learn(unknown)
        get, place = self._store.get, self._place
        for key in unknown:
            data = get(place(key))
            held[key] = ABSENT if data is None else pickle.loads(data)
            self._count(data)
        return [held[key] for key in keys]

    def put_many(self, keys: Iterable[Any], rows: Iterable[Any]) -> None:
        """Set the rows of these keys, which are as many."""
        written = dict(zip(keys, rows, strict=True))
        self._held.update(written)
        self._written.update(written)

    def remove(self, key: Any) -> None:
        """Remove a key if it is there."""
        self._held[key] = ABSENT
        self._written.add(key)

    def all_keys(self) -> list[Any]:
        """The keys that have a row."""
        self._flush()
        return [self._places.decode(place[GROUP_BYTES:]) for place, _ in self._store.scan(b"", END)]

    def clear(self) -> None:
        """Forget all rows."""
        self._written.clear()
        self._held.clear()
        stored = self._store.scan(b"", END)
        while removed := {place: None for place, _ in islice(stored, _ROWS_AT_ONCE)}:
            self._write(removed)

    def maintain(self, budget: int) -> None:
        """A batch is over: write what it has changed."""
        self._flush()
        if self._rows and len(self._held) * (_BESIDE_BYTES + self._bytes / self._rows) > MOST_HELD_BYTES:
            self._held = {}

    def freeze(self) -> FrozenRocksTable:
        """The content as it is now, for another thread to read; later changes do not touch it."""
        self._flush()
        changes = None if self._changed is None else (self._changed.close(), self._store.frozen_entries())
        return FrozenRocksTable(self._places, self._store.frozen(), changes)

    def close(self) -> None:
        """Give back the disk."""
        self._store.close()

    def _flush(self) -> None:
        if not self._written:
            return
        self._learn(self._written)
        changes: dict[bytes, bytes | None] = {}
        for key in self._written:
            row = self._held[key]
            data = None if row is ABSENT else pickle.dumps(row, pickle.HIGHEST_PROTOCOL)
            changes[self._place(key)] = data
            self._count(data)
        self._written.clear()
        self._write(changes)

    def _count(self, data: bytes | None) -> None:
        self._rows += 1
        self._bytes += len(data or b"")

    def _write(self, changes: Changes) -> None:
        self._store.write(changes)
        if self._changed is not None:
            self._changed.note(changes)

    def _learn(self, keys: Iterable[Any]) -> None:
        self._places.forget_if_many()
        unknown = [key for key in keys if key not in self._places]
        if unknown:
            self._places.learn(key_frame(unknown, self._keys), unknown)

    def _place(self, key: Any) -> bytes:
        group, data = self._places.of(key)
        return group + data
