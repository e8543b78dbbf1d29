"""Process functions: the low level of the API, with state, timers and side outputs.

What users subclass (`Process`, `KeyedProcess`), and by its names what they are given
(`penstock.functions.process_contexts`) and declare (`penstock.state.declarations`). Responsible for types and messages
only: the operators in `penstock.task.operators.process` and `.batch_process` run these classes.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from penstock.errors import PipelineError
from penstock.functions.process_contexts import (
    BatchContext,
    Context,
    KeyedBatchContext,
    KeyedContext,
    OpenContext,
    OutputTag,
)
from penstock.state.declarations import (
    AggregatingState,
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

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "AggregatingState",
    "AnyProcess",
    "BatchContext",
    "BroadcastProcess",
    "BroadcastState",
    "Context",
    "KeyedBatchContext",
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
    "input_choices",
    "input_methods",
    "is_per_batch",
    "overrides",
    "process_types",
    "takes_batches",
    "type_arguments",
]

In = TypeVar("In")
Out = TypeVar("Out")
Left = TypeVar("Left")
Right = TypeVar("Right")
Rule = TypeVar("Rule")


class Process(Generic[In, Out]):
    """A function per row, or per batch of rows, with side outputs and operator state, for streams without key.

    A class has `on_row` or `on_batch`. Every subtask works on its own deep copy; connections and the like are made in
    `open`.

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

    def on_batch(self, frame: pl.DataFrame, ctx: BatchContext) -> pl.DataFrame | None:
        """Called, instead of `on_row`, with many rows at once; how many is not determined.

        Args:
            frame: the rows, with the columns of the stream; `frame.to_arrow()` is an Arrow table.
            ctx: times, and `emit` for results that are not one per row.

        Returns:
            A result for each row, in their order, with exactly the columns of the output; or None.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Called once per subtask at its end, also after a failure.

        Behind the last row of the input it is called before the last checkpoint, so that an error fails the attempt. An
        error behind a failure, or when a job is stopped or cancelled, is logged.
        """


class KeyedProcess(Generic[In, Out]):
    """A function per row, or per batch of rows, with state and timers per key.

    A class has `on_row` or `on_batch`; state and timers are the same, so a job goes from one to the other by a savepoint.
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

    def on_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> pl.DataFrame | None:
        """Called, instead of `on_row`, with rows of many keys at once, in their order; how many is not determined.

        Timers fire between the rows as if they came one by one: with `on_timer` no two rows of a key come together
        between which event time has moved.

        Args:
            frame: the rows, with the columns of the stream; `frame.to_arrow()` is an Arrow table.
            ctx: keys, times and timers, and `emit` for results that are not one per row.

        Returns:
            A result for each row, in their order, with exactly the columns of the output; or None.

        Example:
            >>> class Sums(KeyedProcess[Bid, Total]):
            ...     sum = ValueState(float)
            ...     def on_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> pl.DataFrame:
            ...         before = self.sum.get_many(ctx.keys, default=0.0)
            ...         sums = frame.select("auction", price=before + pl.col("price").cum_sum().over("auction"))
            ...         self.sum.set_many(ctx.keys, sums["price"])
            ...         return sums
            >>> bids.key_by("auction").process(Sums()).collect().rows()
            [(1, 50.0), (2, 250.0), (1, 170.0), (2, 330.0)]
        """
        raise NotImplementedError

    def on_timer(self, at: datetime, ctx: KeyedContext[Out]) -> None:
        """Called when a timer of a key fires."""
        raise NotImplementedError(f"{type(self).__name__} sets timers but has no on_timer")

    def close(self) -> None:
        """Called once per subtask at its end, also after a failure.

        Behind the last row of the input it is called before the last checkpoint, so that an error fails the attempt. An
        error behind a failure, or when a job is stopped or cancelled, is logged.
        """


class KeyedCoProcess(Generic[Left, Right, Out]):
    """A function of two streams that have their key in common, with state and timers per key that both share.

    A class has `on_left` or `on_left_batch`, and `on_right` or `on_right_batch`, as suits each stream; state and timers
    are the same, so a job goes from one to the other by a savepoint. Every subtask works on its own deep copy;
    connections and the like are made in `open`. Which of two rows of different streams comes first is not determined;
    event time is that of both together.

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

    def on_left_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> pl.DataFrame | None:
        """Called, instead of `on_left`, with many rows of the first stream at once; otherwise as `KeyedProcess.on_batch`.

        Example:
            >>> class Capped(KeyedCoProcess[Bid, Bid, Total]):
            ...     limit = ValueState(float)
            ...     def on_left_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> pl.DataFrame:
            ...         limits = self.limit.get_many(ctx.keys, default=100.0)
            ...         return frame.select("auction", price=pl.min_horizontal("price", limits))
            ...     def on_right(self, row: Bid, ctx: KeyedContext[Total]) -> None:
            ...         self.limit.set(row.price)
            >>> no_limits = bids.filter(col("price") < 0)
            >>> capped = bids.key_by("auction").connect(no_limits.key_by("auction")).process(Capped())
            >>> capped.collect().rows()
            [(1, 50.0), (2, 100.0), (1, 100.0), (2, 80.0)]
        """
        raise NotImplementedError

    def on_right_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> pl.DataFrame | None:
        """Called, instead of `on_right`, with many rows of the second stream at once."""
        raise NotImplementedError

    def on_timer(self, at: datetime, ctx: KeyedContext[Out]) -> None:
        """Called when a timer of a key fires."""
        raise NotImplementedError(f"{type(self).__name__} sets timers but has no on_timer")

    def close(self) -> None:
        """Called once per subtask at its end, also after a failure.

        Behind the last row of the input it is called before the last checkpoint, so that an error fails the attempt. An
        error behind a failure, or when a job is stopped or cancelled, is logged.
        """


class BroadcastProcess(Generic[In, Rule, Out]):
    """A function per row, or batch of rows, of a stream without key beside a broadcast one, whose rows all subtasks get.

    A class has `on_row` or `on_batch`. `on_broadcast` writes `BroadcastState`, the other method reads it; both may use
    `OperatorListState` and `UnionListState`. Every subtask works on its own deep copy; connections and the like are made
    in `open`. Which of two rows of different streams comes first is not determined, and may differ between subtasks;
    event time is that of both together.

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

    def on_batch(self, frame: pl.DataFrame, ctx: BatchContext) -> pl.DataFrame | None:
        """Called, instead of `on_row`, with many rows of the first stream at once; otherwise as `Process.on_batch`.

        All of them see the broadcast state as it is; the rows that write it come between batches.
        """
        raise NotImplementedError

    def on_broadcast(self, row: Rule, ctx: Context[Out]) -> None:
        """Called per row of the broadcast stream, in every subtask: what it emits comes once per subtask."""
        raise NotImplementedError

    def close(self) -> None:
        """Called once per subtask at its end, also after a failure.

        Behind the last row of the input it is called before the last checkpoint, so that an error fails the attempt. An
        error behind a failure, or when a job is stopped or cancelled, is logged.
        """


class KeyedBroadcastProcess(Generic[In, Rule, Out]):
    """A function per row, or batch of rows, of a stream with a key beside a broadcast one, whose rows all subtasks get.

    A class has `on_row` or `on_batch`. `on_broadcast` writes `BroadcastState` and sees no key; the other methods read it,
    and have state and timers of keys as in a `KeyedProcess`. Every subtask works on its own deep copy; connections and
    the like are made in `open`. Which of two rows of different streams comes first is not determined, and may differ
    between subtasks; event time is that of both together.

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

    def on_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> pl.DataFrame | None:
        """Called, instead of `on_row`, with many rows of the first stream at once; otherwise as `KeyedProcess.on_batch`.

        All of them see the broadcast state as it is; the rows that write it come between batches.

        Example:
            >>> class Over(KeyedBroadcastProcess[Bid, Bid, Total]):
            ...     limits = BroadcastState(int, float)
            ...     def on_batch(self, frame: pl.DataFrame, ctx: KeyedBatchContext) -> None:
            ...         limit = frame["auction"].replace_strict(dict(self.limits.items()), default=100.0)
            ...         over = frame["price"] > limit
            ...         ctx.emit(frame.filter(over).select("auction", "price"), rows=over)
            ...     def on_broadcast(self, row: Bid, ctx: Context[Total]) -> None:
            ...         self.limits.set(row.auction, row.price)
            >>> no_limits = bids.filter(col("price") < 0).broadcast()
            >>> bids.key_by("auction").connect(no_limits).process(Over()).collect().rows()
            [(2, 250.0), (1, 120.0)]
        """
        raise NotImplementedError

    def on_broadcast(self, row: Rule, ctx: Context[Out]) -> None:
        """Called per row of the broadcast stream, in every subtask: what it emits comes once per subtask."""
        raise NotImplementedError

    def on_timer(self, at: datetime, ctx: KeyedContext[Out]) -> None:
        """Called when a timer of a key fires."""
        raise NotImplementedError(f"{type(self).__name__} sets timers but has no on_timer")

    def close(self) -> None:
        """Called once per subtask at its end, also after a failure.

        Behind the last row of the input it is called before the last checkpoint, so that an error fails the attempt. An
        error behind a failure, or when a job is stopped or cancelled, is logged.
        """


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


def takes_batches(process: object) -> bool:
    """Whether its class has a method that takes batches."""
    return isinstance(process, _BASES) and any(is_per_batch(method) for method in input_methods(process))


def is_per_batch(method: str) -> bool:
    """Whether a method of an input, by its name, is called per batch."""
    return method.endswith("_batch")


def overrides(process: AnyProcess, method: str) -> bool:
    """Whether its class has a method of its own by this name."""
    base = next(each for each in _BASES if isinstance(process, each))
    return getattr(type(process), method) is not getattr(base, method)


def input_methods(process: AnyProcess) -> tuple[str, ...]:
    """The methods that are called with rows, of each input one; that per row if a class has none for it."""
    return tuple(
        next((method for method in reversed(methods) if overrides(process, method)), methods[0])
        for methods in input_choices(process)
    )


def input_choices(process: AnyProcess) -> tuple[tuple[str, ...], ...]:
    """Of each input the methods of which a class has one: that per row, and that per batch."""
    if isinstance(process, KeyedCoProcess):
        return ("on_left", "on_left_batch"), ("on_right", "on_right_batch")
    rows = ("on_row", "on_batch")
    return (rows, ("on_broadcast",)) if isinstance(process, BROADCAST) else (rows,)


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
    _check_flavour(process)
    for state_name, state in declared_states(process).items():
        _check_belongs(cast("AnyProcess", process), f"{name}.{state_name} is {type(state).__name__}", state)
    describe_states(cast("object", process))


def _check_flavour(process: AnyProcess) -> None:
    """Each input comes by rows or by batches, not both."""
    name = type(process).__name__
    for methods in input_choices(process):
        if len(methods) == 2 and all(overrides(process, method) for method in methods):
            row, batch = methods
            raise PipelineError(
                f"process: class {name} has both {row} and {batch}; keep one: {batch} is called instead of {row}"
            )
    if isinstance(process, KeyedCoProcess) and hasattr(process, "on_batch"):
        raise PipelineError(
            f"process: class {name} has on_batch, which nobody calls: its rows are of two streams; write on_left_batch "
            "and on_right_batch"
        )


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
