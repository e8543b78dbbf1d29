"""Process functions: rows one by one through code of the user, with state, timers and side outputs.

The operators keep the path of a row thin: columns become objects in small chunks, the context is one reused object, and
what is emitted is gathered and becomes a frame once per batch. Timers follow Flink's InternalTimerService: an event
timer fires when the watermark reaches its time, in order of time; one that is set at or before the current watermark
fires in the same advance if it is set by a timer, at the next one if it is set by a row.

Time moves between the rows of a batch, as far as they carry it (`penstock.core.batches.WATERMARK`): a timer fires before
the first row whose watermark has reached it, however rows are batched. What it sees as the watermark is its own time, for
event time passes through every moment.

The end of input is the maximum watermark, at which every timer is due: in Flink one that renews itself then fires for
ever. Here a key's timers that are set while the end is being fired fire `RENEWALS_AT_THE_END` times altogether. That is
enough for those that look whether something has happened since and wait once more; what is set beyond that is dropped,
with a warning.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, cast

import numpy as np
import polars as pl
import structlog

from penstock.core.batches import EVENT_TIME, WATERMARK, with_watermarks
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK, from_micros, to_micros
from penstock.errors import PenstockError, PipelineError, UserCodeError, described, nearest, shown
from penstock.functions.process_contexts import KeyedContext
from penstock.functions.process_functions import OutputTag, check_process, input_methods
from penstock.plan.logical import Node
from penstock.plan.operations.process_rows import ProcessRows
from penstock.state.columns import key_values
from penstock.state.declarations import declared_states, describe_states
from penstock.state.hashing import key_group_of
from penstock.state.keyed_backend import warn_left_behind
from penstock.state.keyed_state import KeyCursor
from penstock.state.operator_state import OperatorStates
from penstock.task.keyed_states import KeyedBackend, keyed_backend
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, PartwiseOperator, RestoredState
from penstock.task.operators.progress import GroupWatermarks
from penstock.task.operators.rowwise import chunks_of, raised
from penstock.task.rows import RowReader, RowWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.protocol.messages import OperatorMetrics


_log = structlog.get_logger("penstock.process")

FLUSH_ROWS: Final = 65_536
FIRINGS_AT_ONCE: Final = 1_000
"""Timers that fire before others may run."""
RENEWALS_AT_THE_END: Final = 100
_LAST_MOMENT: Final = datetime.max.replace(tzinfo=UTC)
FIRST_MOMENT_US: Final = to_micros(datetime.min.replace(tzinfo=UTC))


@dataclass
class Emitted:
    """Rows that were emitted and are no frame yet, with their event times."""

    take: Callable[[Any], Any]
    """Makes of a row what stays as it is, whatever the function does to the row later."""
    rows: list[Any] = field(default_factory=list[Any])
    times: list[int | None] = field(default_factory=list["int | None"])
    marks: list[int] = field(default_factory=list[int])
    """The watermark at each, as far as rows are to carry it."""


@dataclass(frozen=True)
class _Place:
    """What `open` is given."""

    subtask: int
    parallelism: int


class _EndOfTime:
    """The timers that are set while the end of input is being fired."""

    def __init__(self) -> None:
        self.renewed: set[tuple[Any, int]] = set()
        self.dropped = 0
        self._fired: Counter[Any] = Counter()

    def drops(self, key: Any, at: int) -> bool:
        """Whether this timer is one too many; counts it."""
        if (key, at) not in self.renewed:
            return False
        self.renewed.remove((key, at))
        self._fired[key] += 1
        over = self._fired[key] > RENEWALS_AT_THE_END
        self.dropped += over
        return over


def timer_us(at: datetime) -> int:
    """The time of a timer; what is none is the function's own error, which is told with its row."""
    try:
        return to_micros(at)
    except PipelineError as error:
        raise ValueError(f"a timer is set for a moment: {error}") from None


def _untaken(row: Any) -> NoReturn:
    raise AssertionError(f"{row!r} was emitted before the operator was opened")


_CALLED_ELSEWHERE: Final = {
    "collect": "emit", "forward": "emit", "send": "emit", "output": "emit_to", "current_key": "key",
    "get_current_key": "key", "timer_service": "event_timer", "register_event_time_timer": "event_timer",
    "register_processing_time_timer": "processing_timer", "current_watermark": "watermark",
}  # fmt: skip
"""What Flink, Kafka Streams and others call parts of a context."""


class Run(KeyCursor):
    """The context of a call: `Context`, and with timers `KeyedContext`. One object for all calls of an operator."""

    __slots__ = (
        "at_end", "carries", "main", "mark", "metrics", "now_us", "sides", "time", "time_domain", "timers",
        "watermark_us",
    )  # fmt: skip

    def __init__(self, tags: frozenset[str]) -> None:
        super().__init__()
        self.main = Emitted(_untaken)
        self.sides = {tag: Emitted(_untaken) for tag in tags}
        self.carries = False
        """Whether what is emitted now is to carry the watermark on."""
        self.mark = MIN_WATERMARK
        """The one that it carries: of rows emitted by a timer one that does not make them late."""
        self.time: int | None = None
        self.time_domain: Literal["event", "processing"] | None = None
        self.at_end: _EndOfTime | None = None
        self.watermark_us = MIN_WATERMARK
        self.now_us: Callable[[], int]
        self.metrics: OperatorMetrics
        self.timers: KeyedBackend

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or name in self.__slots__:
                raise AttributeError(name)
            known = [each for each in dir(KeyedContext) if not each.startswith("_")]
            meant = _CALLED_ELSEWHERE.get(name)
            advice = nearest(name, known) if meant is None else f"did you mean {meant!r}?"
            raise AttributeError(f"a context has no {name!r}; {advice}")

    def emit(self, row: Any) -> None:
        main = self.main
        main.rows.append(main.take(row))
        main.times.append(self.time)
        if self.carries:
            main.marks.append(self.mark)

    def emit_to(self, tag: OutputTag[Any], row: Any) -> None:
        side = self.sides.get(tag.name)
        if side is not None:  # a side output that nobody reads costs nothing
            side.rows.append(side.take(row))
            side.times.append(self.time)
            if self.carries:
                side.marks.append(self.mark)

    def drain(self) -> Iterator[tuple[str | None, Emitted]]:
        """What was emitted to each side output, or with None to the main one; afterwards there is nothing."""
        main, self.main = self.main, Emitted(self.main.take)
        yield from [(None, main)] if main.rows else []
        for tag, emitted in self.sides.items():
            if emitted.rows:
                self.sides[tag] = Emitted(emitted.take)
                yield tag, emitted

    def carry(self) -> None:
        """From here on, until all is handed on: what was emitted before is not behind its watermark."""
        if not self.carries:
            self.carries = True
            for emitted in (self.main, *self.sides.values()):
                emitted.marks = [MIN_WATERMARK] * len(emitted.rows)

    def move_to(self, time: int) -> None:
        """What is emitted from here on has this event time."""
        self.time = time
        if time <= self.mark:
            self.carry()

    @property
    def timestamp(self) -> datetime | None:
        return None if self.time is None else from_micros(self.time)

    @property
    def watermark(self) -> datetime | None:
        if self.watermark_us < FIRST_MOMENT_US:  # also where a row is of the first moments that a datetime can hold
            return None
        return _LAST_MOMENT if self.watermark_us == MAX_WATERMARK else from_micros(self.watermark_us)

    @property
    def processing_time(self) -> datetime:
        return from_micros(self.now_us())

    def event_timer(self, at: datetime) -> None:
        time = timer_us(at)
        self.timers.event_timers.set(self.key, time)
        if self.at_end is not None:
            self.at_end.renewed.add((self.key, time))

    def processing_timer(self, at: datetime) -> None:
        self.timers.processing_timers.set(self.key, timer_us(at))

    def delete_event_timer(self, at: datetime) -> None:
        self.timers.event_timers.delete(self.key, timer_us(at))

    def delete_processing_timer(self, at: datetime) -> None:
        self.timers.processing_timers.delete(self.key, timer_us(at))


class ProcessBase(PartwiseOperator):
    """What all kinds share: the user's object, reading rows, writing what was emitted."""

    def __init__(self, node: Node) -> None:
        process = cast("ProcessRows", node.operation).process
        check_process(process)
        self._declared = process
        self._operator = node.operator_id
        self._methods = input_methods(process)
        """Of each input the one that takes its rows."""
        self._name = type(process).__name__
        self._where = f"{node.verb} ({node.operator_id}): {self._name}"
        self._event_time = node.event_time
        self._readers = [RowReader(source.schema, source.row_type) for source in node.inputs]
        self._writer = RowWriter(node.schema, node.row_type, f"{self._where}, emit", emitted=True)
        self._side_writers = {
            tag: RowWriter(schema, None, f"{self._where}, emit_to({tag!r})", emitted=True)
            for tag, schema in node.sides.items()
        }
        self._process: Any = None
        self._opened = False
        self._carries = False
        """Whether all that is emitted carries the watermark: only what is behind it does otherwise."""
        self._run = Run(frozenset(node.sides))

    def _own_copy(self) -> Any:
        try:
            return copy.deepcopy(self._declared)
        except Exception as error:  # whatever copying the user's attributes raises
            raise PipelineError(
                f"{self._where} cannot be copied for a subtask ({described(error)}); create connections, "
                "locks, files and the like in open(), not in __init__"
            ) from error

    def _warn_of_lists(self, restored: RestoredState) -> None:
        """Say which lists and broadcast states of a snapshot nobody declares any more."""
        found = {*restored.lists, *restored.unions, *restored.broadcast}
        warn_left_behind(self._operator, found - declared_states(self._declared).keys())

    def _open_process(self, context: OperatorContext) -> None:
        self._carries = self._run.carries = context.carries_watermarks
        self._run.now_us = context.now_us
        self._run.metrics = context.metrics
        self._run.main.take = self._writer.copied
        for tag, emitted in self._run.sides.items():
            emitted.take = self._side_writers[tag].copied
        self._opened = True
        try:
            self._process.open(_Place(context.subtask, context.parallelism))
        except PenstockError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise UserCodeError(f"{self._where}.open raised {described(error)}") from error

    def _refuse_given(self, method: str, given: object) -> NoReturn:
        """A row that is returned goes nowhere, which nobody means."""
        gave = f"{self._where}.{method} returned {shown(given):.80}"
        raise UserCodeError(f"{gave}, and nobody takes it; rows are sent on with ctx.emit(row)")

    def _times_of(self, frame: pl.DataFrame) -> list[int | None]:
        return frame[EVENT_TIME].to_list() if EVENT_TIME in frame.columns else [None] * frame.height

    def _flush(self, output: Output) -> None:
        for tag, emitted in self._run.drain():
            if tag is None:
                output.rows(self._frame_of(emitted, self._writer))
            else:
                output.side(tag, self._frame_of(emitted, self._side_writers[tag]))

    def _flush_last(self, output: Output) -> None:
        """Hand on the last of what rows or a watermark made the function emit."""
        self._flush(output)
        self._run.carries = self._carries

    def _frame_of(self, emitted: Emitted, writer: RowWriter) -> pl.DataFrame:
        if not self._event_time:
            return writer.frame_of_copies(emitted.rows)
        frame = writer.frame_of_copies(emitted.rows, cast("list[int]", emitted.times))
        if not emitted.marks:
            return frame
        marks = pl.Series(emitted.marks, dtype=pl.Int64)
        return with_watermarks(frame, marks, MIN_WATERMARK, MAX_WATERMARK, every_row=self._carries)

    def end(self) -> None:
        self._close_process()

    def close(self) -> None:
        self._close_process()

    def _close_process(self) -> None:
        if not self._opened:
            return
        self._opened = False
        try:
            self._process.close()
        except PenstockError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise UserCodeError(f"{self._where}.close raised {described(error)}") from error


def carried_marks(frame: pl.DataFrame, run: Run) -> list[int]:
    """The watermark that each row carries; what rows behind it make the function emit is to carry it on."""
    return carried_watermarks(frame, run).to_list() if WATERMARK in frame.columns else [MIN_WATERMARK] * frame.height


def carried_watermarks(frame: pl.DataFrame, run: Run) -> pl.Series:
    """The same as a column, of rows that carry it."""
    carried = frame[WATERMARK]
    if carried.null_count():
        carried = carried.fill_null(MIN_WATERMARK)
    if (frame[EVENT_TIME] <= carried).any():
        run.carry()
    return carried


class ProcessOperator(ProcessBase):
    """A `Process`: rows without key, operator state."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._states = OperatorStates(node.operator_id, declared_states(self._declared))

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._process = self._own_copy()
        for name, bound in self._states.bound.items():
            object.__setattr__(self._process, name, bound)
        if restored is not None:
            self._warn_of_lists(restored)
            self._states.restore(restored)
            self._run.watermark_us = self._run.mark = restored.uniform_watermark() or MIN_WATERMARK
        self._open_process(context)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        self.take(self._processed(frame, output))

    def _processed(self, frame: pl.DataFrame, output: Output) -> Iterator[None]:
        """Take rows; others may run where it yields."""
        run, on_row, row = self._run, self._process.on_row, None
        whole = iter(carried_marks(frame, run))
        try:
            for turn, chunk in enumerate(chunks_of(frame)):
                if turn:
                    yield
                marks = islice(whole, chunk.height)
                for run.time, carried, row in zip(
                    self._times_of(chunk), marks, self._readers[0].rows(chunk), strict=True
                ):
                    if carried > run.watermark_us:
                        run.watermark_us = run.mark = carried
                    if (given := on_row(row, run)) is not None:
                        self._refuse_given("on_row", given)
                if len(run.main.rows) >= FLUSH_ROWS:
                    self._flush(output)
        except PenstockError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise raised(f"{self._where}.on_row", row, error) from error
        self._flush_last(output)

    def advance(self, watermark: int, output: Output) -> None:
        self.finish()
        self._run.watermark_us = self._run.mark = max(self._run.watermark_us, watermark)
        super().advance(watermark, output)

    def snapshot(self) -> OperatorSnapshot | None:
        self.finish()
        if not (self._states.bound or self._event_time):
            return None  # with event time it is named without any state, and so told how far that had come
        return OperatorSnapshot(lists=self._states.encoded(unions=False), unions=self._states.encoded(unions=True))


class KeyedProcessOperator(ProcessBase):
    """A `KeyedProcess` or `KeyedCoProcess`: keyed state and timers."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        source = node.inputs[0]
        if not source.keys:
            raise PipelineError(
                f"{self._where} is a KeyedProcess on a stream without key; write .key_by(...) before it"
            )
        self._keys = source.schema.select(source.keys, "process")
        self._keys_of = [each.schema.select(each.keys, "process") for each in node.inputs]
        """Of each input, by the names that they have there."""
        self._kinds = [field.type for field in self._keys]
        self._backend: KeyedBackend
        self._watermarks: GroupWatermarks
        self._firing: Iterator[tuple[Any, int]] | None = None
        """The rest of the timers that are due."""
        self._max_parallelism = 1

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._max_parallelism = context.max_parallelism
        self._backend = keyed_backend(self._operator, self._keys, self._run, context)
        self._run.timers = self._backend
        self._process = self._own_copy()
        descriptions = describe_states(self._declared)
        for name, declaration in declared_states(self._declared).items():
            if declaration.keyed:
                object.__setattr__(self._process, name, self._backend.bind(declaration, descriptions[name]))
        self._watermarks = GroupWatermarks(context, self._keys.names, restored)
        self._run.watermark_us = self._run.mark = self._watermarks.current
        if restored is not None:
            self._warn_of_lists(restored)
            self._backend.restore(restored.keyed)
        self._open_process(context)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        self.process_input(0, frame, output)

    def process_input(self, number: int, frame: pl.DataFrame, output: Output) -> None:
        self.take(self._processed(number, frame, output))

    def _processed(self, number: int, frame: pl.DataFrame, output: Output) -> Iterator[None]:
        """Take the rows of an input; others may run where it yields."""
        method, keys = self._methods[number], self._keys_of[number]
        run, on_row, row = self._run, getattr(self._process, method), None
        timed = WATERMARK in frame.columns
        whole = iter(carried_marks(frame, run) if timed or self._watermarks.uneven else ())
        try:
            for turn, chunk in enumerate(chunks_of(frame)):
                if turn:
                    yield
                values = key_values(chunk, keys)
                self._backend.learn(chunk.select(keys.names), values)
                rows = (values, self._times_of(chunk), self._rows_of(number, chunk))
                if self._watermarks.uneven:
                    marks = np.broadcast_to(self._watermarks.at_rows(chunk, keys.names), chunk.height).tolist()
                    carrying = islice(whole, chunk.height)
                    for key, time, row, mark, carried in zip(*rows, marks, carrying, strict=True):
                        if carried > run.mark:
                            yield from self._fired_between(carried, output)
                            run.mark = carried
                        run.key, run.time, run.watermark_us = key, time, mark
                        if (given := on_row(row, run)) is not None:
                            self._refuse_given(method, given)
                elif timed:
                    timers, reached = self._backend.event_timers, run.mark
                    run.watermark_us = reached
                    for key, time, row, carried in zip(*rows, islice(whole, chunk.height), strict=True):
                        if carried > reached:
                            if timers.earliest <= carried:
                                yield from self._fired_between(carried, output)
                            reached = run.mark = run.watermark_us = carried
                        run.key = key
                        run.time = time
                        if (given := on_row(row, run)) is not None:
                            self._refuse_given(method, given)
                else:
                    for run.key, run.time, row in zip(*rows, strict=True):
                        if (given := on_row(row, run)) is not None:
                            self._refuse_given(method, given)
                if len(run.main.rows) >= FLUSH_ROWS:
                    self._flush(output)
        except PenstockError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise raised(f"{self._where}.{method}", row, error) from error
        self._flush_last(output)
        self._backend.maintain(frame.height)

    def _rows_of(self, number: int, chunk: pl.DataFrame) -> Iterable[Any]:
        """What the process is given of these rows of an input, one by one."""
        return self._readers[number].rows(chunk)

    def _fired_between(self, watermark: int, output: Output) -> Iterator[None]:
        """Between two rows event time comes to `watermark`."""
        self._watermarks.advance(watermark)
        for number, (key, at) in enumerate(self._due_event_timers(), 1):
            self._fire(key, at)
            if number % FIRINGS_AT_ONCE == 0:
                self._flush_some(output)
                yield
        self._run.time_domain = None

    def _flush_some(self, output: Output) -> None:
        """Others have their turn between two rows; before anything else is asked for, the rest is handed on."""
        self._flush(output)

    def _fire(self, key: Any, at: int) -> None:
        run = self._run
        run.key, run.time, run.time_domain = key, at, "event"
        if at <= run.mark:
            run.carry()
        run.mark = max(run.mark, at - 1)
        if run.at_end is None:
            run.watermark_us = max(run.mark, at)
        self._on_timer(at)

    def advance(self, watermark: int, output: Output) -> None:
        super().advance(watermark, output)
        self._backend.maintain(0)

    def fire_due(self, watermark: int, output: Output) -> bool:
        run = self._run
        self.finish()
        if self._firing is None:
            if watermark <= run.mark:
                return False  # rows have said so before: what they set since is due when time comes on
            run.watermark_us = self._watermarks.advance(watermark)
            run.at_end = _EndOfTime() if watermark == MAX_WATERMARK else None
            self._firing = self._due_event_timers()
        fired = 0
        for key, at in islice(self._firing, FIRINGS_AT_ONCE):
            fired += 1
            if run.at_end is not None and run.at_end.drops(key, at):
                continue
            self._fire(key, at)
            if len(run.main.rows) >= FLUSH_ROWS:
                self._flush(output)
        if fired == FIRINGS_AT_ONCE:
            self._flush(output)
            return True
        self._flush_last(output)
        self._fired_all()
        return False

    def _fired_all(self) -> None:
        run = self._run
        if run.at_end is not None and run.at_end.dropped:
            _log.warning(
                "event timers that were set again and again at the end of input do not fire",
                operator=self._operator,
                process=self._name,
                timers=run.at_end.dropped,
                fired_per_key=RENEWALS_AT_THE_END,
            )
        run.watermark_us = run.mark = self._watermarks.current
        run.at_end = self._firing = run.time_domain = None

    def _due_event_timers(self) -> Iterator[tuple[Any, int]]:
        timers, marks = self._backend.event_timers, self._watermarks
        if marks.rose_evenly:
            yield from timers.due(marks.current)
            return
        early: list[tuple[Any, int]] = []
        for key, at in timers.due(marks.highest):
            parts = key if len(self._kinds) > 1 else (key,)
            group = key_group_of(parts, self._kinds, self._max_parallelism)
            if at <= marks.of_group(group) and marks.rose(group):
                yield key, at
            else:
                early.append((key, at))
        for key, at in early:
            timers.set(key, at)

    def next_timer_us(self) -> int | None:
        """None when the function is closed behind the end of the input: as in Flink, no processing timer fires there."""
        return self._backend.processing_timers.next_time() if self._opened else None

    def on_processing_time(self, now_us: int, output: Output) -> None:
        """Fire the processing timers up to `now_us`.

        Rows emitted there have the timer's time as event time, or the first that is not behind the watermark: a wall
        clock says nothing about the time of events, but it must not make rows late.
        """
        self.take(self._fired_by_clock(now_us, output))

    def _fired_by_clock(self, now_us: int, output: Output) -> Iterator[None]:
        """Fire them; others may run where it yields."""
        run = self._run
        run.time_domain = "processing"
        for number, (run.key, at) in enumerate(self._backend.processing_timers.due(now_us), 1):
            run.time = self._time_of_processing_timer(at)
            self._on_timer(at)
            if number % FIRINGS_AT_ONCE == 0:
                self._flush_some(output)
                yield
        run.time_domain = None
        self._flush_last(output)

    def _time_of_processing_timer(self, at: int) -> int | None:
        if not self._event_time:
            return None
        mark = self._run.mark
        return at if mark == MAX_WATERMARK else max(at, mark + 1)

    def _on_timer(self, at: int) -> None:
        try:
            if (given := self._process.on_timer(from_micros(at), self._run)) is not None:
                self._refuse_given("on_timer", given)
        except PenstockError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise raised(f"{self._where}.on_timer({from_micros(at)})", f"key {self._run.key!r}", error) from error

    def snapshot(self) -> OperatorSnapshot | None:
        self.finish()
        return OperatorSnapshot(keyed=self._backend.freeze())

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._backend.close()
