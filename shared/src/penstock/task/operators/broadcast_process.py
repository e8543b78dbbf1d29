"""Process functions beside a broadcast stream: each of its rows comes to every subtask, and writes broadcast state there.

The rows of the other input, timers and keyed state are `penstock.task.operators.process`'s business. Here stands what a
broadcast row may do: write broadcast state and emit, but touch neither keyed state nor timers, for it has no key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.errors import PenstockError, UserCodeError
from penstock.functions.process_functions import OutputTag
from penstock.state.declarations import declared_states
from penstock.state.keyed_state import NO_KEY
from penstock.state.operator_state import BroadcastStates
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.batch_process import BatchProcessOperator, KeyedBatchProcessOperator
from penstock.task.operators.process import (
    KeyedProcessOperator,
    ProcessBase,
    ProcessOperator,
    Run,
    carried_marks,
)
from penstock.task.operators.rowwise import chunks_of, raised

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from penstock.plan.logical import Node


class _WithoutKey:
    """The `Context` of `on_broadcast`: that of rows, without what needs a key."""

    def __init__(self, run: Run, keyed_method: str) -> None:
        self._run = run
        self._keyed_method = keyed_method
        self.emit = run.emit

    def emit_to(self, tag: OutputTag[Any], row: Any) -> None:
        self._run.emit_to(tag, row)

    @property
    def timestamp(self) -> datetime | None:
        return self._run.timestamp

    @property
    def watermark(self) -> datetime | None:
        return self._run.watermark

    @property
    def processing_time(self) -> datetime:
        return self._run.processing_time

    def __getattr__(self, name: str) -> NoReturn:
        if name not in ("key", "keys", "time_domain") and not name.endswith(("_timer", "_timers")):
            raise AttributeError(name)
        raise UserCodeError(
            f"on_broadcast has no ctx.{name}: a broadcast row comes to every subtask and belongs to no key; use it in "
            f"{self._keyed_method} or on_timer"
        )


class _BroadcastInput(ProcessBase):
    """What both operators do with a broadcast row."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._broadcast = BroadcastStates(node.operator_id, declared_states(self._declared))
        self._without_key: Any = _WithoutKey(self._run, self._methods[0])

    def _own_copy(self) -> Any:
        process = super()._own_copy()
        for name, bound in self._broadcast.bound.items():
            object.__setattr__(process, name, bound)
        return process

    def _process_broadcast(
        self, frame: pl.DataFrame, output: Output, come: Callable[[int], Iterator[None]]
    ) -> Iterator[None]:
        """Take broadcast rows; before each event time comes to what it carries, where others may run."""
        run, row = self._run, None
        marks = iter(carried_marks(frame, run))
        try:
            for turn, chunk in enumerate(chunks_of(frame)):
                if turn:
                    yield
                for time, row in zip(self._times_of(chunk), self._readers[1].rows(chunk), strict=True):
                    yield from come(next(marks))
                    run.key, run.time = NO_KEY, time
                    with self._broadcast.writing():
                        self._process.on_broadcast(row, self._without_key)
        except PenstockError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise raised(f"{self._where}.on_broadcast", row, error) from error
        self._flush_last(output)


class BroadcastProcessOperator(_BroadcastInput, ProcessOperator):
    """A `BroadcastProcess`: rows without key, operator state."""

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        if restored is not None:
            self._broadcast.restore(restored)
        super().open(context, restored)

    def process_input(self, number: int, frame: pl.DataFrame, output: Output) -> None:
        if number == 0:
            self.process(frame, output)
        else:
            self.take(self._process_broadcast(frame, output, self._come))

    def _come(self, watermark: int) -> Iterator[None]:
        self._run.watermark_us = self._run.mark = max(self._run.watermark_us, watermark)
        return iter(())

    def snapshot(self) -> OperatorSnapshot | None:
        self.finish()
        beside = self._broadcast.encoded()
        snapshot = super().snapshot()
        if snapshot is None:
            return OperatorSnapshot(broadcast=beside) if beside else None
        return replace(snapshot, broadcast=beside)


class KeyedBroadcastProcessOperator(_BroadcastInput, KeyedProcessOperator):
    """A `KeyedBroadcastProcess`: keyed state and timers, and broadcast state beside them."""

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        if restored is not None:
            self._broadcast.restore(restored)
        super().open(context, restored)

    def _processed(self, number: int, frame: pl.DataFrame, output: Output) -> Iterator[None]:
        if number == 0:
            return super()._processed(number, frame, output)
        return self._process_broadcast(frame, output, lambda watermark: self._come(watermark, output))

    def _come(self, watermark: int, output: Output) -> Iterator[None]:
        run = self._run
        if watermark > run.mark:
            yield from self._fired_between(watermark, output)
            run.mark = watermark
        run.watermark_us = self._watermarks.current if self._watermarks.uneven else run.mark

    def snapshot(self) -> OperatorSnapshot | None:
        snapshot = super().snapshot()
        return snapshot and replace(snapshot, broadcast=self._broadcast.encoded())


class BatchBroadcastProcessOperator(BroadcastProcessOperator, BatchProcessOperator):
    """A `BroadcastProcess` with `on_batch`."""


class KeyedBatchBroadcastProcessOperator(KeyedBroadcastProcessOperator, KeyedBatchProcessOperator):
    """A `KeyedBroadcastProcess` with `on_batch`."""
