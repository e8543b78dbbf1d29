"""State of inactive keys: it passes from savepoint to savepoint as it is stored, and is never decoded into objects.

A step processes few rows, and most keys of a large state have none in it. An operator reads and writes its keyed state
key by key, so it is given the state of the *active* keys alone: those that have rows, those with a timer that is due, and
those with a value that has expired (`ActiveKeys`). The state of all other keys stays in columns (`StatePassthrough`).

Where a step's savepoint may refer to objects of the savepoint before (see `penstock.spark.state`), the step writes a
delta by key (`penstock.state.deltas`), and the inactive keys stay where they are. Otherwise their rows are cut out of
the stored segments and merged with those that the operator writes.

Keys are compared by their hashes. A key that shares its hash with an active one is given to the operator as well, which
does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from penstock.core.times import MAX_WATERMARK
from penstock.plan.logical import Node
from penstock.plan.operations.process_rows import ProcessRows
from penstock.state.deltas import Layer, delta_by_key, layers_of, rows_of
from penstock.state.freezes import ADDS
from penstock.state.hashing import hash64_frame, is_among
from penstock.state.keyed_backend import EVENT_TIMERS, PROCESSING_TIMERS
from penstock.state.segments import decode_segment, encode_segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

LEAST_BYTES: Final = 256 << 10
"""Less state than this is given to the operator as a whole."""

Segments = Iterable[tuple[int, bytes]]


def is_by_key_alone(node: Node, watermark: int) -> bool:
    """Whether the state of a key changes only by rows, timers and the expiry of single values."""
    traits = node.traits
    ends = watermark == MAX_WATERMARK or traits.ttl_us is not None
    return len(node.inputs) == 1 and not ends and (traits.state == "by_key" or isinstance(node.operation, ProcessRows))


@dataclass(frozen=True)
class ActiveKeys:
    """The keys of some key groups whose state a step may read or change."""

    keys: NDArray[np.uint64]
    """The hashes of the keys that have rows."""
    watermark: int
    """How far event time advances in the step."""
    now_us: int

    @classmethod
    def by(cls, rows: Iterable[pl.DataFrame], names: list[str], watermark: int, now_us: int) -> ActiveKeys:
        """The keys of these rows, in their columns `names`, and those that become due by `watermark` or `now_us`."""
        hashes = [hash64_frame(frame, names) for frame in rows]
        return cls(np.unique(np.concatenate(hashes)) if hashes else np.empty(0, np.uint64), watermark, now_us)


Part = tuple[dict[str, Any], pl.DataFrame]
"""Header and rows of a segment."""


@dataclass(frozen=True)
class _Group:
    """The state of a key group, a part of which was given to the operator."""

    layers: Sequence[Layer]
    given: Sequence[NDArray[np.bool_]]
    """Which rows of each layer the operator was given."""

    def left(self, first: int) -> list[Part]:
        """The rows that were not given to the operator, of the runs from number `first` on."""
        pairs = zip(self.layers, self.given, strict=True)
        rest = [(layer, layer.counts & ~given) for layer, given in pairs if layer.run >= first]
        return [(layer.header, rows_of(layer, chosen)) for layer, chosen in rest if chosen.any()]

    def replaced(self, first: int) -> NDArray[np.uint64]:
        """Hashes of the keys whose rows in runs before number `first` are replaced by the delta that is written."""
        hashes = [layer.hashes[given] for layer, given in zip(self.layers, self.given, strict=True)]
        hashes += [x.replaced for x in self.layers if x.run >= first and x.replaced is not None]
        return np.unique(np.concatenate(hashes))


@dataclass
class StatePassthrough:
    """The state of one operator that passes through a step without the operator."""

    operator: str
    kept: int = 0
    """How many of the runs of its state, the oldest ones, the savepoint refers to: the step writes a delta upon them."""
    whole: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """Key group to the one segment of which nothing was given, where the savepoint refers to no earlier run."""
    groups: dict[int, _Group] = field(default_factory=dict[int, _Group])
    """The other key groups that have state."""

    def take_active(
        self, stored: Iterable[tuple[int, Sequence[tuple[int, bytes]]]], active: ActiveKeys | None
    ) -> list[tuple[int, bytes]]:
        """Take out the state of the active keys, for the operator; the rest stays here.

        Args:
            stored: key groups, and the segments of each with the numbers of their runs, oldest first.
            active: the active keys; None: all keys are.

        Returns:
            Segments with their key groups.
        """
        taken: list[tuple[int, bytes]] = []
        for group, segments in stored:
            layers = layers_of(self.operator, segments)
            given = [layer.counts & _active_rows(layer, active) for layer in layers]
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

    def merge_back(self, kept: Segments, again: Callable[[Segments], Segments]) -> Iterator[tuple[int, bytes]]:
        """The segments to be written, one per key group in rising order: those of the operator, and what passed it by.

        Args:
            kept: the segments that the operator wrote.
            again: reads segments into the operator and has it write them anew, for those of another form.
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
        """The rows of a key group that were not given to the operator."""
        if group in self.whole:
            return [decode_segment(self.whole[group], self.operator)]
        return self.groups[group].left(0) if group in self.groups else []

    def _delta(self, group: int, own: list[Part], again: Callable[[Segments], Segments]) -> Iterator[tuple[int, bytes]]:
        """The segment of a delta upon the runs that the savepoint refers to, if anything has changed there."""
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


def _active_rows(layer: Layer, active: ActiveKeys | None) -> NDArray[np.bool_]:
    """Which rows belong to active keys."""
    if active is None or ADDS in layer.header:  # the operator merges it, and writes it in the form that steps write
        return np.ones(len(layer.hashes), np.bool_)
    due = _due(layer.header, layer.rows, active)
    keys = active.keys if due is None or not due.any() else np.union1d(active.keys, layer.hashes[due])
    return is_among(layer.hashes, keys)


def _due(header: Mapping[str, Any], rows: pl.DataFrame, active: ActiveKeys) -> NDArray[np.bool_] | None:
    """The rows that become due: timers, and values that have expired; None for state that has neither."""
    if "names" not in header:  # an aggregate
        return None
    names = header["names"]
    state, time = rows["__state"], rows["__time_us"]
    timers = state == names.index(EVENT_TIMERS)
    until = pl.Series(np.where(timers.to_numpy(), active.watermark, active.now_us))
    return ((time <= until) | (state == names.index(PROCESSING_TIMERS))).fill_null(value=False).to_numpy()
