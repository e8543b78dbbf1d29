"""`join` by key alone, without a bound in time: a regular join of two streams of changes (Flink's StreamingJoinOperator).

The result of the join changes with its inputs, and the operator sends these changes: additions, and retractions of what
it sent before. It keeps both inputs in full (`CountedRows`): every distinct row with its *count*, which is how often it
was added less how often it was retracted. Changes of equal rows within a batch are folded into one first if the input
has retractions, so an addition and its retraction in the same batch never reach the result.

**Pairs.** The change of the join of L and R by a change D of L is the join of D and R (the counting algorithm of Gupta,
Mumick and Subrahmanian, "Maintaining Views Incrementally", SIGMOD 1993). A batch has changes of one input, and the other
input is as all earlier batches left it, so a pair is sent once, by the row of it that arrives last. The count of a pair
is the product of the counts of its rows.

**Unmatched rows.** In an outer, semi or anti join it also matters whether a row of a preserved side has any match. Where
rows match by their keys alone, this is the same for all rows of a key: they are unmatched while the other input has no
row of the key. Flink's OuterJoinRecordStateView keeps a number of associations per row; here the number of rows that the
other input has for the key says the same. When it rises from 0 the results of the unmatched rows are retracted, and when
it falls to 0 they are sent again. A null key equals nothing: its rows are unmatched for ever and are not kept; with
`nulls_equal` it is a key like others.

**A condition** (`where`) decides by row. Then state keeps, as Flink does, the number of associations of each row of
a preserved side beside its count: the sum of the counts of the pairs that it is in. A change of L adds the product of its
count and the counts of its matches in R to its own number, and to those of its matches the same products. So the numbers
are sums like the counts, whatever the order in which they are added up. A row is unmatched while its number is 0.

**Time to live.** A row is forgotten so long after it arrived, and nothing is sent for that: results that it is in stay,
and rows that it matched do not become unmatched. So the number of rows in the other input no longer says what was last
sent of a row, and state keeps beside its count how many of it were last sent as unmatched. A retraction takes from the
newest equal rows that are known; what it does not find was forgotten, and is dropped and counted (`lost_changes`).
Associations with forgotten rows stay, as in Flink; a retraction takes the retracted row's part of them along. Where the
rows of one input alone have a time to live, those of the other have one that never ends.

**Order.** Of a batch retractions are sent before additions, each in the order of the rows that they follow from.

How rows are stored and found is left to `penstock.state.counted_rows`, snapshots and the columns of results to
`penstock.task.operators.join_rows`, and joins that are bounded in time to `penstock.task.operators.join`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import msgspec
import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import Node
from penstock.plan.operations.regular_join import RegularJoin
from penstock.state.columns import canonical_keys, joined_by_keys
from penstock.state.counted_rows import COUNT, INDEX, CountedRows
from penstock.state.freezes import Freezes
from penstock.state.sorted_runs import TimedRows
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.changes import count_of_change
from penstock.task.operators.join_rows import (
    LEFT,
    PRESERVED_SIDES,
    RIGHT,
    JoinedSchema,
    JoiningOperator,
    JoinState,
    restored_rows,
)
from penstock.task.operators.pair_conditions import PairCondition, Pairs, candidates
from penstock.task.operators.progress import GroupWatermarks

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNMATCHED: Final = "__alone"
"""Int64: how many of the equal rows were last sent as unmatched; for `semi`, how many were last not sent."""
_MATCHES: Final = "__matches"
"""Int64: the sum of the counts of the pairs that the equal rows are in, of a join with a condition."""
_UNTIL: Final = "__until_us"
_PLACE: Final = "__place"
_TIME: Final = "__time"
_HAD: Final = "__had"
_ASKED: Final = "__asked"
_NEWER: Final = "__newer"
_STEPS: Final = 8
"""Expiry is rounded up to this fraction of the time to live, so that equal rows share it more often."""
_FORGOTTEN: Final = "forgotten"
"""Name of the union state with (first key group, end, microseconds): up to when their rows were forgotten."""


@dataclass(frozen=True)
class _Part:
    """Changes of the result, all for one reason."""

    rows: pl.DataFrame
    counts: NDArray[np.int64]
    """How many of each row are added; negative if they are retracted."""
    times: NDArray[np.int64]
    """Their event times."""
    places: NDArray[np.int64]
    """The number of the row in the batch from which each follows."""


@dataclass(frozen=True)
class _Side:
    """What is kept of the rows of one input, and how a batch of it becomes changes of counts."""

    columns: Sequence[str]
    """The columns of a row, in order."""
    changes: bool
    """Whether the input has retractions."""
    has_time: bool
    keeps_time: bool
    """Whether event time is kept; rows that differ in it alone are different then."""
    expires: bool
    counts_unmatched: bool
    """Whether state says how many rows were sent as unmatched; otherwise what they match says so."""
    counts_matches: bool
    """Whether state says in how many pairs rows are; otherwise the rows that the other input has for their key say so."""

    @property
    def counts(self) -> tuple[str, ...]:
        unmatched, matches = [_UNMATCHED] * self.counts_unmatched, [_MATCHES] * self.counts_matches
        return (COUNT, *unmatched, *matches)

    @property
    def dates(self) -> tuple[str, ...]:
        """The columns for time that are kept beside those of a row."""
        return (*([EVENT_TIME] if self.keeps_time else []), *([_UNTIL] if self.expires else []))

    def fold_changes(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Fold a batch with retractions into one row per distinct row, with its count: additions less retractions.

        A batch of additions stays as it is, with a count of 1 for each row.
        """
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

    def match_retractions(self, retractions: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
        """Match retractions with the newest equal rows that are known, each with its expiry and its unmatched count.

        Args:
            retractions: rows with negative counts.
            known: the rows of their keys in state.

        Returns:
            The known rows with a negative count of how many are retracted, and of the pairs that go with them;
            retractions without a row are left out.
        """
        together = pl.concat([known.drop(INDEX).with_columns(pl.col(COUNT).alias(_HAD)), retractions], how="diagonal")
        had = pl.col(_HAD).fill_null(0)
        asked = -pl.when(pl.col(_HAD).is_null()).then(COUNT).otherwise(0)
        together = together.sort(_UNTIL, descending=True, nulls_last=True, maintain_order=True).with_columns(
            asked.sum().over(self.columns).alias(_ASKED), (had.cum_sum().over(self.columns) - had).alias(_NEWER),
            pl.col(INDEX, _PLACE, _TIME).max().over(self.columns),
        )  # fmt: skip
        matched = pl.min_horizontal(_HAD, (pl.col(_ASKED) - pl.col(_NEWER)).clip(lower_bound=0))
        counts = [(-matched).alias(COUNT)]
        if self.counts_matches:  # whole, so that no less is left than the pairs of the rows that are left
            counts.append((-(pl.col(_MATCHES) * matched // pl.col(_HAD))).alias(_MATCHES))
        rows = together.filter(pl.col(_HAD).is_not_null()).with_columns(counts)
        return rows.filter(pl.col(COUNT) != 0)

    def with_matches(self, deltas: pl.DataFrame, matches: NDArray[np.int64]) -> pl.DataFrame:
        """Add the columns with how many of the added, or retracted, rows are unmatched, and in how many pairs they are.

        Args:
            deltas: rows with their counts.
            matches: how many rows of the other input each of them matches.
        """
        counts = deltas[COUNT].to_numpy()
        unmatched = np.where(matches == 0, counts, 0)
        if _UNMATCHED in deltas.columns:
            known = deltas[_UNMATCHED].fill_null(0).to_numpy()
            unmatched = np.where(counts < 0, -np.minimum(-counts, known), unmatched)
        columns = [pl.Series(_UNMATCHED, unmatched)]
        if self.counts_matches:
            pairs = pl.Series(_MATCHES, counts * matches)
            columns.append(deltas[_MATCHES].fill_null(pairs) if _MATCHES in deltas.columns else pairs)
        return deltas.with_columns(columns)


class RegularJoinOperator(JoiningOperator):
    """The operator of `join` by key alone: it keeps both inputs and sends the changes of the result."""

    def __init__(self, node: Node) -> None:
        operation = cast("RegularJoin", node.operation)
        self._how, self._ttls_us, self._expires = operation.how, operation.ttls_us, operation.expires
        self._pairs = operation.how not in ("semi", "anti")
        self._event_time, self._changes = node.event_time, node.mode == "retract"
        self._preserved = PRESERVED_SIDES[operation.how]
        self._sides = [self._side(node, operation, number) for number in (LEFT, RIGHT)]
        self._schema = JoinedSchema(node, [(*side.dates, *side.counts) for side in self._sides], operation.where)
        self._nulls_equal = operation.nulls_equal
        self._condition = None if operation.where is None else PairCondition(operation.where, self._schema)
        self._freezes = Freezes()
        self._rows = [self._kept(number) for number in (LEFT, RIGHT)]
        self._now_us = 0
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def _side(self, node: Node, operation: RegularJoin, number: int) -> _Side:
        source, expires = node.inputs[number], self._expires
        changes, matters = source.mode == "retract", self._pairs or number == LEFT
        return _Side(
            columns=source.row_schema.names,
            changes=changes,
            has_time=source.event_time,
            keeps_time=node.event_time and not changes and matters,
            expires=expires,
            counts_unmatched=expires and number in self._preserved,
            counts_matches=operation.where is not None and number in self._preserved,
        )

    def _kept(self, number: int) -> CountedRows:
        side, types = self._sides[number], self._schema.kept(number)
        return CountedRows(
            self._schema.keys.names,
            {name: kind for name, kind in types.items() if name not in side.counts},
            counts=side.counts,
            until=_UNTIL if side.expires else None,
            folds=side.changes or len(side.counts) > 1 or (number == RIGHT and not self._pairs),
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
        if self._expires:
            self._now_us = max(self._now_us, self._context.now_us())  # clocks may go back
            for rows in self._rows:
                self._context.metrics.forgotten_keys += rows.forget(self._now_us)
        deltas = self._sides[number].fold_changes(canonical_keys(frame, self._schema.keys))
        parts: list[_Part] = []
        if not self._nulls_equal and any(deltas[name].null_count() for name in self._schema.keys.names):
            no_key = pl.any_horizontal(pl.col(name).is_null() for name in self._schema.keys.names)
            parts = self._without_key(number, deltas.filter(no_key))
            deltas = deltas.filter(~no_key)
        if deltas.height:
            parts += self._with_key(number, deltas)
        self._emit(parts, frame, output)

    def _without_key(self, number: int, deltas: pl.DataFrame) -> list[_Part]:
        """The results of rows with a null key: they are unmatched for ever, so they are sent and not kept."""
        if number not in self._preserved or self._how == "semi" or not deltas.height:
            return []
        return [self._unmatched(number, deltas, deltas[COUNT].to_numpy(), deltas[_TIME], deltas[_PLACE])]

    def _with_key(self, number: int, deltas: pl.DataFrame) -> list[_Part]:
        keys = deltas.select(self._schema.keys.names).unique(maintain_order=True)
        numbered = keys.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(INDEX))
        deltas = joined_by_keys(deltas, numbered, keys.columns, "left")
        if self._expires:
            deltas = self._with_expiry(number, deltas, keys)
        theirs, there = self._theirs(1 - number, keys)
        if self._condition is not None:
            pairs = self._meeting(number, deltas, theirs, self._condition)
            matches = np.zeros(deltas.height, np.int64)
            np.add.at(matches, pairs.asking, theirs[COUNT].to_numpy()[pairs.found])
        else:
            pairs = next(candidates(deltas, theirs, piecewise=False)) if self._pairs else None
            matches = there[deltas[INDEX].to_numpy()]
        deltas = self._sides[number].with_matches(deltas, matches)
        parts = [self._joined(number, deltas, theirs, pairs)] if self._pairs and pairs is not None else []
        if number in self._preserved:
            counts = (deltas[COUNT] - deltas[_UNMATCHED] if self._how == "semi" else deltas[_UNMATCHED]).to_numpy()
            parts.append(self._unmatched(number, deltas, counts, deltas[_TIME], deltas[_PLACE]))
        if 1 - number in self._preserved:
            decided = pairs if self._condition is not None else None
            parts.append(self._rematched(1 - number, deltas, keys, theirs, decided))
        self._rows[number].add(deltas)
        return parts

    def _theirs(self, other: int, keys: pl.DataFrame) -> tuple[pl.DataFrame, NDArray[np.int64]]:
        """The rows of the other input with these keys, or none if only their number matters; and their number per key."""
        if not self._pairs and other == RIGHT and self._condition is None:
            return keys.clear(), self._rows[other].numbers(keys)
        theirs = self._rows[other].of(keys)
        there = np.zeros(keys.height, np.int64)
        np.add.at(there, theirs[INDEX].to_numpy(), theirs[COUNT].to_numpy())
        return theirs, there

    def _with_expiry(self, number: int, deltas: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        """Add to new rows when they expire, and match retractions with the newest rows that are known."""
        ttl, until = self._ttls_us[number], MAX_WATERMARK
        if ttl is not None:
            step = max(1, ttl // _STEPS)
            until = -(-(self._now_us + ttl) // step) * step
        added = deltas.filter(pl.col(COUNT) > 0).with_columns(pl.lit(until, pl.Int64).alias(_UNTIL))
        retractions = deltas.filter(pl.col(COUNT) < 0)
        if not retractions.height:
            return added
        known = self._rows[number].of(keys[retractions[INDEX].unique(maintain_order=True)])
        matched = self._sides[number].match_retractions(retractions, known)
        self._context.metrics.lost_changes += -int(retractions[COUNT].sum()) + int(matched[COUNT].sum())
        names = dict.fromkeys([*added.columns, *self._sides[number].counts])
        return pl.concat([added, matched.select(list(names))], how="diagonal")

    # -- results --------------------------------------------------------------------------------------------------------

    def _meeting(self, number: int, deltas: pl.DataFrame, theirs: pl.DataFrame, condition: PairCondition) -> Pairs:
        """The pairs of which the condition is true."""
        parts = [
            pairs.where(condition.true_of(number, deltas, pairs.asking, theirs, pairs.found))
            for pairs in candidates(deltas, theirs, piecewise=True)
        ]
        return Pairs(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("asking", "found")))

    def _joined(self, number: int, deltas: pl.DataFrame, theirs: pl.DataFrame, pairs: Pairs) -> _Part:
        """The results of pairs of changed rows with rows of the other input."""
        deltas, theirs = deltas[pairs.asking], theirs[pairs.found]
        times = deltas[_TIME].to_numpy()
        if EVENT_TIME in theirs.columns:
            times = np.maximum(times, theirs[EVENT_TIME].to_numpy())
        rows = self._schema.together(*((deltas, theirs) if number == LEFT else (theirs, deltas)))
        return _Part(rows, (deltas[COUNT] * theirs[COUNT]).to_numpy(), times, deltas[_PLACE].to_numpy())

    def _rematched(
        self, other: int, deltas: pl.DataFrame, keys: pl.DataFrame, theirs: pl.DataFrame, pairs: Pairs | None
    ) -> _Part:
        """The rows of the other input that are matched now for the first time, or have lost their last match.

        Their matches change by these pairs, those of which the condition is true; None: by all changed rows of their key.
        """
        if pairs is None:
            before, changed_by, group = self._rows[1 - other].numbers(keys), deltas, deltas[INDEX].to_numpy()
        else:
            before, changed_by, group = theirs[_MATCHES].to_numpy(), deltas[pairs.asking], pairs.found
        change, last_time, last_place = (
            np.zeros_like(before),
            np.full_like(before, MIN_WATERMARK),
            np.zeros_like(before),
        )
        np.add.at(change, group, changed_by[COUNT].to_numpy())
        np.maximum.at(last_time, group, changed_by[_TIME].to_numpy())
        np.maximum.at(last_place, group, changed_by[_PLACE].to_numpy())
        counts = theirs[COUNT].to_numpy()
        if pairs is None:
            index = theirs[INDEX].to_numpy()
            before, change, last_time, last_place = (each[index] for each in (before, change, last_time, last_place))
        else:
            change *= counts
        side = self._sides[other]
        was = theirs[_UNMATCHED].to_numpy() if side.counts_unmatched else np.where(before == 0, counts, 0)
        lost = np.where((change < 0) & (before + change == 0), counts, was)
        changed = np.where(change > 0, 0, lost) - was
        columns = {COUNT: np.zeros_like(counts), _UNMATCHED: changed, _MATCHES: change}
        moved = theirs.with_columns(pl.Series(name, columns[name]) for name in (COUNT, *side.counts[1:]))
        if noted := side.counts[1:]:
            self._rows[other].add(moved.filter(pl.any_horizontal(pl.col(name) != 0 for name in noted)))
        times = pl.Series(last_time)
        if EVENT_TIME in theirs.columns:
            times = pl.Series(np.maximum(last_time, theirs[EVENT_TIME].to_numpy()))
        return self._unmatched(other, moved, -changed if self._how == "semi" else changed, times, pl.Series(last_place))

    def _unmatched(
        self, number: int, rows: pl.DataFrame, counts: NDArray[np.int64], times: pl.Series, places: pl.Series
    ) -> _Part:
        """Changes of results that have rows of one input alone."""
        results = self._schema.unmatched(number, rows) if self._pairs else rows.select(self._schema.inputs[LEFT].names)
        return _Part(results, counts, times.to_numpy(), places.to_numpy())

    def _emit(self, parts: Sequence[_Part], frame: pl.DataFrame, output: Output) -> None:
        """Send the changes: retractions before additions, each in the order of the rows of the batch."""
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

    def run_background_slice(self) -> bool:
        return any(rows.run_background_slice() for rows in self._rows)

    def fire_due(self, watermark: int, output: Output) -> bool:
        self._watermarks.advance(watermark)
        return False

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot | None:
        kept = {number: rows.freeze() for number, rows in enumerate(self._rows)}
        freeze, unions = self._freezes.next(incremental=self._context.incremental), {}
        if self._context.incremental and self._expires:  # a delta does not say what was forgotten
            groups = self._context.key_groups
            unions = {_FORGOTTEN: [msgspec.json.encode((groups.start, groups.end, self._now_us))]}
        place = (self._context.max_parallelism, freeze, kept)
        return OperatorSnapshot(keyed=JoinState(self._schema, *place, folder=self._context.local_state), unions=unions)


def _clocks(restored: RestoredState) -> dict[int, int]:
    """Up to when the rows of each key group were forgotten. If the clock was set back they must not be found again."""
    entries = (msgspec.json.decode(entry) for entry in restored.unions.get(_FORGOTTEN, ()))
    return {group: reached for begin, end, reached in entries for group in range(begin, end)}
