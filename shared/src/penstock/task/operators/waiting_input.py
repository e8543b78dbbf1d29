"""Rows of an input that wait for their event time, in one snapshot with the table of a key's state.

A segment has the columns of both: `_PENDING` says which rows are those that wait, under names of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.state.columns import canonical_keys
from penstock.state.counted_rows import COUNT
from penstock.task.operators.keyed_table import Beside
from penstock.task.operators.waiting_rows import WaitingRows
from penstock.types import polars_type

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.plan.logical import Node
    from penstock.state.freezes import Freezes
    from penstock.task.operators.progress import GroupWatermarks

_PENDING: Final = "__pending"
"""Boolean: a row of a segment is one that waits for its time, with the columns of the input."""
_INPUT: Final = "__in_"


class WaitingInput:
    """The rows of a keyed input.

    Args:
        source: the input.
        freezes: those of the table.
    """

    def __init__(self, source: Node, freezes: Freezes) -> None:
        self._types = {field.name: polars_type(field.type) for field in source.schema} | {EVENT_TIME: pl.Int64()}
        self._keys = source.schema.select(source.keys)
        self._waiting = WaitingRows(freezes)

    def lies_in(self, folder: Path | None) -> None:
        """State on the local disk lies there, if it does."""
        self._waiting.lies_in(folder)

    def add(self, frame: pl.DataFrame) -> None:
        """Rows that wait from now on; what they have beside the columns of the input is dropped."""
        self._waiting.add(canonical_keys(frame.select(list(self._types)), self._keys))

    def due(self, reached: int) -> Iterator[pl.DataFrame]:
        """Event time has reached `reached`: as `WaitingRows.due`."""
        return self._waiting.due(reached)

    def run_background_slice(self) -> bool:
        """As `WaitingRows.run_background_slice`."""
        return self._waiting.run_background_slice()

    def beside(self) -> Beside:
        """What a snapshot has of them beside the rows of the table."""
        frames = [(epoch, map(self._stored, frames)) for epoch, frames in self._waiting.freeze()]
        return Beside(dict(self._stored(pl.DataFrame(schema=self._types)).schema), frames)

    def _stored(self, rows: pl.DataFrame) -> pl.DataFrame:
        others = [pl.col(name).alias(f"{_INPUT}{name}") for name in self._types if name not in self._keys]
        return rows.select(*self._keys.names, *others, pl.lit(True).alias(_PENDING), pl.lit(1, pl.Int64).alias(COUNT))

    def restored(self, rows: pl.DataFrame, watermarks: GroupWatermarks) -> pl.DataFrame:
        """Take those of a segment that wait; returns the others, which are the table's."""
        if _PENDING not in rows.columns:
            return rows
        waits = pl.col(_PENDING).fill_null(False)
        waiting = rows.filter(waits).select(name if name in self._keys else f"{_INPUT}{name}" for name in self._types)
        waiting.columns = list(self._types)
        # Some of a full run were computed, perhaps, before the newest delta was written.
        self._waiting.add(waiting.filter(~watermarks.have_passed(waiting)))
        return rows.filter(~waits)
