"""The columns of a partial frame: gathered as aggregates ask for them, each once.

A snapshot may be of a version that kept other columns: `form` says which version's are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.expressions.nodes import Node
from penstock.types import FLOATS, DataType, Field

WRAPPED_MEANS: Final = 0
"""Versions whose means of integers wrapped around with their sums."""
WRAPPED_SUMS: Final = 1
"""Versions whose sums of integers wrapped around, and whose sums of floats were floats."""
TIES_BY_ARRIVAL: Final = 2
"""Versions whose `max_by` and `min_by` did not know when the row was of which they held the value."""
CURRENT: Final = 3


@dataclass(frozen=True, slots=True)
class Argument:
    """What is aggregated: a row-level expression."""

    node: Node
    expr: pl.Expr
    type: DataType
    nullable: bool


Options = dict[str, Any]
"""The settings of an aggregate, by name."""


def ordered_by(by: Argument) -> Argument:
    """What rows are ordered by: NaN is no place in an order."""
    return Argument(by.node, by.expr.fill_nan(None), by.type, True) if by.type in FLOATS else by


FromFormer = Callable[[pl.Expr], pl.Expr]


@dataclass(frozen=True, slots=True)
class PartialColumn:
    """A column of a partial frame and the three expressions that fill it."""

    field: Field
    of: str
    """The aggregate that it belongs to, by its name in the catalogue."""
    init: pl.Expr
    init_grouped: pl.Expr
    merge: pl.Expr
    former: tuple[Hashable, FromFormer] | None
    """The column of former versions from which it follows where they had none such, and how."""
    behind: bool
    """Whether it stands behind all that former versions had, which are known by their places."""


class PartialColumns:
    """The partial columns of all aggregates of a plan, by key."""

    def __init__(self, *, event_time: bool, form: int = CURRENT) -> None:
        self.event_time = event_time
        self.form = form
        self.needs_event_time = False
        self.by_key: dict[Hashable, PartialColumn] = {}
        self.limbs: dict[tuple[str, ...], None] = {}
        """The names of columns that are limbs and rest of one number."""

    def add(
        self,
        of: str,
        key: Hashable,
        kind: DataType,
        init: pl.Expr,
        init_grouped: pl.Expr,
        merge: Callable[[pl.Expr], pl.Expr],
        *,
        nullable: bool = False,
        former: tuple[Hashable, FromFormer] | None = None,
        behind: bool = False,
    ) -> pl.Expr:
        """The column of that key, which is made if it is not there yet; `of` names the aggregate."""
        if key not in self.by_key:
            name = f"__p{len(self.by_key)}"
            field = Field(name, kind, nullable)
            self.by_key[key] = PartialColumn(field, of, init, init_grouped, merge(pl.col(name)), former, behind)
        return pl.col(self.by_key[key].field.name)

    def in_order(self) -> dict[Hashable, PartialColumn]:
        """The columns by key, as they stand in a partial frame."""
        return dict(sorted(self.by_key.items(), key=lambda item: item[1].behind))

    def time(self) -> pl.Expr:
        """The event time of rows."""
        self.needs_event_time = True
        return pl.col(EVENT_TIME)

    def from_former(self, former: Mapping[Hashable, PartialColumn]) -> list[pl.Expr] | None:
        """These columns, of the columns that a former version kept; None if they do not follow from them."""
        found: list[pl.Expr] = []
        for key, column in self.in_order().items():
            origin, convert = (key, _unchanged) if key in former else column.former or (None, _unchanged)
            if origin not in former:
                return None
            found.append(convert(pl.col(former[origin].field.name)).alias(column.field.name))
        return found


def _unchanged(column: pl.Expr) -> pl.Expr:
    return column
