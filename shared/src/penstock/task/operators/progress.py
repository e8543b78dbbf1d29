"""How far event time has come for the key groups of an operator, also after a restore that brought unlike ones together.

A key group restored from a snapshot has seen the watermark of its former owner: its windows up to there have fired and
its rows at or below it are late, even if the new owner's watermark starts lower (protocol.md: watermarks per key group).
`GroupWatermarks` answers with the larger of the two. Only while some group is ahead does this cost anything.

What becomes of rows that came too late is the same for all windows and stands here too: `LateRows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, ROWS, WATERMARK
from penstock.core.times import MIN_WATERMARK
from penstock.state.hashing import key_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.plan.logical import Node
    from penstock.plan.operations.match_rows import MatchRows
    from penstock.plan.operations.over import Over
    from penstock.plan.operations.sort import Sort
    from penstock.plan.operations.window_aggregate import WindowAggregate
    from penstock.protocol.messages import OperatorMetrics
    from penstock.task.operator import OperatorContext, Output, RestoredState
    from penstock.types import Schema


class GroupWatermarks:
    """The watermark of an operator and of its key groups.

    `current` is what every group has reached at least.
    """

    def __init__(
        self,
        context: OperatorContext,
        keys: Sequence[str],
        restored: RestoredState | None,
    ) -> None:
        self._keys = keys
        self._max_parallelism = context.max_parallelism
        watermarks: Mapping[int, int] = restored.watermarks if restored else {}
        owned = range(context.key_groups.start, context.key_groups.end)
        reached = [watermarks.get(group, MIN_WATERMARK) for group in owned]
        self.current = min(reached, default=MIN_WATERMARK)
        self._ahead = {group: mark for group, mark in zip(owned, reached, strict=True) if mark > self.current}
        self._before = (self.current, self._ahead)
        """What `advance` found."""

    @property
    def uneven(self) -> bool:
        """Whether some key group is ahead of `current`."""
        return bool(self._ahead)

    @property
    def highest(self) -> int:
        """The furthest watermark of any group."""
        return max(self._ahead.values(), default=self.current)

    def advance(self, watermark: int) -> int:
        """Event time has reached `watermark`; returns the new `current`."""
        self._before = (self.current, self._ahead)
        self.current = max(self.current, watermark)
        if self._ahead:
            self._ahead = {group: mark for group, mark in self._ahead.items() if mark > self.current}
        return self.current

    @property
    def rose_evenly(self) -> bool:
        """Whether the last `advance` moved all groups alike, and they are even."""
        return not self._ahead and not self._before[1]

    def rose(self, group: int) -> bool:
        """Whether the last `advance` moved the watermark of this group."""
        current, ahead = self._before
        return self.of_group(group) > ahead.get(group, current)

    def of_group(self, group: int) -> int:
        """The watermark of one key group."""
        return self._ahead.get(group, self.current)

    def of_rows(self, frame: pl.DataFrame, keys: Sequence[str] | None = None) -> NDArray[np.int64]:
        """The watermark of the key group of every row; `keys` if the columns have other names there."""
        table = np.full(self._max_parallelism, self.current, np.int64)
        for group, watermark in self._ahead.items():
            table[group] = watermark
        return table[key_groups(frame, keys or self._keys, self._max_parallelism).to_numpy()]

    def at_rows(self, frame: pl.DataFrame, keys: Sequence[str] | None = None) -> NDArray[np.int64] | int:
        """The watermark that holds when the turn of each row comes; one number if it is the same for all."""
        reached = self.of_rows(frame, keys) if self._ahead else self.current
        if WATERMARK not in frame.columns:
            return reached
        return np.maximum(frame[WATERMARK].fill_null(MIN_WATERMARK).to_numpy(), reached)

    def have_passed(self, frame: pl.DataFrame) -> pl.Series:
        """Whether event time has come to each row before its turn."""
        return pl.Series(frame[EVENT_TIME].to_numpy() <= self.at_rows(frame), dtype=pl.Boolean)

    def split(self, frame: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
        """The rows by the watermark that holds for them; one part, without any work, if all are even."""
        if not self._ahead:
            yield self.current, frame
            return
        marks = self.of_rows(frame)
        for mark in np.unique(marks).tolist():
            yield mark, frame.filter(pl.Series(marks == mark))


class LateRows:
    """Where late rows go: to the side output that the pipeline names, else nowhere, but counted."""

    def __init__(self, node: Node, columns: Schema | None = None) -> None:
        """`columns`: those of the side output, where they are not those of the input."""
        operation = cast("WindowAggregate | Over | Sort | MatchRows", node.operation)
        self._tag = operation.late.name if operation.late else None
        self._names = [*(columns or node.inputs[0].schema).names, EVENT_TIME]

    def on_time(
        self, frame: pl.DataFrame, watermarks: GroupWatermarks, output: Output, metrics: OperatorMetrics
    ) -> pl.DataFrame:
        """The rows that are not behind the watermark; those that are, are taken as late ones."""
        late = watermarks.have_passed(frame)
        if not late.any():
            return frame
        self.refuse(frame.filter(late), output, metrics)
        return frame.filter(~late)

    def refuse(self, late: pl.DataFrame, output: Output, metrics: OperatorMetrics) -> None:
        """Take late rows."""
        if late.height == 0:
            return
        if self._tag is None:
            metrics.late_rows += int(late[ROWS].sum()) if ROWS in late.columns else late.height
        else:
            names = [*self._names, WATERMARK] if WATERMARK in late.columns else self._names
            output.side(self._tag, late.select(names))
