"""The contract between a subtask and the operators of its chain.

An operator is synchronous and single-threaded: the subtask calls it between awaits and it returns soon. It sees whole
batches. What it keeps across calls it gives out in `snapshot` and gets back in `open`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from penstock.core.times import MIN_WATERMARK
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.messages import OperatorMetrics

if TYPE_CHECKING:
    import polars as pl


class Output(Protocol):
    """Where an operator's results go: the next operator, an exchange, a sink."""

    def rows(self, frame: pl.DataFrame) -> None:
        """Rows of the operator's output schema, plus `EVENT_TIME` if its output has event time, and then perhaps
        `WATERMARK`. May be empty."""
        ...

    def side(self, tag: str, frame: pl.DataFrame) -> None:
        """Rows of a side output."""
        ...

    def watermark(self, watermark: int) -> None:
        """No later row will have an event time at or below `watermark`. Never goes back."""
        ...


@dataclass(frozen=True)
class OperatorContext:
    """What an operator knows of its place in the job."""

    operator: str
    subtask: int
    parallelism: int
    max_parallelism: int
    key_groups: KeyGroupRange
    now_us: Callable[[], int]
    """Wall time in microseconds (processing time)."""
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    carries_watermarks: bool = False
    """Whether the rows it hands on are to have `WATERMARK`."""
    window_reach_us: int = 0
    """How far the bounds of the pipeline's windows may be from a row of them."""
    wake: Callable[[], None] = lambda: None
    """Makes the subtask look at `Operator.next_timer_us` soon, whatever it waits for."""
    local_state: Path | None = None
    """The folder for state on the local disk (backend `rocksdb`); None: objects are held in memory."""
    incremental: bool = False
    """Whether checkpoints have only what came since an earlier one, where an operator's state can tell."""


class KeyedPart(Protocol):
    """Frozen keyed state. `segments` runs once, in a background thread, beside further processing."""

    def segments(self) -> Iterable[tuple[int, bytes]]:
        """(key group, bytes) pairs, none empty; only the operator understands the bytes.

        Key groups never fall; one that is too large to be in memory comes in several pairs.
        """
        ...


@runtime_checkable
class IncrementalPart(KeyedPart, Protocol):
    """Frozen keyed state that can tell what has changed. Of `segments`, `full` and `delta` one is asked for, once."""

    @property
    def epoch(self) -> int:
        """The epoch that this freeze closed, as `penstock.state.freezes` counts them."""
        ...

    def knows_since(self, epoch: int) -> bool:
        """Whether `delta` is possible for that epoch."""
        ...

    def full(self) -> Iterable[tuple[int, bytes]]:
        """What `segments` gives, in the form to which deltas may be added (`penstock.state.deltas`)."""
        ...

    def delta(self, epoch: int) -> Iterable[tuple[int, bytes]]:
        """What has changed since that epoch, whose freeze is part of a COMPLETE."""
        ...


@dataclass(frozen=True)
class OperatorSnapshot:
    """What an operator held when a barrier reached it. Taking it is cheap: it shares immutable data or copies lists.

    `lists` are redistributed by entry, `unions` go to every subtask as a whole, `broadcast` is the same everywhere.
    """

    keyed: KeyedPart | None = None
    lists: Mapping[str, Sequence[bytes]] = field(default_factory=dict[str, Sequence[bytes]])
    unions: Mapping[str, Sequence[bytes]] = field(default_factory=dict[str, Sequence[bytes]])
    broadcast: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


@dataclass(frozen=True)
class RestoredState:
    """The part of a snapshot that belongs to this subtask, perhaps gathered from several former subtasks.

    `keyed` holds segments of this subtask's key groups only (several of one key group are possible).
    `watermarks` gives, per key group, the watermark its former owner had reached: rows and timers of the group must be
    judged by the larger of it and the current watermark, so that a rescale never fires a window twice.
    """

    keyed: Sequence[tuple[int, bytes]] = ()
    lists: Mapping[str, Sequence[bytes]] = field(default_factory=dict[str, Sequence[bytes]])
    unions: Mapping[str, Sequence[bytes]] = field(default_factory=dict[str, Sequence[bytes]])
    broadcast: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    watermarks: Mapping[int, int] = field(default_factory=dict[int, int])

    def uniform_watermark(self) -> int | None:
        """The one watermark of all key groups, or None if they differ."""
        distinct = set(self.watermarks.values()) or {MIN_WATERMARK}
        return distinct.pop() if len(distinct) == 1 else None


class Operator(ABC):
    """One link of a chain. Stateless operators implement `process` only."""

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        """Called once before anything else; `restored` is None on a fresh start."""

    @abstractmethod
    def process(self, frame: pl.DataFrame, output: Output) -> None:
        """Take a batch in input order; emit any number of batches. Keeps the order of the rows of a key."""

    def process_input(self, number: int, frame: pl.DataFrame, output: Output) -> None:
        """Take a batch of one of several inputs, which have columns and keys of their own: see `Join`.

        Event time is that of all inputs together. Operators with one input need not know of others.
        """
        self.process(frame, output)

    def run_background_slice(self) -> bool:
        """Run the next slice, of some milliseconds, of the work that `process` or `on_processing_time` has left over.

        Work is left over by rows that a function of the user processes, by many timers that are due at once, and by large
        merges of sorted runs. Every other method of the operator either finishes this work first or does not need it.

        Returns:
            Whether work is left for another slice.
        """
        return False

    def advance(self, watermark: int, output: Output) -> None:
        """Event time has reached `watermark`: emit what is due, as far as `fire_due` has not, then pass it on."""
        while self.fire_due(watermark, output):
            pass
        output.watermark(watermark)

    def fire_due(self, watermark: int, output: Output) -> bool:
        """Emit a part of what is due when event time reaches `watermark`, for some milliseconds; whether more is left.

        Between two parts the subtask lets others run, but hands the operator nothing else than what is emitted by those
        before it. All that a watermark makes an operator emit is emitted here: its consumers are asked afterwards.
        """
        return False

    def next_timer_us(self) -> int | None:
        """Wall time at which `on_processing_time` wants to be called, if at all."""
        return None

    def on_processing_time(self, now_us: int, output: Output) -> None:
        """Wall time has reached what `next_timer_us` asked for."""

    def is_full(self, *, before_barrier: bool) -> bool:
        """Whether no rows are to be handed to it for now. `before_barrier`: a barrier waits behind these rows."""
        return False

    def holds_rows(self) -> bool:
        """Whether rows wait in it for something that will come: neither event time nor the input ends before them."""
        return False

    def on_idle(self) -> None:
        """The subtask becomes idle: event time of its consumers advances without it until new input arrives."""

    def snapshot(self) -> OperatorSnapshot | None:
        """Freeze the state; None if there is none. Must return within milliseconds whatever the size of the state."""
        return None

    def end(self) -> Awaitable[None] | None:
        """The input has ended: nothing is handed to the operator any more. User functions are closed here, so that an
        error of theirs fails the attempt before its last checkpoint is acknowledged; `close` follows all the same.

        Returns:
            What is left to wait for, if anything; may be called once more while it goes on.
        """
        return None

    def close(self) -> None:
        """The subtask ends; called once, also after a failure."""

    def closing(self) -> Awaitable[None] | None:
        """What is left to wait for after `close`, if anything."""
        return None


class PassingOperator(Operator):
    """An operator that does what a watermark makes due in parts, between which others run."""

    _passing: Iterator[None] | None = None
    """What is left of it, if anything is."""

    @abstractmethod
    def _pass(self, watermark: int, output: Output) -> Iterator[None]:
        """Event time comes to `watermark`."""

    def fire_due(self, watermark: int, output: Output) -> bool:
        if self._passing is None:
            self._passing = self._pass(watermark, output)
        for _ in self._passing:
            return True
        self._passing = None
        return False


class PartwiseOperator(Operator):
    """An operator that does its work in parts, between which others run: who knows how long the user's function takes."""

    _left: Iterator[None] = iter(())
    """The parts of the last batch, or of what the clock has made due, that are left."""

    def take(self, parts: Iterator[None]) -> None:
        """Do the first part; others run before each of the others."""
        self.finish()
        self._left = parts
        self.run_background_slice()

    def run_background_slice(self) -> bool:
        return next(self._left, self) is not self

    def finish(self) -> None:
        """Leave nothing of what was begun before."""
        while self.run_background_slice():
            pass

    def fire_due(self, watermark: int, output: Output) -> bool:
        return self.run_background_slice()

    def snapshot(self) -> OperatorSnapshot | None:
        self.finish()
        return None
