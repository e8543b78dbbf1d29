"""By what rows are in order: the parts of SQL's ORDER BY."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import PipelineError
from penstock.expressions import Expr, col

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Order:
    """An expression by which rows are in order, in which direction, and where its nulls stand."""

    expr: Expr
    descending: bool = False
    nulls_last: bool | None = None
    """Whether null stands behind all values or in front of them, whatever the direction is; NaN is the greatest value
    then, as in databases. None: null and NaN alike stand behind all others."""

    def __str__(self) -> str:
        direction = " descending" if self.descending else ""
        nulls = {None: "", True: " nulls last", False: " nulls first"}[self.nulls_last]
        return f"{self.expr}{direction}{nulls}"


def orders(
    verb: str,
    by: Expr | str | Sequence[Expr | str],
    descending: bool | Sequence[bool],
    nulls_last: bool | Sequence[bool] | None = None,
) -> tuple[Order, ...]:
    """The order by one or several columns or expressions, each with a direction of its own, or all with the same.

    Raises:
        PipelineError: there are more or fewer directions than columns.
    """
    parts = [by] if isinstance(by, Expr | str) else by
    directions = _of_each(verb, "descending", descending, len(parts))
    places = _of_each(verb, "nulls_last", nulls_last, len(parts))
    exprs = [col(part) if isinstance(part, str) else part for part in parts]
    return tuple(map(Order, exprs, directions, places))


def _of_each(verb: str, name: str, given: T | Sequence[T], number: int) -> Sequence[T]:
    if not isinstance(given, Sequence):
        return [given] * number
    if len(given) != number:
        raise PipelineError(
            f"{verb}: {name}= has {len(given)} values and by= {number}; give one for each, or one for all"
        )
    return given
