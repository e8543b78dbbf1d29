"""`match`: patterns in the rows of a key, by event time: Flink's CEP and MATCH_RECOGNIZE.

Rows wait until the watermark has passed their event time. Conditions that look at a row alone are computed for all rows
that are due; a key that has no partial match is not looked at before a row comes that a match can begin with. The search
itself is `penstock.functions.patterns.matching`'s business, and measures are aggregates over the rows of all matches of
a batch.

The event time of a result is that of the row, or the end of the time, that decided it.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Generator, Iterator, Sequence
from itertools import count, islice, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import IncompatibleStateError, UserCodeError, without_context
from penstock.functions.patterns.matching import Match, Partial, Row, RowSearch
from penstock.plan.logical import Node
from penstock.plan.operations.match_rows import MatchRows
from penstock.state.columns import canonical_keys, key_values
from penstock.state.number_columns import of_numbers
from penstock.state.segments import decode_segments
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, PassingOperator, RestoredState
from penstock.task.operators.earliest import Earliest
from penstock.task.operators.keyed_table import KeyedTable
from penstock.task.operators.progress import GroupWatermarks, LateRows
from penstock.task.operators.searching import AnySearch, Measured, Searching
from penstock.task.operators.waiting_input import WaitingInput
from penstock.types import TIMESTAMP, polars_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.protocol.messages import OperatorMetrics

_KIND: Final = "match"
_VALUE: Final = "__value_"
_TIMES: Final = "__times"
_SEARCH: Final = "__search"
"""List of Int64: what is known of a key besides the rows of its matches, see `packed`."""
_DEADLINE: Final = "__deadline"
_PLACE: Final = "__place"
_BEGINS: Final = "__begins"
_NO_GAP: Final = MIN_WATERMARK
"""A time that no row has."""
_ROWS_AT_ONCE: Final = 65_536
_NEAR: Final = 16
"""Deadlines lie together that differ in so many bits at most: 65 ms."""


class _Taken(NamedTuple):
    """Rows, those of one key after those of another: a value of each."""

    times: list[int]
    fulfilled: list[int]
    """Their conditions, as bits."""
    values: list[tuple[Any, ...]]
    gaps: list[int] | None
    """The time of the first row that is left out before each, or `_NO_GAP`; None if none is left out."""


class MatchOperator(PassingOperator):
    """`match` on a keyed stream."""

    def __init__(self, node: Node) -> None:
        operation, source = cast("MatchRows", node.operation), node.inputs[0]
        self._operator = node.operator_id
        self._where = f"{node.verb} ({node.operator_id})"
        self._searching = Searching(operation, source.schema, source.row_type)
        self._within_us = operation.within_us
        self._rowtime = None if operation.regular is None else operation.regular.rowtime
        self._timed_out = None if operation.timed_out is None else operation.timed_out.name
        self._keys = source.schema.select(source.keys)
        self._by = list(self._keys.names)
        kept = self._searching.kept
        values = {f"{_VALUE}{name}": pl.List(self._searching.types[name]) for name in kept}
        state = {_SEARCH: pl.List(pl.Int64), _TIMES: pl.List(pl.Int64), _DEADLINE: pl.Int64()}
        self._table = KeyedTable(self._keys, {**state, **values}, one_by_one=True)
        self._late = LateRows(node)
        self._waiting = WaitingInput(source, self._table.freezes)
        self._deadlines = _Deadlines()
        """When the time of a key's earliest partial match is over."""
        self._told: list[tuple[int, Match | Partial]] = []
        self._given_up: list[tuple[int, Match | Partial]] = []
        self._put_rows: dict[Any, tuple[Any, ...]] = {}
        self._removed: list[Any] = []
        """What has been put of keys and is not written."""
        self._begun = _Begun(self._searching.key_search)
        self._before_end = MIN_WATERMARK
        """What is decided by the end of the input has a time behind this one."""
        self._context: OperatorContext
        self._watermarks: GroupWatermarks

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._table.open(self._operator, context)
        self._waiting.lies_in(context.local_state)
        self._watermarks = GroupWatermarks(context, self._by, restored)
        self._before_end = self._watermarks.highest
        if restored is not None:
            self._restore(restored)
        self._begun.show(context.metrics, self._watermarks.current)

    # -- rows -----------------------------------------------------------------------------------------------------------

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        self._waiting.add(self._late.on_time(frame, self._watermarks, output, self._context.metrics))

    def run_background_slice(self) -> bool:
        return self._waiting.run_background_slice()

    def _pass(self, watermark: int, output: Output) -> Iterator[None]:
        if watermark != MAX_WATERMARK:
            self._before_end = max(self._before_end, watermark)
        reached = self._watermarks.advance(watermark)
        for due in self._waiting.due(reached):
            for rows in due.iter_slices(_ROWS_AT_ONCE):
                with self._named():
                    self._search(rows)
                self._emit(output)
                yield
        with self._named():
            self._pass_time(reached)
            if watermark == MAX_WATERMARK:
                self._end()
        self._begun.show(self._context.metrics, self._watermarks.current)
        self._emit(output)

    @contextlib.contextmanager
    def _named(self) -> Generator[None]:
        """Says of what fails in the search which operator it is."""
        try:
            yield
        except pl.exceptions.PolarsError as error:
            raise self._failed("the conditions failed on rows", error) from error
        except UserCodeError as error:
            raise UserCodeError(f"{self._where}: {error}") from error

    def _search(self, due: pl.DataFrame) -> None:
        """Take rows, in order of event time."""
        fulfilled = self._searching.fulfilled(due)
        begins = pl.Series(_BEGINS, (fulfilled & self._searching.beginning) != 0)
        places = pl.int_range(pl.len(), dtype=pl.Int64).alias(_PLACE)
        by_key = due.select(*self._by, places).with_columns(begins).group_by(self._by, maintain_order=True)
        groups = by_key.agg(_PLACE, pl.col(_BEGINS).any())
        keys = key_values(groups, self._keys)
        states = self._table.rows(keys)
        begun = zip(states, groups[_BEGINS], strict=True)
        looked_at = [place for place, (state, begins) in enumerate(begun) if state is not None or begins]
        if not looked_at:
            return
        groups = groups[looked_at]
        order = groups[_PLACE].explode().to_numpy()
        times, fulfilled = due[EVENT_TIME].to_numpy()[order], fulfilled[order]
        gaps = _Gaps(times, self._searching.counts(fulfilled), groups[_PLACE].list.len().to_numpy().astype(np.int64))
        rows, fulfilled = due[order[gaps.kept]], fulfilled[gaps.kept]
        selected = rows.select(self._searching.values)
        if self._searching.right_before:
            lengths = np.array(gaps.lengths)
            begins = (np.cumsum(lengths) - lengths)[lengths > 0]
            with_rows = (states[place] for place, number in zip(looked_at, gaps.lengths, strict=True) if number)
            fulfilled &= self._searching.fulfilled_behind(selected, begins, [_last_row(state) for state in with_rows])
        values = self._searching.values_of(rows, selected)
        taken = _Taken(times[gaps.kept].tolist(), fulfilled.tolist(), values, gaps.before)
        end = 0
        objects = self._objects([states[place] for place in looked_at])
        for place, number, behind, kept in zip(looked_at, gaps.lengths, gaps.behind, objects, strict=True):
            state, begin, end = states[place], end, end + number
            if state is None and number == 1 and behind == _NO_GAP and self._is_put(keys[place], taken, begin):
                continue
            if number or state is None or self._searching.key_search.minds_gaps(state[0]):
                search, first = self._opened(state, kept)
                _search_rows(search, taken, begin, end, first)
                if behind != _NO_GAP:
                    search.leave_out(behind)
                self._put(keys[place], state, search)
        self._write()

    def _is_put(self, key: Any, taken: _Taken, place: int) -> bool:
        """Whether a row, the only one of a new key, begins a match and is put without a search."""
        numbers = self._searching.of_one_row(taken.fulfilled[place])
        if numbers is None:
            return False
        time, values = taken.times[place], taken.values[place][: len(self._searching.kept)]
        self._put_row(
            key, numbers, (time,), None if self._within_us is None else time + self._within_us, [*zip(values)]
        )
        return True

    def _objects(self, states: Sequence[tuple[Any, ...] | None]) -> list[list[Any]]:
        """The kept rows of each key as objects, if predicates read them; otherwise empty lists."""
        if not self._searching.reads_rows:
            return [[]] * len(states)
        return self._searching.objects_of([None if state is None else state[3:] for state in states])

    def _opened(self, state: tuple[Any, ...] | None, objects: list[Any]) -> tuple[RowSearch, int]:
        """The search in the rows of a key, and the number of its next row."""
        if state is None:
            return self._searching.key_search(self._searching.search), 0
        numbers, times, _, *values = state
        if objects:
            values.append(objects)
        every = zip(*values, strict=True) if values else [()] * len(times)
        rows = [Row(number, time, 0, row) for number, (time, row) in enumerate(zip(times, every, strict=True))]
        return self._searching.key_search.unpacked(self._searching.search, rows, numbers), len(rows)

    def _put(self, key: Any, state: tuple[Any, ...] | None, search: RowSearch) -> None:
        """Collect what was decided of a key, and keep what was not."""
        self._told += search.told
        if self._timed_out is not None:
            self._given_up += search.given_up
        if state is not None:
            self._begun.remove(state[0], state[1])
        if search.is_empty:
            if state is not None:
                self._removed.append(key)
            return
        rows, numbers = search.packed()
        kept = [*islice(zip(*(row.values for row in rows), strict=True), len(self._searching.kept))]
        before = None if state is None else state[2]
        self._put_row(key, tuple(numbers), tuple(row.time for row in rows), search.deadline, kept, before)

    def _put_row(
        self, key: Any, numbers: tuple[int, ...], times: tuple[int, ...], deadline: int | None,
        kept: list[tuple[Any, ...]], before: int | None = None,
    ) -> None:  # fmt: skip
        """Keep of a key what is packed as these numbers; `before` is the deadline that it had.

        All of it is tuples, in which Python does not look for garbage.
        """
        self._begun.add(numbers, times)
        self._put_rows[key] = (numbers, times, deadline, *(kept or repeat((), len(self._searching.kept))))
        if deadline is not None and before != deadline:
            self._deadlines.add(key, deadline)

    def _write(self) -> None:
        """Write what has been put of keys."""
        self._table.put_rows(self._put_rows)
        self._table.remove(self._removed)
        self._put_rows, self._removed = {}, []

    def _pass_time(self, reached: int) -> None:
        """All rows up to `reached` have come."""
        after = reached if reached == MAX_WATERMARK else reached + 1
        for due in self._deadlines.due(after):
            states = self._table.rows(due)
            for key, state, objects in zip(due, states, self._objects(states), strict=True):
                if state is None or state[2] is None or state[2] > after:
                    continue
                if self._is_over(state, after):
                    self._begun.remove(state[0], state[1])
                    self._removed.append(key)
                else:
                    search, _ = self._opened(state, objects)
                    search.pass_time(after)
                    self._put(key, state, search)
            self._write()

    def _is_over(self, state: tuple[Any, ...], after: int) -> bool:
        """Whether the time of all rows of a key is over by then, and nothing is told of them."""
        if self._within_us is None or self._timed_out is not None or state[1][-1] + self._within_us > after:
            return False
        return self._searching.key_search.is_fruitless(self._searching.search, state[0])

    def _end(self) -> None:
        """No row comes any more: what waits for earlier matches, or for a row that must not come, is decided."""
        keys = self._table.all_keys()
        states = self._table.rows(keys)
        for state, objects in zip(states, self._objects(states), strict=True):
            if state is None or self._searching.key_search.is_fruitless(self._searching.search, state[0]):
                continue
            search, _ = self._opened(state, objects)
            told = search.end()
            self._told += [(max(match.last.row.time, self._before_end + 1), match) for match in told]
        self._table.remove(keys)
        self._deadlines.clear()
        self._begun.clear()

    def _emit(self, output: Output) -> None:
        told, self._told = self._measured_rows(self._told), []
        given_up, self._given_up = self._measured_rows(self._given_up), []
        if told:
            output.rows(self._results(told))
        if given_up and self._timed_out is not None:
            output.side(self._timed_out, self._results(given_up))

    def _measured_rows(self, decided: list[tuple[int, Match | Partial]]) -> list[tuple[int, Measured]]:
        """The rows that are measured, in order of when they were decided."""
        decided.sort(key=lambda each: each[0])
        return [(time, row) for time, match in decided for row in self._searching.measured_rows(match)]

    def _results(self, timed: list[tuple[int, Measured]]) -> pl.DataFrame:
        try:
            results = self._searching.measured([row for _, row in timed])
        except pl.exceptions.PolarsError as error:
            raise self._failed("the measures could not be computed", error) from error
        times = pl.Series(EVENT_TIME, [time for time, _ in timed], pl.Int64)
        if self._rowtime is not None:
            results = results.with_columns(times.cast(polars_type(TIMESTAMP)).alias(self._rowtime))
        results = results.with_columns(times)
        if self._context.carries_watermarks:
            results = results.with_columns((pl.col(EVENT_TIME) - 1).alias(WATERMARK))
        return results

    def _failed(self, what: str, error: Exception) -> UserCodeError:
        return UserCodeError(f"{self._where}: {what}: {without_context(error)}")

    def close(self) -> None:
        self._table.close()

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> OperatorSnapshot | None:
        types = {name: str(kind) for name, kind in self._table.types.items()}
        header = {"kind": _KIND, "state": types, "right_before": [*self._searching.right_before]}
        return OperatorSnapshot(keyed=self._table.freeze(header, self._context, self._waiting.beside()))

    def _restore(self, restored: RestoredState) -> None:
        expected = {name: str(kind) for name, kind in self._table.types.items()}
        for _, header, rows in decode_segments(restored.keyed, self._operator, _KIND, self._keys):
            if header["state"] != expected:
                raise IncompatibleStateError(
                    f"operator {self._operator!r}: the snapshot keeps other columns of matched rows, because select(...) "
                    "or a condition that looks back reads others now; restore it with those it had, or give the operator "
                    "another uid"
                )
            rows = self._waiting.restored(canonical_keys(rows, self._keys), self._watermarks)
            if set(self._table.types) <= set(rows.columns):
                if not self._searching.right_before.keys() <= set(header.get("right_before", ())):
                    rows = self._asked_again(rows)
                keys = self._table.load(rows)
                for key, deadline in zip(keys, rows[_DEADLINE].to_list(), strict=True):
                    if deadline is not None:
                        self._deadlines.add(key, deadline)
                for numbers, times in rows.select(_SEARCH, _TIMES).iter_rows():
                    self._begun.add(numbers, times)

    def _asked_again(self, rows: pl.DataFrame) -> pl.DataFrame:
        """State in which conditions that ask for the row right before have not been computed yet: now with them."""
        lengths = rows[_TIMES].list.len().to_numpy().astype(np.int64)
        some = rows.filter(lengths > 0)
        values = pl.DataFrame([some[f"{_VALUE}{name}"].explode().alias(name) for name in self._searching.kept])
        begins = (np.cumsum(lengths) - lengths)[lengths > 0]
        now = iter(self._searching.fulfilled_behind(values, begins, [None] * len(begins)).tolist())
        numbers = [
            [matches, *(before & next(now) for before in fulfilled)] for matches, *fulfilled in rows[_SEARCH].to_list()
        ]
        return rows.with_columns(of_numbers(_SEARCH, numbers, pl.List(pl.Int64)))


def _search_rows(search: RowSearch, taken: _Taken, begin: int, end: int, first: int) -> None:
    """Let a search take the rows from a place up to another one; `first` is the number of the first one."""
    columns = (each[begin:end] for each in (taken.times, taken.fulfilled, taken.values))
    rows = list(map(Row._make, zip(count(first), *columns)))
    if taken.gaps is None:
        search.take_rows(rows)
        return
    for row, gap in zip(rows, taken.gaps[begin:end], strict=True):
        if gap != _NO_GAP:
            search.leave_out(gap)
        search.take_rows((row,))


def _last_row(state: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """The last one of the rows of a key that are kept, if there is any."""
    return tuple(values[-1] for values in state[3:]) if state is not None and state[1] else None


class _Deadlines:
    """Deadlines of keys, of which some may have ceased to be theirs. Those that are near to each other lie together."""

    def __init__(self) -> None:
        self._keys: dict[int, dict[Any, int]] = {}
        self._order: list[int] = []
        """A heap of what they lie by."""

    def add(self, key: Any, deadline: int) -> None:
        """A key has a deadline."""
        near = deadline >> _NEAR
        if near not in self._keys:
            self._keys[near] = {}
            heapq.heappush(self._order, near)
        self._keys[near][key] = deadline

    def due(self, after: int) -> Iterator[list[Any]]:
        """Take out the keys that have deadlines up to `after`."""
        last = after >> _NEAR
        while self._order and self._order[0] < last:
            yield list(self._keys.pop(heapq.heappop(self._order)))
        keys = self._keys.get(last, {})
        due = [key for key, deadline in keys.items() if deadline <= after]
        for key in due:
            del keys[key]
        yield due

    def clear(self) -> None:
        """Forget all."""
        self._keys.clear()
        self._order.clear()


class _Begun:
    """The partial matches of all keys: how many there are, and with which times the earliest one of each key begins."""

    def __init__(self, search: AnySearch) -> None:
        self._search = search
        self._number = 0
        self._times = Earliest()
        self._come: list[int] = []
        self._gone: list[int] = []
        """What is not in `_times` yet."""

    def add(self, numbers: Sequence[int], times: Sequence[int]) -> None:
        """Of a key there is what is packed as these integers, and the times of its rows."""
        number, first = self._search.begun(numbers)
        self._number += number
        if first is not None:
            self._come.append(times[first])

    def remove(self, numbers: Sequence[int], times: Sequence[int]) -> None:
        """What was added of a key is no more."""
        number, first = self._search.begun(numbers)
        self._number -= number
        if first is not None:
            self._gone.append(times[first])

    def clear(self) -> None:
        """No key has any."""
        self._number = 0
        self._times.clear()
        self._come, self._gone = [], []

    def show(self, metrics: OperatorMetrics, watermark: int) -> None:
        """Tell of them, as they are when event time has come to `watermark`."""
        self._times.add(self._come)
        self._times.remove(self._gone)
        self._come, self._gone = [], []
        first = self._times.second
        metrics.partial_matches = self._number
        metrics.partial_match_age_s = 0 if first is None else max(0, watermark // 1_000_000 - first)


class _Gaps:
    """Which rows are taken, of those of several keys one after the other, and where some are left out.

    Args:
        times: of all rows.
        kept: whether a row is taken.
        lengths: how many rows each key has.
    """

    def __init__(self, times: NDArray[np.int64], kept: NDArray[np.bool_], lengths: NDArray[np.int64]) -> None:
        ends = np.cumsum(lengths)
        places, begins = np.arange(len(times)), ends - lengths
        last = np.maximum.accumulate(np.where(kept, places, -1))
        first_left_out = np.maximum(np.concatenate([[-1], last[:-1]]) + 1, np.repeat(begins, lengths))
        self.kept = np.flatnonzero(kept)
        before = np.where(first_left_out < places, times[first_left_out], _NO_GAP)
        before = before[self.kept]
        self.before: list[int] | None = before.tolist() if (before != _NO_GAP).any() else None
        """The time of the first row that is left out right before each that is kept, or `_NO_GAP`; None if none is."""
        behind = np.maximum(last[ends - 1] + 1, begins)
        self.behind: list[int] = np.where(behind < ends, times[np.minimum(behind, len(times) - 1)], _NO_GAP).tolist()
        """The same behind the last one that is kept of each key."""
        self.lengths: list[int] = np.add.reduceat(kept.astype(np.int64), begins).tolist()
        """How many are kept of each key."""
