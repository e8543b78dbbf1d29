"""What a pattern is made of: rows with names and conditions, how near they are to each other, and how often they occur.

The words are those of Flink's CEP library. Two rows of a match that follow each other in the pattern are

* `next`: one right behind the other (strict contiguity);
* `followed_by`: the later one is the first behind the earlier one that fulfils its condition (relaxed contiguity);
* `followed_by_any`: the later one is any that fulfils its condition (non-deterministic relaxed contiguity), so that one
  beginning may have many matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.errors import PipelineError, function_name

if TYPE_CHECKING:
    from penstock.expressions import Expr

DEEPEST: Final = 50
"""How many groups may stand one within the other."""
Contiguity = Literal["next", "followed_by", "followed_by_any"]


@dataclass(frozen=True, eq=False)
class Predicate:
    """A condition that is a Python function."""

    function: Callable[..., Any]
    """Of a row; or of a row and of the rows that are matched before it, a list of them by every name."""
    looks_back: bool
    """Whether it takes the rows that are matched before."""

    def __str__(self) -> str:
        return f"{function_name(self.function)}({'row, matched' if self.looks_back else 'row'})"


@dataclass(frozen=True, eq=False)
class Variable:
    """Rows of a match that have a name in common."""

    name: str
    condition: Expr | Predicate | None
    """None: every row fulfils it."""


@dataclass(frozen=True, eq=False)
class Forbidden:
    """A row that must not occur between the rows of the parts around it; the row of the part behind is looked at, too.

    If the part before is repeated it must not occur between its occurrences either. A row that must not be right behind
    must not be right behind those occurrences, of which one could be the last."""

    name: str
    condition: Expr | Predicate
    immediately: bool
    """Only the row right behind the part before must not be one."""


@dataclass(frozen=True, eq=False)
class Group:
    """Parts one after the other."""

    parts: tuple[Part, ...]
    shown: bool = True
    """Whether `ALL ROWS PER MATCH` of SQL gives its rows; what stands in `{- -}` is matched, but not shown."""


@dataclass(frozen=True, eq=False)
class Alternatives:
    """One of several groups."""

    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Times:
    """How often a part occurs in a match."""

    least: int = 1
    most: int | None = 1
    """None: any number."""
    contiguity: Contiguity = "followed_by"
    """Of one occurrence and the next."""
    greedy: bool = False
    """Whether a match goes on behind the part only if no further occurrence comes first, which may be the first one."""
    until: Expr | Predicate | None = None
    """A row that fulfils it is no occurrence, and none follows those before it. Before the first one it ends them if it
    would have been that one, unless any later row would do."""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a pattern at its place."""

    body: Variable | Forbidden | Group | Alternatives
    contiguity: Contiguity = "followed_by"
    """To the part before; of the first part of a pattern it says nothing."""
    times: Times = Times()
    within_us: int | None = None
    """How much earlier the row before is at most, not included."""


@dataclass(frozen=True)
class Skip:
    """Where the search goes on behind a match: Flink's AfterMatchSkipStrategy."""

    to: Literal["none", "next", "past_last", "first", "last"]
    """`none`: matches of all beginnings, also several of one. `next`: one match of each beginning. `past_last`: behind
    the last row of the match. `first`, `last`: at the first or last row of the variable."""
    variable: str = ""

    def __str__(self) -> str:
        return f"{self.to} {self.variable}".rstrip()


@dataclass(frozen=True)
class Regular:
    """What `MATCH_RECOGNIZE` says besides: the pattern is a regular expression, and its preferred match counts.

    All its rows are `next` to each other, `greedy` says whether one more occurrence is preferred to none, and conditions
    that look back see the row itself as the last one of the match.
    """

    all_rows: bool = False
    """Whether every row of a match is measured, and sees the match up to it: ALL ROWS PER MATCH."""
    subsets: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names that stand for the rows of several variables."""
    rowtime: str | None = None
    """A column of results that holds their event time: MATCH_ROWTIME."""


Body = Variable | Forbidden | Group | Alternatives


def every_body(body: Body) -> Iterator[Body]:
    """What a pattern is made of, from its first row to its last one."""
    yield body
    match body:
        case Variable() | Forbidden():
            pass
        case Group(parts=parts):
            for part in parts:
                yield from every_body(part.body)
        case Alternatives(groups=groups):
            for group in groups:
                yield from every_body(group)


def check_depth(pattern: Group) -> None:
    """Groups stand one within the other only as deep as all that reads them can follow.

    Raises:
        PipelineError: they are deeper.
    """
    level = [pattern]
    for _ in range(DEEPEST + 1):
        level = [inner for group in level for inner in _groups_in(group)]
        if not level:
            return
    raise PipelineError(f"match: more than {DEEPEST} groups stand one within the other; write their parts in fewer")


def _groups_in(group: Group) -> Iterator[Group]:
    for part in group.parts:
        match part.body:
            case Group() as inner:
                yield inner
            case Alternatives(groups=groups):
                yield from groups
            case Variable() | Forbidden():
                pass


def variables(body: Body) -> Iterator[Variable]:
    """Those that have rows in a match."""
    return (each for each in every_body(body) if isinstance(each, Variable))
