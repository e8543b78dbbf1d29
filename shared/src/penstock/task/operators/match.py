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
from itertools import chain, count, islice, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import IncompatibleStateError, UserCodeError, without_context
from penstock.expressions import Expr, to_polars
from penstock.functions.patterns.automaton import Automaton, bits_of
from penstock.functions.patterns.definitions import Regular
from penstock.functions.patterns.looking_back import Evaluator, Remembered, remembering, schema_of
from penstock.functions.patterns.matching import KeySearch, Link, Match, Partial, Row, Search
from penstock.functions.patterns.references import NUMBER, SEEN, VARIABLE
from penstock.functions.patterns.regular import PreferredSearch
from penstock.plan.logical import Node
from penstock.plan.operations.match_rows import MatchRows
from penstock.state.columns import canonical_keys, key_values
from penstock.state.number_columns import of_numbers, tuples_of
from penstock.state.segments import decode_segments
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, PassingOperator, RestoredState
from penstock.task.operators.earliest import Earliest
from penstock.task.operators.keyed_table import KeyedTable
from penstock.task.operators.progress import GroupWatermarks, LateRows
from penstock.task.operators.waiting_input import WaitingInput
from penstock.types import TIMESTAMP, polars_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.expressions.aggregates import AggregatePlan
    from penstock.protocol.messages import OperatorMetrics
    from penstock.types import Schema

_KIND: Final = "match"
_VALUE: Final = "__value_"
_ASKED: Final = "__asked_"
_NOW: Final = "__now_"
"""Values beside columns, whose names do not begin so."""
_TIMES: Final = "__times"
_SEARCH: Final = "__search"
"""List of Int64: what is known of a key besides the rows of its matches, see `packed`."""
_DEADLINE: Final = "__deadline"
_MATCH: Final = "__match"
_PLACE: Final = "__place"
_BEGINS: Final = "__begins"
_NO_GAP: Final = MIN_WATERMARK
"""A time that no row has."""
_ROWS_AT_ONCE: Final = 65_536
_MEASURED_AT_ONCE: Final = 1 << 20
"""Of so many rows of matches, with those that are measured several times, measures are computed at once."""


class _KeySearch(Protocol):
    """The search in the rows of one key: `KeySearch` or `PreferredSearch`."""

    def __init__(self, search: Any) -> None: ...

    @property
    def goes_on(self) -> bool: ...

    @property
    def is_empty(self) -> bool: ...

    @property
    def deadline(self) -> int | None: ...

    def take(self, row: Row) -> list[Match]: ...

    def pass_gap(self) -> list[Match]: ...

    def pass_deadline(self) -> tuple[list[Match], list[Partial]]: ...

    def end(self) -> list[Match]: ...

    def packed(self) -> tuple[list[Row], list[int]]: ...

    @staticmethod
    def minds_gaps(numbers: Sequence[int]) -> bool: ...

    @staticmethod
    def begun(numbers: Sequence[int]) -> tuple[int, int | None]: ...

    @classmethod
    def unpacked(cls, search: Any, rows: Sequence[Row], numbers: Sequence[int]) -> Self: ...


class Searching:
    """A pattern over rows of certain columns: what it needs of them, and how it is searched for."""

    def __init__(self, operation: MatchRows, schema: Schema) -> None:
        plan = operation.plan(schema)
        self.plan = plan
        self.hidden: frozenset[int] | None = None
        """If all rows of a match are measured, the positions of those that are not; None: only the last row is."""
        self.names = [position.name for position in plan.automaton.positions]
        self.measures = [field.name for field in plan.fields]
        columns = {name: pl.col(name) for name in plan.measured}
        places = dict.fromkeys(plan.asked)
        for number, asked in enumerate(plan.asked):
            if asked.argument is not None:
                name = f"{_ASKED}{number}"
                columns[name] = to_polars(Expr(asked.argument), schema, "match").alias(name)
                places[asked] = len(columns) - 1
        kept = len(columns)
        remembered = {
            asked: (number, Remembered(asked, places[asked], kind))
            for number, (asked, kind) in enumerate(plan.asked.items())
        }
        looking_back: dict[int, Evaluator] = {}
        for number, condition in enumerate(plan.conditions):
            if condition is None or condition.looking_back is None:
                continue
            kinds = {text: plan.asked[asked] for text, asked in condition.asked}
            read = schema_of(condition.looking_back, schema, kinds)
            row_places: dict[str, int] = {}
            for name in read.names:
                if name not in kinds:
                    columns.setdefault(f"{_NOW}{name}", pl.col(name).alias(f"{_NOW}{name}"))
                    row_places[name] = [*columns].index(f"{_NOW}{name}")
            by_text = {text: remembered[asked] for text, asked in condition.asked}
            looking_back[number] = Evaluator(condition.looking_back, read, row_places, by_text)
        self.kept = [*columns][:kept]
        """What is kept of rows."""
        self.values = list(columns.values())
        """What rows are to the search: first what is kept of them."""
        self.types = dict(pl.DataFrame(schema=schema.polars()).select(self.values).schema)
        self.alone = {
            number: to_polars(condition.alone, schema, "match")
            for number, condition in enumerate(plan.conditions)
            if condition is not None and condition.alone is not None
        }
        self.beginning = plan.automaton.beginning
        """The conditions of rows with which matches begin, as bits."""
        self.all = plan.automaton.all_conditions if plan.automaton.may_leave_out else None
        """All conditions, as bits; None if no row may be left out."""
        ordered = [each for _, each in remembered.values()]
        said = (operation.within_us, operation.skip, looking_back, remembering(ordered, self.names))
        remembers = (None,) * len(ordered)
        if isinstance(plan.automaton, Automaton):
            self.key_search: type[_KeySearch] = KeySearch
            self.shortest = 0
            """A key that keeps fewer rows has no match at the end of the input."""
            self.search = Search(plan.automaton, *said, remembers)
        else:
            self.key_search = PreferredSearch
            self.shortest = plan.automaton.shortest
            self.kept = [*columns]  # other attempts go through the rows again, and ask all of their conditions
            regular = operation.regular or Regular()
            self.hidden = plan.automaton.hidden if regular.all_rows else None
            subsets = dict(regular.subsets)
            self.search = Search(plan.automaton, *said, remembers, subsets, plan.reads_numbers)

    def fulfilled(self, rows: pl.DataFrame) -> NDArray[np.int64]:
        """Which conditions rows fulfil as far as these look at them alone, as bits."""
        everything = bits_of(number for number in range(len(self.plan.conditions)) if number not in self.alone)
        found = np.full(rows.height, everything, np.int64)
        conditions = rows.select(expr.fill_null(value=False).alias(str(number)) for number, expr in self.alone.items())
        for name in conditions.columns:
            found |= conditions[name].to_numpy().astype(np.int64) << int(name)
        return found

    def counts(self, fulfilled: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether rows that fulfil these conditions are more than a gap between others."""
        return np.ones(len(fulfilled), np.bool_) if self.all is None else (fulfilled & self.all) != 0

    def measured_rows(self, match: Match | Partial) -> list[_Measured]:
        """The rows of a match that are measured: the last one, or all that are shown."""
        links = match.last.links()
        if self.hidden is None:
            return [_Measured(match, links, len(links) - 1)]
        shown = (place for place, link in enumerate(links) if link.position not in self.hidden)
        return [_Measured(match, links, place) for place in shown]

    def measured(self, rows: Sequence[_Measured]) -> pl.DataFrame:
        """The measures at rows of matches, in their order."""
        found = [pl.DataFrame([self._of_row(name, column, rows) for name, column in self.plan.of_row.items()])]
        if self.plan.of_rows is not None:
            ends = np.cumsum([len(row.links) for row in rows])
            cuts = np.flatnonzero(np.diff(ends // _MEASURED_AT_ONCE)) + 1
            parts = pairwise([0, *cuts.tolist(), len(rows)])
            found.append(pl.concat([self._of_rows(self.plan.of_rows, rows[begin:end]) for begin, end in parts]))
        return pl.concat([frame for frame in found if frame.width], how="horizontal").select(self.measures)

    def _of_row(self, name: str, column: str, rows: Sequence[_Measured]) -> pl.Series:
        """A measure that is a column of the row itself."""
        links = [row.links[row.place] for row in rows]
        if column == VARIABLE:
            return pl.Series(name, [self.names[link.position] for link in links], pl.String)
        if column == NUMBER:
            return pl.Series(name, _numbers(rows), pl.Int64)
        place = self.plan.measured.index(column)
        return of_numbers(name, [link.row.values[place] for link in links], self.types[column])

    def _of_rows(self, measures: AggregatePlan, rows: Sequence[_Measured]) -> pl.DataFrame:
        """Measures that are aggregates of the rows of matches."""
        first = [place for place, row in enumerate(rows) if not place or row.links is not rows[place - 1].links]
        every = list(chain.from_iterable(rows[place].links for place in first))
        columns = [pl.Series(VARIABLE, [self.names[link.position] for link in every], pl.String)]
        for place, name in enumerate(self.plan.measured):
            columns.append(of_numbers(name, [link.row.values[place] for link in every], self.types[name]))
        frame = pl.DataFrame(columns)
        lengths = np.array([len(row.links) for row in rows])
        if self.hidden is not None:  # the rows of a match once for each that is measured
            begins = np.repeat(np.cumsum([0, *lengths[first[:-1]]]), np.diff([*first, len(rows)]))
            within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            seen = within <= np.repeat([row.place for row in rows], lengths)
            frame = frame[np.repeat(begins, lengths) + within].with_columns(pl.Series(SEEN, seen))
        frame = frame.with_columns(pl.Series(_MATCH, np.repeat(np.arange(len(rows)), lengths)))
        if self.plan.reads_numbers:
            frame = frame.with_columns(pl.Series(NUMBER, np.repeat(_numbers(rows), lengths), pl.Int64))
        partials = frame.group_by(_MATCH, maintain_order=True).agg(measures.init_grouped)
        names = [field.name for field in measures.output_fields]
        return partials.with_columns(measures.finish).select(names)  # some are constants


class _Measured(NamedTuple):
    """A row of a match that is measured."""

    match: Match | Partial
    links: list[Link]
    """Of all rows of the match."""
    place: int
    """Of the row among them."""


def _numbers(rows: Sequence[_Measured]) -> list[int]:
    """The numbers of the matches that rows are of."""
    return [row.match.number for row in rows if isinstance(row.match, Match)]


class MatchOperator(PassingOperator):
    """`match` on a keyed stream."""

    def __init__(self, node: Node) -> None:
        operation, source = cast("MatchRows", node.operation), node.inputs[0]
        self._operator = node.operator_id
        self._where = f"{node.verb} ({node.operator_id})"
        self._searching = Searching(operation, source.schema)
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
        self._deadlines: list[tuple[int, int, Any]] = []
        """When the time of a key's earliest partial match is over, with a number that tells equal ones apart; a heap.
        Some are there whose match has ended since."""
        self._numbers = count()
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
        rows = due[order[gaps.kept]]
        values = tuples_of(rows.select(self._searching.values).get_columns(), rows.height)
        taken = zip(times[gaps.kept].tolist(), fulfilled[gaps.kept].tolist(), values, gaps.before, strict=True)
        for place, number, behind in zip(looked_at, gaps.lengths, gaps.behind, strict=True):
            state = states[place]
            if number or state is None or self._searching.key_search.minds_gaps(state[0]):
                self._search_key(keys[place], state, list(islice(taken, number)), behind)
        self._write()

    def _search_key(
        self, key: Any, state: tuple[Any, ...] | None, rows: list[tuple[int, int, tuple[Any, ...], int]], behind: int
    ) -> None:
        """Take the rows of a key, of which some before others, and `behind` them, may have been left out."""
        search, first = self._opened(state)
        beginning = self._searching.beginning
        for number, (time, fulfilled, values, gap) in enumerate(rows, first):
            if search.goes_on:
                if gap != _NO_GAP:
                    self._pass_gap(search, gap)
                self._pass_deadlines(search, time)
            elif not fulfilled & beginning:
                continue
            if told := search.take(Row(number, time, fulfilled, values)):
                self._told += [(time, match) for match in told]
        if behind != _NO_GAP and search.goes_on:
            self._pass_gap(search, behind)
        self._put(key, state, search)

    def _pass_gap(self, search: _KeySearch, time: int) -> None:
        self._pass_deadlines(search, time)
        self._told += [(time, match) for match in search.pass_gap()]

    def _opened(self, state: tuple[Any, ...] | None) -> tuple[_KeySearch, int]:
        """The search in the rows of a key, and the number of its next row."""
        if state is None:
            return self._searching.key_search(self._searching.search), 0
        numbers, times, _, *values = state
        every = zip(*values, strict=True) if values else [()] * len(times)
        rows = [Row(number, time, 0, row) for number, (time, row) in enumerate(zip(times, every, strict=True))]
        return self._searching.key_search.unpacked(self._searching.search, rows, numbers), len(rows)

    def _put(self, key: Any, state: tuple[Any, ...] | None, search: _KeySearch) -> None:
        if state is not None:
            self._begun.remove(state[0], state[1])
        if search.is_empty:
            if state is not None:
                self._removed.append(key)
            return
        rows, numbers = search.packed()
        kept = map(list, islice(zip(*(row.values for row in rows), strict=True), len(self._searching.kept)))
        if not rows:
            kept = ([] for _ in self._searching.kept)
        deadline = search.deadline
        times = [row.time for row in rows]
        self._begun.add(numbers, times)
        self._put_rows[key] = (numbers, times, deadline, *kept)
        if deadline is not None and (state is None or state[2] != deadline):
            heapq.heappush(self._deadlines, (deadline, next(self._numbers), key))

    def _write(self) -> None:
        """Write what has been put of keys."""
        self._table.put_rows(self._put_rows)
        self._table.remove(self._removed)
        self._put_rows, self._removed = {}, []

    def _pass_deadlines(self, search: _KeySearch, time: int) -> None:
        while (deadline := search.deadline) is not None and deadline <= time:
            told, given_up = search.pass_deadline()
            self._told += [(deadline - 1, match) for match in told]
            if self._timed_out is not None:
                self._given_up += [(deadline - 1, partial) for partial in given_up]

    def _pass_time(self, reached: int) -> None:
        """All rows up to `reached` have come."""
        after = reached if reached == MAX_WATERMARK else reached + 1
        while self._deadlines and self._deadlines[0][0] <= after:
            _, _, key = heapq.heappop(self._deadlines)
            [state] = self._table.rows([key])
            if state is None or state[2] is None or state[2] > after:
                continue
            search, _ = self._opened(state)
            self._pass_deadlines(search, after)
            self._put(key, state, search)
            self._write()

    def _end(self) -> None:
        """No row comes any more: what waits for earlier matches, or for a row that must not come, is decided."""
        keys = self._table.all_keys()
        for state in self._table.rows(keys):
            if state is None or len(state[1]) < self._searching.shortest:
                continue
            search, _ = self._opened(state)
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

    def _measured_rows(self, decided: list[tuple[int, Match | Partial]]) -> list[tuple[int, _Measured]]:
        """The rows that are measured, in order of when they were decided."""
        decided.sort(key=lambda each: each[0])
        return [(time, row) for time, match in decided for row in self._searching.measured_rows(match)]

    def _results(self, timed: list[tuple[int, _Measured]]) -> pl.DataFrame:
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
        header = {"kind": _KIND, "state": {name: str(kind) for name, kind in self._table.types.items()}}
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
                keys = self._table.load(rows)
                for key, deadline in zip(keys, rows[_DEADLINE].to_list(), strict=True):
                    if deadline is not None:
                        heapq.heappush(self._deadlines, (deadline, next(self._numbers), key))
                for numbers, times in rows.select(_SEARCH, _TIMES).iter_rows():
                    self._begun.add(numbers, times)


class _Begun:
    """The partial matches of all keys: how many there are, and with which times the earliest one of each key begins."""

    def __init__(self, search: type[_KeySearch]) -> None:
        self._search = search
        self._number = 0
        self._times = Earliest()

    def add(self, numbers: Sequence[int], times: Sequence[int]) -> None:
        """Of a key there is what is packed as these integers, and the times of its rows."""
        number, first = self._search.begun(numbers)
        self._number += number
        if first is not None:
            self._times.add(times[first])

    def remove(self, numbers: Sequence[int], times: Sequence[int]) -> None:
        """What was added of a key is no more."""
        number, first = self._search.begun(numbers)
        self._number -= number
        if first is not None:
            self._times.remove(times[first])

    def clear(self) -> None:
        """No key has any."""
        self._number = 0
        self._times.clear()

    def show(self, metrics: OperatorMetrics, watermark: int) -> None:
        """Tell of them, as they are when event time has come to `watermark`."""
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
        self.before: list[int] = before[self.kept].tolist()
        """The time of the first row that is left out right before each that is kept, or `_NO_GAP`."""
        behind = np.maximum(last[ends - 1] + 1, begins)
        self.behind: list[int] = np.where(behind < ends, times[np.minimum(behind, len(times) - 1)], _NO_GAP).tolist()
        """The same behind the last one that is kept of each key."""
        self.lengths: list[int] = np.add.reduceat(kept.astype(np.int64), begins).tolist()
        """How many are kept of each key."""
