"""Changes for a sink that has one row per key, which is not the key of the changes: the last row that still holds.

The changes of such a key come from several subtasks: its new row may be here before the old one is retracted. So all of
its rows that hold are kept, counted, and the one that came last is written (Flink: SinkUpsertMaterializer).
"""

from __future__ import annotations

from typing import cast

import polars as pl

from penstock.plan.logical import Node
from penstock.plan.operations.materialize import Materialize
from penstock.state.counted_rows import COUNT, INDEX
from penstock.task.operators.standing_rows import ARRIVAL, StandingRowsOperator


class MaterializeOperator(StandingRowsOperator):
    """Changes by another key than their own."""

    def __init__(self, node: Node) -> None:
        super().__init__(node, "materialize", ttl_us=cast("Materialize", node.operation).ttl_us)

    def _standing(self, keys: pl.DataFrame) -> pl.DataFrame:
        rows = self._rows.of(keys).filter(pl.col(COUNT) > 0).sort(INDEX, ARRIVAL)
        return rows.unique(INDEX, keep="last", maintain_order=True).drop(*keys.columns, COUNT, ARRIVAL)
