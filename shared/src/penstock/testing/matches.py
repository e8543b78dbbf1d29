"""Why a pattern finds no match in a few rows, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.api.patterns import AfterMatch, Pattern, skip_of
from penstock.core.arguments import checked
from penstock.core.times import Duration, duration_us, format_duration
from penstock.errors import PipelineError, UserCodeError, without_context
from penstock.expressions import columns_of
from penstock.expressions.constructors import count
from penstock.expressions.nodes import Column
from penstock.expressions.surface import Expr
from penstock.formats.columns import FrameBuilder
from penstock.functions.patterns.automaton import START, Edge, Guard
from penstock.functions.patterns.definitions import Skip
from penstock.functions.patterns.describing import SIGNS
from penstock.functions.patterns.looking_back import Remembered
from penstock.functions.patterns.matching import KeySearch, Link, Match, Partial, Row, Search
from penstock.functions.patterns.references import ROWS
from penstock.plan.operations.match_rows import MatchRows
from penstock.types import TIMESTAMP, Schema, attribute_of, polars_type, row_class, schema_of

if TYPE_CHECKING:
    import polars as pl

    from penstock.functions.patterns.automaton import Automaton
    from penstock.functions.patterns.references import Asked
    from penstock.task.operators.searching import Searching

_SHOWN: Final = 3
"""So many rows that do not fulfil a condition are shown with their values."""


@checked
def explain_match(
    pattern: Pattern,
    rows: Sequence[Any],
    *,
    within: Duration | None = None,
    after_match: AfterMatch = "no_skip",
    event_time: str | None = None,
    schema: Any = None,
) -> str:
    """The matches of a pattern in the rows of one key, or what stopped the partial match that came furthest.

    Rows have numbers from 1 in the order in which they are given, whatever their order in event time is. Behind them the
    input ends.

    Args:
        pattern: as for `KeyedStream.match`.
        rows: objects of one class, or dicts.
        within: as for `KeyedStream.match`.
        after_match: as for `KeyedStream.match`.
        event_time: the column that is the event time of the rows; the only timestamp column if not given.
        schema: as at a source; the class of the rows, or what their values are, if not given.

    Raises:
        PipelineError: there are no rows, their event time is not clear, or the pattern does not fit their columns.
        UserCodeError: a condition fails on a value, as it would fail the job.

    Example:
        >>> seven = datetime(2026, 1, 1, 7, tzinfo=UTC)
        >>> up = Pattern.begin("low").next("high", col("price") > col("low.price"))
        >>> print(explain_match(up, [Bid(1, 50.0, seven, []), Bid(1, 40.0, seven, [])]))
        No match. The partial match that came furthest has 1 row:
          low: row 1
        1 other came as far.
        It did not go on:
          next high: row 2 does not fulfil col("price") > col("low.price") (row 2: price = 40.0; low.price = 50.0)
        >>> print(explain_match(up, [Bid(1, 50.0, seven, []), Bid(1, 60.0, seven, [])]))
        1 match:
          low: row 1; high: row 2
    """
    import polars as pl

    from penstock.task.operators.searching import Searching  # loads Polars

    within_us = None if within is None else duration_us(within, "explain_match: within", positive=True)
    given = _Given.of(rows, schema, event_time)
    operation = MatchRows(pattern.group, (("n", count()),), skip_of(after_match), within_us)
    searching = Searching(operation, given.schema, given.row_type)
    try:
        return "\n".join(_Explained(searching, given).lines())
    except pl.exceptions.PolarsError as error:
        raise UserCodeError(f"explain_match: the conditions failed on rows: {without_context(error)}") from error


@dataclass(frozen=True)
class _Given:
    """Rows as users give them, with their columns."""

    rows: Sequence[Any]
    schema: Schema
    event_time: str
    frame: pl.DataFrame

    @property
    def row_type(self) -> type[Any]:
        """What predicates get rows as."""
        return row_class(self.schema) if isinstance(self.rows[0], Mapping) else type(self.rows[0])

    @classmethod
    def of(cls, rows: Sequence[Any], schema: Any, event_time: str | None) -> _Given:
        """The rows, if they fit.

        Raises:
            PipelineError: there are none, or one does not fit its columns, or no column is clearly the event time.
        """
        if not rows:
            raise PipelineError("explain_match: there are no rows; give those of one key")
        columns = _schema(rows[0], rows) if schema is None else schema_of(schema, "explain_match")
        times = [field.name for field in columns if field.type == TIMESTAMP]
        if event_time is None and len(times) != 1:
            raise PipelineError(
                f"explain_match: {len(times)} columns are timestamps; say which one is the event time: event_time="
            )
        chosen = times[0] if event_time is None else event_time
        if chosen not in times:
            raise PipelineError(f"explain_match: event_time={chosen!r} is no timestamp column of the rows")
        values = [[_value(row, name) for row in rows] for name in columns.names]
        frame, wrong = FrameBuilder(columns).frame(values)
        if wrong:
            place, reason = wrong[0]
            raise PipelineError(f"explain_match: row {place + 1}: {reason}")
        if frame[chosen].null_count():
            place = frame[chosen].is_null().arg_max() or 0
            raise PipelineError(f"explain_match: row {place + 1} has no event time: {chosen} is null")
        return cls(rows, columns, chosen, frame)

    @property
    def order(self) -> list[int]:
        """The places of the rows in order of event time."""
        return self.frame[self.event_time].to_frame().with_row_index("__place").sort(
            self.event_time, maintain_order=True
        )["__place"].to_list()  # fmt: skip

    def shown(self, place: int, columns: Sequence[str]) -> str:
        """Columns of a row with their values."""
        return ", ".join(f"{name} = {_shown(_value(self.rows[place], name))}" for name in columns)


def _schema(first: Any, rows: Sequence[Any]) -> Schema:
    if not isinstance(first, Mapping):
        return schema_of(type(first), "explain_match")
    import pyarrow as pa

    try:
        return schema_of(pa.Table.from_pylist([dict(row) for row in rows]).schema, "explain_match")
    except pa.ArrowInvalid as error:
        raise PipelineError(
            f"explain_match: the rows have no columns of one type each: {error}; give schema="
        ) from None


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, date | time | timedelta | Decimal) else repr(value)


def _value(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, Mapping) else getattr(row, attribute_of(type(row), name))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] # rows of users


class _Explained:
    """A pattern searched for in rows, of which every step is looked at."""

    def __init__(self, searching: Searching, given: _Given) -> None:
        self._given = given
        self._plan = searching.plan
        self._search = cast("Search[Automaton]", searching.search)
        self._automaton = self._search.automaton
        self._places = given.order
        """Of every row in order of event time its place among those that are given."""
        frame = given.frame[self._places]
        times, fulfilled = frame[given.event_time].to_physical().to_list(), searching.fulfilled(frame).tolist()
        values = searching.values_of(frame, frame.select(searching.values))
        self._rows = [Row(number, *row) for number, row in enumerate(zip(times, fulfilled, values, strict=True))]

    def lines(self) -> Iterator[str]:
        """The matches, or why there is none."""
        matches, _ = self._played(self._search)
        if matches:
            yield "1 match:" if len(matches) == 1 else f"{len(matches)} matches:"
            in_order = sorted(matches, key=lambda match: [link.row.number for link in match.last.links()])
            yield from (f"  {self._taken(match.last)}" for match in in_order)
            return
        _, begun = self._played(replace(self._search, skip=Skip("none")))
        if not begun:
            yield "No match: no row begins one."
            for target in {edge.target: edge for edge in self._automaton.edges[START]}:
                assert target is not None
                said = self._failing(target, self._rows, self._search.remembered)
                yield f"  begin with {self._automaton.positions[target].name}: {said}"
            return
        lengths = [len(each.last.links()) for each in begun]
        yield from self._stopped_at(begun[lengths.index(max(lengths))], lengths.count(max(lengths)) - 1)

    def _played(self, search: Search[Automaton]) -> tuple[list[Match], list[Partial]]:
        """The matches, and all partial matches that there ever were."""
        one, matches, begun = KeySearch(search), list[Match](), list[Partial]()
        for row in self._rows:
            while (deadline := one.deadline) is not None and deadline <= row.time:
                matches += one.pass_deadline()[0]
            matches += one.take(row)
            begun += [each for each in one.partial if each.fresh]
        return [*matches, *one.end()], begun

    def _stopped_at(self, partial: Partial, others: int) -> Iterator[str]:
        number = len(partial.last.links())
        yield f"No match. The partial match that came furthest has {number} row{'s' if number > 1 else ''}:"
        yield f"  {self._taken(partial.last)}"
        if others:
            yield f"{others} {'others' if others > 1 else 'other'} came as far."
        yield "It did not go on:"
        for edge in self._automaton.edges[partial.last.position]:
            yield f"  {self._edge(edge)}: {self._why(edge, partial)}"

    # -- reasons --------------------------------------------------------------------------------------------------------

    def _why(self, edge: Edge, partial: Partial) -> str:
        """What kept a partial match from going on by an edge."""
        passed: list[Row] = []
        stop = ""
        for row in self._rows[partial.last.row.number + 1 :]:
            stop = self._stop(edge, partial, row, fresh=not passed)
            if stop:
                break
            passed.append(row)
            if edge.contiguity == "next" or self._ends(edge, row, partial.last.memory):
                break
        if edge.target is not None and passed:
            return "; ".join(filter(None, [self._failing(edge.target, passed, partial.last.memory), stop]))
        return stop or f"no row comes behind {self._name(partial.last.row)}"

    def _stop(self, edge: Edge, partial: Partial, row: Row, *, fresh: bool) -> str:
        """How a row closes an edge, beside that it is the next one; empty if it does not."""
        within_us = self._search.within_us
        if within_us is not None and row.time - partial.first.time >= within_us:
            return self._too_late(row, partial.first, within_us)
        if edge.within_us is not None and row.time - partial.last.row.time >= edge.within_us:
            return self._too_late(row, partial.last.row, edge.within_us)
        memory = partial.last.memory
        for guard in edge.guards:
            if (fresh or not guard.immediately) and self._search.fulfils(guard.condition, row, memory):
                return f"{self._fulfilling(guard.condition, row, memory)}, which {self._meaning(edge, guard)}"
        return ""

    def _ends(self, edge: Edge, row: Row, memory: tuple[Any, ...]) -> bool:
        """Whether a row that would be the first occurrence ends them instead."""
        position = self._automaton.positions[edge.target or START]
        if position.until is None or edge.contiguity == "followed_by_any":
            return False
        return all(self._search.fulfils(each, row, memory) for each in (position.condition, position.until))

    def _meaning(self, edge: Edge, guard: Guard) -> str:
        if edge.target is not None and self._automaton.positions[edge.target].until == guard.condition:
            return "ends the occurrences"
        return "must not be next" if guard.immediately else "must not come before"

    def _too_late(self, row: Row, before: Row, within_us: int) -> str:
        later = format_duration(row.time - before.time)
        return (
            f"{self._name(row)} comes {later} behind {self._name(before)}, and within is {format_duration(within_us)}"
        )

    def _fulfilling(self, condition: int, row: Row, memory: tuple[Any, ...]) -> str:
        return f"{self._name(row)} fulfils {self._text(condition)}{self._values(condition, [row], memory)}"

    def _failing(self, target: int, rows: Sequence[Row], memory: tuple[Any, ...]) -> str:
        """That none of the rows can have a position."""
        condition, until = self._automaton.positions[target].condition, self._automaton.positions[target].until
        fitting = [row for row in rows if self._search.fulfils(condition, row, memory)]
        others = [row for row in rows if row not in fitting]
        said = [f"{self._fulfilling(until or 0, row, memory)}, which ends the occurrences" for row in fitting]
        if others:
            verb = "does" if len(others) == 1 else "do"
            values = self._values(condition, others, memory)
            said.insert(0, f"{self._names(others)} {verb} not fulfil {self._text(condition)}{values}")
        return "; ".join(said)

    def _text(self, condition: int) -> str:
        return str(self._automaton.conditions[condition])

    # -- words ----------------------------------------------------------------------------------------------------------

    def _values(self, condition: int, rows: Sequence[Row], memory: tuple[Any, ...]) -> str:
        """The columns of rows that a condition reads, and what it asks of the rows before."""
        found = self._plan.conditions[condition]
        if found is None:
            return ""
        asked = dict(found.asked)
        read = frozenset[str]().union(
            *(columns_of(part) for part in (found.alone, found.looking_back) if part is not None)
        )
        columns = [name for name in self._given.schema.names if name in read and name not in asked]
        if found.predicate is not None:
            columns = list(self._given.schema.names)
        parts = [
            f"{self._name(row)}: {self._given.shown(self._places[row.number], columns)}" for row in rows if columns
        ]
        if len(parts) > _SHOWN:
            parts = [*parts[:_SHOWN], "..."]
        told = (each for each in asked.values() if each.function != ROWS)  # the rows are named before
        parts += [f"{_asked(each)} = {_shown(self._remembered(each, memory))}" for each in told]
        return f" ({'; '.join(parts)})" if parts else ""

    def _remembered(self, asked: Asked, memory: tuple[Any, ...]) -> Any:
        from penstock.state.columns import to_python  # loads Polars
        from penstock.state.number_columns import of_numbers

        kind = self._plan.asked[asked]
        value = Remembered(asked, None, kind).value(memory[[*self._plan.asked].index(asked)])
        return to_python(of_numbers("it", [value], polars_type(kind)), kind)[0]

    def _edge(self, edge: Edge) -> str:
        if edge.target is None:
            return "complete"
        return f"{SIGNS[edge.contiguity]} {self._automaton.positions[edge.target].name}"

    def _taken(self, last: Link) -> str:
        named = groupby(last.links(), lambda link: self._automaton.positions[link.position].name)
        return "; ".join(f"{name}: {self._names([link.row for link in links])}" for name, links in named)

    def _name(self, row: Row) -> str:
        return f"row {self._places[row.number] + 1}"

    def _names(self, rows: Sequence[Row]) -> str:
        numbers = [self._places[row.number] + 1 for row in rows]
        if len(numbers) == 1:
            return f"row {numbers[0]}"
        if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            return f"rows {numbers[0]} to {numbers[-1]}"
        return f"rows {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _asked(asked: Asked) -> str:
    """What a condition asks of the rows before, in words."""
    rows = "all rows" if asked.variables is None else " and ".join(asked.variables)
    if asked.argument is None:
        return f"number of {rows}"
    column = asked.argument.name if isinstance(asked.argument, Column) else str(Expr(asked.argument))
    whole = column if asked.variables is None else f"{rows}.{column}"
    return whole if asked.function == "last" else f"{asked.function} of {whole}"
