"""Watermark strategies: how the progress of event time follows from the rows of a split.

`bounded_out_of_orderness` is what `max_out_of_orderness=` of every source stands for; `periodic` and `punctuated` are
for users whose data says more. They correspond to Flink's WatermarkStrategy and WatermarkGenerator. The watermark of a
generator never goes back, whatever a user's function returns.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from penstock.connectors.base import WatermarkGenerator, WatermarkMoves, WatermarkStrategy
from penstock.core.times import Duration, duration_us, format_duration, from_micros, to_micros
from penstock.errors import PipelineError, UserCodeError, described
from penstock.types import attribute_of, is_row_class

if TYPE_CHECKING:
    import polars as pl


# -- bounded out-of-orderness -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BoundedOutOfOrderness(WatermarkStrategy):
    """Rows come at most `bound_us` later than the newest before them."""

    bound_us: int

    @property
    def lag_us(self) -> int:
        """See `WatermarkStrategy.lag_us`."""
        return self.bound_us

    @property
    def undetermined(self) -> str:
        return ""

    @property
    def in_order(self) -> bool:
        """See `WatermarkStrategy.in_order`."""
        return self.bound_us == 0

    def generator(self) -> WatermarkGenerator:
        """See `WatermarkStrategy.generator`."""
        return _BoundedGenerator(self.bound_us)

    def describe(self) -> str:
        """See `WatermarkStrategy.describe`."""
        return f"out of order by at most {format_duration(self.bound_us)}"


def bounded_out_of_orderness(bound_us: int) -> BoundedOutOfOrderness:
    """The watermark is the newest event time minus the bound minus one microsecond.

    One microsecond, because a watermark says that no later row is at or below it (Flink's
    BoundedOutOfOrdernessWatermarks subtracts a millisecond, its unit, for the same reason). The time of a row counts
    before the row itself is looked at, so a timer that is due fires before the row that shows that it is: in ordered
    input every timer fires exactly between the rows that it lies between.
    """
    return BoundedOutOfOrderness(bound_us)


class _BoundedGenerator:
    def __init__(self, bound_us: int) -> None:
        self._bound_us = bound_us
        self._newest: int | None = None

    def on_batch(self, event_times: pl.Series, frame: pl.DataFrame) -> WatermarkMoves | None:
        if not len(event_times):
            return None
        import numpy as np
        import polars as pl

        newest = np.maximum.accumulate(event_times.to_numpy())  # half of what `cum_max` takes, as no time is null
        if self._newest is not None and newest[0] < self._newest:
            np.maximum(newest, self._newest, out=newest)
        self._newest = int(newest[-1])
        newest -= self._bound_us + 1
        return WatermarkMoves(pl.Series(newest), self.on_period())

    def on_period(self) -> int | None:
        return None if self._newest is None else self._newest - self._bound_us - 1

    def state(self) -> Any:
        return self._newest

    def restore(self, state: Any) -> None:
        self._newest = state


# -- periodic -----------------------------------------------------------------------------------------------------------


class PeriodicWatermarks(ABC):
    """A user's generator for `periodic`: looks at every row, is asked now and then. One instance per split.

    Example:
        >>> class Heartbeats(PeriodicWatermarks):
        ...     newest = None
        ...     def on_row(self, row: Bid, event_time: datetime) -> None:
        ...         if "web" in row.tags:
        ...             self.newest = event_time
        ...     def on_period(self) -> datetime | None:
        ...         return self.newest
        >>> read = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at", watermarks=periodic(Heartbeats)))
        >>> read.key_by("auction").window(tumbling("1m")).agg(bids=count()).collect().height
        3
    """

    @abstractmethod
    def on_row(self, row: Any, event_time: datetime) -> None:
        """A row of the split, in order."""

    @abstractmethod
    def on_period(self) -> datetime | None:
        """The watermark: no later row has an event time at or before it. None if nothing is known yet."""

    def state(self) -> Any:
        """A JSON value from which `restore` continues after a restart."""
        return None

    def restore(self, state: Any) -> None:
        """Continue from what `state` returned."""


@dataclass(frozen=True, slots=True)
class Periodic(WatermarkStrategy):
    """What `periodic` declares."""

    function: Callable[[datetime], datetime | None] | type[PeriodicWatermarks]
    period_us: int
    row_type: type[Any] | None = None

    @property
    def every_us(self) -> int:
        """See `WatermarkStrategy.every_us`."""
        return self.period_us

    def generator(self) -> WatermarkGenerator:
        """See `WatermarkStrategy.generator`."""
        if isinstance(self.function, type):
            return _PeriodicRowsGenerator(self.function(), _needed(self.row_type))
        return _PeriodicGenerator(self.function)

    def describe(self) -> str:
        """See `WatermarkStrategy.describe`."""
        return f"periodic by {_name(self.function)} every {format_duration(self.period_us)}"


def periodic(
    function: Callable[[datetime], datetime | None] | type[PeriodicWatermarks], *, every: Duration = "200ms"
) -> Periodic:
    """Watermarks that a function gives at regular intervals.

    Args:
        function: gets the newest event time of the split so far and returns the watermark (no later row has an event
            time at or before it), or None; or a subclass of `PeriodicWatermarks`, which sees every row.
        every: how often it is asked, first when so much time has passed since the start.

    Example:
        >>> def behind(newest: datetime) -> datetime:
        ...     return newest - timedelta(minutes=5)
        >>> marks = periodic(behind, every="1s")
        >>> read = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at", watermarks=marks))
        >>> read.key_by("auction").window(tumbling("1m")).agg(bids=count()).collect().height
        3
    """
    if not callable(function) or (isinstance(function, type) and not issubclass(function, PeriodicWatermarks)):
        raise PipelineError(f"periodic: need a function or a subclass of PeriodicWatermarks, got {function!r}")
    if inspect.isabstract(function):
        raise PipelineError(f"periodic: {_name(function)} lacks on_row or on_period; give a subclass that has both")
    return Periodic(function, duration_us(every, "periodic: every", positive=True))


class _Monotonic:
    """Remembers the highest watermark a user's code gave."""

    def __init__(self) -> None:
        self._highest: int | None = None

    def _raised(self, moment: datetime | None, where: str) -> int | None:
        if moment is not None:
            if not isinstance(moment, datetime):
                raise UserCodeError(f"{where}: must return a datetime or None, got {moment!r}")
            try:
                watermark = to_micros(moment)
            except PipelineError as error:
                raise UserCodeError(f"{where}: {error}") from error
            self._highest = watermark if self._highest is None else max(self._highest, watermark)
        return self._highest


class _PeriodicGenerator(_Monotonic):
    def __init__(self, function: Callable[[datetime], datetime | None]) -> None:
        super().__init__()
        self._function = function
        self._newest: int | None = None

    def on_batch(self, event_times: pl.Series, frame: pl.DataFrame) -> WatermarkMoves | None:
        newest = cast("int | None", event_times.max())
        if newest is not None and (self._newest is None or newest > self._newest):
            self._newest = newest
        return None

    def on_period(self) -> int | None:
        if self._newest is None:
            return self._highest
        where = f"periodic: {_name(self._function)}"
        return self._raised(_called(where, self._function, from_micros(self._newest)), where)

    def state(self) -> Any:
        return {"newest": self._newest, "highest": self._highest}

    def restore(self, state: Any) -> None:
        if state is not None:
            self._newest, self._highest = state["newest"], state["highest"]


class _PeriodicRowsGenerator(_Monotonic):
    def __init__(self, generator: PeriodicWatermarks, row_type: type[Any]) -> None:
        super().__init__()
        self._generator = generator
        self._row_type = row_type
        self._where = f"periodic: {type(generator).__name__}"

    def on_batch(self, event_times: pl.Series, frame: pl.DataFrame) -> WatermarkMoves | None:
        on_row = self._generator.on_row
        for row, event_time in zip(_rows(frame, self._row_type), event_times, strict=True):
            _called(f"{self._where}.on_row", on_row, row, from_micros(event_time))
        return None

    def on_period(self) -> int | None:
        where = f"{self._where}.on_period"
        return self._raised(_called(where, self._generator.on_period), where)

    def state(self) -> Any:
        return {"user": self._generator.state(), "highest": self._highest}

    def restore(self, state: Any) -> None:
        if state is not None:
            self._generator.restore(state["user"])
            self._highest = state["highest"]


# -- punctuated ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Punctuated(WatermarkStrategy):
    """What `punctuated` declares."""

    function: Callable[[Any], datetime | None]
    row_type: type[Any] | None = None

    def generator(self) -> WatermarkGenerator:
        """See `WatermarkStrategy.generator`."""
        return _PunctuatedGenerator(self.function, _needed(self.row_type))

    def describe(self) -> str:
        """See `WatermarkStrategy.describe`."""
        return f"punctuated by {_name(self.function)}"


def punctuated(function: Callable[[Any], datetime | None]) -> Punctuated:
    """Watermarks that rows carry.

    Args:
        function: gets every row and returns the watermark it announces (no later row has an event time at or before
            it), or None.

    Example:
        >>> def announced(bid: Bid) -> datetime | None:
        ...     return bid.at if "web" in bid.tags else None
        >>> read = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at", watermarks=punctuated(announced)))
        >>> read.key_by("auction").window(tumbling("1m")).agg(bids=count()).collect().height
        3
    """
    if not callable(function):
        raise PipelineError(f"punctuated: need a function of a row, got {function!r}")
    return Punctuated(function)


class _PunctuatedGenerator(_Monotonic):
    def __init__(self, function: Callable[[Any], datetime | None], row_type: type[Any]) -> None:
        super().__init__()
        self._function = function
        self._row_type = row_type

    def on_batch(self, event_times: pl.Series, frame: pl.DataFrame) -> WatermarkMoves | None:
        import polars as pl

        where = f"punctuated: {_name(self._function)}"
        before: list[int | None] = []
        for row in _rows(frame, self._row_type):
            before.append(self._highest)  # what a row announces holds behind it: it may announce its own time
            self._raised(_called(where, self._function, row), where)
        return None if self._highest is None else WatermarkMoves(pl.Series(before, dtype=pl.Int64), self._highest)

    def on_period(self) -> int | None:
        return None

    def state(self) -> Any:
        return self._highest

    def restore(self, state: Any) -> None:
        self._highest = state


# -- rows for user code -------------------------------------------------------------------------------------------------


def for_rows(strategy: WatermarkStrategy, row_type: type[Any]) -> WatermarkStrategy:
    """The strategy with the class whose instances its user's function gets; sources call it."""
    if isinstance(strategy, Periodic | Punctuated) and strategy.row_type is None:
        return replace(strategy, row_type=row_type)
    return strategy


def _needed(row_type: type[Any] | None) -> type[Any]:
    if row_type is None:
        raise PipelineError("watermarks by rows need a source that knows the class of its rows: give it with schema=")
    return row_type


def _rows(frame: pl.DataFrame, row_type: type[Any]) -> Iterator[Any]:
    """Row objects, one by one. Columns of the runtime's own are left out."""
    import msgspec
    import polars as pl

    visible = frame.select(name for name in frame.columns if not name.startswith("__"))
    if any(isinstance(kind, pl.List | pl.Struct) for kind in visible.dtypes) and is_row_class(row_type):
        builtin = (bytes, datetime)
        return (msgspec.convert(row, row_type, builtin_types=builtin) for row in visible.iter_rows(named=True))
    names = [attribute_of(row_type, name) for name in visible.columns]
    return (row_type(**dict(zip(names, row, strict=True))) for row in visible.iter_rows())


def _called(where: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        raise UserCodeError(f"{where} raised {described(error)}") from error


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
