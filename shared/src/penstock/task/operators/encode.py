"""Encodes the rows of an exactly-once sink before its exchange: what is published later is only copied from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.connectors.base import SinkEncoder
from penstock.core.batches import visible
from penstock.task.operator import Operator, OperatorContext, Output, RestoredState

if TYPE_CHECKING:
    import polars as pl


class EncodeOperator(Operator):
    """Hands rows to the sink's encoder; rows that it skips are counted as bad."""

    def __init__(self, encoder: SinkEncoder) -> None:
        self._encoder = encoder
        self._context: OperatorContext | None = None

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        """See `Operator.open`."""
        self._context = context

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        """See `Operator.process`."""
        rows = visible(frame)
        encoded = self._encoder.encode(rows)
        if encoded.skipped and self._context is not None:
            self._context.metrics.bad_rows += encoded.skipped
        output.rows(encoded.frame)
