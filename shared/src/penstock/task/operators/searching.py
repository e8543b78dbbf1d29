"""A pattern over rows of certain columns, as operators search for it and measure its matches.

Conditions that look at a row alone are computed as columns. So are those that ask for nothing but the row right before
where a pattern is a regular expression, in which that is the row before in the match; all others are asked row by row.

Predicates in Python get rows as objects. If one looks back, rows have themselves as an object behind their values, and
all of their columns are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import polars as pl

from penstock.errors import PenstockError, UserCodeError, function_name, shown
from penstock.expressions import Expr, to_polars
from penstock.functions.patterns.automaton import Automaton, bits_of
from penstock.functions.patterns.definitions import Regular
from penstock.functions.patterns.looking_back import Evaluator, Remembered, remembering, schema_of
from penstock.functions.patterns.matching import KeySearch, Link, LookingBack, Match, Partial, Row, RowSearch, Search
from penstock.functions.patterns.references import NUMBER, ROWS, SEEN, VARIABLE, Asked
from penstock.functions.patterns.regular import PreferredSearch
from penstock.plan.operations.match_rows import MatchRows
from penstock.state.number_columns import of_numbers, tuples_of
from penstock.task.operators.rowwise import raised
from penstock.task.rows import RowReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.expressions.aggregates import AggregatePlan
    from penstock.functions.patterns.definitions import Predicate
    from penstock.functions.patterns.references import Condition
    from penstock.functions.patterns.regular import RegularAutomaton
    from penstock.types import Schema

_ASKED: Final = "__asked_"
_NOW: Final = "__now_"
"""Values beside columns, whose names do not begin so."""
_MATCH: Final = "__match"
_MOST_KNOWN: Final = 10_000
"""Of so many different rows it is known what a search makes of them."""
_MEASURED_AT_ONCE: Final = 1 << 20
"""Of so many rows of matches, with those that are measured several times, measures are computed at once."""


class AnySearch(Protocol):
    """`KeySearch` or `PreferredSearch`."""

    def __call__(self, search: Any) -> RowSearch: ...

    def unpacked(self, search: Any, rows: Sequence[Row], numbers: Sequence[int]) -> RowSearch: ...

    def is_fruitless(self, search: Any, numbers: Sequence[int]) -> bool: ...

    def minds_gaps(self, numbers: Sequence[int]) -> bool: ...

    def begun(self, numbers: Sequence[int]) -> tuple[int, int | None]: ...


class Searching:
    """A pattern over rows of certain columns: what it needs of them, and how it is searched for."""

    def __init__(self, operation: MatchRows, schema: Schema, row_type: type[Any]) -> None:
        plan = operation.plan(schema)
        self.plan = plan
        self.hidden: frozenset[int] | None = None
        """If all rows of a match are measured, the positions of those that are not; None: only the last row is."""
        self.names = [position.name for position in plan.automaton.positions]
        self.measures = [field.name for field in plan.fields]
        columns = {name: pl.col(name) for name in plan.measured}
        predicates = [(number, each.predicate) for number, each in enumerate(plan.conditions) if each is not None]
        self._predicates = {number: each for number, each in predicates if each is not None}
        self._reader = RowReader(schema, row_type) if self._predicates else None
        self.reads_rows = any(each.looks_back for each in self._predicates.values())
        """Whether rows have themselves as an object behind their values."""
        if self.reads_rows:
            columns.update((name, pl.col(name)) for name in schema.names)
        self._row_columns = [(name, [*columns].index(name)) for name in schema.names if self.reads_rows]
        places = dict[Asked, int | None].fromkeys(plan.asked)
        for number, asked in enumerate(plan.asked):
            if asked.argument is not None:
                name = f"{_ASKED}{number}"
                columns[name] = to_polars(Expr(asked.argument), schema, "match").alias(name)
                places[asked] = len(columns) - 1
            elif asked.function == ROWS:
                places[asked] = -1
        kept = len(columns)
        remembered = {
            asked: (number, Remembered(asked, places[asked], kind))
            for number, (asked, kind) in enumerate(plan.asked.items())
        }
        looking_back: dict[int, LookingBack] = {}
        self.right_before: dict[int, _RightBefore] = {}
        """Conditions that ask for nothing but the row right before, by number."""
        for number, condition in enumerate(plan.conditions):
            if condition is None:
                continue
            if condition.predicate is not None and condition.predicate.looks_back:
                looking_back[number] = _called(
                    condition.predicate, {name: remembered[a] for name, a in condition.asked}
                )
            if condition.looking_back is None:
                continue
            kinds = {text: plan.asked[asked] for text, asked in condition.asked}
            read = schema_of(condition.looking_back, schema, kinds)
            row_places: dict[str, int] = {}
            for name in read.names:
                if name not in kinds:
                    columns.setdefault(f"{_NOW}{name}", pl.col(name).alias(f"{_NOW}{name}"))
                    row_places[name] = [*columns].index(f"{_NOW}{name}")
            by_text = {text: remembered[asked] for text, asked in condition.asked}
            evaluator = Evaluator(condition.looking_back, read, row_places, by_text)
            if _can_be_columns(plan.automaton, number, [asked for _, asked in condition.asked], evaluator):
                before = {text: place for text, asked in condition.asked if (place := places[asked]) is not None}
                lowered = to_polars(condition.looking_back, read, "match").fill_null(value=False)
                self.right_before[number] = _RightBefore(before, row_places, lowered)
            else:
                looking_back[number] = evaluator
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
        self.of_one_row = lru_cache(_MOST_KNOWN)(self._of_one_row)
        used = {asked for number in looking_back for _, asked in _asked(plan.conditions[number])}
        ordered = [each if asked in used else None for asked, (_, each) in remembered.items()]
        said = (operation.within_us, operation.skip, looking_back, remembering(ordered, self.names))
        remembers = (None,) * len(ordered)
        if isinstance(plan.automaton, Automaton):
            self.key_search: AnySearch = KeySearch
            self.search = Search(plan.automaton, *said, remembers)
        else:
            self.key_search = PreferredSearch
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
        alone = {number: each.function for number, each in self._predicates.items() if not each.looks_back}
        objects = self._reader.rows(rows) if self._reader is not None and alone else []
        for number, function in alone.items():
            holds = np.array([_checked(function, row) for row in objects], np.int64)
            found &= ~((1 - holds) << number)
        return found

    def values_of(self, rows: pl.DataFrame, selected: pl.DataFrame) -> list[tuple[Any, ...]]:
        """What rows are to the search, of which `selected` are the `values`."""
        values = tuples_of(selected.get_columns(), rows.height)
        if self._reader is None or not self.reads_rows:
            return list(values)
        return [(*each, row) for each, row in zip(values, self._reader.rows(rows), strict=True)]

    def objects_of(self, kept: Sequence[Sequence[Sequence[Any]] | None]) -> list[list[Any]]:
        """The kept rows of each key as objects; there are predicates that read them.

        Args:
            kept: of every key a list for each column that is kept; None if there is nothing.
        """
        assert self._reader is not None
        columns = [
            of_numbers(name, list(chain.from_iterable(each[place] for each in kept if each)), self.types[name])
            for name, place in self._row_columns
        ]
        objects = iter(self._reader.rows(pl.DataFrame(columns)))
        return [list(islice(objects, len(each[0]) if each else 0)) for each in kept]

    def fulfilled_behind(
        self, rows: pl.DataFrame, begins: NDArray[np.int64], before: Sequence[tuple[Any, ...] | None]
    ) -> NDArray[np.int64]:
        """Which conditions rows fulfil as far as these ask for the row right before, as bits.

        Args:
            rows: the `values` of rows, those of one key after those of another.
            begins: the places at which the rows of keys begin.
            before: of each of these keys the values of the row before, None if there is none.
        """
        found = np.full(rows.height, -1, np.int64)
        places = np.arange(-1, rows.height - 1)
        places[begins] = rows.height + np.arange(len(begins))
        columns = rows.get_columns()
        asked = {place for each in self.right_before.values() for place in each.asked.values()}
        lags: dict[int, pl.Series] = {}
        for place in asked:
            first = [None if row is None else row[place] for row in before]
            lags[place] = pl.concat([columns[place], of_numbers("", first, columns[place].dtype)])[places]
        for number, condition in self.right_before.items():
            frame = pl.DataFrame(
                [lags[place].alias(name) for name, place in condition.asked.items()]
                + [columns[place].alias(name) for name, place in condition.row.items()]
            )
            holds = frame.select(condition.holds.alias("it"))["it"].to_numpy().astype(np.int64)
            found &= ~((1 - holds) << number)
        return found

    def _of_one_row(self, fulfilled: int) -> tuple[int, ...] | None:
        """What is packed of a key whose only row fulfils these conditions; None if the search has to be made."""
        if self.search.looking_back.keys() & self.plan.automaton.asked_first:
            return None
        search = self.key_search(self.search)
        search.take_rows([Row(0, 0, fulfilled, (None,) * (len(self.values) + 1))])
        rows, numbers = search.packed()
        return None if search.told or not rows else tuple(numbers)

    def counts(self, fulfilled: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether rows that fulfil these conditions are more than a gap between others."""
        return np.ones(len(fulfilled), np.bool_) if self.all is None else (fulfilled & self.all) != 0

    def measured_rows(self, match: Match | Partial) -> list[Measured]:
        """The rows of a match that are measured: the last one, or all that are shown."""
        links = match.last.links()
        if self.hidden is None:
            return [Measured(match, links, len(links) - 1)]
        shown = (place for place, link in enumerate(links) if link.position not in self.hidden)
        return [Measured(match, links, place) for place in shown]

    def measured(self, rows: Sequence[Measured]) -> pl.DataFrame:
        """The measures at rows of matches, in their order."""
        found = [pl.DataFrame([self._of_row(name, column, rows) for name, column in self.plan.of_row.items()])]
        if self.plan.of_rows is not None:
            ends = np.cumsum([len(row.links) for row in rows])
            cuts = np.flatnonzero(np.diff(ends // _MEASURED_AT_ONCE)) + 1
            parts = pairwise([0, *cuts.tolist(), len(rows)])
            found.append(pl.concat([self._of_rows(self.plan.of_rows, rows[begin:end]) for begin, end in parts]))
        return pl.concat([frame for frame in found if frame.width], how="horizontal").select(self.measures)

    def _of_row(self, name: str, column: str, rows: Sequence[Measured]) -> pl.Series:
        """A measure that is a column of the row itself."""
        links = [row.links[row.place] for row in rows]
        if column == VARIABLE:
            return pl.Series(name, [self.names[link.position] for link in links], pl.String)
        if column == NUMBER:
            return pl.Series(name, _numbers(rows), pl.Int64)
        place = self.plan.measured.index(column)
        return of_numbers(name, [link.row.values[place] for link in links], self.types[column])

    def _of_rows(self, measures: AggregatePlan, rows: Sequence[Measured]) -> pl.DataFrame:
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


class Measured(NamedTuple):
    """A row of a match that is measured."""

    match: Match | Partial
    links: list[Link]
    """Of all rows of the match."""
    place: int
    """Of the row among them."""


def _called(predicate: Predicate, rows: Mapping[str, tuple[int, Remembered]]) -> LookingBack:
    """A predicate that looks back, with the place of what it is given in the memory."""

    def holds(values: tuple[Any, ...], memory: tuple[Any, ...]) -> bool:
        matched = {name: remembered.value(memory[place]) for name, (place, remembered) in rows.items()}
        return _checked(predicate.function, values[-1], matched)

    return holds


def _checked(function: Callable[..., Any], row: Any, *matched: dict[str, list[Any]]) -> bool:
    """What a predicate says of a row.

    Raises:
        UserCodeError: it raised, or did not say yes or no.
    """
    try:
        found = function(row, *matched)
    except PenstockError:
        raise
    except Exception as error:  # whatever the user's function raises
        raise raised(f"the condition {function_name(function)}", row, error) from error
    if not isinstance(found, bool | np.bool_):
        raise UserCodeError(
            f"the condition {function_name(function)} returned {shown(found)}, not True or False; row: {shown(row)}"
        )
    return bool(found)


class _RightBefore(NamedTuple):
    """What of a condition asks for the row right before."""

    asked: dict[str, int]
    """The columns of that row, by name, with their places among the values of rows."""
    row: dict[str, int]
    """The same of the row itself."""
    holds: pl.Expr


def _asked(condition: Condition | None) -> Sequence[tuple[str, Asked]]:
    return () if condition is None else condition.asked


def _can_be_columns(
    automaton: Automaton | RegularAutomaton, number: int, asked: Sequence[Asked], evaluator: Evaluator
) -> bool:
    """Whether a condition can be computed for all rows at once: the row right before is then that of the match.

    That is so where rows of a match follow each other without gaps, but for its first row.
    """
    if isinstance(automaton, Automaton) or automaton.beginning >> number & 1 or not evaluator.never_fails:
        return False
    return all(each.is_right_before for each in asked)


def _numbers(rows: Sequence[Measured]) -> list[int]:
    """The numbers of the matches that rows are of."""
    return [row.match.number for row in rows if isinstance(row.match, Match)]
