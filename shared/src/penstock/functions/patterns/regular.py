"""Patterns as SQL means them: regular expressions over rows, of whose matches the preferred one counts.

`MATCH_RECOGNIZE` gives every first row one match at most. Of all that begin with it that is the first one in the order in
which an engine that backtracks would try them: an alternative before those behind it, one more occurrence before none if
a quantifier is greedy, after it if it is reluctant. The rows of a match follow each other without gaps.

A pattern becomes positions, which rows have, and for each the positions that may come next in order of preference, as in
Glushkov's construction. The search does not backtrack: its threads are all beginnings that may still become the match,
the preferred one first (Pike's simulation, which Thompson's and Cox's articles describe). A thread that is complete ends
those behind it, and is the match as soon as none before it is left. Of two threads at one position of which conditions
will ask the same, the second one can never be preferred and ends.

Where no condition looks back, what becomes of the threads follows from their positions and from the conditions that the
row fulfils. It is computed once and looked up from then on: a DFA that is built as it is needed, as in RE2. It finds
where a match ends; threads then go through the rows of the match alone.

One attempt goes on at a time. Rows from its first one on are kept, and the next attempt goes through them anew; so rows
are all that there is to keep, and everything else follows from them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol, Self

from penstock.core.times import MIN_WATERMARK
from penstock.errors import PipelineError, UserCodeError
from penstock.functions.patterns.automaton import MOST_POSITIONS, START, Position, bits_of
from penstock.functions.patterns.definitions import Alternatives, Group, Part, Predicate, Variable
from penstock.functions.patterns.matching import Link, Match, Partial, Row, RowSearch, Search

if TYPE_CHECKING:
    from penstock.expressions import Expr

MOST_THREADS: Final = 100_000
"""So many beginnings of one match may go on: more are a search that would take longer and longer, and all memory."""
_MOST_REACHED: Final = 10_000
"""So much of what attempts come to is kept, and of what rows lead to from there."""


@dataclass(frozen=True, eq=False)
class RegularAutomaton:
    """A regular expression over rows that has been compiled."""

    conditions: tuple[Expr | Predicate | None, ...]
    """What positions name by number; None: every row fulfils it."""
    positions: tuple[Position, ...]
    """The first one is `START` and has no row."""
    ways: tuple[tuple[int, ...], ...]
    """Of every position those that may come next, as far as they are preferred to the end of the match."""
    accepting: frozenset[int]
    """The positions at which a match may end."""
    hidden: frozenset[int]
    """The positions whose rows are not shown."""

    @cached_property
    def asked(self) -> tuple[int, ...]:
        """Of every position its condition."""
        return tuple(position.condition for position in self.positions)

    @cached_property
    def shortest(self) -> int:
        """How many rows a match has at least."""
        reached, length = {START}, 0
        while not reached & self.accepting:
            reached, length = {way for position in reached for way in self.ways[position]}, length + 1
        return length

    @cached_property
    def beginning(self) -> int:
        """The conditions of rows with which matches begin, as bits."""
        return bits_of(self.positions[way].condition for way in self.ways[START])

    @property
    def first_names(self) -> frozenset[str]:
        """The variables whose rows may be the first one of a match."""
        return frozenset(self.positions[way].name for way in self.ways[START])

    @cached_property
    def asked_first(self) -> frozenset[int]:
        """The conditions that the first row of a match is asked."""
        return frozenset(self.asked[way] for way in self.ways[START])

    @cached_property
    def all_conditions(self) -> int:
        """The conditions that rows are asked, as bits."""
        return bits_of(position.condition for position in self.positions[1:])

    @property
    def may_leave_out(self) -> bool:
        """Whether a row that fulfils no condition only makes a gap: always, for gaps end what goes on."""
        return True

    @cached_property
    def start(self) -> Reached:
        """Where an attempt without rows is."""
        return Reached((START,), complete=False)

    @cached_property
    def _reached(self) -> dict[tuple[int, ...], Reached]:
        return {}

    def after(self, reached: Reached, fulfilled: int) -> Reached:
        """Where an attempt is behind a row that fulfils these conditions, none of which looks back."""
        ways: dict[int, None] = {}
        complete = False
        for way in (way for position in reached.positions for way in self.ways[position]):
            if fulfilled >> self.asked[way] & 1:
                ways[way] = None
                if way in self.accepting:
                    complete = True
                    break
        positions = tuple(way for way in ways if self.ways[way])
        if len(self._reached) >= _MOST_REACHED:
            self._reached.clear()
            self.start.after.clear()
        found = self._reached.setdefault((*positions, -complete), Reached(positions, complete=complete))
        if len(reached.after) < _MOST_REACHED:
            reached.after[fulfilled] = found
        return found


@dataclass(eq=False)
class Reached:
    """What an attempt has come to: the positions of its threads, the preferred one first."""

    positions: tuple[int, ...]
    complete: bool
    """Whether the row that led here may be the last one of the match."""
    after: dict[int, Reached] = field(default_factory=dict[int, "Reached"])
    """What rows lead to, by the conditions that they fulfil, as far as it has been computed."""


def compiled_regular(pattern: Group) -> RegularAutomaton:
    """The automaton of a regular expression: a pattern whose rows are all `next` to each other, with no other parts.

    Raises:
        PipelineError: it could match no row at all, or is too large.
    """
    builder = _Builder()
    start = builder.group(pattern, None, shown=pattern.shown)
    following = [_following(start), *(_following(after) for after in builder.after)]
    if None in following[START]:
        raise PipelineError("the pattern could match no row at all; let a part of it occur once at least")
    cut = [each[: each.index(None)] if None in each else each for each in following]
    return RegularAutomaton(
        tuple(builder.conditions),
        tuple(builder.positions),
        tuple(tuple(way for way in each if way is not None) for each in cut),
        frozenset(position for position, each in enumerate(following) if None in each),
        frozenset(builder.hidden),
    )


@dataclass(eq=False)
class _Fork:
    """A place between rows. The ways are tried in order: a position, another fork, or None, the end of the match."""

    ways: list[int | _Fork | None] = field(default_factory=list["int | _Fork | None"])
    behind: tuple[int | _Fork | None, ...] = ()
    """Of a repetition what comes behind it, which is where an occurrence without any row leads."""


_Place = int | _Fork | None


def _following(place: _Place) -> list[int | None]:
    """The positions behind a place in order of preference, each once."""
    found: dict[int | None, None] = {}
    passed: set[_Fork] = set()
    waiting = [place]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, _Fork):
            found.setdefault(each)
        elif each in passed:
            waiting += each.behind
        else:
            passed.add(each)
            waiting += reversed(each.ways)
    return list(found)


@dataclass
class _Builder:
    """Makes a pattern from its end to its beginning: each part is told what comes behind it."""

    conditions: list[Expr | Predicate | None] = field(default_factory=lambda: [None])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    """The places of the conditions by variables: also of those that have none yet, for rows that were kept know their
    conditions by number."""
    positions: list[Position] = field(default_factory=lambda: [Position("", 0, None)])
    after: list[_Place] = field(default_factory=list[_Place])
    """What comes behind each position but the first."""
    hidden: list[int] = field(default_factory=list[int])

    def group(self, group: Group, behind: _Place, *, shown: bool) -> _Place:
        for part in reversed(group.parts):
            behind = self._part(part, behind, shown=shown)
        return behind

    def _part(self, part: Part, behind: _Place, *, shown: bool) -> _Place:
        times = part.times
        if times.most is None:
            again = _Fork(behind=(behind,))
            again.ways = self._order(self._body(part, again, shown=shown), behind, greedy=times.greedy)
            behind = again
        else:
            end = behind
            for _ in range(times.most - times.least):
                behind = _Fork(self._order(self._body(part, behind, shown=shown), end, greedy=times.greedy))
        for _ in range(times.least):
            behind = self._body(part, behind, shown=shown)
        return behind

    @staticmethod
    def _order(more: _Place, end: _Place, *, greedy: bool) -> list[_Place]:
        return [more, end] if greedy else [end, more]

    def _body(self, part: Part, behind: _Place, *, shown: bool) -> _Place:
        match part.body:
            case Variable() as variable:
                return self._position(variable, behind, shown=shown)
            case Group() as group:
                return self.group(group, behind, shown=shown and group.shown)
            case Alternatives(groups=groups):
                return _Fork([self.group(group, behind, shown=shown and group.shown) for group in groups])
            case _:
                raise AssertionError("nothing is forbidden in a regular expression")

    def _position(self, variable: Variable, behind: _Place, *, shown: bool) -> int:
        number = len(self.positions)
        if number > MOST_POSITIONS:
            raise PipelineError(f"the pattern has more than {MOST_POSITIONS} rows; repeat its parts less often")
        if variable.name not in self.numbers:
            self.numbers[variable.name] = len(self.conditions)
            self.conditions.append(variable.condition)
        self.positions.append(Position(variable.name, self.numbers[variable.name], None))
        self.after.append(behind)
        if not shown:
            self.hidden.append(number)
        return number


# -- the search --------------------------------------------------------------------------------------------------------


class _Attempt(Protocol):
    """The search for the preferred match among those that begin with one row."""

    taken: int
    """How many rows it has."""

    @property
    def goes_on(self) -> bool:
        """Whether another row could change which match it is."""
        ...

    def take(self, rows: Sequence[Row], begin: int, limit: int) -> None:
        """Take the rows from place `begin` up to `limit` that it has not taken yet, until it ends."""

    def match(self, rows: Sequence[Row], begin: int) -> Link | None:
        """The last row of the match that it is, if any."""


class _Threads:
    """An attempt whose threads remember rows."""

    def __init__(self, search: Search[RegularAutomaton]) -> None:
        self.taken = 0
        self._search = search
        self._threads: list[Link | None] = [None]
        """In order of preference; None has no row yet."""
        self._found: Link | None = None
        """The match, unless a thread becomes one, which are all preferred to it."""

    @property
    def goes_on(self) -> bool:
        return bool(self._threads)

    def take(self, rows: Sequence[Row], begin: int, limit: int) -> None:
        for place in range(begin + self.taken, limit):
            self._threads = self._stepped(rows[place])
            self.taken += 1
            if not self._threads:
                return

    def match(self, rows: Sequence[Row], begin: int) -> Link | None:
        return self._found

    def _stepped(self, row: Row) -> list[Link | None]:
        """The threads with one more row."""
        search = self._search
        automaton, looking_back = search.automaton, search.looking_back
        threads: list[Link | None] = []
        known: set[object] | None = set() if len(self._threads) > 1 else None
        """Of one thread all ways lead to different positions."""
        for thread in self._threads:
            if len(threads) > MOST_THREADS:
                raise UserCodeError(_too_many_threads())
            position, memory = (START, search.remembered) if thread is None else (thread.position, thread.memory)
            for way in automaton.ways[position]:
                condition = automaton.asked[way]
                if not row.fulfilled >> condition & 1:
                    continue
                grown = search.remember(memory, way, row.values)
                back = looking_back.get(condition)
                if back is not None and back(row.values, grown) is not True:
                    continue
                if known is not None and _is_known((way, grown), known):
                    continue
                link = Link(row, way, thread, grown)
                if automaton.ways[way]:
                    threads.append(link)
                if way in automaton.accepting:
                    self._found = link
                    return threads
        return threads


class _Positions:
    """An attempt whose threads differ by their positions alone, because no condition looks back."""

    def __init__(self, search: Search[RegularAutomaton]) -> None:
        self.taken = 0
        self._search = search
        self._reached = search.automaton.start
        self._length = 0
        """How many rows the match has, as far as one is found."""

    @property
    def goes_on(self) -> bool:
        return bool(self._reached.positions)

    def take(self, rows: Sequence[Row], begin: int, limit: int) -> None:
        reached, taken, automaton = self._reached, self.taken, self._search.automaton
        for place in range(begin + taken, limit):
            fulfilled = rows[place].fulfilled
            reached = reached.after.get(fulfilled) or automaton.after(reached, fulfilled)
            taken += 1
            if reached.complete:
                self._length = taken
            if not reached.positions:
                break
        self._reached, self.taken = reached, taken

    def match(self, rows: Sequence[Row], begin: int) -> Link | None:
        if not self._length:
            return None
        threads = _Threads(self._search)
        threads.take(rows, begin, begin + self._length)
        return threads.match(rows, begin)


class PreferredSearch(RowSearch):
    """The search for preferred matches.

    Args:
        search: what is searched for; conditions that look back see the row itself as the last one of the match.
        rows: those of the attempt that goes on, and what else has come since its first row.
        matches: how many there have been.
    """

    def __init__(self, search: Search[RegularAutomaton], rows: Iterable[Row] = (), matches: int = 0) -> None:
        super().__init__()
        self.rows = list(rows)
        self.matches = matches
        self._search = search
        self._begin()

    @property
    def goes_on(self) -> bool:
        return bool(self.rows)

    @property
    def is_empty(self) -> bool:
        return not self.rows and not (self.matches and self._search.counts_matches)

    @property
    def deadline(self) -> int | None:
        within_us = self._search.within_us
        return None if within_us is None or not self.rows else self.rows[0].time + within_us

    def take_rows(self, rows: Iterable[Row]) -> None:
        self.rows += rows
        self.told += self._go_on()

    def pass_gap(self) -> list[Match]:
        return self.end()

    def pass_deadline(self) -> tuple[list[Match], list[Partial]]:
        first, found = self.rows[0], self._go_on()
        if self.rows and self.rows[0] is first:
            found += self._go_on(decide=True)
        return [match for _, match in found], []

    def end(self) -> list[Match]:
        found: list[Match] = []
        shortest = self._search.automaton.shortest
        while len(self.rows) >= shortest:
            found += [match for _, match in self._go_on(decide=True)]
        self.rows.clear()
        self._begin()
        return found

    def _begin(self) -> None:
        self._attempt = self._new_attempt()

    def _new_attempt(self) -> _Attempt:
        return _Threads(self._search) if self._search.looking_back else _Positions(self._search)

    def _go_on(self, *, decide: bool = False) -> list[tuple[int, Match]]:
        """Take the rows that are not taken; returns the matches that are decided, with the times when they are.

        Args:
            decide: end the current attempt then, and continue with the rows behind its first one.
        """
        rows, attempt = self.rows, self._attempt
        within_us, beginning = self._search.within_us, self._search.automaton.beginning
        found: list[tuple[int, Match]] = []
        begin, now = 0, MIN_WATERMARK
        while begin + attempt.taken < len(rows) or decide:
            limit = len(rows)
            if within_us is not None and rows[-1].time >= (deadline := rows[begin].time + within_us):
                limit = bisect_left(rows, deadline, begin, key=_time)
                attempt.take(rows, begin, limit)
                now = max(now, deadline - 1 if attempt.goes_on else rows[begin + attempt.taken - 1].time)
            else:
                attempt.take(rows, begin, limit)
                if attempt.goes_on and not decide:
                    break
                now = max(now, rows[begin + attempt.taken - 1].time)
            decide = False
            link, first = attempt.match(rows, begin), rows[begin]
            if link is None:
                begin += 1
            else:
                self.matches += 1
                found.append((now, Match(first, link, self.matches)))
                begin += self._passed_by(link, first) - first.number
            while begin < len(rows) and not rows[begin].fulfilled & beginning:
                begin += 1
            attempt = self._new_attempt()
        self._attempt = attempt
        del rows[:begin]
        return found

    def _passed_by(self, link: Link, first: Row) -> int:
        """The number of the first row at which another match may begin."""
        skip = self._search.skip
        if skip.to == "next":
            return first.number + 1
        if skip.to == "past_last":
            return link.row.number + 1
        names = self._search.subsets.get(skip.variable, (skip.variable,))
        positions = self._search.automaton.positions
        rows = [each.row for each in link.links() if positions[each.position].name in names]
        if not rows or (row := rows[0 if skip.to == "first" else -1]).number == first.number:
            where = "the match has no such row" if not rows else "that is where it began, so it would be found for ever"
            raise UserCodeError(
                f"a match was found, and the search cannot go on at the {skip.to} {skip.variable} of it: {where}; write "
                "AFTER MATCH SKIP TO NEXT ROW, or PAST LAST ROW"
            )
        return row.number

    # -- as integers ----------------------------------------------------------------------------------------------------

    def packed(self) -> tuple[list[Row], list[int]]:
        return self.rows, [self.matches, *(row.fulfilled for row in self.rows)]

    @staticmethod
    def is_fruitless(search: Search[RegularAutomaton], numbers: Sequence[int]) -> bool:
        """Whether nothing would be told and kept of what is packed as these integers if no row came any more."""
        return len(numbers) - 1 < search.automaton.shortest and not search.counts_matches

    @staticmethod
    def minds_gaps(numbers: Sequence[int]) -> bool:
        """Whether `pass_gap` would change anything of what is packed as these integers."""
        return len(numbers) > 1

    @staticmethod
    def begun(numbers: Sequence[int]) -> tuple[int, int | None]:
        """Of what is packed as these integers: the number of attempts that go on, and the row that the earliest begins
        with."""
        return (1, 0) if len(numbers) > 1 else (0, None)

    @classmethod
    def unpacked(cls, search: Search[RegularAutomaton], rows: Sequence[Row], numbers: Sequence[int]) -> Self:
        """The opposite of `packed`."""
        matches, *fulfilled = numbers
        both = zip(rows, fulfilled, strict=True)
        return cls(search, [Row(row.number, row.time, conditions, row.values) for row, conditions in both], matches)


def _time(row: Row) -> int:
    return row.time


def _too_many_threads() -> str:
    return (
        f"more than {MOST_THREADS:,} ways to go on with a match are kept apart, because conditions ask for what differs "
        "between them; let them ask for less of the rows before, such as the first and the last one, or let fewer rows "
        "fulfil conditions of several variables"
    )


def _is_known(thread: tuple[object, ...], known: set[object]) -> bool:
    """Whether there is such a thread already; adds it."""
    try:
        if thread in known:
            return True
        known.add(thread)
    except TypeError:  # it remembers lists, which are not compared
        pass
    return False
