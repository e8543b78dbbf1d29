"""State of keys that nothing happens to: it goes from savepoint to savepoint as it is stored, and never becomes objects.

Most keys of a large state have no row in a step. What an operator keeps by key it reads and writes by key, so it is given
the keys that have rows and those for which time may do something: a timer is due, or a value has expired. The rows of all
others are columns, which are cut out and put back; that costs a fiftieth of what it takes an operator to have them.

Keys are told by their hashes: one that shares its hash with another is given to the operator, too, which does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from penstock.graph.logical import (
    AggregateChanges,
    Deduplicate,
    LastRows,
    Materialize,
    Node,
    ProcessRows,
    RunningAggregate,
    RunningReduce,
    ToChanges,
    Top,
)
from penstock.state.hashing import hash64_frame
from penstock.state.keyed_backend import EVENT_TIMERS, PROCESSING_TIMERS
from penstock.state.segments import decode_segment, encode_segment
from penstock.times import MAX_WATERMARK

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

LEAST_BYTES: Final = 256 << 10
"""Less state than this is given to the operator as a whole."""

Segments = Iterable[tuple[int, bytes]]


def is_by_key_alone(node: Node, watermark: int) -> bool:
    """Whether nothing happens to a key of this operator without a row, a timer, or the end of a value's time to live."""
    operation = node.operation
    if len(node.inputs) > 1:
        return False
    if watermark == MAX_WATERMARK or (isinstance(operation, Deduplicate) and operation.ttl_us is not None):
        return False
    by_key = (
        RunningAggregate, RunningReduce, Top, Deduplicate, LastRows, ToChanges, AggregateChanges,
        Materialize,
    )  # fmt: skip
    return isinstance(operation, by_key) or type(operation) is ProcessRows  # those of windows look at all their keys


@dataclass(frozen=True)
class Asked:
    """What is asked of the state of some key groups."""

    keys: NDArray[np.uint64]
    """The hashes of the keys that have rows."""
    watermark: int
    """How far event time comes."""
    now_us: int

    @classmethod
    def by(cls, rows: Iterable[pl.DataFrame], names: list[str], watermark: int, now_us: int) -> Asked:
        """By these rows, whose keys are in the columns `names`."""
        hashes = [hash64_frame(frame, names) for frame in rows]
        return cls(np.unique(np.concatenate(hashes)) if hashes else np.empty(0, np.uint64), watermark, now_us)


Part = tuple[Mapping[str, Any], pl.DataFrame]
"""Header and rows of a segment."""


@dataclass
class Untouched:
    """The state that an operator was not given."""

    operator: str
    whole: dict[int, list[bytes]] = field(default_factory=dict[int, list[bytes]])
    """Key group to segments of which nothing was given."""
    parts: dict[int, list[Part]] = field(default_factory=dict[int, list[Part]])
    """Key group to what is left of others."""

    def taken(self, segments: Segments, asked: Asked) -> list[tuple[int, bytes]]:
        """Of these segments what the operator is to have; the rest stays here."""
        given: list[tuple[int, bytes]] = []
        for group, data in segments:
            header, rows = decode_segment(data, self.operator)
            wanted = _wanted(header, rows, asked)
            if wanted.all():
                given.append((group, data))
            elif wanted.any():
                given.append((group, encode_segment(header, rows.filter(pl.Series(wanted)))))
                self.parts.setdefault(group, []).append((header, rows.filter(pl.Series(~wanted))))
            else:
                self.whole.setdefault(group, []).append(data)
        return given

    def put_back(self, kept: Segments, again: Callable[[Segments], Segments]) -> Iterator[tuple[int, bytes]]:
        """What the operator kept together with what it was not given, one segment per key group, rising.

        Args:
            kept: its segments.
            again: what the operator makes of segments that it is given and has to keep; for those of another form.
        """
        written = dict(kept)
        for group in sorted({*written, *self.whole, *self.parts}):
            whole = [*([written[group]] if group in written else ()), *self.whole.get(group, ())]
            if len(whole) == 1 and group not in self.parts:
                yield group, whole[0]
            else:
                yield group, self._joined(group, whole, again)

    def _joined(self, group: int, whole: Sequence[bytes], again: Callable[[Segments], Segments]) -> bytes:
        parts: list[Part] = [decode_segment(data, self.operator) for data in whole]
        parts += self.parts.get(group, ())
        header, rows = parts[0]
        if all(other == header and frame.schema == rows.schema for other, frame in parts):
            return encode_segment(header, pl.concat([frame for _, frame in parts]))
        ((_, data),) = again([(group, encode_segment(*part)) for part in parts])
        return data


def _wanted(header: Mapping[str, Any], rows: pl.DataFrame, asked: Asked) -> NDArray[np.bool_]:
    """Which rows of a segment are of keys that something happens to."""
    hashes = hash64_frame(rows, [part["name"] for part in header["keys"]])
    due = _due(header, rows, asked)
    keys = asked.keys if due is None or not due.any() else np.union1d(asked.keys, hashes[due])
    return _is_among(hashes, keys)


def _is_among(hashes: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of the hashes are among the keys, which rise. A test of sets would sort both for every segment anew."""
    if not len(keys):
        return np.zeros(len(hashes), np.bool_)
    places = np.searchsorted(keys, hashes)
    return keys[np.minimum(places, len(keys) - 1)] == hashes


def _due(header: Mapping[str, Any], rows: pl.DataFrame, asked: Asked) -> NDArray[np.bool_] | None:
    """The rows that time does something to: timers of event time, and values that have expired."""
    if "names" not in header:  # an aggregate
        return None
    names = header["names"]
    state, time = rows["__state"], rows["__time_us"]
    timers = state == names.index(EVENT_TIMERS)
    until = pl.Series(np.where(timers.to_numpy(), asked.watermark, asked.now_us))
    return ((time <= until) | (state == names.index(PROCESSING_TIMERS))).fill_null(value=False).to_numpy()
