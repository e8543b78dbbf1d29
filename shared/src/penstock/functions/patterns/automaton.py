"""Patterns as automata: a position for every occurrence of a variable, and edges to the positions that may come next.

There are no states between rows, as in Glushkov's construction: a partial match is a position, which its last row has,
and the edges that are still open to it. What Flink's NFA says by edges that take, ignore and proceed is said by an edge:
how near its row has to be, and which rows must not come before. An edge is closed by a row that it cannot take if that
has to be next, by a row that fulfils one of its guards, by a row that an edge takes to which it yields, and by a row that
it takes, unless any later one would do. So a partial match is never copied for what it ignores.

`times(3, None)` is three positions, of which the last has an edge to itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Final

from penstock.errors import PipelineError
from penstock.functions.patterns.definitions import (
    Alternatives,
    Contiguity,
    Forbidden,
    Group,
    Part,
    Predicate,
    Variable,
    variables,
)

if TYPE_CHECKING:
    from penstock.expressions import Expr

START: Final = 0
"""The position of a match that has no row yet."""
MOST_POSITIONS: Final = 2_000
_MOST_EDGES: Final = 62
_Path = tuple[int, ...]


@dataclass(frozen=True)
class Guard:
    """Rows that close an edge: between the last row of a match and the one that the edge takes, that one included."""

    condition: int
    immediately: bool
    """Only the row right behind the last one."""


@dataclass(frozen=True)
class Edge:
    """A way for a match to go on."""

    target: int | None
    """The position of the next row. None: the match is complete, unless a guard closes the edge until its time is over,
    or, if all guards look at the next row alone, until that has come."""
    contiguity: Contiguity
    guards: tuple[Guard, ...] = ()
    within_us: int | None = None
    yields_to: tuple[int, ...] = ()
    """Positions of further occurrences of parts that are greedy: a row that an edge to one of them takes closes this one.
    Those edges are tried before it."""


@dataclass(frozen=True)
class Position:
    """A row of a match."""

    name: str
    condition: int
    until: int | None
    """A condition that it must not fulfil."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """A pattern that has been compiled."""

    conditions: tuple[Expr | Predicate | None, ...]
    """What positions and guards name by number; None: every row fulfils it."""
    positions: tuple[Position, ...]
    """The first one is `START` and has no row."""
    edges: tuple[tuple[Edge, ...], ...]
    """Of every position, in the order in which they are tried."""
    accepting: frozenset[int]
    """The positions at which a match is complete."""

    @property
    def waits(self) -> bool:
        """Whether some match is complete only when its time is over."""
        return any(
            edge.target is None and not all(guard.immediately for guard in edge.guards)
            for edges in self.edges
            for edge in edges
        )

    @property
    def may_wait_for_ever(self) -> bool:
        """Whether a partial match without a time may be kept however many rows of its key come."""
        return any(
            edge.target is not None and edge.contiguity != "next" and edge.within_us is None
            for edges in self.edges[START + 1 :]
            for edge in edges
        )

    @cached_property
    def all_open(self) -> tuple[int, ...]:
        """Of every position a bit for each edge."""
        return tuple((1 << len(edges)) - 1 for edges in self.edges)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Of every position the edges at which a match is complete, as bits."""
        return tuple(bits_of(n for n, edge in enumerate(edges) if edge.target is None) for edges in self.edges)

    @cached_property
    def asked(self) -> tuple[int, ...]:
        """Of every position the conditions, as bits, of which a row has to fulfil one to change anything, unless it is
        right behind. -1 if time alone does."""
        return tuple(map(self._asked, self.edges))

    def _asked(self, edges: Sequence[Edge]) -> int:
        if any(edge.within_us is not None for edge in edges):
            return -1
        taking = {self.positions[edge.target].condition for edge in edges if edge.target is not None}
        return bits_of(taking | {guard.condition for edge in edges for guard in edge.guards})

    @cached_property
    def strict(self) -> tuple[int, ...]:
        """Of every position the edges that only the next row can take, as bits."""
        return tuple(bits_of(n for n, edge in enumerate(edges) if edge.contiguity == "next") for edges in self.edges)

    @cached_property
    def beginning(self) -> int:
        """The conditions of rows with which matches begin, as bits."""
        targets = (edge.target for edge in self.edges[START] if edge.target is not None)
        return bits_of(self.positions[target].condition for target in targets)

    @cached_property
    def asked_first(self) -> frozenset[int]:
        """The conditions that the first row of a match is asked."""
        first = [self.positions[edge.target] for edge in self.edges[START] if edge.target is not None]
        until = (position.until for position in first if position.until is not None)
        return frozenset([*(position.condition for position in first), *until])

    @cached_property
    def all_conditions(self) -> int:
        """The conditions that rows are asked, as bits."""
        asked = {position.condition for position in self.positions[1:]}
        asked |= {position.until for position in self.positions if position.until is not None}
        asked |= {guard.condition for edges in self.edges for edge in edges for guard in edge.guards}
        return bits_of(asked)

    @cached_property
    def may_leave_out(self) -> bool:
        """Whether a row that fulfils no condition only makes a gap: no match is complete because it comes."""
        ends = (edge for edges in self.edges for edge in edges if edge.target is None)
        return not any(all(guard.immediately for guard in edge.guards) for edge in ends)

    @cached_property
    def is_ambiguous(self) -> bool:
        """Whether the same rows may have the same names in several ways."""
        targets = ({edge.target for edge in edges if edge.target is not None} for edges in self.edges)
        return any(len({self.positions[each].name for each in some}) < len(some) for some in targets)


def compiled(pattern: Group) -> Automaton:
    """The automaton of a pattern.

    Raises:
        PipelineError: it could match no row at all, forbids rows before its first one, or is too large.
    """
    builder = _Builder()
    ends = builder.group(pattern, (), [_End(START)], None)
    accepting = {end.position for end in ends if not end.guards}
    for end in ends:
        if end.position == START:
            raise PipelineError("match: the pattern could match no row at all; make a part of it not optional")
        if end.position not in accepting:
            builder.connect(end, Edge(None, "followed_by", end.guards))
    edges = tuple(tuple(builder.edges.get(position, {})) for position in range(len(builder.positions)))
    if max(map(len, edges)) > _MOST_EDGES:
        raise PipelineError(
            f"match: a row of the pattern may be followed by one of more than {_MOST_EDGES}; simplify it"
        )
    conditions = tuple(builder.conditions)
    return Automaton(conditions, tuple(builder.positions), edges, frozenset(accepting))


@dataclass(frozen=True)
class _End:
    """A position behind which the next part begins."""

    position: int
    guards: tuple[Guard, ...] = ()
    yields_to: tuple[int, ...] = ()
    """Further occurrences, which hold nobody back at the end of the pattern."""


@dataclass
class _Builder:
    conditions: list[Expr | Predicate | None] = field(default_factory=lambda: [None])
    positions: list[Position] = field(default_factory=lambda: [Position("", 0, None)])
    edges: dict[int, dict[Edge, None]] = field(default_factory=dict[int, dict[Edge, None]])
    _known: dict[_Path, int] = field(default_factory=dict[_Path, int])
    """The positions by their places in the pattern, so that a loop finds them again."""

    def connect(self, end: _End, edge: Edge) -> None:
        self.edges.setdefault(end.position, {})[edge] = None

    def group(
        self,
        group: Group,
        path: _Path,
        ends: Sequence[_End],
        contiguity: Contiguity | None,
        within_us: int | None = None,
        forbidden: Sequence[Forbidden] = (),
    ) -> list[_End]:
        """The ends behind a group, which begins at `ends`, as near to them as `contiguity` says, and behind which rows
        are `forbidden`."""
        found = list(ends)
        for place, part in enumerate(group.parts):
            if place == 0:
                part = replace(
                    part, contiguity=contiguity or part.contiguity, within_us=_least(part.within_us, within_us)
                )
            found = self._part(part, (*path, place), found, _forbidden_behind(group, place, forbidden))
        return found

    def _part(self, part: Part, path: _Path, ends: Sequence[_End], forbidden: Sequence[Forbidden]) -> list[_End]:
        if isinstance(part.body, Forbidden):
            return self._guarded(ends, part.body)
        times = part.times
        until = None if times.until is None else self._condition(times.until)
        left: list[_End] = []
        behind, contiguity = [*ends], part.contiguity
        last = max(times.least, 1) if times.most is None else times.most
        for number in range(1, last + 1):
            before, behind = behind, self._body(part, (*path, number), ends, contiguity, until, forbidden)
            if last > 1 or times.most is None:
                self._check_rows(part, ends, behind)
            if number > times.least:
                left += self._yielding(before, part, (*path, number))
            contiguity = times.contiguity
            ends = self._between(behind, until, forbidden, over=number >= times.least)
        if times.most is not None:
            return left + behind
        self._body(part, (*path, last), ends, times.contiguity, until, forbidden)
        return left + self._yielding(behind, part, (*path, last))

    def _between(
        self, behind: Sequence[_End], until: int | None, forbidden: Iterable[Forbidden], *, over: bool
    ) -> list[_End]:
        """The ends behind an occurrence, as the next one begins there.

        What must not come behind the last occurrence must not come before it either, as in Flink: a row that must not be
        right behind only where the part may be `over`.
        """
        guards = [self._guard(each) for each in forbidden if over or not each.immediately]
        if until is not None:
            guards.append(Guard(until, immediately=False))
        return [reduce(_with, guards, end) for end in behind]

    def _check_rows(self, part: Part, ends: Sequence[_End], behind: Sequence[_End]) -> None:
        """An occurrence without any row could be repeated for ever."""
        if {end.position for end in ends} & {end.position for end in behind}:
            names = ", ".join(variable.name for variable in variables(part.body))
            raise PipelineError(
                f"match: the group of {names} is repeated, and all of it is optional; make one of its parts not optional"
            )

    def _body(
        self,
        part: Part,
        path: _Path,
        ends: Sequence[_End],
        contiguity: Contiguity,
        until: int | None,
        forbidden: Sequence[Forbidden],
    ) -> list[_End]:
        match part.body:
            case Variable(name=name, condition=condition):
                number = self._known.get(path)
                if number is None:
                    number = self._known[path] = len(self.positions)
                    self.positions.append(Position(name, self._condition(condition), until))
                    if number > MOST_POSITIONS:
                        raise PipelineError(
                            f"match: the pattern has more than {MOST_POSITIONS} rows; repeat it less often"
                        )
                for end in ends:
                    within_us = None if end.position == START else part.within_us
                    self.connect(end, Edge(number, contiguity, end.guards, within_us, end.yields_to))
                return [_End(number)]
            case Group() as group:
                return self.group(group, path, ends, contiguity, part.within_us, forbidden)
            case Alternatives(groups=groups):
                return [
                    end
                    for place, group in enumerate(groups)
                    for end in self.group(group, (*path, place), ends, contiguity, part.within_us, forbidden)
                ]
            case Forbidden():
                raise AssertionError("what is forbidden has no rows")

    def _guarded(self, ends: Iterable[_End], forbidden: Forbidden) -> list[_End]:
        guard = self._guard(forbidden)
        found = [_with(end, guard) for end in ends]
        if any(end.position == START for end in found):
            raise PipelineError(
                f"match: {forbidden.name} forbids rows before the first row of a match, where there is no beginning; "
                "begin with a part that is not optional"
            )
        return found

    def _guard(self, forbidden: Forbidden) -> Guard:
        return Guard(self._condition(forbidden.condition), forbidden.immediately)

    def _yielding(self, ends: Sequence[_End], part: Part, path: _Path) -> list[_End]:
        """Ends behind which the match goes on only if the occurrence at `path` does not come first, if that is greedy."""
        if not part.times.greedy:
            return [*ends]
        body = part.body
        while isinstance(body, Group):  # one variable, which is repeated, and optional as a whole
            body, path = body.parts[0].body, (*path, 0, 1)
        return [replace(end, yields_to=(*end.yields_to, self._known[path])) for end in ends]

    def _condition(self, condition: Expr | Predicate | None) -> int:
        for number, known in enumerate(self.conditions):
            if known is condition:
                return number
        self.conditions.append(condition)
        return len(self.conditions) - 1


def _forbidden_behind(group: Group, place: int, behind_group: Sequence[Forbidden]) -> list[Forbidden]:
    """What must not come behind a part of a group, up to the part with rows that follows it."""
    found: list[Forbidden] = []
    for part in group.parts[place + 1 :]:
        if not isinstance(part.body, Forbidden):
            return found
        found.append(part.body)
    return [*found, *behind_group]


def bits_of(numbers: Iterable[int]) -> int:
    """A bit for each of the numbers."""
    return sum(1 << number for number in {*numbers})


def _with(end: _End, guard: Guard) -> _End:
    return end if guard in end.guards else replace(end, guards=(*end.guards, guard))


def _least(one: int | None, other: int | None) -> int | None:
    given = [each for each in (one, other) if each is not None]
    return min(given, default=None)
