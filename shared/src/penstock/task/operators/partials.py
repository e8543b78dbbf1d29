"""Keyed aggregation in two phases on frames: rows to partials, partials to fewer partials, partials to results.

`Partials` applies an `AggregatePlan` for one operator: it knows which columns of the input are needed, the types of a
partial frame, and how a stored one is checked against them. When to group is the operators' decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.errors import IncompatibleStateError, PenstockError, UserCodeError, without_context
from penstock.expressions import AggregatePlan, columns_of, is_mergeable
from penstock.expressions.aggregates import Former
from penstock.functions.windows.definitions import RANK
from penstock.plan.former_nulls import null_by_now
from penstock.plan.logical import Node
from penstock.plan.operations.running_aggregate import RunningAggregate
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.state.columns import canonical_keys
from penstock.types import Field, reads_described, type_to_json

_STREAMED_ROWS: Final = 32_768
"""From here on Polars' streaming engine is as fast, soon two to four times; below, its start-up costs more."""


_PACKED: Final = "__packed"


class Partials:
    """The aggregates of a node, applied to frames. `by` are the columns to group by: the keys and perhaps more."""

    def __init__(self, node: Node) -> None:
        operation = cast("WindowAggregate | RunningAggregate", node.operation)
        source = node.inputs[0]
        where = f"{node.verb} ({node.operator_id})"
        self.plan = AggregatePlan.build(operation.aggregates, source.schema, where, event_time=source.event_time)
        self.keys = source.schema.select(source.keys, where)
        self.names = [field.name for field in self.plan.partial_fields]
        self._where = where
        self._null_by_now = null_by_now(source)
        self._unpacked = isinstance(operation, WindowAggregate) and operation.unpacked
        self._orderless = all(is_mergeable(expr) for _, expr in operation.aggregates)
        read = frozenset[str]().union(*(columns_of(expr) for _, expr in operation.aggregates))
        self.columns = [field.name for field in source.schema if field.name in read or field.name in self.keys]
        """What to keep of an input frame, beside event time."""
        if self.plan.needs_event_time:
            self.columns.append(EVENT_TIME)

    def group(
        self,
        frames: Sequence[pl.DataFrame],
        by: Sequence[str],
        *,
        ordered: bool = False,
        beside: Sequence[pl.Expr] = (),
    ) -> pl.DataFrame:
        """Partials of rows, one per group; with `ordered` in order of first appearance; `beside` are further columns."""
        rows = canonical_keys(_together(frames), self.keys)
        return self._grouped(rows, by, [*beside, *self.plan.init_grouped], ordered)

    def merge(
        self,
        frames: Sequence[pl.DataFrame],
        by: Sequence[str],
        *,
        ordered: bool = False,
        beside: Sequence[pl.Expr] = (),
    ) -> pl.DataFrame:
        """Partials of partials, one per group."""
        return self._grouped(_together(frames), by, [*beside, *self.plan.merge], ordered)

    def _grouped(self, frame: pl.DataFrame, by: Sequence[str], how: list[pl.Expr], ordered: bool) -> pl.DataFrame:
        try:
            if self._orderless and not ordered and frame.height >= _STREAMED_ROWS:
                grouped = frame.lazy().group_by(by).agg(how).collect(engine="streaming")
            else:
                grouped = frame.group_by(by, maintain_order=ordered).agg(how)
            return grouped.with_columns(self.plan.carry) if self.plan.carry else grouped
        except pl.exceptions.PolarsError as error:
            raise UserCodeError(f"{self._where}: the aggregates failed on a batch: {without_context(error)}") from error

    def results(self, partials: pl.DataFrame, leading: Sequence[pl.Expr | str], names: Sequence[str]) -> pl.DataFrame:
        """The results beside the `leading` columns, ordered as `names`."""
        try:
            if self._unpacked:
                return _unpacked(partials.select(*leading, self.plan.finish[0].alias(_PACKED))).select(names)
            results = partials.select(*leading, *self.plan.finish)
            return results if results.columns == names else results.select(names)
        except PenstockError:
            raise
        except pl.exceptions.PolarsError as error:
            raise UserCodeError(f"{self._where}: the result could not be computed: {without_context(error)}") from error

    def describe(self) -> list[dict[str, Any]]:
        """The partial columns as a JSON value for the header of a segment."""
        return _described(self.plan.partial_fields, self.plan.partials_of)

    def restored(self, operator: str, stored: list[dict[str, Any]], rows: pl.DataFrame) -> pl.DataFrame:
        """The rows of a segment, whose partials must be those of these aggregates, now or in the former form.

        Raises:
            IncompatibleStateError: they are not.
        """
        rows = canonical_keys(rows, self.keys)
        if reads_described(self.describe(), stored):
            return rows
        former = self._former(stored)
        if former is None:
            raise IncompatibleStateError(
                f"operator {operator!r}: the snapshot holds partial aggregates of {_types(stored)}, the pipeline's "
                f"aggregates need {_types(self.describe())}; restore it with the same aggregates in the same order, or "
                "give the operator another uid to begin empty"
            )
        beside = [name for name in rows.columns if name not in {column["name"] for column in stored}]
        return rows.select(*beside, *former.to_current)

    def _former(self, stored: list[dict[str, Any]]) -> Former | None:
        """The form of the version that wrote it."""
        for each in self.plan.formers():
            if stored == _described(each.fields, each.partials_of):
                return each
        narrower = self.plan.narrower(self._null_by_now)
        if narrower is None or not reads_described(_described(narrower.fields, narrower.partials_of), stored):
            return None
        return narrower


def _unpacked(results: pl.DataFrame) -> pl.DataFrame:
    """A row per row of a result; where there may be several, with its rank."""
    if isinstance(results.schema[_PACKED], pl.List):
        ranks = pl.int_ranges(1, pl.col(_PACKED).list.len() + 1).alias(RANK)
        results = results.with_columns(ranks).explode(RANK, _PACKED)
    return results.unnest(_PACKED)


def _described(fields: Sequence[Field], names: Sequence[str] | None) -> list[dict[str, Any]]:
    columns = [{"name": field.name, "type": type_to_json(field.type)} for field in fields]
    return columns if names is None else [{**each, "of": name} for each, name in zip(columns, names, strict=True)]


def _together(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return frames[0] if len(frames) == 1 else pl.concat(frames)


def _types(described: list[dict[str, Any]]) -> str:
    return ", ".join(str(column["type"]) for column in described)
