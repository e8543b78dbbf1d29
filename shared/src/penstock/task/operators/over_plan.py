"""What `over` computes, on frames: rows that became due beside the rows of their keys before them.

Every row has one partial of the aggregates; a frame is a window over the partials of a key, which Polars moves along
where it can and `over_frames` merges where it cannot. An unbounded frame is one that is longer than all of time, with the
partial of everything before it as the first row. What a key must remember follows: that partial, the partials of the rows
of the frame, and the values of the last rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.errors import PenstockError, UserCodeError, without_context
from penstock.expressions import AggregatePlan, Expr
from penstock.expressions.exact_sums import carried_exactly
from penstock.expressions.inference import OVER, Scope
from penstock.expressions.nodes import Aggregate, Node, walk
from penstock.expressions.polars_lowering import lower
from penstock.plan.logical import Node as PlanNode
from penstock.plan.operations.over import Over
from penstock.task.operators.over_frames import (
    Frames,
    added_in_frames,
    distinct_in_frames,
    folded_in_frames,
    frames_of,
    merged_frames,
)
from penstock.task.operators.partial_scan import PartialScan
from penstock.types import polars_type

KEY: Final = "__k"
"""Int64: which key a row is of."""
PLACE: Final = "__place"
"""Int64: the place of a row among those that became due; null for rows before them."""
_WAITING: Final = "__w_"
_COUNT: Final = "__n"
TIMES: Final = "__at"
"""List(Int64): the event times of the rows of a frame that are kept."""
_ORDER: Final = "__i"
_ALL_TIME: Final = 2**62
_FRESH: Final = pl.col(PLACE).is_not_null()


class OverPlan:
    """The columns of an `Over`."""

    def __init__(self, node: PlanNode) -> None:
        self.operation = cast("Over", node.operation)
        self.where = f"{node.verb} ({node.operator_id})"
        self._schema = node.inputs[0].schema
        nodes = [part for _, expr in self.operation.columns for part in walk(expr.node)]
        leaves = {part: f"__o{index}" for index, part in enumerate(dict.fromkeys(filter(_is_aggregate, nodes)))}
        self._leaves = cast("dict[Aggregate, str]", leaves)
        of_frame = [(name, Expr(leaf)) for leaf, name in self._leaves.items() if leaf.function not in OVER]
        # Rows stand in order, so what depends on it goes by their places: of equal times the last one is the row itself.
        self._plan = AggregatePlan.build(of_frame, self._schema, self.where, event_time=False) if of_frame else None
        self._moving, self._scanned = self._part(of_frame, _is_moved), self._part(of_frame, _is_scanned)
        self._counted = self._part(of_frame, _is_counted)
        self._lags = self._beside("lag")
        self._leads = self._beside("lead")
        self.numbered = any(leaf.function == "row_number" for leaf in self._leaves)
        self.behind = max((rows for _, _, rows in self._lags), default=0)
        self.ahead = max((rows for _, _, rows in self._leads), default=0)
        """How many rows after it a row waits for."""
        self._operands = _operands(self._lags, "__l")
        self._lead_operands = _operands(self._leads, "__f")
        # Lowered once: for a batch of a few rows that costs more than computing it.
        self._behind_exprs = self._lowered(self._operands)
        self._ahead_exprs = self._lowered(self._lead_operands)
        self._outputs = self._lowered_outputs()
        self._waiting = self._waiting_types()
        self.waiting = [f"{_WAITING}{name}" for name in self._waiting]
        """Which of the kept columns are of rows that wait for later ones."""
        kinds = self._waiting.values()
        self.types = self._types() | {name: pl.List(kind) for name, kind in zip(self.waiting, kinds, strict=True)}
        """What is kept per key."""

    def _part(self, of_frame: list[tuple[str, Expr]], belongs: Callable[[Aggregate], bool]) -> _Part:
        """Those of the aggregates that are computed in one way."""
        chosen = [belongs(cast("Aggregate", expr.node)) for _, expr in of_frame]
        return _Part.of(self._plan, chosen) if self._plan is not None else _Part((), [], [])

    @property
    def forgets(self) -> bool:
        """Whether nothing of a key is needed once its frame is empty."""
        return not (self.numbered or self.behind or self.ahead)

    @property
    def reaches_all(self) -> bool:
        """Whether frames are of all rows before, of which the partial of the last one is enough."""
        return self._plan is not None and self.operation.within_us is None and self.operation.rows is None

    @property
    def reaches_back(self) -> bool:
        """Whether frames have a length in time, behind which rows need not be kept."""
        return self._plan is not None and self.operation.within_us is not None

    def is_spent(self, row: tuple[Any, ...], reached: int) -> bool:
        """Whether no frame will reach back to what is kept of a key."""
        times = row[self._place_of_times]
        return not times or times[-1] <= reached - (self.operation.within_us or 0)

    def emptied(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """What is kept of a key, without the rows of its frame."""
        first = self._place_of_times
        last = first + (len(self._plan.partial_fields) if self._plan is not None else 0)
        return tuple([] if first <= index <= last else value for index, value in enumerate(row))

    @property
    def _place_of_times(self) -> int:
        return list(self.types).index(TIMES)

    def _beside(self, function: str) -> list[tuple[str, Node, int]]:
        """Name, operand and distance of each `lag` or `lead`."""
        return [
            (name, leaf.args[0], cast("int", dict(leaf.options)["rows"]))
            for leaf, name in self._leaves.items()
            if leaf.function == function
        ]

    def _type_of(self, node: Node) -> pl.DataType:
        return polars_type(Scope(node, self._schema, self.where).operand(node).type)

    def _types(self) -> dict[str, pl.DataType]:
        types: dict[str, pl.DataType] = {_COUNT: pl.Int64()} if self.numbered else {}
        if self._plan is not None:
            types[TIMES] = pl.List(pl.Int64())
            types |= {field.name: pl.List(polars_type(field.type)) for field in self._plan.partial_fields}
        return types | {name: pl.List(self._type_of(node)) for node, name in self._operands.items()}

    def _waiting_types(self) -> dict[str, pl.DataType]:
        """The columns of rows that wait for later ones: those of the input and what was computed."""
        if not self.ahead:
            return {}
        types = {field.name: polars_type(field.type) for field in self._schema} | {EVENT_TIME: pl.Int64()}
        types |= {name: self._type_of(leaf) for leaf, name in self._leaves.items() if leaf.function != "lead"}
        return types | {name: self._type_of(node) for node, name in self._lead_operands.items()}

    # -- rows -----------------------------------------------------------------------------------------------------------

    def evaluate(self, rows: pl.DataFrame, before: pl.DataFrame, reached: int) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows with what is computed of them and of rows before, and what is to be kept per key.

        Args:
            rows: in order of event time, with `KEY` and `PLACE`.
            before: what was kept, with `KEY`.
            reached: the watermark: no row will come at or before it.
        """
        try:
            kept = rows.select(pl.col(KEY).unique().sort())
            if self.numbered:
                rows, kept = self._number(rows, before, kept)
            if self._plan is not None:
                rows, kept = self._aggregate(self._plan, rows, before, kept, reached)
            if self._operands:
                rows, kept = self._look_back(rows, before, kept)
            return rows.with_columns(self._ahead_exprs), kept
        except PenstockError:
            raise
        except pl.exceptions.PolarsError as error:
            raise UserCodeError(f"{self.where}: the columns failed on a batch: {without_context(error)}") from error

    def _number(
        self, rows: pl.DataFrame, before: pl.DataFrame, kept: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        rows = rows.join(before.select(KEY, _COUNT), on=KEY, how="left", maintain_order="left")
        number = pl.col(_COUNT).fill_null(0) + pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(KEY)
        names = [name for leaf, name in self._leaves.items() if leaf.function == "row_number"]
        rows = rows.with_columns(number.alias(_COUNT))
        counts = rows.group_by(KEY).agg(pl.col(_COUNT).max())
        rows = rows.rename({_COUNT: names[0]})
        return rows, kept.join(counts, on=KEY, how="left", maintain_order="left")

    def _aggregate(
        self, plan: AggregatePlan, rows: pl.DataFrame, before: pl.DataFrame, kept: pl.DataFrame, reached: int
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        names = [field.name for field in plan.partial_fields]
        fresh = rows.select(KEY, PLACE, pl.col(EVENT_TIME).alias(TIMES), *plan.init)
        entries = self._after(before, [TIMES, *names], fresh)
        rests = self._rests(plan, entries)
        results = pl.concat([entries.filter(_FRESH).select(PLACE), *self._results(entries, rests)], how="horizontal")
        rows = _placed(rows, results)
        partials = self._whole(plan, entries.with_columns(rests)) if self.reaches_all else entries
        return rows, with_lists(kept, self._needed(partials, reached), [TIMES, *names])

    def _rests(self, plan: AggregatePlan, entries: pl.DataFrame) -> list[pl.Series]:
        """What no limb holds of the sums over all frames: floats, so it matters in which order they are added."""
        names = [names[-1] for names in plan.limbs]
        found = {name: entries[name].fill_null(0.0).to_numpy() for name in names}
        if not any(values.any() for values in found.values()):
            return [pl.Series(name, values) for name, values in found.items()]
        add = folded_in_frames if self.reaches_all else added_in_frames
        frames = self._frames(entries)
        return [pl.Series(name, add(values, frames)) for name, values in found.items()]

    def _whole(self, plan: AggregatePlan, entries: pl.DataFrame) -> pl.DataFrame:
        """The partial of all rows of each key; rests are those of the frame of the last row."""
        rests = {names[-1] for names in plan.limbs}
        merge = [expr for expr in plan.merge if expr.meta.output_name() not in rests]
        grouped = entries.group_by(KEY, maintain_order=True).agg(pl.col(TIMES, *rests).last(), *merge)
        return grouped.with_columns(expr for names in plan.limbs for expr in carried_exactly(names))

    def _frames(self, entries: pl.DataFrame) -> Frames:
        within, rows = self.operation.within_us, self.operation.rows
        return frames_of(entries[KEY].to_numpy(), entries[TIMES].to_numpy(), within, rows)

    def _results(self, entries: pl.DataFrame, rests: list[pl.Series]) -> Iterator[pl.DataFrame]:
        """The results of the fresh rows, in order: of others the frame is not whole any more."""
        if self._moving.finish:
            rolled = self._rolled(self._moving, entries).with_columns(rests)
            yield rolled.filter(entries[PLACE].is_not_null()).select(self._moving.finish)
        if not (self._scanned.finish or self._counted.finish):
            return
        frames, wanted = self._frames(entries), np.flatnonzero(entries[PLACE].is_not_null().to_numpy())
        if self._scanned.finish:
            scan = PartialScan(self._scanned.merge, [])
            merged = merged_frames(scan, entries.select(self._scanned.names), frames, wanted)
            yield merged.select(self._scanned.finish)
        for finish in self._counted.finish:
            (name,) = finish.meta.root_names()
            counts = distinct_in_frames(entries[name], entries[KEY], frames)[wanted]
            yield pl.DataFrame({finish.meta.output_name(): pl.Series(counts, dtype=pl.Int64)})

    def _after(self, before: pl.DataFrame, names: list[str], fresh: pl.DataFrame) -> pl.DataFrame:
        """The rows of every key in order: those that were kept and the fresh ones."""
        old = before.select(KEY, *names).filter(pl.col(names[0]).list.len() > 0).explode(names)
        old = old.with_columns(pl.lit(None, pl.Int64).alias(PLACE)).select(fresh.columns)
        return pl.concat([old, fresh]).sort(KEY, maintain_order=True)

    def _rolled(self, part: _Part, entries: pl.DataFrame) -> pl.DataFrame:
        """The partial of the frame of every row."""
        index, length = TIMES, _ALL_TIME
        if self.operation.within_us is not None:
            length = self.operation.within_us + 1
        if self.operation.rows is not None:
            index, length = _ORDER, self.operation.rows
            entries = entries.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(_ORDER))
        moving = entries.rolling(index, period=f"{length}i", closed="right", group_by=KEY)
        return moving.agg(part.merge).select(part.names)

    def _needed(self, entries: pl.DataFrame, reached: int) -> pl.DataFrame:
        """The entries that later rows need."""
        if self.operation.within_us is not None:
            return entries.filter(pl.col(TIMES) > reached - self.operation.within_us)
        last = 1 if self.operation.rows is None else self.operation.rows - 1
        return _last_of_keys(entries, last)

    def _look_back(
        self, rows: pl.DataFrame, before: pl.DataFrame, kept: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        names = list(self._operands.values())
        fresh = rows.select(KEY, PLACE, *self._behind_exprs)
        entries = self._after(before, names, fresh)
        shifted = [pl.col(self._operands[of]).shift(far).over(KEY).alias(name) for name, of, far in self._lags]
        rows = _placed(rows, entries.select(PLACE, *shifted))
        return rows, with_lists(kept, _last_of_keys(entries, self.behind), names)

    def _lowered(self, operands: dict[Node, str]) -> list[pl.Expr]:
        return [lower(node, self._schema, self.where).alias(name) for node, name in operands.items()]

    # -- rows that wait -------------------------------------------------------------------------------------------------

    def look_ahead(
        self, rows: pl.DataFrame | None, before: pl.DataFrame, at_end: int | None
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows whose successors are there, with the event time of the last of them, and those that wait on.

        Args:
            rows: evaluated rows with `KEY`, in order; None if there are none.
            before: what was kept, with `KEY`.
            at_end: if nothing is to be waited for any more, the least event time of a row that has no successor.
        """
        names = list(self._waiting)
        waiting = before.select(KEY, *self.waiting).filter(pl.col(self.waiting[0]).list.len() > 0)
        both = waiting.explode(self.waiting).rename(dict(zip(self.waiting, names, strict=True)))
        if rows is not None:
            both = pl.concat([both, rows.select(both.columns)]).sort(KEY, maintain_order=True)
        found = [pl.col(self._lead_operands[of]).shift(-far).over(KEY).alias(name) for name, of, far in self._leads]
        left = pl.int_range(pl.len(), dtype=pl.Int64).reverse().over(KEY)
        sent = pl.col(EVENT_TIME).shift(-self.ahead).over(KEY)
        if at_end is not None:
            sent = pl.coalesce(sent, pl.max_horizontal(pl.col(EVENT_TIME).max().over(KEY), pl.lit(at_end)))
        both = both.with_columns(*found, left.alias(_ORDER), sent.alias("__sent"))
        is_complete = pl.lit(at_end is not None) | (pl.col(_ORDER) >= self.ahead)
        complete = both.filter(is_complete).sort("__sent", EVENT_TIME, maintain_order=True)
        rest = both.filter(~is_complete)
        rest = rest.select(KEY, *(pl.col(name).alias(f"{_WAITING}{name}") for name in names))
        return complete.with_columns(pl.col("__sent").alias(EVENT_TIME)), rest

    # -- results --------------------------------------------------------------------------------------------------------

    def results(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with the columns of the output, and `EVENT_TIME`."""
        try:
            return rows.select(*self._outputs, EVENT_TIME)
        except pl.exceptions.PolarsError as error:
            raise UserCodeError(f"{self.where}: the result could not be computed: {without_context(error)}") from error

    def _lowered_outputs(self) -> list[pl.Expr]:
        leaves = {leaf: pl.col(name) for leaf, name in self._leaves.items()}
        columns = {field.name: pl.col(field.name) for field in self._schema}
        for name, expr in self.operation.columns:
            columns[name] = lower(expr.node, self._schema, self.where, leaves).alias(name)
        return list(columns.values())


@dataclass(frozen=True)
class _Part:
    """Aggregates that are computed in one way, and the partials that they need, but for rests of limbs."""

    names: Sequence[str]
    merge: list[pl.Expr]
    finish: list[pl.Expr]

    @classmethod
    def of(cls, plan: AggregatePlan, chosen: Sequence[bool]) -> _Part:
        """Those of the aggregates of a plan that are chosen."""
        finish = list(compress(plan.finish, chosen))
        merges = {expr.meta.output_name(): expr for expr in plan.merge}
        needed: set[str] = set()
        more = {name for expr in finish for name in expr.meta.root_names()}
        while more:
            needed |= more
            more = {name for each in more for name in merges[each].meta.root_names()} - needed
        rests = {names[-1] for names in plan.limbs}
        names = [field.name for field in plan.partial_fields if field.name in needed - rests]
        return cls(names, [merges[name] for name in names], finish)


def _is_counted(leaf: Aggregate) -> bool:
    """Whether it is counted how many values a frame holds, without looking at it."""
    return leaf.function == "n_unique"


def _is_scanned(leaf: Aggregate) -> bool:
    """Whether Polars would look at the whole frame of every row: it moves only plain aggregates along."""
    conditional = leaf.function in ("first", "last") and len(leaf.args) > 1
    return conditional or leaf.function in ("max_by", "min_by", "collect_distinct", "aggregate")


def _is_moved(leaf: Aggregate) -> bool:
    return not (_is_counted(leaf) or _is_scanned(leaf))


def _is_aggregate(node: Node) -> bool:
    return isinstance(node, Aggregate)


def _operands(found: list[tuple[str, Node, int]], prefix: str) -> dict[Node, str]:
    return {node: f"{prefix}{index}" for index, node in enumerate(dict.fromkeys(node for _, node, _ in found))}


def _placed(rows: pl.DataFrame, results: pl.DataFrame) -> pl.DataFrame:
    """The rows, which are in the order of their places, with the results that belong to them."""
    fresh = results.filter(pl.col(PLACE).is_not_null()).sort(PLACE).drop(PLACE)
    return pl.concat([rows, fresh], how="horizontal")


def _last_of_keys(entries: pl.DataFrame, count: int) -> pl.DataFrame:
    """The last entries of every key."""
    return entries.filter(pl.int_range(pl.len(), dtype=pl.Int64).reverse().over(KEY) < count)


def with_lists(kept: pl.DataFrame, entries: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """What is kept per key, and lists of these entries of each."""
    lists = entries.group_by(KEY, maintain_order=True).agg(names)
    joined = kept.join(lists, on=KEY, how="left", maintain_order="left")
    return joined.with_columns(pl.col(name).fill_null(pl.lit([], dtype=joined.schema[name])) for name in names)
