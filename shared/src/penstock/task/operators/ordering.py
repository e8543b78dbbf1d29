"""The order of rows as operators have it: columns beside those of a row, by which rows are sorted and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from penstock.expressions import to_polars
from penstock.plan.order import Order
from penstock.state.row_order import order_of
from penstock.types import Schema

_BY: Final = "__by"


class RowOrder:
    """What rows of a schema are ordered by.

    Args:
        orders: the parts of the order, the most important one first.
        schema: the columns of the rows.
        where: the verb, for messages.
        prefix: what the names of the columns begin with.
    """

    def __init__(self, orders: Sequence[Order], schema: Schema, where: str, prefix: str = _BY) -> None:
        self._orders = orders
        self._none = pl.DataFrame(schema=schema.polars())
        names = [prefix if place == 0 else f"{prefix}{place}" for place in range(len(orders))]
        self.columns = [
            self._column(order, schema, where).alias(name) for order, name in zip(orders, names, strict=True)
        ]
        """What makes the columns of the columns of rows."""
        self.types: dict[str, pl.DataType] = dict(self._none.select(self.columns).schema)
        self.names = names
        self.descending = [order.descending for order in orders]
        self.nulls_last = [order.nulls_last is not False for order in orders]

    def _column(self, order: Order, schema: Schema, where: str) -> pl.Expr:
        by = to_polars(order.expr, schema, where)
        is_float = self._none.select(by.alias(_BY)).schema[_BY].is_float()
        return by.fill_nan(None) if is_float and order.nulls_last is None else by

    def sorted(self, rows: pl.DataFrame, within: str, behind: Sequence[str] = ()) -> pl.DataFrame:
        """The rows by `within`, then in this order, then by `behind`, then as they come."""
        others = [False] * len(behind)
        return rows.sort(
            within, *self.names, *behind, descending=[False, *self.descending, *others],
            nulls_last=[False, *self.nulls_last, *others], maintain_order=True,
        )  # fmt: skip

    def coarse(self, rows: pl.DataFrame) -> pl.Series:
        """An integer for each row, the greater the earlier it is; unlike rows may have the same one."""
        first = self._orders[0]
        return pl.Series(
            order_of(rows[self.names[0]], descending=first.descending, nulls_last=first.nulls_last), dtype=pl.Int64
        )

    def not_before(self, rows: pl.DataFrame, others: pl.DataFrame) -> pl.Series:
        """Whether each row is equal to the other one at its place or behind it."""
        behind = pl.Series(np.ones(rows.height, np.bool_))
        parts = zip(self.names, self.descending, self.nulls_last, strict=True)
        for name, descending, nulls_last in reversed(list(parts)):
            one, other = rows[name], others[name]
            null_behind = one.is_null() & other.is_not_null() if nulls_last else one.is_not_null() & other.is_null()
            later = ((one < other if descending else one > other).fill_null(False)) | null_behind
            behind = later | (one.eq_missing(other) & behind)
        return behind
