"""`match`: patterns in the rows of a key, by event time: Flink's CEP and MATCH_RECOGNIZE.

Rows wait until the watermark has passed their event time. Conditions that look at a row alone are computed for all rows
that are due; a key that has no partial match is not looked at before a row comes that a match can begin with. The search
itself is `penstock.functions.patterns.matching`'s business, and measures are aggregates over the rows of all matches of
a batch.

The event time of a result is that of the row, or the end of the time, that decided it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import IncompatibleStateError, UserCodeError, without_context
from penstock.expressions import Expr, to_polars
from penstock.functions.patterns.automaton import START
from penstock.functions.patterns.looking_back import Evaluator, Remembered, remembering, schema_of
from penstock.functions.patterns.matching import KeySearch, Link, Row, Search, minds_gaps, packed, unpacked
from penstock.functions.patterns.planning import MatchPlan
from penstock.functions.patterns.references import VARIABLE
from penstock.plan.logical import Node
from penstock.plan.operations.match_rows import MatchRows
from penstock.state.columns import canonical_keys, key_values
from penstock.state.number_columns import of_numbers, tuples_of
from penstock.state.segments import decode_segments
from penstock.task.operator import OperatorContext, OperatorSnapshot, Output, PassingOperator, RestoredState
from penstock.task.operators.keyed_table import KeyedTable
from penstock.task.operators.progress import GroupWatermarks, LateRows
from penstock.task.operators.waiting_input import WaitingInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


class _Searching:
    """A pattern over the columns of a node: what it needs of rows, and how it is searched for."""

    def __init__(self, operation: MatchRows, node: Node) -> None:
        schema = node.inputs[0].schema
        plan = MatchPlan.of(operation.pattern, operation.skip, operation.within_us, operation.measures, schema)
        self.plan = plan
        self.names = [position.name for position in plan.automaton.positions]
        columns = {name: pl.col(name) for name in plan.measured}
        places = dict.fromkeys(plan.asked)
        for number, asked in enumerate(plan.asked):
            if asked.argument is not None:
                name = f"{_ASKED}{number}"
                columns[name] = to_polars(Expr(asked.argument), schema, "match").alias(name)
                places[asked] = len(columns) - 1
        self.kept = list(columns)
        """What is kept of the rows of matches."""
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
        self.values = list(columns.values())
        """What rows are to the search: first what is kept of them."""
        self.types = dict(pl.DataFrame(schema=schema.polars()).select(self.values).schema)
        self.alone = {
            number: to_polars(condition.alone, schema, "match")
            for number, condition in enumerate(plan.conditions)
            if condition is not None and condition.alone is not None
        }
        begins = (plan.automaton.positions[cast("int", edge.target)] for edge in plan.automaton.edges[START])
        self.beginning = sum({1 << position.condition for position in begins})
        """The conditions of rows with which matches begin, as bits."""
        self.all = plan.automaton.all_conditions if plan.automaton.may_leave_out else None
        """All conditions, as bits; None if no row may be left out."""
        ordered = [each for _, each in remembered.values()]
        self.search = Search(
            plan.automaton, operation.within_us, operation.skip, looking_back, remembering(ordered, self.names),
            (None,) * len(ordered),
        )  # fmt: skip

    def fulfilled(self, rows: pl.DataFrame) -> NDArray[np.int64]:
        """Which conditions rows fulfil as far as these look at them alone, as bits."""
        everything = sum(1 << number for number in range(len(self.plan.conditions)) if number not in self.alone)
        found = np.full(rows.height, everything, np.int64)
        conditions = rows.select(expr.fill_null(value=False).alias(str(number)) for number, expr in self.alone.items())
        for name in conditions.columns:
            found |= conditions[name].to_numpy().astype(np.int64) << int(name)
        return found

    def counts(self, fulfilled: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether rows that fulfil these conditions are more than a gap between others."""
        return np.ones(len(fulfilled), np.bool_) if self.all is None else (fulfilled & self.all) != 0

    def measured(self, links: Sequence[Link]) -> pl.DataFrame:
        """The measures of matches, in their order."""
        rows = [link.rows() for link in links]
        every = list(chain.from_iterable(rows))
        names = [self.names[position] for _, position in every]
        columns = [
            pl.Series(_MATCH, np.repeat(np.arange(len(rows)), [len(each) for each in rows])),
            pl.Series(VARIABLE, names, pl.String),
        ]
        for place, name in enumerate(self.plan.measured):
            columns.append(of_numbers(name, [row.values[place] for row, _ in every], self.types[name]))
        frame = pl.DataFrame(columns)
        return frame.group_by(_MATCH, maintain_order=True).agg(self.plan.measures.init_grouped).select(
            self.plan.measures.finish
        )  # fmt: skip


class MatchOperator(PassingOperator):
    """`match` on a keyed stream."""

    def __init__(self, node: Node) -> None:
        operation, source = cast("MatchRows", node.operation), node.inputs[0]
        self._operator = node.operator_id
        self._where = f"{node.verb} ({node.operator_id})"
        self._searching = _Searching(operation, node)
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
        self._told: list[tuple[int, Link]] = []
        self._given_up: list[tuple[int, Link]] = []
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
                try:
                    self._search(rows)
                except pl.exceptions.PolarsError as error:
                    raise self._failed("the conditions failed on rows", error) from error
                self._emit(output)
                yield
        self._pass_time(reached)
        if watermark == MAX_WATERMARK:
            self._end()
        self._emit(output)

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
            if number or state is None or minds_gaps(state[0]):
                self._search_key(keys[place], state, list(islice(taken, number)), behind)

    def _search_key(
        self, key: Any, state: tuple[Any, ...] | None, rows: list[tuple[int, int, tuple[Any, ...], int]], behind: int
    ) -> None:
        """Take the rows of a key, of which some before others, and `behind` them, may have been left out."""
        search, first = self._opened(state)
        beginning = self._searching.beginning
        for number, (time, fulfilled, values, gap) in enumerate(rows, first):
            if search.partial:
                if gap != _NO_GAP:
                    self._pass_gap(search, gap)
                self._pass_deadlines(search, time)
            elif not fulfilled & beginning:
                continue
            if told := search.take(Row(number, time, fulfilled, values)):
                self._told += [(time, match.last) for match in told]
        if behind != _NO_GAP and search.partial:
            self._pass_gap(search, behind)
        self._put(key, state, search)

    def _pass_gap(self, search: KeySearch, time: int) -> None:
        self._pass_deadlines(search, time)
        self._told += [(time, match.last) for match in search.pass_gap()]

    def _opened(self, state: tuple[Any, ...] | None) -> tuple[KeySearch, int]:
        """The search in the rows of a key, and the number of its next row."""
        if state is None:
            return KeySearch(self._searching.search), 0
        numbers, times, _, *values = state
        every = zip(*values, strict=True) if values else [()] * len(times)
        rows = [Row(number, time, 0, row) for number, (time, row) in enumerate(zip(times, every, strict=True))]
        return unpacked(self._searching.search, rows, numbers), len(rows)

    def _put(self, key: Any, state: tuple[Any, ...] | None, search: KeySearch) -> None:
        if not search.partial and not search.complete:
            if state is not None:
                self._table.remove([key])
            return
        rows, numbers = packed(search)
        kept = ([row.values[place] for row in rows] for place in range(len(self._searching.kept)))
        deadline = search.deadline
        self._table.put_rows({key: (numbers, [row.time for row in rows], deadline, *kept)})
        if deadline is not None and (state is None or state[2] != deadline):
            heapq.heappush(self._deadlines, (deadline, next(self._numbers), key))

    def _pass_deadlines(self, search: KeySearch, time: int) -> None:
        while (deadline := search.deadline) is not None and deadline <= time:
            told, given_up = search.pass_deadline()
            self._told += [(deadline - 1, match.last) for match in told]
            if self._timed_out is not None:
                self._given_up += [(deadline - 1, partial.last) for partial in given_up]

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

    def _end(self) -> None:
        """No row comes any more: what waits for earlier matches, or for a row that must not come, is decided."""
        keys = self._table.all_keys()
        for state in self._table.rows(keys):
            search, _ = self._opened(state)
            told = search.end()
            self._told += [(max(match.last.row.time, self._before_end + 1), match.last) for match in told]
        self._table.remove(keys)
        self._deadlines.clear()

    def _emit(self, output: Output) -> None:
        told, self._told = self._told, []
        given_up, self._given_up = self._given_up, []
        if told:
            output.rows(self._results(told))
        if given_up and self._timed_out is not None:
            output.side(self._timed_out, self._results(given_up))

    def _results(self, decided: list[tuple[int, Link]]) -> pl.DataFrame:
        decided.sort(key=lambda each: each[0])
        try:
            results = self._searching.measured([link for _, link in decided])
        except pl.exceptions.PolarsError as error:
            raise self._failed("the measures could not be computed", error) from error
        times = pl.Series(EVENT_TIME, [time for time, _ in decided], pl.Int64)
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
