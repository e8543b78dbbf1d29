"""Patterns as users write them: `Pattern.begin("fails", col("status") == "fail", times=3).followed_by("ok", ...)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from penstock.core.arguments import checked
from penstock.core.times import Duration, duration_us
from penstock.errors import PipelineError, function_name
from penstock.expressions import Expr
from penstock.functions.patterns.definitions import (
    Alternatives,
    Contiguity,
    Forbidden,
    Group,
    Part,
    Predicate,
    Skip,
    Times,
    Variable,
    check_depth,
)
from penstock.functions.patterns.describing import text_of

Often = int | tuple[int, int | None]
"""How often a part occurs: a number, or the least and the greatest one, None for any."""
Condition = Expr | Callable[..., bool]
"""An expression, or a function of a row, or of a row and the rows that are matched before it."""
AfterMatch = Literal["no_skip", "to_next", "past_last_row"] | tuple[Literal["to_first", "to_last"], str]
_SKIPS: Final = {"no_skip": Skip("none"), "to_next": Skip("next"), "past_last_row": Skip("past_last")}


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Pattern:
    """Rows of a key that follow each other, each with a name and a condition. Immutable: every method returns a new one.

    A condition is an expression of the columns of the row. It may look back, at the rows that are matched before:
    `col("fails.amount")` is of the last row called `fails`, `col("fails.amount").sum()` an aggregate of all of them so
    far, and `col("fails").count()` their number.

    Where an expression does not do, a condition is a Python function that says True or False of a row. If it takes two
    arguments, the second one is a dict of the rows that are matched before: by every name of the pattern a list. It
    should say the same of the same rows whenever it is asked. Expressions are much faster.

    What follows is as near as the method says:

    * `next`: the next row of the key (strict contiguity);
    * `followed_by`: the next row that fulfils the condition; others in between are passed over (relaxed contiguity);
    * `followed_by_any`: any later row that fulfils it, so that there may be several matches of one beginning
      (non-deterministic relaxed contiguity).

    Example:
        >>> burst = Pattern.begin("fails", col("status") == "fail", times=(3, None))
        >>> print(burst.followed_by("ok", col("status") == "ok"))
        fails[col("status") == "fail"]{3,} followed by ok[col("status") == "ok"]
    """

    group: Group

    @staticmethod
    @checked
    def begin(
        part: str | Pattern,
        condition: Condition | None = None,
        *,
        times: Often = 1,
        optional: bool = False,
        repeated: Contiguity = "followed_by",
        greedy: bool = False,
        until: Condition | None = None,
    ) -> Pattern:
        """A pattern that begins with these rows.

        Args:
            part: a name for the rows, or a pattern that stands here as a group.
            condition: what they fulfil; every row does if it is not given.
            times: how often they occur: a number, or the least and the greatest one, `(2, None)` for two or more.
            optional: whether there may be none of them.
            repeated: how near one occurrence is to the one before: `"next"` (Flink: consecutive), `"followed_by"`, or
                `"followed_by_any"` (Flink: all combinations).
            greedy: whether the pattern goes on only if no further occurrence comes first; without any, too, if they are
                optional.
            until: a row that fulfils it ends the occurrences, and is none itself.

        Raises:
            PipelineError: the numbers make no sense, or a group has a condition.
        """
        return Pattern(Group((_part(part, condition, "followed_by", times, optional, repeated, greedy, until, None),)))

    @staticmethod
    @checked
    def any_of(*patterns: Pattern) -> Pattern:
        """One of several patterns.

        Raises:
            PipelineError: there are fewer than two.
        """
        if len(patterns) < 2:
            raise PipelineError("Pattern.any_of: give two patterns or more")
        return Pattern(Group((Part(Alternatives(tuple(pattern.group for pattern in patterns))),)))

    def next(
        self,
        part: str | Pattern,
        condition: Condition | None = None,
        *,
        times: Often = 1,
        optional: bool = False,
        repeated: Contiguity = "followed_by",
        greedy: bool = False,
        until: Condition | None = None,
        within: Duration | None = None,
    ) -> Pattern:
        """The row right behind: strict contiguity.

        `within` is how much later than the row before each of these rows is at most, not included. The other arguments
        are those of `Pattern.begin`.
        """
        return self._and(_part(part, condition, "next", times, optional, repeated, greedy, until, within))

    def followed_by(
        self,
        part: str | Pattern,
        condition: Condition | None = None,
        *,
        times: Often = 1,
        optional: bool = False,
        repeated: Contiguity = "followed_by",
        greedy: bool = False,
        until: Condition | None = None,
        within: Duration | None = None,
    ) -> Pattern:
        """The next row that fulfils the condition: relaxed contiguity. Arguments as those of `Pattern.next`."""
        return self._and(_part(part, condition, "followed_by", times, optional, repeated, greedy, until, within))

    def followed_by_any(
        self,
        part: str | Pattern,
        condition: Condition | None = None,
        *,
        times: Often = 1,
        optional: bool = False,
        repeated: Contiguity = "followed_by",
        greedy: bool = False,
        until: Condition | None = None,
        within: Duration | None = None,
    ) -> Pattern:
        """Any later row that fulfils the condition: non-deterministic relaxed contiguity. Arguments as those of
        `Pattern.next`."""
        return self._and(_part(part, condition, "followed_by_any", times, optional, repeated, greedy, until, within))

    def not_next(self, name: str, condition: Condition) -> Pattern:
        """The row right behind must not fulfil the condition.

        Behind a part that is repeated that holds of the row behind each occurrence that could be the last one.
        """
        return self._and(Part(Forbidden(name, _condition(condition), immediately=True)))

    def not_followed_by(self, name: str, condition: Condition) -> Pattern:
        """No row up to what follows, that one included, must fulfil the condition.

        Behind a part that is repeated none must come between its occurrences either.

        At the end of a pattern, which has to have a time then (`match(within=)`), none must come before that is over.
        """
        return self._and(Part(Forbidden(name, _condition(condition), immediately=False)))

    def _and(self, part: Part) -> Pattern:
        return Pattern(Group((*self.group.parts, part)))

    def __post_init__(self) -> None:
        check_depth(self.group)

    def __str__(self) -> str:
        return text_of(self.group)

    __repr__ = __str__


def _part(
    part: str | Pattern, condition: Condition | None, contiguity: Contiguity, times: Often, optional: bool,
    repeated: Contiguity, greedy: bool, until: Condition | None, within: Duration | None,
) -> Part:  # fmt: skip
    name = part if isinstance(part, str) else "a group"
    least, most = (times, times) if isinstance(times, int) else _bounds(times)
    if least < 0 or most == 0 or (most is not None and most < least):
        raise PipelineError(
            f"match: {name} cannot occur {times} times; give a number, or the least and the greatest one"
        )
    if isinstance(part, Pattern):
        if condition is not None:
            raise PipelineError("match: a group has no condition of its own; its rows have")
        if greedy:
            raise PipelineError("match: greedy= is for rows, not for groups")
        group = part.group
        body = group.parts[0].body if len(group.parts) == 1 and _is_alternatives(group.parts[0]) else group
    else:
        body = Variable(part, None if condition is None else _condition(condition))
    often = Times(0 if optional else least, most, repeated, greedy, None if until is None else _condition(until))
    if optional and least > 1:
        many = Part(body, contiguity, replace(often, least=least))
        return Part(Group((many,)), contiguity, Times(0, 1, greedy=greedy), _within(within))
    return Part(body, contiguity, often, _within(within))


def _condition(condition: Condition) -> Expr | Predicate:
    """A condition as the search takes it.

    Raises:
        PipelineError: a function takes neither one argument nor two.
    """
    if isinstance(condition, Expr):
        return condition
    takes = [number for number in (1, 2) if _takes(condition, number)]
    if not takes:
        raise PipelineError(
            f"match: the condition {function_name(condition)} takes a row, or a row and the rows that are matched before "
            "it; write a function of one argument or of two"
        )
    return Predicate(condition, looks_back=takes == [2])


def _takes(function: Callable[..., bool], number: int) -> bool:
    try:
        inspect.signature(function).bind(*range(number))
    except TypeError:
        return False
    return True


def _bounds(times: tuple[object, ...]) -> tuple[int, int | None]:
    match times:
        case (int() as least, int() | None as most):
            return least, most
        case _:
            return -1, None


def _is_alternatives(part: Part) -> bool:
    return isinstance(part.body, Alternatives) and part.times == Times()


def _within(within: Duration | None) -> int | None:
    return None if within is None else duration_us(within, "match: within", positive=True)


def skip_of(after_match: AfterMatch) -> Skip:
    """Where the search goes on behind a match, as users say it.

    Raises:
        PipelineError: a tuple is not one of those that there are.
    """
    return _skip_to(after_match) if isinstance(after_match, tuple) else _SKIPS[after_match]


def _skip_to(after_match: tuple[object, ...]) -> Skip:
    match after_match:
        case ("to_first", str(variable)):
            return Skip("first", variable)
        case ("to_last", str(variable)):
            return Skip("last", variable)
        case _:
            raise PipelineError(
                f"match: there is no after_match={after_match!r}; a tuple is ('to_first', name) or ('to_last', name)"
            )
