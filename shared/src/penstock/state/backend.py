"""The object backend: state as Python objects in dictionaries that can be frozen at once, whatever their size.

Responsible for `Table`, a dictionary in generations. Writes go to the `live` dictionary; `freeze` puts it on top of the
frozen `layers` and starts an empty one, which takes microseconds for any size. Reads look into `live` first, then into
the layers from the newest to the oldest. While a snapshot is being encoded in the background (it holds a lease) the
layers are not changed; once no lease is out, `maintain` moves a bounded number of entries per batch back down until one
dictionary is left, so no single call pays for the size of the state. Where objects can be changed in place, a value
found in a leased layer is copied before it is handed out, as Flink's CopyOnWriteStateMap does.

Where snapshots are incremental, generations of different epochs are not merged as long as a delta may have to tell them
apart (`penstock.state.freezes`).

What the values mean is `penstock.state.keyed_state`'s business, the bytes of a snapshot `penstock.state.segments`'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import filterfalse, pairwise, repeat
from typing import Any, Final

from penstock.state.freezes import Freezes


class _Absent:
    """Stands in a generation for a key that was removed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""What look-ups return for a key without value, and what hides a removed key of an older generation."""
_UNKNOWN: Final = _Absent()
"""The generation knows nothing of the key."""

Entries = dict[Any, Any]


class Lease:
    """Held by a snapshot on the layers it reads; given back in the background thread when it is encoded."""

    __slots__ = ("expired", "out")

    def __init__(self) -> None:
        self.out = True
        self.expired: list[Any] = []
        """Keys that the snapshot found past their time to live."""


class FrozenTable:
    """The content of a table at the moment of `freeze`. Readable from any thread until `release`."""

    __slots__ = ("_epochs", "_layers", "_lease")

    by_key_group: Final = False
    """Whether keys come in the order of their key groups."""

    def __init__(self, layers: tuple[Entries, ...], epochs: tuple[int, ...], lease: Lease) -> None:
        self._layers = layers
        self._epochs = epochs
        self._lease = lease

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Every key once, with its newest value."""
        for key, value in _newest(self._layers):
            if value is not ABSENT:
                yield key, value

    def knows_since(self, epoch: int) -> bool:
        """Whether `since` can tell: always, of an epoch that `Freeze` knows."""
        return True

    def since(self, epoch: int) -> Iterator[tuple[Any, Any]]:
        """Every key that was written or removed behind that epoch once, with its newest value, or `ABSENT`."""
        yield from _newest([layer for layer, of in zip(self._layers, self._epochs, strict=True) if of > epoch])

    def expired(self, key: Any) -> None:
        """Tell the table that the value of `key` is past its time to live."""
        self._lease.expired.append(key)

    def release(self) -> None:
        """The snapshot is written or given up."""
        self._layers = self._epochs = ()
        self._lease.out = False

    def __del__(self) -> None:
        # A checkpoint that is aborted before its upload never asks for the content.
        self._lease.out = False


def _newest(layers: Sequence[Entries]) -> Iterator[tuple[Any, Any]]:
    """Every key of the layers once, with what the newest has."""
    for index, layer in enumerate(layers):
        keys: Iterator[Any] = iter(layer)
        for above in layers[:index]:
            keys = filterfalse(above.__contains__, keys)
        yield from ((key, layer[key]) for key in keys) if index else layer.items()


class Table:
    """A dictionary that is frozen in constant time.

    Hot paths read `live` themselves and call `find` only for what is not there.

    Args:
        copy: makes an independent copy of a value, for values that may be changed in place; None if there are none.
        freezes: tells which generations are kept apart; None: none ever.
    """

    __slots__ = ("_copy", "_epochs", "_expired", "_freezes", "_leases", "layers", "live")

    def __init__(self, copy: Callable[[Any], Any] | None = None, freezes: Freezes | None = None) -> None:
        self.live: Entries = {}
        self.layers: list[Entries] = []
        self._epochs: list[int] = []
        """Of each layer."""
        self._freezes = freezes or Freezes()
        self._copy = copy
        self._leases: list[Lease] = []
        self._expired: list[Any] = []

    def get(self, key: Any) -> Any:
        """The value of `key`, or `ABSENT`."""
        value = self.live.get(key, ABSENT)
        return self.find(key) if value is ABSENT else value

    def get_many(self, keys: Sequence[Any]) -> list[Any]:
        """The value of each key, or `ABSENT`; of values that cannot be changed in place."""
        if not self.layers:
            return list(map(self.live.get, keys, repeat(ABSENT)))
        found: list[Any] = list(map(self.live.get, keys, repeat(_UNKNOWN)))
        for layer in self.layers:
            left = [index for index, value in enumerate(found) if value is _UNKNOWN]
            for index in left:
                found[index] = layer.get(keys[index], _UNKNOWN)
        return [ABSENT if value is _UNKNOWN else value for value in found]

    def find(self, key: Any) -> Any:
        """The value of a key that is not in `live`, or `ABSENT`."""
        if not self.layers or key in self.live:
            return ABSENT
        for layer in self.layers:
            value = layer.get(key, _UNKNOWN)
            if value is not _UNKNOWN:
                return self._handed_out(key, value)
        return ABSENT

    def _handed_out(self, key: Any, value: Any) -> Any:
        if value is ABSENT or self._copy is None or not self.leased():
            return value
        copied = self._copy(value)
        self.live[key] = copied
        return copied

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""
        self.live[key] = value

    def put_many(self, keys: Iterable[Any], values: Iterable[Any]) -> None:
        """Set the values of these keys, which are as many."""
        self.live.update(zip(keys, values, strict=True))

    def remove(self, key: Any) -> None:
        """Remove `key` if it is there."""
        if self.layers:
            self.live[key] = ABSENT
        else:
            self.live.pop(key, None)

    def all_keys(self) -> list[Any]:
        """The keys that have a value."""
        frozen = self.freeze()
        try:
            return [key for key, _ in frozen]
        finally:
            frozen.release()

    def clear(self) -> None:
        """Forget all keys."""
        self.live, self.layers, self._epochs = {}, [], []

    def close(self) -> None:
        """Nothing is held beside the process."""

    def size_bound(self) -> int:
        """At least the number of keys."""
        return len(self.live) + sum(map(len, self.layers))

    def freeze(self) -> FrozenTable:
        """The content as it is now, for another thread to read; later changes do not touch it."""
        if self.live:
            self.layers.insert(0, self.live)
            self._epochs.insert(0, self._freezes.current)
            self.live = {}
        lease = Lease()
        self._leases.append(lease)
        return FrozenTable(tuple(self.layers), tuple(self._epochs), lease)

    def leased(self) -> bool:
        """Whether a snapshot still reads the layers."""
        return any(lease.out for lease in self._leases)

    def maintain(self, budget: int) -> list[Any]:
        """Do up to `budget` entries of the work that snapshots left; returns keys that snapshots found expired."""
        if not (self._leases or self.layers or self._expired) or self.leased():
            return []
        for lease in self._leases:
            self._expired.extend(lease.expired)
        self._leases.clear()
        remaining = budget
        while remaining > 0 and (target := self._mergeable()) is not None:
            remaining -= self._merge_down(target, remaining)
        expired, self._expired = self._expired[:budget], self._expired[budget:]
        return expired

    def _mergeable(self) -> int | None:
        """The oldest generation into which the one above it, or what is `live`, may be merged."""
        epochs = [self._freezes.current, *self._epochs]
        pairs = [index for index, pair in enumerate(pairwise(epochs)) if self._freezes.together(*pair)]
        return pairs[-1] if pairs else None

    def _merge_down(self, target: int, budget: int) -> int:
        """Move entries of the generation above into this one; returns how many, at least one."""
        into, oldest = self.layers[target], target == len(self.layers) - 1
        source = self.layers[target - 1] if target else self.live
        moved = min(budget, len(source))
        for _ in range(moved):
            key, value = source.popitem()
            if value is ABSENT and oldest:
                into.pop(key, None)
            else:
                into[key] = value
        if not source:
            if target:
                self._epochs[target] = max(self._epochs[target - 1 : target + 1])
                del self.layers[target - 1], self._epochs[target - 1]
            else:
                self.live = self.layers.pop(0)
                self._epochs.pop(0)
        return max(moved, 1)
