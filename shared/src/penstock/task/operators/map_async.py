"""`map_async`: a function per row that waits for others; rows that wait for their results are state.

Rows stand in a queue in the order in which they came, watermarks between them. Calls are made from its front, at most
`capacity` of them have no result that was sent on; the rows behind have not been looked at. Results leave at the front,
or in any order within a segment, which ends where event time comes on: Flink's ordered and unordered wait. A watermark
leaves when all rows before it have.

What is sent leaves in `process`, `advance` and when the subtask asks because its clock says so, never between a snapshot
and its barrier: a snapshot has exactly the rows whose results are not sent.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, cast

import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK, hidden_of
from penstock.core.times import MIN_WATERMARK
from penstock.errors import PipelineError, described, function_name
from penstock.plan.logical import Node
from penstock.plan.operations.calls import CallSettings
from penstock.plan.operations.map_async import MapAsync
from penstock.state.segments import PENDING, decode_segment, encode_segment
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.async_calls import Call, Caller
from penstock.task.operators.rowwise import ROWS_PER_CHUNK, written
from penstock.task.rows import RowReader, RowWriter

ROWS_BEFORE_BARRIER: Final = 65_536
"""So many rows wait here at most when a barrier stands behind the next ones; it waits for room then, as in Flink."""


@dataclass(slots=True, eq=False)
class _Segment:
    """Calls between two watermarks."""

    calls: OrderedDict[Call, None] = field(default_factory=OrderedDict[Call, None])
    """In the order of their rows."""
    completed: list[Call] = field(default_factory=list[Call])
    """Those that are done, where results may overtake each other."""
    watermark: int | None = None
    """What is to be sent on behind it, if anything."""

    def done(self, ordered: bool) -> Iterator[Call]:
        """Take out what may be sent."""
        if not ordered:
            for call in self.completed:
                del self.calls[call]
            yield from self.completed
            self.completed.clear()
            return
        while self.calls and (head := next(iter(self.calls))).done:
            del self.calls[head]
            yield head


class AsyncOperator(Operator):
    """The queue of rows, calls and watermarks. What a call is, and what comes of it, is left to those derived."""

    def __init__(
        self,
        node: Node,
        where: str,
        function: Callable[[Any], Awaitable[Any]],
        settings: CallSettings,
        on_error: Callable[[Any, Exception], Any] | None = None,
        rows_per_call: int = 1,
    ) -> None:
        self._operator = node.operator_id
        self._where = where
        self._ordered = settings.ordered
        self._capacity = settings.capacity
        self._rows_per_call = rows_per_call
        self._caller = Caller(where, _own_copy(where, function), settings, on_error)
        self._segments = deque([_Segment()])
        """What is in calls; the last one is open."""
        self._segment_of: dict[Call, _Segment] = {}
        self._unstarted: deque[Call] = deque()
        self._behind: deque[pl.DataFrame | int] = deque()
        """Rows and watermarks that are not in calls yet."""
        self._under_way = 0
        """Calls that were made and whose results are not sent."""
        self._held = 0
        """Rows whose results are not sent."""
        self._mark = MIN_WATERMARK
        """The watermark that the last row in calls carried."""
        self._due = False
        """Whether the subtask is to ask."""
        self._reached = self._handed_on = MIN_WATERMARK
        """How far event time has come here, and for those behind."""
        self._idle = False
        """Whether those behind were told not to wait for this subtask, and have had nothing from it since."""
        self._context: OperatorContext

    @abstractmethod
    def _calls(self, chunk: pl.DataFrame) -> Iterable[Call]:
        """The calls for some rows, in their order."""

    @abstractmethod
    def _results(self, calls: Sequence[Call]) -> pl.DataFrame:
        """The rows that come of calls that are done."""

    # -- input ----------------------------------------------------------------------------------------------------------

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._caller.open(self._on_call_done, context.metrics)
        for entry in restored.lists.get(PENDING, ()) if restored is not None else ():
            self._take(decode_segment(entry, self._operator)[1])
        self._due = self._held > 0

    def _take(self, frame: pl.DataFrame) -> None:
        if frame.height:
            self._behind.append(frame)
            self._held += frame.height

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        self._take(frame)
        self._go_on(output)
        self._ask_to_wait(output)

    def advance(self, watermark: int, output: Output) -> None:
        self._reached = watermark
        if self._behind and isinstance(self._behind[-1], int):
            self._behind.pop()  # only the newest counts
        self._behind.append(watermark)
        self._go_on(output)
        self._ask_to_wait(output)

    def on_idle(self) -> None:
        self._idle = True

    def _ask_to_wait(self, output: Output) -> None:
        """Rows wait here whose subtask counts as idle: say how far event time may come without them, which ends that."""
        if not (self._idle and self._held and self._reached > MIN_WATERMARK):
            return
        first = min(cast("int", frame[EVENT_TIME].min()) for frame in self._pending_frames())
        self._handed_on = max(self._handed_on, min(self._reached, first - 1))
        output.watermark(self._handed_on)

    def _hand_on(self, watermark: int, output: Output) -> None:
        """Event time has come so far for those behind, too; never back."""
        if watermark > self._handed_on:
            self._handed_on = watermark
            output.watermark(watermark)

    def is_full(self, *, before_barrier: bool) -> bool:
        return self._held >= (ROWS_BEFORE_BARRIER if before_barrier else self._capacity * self._rows_per_call)

    def holds_rows(self) -> bool:
        return self._held > 0

    def next_timer_us(self) -> int | None:
        return 0 if self._due else None  # long past: at once

    def on_processing_time(self, now_us: int, output: Output) -> None:
        self._go_on(output)

    # -- calls ----------------------------------------------------------------------------------------------------------

    def _go_on(self, output: Output) -> None:
        """Send what has come and make the calls that there is room for; without a loop, until nothing is left."""
        self._turn(output)
        while self._held and not self._caller.has_loop:
            self._caller.wait()
            self._turn(output)

    def _turn(self, output: Output) -> None:
        self._due = False
        self._caller.check()
        self._emit(output)
        self._start()
        self._emit(output)  # watermarks behind which there was nothing

    def _start(self) -> None:
        while self._under_way < self._capacity and (self._unstarted or self._prepare()):
            self._under_way += 1
            self._caller.start(self._unstarted.popleft())

    def _prepare(self) -> bool:
        """Make calls of the next rows; whether there are any."""
        while self._behind and not self._unstarted:
            item = self._behind.popleft()
            if isinstance(item, int):
                self._comes_on(item)
                continue
            if item.height > ROWS_PER_CHUNK:
                self._behind.appendleft(item.slice(ROWS_PER_CHUNK))
                item = item.slice(0, ROWS_PER_CHUNK)
            self._queue(item)
        return bool(self._unstarted)

    def _comes_on(self, watermark: int) -> None:
        """Event time comes on behind the calls so far; of two watermarks with nothing between them only one counts."""
        if len(self._segments) > 1 and not self._segments[-1].calls:
            self._segments[-2].watermark = watermark
        else:
            self._segments[-1].watermark = watermark
            self._segments.append(_Segment())

    def _queue(self, chunk: pl.DataFrame) -> None:
        rises = self._rises(chunk) if not self._ordered and WATERMARK in chunk.columns else frozenset[int]()
        for call in self._calls(chunk):
            inside = not rises.isdisjoint(range(call.first + 1, call.first + call.rows))
            if inside or call.first in rises:
                self._segments.append(_Segment())
            self._segments[-1].calls[call] = None
            self._segment_of[call] = self._segments[-1]
            self._unstarted.append(call)
            if inside:
                self._segments.append(_Segment())  # those behind must not overtake its first rows

    def _rises(self, chunk: pl.DataFrame) -> frozenset[int]:
        """The rows before which event time has come on: none behind may overtake one before."""
        marks = chunk[WATERMARK].fill_null(MIN_WATERMARK).cum_max().clip(lower_bound=self._mark)
        before = marks.shift(1, fill_value=self._mark)
        self._mark = cast("int", marks[-1])
        return frozenset((marks > before).arg_true().to_list())

    def _on_call_done(self, call: Call) -> None:
        """A call is done; the subtask is woken if anything can be sent."""
        segment, first = self._segment_of.pop(call), self._segments[0]
        if not self._ordered:
            segment.completed.append(call)
        sendable = segment is first and (not self._ordered or next(iter(first.calls)) is call)
        if (sendable or self._caller.failed) and not self._due:
            self._due = True
            self._context.wake()

    def _emit(self, output: Output) -> None:
        """Send what has come and is not behind what has not."""
        ready: list[Call] = []
        while True:
            segment = self._segments[0]
            ready += segment.done(self._ordered)
            if segment.calls or len(self._segments) == 1:
                break
            if segment.watermark is not None:
                self._send(ready, output)
                self._hand_on(segment.watermark, output)
                ready = []
            self._segments.popleft()
        self._send(ready, output)

    def _send(self, calls: list[Call], output: Output) -> None:
        if calls:
            self._under_way -= len(calls)
            self._held -= sum(call.rows for call in calls)
            output.rows(self._results(calls))
            self._idle = False

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot:
        """The rows as they came, in their order: they are asked for again."""
        rows = [frame for frame in self._pending_frames() if frame.height]
        together = pl.concat(rows, how="diagonal") if rows else pl.DataFrame()
        pieces = range(0, together.height, ROWS_PER_CHUNK)
        entries = [encode_segment({"kind": PENDING}, together.slice(first, ROWS_PER_CHUNK)) for first in pieces]
        return OperatorSnapshot(lists={PENDING: entries})

    def _pending_frames(self) -> Iterator[pl.DataFrame]:
        calls = (call for segment in self._segments for call in segment.calls)
        for chunk, of_chunk in by_chunk(calls):
            yield chunk[[row for call in of_chunk for row in range(call.first, call.first + call.rows)]]
        yield from (item for item in self._behind if not isinstance(item, int))

    def close(self) -> None:
        self._caller.close()

    def closing(self) -> Awaitable[None] | None:
        return self._caller.closing()


class MapAsyncOperator(AsyncOperator):
    """`map_async`: one row in, one row out, which keeps the event time."""

    def __init__(self, node: Node) -> None:
        operation = cast("MapAsync", node.operation)
        source = node.inputs[0]
        where = f"map_async ({node.operator_id}): {function_name(operation.function)}"
        super().__init__(node, where, operation.function, operation.calls, operation.on_error)
        self._reader = RowReader(source.schema, source.row_type)
        self._writer = RowWriter(node.schema, node.row_type, where)
        self._function = operation.function

    def end(self) -> Awaitable[None]:
        return self._caller.end()

    def _calls(self, chunk: pl.DataFrame) -> Iterable[Call]:
        return [Call(chunk, index, 1, row) for index, row in enumerate(self._reader.rows(chunk))]

    def _on_call_done(self, call: Call) -> None:
        call.result = self._writer.copied(call.result)
        super()._on_call_done(call)

    def _results(self, calls: Sequence[Call]) -> pl.DataFrame:
        answers = [call.result for call in calls]
        results = written(self._writer, answers, lambda index: calls[index].argument, self._function)
        if not hidden_of(calls[0].chunk):
            return results
        hidden = [chunk.select(hidden_of(chunk))[[call.first for call in group]] for chunk, group in by_chunk(calls)]
        return results.hstack(pl.concat(hidden, how="diagonal"))


def by_chunk(calls: Iterable[Call]) -> Iterator[tuple[pl.DataFrame, list[Call]]]:
    """Calls whose rows are of the same chunk and follow each other."""
    for _, group in groupby(calls, key=lambda call: id(call.chunk)):
        listed = list(group)
        yield listed[0].chunk, listed


def _own_copy(where: str, function: Any) -> Any:
    """What has connections of its own gets them for each subtask."""
    if not hasattr(function, "open"):
        return function
    try:
        return copy.deepcopy(function)
    except Exception as error:  # whatever copying the user's attributes raises
        raise PipelineError(
            f"{where} cannot be copied for a subtask ({described(error)}); create connections, locks and "
            "the like in open(), not in __init__"
        ) from error
