"""`join` within a time or in windows: rows of two inputs that have the same key and meet in time.

A pair is sent when the second of its rows comes, and nothing is sent that is not final. A row that is to be sent because
it has met none is sent when event time tells that none can come any more, at that moment of event time. So do the rows of
`semi`, but at once when they meet the first. Which pairs there are, and their event times, follow from the rows alone,
whatever the order across inputs.

Rows that come behind the watermark are late: rows they would have met may be gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.functions.windows.definitions import AsOf, Within
from penstock.plan.logical import Node
from penstock.plan.operations.join import Join
from penstock.state.columns import canonical_keys
from penstock.state.freezes import Freezes
from penstock.state.sorted_runs import Matches, Run, SortedRuns, TimedRows
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.join_rows import (
    LEFT,
    PRESERVED_SIDES,
    JoinedSchema,
    JoiningOperator,
    JoinState,
    Met,
    restored_rows,
)
from penstock.task.operators.join_times import Meeting, WindowMeeting, WithinMeeting
from penstock.task.operators.pair_conditions import PairCondition
from penstock.task.operators.progress import GroupWatermarks

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class _Part:
    """Results."""

    rows: pl.DataFrame
    times: NDArray[np.int64]
    """Their event times."""
    places: NDArray[np.int64]
    """Where they stand among the results of other parts."""


class JoinOperator(JoiningOperator):
    """`join` of two inputs, but for `as_of`."""

    def __init__(self, node: Node) -> None:
        operation = node.operation
        assert isinstance(operation, Join)
        assert not isinstance(operation.time, AsOf)
        self._how = operation.how
        self._meeting: Meeting = (
            WithinMeeting(operation.time) if isinstance(operation.time, Within) else WindowMeeting(operation.time)
        )
        self._schema = JoinedSchema(node, where=operation.where)
        self._condition = None if operation.where is None else PairCondition(operation.where, self._schema)
        self._sends_pairs = operation.how not in ("semi", "anti")
        self._preserved = PRESERVED_SIDES[operation.how]
        self._freezes = Freezes()
        keys, nulls_equal = self._schema.keys.names, operation.nulls_equal
        self._runs = tuple(SortedRuns(keys, nulls_equal=nulls_equal, freezes=self._freezes) for _ in node.inputs)
        self._met_since: list[Met] = []
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._watermarks = GroupWatermarks(context, self._schema.keys.names, restored)
        for runs in self._runs:
            runs.folder = context.local_state
        for number, rows in restored_rows(self._schema, restored) if restored is not None else ():
            assert isinstance(rows, TimedRows)
            # No delta says which rows of the runs before it were forgotten: those that event time had passed.
            kept = rows.left_at(self._watermarks.at_rows(rows.frame))
            self._runs[number].add(kept, self._hashes(number, kept.frame))

    # -- rows -----------------------------------------------------------------------------------------------------------

    def process_input(self, number: int, frame: pl.DataFrame, output: Output) -> None:
        for runs in self._runs:
            runs.finish()
        marks = np.broadcast_to(self._watermarks.at_rows(frame), frame.height)
        placed = self._meeting.placed(number, frame[EVENT_TIME].to_numpy(), marks)
        self._context.metrics.late_rows += int(placed.late.sum())
        if not len(placed.rows):
            return
        rows = canonical_keys(frame.select(list(self._schema.kept(number))), self._schema.keys)
        if not np.array_equal(placed.rows, np.arange(frame.height)):
            rows = rows[placed.rows]
        taken = TimedRows(rows, placed.moments, placed.until, np.zeros(rows.height, np.bool_))
        hashes = self._hashes(number, rows)
        found = list(self._found(number, rows, self._runs[1 - number].matches(rows, hashes, placed.first, placed.last)))
        for matches in found:
            taken.marked[matches.asking] = True
        if self._sends_pairs:
            parts = [self._pairs(number, taken, matches) for matches in found]
        else:
            parts = list(self._met(number, taken, found)) if self._how == "semi" else []
        self._emit(parts, marks[placed.rows], output)
        self._keep(number, taken, hashes, found)

    def _found(self, number: int, rows: pl.DataFrame, candidates: Iterable[Matches]) -> Iterator[Matches]:
        """The pairs of rows that came of which the condition is true, if there is one."""
        for matches in candidates:
            if self._condition is None:
                yield matches
                continue
            asking, found = matches.asking, matches.found
            meets = self._condition.true_of(number, rows, asking, matches.run.rows.found(), found)
            yield Matches(matches.run, asking[meets], found[meets])

    def _hashes(self, number: int, rows: pl.DataFrame) -> NDArray[np.uint64]:
        return self._runs[number].hashes(rows)

    def _keep(self, number: int, taken: TimedRows, hashes: NDArray[np.uint64], found: Iterable[Matches]) -> None:
        for matches in found:
            self._mark(1 - number, matches)
        if number == LEFT and not self._sends_pairs:
            unmet = ~taken.marked  # nothing becomes of the others any more
            taken, hashes = taken.take(unmet), hashes[unmet]
        self._runs[number].add(taken, hashes)

    def _mark(self, number: int, matches: Matches) -> None:
        """Rows that were there have met others; an earlier snapshot may have them as they were."""
        rows, epoch = matches.run.rows, self._freezes.current
        if matches.run.epoch < epoch and number in self._preserved:
            first = np.unique(matches.found[~rows.marked[matches.found]])
            if len(first):
                alike = dict.fromkeys([*self._schema.keys.names, *self._schema.read[number]])
                met, until = rows.found().select(list(alike))[first], int(rows.until[first].max())
                self._met_since.append(Met(epoch, number, met, rows.moments[first], until))
        rows.marked[matches.found] = True

    # -- results --------------------------------------------------------------------------------------------------------

    def _pairs(self, number: int, taken: TimedRows, matches: Matches) -> _Part:
        """Pairs of rows that came with rows that were there."""
        came, there = taken.frame[matches.asking], matches.run.rows.found()[matches.found]
        moments = taken.moments[matches.asking]
        times = self._meeting.pair_times(moments, matches.run.rows.moments[matches.found])
        rows = self._schema.together(*((came, there) if number == LEFT else (there, came)))
        return _Part(rows.with_columns(self._meeting.bounds(moments)), times, matches.asking)

    def _met(self, number: int, taken: TimedRows, found: Iterable[Matches]) -> Iterator[_Part]:
        """Left rows that have met their first one, at the rows that came."""
        if number == LEFT:
            yield self._by_itself(LEFT, taken.take(taken.marked), np.flatnonzero(taken.marked))
            return
        for matches in found:
            fresh = ~matches.run.rows.marked[matches.found]
            met, first = np.unique(matches.found[fresh], return_index=True)
            yield self._by_itself(LEFT, matches.run.rows.picked(met), matches.asking[fresh][first])

    def _by_itself(self, number: int, rows: TimedRows, places: NDArray[np.int64]) -> _Part:
        """Rows of one input."""
        if not self._sends_pairs:
            return _Part(rows.frame.drop(EVENT_TIME), rows.until, places)
        results = self._schema.unmatched(number, rows.frame)
        return _Part(results.with_columns(self._meeting.bounds(rows.moments)), rows.until, places)

    def _emit(self, parts: Sequence[_Part], marks: NDArray[np.int64] | None, output: Output) -> None:
        """Send results in the order of their places, each with the watermark there; without `marks` by their times."""
        parts = [part for part in parts if part.rows.height]
        if not parts:
            return
        places, times = (np.concatenate([getattr(part, name) for part in parts]) for name in ("places", "times"))
        order = np.argsort(places, kind="stable")
        hidden = [pl.Series(EVENT_TIME, times[order])]
        if self._context.carries_watermarks:
            hidden.append(pl.Series(WATERMARK, times[order] - 1 if marks is None else marks[places[order]]))
        output.rows(pl.concat([part.rows for part in parts])[order].with_columns(hidden))

    # -- time -----------------------------------------------------------------------------------------------------------

    def run_background_slice(self) -> bool:
        return any(runs.run_background_slice() for runs in self._runs)

    def fire_due(self, watermark: int, output: Output) -> bool:
        reached = self._watermarks.advance(watermark)
        due = [
            self._by_itself(number, part, part.until)
            for number, runs in enumerate(self._runs)
            for part in self._unmet(number, runs.pass_by(reached))
        ]
        self._emit(due, None, output)
        return False

    def _unmet(self, number: int, passed: Iterable[tuple[Run, NDArray[np.int64]]]) -> Iterator[TimedRows]:
        for run, due in passed:
            if number in self._preserved and self._how != "semi":
                yield run.rows.picked(due[~run.rows.marked[due]])

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot | None:
        kept = {number: runs.freeze() for number, runs in enumerate(self._runs)}
        freeze, reached = self._freezes.next(incremental=self._context.incremental), self._watermarks.current
        self._met_since = [met for met in self._met_since if met.epoch > freeze.known_from and met.until > reached]
        place = (self._context.max_parallelism, freeze, kept)
        return OperatorSnapshot(
            keyed=JoinState(self._schema, *place, folder=self._context.local_state, met=tuple(self._met_since))
        )
