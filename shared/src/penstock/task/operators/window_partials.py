"""`agg` of windows under a trigger, a partial per window: `penstock.functions.windows.partials` run as a keyed process.

The process notes down which rows and stored partials every firing is of. They are settled together, when firings are
handed on, when enough rows wait and before a snapshot: rows become partials of their units, units are merged along what
each window holds, firings are results of what that gives, and the last of each window is stored.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.functions.windows.partials import PartialProcess, Totalled, schema_of_partials
from penstock.plan.logical import Node
from penstock.plan.operations.window_rows import WindowRows
from penstock.state.columns import key_frame
from penstock.task.operators.partial_scan import PartialScan
from penstock.task.operators.partials import Partials
from penstock.task.operators.window_rows import WindowProcessOperator, of_windows
from penstock.task.rows import RowReader, RowWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, RestoredState

_UNIT: Final = "__unit"
_ROWS_AT_ONCE: Final = 16_384
_FIRINGS_AT_ONCE: Final = 16_384


class WindowPartialsOperator(WindowProcessOperator):
    """`agg` under a trigger."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        source = node.inputs[0]
        declared = cast("PartialProcess", self._declared)
        self._partials = Partials(node)
        self._scan = PartialScan(self._partials.plan.merge, self._partials.plan.carry)
        needs_rows = declared.looks_at_rows or cast("WindowRows", node.operation).late is not None
        self._numbers = NumberedRows(self._readers[0] if needs_rows else None, self._partials.columns)
        schema = schema_of_partials(self._partials.plan)
        self._stored = StoredPartials(schema, declared, self._partials.names)
        self._input = RowWriter(source.schema, None, f"{node.verb} ({node.operator_id})")
        self._timed = source.event_time
        self._names = list(node.schema.names)
        self._writer = cast("RowWriter", self)

    @property
    def _accounts(self) -> Any:
        return cast("PartialProcess", self._process).accounts

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        super().open(context, restored)
        if restored is not None:
            self._total_kept_rows()

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        self.finish()
        if self._numbers.waiting >= _ROWS_AT_ONCE:
            self._settle([])
        super().process(frame, output)

    def _rows_of(self, number: int, chunk: pl.DataFrame) -> Iterable[Any]:
        self._tell_ends(chunk)
        return self._numbers.rows(chunk)

    def _flush_some(self, output: Output) -> None:
        if len(self._run.main.rows) >= _FIRINGS_AT_ONCE:  # settling has a cost of its own
            self._flush(output)

    def snapshot(self) -> OperatorSnapshot | None:
        self.finish()
        if self._accounts.windows:
            self._settle([])
        return super().snapshot()

    # -- settling -------------------------------------------------------------------------------------------------------

    def copied(self, firing: Totalled) -> Totalled:
        """Nobody changes a firing."""
        return firing

    def frame_of_copies(self, firings: list[Totalled], event_times: list[int] | None = None) -> pl.DataFrame:
        """One row per firing, in order."""
        partials = self._settle([(firing.units, firing.upto) for firing in firings])
        beside = key_frame([firing.key for firing in firings], self._keys).hstack(of_windows(firings))
        frame = self._partials.results(beside.hstack(partials), beside.columns, self._names)
        return frame if event_times is None else frame.with_columns(pl.Series(EVENT_TIME, event_times, pl.Int64))

    def _settle(self, firings: list[tuple[list[int], int]]) -> pl.DataFrame:
        """The partials of these firings; what the windows hold by now is stored, and nothing is noted down any more."""
        units = self._of_units()
        windows = self._accounts.settled()
        held = [(account.units, len(account.units)) for _, _, account in windows if account.units]
        sent = [account.sent for _, _, account in windows if account.sent is not None]
        totals = self._along(units, [*firings, *held, *sent])
        stored = iter(self._stored.read(totals[len(firings) : len(firings) + len(held)]))
        stored_sent = iter(self._stored.read(totals[len(firings) + len(held) :]))
        process, run = cast("PartialProcess", self._process), self._run
        key = run.key
        for run.key, bounds, account in windows:
            partial = next(stored) if account.units else None
            process.keep(bounds, account, partial, next(stored_sent) if account.sent is not None else None)
        run.key = key
        return totals[: len(firings)]

    def _of_units(self) -> pl.DataFrame:
        """The partial of every unit, in order."""
        accounts = self._accounts
        frames = [self._stored.frame(accounts.stored)]
        if accounts.rows:
            rows = self._numbers.rows_of(accounts.rows).with_columns(pl.Series(_UNIT, accounts.units_of_rows, pl.Int64))
            frames.append(self._partials.group([rows], [_UNIT], ordered=True).select(frames[0].columns))
        self._numbers.forget()
        return pl.concat(frames).sort(_UNIT).drop(_UNIT)

    def _along(self, units: pl.DataFrame, wanted: Sequence[tuple[list[int], int]]) -> pl.DataFrame:
        """The partial of the first so many units of each of these lists."""
        lists = {id(held): held for held, _ in wanted}
        lengths = [len(held) for held in lists.values()]
        ends = np.cumsum(lengths, dtype=np.int64)
        begins = dict(zip(lists, (ends - lengths).tolist(), strict=True))
        starts = np.zeros(int(ends[-1]) if lengths else 0, np.bool_)
        starts[list(begins.values())] = True
        totals = self._scan.up_to(units[list(chain.from_iterable(lists.values()))], starts)
        return totals[[begins[id(held)] + upto - 1 for held, upto in wanted]]

    # -- snapshots of versions before -----------------------------------------------------------------------------------

    def _total_kept_rows(self) -> None:
        """Make partials of the rows that versions before kept of windows."""
        process, run = cast("PartialProcess", self._process), self._run
        key = run.key
        for run.key in self._stored.keys_with_rows(process):
            for bounds, meta, kept in process.with_kept_rows():
                if kept:
                    process.partials.set((*bounds, False), self._total(kept))
                if meta.sent and process.retracts:
                    process.partials.set((*bounds, True), self._total([each for each in kept if each[0] < meta.sent]))
                process.adopt(bounds, meta)
        run.key = key

    def _total(self, kept: list[Any]) -> Any:
        times: Any = [time for _, time, _ in kept] if self._timed else None
        rows = self._input.frame([row for _, _, row in kept], times).with_columns(pl.lit(0, pl.Int64).alias(_UNIT))
        return self._stored.read(self._partials.group([rows], [_UNIT]).select(self._partials.names))[0]


class StoredPartials:
    """Partials as the state has them: objects of a class."""

    def __init__(self, schema: Any, declared: PartialProcess, names: list[str]) -> None:
        kind = declared.class_of_partials
        self._reader = RowReader(schema, kind)
        self._writer = RowWriter(schema, None, "stored partials")
        self._columns = list(schema.names)
        self._names = names

    def read(self, partials: pl.DataFrame) -> list[Any]:
        """Objects of the rows of a frame."""
        renamed = partials.select(self._names)
        renamed.columns = self._columns
        return self._reader.rows(renamed)

    def frame(self, stored: list[tuple[int, Any]]) -> pl.DataFrame:
        """The frame of such objects with their units."""
        made = self._writer.frame([partial for _, partial in stored])
        made.columns = self._names
        return made.with_columns(pl.Series(_UNIT, [unit for unit, _ in stored], pl.Int64))

    def keys_with_rows(self, process: PartialProcess) -> list[Any]:
        """The keys whose windows were kept as rows."""
        frozen = cast("Any", process.rows).table.freeze()
        try:
            return [key for key, _ in frozen]
        finally:
            frozen.release()


class NumberedRows:
    """Reads rows as pairs of a number and, where they are looked at, the row; has the columns of what was read last."""

    def __init__(self, reader: RowReader | None, columns: list[str]) -> None:
        self._reader = reader
        self._columns = columns
        self._frames: list[pl.DataFrame] = []
        self._first = self._next = 0
        """Numbers of the first row that is kept, and of the next one to be read."""

    def rows(self, frame: pl.DataFrame) -> Iterator[tuple[int, Any]]:
        """One pair per row, in order."""
        self._frames.append(frame.select(self._columns))
        numbers = range(self._next, self._next + frame.height)
        self._next += frame.height
        return zip(
            numbers, self._reader.rows(frame) if self._reader is not None else [None] * frame.height, strict=True
        )

    @property
    def waiting(self) -> int:
        """How many rows there are the columns of."""
        return self._next - self._first

    def rows_of(self, numbers: list[int]) -> pl.DataFrame:
        """The columns of the rows of these numbers."""
        rows = pl.concat(self._frames)
        return rows[np.asarray(numbers) - self._first]

    def forget(self) -> None:
        """Drop the columns of all rows but those of the last frame, of which more may be asked for."""
        for frame in self._frames[:-1]:
            self._first += frame.height
        del self._frames[:-1]
