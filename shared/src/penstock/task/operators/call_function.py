"""A column that a Python function computes of other columns of the row."""

from __future__ import annotations

from typing import Any, cast

import polars as pl

from penstock.core.batches import hidden_of
from penstock.errors import UserCodeError, described, function_name, shown, without_context
from penstock.observability.user_frames import place_of
from penstock.plan.logical import Node
from penstock.plan.operations.call_function import CallFunction
from penstock.task.operator import Operator, Output
from penstock.types import ListType, polars_type


class CallFunctionOperator(Operator):
    """Calls the function once per row."""

    def __init__(self, node: Node) -> None:
        operation = cast("CallFunction", node.operation)
        self._function = operation.function
        self._column, self._arguments = operation.column, list(operation.arguments)
        place = place_of(operation.function)
        self._where = f"{function_name(operation.function)} ({place or node.operator_id})"
        field = node.schema.field(operation.column)
        self._type, self._nullable = polars_type(field.type), field.nullable
        self._kind = field.type
        self._gives_rows = isinstance(field.type, ListType)
        self._names = list(node.schema.names)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        rows = frame.select(self._arguments).iter_rows() if self._arguments else iter([()] * frame.height)
        values = [self._called(row) for row in rows]
        output.rows(frame.with_columns(self._series(values)).select(*self._names, *hidden_of(frame)))

    def _called(self, row: tuple[Any, ...]) -> Any:
        try:
            value = self._function(*row)
            if self._gives_rows and value is not None:
                value = list(value)  # perhaps of a generator
        except Exception as error:  # whatever the user's function raises
            message = f"{self._where} raised {described(error)}; on {', '.join(map(shown, row))}"
            raise UserCodeError(message) from error
        if value is None and not self._nullable:
            raise UserCodeError(
                f"{self._where} returned None, and its annotation does not say so: -> ... | None; on "
                f"{', '.join(map(shown, row))}"
            )
        return value

    def _series(self, values: list[Any]) -> pl.Series:
        try:
            return pl.Series(self._column, values, dtype=self._type, strict=True)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            raise UserCodeError(
                f"{self._where} returned what is no {self._kind}, as its annotation says: {without_context(error)}"
            ) from error
