"""State of keys that nothing happens to: it goes from savepoint to savepoint as it is stored, and never becomes objects.

Most keys of a large state have no row in a step. What an operator keeps by key it reads and writes by key, so it is given
the keys that have rows and those for which time may do something: a timer is due, or a value has expired. The rows of all
others are columns. Where a step's savepoint may name what the one before has (see `penstock.spark.state`), what comes of
this is a delta by key of `penstock.state.deltas`, and the others stay where they are; else they are cut out and put back.

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
from penstock.state.deltas import Layer, delta_by_key, layers_of, rows_of
from penstock.state.freezes import ADDS
from penstock.state.hashing import hash64_frame, is_among
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
    if watermark == MAX_WATERMARK or getattr(operation, "ttl_us", None) is not None:
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


Part = tuple[dict[str, Any], pl.DataFrame]
"""Header and rows of a segment."""


@dataclass(frozen=True)
class _Group:
    """The state of a key group, of which the operator was given a part."""

    layers: Sequence[Layer]
    given: Sequence[NDArray[np.bool_]]
    """Which rows of each layer."""

    def left(self, first: int) -> list[Part]:
        """What was not given of the runs from number `first` on."""
        pairs = zip(self.layers, self.given, strict=True)
        rest = [(layer, layer.counts & ~given) for layer, given in pairs if layer.run >= first]
        return [(layer.header, rows_of(layer, chosen)) for layer, chosen in rest if chosen.any()]

    def replaced(self, first: int) -> NDArray[np.uint64]:
        """The keys of which nothing in runs before number `first` counts, once what is in the others is written anew."""
        hashes = [layer.hashes[given] for layer, given in zip(self.layers, self.given, strict=True)]
        hashes += [x.replaced for x in self.layers if x.run >= first and x.replaced is not None]
        return np.unique(np.concatenate(hashes))


@dataclass
class Untouched:
    """The state that an operator was not given."""

    operator: str
    kept: int = 0
    """How many of the runs of its state, the oldest ones, are named again: what is written is a delta upon them."""
    whole: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """Key group to the one segment of which nothing was given, where no run is named again."""
    groups: dict[int, _Group] = field(default_factory=dict[int, _Group])
    """The other key groups that have state."""

    def taken(
        self, stored: Iterable[tuple[int, Sequence[tuple[int, bytes]]]], asked: Asked | None
    ) -> list[tuple[int, bytes]]:
        """What the operator is to have of its state; the rest stays here.

        Args:
            stored: key groups, and the segments of each with the numbers of their runs, oldest first.
            asked: for which keys; None: for all.
        """
        taken: list[tuple[int, bytes]] = []
        for group, segments in stored:
            layers = layers_of(self.operator, segments)
            given = [layer.counts & _wanted(layer, asked) for layer in layers]
            as_it_is = len(layers) == 1 and layers[0].replaced is None and ADDS not in layers[0].header
            if as_it_is and not self.kept and not given[0].any():
                self.whole[group] = segments[0][1]
                continue
            self.groups[group] = _Group(layers, given)
            for (_, data), layer, chosen in zip(segments, layers, given, strict=True):
                if chosen.all() and layer.replaced is None and len(chosen):
                    taken.append((group, data))
                elif chosen.any():
                    taken.append((group, encode_segment(layer.header, rows_of(layer, chosen))))
        return taken

    def put_back(self, kept: Segments, again: Callable[[Segments], Segments]) -> Iterator[tuple[int, bytes]]:
        """What is to be written: one segment per key group, rising, of what the operator kept and what it was not given.

        Args:
            kept: its segments.
            again: what the operator makes of segments that it is given and has to keep; for those of another form.
        """
        written = dict(kept)
        for group in sorted({*written, *self.whole, *self.groups}):
            own = [decode_segment(written[group], self.operator)] if group in written else []
            if self.kept:
                yield from self._delta(group, own, again)
            elif not own and group in self.whole:
                yield group, self.whole[group]
            elif left := self._left(group):
                yield group, encode_segment(*self._joined(group, [*own, *left], again))
            elif own:
                yield group, written[group]

    def _left(self, group: int) -> list[Part]:
        """What the operator was not given of a key group."""
        if group in self.whole:
            return [decode_segment(self.whole[group], self.operator)]
        return self.groups[group].left(0) if group in self.groups else []

    def _delta(self, group: int, own: list[Part], again: Callable[[Segments], Segments]) -> Iterator[tuple[int, bytes]]:
        """The segment of a delta upon the runs that are named again, if anything has changed there."""
        if group not in self.groups:
            yield from ((group, delta_by_key(*part, np.empty(0, np.uint64))) for part in own)
            return
        before = self.groups[group]
        parts, replaced, others = [*own, *before.left(self.kept)], before.replaced(self.kept), before.left(0)
        if not parts and not len(replaced):
            return
        if parts and not _are_alike([*parts, *others]):
            # Of all that is stored there nothing is left: what counts of a key group has one form.
            parts = [self._joined(group, [*own, *others], again)]
            replaced = np.unique(np.concatenate([layer.hashes for layer in before.layers]))
        header, rows = self._joined(group, parts, again) if parts else _nothing(before)
        yield group, delta_by_key(header, rows, replaced)

    def _joined(self, group: int, parts: Sequence[Part], again: Callable[[Segments], Segments]) -> Part:
        if _are_alike(parts):
            return parts[0][0], pl.concat([frame for _, frame in parts])
        ((_, data),) = again([(group, encode_segment(*part)) for part in parts])
        return decode_segment(data, self.operator)


def _are_alike(parts: Sequence[Part]) -> bool:
    (header, rows), *others = parts
    return all(other == header and frame.schema == rows.schema for other, frame in others)


def _nothing(group: _Group) -> Part:
    last = group.layers[-1]
    return last.header, last.rows.clear()


def _wanted(layer: Layer, asked: Asked | None) -> NDArray[np.bool_]:
    """Which rows are of keys that something happens to."""
    if asked is None or ADDS in layer.header:  # the operator brings it together, and writes it as steps do
        return np.ones(len(layer.hashes), np.bool_)
    due = _due(layer.header, layer.rows, asked)
    keys = asked.keys if due is None or not due.any() else np.union1d(asked.keys, layer.hashes[due])
    return is_among(layer.hashes, keys)


def _due(header: Mapping[str, Any], rows: pl.DataFrame, asked: Asked) -> NDArray[np.bool_] | None:
    """The rows that time does something to: timers of event time, and values that have expired."""
    if "names" not in header:  # an aggregate
        return None
    names = header["names"]
    state, time = rows["__state"], rows["__time_us"]
    timers = state == names.index(EVENT_TIMERS)
    until = pl.Series(np.where(timers.to_numpy(), asked.watermark, asked.now_us))
    return ((time <= until) | (state == names.index(PROCESSING_TIMERS))).fill_null(value=False).to_numpy()
