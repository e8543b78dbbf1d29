"""`top` on a keyed stream of changes: the best rows of every key that hold, with their rank: Flink's RetractableTopN.

All rows of a key are kept, counted, and in order, so that a batch looks at little more than the best ones before it and
behind it, however many there are. What stands at a rank is taken back when another row stands there, or none.
"""

from __future__ import annotations

from typing import Final, cast

import numpy as np
import polars as pl

from penstock.errors import UserCodeError, without_context
from penstock.expressions import to_polars
from penstock.graph.logical import RANK, RETRACTED, Node, Top
from penstock.state.counted_rows import COUNT, INDEX
from penstock.state.row_order import order_of
from penstock.task.operators.standing_rows import CAME, StandingRowsOperator

_BY: Final = "__by"
_ORDER: Final = "__order"


class TopOfChangesOperator(StandingRowsOperator):
    """`top` on a keyed stream of changes."""

    def __init__(self, node: Node) -> None:
        operation, source = cast("Top", node.operation), node.inputs[0]
        self._where = f"{node.verb} ({node.operator_id})"
        self._descending = operation.descending
        by = to_polars(operation.by, source.schema, self._where)
        kind = pl.DataFrame(schema=source.row_schema.polars()).select(by.alias(_BY)).schema[_BY]
        self._by = (by.fill_nan(None) if kind.is_float() else by).alias(_BY)
        super().__init__(
            node, "top-of-changes", most=operation.n, beside={_BY: kind, _ORDER: pl.Int64()}, order=_ORDER,
            ttl_us=operation.ttl_us,
        )  # fmt: skip
        self._ranked = [name for name in node.schema.names if name not in (*self._keys.names, RETRACTED)]

    def _changed(self, rows: pl.DataFrame) -> pl.DataFrame:
        try:
            return super()._changed(rows)
        except pl.exceptions.PolarsError as error:
            raise UserCodeError(
                f"{self._where}: the rows of a batch could not be ordered: {without_context(error)}"
            ) from error

    def _prepared(self, rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.with_columns(self._by)
        return rows.with_columns(pl.Series(_ORDER, order_of(rows[_BY], descending=self._descending)))

    def _standing(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Numbered by key and rank."""
        rows = self._rows.greatest(keys, self._most).filter(pl.col(COUNT) > 0)
        rows = rows.sort(INDEX, _BY, CAME, descending=[False, self._descending, False], nulls_last=True)
        rows = rows[np.repeat(np.arange(rows.height), np.minimum(rows[COUNT].to_numpy(), self._most))]
        rows = rows.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(INDEX).alias(RANK))
        rows = rows.filter(pl.col(RANK) <= self._most)
        return rows.select(pl.col(INDEX) * self._most + pl.col(RANK) - 1, *self._ranked)
