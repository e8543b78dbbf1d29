"""`join(as_of=True)`: each left row beside the newest right row of its key that is not newer, by event time.

A left row waits until the watermark has passed its event time, so that every right row up to there is known; then it is
sent with its own event time, in order of event time. Right rows are versions of their key: the newest that has come to
pass is kept, and those that will. Rows of either input that come behind the watermark are late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.functions.windows.definitions import AsOf
from penstock.plan.logical import Node
from penstock.plan.operations.join import Join
from penstock.state.columns import canonical_keys
from penstock.state.freezes import Freezes
from penstock.state.sorted_runs import SortedRuns, TimedRows
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.join_rows import LEFT, RIGHT, JoinedSchema, JoiningOperator, JoinState, restored_rows
from penstock.task.operators.progress import GroupWatermarks
from penstock.task.operators.waiting_rows import WaitingRows

if TYPE_CHECKING:
    from numpy.typing import NDArray


class AsOfJoinOperator(JoiningOperator):
    """`join(as_of=True)` of two inputs."""

    def __init__(self, node: Node) -> None:
        operation = node.operation
        assert isinstance(operation, Join)
        assert isinstance(operation.time, AsOf)
        self._schema = JoinedSchema(node)
        self._keeps_unmet = operation.how == "left"
        self._tolerance = operation.time.tolerance_us
        self._freezes = Freezes()
        self._nulls_equal = operation.nulls_equal
        self._versions = SortedRuns(
            self._schema.keys.names, newest_only=True, nulls_equal=self._nulls_equal, freezes=self._freezes
        )
        self._waiting = WaitingRows(self._freezes)
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._watermarks = GroupWatermarks(context, self._schema.keys.names, restored)
        self._versions.folder = context.local_state
        self._waiting.lies_in(context.local_state)
        for _, rows in restored_rows(self._schema, restored) if restored is not None else ():
            if isinstance(rows, TimedRows):
                self._keep(rows)
            else:  # those of a full run were sent, perhaps, before the newest delta was written
                self._waiting.add(rows.filter(~self._watermarks.have_passed(rows)))

    # -- rows -----------------------------------------------------------------------------------------------------------

    def process_input(self, number: int, frame: pl.DataFrame, output: Output) -> None:
        late = self._watermarks.have_passed(frame)
        rows = frame.select(list(self._schema.kept(number)))
        if late.any():
            self._context.metrics.late_rows += int(late.sum())
            rows = rows.filter(~late)
        rows = canonical_keys(rows, self._schema.keys)
        if number == LEFT:
            self._waiting.add(rows)
        else:
            self._keep(self._timed(rows))

    def _keep(self, versions: TimedRows) -> None:
        """Those that a row may meet: null is equal to nothing, unless it is a key like others."""
        if self._nulls_equal:
            self._versions.add(versions, self._versions.hashes(versions.frame))
            return
        keys = versions.frame.select(self._schema.keys.names)
        there = ~keys.select(pl.any_horizontal(pl.all().is_null())).to_series().to_numpy()
        kept = versions if there.all() else versions.take(there)
        self._versions.add(kept, self._versions.hashes(kept.frame))

    def _timed(self, rows: pl.DataFrame) -> TimedRows:
        times = rows[EVENT_TIME].to_numpy(writable=True)
        ends = np.full(rows.height, MAX_WATERMARK) if self._tolerance is None else times + self._tolerance
        return TimedRows(rows, times, ends, np.zeros(rows.height, np.bool_))

    # -- time -----------------------------------------------------------------------------------------------------------

    def run_background_slice(self) -> bool:
        return self._versions.run_background_slice() or self._waiting.run_background_slice()

    def fire_due(self, watermark: int, output: Output) -> bool:
        reached = self._watermarks.advance(watermark)
        for rows in self._waiting.due(reached):
            self._send(rows, output)
        for _ in self._versions.pass_by(reached):
            pass  # nothing becomes of versions that are too old
        return False

    def _send(self, rows: pl.DataFrame, output: Output) -> None:
        parts = self._beside(rows)
        places = np.concatenate([places for places, _ in parts])
        results = pl.concat([part for _, part in parts])[np.argsort(places, kind="stable")]
        if self._context.carries_watermarks:
            results = results.with_columns((pl.col(EVENT_TIME) - 1).alias(WATERMARK))
        output.rows(results)

    def _beside(self, rows: pl.DataFrame) -> list[tuple[NDArray[np.int64], pl.DataFrame]]:
        """Rows with the version of each, by their places; those without one at last, if they are kept."""
        times = rows[EVENT_TIME].to_numpy()
        run_of, place = self._newest(rows, times)
        parts: list[tuple[NDArray[np.int64], pl.DataFrame]] = []
        for number, run in enumerate(self._versions.runs):
            met = np.flatnonzero(run_of == number)
            own = rows[met]
            versions = run.rows.found()[place[met]]
            parts.append((met, self._schema.together(own, versions).with_columns(own[EVENT_TIME])))
        unmet = np.flatnonzero(run_of < 0)
        if not self._keeps_unmet:
            unmet = unmet[:0]
        own = rows[unmet]
        return [*parts, (unmet, self._schema.unmatched(LEFT, own).with_columns(own[EVENT_TIME]))]

    def _newest(self, rows: pl.DataFrame, times: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The run and the place there of the version of each row, -1 if it has none."""
        run_of, place = (np.full(rows.height, -1, np.int64) for _ in range(2))
        newest = np.full(rows.height, MIN_WATERMARK, np.int64)
        for matches in self._versions.newest(rows, self._versions.hashes(rows), times):
            moments = matches.run.rows.moments[matches.found]
            # Of equal moments the one that came later, which is in a later run.
            better = moments >= newest[matches.asking]
            if self._tolerance is not None:
                better &= moments >= times[matches.asking] - self._tolerance
            asking = matches.asking[better]
            run_of[asking] = self._versions.runs.index(matches.run)
            place[asking] = matches.found[better]
            newest[asking] = moments[better]
        return run_of, place

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot | None:
        context = self._context
        kept, waiting = {RIGHT: self._versions.freeze()}, self._waiting.freeze()
        freeze = self._freezes.next(incremental=context.incremental)
        state = JoinState(self._schema, context.max_parallelism, freeze, kept, waiting, context.local_state)
        return OperatorSnapshot(keyed=state)
