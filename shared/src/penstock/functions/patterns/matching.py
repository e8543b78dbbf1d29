"""The search for a pattern in the rows of one key: partial matches, which go on, branch, and end with every row.

A row that is taken becomes a link of a chain that ends at the first row, so that partial matches that begin alike share
what they have in common, as in Flink's shared buffer, and nothing has to be copied or counted. Partial matches are in the
order of their first rows.

What becomes of matches that begin before another one ends is decided as Flink does it. Without skipping each is told when
it is complete. Else a match waits until no partial match begins before it; then it is told, and what its skip strategy
passes over is dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Self, TypeVar

from penstock.functions.patterns.automaton import START, Automaton, Edge, Guard
from penstock.functions.patterns.definitions import Skip


class Row(NamedTuple):
    """A row as the search sees it."""

    number: int
    """The rows of a key are counted in order of event time."""
    time: int
    """Event time in microseconds."""
    fulfilled: int
    """A bit for each condition: whether all of it that looks at this row alone is fulfilled."""
    values: tuple[Any, ...]


class Link(NamedTuple):
    """A row that is taken, with those before it."""

    row: Row
    position: int
    before: Link | None
    memory: tuple[Any, ...]
    """What conditions ask of the rows up to here."""

    def links(self) -> list[Link]:
        """The links of all rows, that of the first one first."""
        found: list[Link] = []
        link: Link | None = self
        while link is not None:
            found.append(link)
            link = link.before
        return found[::-1]


class Partial(NamedTuple):
    """A match that may go on."""

    first: Row
    last: Link
    open: int
    """A bit for each edge of the last position."""
    fresh: bool
    """Whether no row has come behind the last one."""


class Match(NamedTuple):
    """A match that is complete."""

    first: Row
    last: Link
    number: int = 0
    """Among those of its key, from 1, where they are counted."""


M = TypeVar("M", Match, Partial)
A = TypeVar("A")
LookingBack = Callable[[tuple[Any, ...], tuple[Any, ...]], "bool | None"]
"""Of the values of a row and the memory of a partial match: whether the row fulfils what of a condition looks back."""


@dataclass(frozen=True)
class Search(Generic[A]):
    """What is searched for.

    Args:
        automaton: the pattern.
        within_us: how long after its first row the last row of a match comes at most, not included; None: ever.
        skip: where the search goes on behind a match.
        looking_back: what of conditions looks at the rows of the partial match, by number of the condition.
        remember: the memory of a match with one more row, of the memory before, the row's position and its values.
        remembered: the memory of a match without rows.
        subsets: names that stand for the rows of several variables.
        counts_matches: whether the numbers of matches are asked for.
    """

    automaton: A
    within_us: int | None
    skip: Skip
    looking_back: Mapping[int, LookingBack]
    remember: Callable[[tuple[Any, ...], int, tuple[Any, ...]], tuple[Any, ...]]
    remembered: tuple[Any, ...] = ()
    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    counts_matches: bool = False

    def fulfils(self, condition: int, row: Row, memory: tuple[Any, ...]) -> bool:
        """Whether a row fulfils a condition behind such rows."""
        if not row.fulfilled >> condition & 1:
            return False
        looking_back = self.looking_back.get(condition)
        return looking_back is None or looking_back(row.values, memory) is True


class RowSearch(ABC):
    """The search in the rows of one key, which collects what is decided."""

    def __init__(self) -> None:
        self.told: list[tuple[int, Match]] = []
        """Matches, with the times of the rows, or the ends of the times, that decided them."""
        self.given_up: list[tuple[int, Partial]] = []
        """Partial matches whose time is over, with the end of it."""

    @property
    @abstractmethod
    def goes_on(self) -> bool:
        """Whether there are rows of which it is not decided whether a match has them."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""

    @property
    @abstractmethod
    def deadline(self) -> int | None:
        """When the time of the earliest match that may go on is over."""

    @abstractmethod
    def take_rows(self, rows: Iterable[Row]) -> None:
        """The next rows, with none left out before the last one of them."""

    def leave_out(self, time: int) -> None:
        """Rows have come that fulfil no condition, the first one at `time`."""
        self.pass_time(time)
        if self.goes_on:
            self.told += [(time, match) for match in self.pass_gap()]

    def pass_time(self, time: int) -> None:
        """All rows before `time` have come."""
        while (deadline := self.deadline) is not None and deadline <= time:
            told, given_up = self.pass_deadline()
            self.told += [(deadline - 1, match) for match in told]
            self.given_up += [(deadline - 1, partial) for partial in given_up]

    @abstractmethod
    def pass_gap(self) -> list[Match]:
        """Rows that fulfil no condition have come, where the automaton says that they may be left out; returns the
        matches that are decided by them."""

    @abstractmethod
    def pass_deadline(self) -> tuple[list[Match], list[Partial]]:
        """All rows before `deadline` have come; returns the matches that are decided by it, and the partial ones whose
        time is over, where these are told."""

    @abstractmethod
    def end(self) -> list[Match]:
        """No row comes any more that could go on with a match; returns the matches that are decided by it."""

    @abstractmethod
    def packed(self) -> tuple[list[Row], list[int]]:
        """What is known of a key: rows, and integers that say the rest."""


class KeySearch(RowSearch):
    """The search for all matches."""

    def __init__(
        self, search: Search[Automaton], partial: Iterable[Partial] = (), complete: Iterable[Match] = ()
    ) -> None:
        super().__init__()
        self.partial = list(partial)
        """In order of their first rows."""
        self.complete = list(complete)
        """Those that wait for earlier ones."""
        self._search = search

    @property
    def goes_on(self) -> bool:
        return bool(self.partial)

    @property
    def is_empty(self) -> bool:
        return not self.partial and not self.complete

    @property
    def deadline(self) -> int | None:
        within_us = self._search.within_us
        return None if within_us is None or not self.partial else self.partial[0].first.time + within_us

    def take_rows(self, rows: Iterable[Row]) -> None:
        beginning = self._search.automaton.beginning
        for row in rows:
            if self.goes_on:
                self.pass_time(row.time)
            elif not row.fulfilled & beginning:
                continue
            self.told += [(row.time, match) for match in self.take(row)]

    def take(self, row: Row) -> list[Match]:
        """The next row, when the deadlines up to its time have been passed; returns the matches that it decides."""
        partial: list[Partial] = []
        complete: list[Match] = []
        asked = self._search.automaton.asked
        for each in self.partial:
            if not (each.fresh or row.fulfilled & asked[each.last.position]):
                partial.append(each)
                continue
            still_open = self._go_on(each, row, partial, complete)
            if still_open:
                partial.append(each._replace(open=still_open, fresh=False))
        entered: set[int | None] = set()
        for edge in self._search.automaton.edges[START]:
            if edge.target in entered or not entered.isdisjoint(edge.yields_to):
                continue
            if self._takes(edge, row, self._search.remembered):
                entered.add(edge.target)
                self._enter(edge, row, None, row, partial, complete)
        self.partial = partial
        return self._decided(complete)

    def pass_gap(self) -> list[Match]:
        strict = self._search.automaton.strict
        partial: list[Partial] = []
        for each in self.partial:
            if not each.fresh:
                partial.append(each)
            elif still_open := each.open & ~strict[each.last.position]:
                partial.append(each._replace(open=still_open, fresh=False))
        self.partial = partial
        return self._decided([])

    def _go_on(self, each: Partial, row: Row, partial: list[Partial], complete: list[Match]) -> int:
        """Add what becomes of a partial match with this row; returns the edges that are open behind it."""
        still_open, entered = each.open, 0
        for place, edge in enumerate(self._search.automaton.edges[each.last.position]):
            bit = 1 << place
            if not still_open & bit:
                continue
            if self._is_closed(edge, each, row) or any(entered >> position & 1 for position in edge.yields_to):
                still_open ^= bit
            elif edge.target is None:
                if all(guard.immediately for guard in edge.guards):
                    complete.append(Match(each.first, each.last))
                    still_open &= ~self._search.automaton.ends[each.last.position]
            elif self._takes(edge, row, each.last.memory):
                if not entered >> edge.target & 1:  # two edges to one position make the same match
                    self._enter(edge, row, each.last, each.first, partial, complete)
                    entered |= 1 << edge.target
                if edge.contiguity != "followed_by_any":
                    still_open ^= bit
            elif edge.contiguity == "next" or self._is_ended(edge, each, row):
                still_open ^= bit
        return still_open

    def _is_ended(self, edge: Edge, each: Partial, row: Row) -> bool:
        """Whether the row would be the next occurrence if it did not end the occurrences."""
        assert edge.target is not None
        position = self._search.automaton.positions[edge.target]
        if position.until is None or edge.contiguity == "followed_by_any":
            return False
        return self._search.fulfils(position.condition, row, each.last.memory)

    def _is_closed(self, edge: Edge, each: Partial, row: Row) -> bool:
        if edge.within_us is not None and row.time - each.last.row.time >= edge.within_us:
            return True
        return any(self._stops(guard, each, row) for guard in edge.guards)

    def _stops(self, guard: Guard, each: Partial, row: Row) -> bool:
        return (each.fresh or not guard.immediately) and self._search.fulfils(guard.condition, row, each.last.memory)

    def _takes(self, edge: Edge, row: Row, memory: tuple[Any, ...]) -> bool:
        assert edge.target is not None
        position = self._search.automaton.positions[edge.target]
        if position.until is not None and self._search.fulfils(position.until, row, memory):
            return False
        return self._search.fulfils(position.condition, row, memory)

    def _enter(
        self, edge: Edge, row: Row, before: Link | None, first: Row, partial: list[Partial], complete: list[Match]
    ) -> None:
        assert edge.target is not None
        automaton, memory = self._search.automaton, self._search.remembered if before is None else before.memory
        link = Link(row, edge.target, before, self._search.remember(memory, edge.target, row.values))
        if edge.target in automaton.accepting:
            complete.append(Match(first, link))
        if still_open := automaton.all_open[edge.target]:
            partial.append(Partial(first, link, still_open, fresh=True))

    def pass_deadline(self) -> tuple[list[Match], list[Partial]]:
        first = self.partial[0].first.time
        over = [each for each in self.partial if each.first.time == first]
        self.partial = self.partial[len(over) :]
        complete = [Match(each.first, each.last) for each in over if self._is_complete_in_the_end(each)]
        given_up = [each for each in over if not self._is_complete_in_the_end(each)]
        return self._decided(complete), self._told_apart(given_up)

    def end(self) -> list[Match]:
        complete = [Match(each.first, each.last) for each in self.partial if self._is_complete_in_the_end(each)]
        self.partial = []
        return self._decided(complete)

    def _is_complete_in_the_end(self, each: Partial) -> bool:
        return bool(each.open & self._search.automaton.ends[each.last.position])

    # -- skipping -------------------------------------------------------------------------------------------------------

    def _decided(self, complete: list[Match]) -> list[Match]:
        """Those of the matches that are complete now, and of those that wait, that are to be told."""
        complete = self._told_apart(complete)
        skip = self._search.skip
        if skip.to == "none" or not (complete or self.complete):
            return complete
        self.complete = sorted([*self.complete, *complete], key=lambda match: match.first.number)
        found: list[Match] = []
        while self.complete and not (self.partial and self.partial[0].first.number < self.complete[0].first.number):
            match = self.complete.pop(0)
            found.append(match)
            passed = self._passed_by(match)
            self.partial = [each for each in self.partial if each.first.number >= passed]
            self.complete = [each for each in self.complete if each.first.number >= passed]
        return found

    def _told_apart(self, matches: list[M]) -> list[M]:
        """The first ones of those that are the same rows with the same names."""
        if not self._search.automaton.is_ambiguous or len(matches) < 2:
            return matches
        return list({self._names(match): match for match in reversed(matches)}.values())[::-1]

    def _names(self, match: Match | Partial) -> tuple[tuple[int, str], ...]:
        positions = self._search.automaton.positions
        return tuple((link.row.number, positions[link.position].name) for link in match.last.links())

    def _passed_by(self, match: Match) -> int:
        """The number of the first row at which another match may begin."""
        skip = self._search.skip
        if skip.to == "next":
            return match.first.number + 1
        if skip.to == "past_last":
            return match.last.row.number + 1
        positions = self._search.automaton.positions
        rows = [link.row for link in match.last.links() if positions[link.position].name == skip.variable]
        if not rows:
            return match.first.number
        return rows[0 if skip.to == "first" else -1].number

    # -- as integers ----------------------------------------------------------------------------------------------------

    def packed(self) -> tuple[list[Row], list[int]]:
        places: dict[int, int] = {}
        links: list[Link] = []
        for link in (each.last for each in (*self.partial, *self.complete)):
            _add(link, places, links)
        rows = {link.row.number: link.row for link in links}
        rows.update((each.first.number, each.first) for each in (*self.partial, *self.complete))
        ordered = sorted(rows)
        row_places = {number: place for place, number in enumerate(ordered)}
        numbers = [len(links), len(self.partial)]
        for link in links:
            before = -1 if link.before is None else places[id(link.before)]
            numbers += [row_places[link.row.number], link.position, before]
        for each in self.partial:
            numbers += [row_places[each.first.number], places[id(each.last)], each.open, int(each.fresh)]
        for match in self.complete:
            numbers += [row_places[match.first.number], places[id(match.last)]]
        return [rows[number] for number in ordered], numbers

    @staticmethod
    def is_fruitless(search: Search[Automaton], numbers: Sequence[int]) -> bool:
        """Whether no match would be told of what is packed as these integers if no row came any more."""
        links, partial = numbers[0], numbers[1]
        return len(numbers) == 2 + 3 * links + 4 * partial and not any(search.automaton.ends)

    @staticmethod
    def minds_gaps(numbers: Sequence[int]) -> bool:
        """Whether `pass_gap` would change anything of what is packed as these integers."""
        links, partial = numbers[0], numbers[1]
        begin = 2 + 3 * links
        return any(numbers[begin + 3 : begin + 4 * partial : 4])

    @staticmethod
    def begun(numbers: Sequence[int]) -> tuple[int, int | None]:
        """Of what is packed as these integers: how many partial matches, and the row that the earliest begins with."""
        links, partial = numbers[0], numbers[1]
        return partial, numbers[2 + 3 * links] if partial else None

    @classmethod
    def unpacked(cls, search: Search[Automaton], rows: Sequence[Row], numbers: Sequence[int]) -> Self:
        """The opposite of `packed`."""
        given = iter(numbers)
        links: list[Link] = []
        number_of_links, number_of_partial = next(given), next(given)
        for _ in range(number_of_links):
            place, position, behind = next(given), next(given), next(given)
            before = None if behind < 0 else links[behind]
            memory = search.remembered if before is None else before.memory
            row = rows[place]
            links.append(Link(row, position, before, search.remember(memory, position, row.values)))
        partial = [
            Partial(rows[next(given)], links[next(given)], next(given), bool(next(given)))
            for _ in range(number_of_partial)
        ]
        return cls(search, partial, _matches(given, rows, links))


def _add(link: Link | None, places: dict[int, int], links: list[Link]) -> None:
    """Add a chain to the links, what is before a link in front of it."""
    chain: list[Link] = []
    while link is not None and id(link) not in places:
        chain.append(link)
        link = link.before
    for each in reversed(chain):
        places[id(each)] = len(links)
        links.append(each)


def _matches(given: Iterator[int], rows: Sequence[Row], links: Sequence[Link]) -> Iterator[Match]:
    for place in given:
        yield Match(rows[place], links[next(given)])
