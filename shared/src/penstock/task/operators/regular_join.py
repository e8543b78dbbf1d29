"""`join` without a bound in time: the rows of two inputs that have the same key, as long as they hold.

All rows of both inputs are kept, counted. A change of one is a change of every pair that it makes with the rows of the
other; a row that was alone, and so was sent by itself, is taken back when the first of the other input comes, and sent
again when the last one is taken back. Of the changes of a row in one batch only what comes of them counts.

With a time to live a row is forgotten so long after it came. What was sent of it stays as it is, and it is not alone for
that: whether a row was last sent by itself is kept beside it. Taking back a row that is forgotten does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import msgspec
import numpy as np
import polars as pl

from penstock.batches import EVENT_TIME, WATERMARK
from penstock.graph.logical import RETRACTED, Node, RegularJoin
from penstock.state.columns import canonical_keys, joined_by_keys
from penstock.state.counted_rows import COUNT, INDEX, CountedRows
from penstock.state.freezes import Freezes
from penstock.state.sorted_runs import TimedRows, places_in
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.changes import count_of_change
from penstock.task.operators.join_rows import (
    LEFT,
    LONELY,
    RIGHT,
    JoinedSchema,
    JoiningOperator,
    JoinState,
    restored_rows,
)
from penstock.task.operators.progress import GroupWatermarks
from penstock.times import MIN_WATERMARK

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALONE: Final = "__alone"
"""Int64: how many of the rows were last sent as ones that have met none; of `semi`, not sent."""
_UNTIL: Final = "__until_us"
_PLACE: Final = "__place"
_TIME: Final = "__time"
_HAD: Final = "__had"
_ASKED: Final = "__asked"
_NEWER: Final = "__newer"
_STEPS: Final = 8
"""Rows are forgotten in steps of such a part of the time to live."""
_FORGOTTEN: Final = "forgotten"
"""A union beside the keys: of which key groups (begin, end) rows were forgotten, and up to when, in microseconds."""


@dataclass(frozen=True)
class _Part:
    """Changes of results."""

    rows: pl.DataFrame
    counts: NDArray[np.int64]
    """How many of each are added, or taken back where this is negative."""
    times: NDArray[np.int64]
    """Their event times."""
    places: NDArray[np.int64]
    """The rows of the batch that they are of."""


@dataclass(frozen=True)
class _Side:
    """One input."""

    columns: Sequence[str]
    """Those of a row, in order."""
    changes: bool
    """Whether its rows may be taken back."""
    has_time: bool
    keeps_time: bool
    """Whether event time is kept, which tells a row from others then."""
    expires: bool
    remembers: bool
    """Whether it is kept how many rows stand alone. Otherwise all or none do, by how many others there are."""

    @property
    def counts(self) -> tuple[str, ...]:
        return (COUNT, _ALONE) if self.remembers else (COUNT,)

    @property
    def dates(self) -> tuple[str, ...]:
        """What is kept of time."""
        return (*([EVENT_TIME] if self.keeps_time else []), *([_UNTIL] if self.expires else []))

    def came(self, frame: pl.DataFrame) -> pl.DataFrame:
        """What has become of rows by a batch: each with how many were added, or taken back."""
        rows = frame.with_columns(
            pl.int_range(pl.len(), dtype=pl.Int64).alias(_PLACE),
            (pl.col(EVENT_TIME) if self.has_time else pl.lit(0, pl.Int64)).alias(_TIME),
            count_of_change() if self.changes else pl.lit(1, pl.Int64).alias(COUNT),
        )
        if not self.changes:
            return rows.select(*self.columns, *([EVENT_TIME] if self.keeps_time else []), COUNT, _TIME, _PLACE)
        newest = rows.group_by(self.columns, maintain_order=True).agg(
            pl.col(COUNT).sum(), pl.col(_TIME).max(), pl.col(_PLACE).first()
        )
        return newest.filter(pl.col(COUNT) != 0)

    def taken(self, gone: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
        """What is taken back, of the newest rows that are known, and how many of these stood alone."""
        together = pl.concat([known.drop(INDEX).with_columns(pl.col(COUNT).alias(_HAD)), gone], how="diagonal")
        had = pl.col(_HAD).fill_null(0)
        asked = -pl.when(pl.col(_HAD).is_null()).then(COUNT).otherwise(0)
        together = together.sort(_UNTIL, descending=True, nulls_last=True, maintain_order=True).with_columns(
            asked.sum().over(self.columns).alias(_ASKED), (had.cum_sum().over(self.columns) - had).alias(_NEWER),
            pl.col(INDEX, _PLACE, _TIME).max().over(self.columns),
        )  # fmt: skip
        taken = pl.min_horizontal(_HAD, (pl.col(_ASKED) - pl.col(_NEWER)).clip(lower_bound=0))
        rows = together.filter(pl.col(_HAD).is_not_null()).with_columns((-taken).alias(COUNT))
        return rows.filter(pl.col(COUNT) != 0)

    def judged(self, came: pl.DataFrame, there: NDArray[np.int64]) -> pl.DataFrame:
        """With how many of the rows that come, or go, stand alone, where `there` rows of the other input are."""
        alone = np.where(there[came[INDEX].to_numpy()] == 0, came[COUNT].to_numpy(), 0)
        if _ALONE in came.columns:
            known = came[_ALONE].fill_null(0).to_numpy()
            alone = np.where(came[COUNT].to_numpy() < 0, -np.minimum(-came[COUNT].to_numpy(), known), alone)
        return came.with_columns(pl.Series(_ALONE, alone))


class RegularJoinOperator(JoiningOperator):
    """`join` of two inputs by key alone."""

    def __init__(self, node: Node) -> None:
        operation = cast("RegularJoin", node.operation)
        self._how, self._ttl_us = operation.how, operation.ttl_us
        self._pairs = operation.how not in ("semi", "anti")
        self._event_time, self._changes = node.event_time, node.mode == "retract"
        self._lonely = LONELY[operation.how]
        self._sides = [self._side(node, number) for number in (LEFT, RIGHT)]
        self._schema = JoinedSchema(node, [(*side.dates, *side.counts) for side in self._sides])
        self._freezes = Freezes()
        self._rows = [self._kept(number) for number in (LEFT, RIGHT)]
        self._now_us = 0
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def _side(self, node: Node, number: int) -> _Side:
        source, expires = node.inputs[number], self._ttl_us is not None
        changes, matters = source.mode == "retract", self._pairs or number == LEFT
        return _Side(
            columns=source.row_schema.names,
            changes=changes,
            has_time=source.event_time,
            keeps_time=node.event_time and not changes and matters,
            expires=expires,
            remembers=expires and number in self._lonely,
        )

    def _kept(self, number: int) -> CountedRows:
        side, types = self._sides[number], self._schema.kept(number)
        return CountedRows(
            self._schema.keys.names,
            {name: kind for name, kind in types.items() if name not in side.counts},
            counts=side.counts,
            until=_UNTIL if side.expires else None,
            folds=side.changes or side.remembers or (number == RIGHT and not self._pairs),
            freezes=self._freezes,
        )

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._watermarks = GroupWatermarks(context, self._schema.keys.names, restored)
        for rows in self._rows:
            rows.lies_in(context.local_state)
        if restored is None:
            return
        clocks = GroupWatermarks(context, self._schema.keys.names, RestoredState(watermarks=_clocks(restored)))
        for number, rows in restored_rows(self._schema, restored):
            assert isinstance(rows, TimedRows)
            self._rows[number].add(rows.left_at(clocks.at_rows(rows.frame)).frame)

    # -- rows -----------------------------------------------------------------------------------------------------------

    def process_input(self, number: int, frame: pl.DataFrame, output: Output) -> None:
        if not frame.height:
            return
        if self._ttl_us is not None:
            self._now_us = max(self._now_us, self._context.now_us())  # clocks may go back
            for rows in self._rows:
                self._context.metrics.forgotten_keys += rows.forget(self._now_us)
        came = self._sides[number].came(canonical_keys(frame, self._schema.keys))
        parts: list[_Part] = []
        if any(came[name].null_count() for name in self._schema.keys.names):
            no_key = pl.any_horizontal(pl.col(name).is_null() for name in self._schema.keys.names)
            parts = self._without_key(number, came.filter(no_key))
            came = came.filter(~no_key)
        if came.height:
            parts += self._with_key(number, came)
        self._emit(parts, frame, output)

    def _without_key(self, number: int, came: pl.DataFrame) -> list[_Part]:
        """A null is equal to nothing, so such rows are alone for ever, and need not be kept."""
        if number not in self._lonely or self._how == "semi" or not came.height:
            return []
        return [self._alone(number, came, came[COUNT].to_numpy(), came[_TIME], came[_PLACE])]

    def _with_key(self, number: int, came: pl.DataFrame) -> list[_Part]:
        keys = came.select(self._schema.keys.names).unique(maintain_order=True)
        numbered = keys.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(INDEX))
        came = joined_by_keys(came, numbered, keys.columns, "left")
        if self._ttl_us is not None:
            came = self._dated(number, came, keys)
        theirs, there = self._theirs(1 - number, keys)
        came = self._sides[number].judged(came, there)
        parts = [self._met(number, came, theirs)] if self._pairs else []
        if number in self._lonely:
            counts = (came[COUNT] - came[_ALONE] if self._how == "semi" else came[_ALONE]).to_numpy()
            parts.append(self._alone(number, came, counts, came[_TIME], came[_PLACE]))
        if 1 - number in self._lonely:
            parts.append(self._no_longer_or_again(1 - number, came, keys, theirs))
        self._rows[number].add(came)
        return parts

    def _theirs(self, other: int, keys: pl.DataFrame) -> tuple[pl.DataFrame, NDArray[np.int64]]:
        """The rows of the other input that have these keys, where they are looked at; how many there are."""
        if not self._pairs and other == RIGHT:
            return keys.clear(), self._rows[other].numbers(keys)
        theirs = self._rows[other].of(keys)
        there = np.zeros(keys.height, np.int64)
        np.add.at(there, theirs[INDEX].to_numpy(), theirs[COUNT].to_numpy())
        return theirs, there

    def _dated(self, number: int, came: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        """With when rows will be forgotten; what is taken back is taken from the newest rows that are known."""
        assert self._ttl_us is not None
        step = max(1, self._ttl_us // _STEPS)
        until = -(-(self._now_us + self._ttl_us) // step) * step
        added = came.filter(pl.col(COUNT) > 0).with_columns(pl.lit(until, pl.Int64).alias(_UNTIL))
        gone = came.filter(pl.col(COUNT) < 0)
        if not gone.height:
            return added
        known = self._rows[number].of(keys[gone[INDEX].unique(maintain_order=True)])
        taken = self._sides[number].taken(gone, known)
        self._context.metrics.lost_changes += -int(gone[COUNT].sum()) + int(taken[COUNT].sum())
        names = [*added.columns, *([_ALONE] if self._sides[number].remembers else [])]
        return pl.concat([added, taken.select(names)], how="diagonal")

    # -- results --------------------------------------------------------------------------------------------------------

    def _met(self, number: int, came: pl.DataFrame, theirs: pl.DataFrame) -> _Part:
        """Pairs of rows that came with rows that were there."""
        index, there = came[INDEX].to_numpy(), theirs[INDEX].to_numpy()
        by_key = np.argsort(there, kind="stable")
        sizes = np.bincount(there, minlength=int(index.max(initial=-1)) + 1)
        asking, found = places_in((np.cumsum(sizes) - sizes)[index], sizes[index])
        came, theirs = came[asking], theirs[by_key[found]]
        times = came[_TIME].to_numpy()
        if EVENT_TIME in theirs.columns:
            times = np.maximum(times, theirs[EVENT_TIME].to_numpy())
        rows = self._schema.together(*((came, theirs) if number == LEFT else (theirs, came)))
        return _Part(rows, (came[COUNT] * theirs[COUNT]).to_numpy(), times, came[_PLACE].to_numpy())

    def _no_longer_or_again(self, other: int, came: pl.DataFrame, keys: pl.DataFrame, theirs: pl.DataFrame) -> _Part:
        """Rows of the other input that have met their first one, or have lost their last."""
        before = self._rows[1 - other].numbers(keys)
        after, last_time, last_place = before.copy(), np.full_like(before, MIN_WATERMARK), np.zeros_like(before)
        index = came[INDEX].to_numpy()
        np.add.at(after, index, came[COUNT].to_numpy())
        np.maximum.at(last_time, index, came[_TIME].to_numpy())
        np.maximum.at(last_place, index, came[_PLACE].to_numpy())
        index, counts = theirs[INDEX].to_numpy(), theirs[COUNT].to_numpy()
        known = self._sides[other].remembers
        was = theirs[_ALONE].to_numpy() if known else np.where(before[index] == 0, counts, 0)
        is_ = np.where(after[index] > 0, 0, np.where(before[index] > 0, counts, was))
        changed = is_ - was
        moved = theirs.with_columns(pl.lit(0, pl.Int64).alias(COUNT), pl.Series(_ALONE, changed))
        if known:
            self._rows[other].add(moved.filter(pl.Series(changed != 0)))
        times = pl.Series(last_time[index])
        if EVENT_TIME in theirs.columns:
            times = pl.Series(np.maximum(times.to_numpy(), theirs[EVENT_TIME].to_numpy()))
        return self._alone(
            other, moved, -changed if self._how == "semi" else changed, times, pl.Series(last_place[index])
        )

    def _alone(
        self, number: int, rows: pl.DataFrame, counts: NDArray[np.int64], times: pl.Series, places: pl.Series
    ) -> _Part:
        """Rows of one input by themselves."""
        results = self._schema.alone(number, rows) if self._pairs else rows.select(self._schema.inputs[LEFT].names)
        return _Part(results, counts, times.to_numpy(), places.to_numpy())

    def _emit(self, parts: Sequence[_Part], frame: pl.DataFrame, output: Output) -> None:
        """What is taken back stands before what is added, each in the order of the rows that came."""
        parts = [part for part in parts if part.counts.any()]
        if not parts:
            return
        counts, times, places = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("counts", "times", "places")
        )
        order = np.repeat(np.arange(len(counts)), np.abs(counts))
        order = order[np.lexsort((places[order], counts[order] > 0))]
        rows = pl.concat([part.rows for part in parts])[order]
        beside = [pl.Series(RETRACTED, counts[order] < 0)] if self._changes else []
        if self._event_time:
            beside.append(pl.Series(EVENT_TIME, times[order]))
            if self._context.carries_watermarks:
                marks = np.broadcast_to(self._watermarks.at_rows(frame), frame.height)
                beside.append(pl.Series(WATERMARK, marks[places[order]]))
        output.rows(rows.with_columns(beside))

    def go_on(self) -> bool:
        return any(rows.go_on() for rows in self._rows)

    def fire_due(self, watermark: int, output: Output) -> bool:
        self._watermarks.advance(watermark)
        return False

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot | None:
        kept = {number: rows.freeze() for number, rows in enumerate(self._rows)}
        freeze, unions = self._freezes.next(incremental=self._context.incremental), {}
        if self._context.incremental and self._ttl_us is not None:  # a delta does not say what was forgotten
            groups = self._context.key_groups
            unions = {_FORGOTTEN: [msgspec.json.encode((groups.start, groups.end, self._now_us))]}
        place = (self._context.max_parallelism, freeze, kept)
        return OperatorSnapshot(keyed=JoinState(self._schema, *place, folder=self._context.local_state), unions=unions)


def _clocks(restored: RestoredState) -> dict[int, int]:
    """Up to when rows of key groups were forgotten. Where the clock has gone back they would be known again."""
    entries = (msgspec.json.decode(entry) for entry in restored.unions.get(_FORGOTTEN, ()))
    return {group: reached for begin, end, reached in entries for group in range(begin, end)}
