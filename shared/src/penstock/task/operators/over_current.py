"""`over` on current rows of a key, in any order: what databases compute when all rows are there, kept current.

All rows of a key are kept, counted. When a batch changes a key, its columns are computed over the rows before and over
those behind, all keys of the batch together; rows that are not the same in both are retracted and added. So nothing is
kept of what was sent, and a batch costs as much as the keys that it touches have rows, however few of these change.

What the order leaves open, the order of arrival decides, so that what is computed again comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import polars as pl

from penstock.errors import PenstockError, UserCodeError, without_context
from penstock.expressions import AggregatePlan, Expr, coalesce, row_field, to_polars
from penstock.expressions.inference import OVER, Scope
from penstock.expressions.nodes import Aggregate, walk
from penstock.expressions.polars_lowering import lower
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import Node
from penstock.plan.operations.over_current import OF_NO_ROWS, Frame, OverColumn, OverCurrent
from penstock.state.counted_rows import COUNT, INDEX
from penstock.task.operators.changes import changed_rows
from penstock.task.operators.current_frames import Positions
from penstock.task.operators.ordering import RowOrder
from penstock.task.operators.over_frames import Frames, merged_frames
from penstock.task.operators.partial_scan import PartialScan
from penstock.task.operators.standing_rows import ARRIVAL, StandingRowsOperator
from penstock.types import Schema, polars_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PLACE: Final = "__place"


class OverCurrentOperator(StandingRowsOperator):
    """`over` on a keyed stream of changes, or of facts."""

    def __init__(self, node: Node) -> None:
        operation, source = cast("OverCurrent", node.operation), node.inputs[0]
        super().__init__(node, "over-current", ttl_us=operation.ttl_us)
        where = f"{node.verb} ({node.operator_id})"
        self._columns = CurrentColumns(operation.columns, source.row_schema, where)
        computed = [name for name in node.schema.names if name != RETRACTED]
        self._sent = [name for name in computed if name not in self._keys]

    def _standing(self, keys: pl.DataFrame) -> pl.DataFrame:
        rows = self._rows.of(keys).filter(pl.col(COUNT) > 0)
        return rows[np.repeat(np.arange(rows.height), rows[COUNT].to_numpy())].drop(COUNT)

    def _differences(self, before: pl.DataFrame, after: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        both = pl.concat([before, after.with_columns(pl.col(INDEX) + keys.height)])
        computed = self._columns.of(both).select(INDEX, *self._sent)
        former, new = computed.head(before.height), computed.slice(before.height)
        return changed_rows(former, new.with_columns(pl.col(INDEX) - keys.height), keys)


class CurrentColumns:
    """Columns over rows that are all there."""

    def __init__(self, columns: Sequence[OverColumn], schema: Schema, where: str) -> None:
        self._where = where

        def order_of(column: OverColumn) -> str:
            return ", ".join(map(str, column.order))

        by_order = groupby(sorted(columns, key=order_of), order_of)
        self._ordered = [_Ordered(list(group), schema, where) for _, group in by_order]

    def of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with the columns.

        Args:
            rows: with `INDEX`, the number of the partition, and `ARRIVAL`.
        """
        try:
            rows = rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(_PLACE))
            return pl.concat([rows, *(ordered.of(rows) for ordered in self._ordered)], how="horizontal")
        except PenstockError:
            raise
        except pl.exceptions.PolarsError as error:
            raise UserCodeError(f"{self._where}: the columns failed on a batch: {without_context(error)}") from error


class _Ordered:
    """Those of the columns that have one order."""

    def __init__(self, columns: Sequence[OverColumn], schema: Schema, where: str) -> None:
        order = columns[0].order
        self._order = RowOrder(order, schema, where)
        self._descending = bool(order) and order[0].descending
        frames = {str(column.rows): column.rows for column in columns}
        self._columns: list[_Functions | _Aggregates] = []
        for text, frame in frames.items():
            framed = [column for column in columns if str(column.rows) == text]
            of_rows = [column for column in framed if isinstance(column.function, str)]
            made = [(column.name, column.function) for column in framed if isinstance(column.function, Expr)]
            self._columns += [_Functions(of_rows, frame, schema, where)] if of_rows else []
            self._columns += [_Aggregates(made, frame, schema, where)] if made else []

    def of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The columns, in the order of the rows."""
        ordered = self._order.sorted(rows.with_columns(self._order.columns), INDEX, [ARRIVAL])
        by = ordered.select(self._order.names)
        positions = Positions(ordered[INDEX].to_numpy(), by, descending=self._descending)
        found = [series for columns in self._columns for series in columns.of(ordered, positions)]
        return pl.DataFrame([ordered[_PLACE], *found]).sort(_PLACE).drop(_PLACE)


class _Functions:
    """SQL's functions of rows, over one frame."""

    def __init__(self, columns: Sequence[OverColumn], frame: Frame, schema: Schema, where: str) -> None:
        self._frame = frame
        self._columns = [(column, self._values(column, schema, where)) for column in columns]

    @staticmethod
    def _values(column: OverColumn, schema: Schema, where: str) -> list[pl.Expr]:
        if not column.args:
            return []
        kind = polars_type(row_field(coalesce(*column.args), schema, where, column.name).type)
        return [to_polars(arg, schema, where).cast(kind).alias(column.name) for arg in column.args]

    def of(self, rows: pl.DataFrame, positions: Positions) -> Iterator[pl.Series]:
        """The columns, in the order of the rows."""
        first, behind = positions.frames(self._frame)
        for column, values in self._columns:
            match column.function:
                case "lag" | "lead":
                    away = -column.number if column.function == "lag" else column.number
                    yield _found(rows, values, positions.beside(away))
                case "first_value" | "last_value" | "nth_value":
                    places = behind - 1 if column.function == "last_value" else first
                    places = (
                        places + min(column.number, rows.height + 1) - 1 if column.function == "nth_value" else places
                    )
                    yield _found(rows, values, np.where((places >= first) & (places < behind), places, -1))
                case function:
                    numbers = _RANKS[str(function)](positions, column.number)
                    yield pl.Series(column.name, numbers)


_RANKS: Final[dict[str, Callable[[Positions, int], NDArray[np.int64] | NDArray[np.float64]]]] = {
    "row_number": lambda positions, _: positions.row_numbers,
    "rank": lambda positions, _: positions.ranks,
    "dense_rank": lambda positions, _: positions.dense_ranks,
    "percent_rank": lambda positions, _: positions.percent_ranks,
    "cume_dist": lambda positions, _: positions.distributions,
    "ntile": lambda positions, number: positions.tiles(number),
}


class _Aggregates:
    """Expressions made of aggregates over one frame and of columns of the row."""

    def __init__(self, columns: Sequence[tuple[str, Expr]], frame: Frame, schema: Schema, where: str) -> None:
        self._frame = frame
        parts = dict.fromkeys(part for _, expr in columns for part in walk(expr.node) if isinstance(part, Aggregate))
        leaves = {part: f"__o{number}" for number, part in enumerate(parts)}
        of_frame = [(name, Expr(leaf)) for leaf, name in leaves.items() if leaf.function not in OVER]
        self._plan = AggregatePlan.build(of_frame, schema, where, event_time=False) if of_frame else None
        self._scan = PartialScan(self._plan.merge, self._plan.carry) if self._plan else None
        self._counts = {name for leaf, name in leaves.items() if leaf.function in OF_NO_ROWS}
        self._rows = {name: leaf for leaf, name in leaves.items() if leaf.function in OVER}
        self._operands = {
            name: lower(leaf.args[0], schema, where).alias(name) for name, leaf in self._rows.items() if leaf.args
        }
        named = {leaf: pl.col(name) for leaf, name in leaves.items()}
        types = {name: polars_type(Scope(expr.node, schema, where).operand(expr.node).type) for name, expr in columns}
        self._results = [lower(expr.node, schema, where, named).cast(types[name]).alias(name) for name, expr in columns]

    def of(self, rows: pl.DataFrame, positions: Positions) -> list[pl.Series]:
        """The columns, in the order of the rows."""
        if self._plan is not None:
            rows = rows.hstack(self._of_frames(self._plan, rows, positions))
        rows = rows.with_columns(self._of_row(rows, name, leaf, positions) for name, leaf in self._rows.items())
        return rows.select(self._results).get_columns()

    def _of_row(self, rows: pl.DataFrame, name: str, leaf: Aggregate, positions: Positions) -> pl.Series:
        if leaf.function == "row_number":
            return pl.Series(name, positions.row_numbers)
        away = cast("int", dict(leaf.options)["rows"])
        places = positions.beside(-away if leaf.function == "lag" else away)
        return _found(rows, [self._operands[name]], places)

    def _of_frames(self, plan: AggregatePlan, rows: pl.DataFrame, positions: Positions) -> list[pl.Series]:
        first, behind = positions.frames(self._frame)
        there = np.flatnonzero(behind > first)
        first, last = first[there], behind[there] - 1
        changes = np.ones(len(there), np.bool_)
        changes[1:] = (first[1:] != first[:-1]) | (last[1:] != last[:-1])
        frames = Frames(first[changes], last[changes], positions.ends)
        whole = bool(
            (frames.first == positions.begins[frames.first]).all()
            and (frames.last == positions.ends[frames.first] - 1).all()
        )
        results = self._of_partitions(plan, rows) if whole else self._scanned(plan, rows, frames)
        which = np.full(rows.height, -1)
        which[there] = np.cumsum(changes) - 1
        return [self._placed(series, which) for series in results.get_columns()]

    def _placed(self, results: pl.Series, which: NDArray[np.int64]) -> pl.Series:
        """Of each row the result of its frame, or that of no rows."""
        if not len(results):
            results = pl.Series(results.name, [None], results.dtype)
        none = pl.Series(results.name, [0 if results.name in self._counts else None], results.dtype)
        return results.gather(np.maximum(which, 0)).zip_with(pl.Series(which >= 0), none.new_from_index(0, len(which)))

    def _of_partitions(self, plan: AggregatePlan, rows: pl.DataFrame) -> pl.DataFrame:
        partials = rows.group_by(INDEX, maintain_order=True).agg(plan.init_grouped)
        return (partials.with_columns(plan.carry) if plan.carry else partials).select(plan.finish)

    def _scanned(self, plan: AggregatePlan, rows: pl.DataFrame, frames: Frames) -> pl.DataFrame:
        assert self._scan is not None
        partials = rows.select(INDEX, *plan.init).drop(INDEX)
        partials = partials.with_columns(plan.carry) if plan.carry else partials
        return merged_frames(self._scan, partials, frames, np.arange(len(frames.first))).select(plan.finish)


def _column(rows: pl.DataFrame, expr: pl.Expr) -> pl.Series:
    """Of each row its value, also where it is a constant."""
    return rows.select(INDEX, expr)[:, 1]


def _found(rows: pl.DataFrame, values: Sequence[pl.Expr], places: NDArray[np.int64]) -> pl.Series:
    """The values at these places; the second ones where there is none."""
    value, *others = (_column(rows, expr) for expr in values)
    there = pl.Series(places >= 0)
    found = value.gather(np.maximum(places, 0)) if len(value) else value
    if others:
        return found.zip_with(there, others[0])
    return found.zip_with(there, pl.Series(value.name, [None], value.dtype).new_from_index(0, len(value)))
