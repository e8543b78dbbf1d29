"""All keyed object state of one operator: its bound states and timers, frozen together and written as segments.

The backend behind the names `memory` and `fs`: objects in the process. Whether its snapshots go to memory or to files is
decided by who stores the segments. `penstock.state.rocks.backend` is the one behind `rocksdb`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, cast

import polars as pl
import structlog

from penstock.state.backend import FrozenTable
from penstock.state.codec import ValueCodec
from penstock.state.columns import key_frame, key_values
from penstock.state.compatibility import check_states
from penstock.state.declarations import State, describe_type
from penstock.state.keyed_state import Binding, BoundState, KeyCursor, StoredRow, bind, folding
from penstock.state.segments import decode_segments, encode_segments
from penstock.state.timers import TimerQueue
from penstock.state.widening import as_declared
from penstock.types import Schema

EVENT_TIMERS: Final = "__event_timers"
PROCESSING_TIMERS: Final = "__processing_timers"

KIND: Final = "objects"
ROWS_PER_FRAME: Final = 65_536
_LEAST_UPKEEP: Final = 4_096
"""Entries of upkeep per batch at least; a batch of n rows makes at most about n new entries per state."""

Rows = Callable[[], Iterator[StoredRow]]


class KeyedObjects:
    """Frozen object state of an operator: a `KeyedPart`."""

    def __init__(
        self,
        header: Mapping[str, Any],
        keys: Schema,
        max_parallelism: int,
        parts: Sequence[tuple[FrozenTable, Rows]],
    ) -> None:
        self._header = header
        self._keys = keys
        self._max_parallelism = max_parallelism
        self._parts = parts

    def segments(self) -> Iterable[tuple[int, bytes]]:
        """One segment per key group that has state."""
        try:
            frames = [frame for index, (_, rows) in enumerate(self._parts) for frame in self._frames(index, rows())]
        finally:
            for frozen, _ in self._parts:
                frozen.release()
        return encode_segments(self._header, frames, self._keys, self._max_parallelism)

    def _frames(self, index: int, rows: Iterator[StoredRow]) -> Iterator[pl.DataFrame]:
        while chunk := list(islice(rows, ROWS_PER_FRAME)):
            keys, subkeys, values, times = zip(*chunk, strict=True)
            yield key_frame(keys, self._keys).with_columns(
                pl.Series("__state", [index], pl.UInt16).new_from_index(0, len(chunk)),
                pl.Series("__subkey", subkeys, pl.Binary),
                pl.Series("__value", values, pl.Binary),
                pl.Series("__time_us", times, pl.Int64),
            )


@dataclass(frozen=True)
class _Bound:
    state: BoundState
    description: Mapping[str, Any]
    codec: ValueCodec
    """Of its values."""


class KeyedObjectBackend:
    """Object state of one operator.

    Args:
        operator: its id, for messages.
        keys: the key columns.
        cursor: says which key is current.
        now_us: processing time, for times to live.
    """

    def __init__(
        self, operator: str, keys: Schema, max_parallelism: int, cursor: KeyCursor, now_us: Callable[[], int]
    ) -> None:
        self.event_timers = TimerQueue()
        self.processing_timers = TimerQueue()
        self._operator = operator
        self._keys = keys
        self._max_parallelism = max_parallelism
        self._cursor = cursor
        self._now_us = now_us
        self._bound: dict[str, _Bound] = {}

    def bind(self, declaration: State, description: Mapping[str, Any] | None = None) -> State:
        """The state that stands in for a declaration; `description` is what `describe_states` says of it."""
        binding = Binding(declaration, self._cursor, self._now_us, self._operator)
        state = bind(declaration, binding)
        self._bound[declaration.name] = _Bound(
            cast("BoundState", state), description or described(declaration, self._operator), binding.codecs[-1]
        )
        return folding(declaration, state, binding)

    def learn(self, frame: pl.DataFrame, keys: list[Any]) -> None:
        """These keys come next: nothing to this backend."""

    def maintain(self, rows: int) -> None:
        """Called per batch of `rows` rows: do a share of the work that snapshots left behind."""
        budget = max(_LEAST_UPKEEP, 4 * rows)
        for bound in self._bound.values():
            for key in bound.state.table.maintain(budget):
                bound.state.purge(key)
        self.event_timers.table.maintain(budget)
        self.processing_timers.table.maintain(budget)

    def freeze(self) -> KeyedObjects:
        """The state as it is now; takes microseconds per declared state."""
        now = self._now_us()
        parts: list[tuple[FrozenTable, Rows]] = []
        for bound in self._bound.values():
            frozen = bound.state.table.freeze()
            parts.append((frozen, _stored(bound.state, frozen, now)))
        for timers in (self.event_timers, self.processing_timers):
            frozen = timers.freeze()
            parts.append((frozen, _stored_timers(frozen)))
        header = {
            "kind": KIND,
            "names": [*self._bound, EVENT_TIMERS, PROCESSING_TIMERS],
            "states": self._descriptions(),
        }
        return KeyedObjects(header, self._keys, self._max_parallelism, parts)

    def _descriptions(self) -> dict[str, Any]:
        return {name: bound.description for name, bound in self._bound.items()}

    def restore(self, segments: Iterable[tuple[int, bytes]]) -> None:
        """Add the state of segments.

        Raises:
            IncompatibleStateError: it does not fit what is declared.
            CorruptDataError: a segment is damaged.
        """
        left_behind: set[str] = set()
        for _, header, rows in decode_segments(segments, self._operator, KIND, self._keys):
            left_behind.update(check_states(self._operator, header["states"], self._descriptions()))
            # As rows are sorted by state within a segment of one snapshot, this is a split, not a shuffle.
            for part in rows.partition_by("__state", maintain_order=True):
                self._restore_part(header, header["names"][part["__state"][0]], part)
        warn_left_behind(self._operator, left_behind)

    def _restore_part(self, header: Mapping[str, Any], name: str, part: pl.DataFrame) -> None:
        keys = key_values(part, self._keys)
        timers = {EVENT_TIMERS: self.event_timers, PROCESSING_TIMERS: self.processing_timers}.get(name)
        if timers is not None:
            for key, time in zip(keys, part["__time_us"].to_list(), strict=True):
                timers.set(key, time)
        elif name in self._bound:
            bound = self._bound[name]
            columns = [part[column].to_list() for column in ("__subkey", "__value", "__time_us")]
            rows: Iterator[StoredRow] = zip(keys, *columns, strict=True)
            bound.state.load(list(as_declared(rows, header["states"][name], bound.description, bound.codec)))

    def close(self) -> None:
        """Nothing is held beside the process."""


def described(declaration: State, operator: str) -> Mapping[str, Any]:
    """What `describe_states` would say of a state of one value that the engine itself declares."""
    value = describe_type(declaration.types[0], f"{operator}.{declaration.name}")
    timed = {} if declaration.ttl_us is None else {"ttl_us": declaration.ttl_us}
    return {"kind": declaration.kind, "value": value, **timed}


def warn_left_behind(operator: str, names: Iterable[str]) -> None:
    """Say which states of a snapshot nobody declares any more."""
    for name in sorted(names):
        structlog.get_logger().warning("state_left_behind", operator=operator, state=name)


def _stored(state: BoundState, frozen: FrozenTable, now_us: int) -> Rows:
    return lambda: state.stored(frozen, now_us)


def _stored_timers(frozen: FrozenTable) -> Rows:
    return lambda: ((key, None, b"", time) for (key, time), _ in frozen)
