"""`top` on a keyed stream of changes: the best rows of every key that hold, with their rank: Flink's RetractableTopN.

All rows of a key are kept, counted, and in order, so that a batch looks at little more than the best ones before it and
behind it, however many there are. What stands at a rank is retracted when another row stands there, or none.
"""

from __future__ import annotations

from typing import Final, cast

import numpy as np
import polars as pl

from penstock.errors import UserCodeError, without_context
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import Node
from penstock.plan.operations.top import Top
from penstock.state.counted_rows import COUNT, INDEX
from penstock.task.operators.changes import changed_rows
from penstock.task.operators.ordering import RowOrder
from penstock.task.operators.standing_rows import ARRIVAL, StandingRowsOperator

_ORDER: Final = "__order"
_RANK: Final = "__rank"


class TopOfChangesOperator(StandingRowsOperator):
    """`top` on a keyed stream of changes, or of facts where all rows are asked for."""

    def __init__(self, node: Node) -> None:
        operation, source = cast("Top", node.operation), node.inputs[0]
        self._where = f"{node.verb} ({node.operator_id})"
        self._offset, self._rank = operation.offset, operation.rank
        self._row_order = RowOrder(operation.by, source.row_schema, self._where)
        super().__init__(
            node, "top-of-changes", most=operation.last, beside={**self._row_order.types, _ORDER: pl.Int64()},
            order=_ORDER, ttl_us=operation.ttl_us,
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
        rows = rows.with_columns(self._row_order.columns)
        return rows.with_columns(self._row_order.coarse(rows).alias(_ORDER))

    def _standing(self, keys: pl.DataFrame) -> pl.DataFrame:
        """Numbered by key and rank; the first ones too, which are left out of what is sent."""
        rows = self._rows.greatest(keys, self._most).filter(pl.col(COUNT) > 0)
        rows = self._row_order.sorted(rows, INDEX, [ARRIVAL])
        rows = rows[np.repeat(np.arange(rows.height), np.minimum(rows[COUNT].to_numpy(), self._most))]
        rows = rows.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(INDEX).alias(_RANK))
        rows = rows.filter(pl.col(_RANK) <= self._most)
        if self._rank is not None:
            rows = rows.with_columns(pl.col(_RANK).alias(self._rank))
        return rows.select(pl.col(INDEX) * self._most + pl.col(_RANK) - 1, *self._ranked)

    def _differences(self, before: pl.DataFrame, after: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        before, after = (rows.filter(pl.col(INDEX) % self._most >= self._offset) for rows in (before, after))
        if self._rank is not None:
            return super()._differences(before, after, keys)
        by_key = pl.col(INDEX) // self._most
        return changed_rows(before.with_columns(by_key), after.with_columns(by_key), keys)
