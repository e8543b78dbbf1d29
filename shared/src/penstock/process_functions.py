"""Process functions: the low level of the API, with state, timers and side outputs.

What users subclass (`Process`, `KeyedProcess`), what they are given (`Context`, `KeyedContext`) and the state
declarations, which `penstock.state.declarations` defines. Responsible for types and messages only: the operators in
`penstock.task.operators.process` run these classes.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from penstock.arguments import checked
from penstock.errors import PipelineError
from penstock.state.declarations import (
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    ReducingState,
    State,
    UnionListState,
    ValueState,
    declared_states,
    describe_states,
)

__all__ = [
    "AnyProcess",
    "BroadcastProcess",
    "BroadcastState",
    "Context",
    "KeyedBroadcastProcess",
    "KeyedCoProcess",
    "KeyedContext",
    "KeyedProcess",
    "ListState",
    "MapState",
    "OpenContext",
    "OperatorListState",
    "OutputTag",
    "Process",
    "ReducingState",
    "State",
    "UnionListState",
    "ValueState",
    "check_process",
    "describe_states",
    "input_methods",
    "process_types",
    "type_arguments",
]

In = TypeVar("In")
Out = TypeVar("Out")
Left = TypeVar("Left")
Right = TypeVar("Right")
Row = TypeVar("Row")
Rule = TypeVar("Rule")
Emitted = TypeVar("Emitted", contravariant=True)


@checked
@dataclass(frozen=True)
class OutputTag(Generic[Row]):
    """Names a side output. Two tags are the same output if their names are equal.

    Args:
        name: unique among the side outputs of an operator.
        row_type: class of the rows: a dataclass or a `msgspec.Struct`. Not needed where the rows are those of the
            operator's input, as for late rows.

    Example:
        >>> LATE = OutputTag("late")
        >>> per_minute = bids.key_by("auction").window(tumbling("1m")).late_to(LATE).agg(bids=count())
        >>> late = per_minute.side(LATE)
    """

    name: str
    row_type: type[Row] | None = None

    def __post_init__(self) -> None:
        if not self.name or self.name.startswith("__"):
            raise PipelineError(f"OutputTag: {self.name!r} is no name; use a word such as 'late'")


class OpenContext(Protocol):
    """What `open` may know: the place of this copy of the function in the job.

    Example:
        >>> class Placed(Process[Bid, Total]):
        ...     def open(self, context: OpenContext) -> None:
        ...         self.subtask = context.subtask
        ...     def on_row(self, row: Bid, ctx: Context[Total]) -> None:
        ...         ctx.emit(Total(row.auction, float(self.subtask)))
        >>> bids.process(Placed()).collect().rows()
        [(1, 0.0), (2, 0.0), (1, 0.0), (2, 0.0)]
    """

    @property
    def subtask(self) -> int:
        """Number of the subtask, from 0."""
        ...

    @property
    def parallelism(self) -> int:
        """How many subtasks there are."""
        ...


class Context(Protocol[Emitted]):
    """What `on_row` is given besides the row. Valid only during the call.

    Example:
        >>> class Timed(Process[Bid, Total]):
        ...     def on_row(self, row: Bid, ctx: Context[Total]) -> None:
        ...         if ctx.timestamp is not None and ctx.timestamp.second > 10:
        ...             ctx.emit(Total(row.auction, row.price))
        >>> bids.process(Timed()).collect().rows()
        [(1, 120.0)]
    """

    def emit(self, row: Emitted) -> None:
        """Send a row on, or a dict with exactly its columns; its event time is that of the row or timer at hand."""
        ...

    def emit_to(self, tag: OutputTag[Row], row: Row) -> None:
        """Send a row to a side output, which `.side(tag)` reads."""
        ...

    @property
    def timestamp(self) -> datetime | None:
        """Event time of the row, or of the event timer that fires; None if the stream has no event time."""
        ...

    @property
    def watermark(self) -> datetime | None:
        """Event time up to which no more rows are expected; None before the first watermark.

        At the end of the input it is the last moment a datetime can hold.
        """
        ...

    @property
    def processing_time(self) -> datetime:
        """The wall clock."""
        ...


class KeyedContext(Context[Emitted], Protocol[Emitted]):
    """`Context` on a keyed stream: the key, and timers for it.

    Example:
        >>> class Later(KeyedProcess[Bid, Total]):
        ...     def on_row(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        ...         ctx.event_timer(row.at + timedelta(hours=1))
        ...     def on_timer(self, at: datetime, ctx: KeyedContext[Total]) -> None:
        ...         ctx.emit(Total(ctx.key, float(at.minute)))
        >>> sorted(bids.key_by("auction").process(Later()).collect().rows())
        [(1, 0.0), (1, 0.0), (2, 0.0), (2, 1.0)]
    """

    @property
    def key(self) -> Any:
        """The key: a value, or a tuple if the stream is keyed by several columns."""
        ...

    @property
    def time_domain(self) -> Literal["event", "processing"] | None:
        """Which timer `on_timer` is called for; None in `on_row`."""
        ...

    def event_timer(self, at: datetime) -> None:
        """Call `on_timer` for this key when the watermark reaches `at`; setting it twice is setting it once.

        A row of exactly that time comes before it: the watermark reaches a time when no row of it is expected any more.

        At the end of bounded input all timers fire, whatever their time. Of those that are set meanwhile 100 per key
        fire too, so that a timer may look whether to wait once more; one that renews itself for ever does not run on.
        """
        ...

    def processing_timer(self, at: datetime) -> None:
        """Call `on_timer` for this key when the wall clock reaches `at`."""
        ...

    def delete_event_timer(self, at: datetime) -> None:
        """Take back `event_timer(at)`; nothing happens if it is not set."""
        ...

    def delete_processing_timer(self, at: datetime) -> None:
        """Take back `processing_timer(at)`; nothing happens if it is not set."""
        ...


class Process(Generic[In, Out]):
    """A function per row with side outputs and operator state, for streams without key.

    Every subtask works on its own deep copy; connections and the like are made in `open`.

    Example:
        >>> class Dear(Process[Bid, Total]):
        ...     def on_row(self, row: Bid, ctx: Context[Total]) -> None:
        ...         if row.price > 100:
        ...             ctx.emit(Total(row.auction, row.price))
        >>> bids.process(Dear()).collect().rows()
        [(2, 250.0), (1, 120.0)]
    """

    def open(self, context: OpenContext) -> None:
        """Called once per subtask before the first row; restored state is there already."""

    def on_row(self, row: In, ctx: Context[Out]) -> None:
        """Called per row."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once per subtask at its end, also after a failure."""


class KeyedProcess(Generic[In, Out]):
    """A function per row with state and timers per key.

    Every subtask works on its own deep copy; connections and the like are made in `open`.

    Example:
        >>> class Quiet(KeyedProcess[Bid, Total]):
        ...     last = ValueState(float)
        ...     def on_row(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        ...         self.last.set(row.price)
        ...         ctx.event_timer(row.at + timedelta(seconds=30))
        ...     def on_timer(self, at: datetime, ctx: KeyedContext[Total]) -> None:
        ...         ctx.emit(Total(ctx.key, self.last.get(default=0.0)))
        >>> bids.key_by("auction").process(Quiet()).collect().height
        4
    """

    def open(self, context: OpenContext) -> None:
        """Called once per subtask before the first row; there is no key yet, so no keyed state."""

    def on_row(self, row: In, ctx: KeyedContext[Out]) -> None:
        """Called per row; all rows of a key come to one subtask, in order."""
        raise NotImplementedError

    def on_timer(self, at: datetime, ctx: KeyedContext[Out]) -> None:
        """Called when a timer of a key fires."""
        raise NotImplementedError(f"{type(self).__name__} sets timers but has no on_timer")

    def close(self) -> None:
        """Called once per subtask at its end, also after a failure."""


class KeyedCoProcess(Generic[Left, Right, Out]):
    """A function per row of two streams that have their key in common, with state and timers per key that both share.

    Every subtask works on its own deep copy; connections and the like are made in `open`. Which of two rows of different
    streams comes first is not determined; event time is that of both together.

    Example:
        >>> class Sold(KeyedCoProcess[Bid, Total, Total]):
        ...     highest = ValueState(float)
        ...     def on_left(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        ...         self.highest.set(max(row.price, self.highest.get(default=0.0)))
        ...         ctx.event_timer(row.at + timedelta(minutes=1))
        ...     def on_right(self, row: Total, ctx: KeyedContext[Total]) -> None:
        ...         ctx.emit(row)
        ...     def on_timer(self, at: datetime, ctx: KeyedContext[Total]) -> None:
        ...         ctx.emit(Total(ctx.key, self.highest.get(default=0.0)))
        >>> closing = bids.filter(col("price") < 0).map(lambda bid: Total(bid.auction, 0.0), returns=Total)
        >>> sold = bids.key_by("auction").connect(closing.key_by("auction")).process(Sold())
        >>> sorted(set(sold.collect().rows()))
        [(1, 120.0), (2, 250.0)]
    """

    def open(self, context: OpenContext) -> None:
        """Called once per subtask before the first row; there is no key yet, so no keyed state."""

    def on_left(self, row: Left, ctx: KeyedContext[Out]) -> None:
        """Called per row of the first stream; all rows of a key come to one subtask, those of a stream in order."""
        raise NotImplementedError

    def on_right(self, row: Right, ctx: KeyedContext[Out]) -> None:
        """Called per row of the second stream."""
        raise NotImplementedError

    def on_timer(self, at: datetime, ctx: KeyedContext[Out]) -> None:
        """Called when a timer of a key fires."""
        raise NotImplementedError(f"{type(self).__name__} sets timers but has no on_timer")

    def close(self) -> None:
        """Called once per subtask at its end, also after a failure."""


class BroadcastProcess(Generic[In, Rule, Out]):
    """A function per row of a stream without key beside a broadcast one, whose rows all subtasks get.

    `on_broadcast` writes `BroadcastState`, `on_row` reads it; both may use `OperatorListState` and `UnionListState`.
    Every subtask works on its own deep copy; connections and the like are made in `open`. Which of two rows of
    different streams comes first is not determined, and may differ between subtasks; event time is that of both
    together.

    Example:
        >>> class Blocked(BroadcastProcess[Bid, Total, Total]):
        ...     blocked = BroadcastState(int, bool)
        ...     def on_broadcast(self, row: Total, ctx: Context[Total]) -> None:
        ...         self.blocked.set(row.auction, True)
        ...     def on_row(self, row: Bid, ctx: Context[Total]) -> None:
        ...         if not self.blocked.contains(row.auction):
        ...             ctx.emit(Total(row.auction, row.price))
        >>> closing = bids.filter(col("price") < 0).map(lambda bid: Total(bid.auction, 0.0), returns=Total)
        >>> bids.connect(closing.broadcast()).process(Blocked()).collect().height
        4
    """

    def open(self, context: OpenContext) -> None:
        """Called once per subtask before the first row; restored state is there already, and may be read."""

    def on_row(self, row: In, ctx: Context[Out]) -> None:
        """Called per row of the first stream, in one of the subtasks."""
        raise NotImplementedError

    def on_broadcast(self, row: Rule, ctx: Context[Out]) -> None:
        """Called per row of the broadcast stream, in every subtask: what it emits comes once per subtask."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once per subtask at its end, also after a failure."""


class KeyedBroadcastProcess(Generic[In, Rule, Out]):
    """A function per row of a stream with a key beside a broadcast one, whose rows all subtasks get.

    `on_broadcast` writes `BroadcastState` and sees no key; `on_row` and `on_timer` read it, and have state and timers of
    their key as in a `KeyedProcess`. Every subtask works on its own deep copy; connections and the like are made in
    `open`. Which of two rows of different streams comes first is not determined, and may differ between subtasks; event
    time is that of both together.

    Example:
        >>> class Alarm(KeyedBroadcastProcess[Bid, Total, Total]):
        ...     limits = BroadcastState(int, float)
        ...     highest = ValueState(float)
        ...     def on_broadcast(self, row: Total, ctx: Context[Total]) -> None:
        ...         self.limits.set(row.auction, row.price)
        ...     def on_row(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        ...         self.highest.set(max(row.price, self.highest.get(default=0.0)))
        ...         ctx.event_timer(row.at + timedelta(minutes=1))
        ...     def on_timer(self, at: datetime, ctx: KeyedContext[Total]) -> None:
        ...         if self.highest.get(default=0.0) > self.limits.get(ctx.key, default=200.0):
        ...             ctx.emit(Total(ctx.key, self.highest.get(default=0.0)))
        >>> limits = bids.filter(col("price") < 0).map(lambda bid: Total(bid.auction, 0.0), returns=Total)
        >>> alarms = bids.key_by("auction").connect(limits.broadcast()).process(Alarm())
        >>> set(alarms.collect().rows())
        {(2, 250.0)}
    """

    def open(self, context: OpenContext) -> None:
        """Called once per subtask before the first row; there is no key yet. Broadcast state may be read."""

    def on_row(self, row: In, ctx: KeyedContext[Out]) -> None:
        """Called per row of the first stream; all rows of a key come to one subtask, in order."""
        raise NotImplementedError

    def on_broadcast(self, row: Rule, ctx: Context[Out]) -> None:
        """Called per row of the broadcast stream, in every subtask: what it emits comes once per subtask."""
        raise NotImplementedError

    def on_timer(self, at: datetime, ctx: KeyedContext[Out]) -> None:
        """Called when a timer of a key fires."""
        raise NotImplementedError(f"{type(self).__name__} sets timers but has no on_timer")

    def close(self) -> None:
        """Called once per subtask at its end, also after a failure."""


BROADCAST = (BroadcastProcess, KeyedBroadcastProcess)
"""Whose second input is a broadcast stream."""
_WITHOUT_KEY = (Process, BroadcastProcess)
_BASES = (*BROADCAST, KeyedCoProcess, KeyedProcess, Process)

AnyProcess = (
    Process[Any, Any]
    | KeyedProcess[Any, Any]
    | KeyedCoProcess[Any, Any, Any]
    | BroadcastProcess[Any, Any, Any]
    | KeyedBroadcastProcess[Any, Any, Any]
)


def input_methods(process: AnyProcess) -> tuple[str, ...]:
    """The methods that are called per row, of each input one."""
    if isinstance(process, BROADCAST):
        return ("on_row", "on_broadcast")
    return ("on_left", "on_right") if isinstance(process, KeyedCoProcess) else ("on_row",)


def process_types(process: object) -> tuple[type[Any], ...]:
    """The row classes with which the class of `process` parametrizes its base: of its inputs, and the output at last.

    Raises:
        PipelineError: they are not given; the message says what to write.
    """
    cls = process if isinstance(process, type) else type(process)
    base = next(each for each in _BASES if issubclass(cls, each) or each is Process)
    found = type_arguments(cls, base)
    if found is None or not all(isinstance(argument, type) for argument in found):
        given = "Order, Payment, Alert" if base is KeyedCoProcess else "Payment, Alert"
        given = "Payment, Rule, Alert" if base in BROADCAST else given
        raise PipelineError(
            f"process: class {cls.__name__} does not say what rows it takes and gives; write for example "
            f"'class {cls.__name__}({base.__name__}[{given}])'"
        )
    return found


def type_arguments(cls: type, base: type) -> tuple[Any, ...] | None:
    """What `cls` gives for the type parameters of `base`, through any number of generic classes between."""
    for parent in _original_bases(cls):
        origin = typing.get_origin(parent)
        if origin is base:
            return typing.get_args(parent)
        between = origin or parent
        if not isinstance(between, type) or not issubclass(between, base) or between is base:
            continue
        inherited = type_arguments(between, base)
        if inherited is not None:
            given = dict(zip(getattr(between, "__parameters__", ()), typing.get_args(parent), strict=False))
            return tuple(given.get(argument, argument) for argument in inherited)
    return None


def _original_bases(cls: type) -> Iterator[Any]:
    yield from cast("tuple[Any, ...]", cls.__dict__.get("__orig_bases__", cls.__bases__))


def check_process(process: object) -> None:
    """Check what can be checked before a row flows: the base class, the row types, the kinds and types of its states.

    Raises:
        PipelineError: something is wrong; the message says what to write.
    """
    name = type(process).__name__
    if isinstance(process, type):
        raise PipelineError(f"process: give an instance, not the class: .process({process.__name__}())")
    if not isinstance(process, _BASES):
        raise PipelineError(f"process: {name} is neither a Process nor a KeyedProcess")
    process_types(process)
    for state_name, state in declared_states(process).items():
        _check_belongs(cast("AnyProcess", process), f"{name}.{state_name} is {type(state).__name__}", state)
    describe_states(cast("object", process))


def _check_belongs(process: AnyProcess, what: str, state: State) -> None:
    """Such a process can have such a state."""
    broadcast = isinstance(process, BROADCAST)
    base = ("KeyedBroadcastProcess", "BroadcastProcess") if broadcast else ("KeyedProcess", "Process")
    keyed = not isinstance(process, _WITHOUT_KEY)
    if isinstance(state, BroadcastState):
        if not broadcast:
            raise PipelineError(
                f"process: {what}, which the rows of a broadcast stream write; make {type(process).__name__} a "
                f"{'Keyed' if keyed else ''}BroadcastProcess, behind .connect(rules.broadcast())"
            )
    elif state.keyed and not keyed:
        raise PipelineError(
            f"process: {what}, which needs a key; make {type(process).__name__} a {base[0]} after key_by, or use "
            "OperatorListState"
        )
    elif keyed and not state.keyed:
        raise PipelineError(f"process: {what}, which belongs to a {base[1]}; in a {base[0]} use ListState")
