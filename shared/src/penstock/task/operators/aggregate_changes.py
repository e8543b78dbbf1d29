"""`agg` on changes: running results per key of rows that may be retracted.

Sums and counts are made of partials that can be subtracted as well as added. All other aggregates are computed from the
rows of a key, which are kept and counted as far as the aggregates look at them. A row is retracted behind where it was
added: both have the same content, so they come from the same subtask and go the same way.

A key's former result is retracted when it changes; a key that has no rows any more has no result, and no state. Distinct
rows are keys whose results have no columns; what else must be true of those in two streams is a condition of their sums,
or a number: so many equal rows are there, of which only those are sent that are added or retracted.

With a time to live a key that no change has touched for so long is forgotten, with its rows. It begins anew with the next
one that is added, as in Flink: what takes back a row where the key has none, of those that are known, is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, cast

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME
from penstock.errors import IncompatibleStateError, UserCodeError, without_context
from penstock.expressions import AggregatePlan, Expr, columns_of, count, is_of_distinct, is_subtractable
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.former_nulls import null_by_now
from penstock.plan.logical import Node
from penstock.plan.operations.aggregate_changes import AggregateChanges
from penstock.plan.operations.window_changes import WindowChanges
from penstock.state.columns import canonical_keys, joined_by_keys, key_frame, key_values
from penstock.state.counted_rows import COUNT, HAD, LEFT, UNKNOWN, CountedRows, followed
from penstock.state.freezes import Freezes
from penstock.state.segments import decode_segments
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, Output, RestoredState
from penstock.task.operators.changes import changes, count_of_change
from penstock.task.operators.keyed_table import INDEX, Beside, KeyedTable
from penstock.types import Field, Schema, polars_type, reads_described, schema_to_json, type_to_json

_KIND: Final = "aggregate-changes"
_ROWS: Final = "__rows"
"""The name of the count of rows among the results of `_Sums`."""
_HOLDS: Final = "__holds"
"""The name of what must be true of a key among them."""
_COPIES: Final = "__copies"
"""The name of how many equal rows a key has as its result."""
_RESULT: Final = "__result"
_PLACE: Final = "__place"
_ENDED: Final = "__ended"


class AggregateChangesOperator(Operator):
    """`agg` on a keyed stream of changes."""

    _kind: ClassVar[str] = _KIND
    _keeps_results: ClassVar[bool] = True
    """Whether what was sent for a key is kept, to be retracted."""

    def __init__(self, node: Node) -> None:
        operation, source = cast("AggregateChanges | WindowChanges", node.operation), node.inputs[0]
        asked, ttl_us = (_asked(operation), operation.ttl_us) if isinstance(operation, AggregateChanges) else ([], None)
        self._operator = node.operator_id
        self._where = f"{node.verb} ({node.operator_id})"
        self._keys = source.schema.select(source.keys, self._where)
        self._hidden = [EVENT_TIME] if node.event_time else []
        self._names = list(node.schema.names)
        self._null_by_now = null_by_now(source)
        summed = [(name, expr) for name, expr in operation.aggregates if is_subtractable(expr)]
        self._sums = _Sums(summed, asked, source.schema, self._keys, self._where)
        others = [(name, expr) for name, expr in operation.aggregates if not is_subtractable(expr)]
        results = {name: polars_type(node.schema.field(name).type) for name, _ in operation.aggregates}
        self._stored = {f"{_RESULT}_{name}": name for name in results if self._keeps_results}
        sent = {stored: results[name] for stored, name in self._stored.items()}
        self._table = KeyedTable(self._keys, {**self._sums.types, **sent}, ttl_us=ttl_us)
        schema, freezes = source.schema, self._table.freezes
        self._others = _OfRows(others, schema, self._keys, self._where, freezes) if others else None
        self._context: OperatorContext

    def open(self, context: OperatorContext, restored: RestoredState | None) -> None:
        self._context = context
        self._table.open(self._operator, context)
        if self._others is not None:
            self._others.kept_rows.lies_in(context.local_state)
        if restored is not None:
            self._restore(restored)

    def process(self, frame: pl.DataFrame, output: Output) -> None:
        if frame.height == 0:
            return
        rows = canonical_keys(frame, self._keys)
        if self._table.expires:
            rows = self._of_known_keys(rows, output)
            if rows.height == 0:
                return
        _, fresh, before, after = self._take(rows)
        self._send(before, after, fresh.select(*self._keys.names, *self._hidden), output)

    def _take(self, rows: pl.DataFrame) -> tuple[Sequence[Any], pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Count rows; the keys that they touch, what the rows come to, and what is kept of the keys before and after."""
        with self._failing():
            fresh = self._sums.of_rows(rows, self._hidden)
            keys = key_values(fresh, self._keys)
            before = self._table.find(keys)
            after = self._after(rows, fresh, before)
        self._keep(keys, after)
        self._table.maintain(len(keys))
        return keys, fresh, before, after

    @contextmanager
    def _failing(self) -> Generator[None]:
        try:
            yield
        except pl.exceptions.PolarsError as error:
            raise UserCodeError(f"{self._where}: the aggregates failed on a batch: {without_context(error)}") from error

    def _send(self, before: pl.DataFrame, after: pl.DataFrame, beside: pl.DataFrame, output: Output) -> None:
        # With a time to live also what stays the same: the keys behind would be forgotten too soon, as in Flink.
        changed = changes(self._sent(before), self._sent(after), beside, unchanged=self._table.expires)
        if changed.height:
            output.rows(changed.select(*self._names, *self._hidden))

    def _of_known_keys(self, rows: pl.DataFrame, output: Output) -> pl.DataFrame:
        """Forget the keys whose time is over, and those that have no row any more behind one of these changes.

        Returns:
            The changes behind the last one with which their key had none.
        """
        self._forget(self._table.forget())
        if not rows[RETRACTED].any():
            return rows
        touched = rows.group_by(self._keys.names, maintain_order=True).agg(pl.col(name).last() for name in self._hidden)
        keys = key_values(touched, self._keys)
        before = self._table.find(keys)
        rows, ended = self._followed(rows, touched, before)
        self._send(before.filter(pl.col(INDEX).is_in(ended.implode())), before.clear(), touched, output)
        gone = [keys[index] for index in ended]
        self._table.remove(gone)
        self._forget(gone)
        return rows

    def _followed(
        self, rows: pl.DataFrame, touched: pl.DataFrame, before: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.Series]:
        """The changes behind the last one with which their key had no rows any more, and the numbers of such keys."""
        had = np.zeros(touched.height, np.int64)
        had[before[INDEX].to_numpy()] = before[self._sums.rows].to_numpy()
        number = pl.int_range(pl.len(), dtype=pl.Int64)
        numbers = touched.select(*self._keys.names, number.alias(INDEX), pl.Series(HAD, had))
        numbered = joined_by_keys(rows, numbers, self._keys.names, "left")
        steps = followed(numbered.select(INDEX, HAD, count_of_change()))
        self._context.metrics.lost_changes += int(steps[UNKNOWN].sum())
        steps = steps.with_columns(number.alias(_PLACE))
        steps = steps.with_columns(pl.col(_PLACE).filter(pl.col(LEFT) == 0).max().over(INDEX).alias(_ENDED))
        ended = steps.filter(pl.col(_ENDED).is_not_null())[INDEX].unique(maintain_order=True)
        behind = steps.select((pl.col(_PLACE) > pl.col(_ENDED)).fill_null(value=True)).to_series()
        return rows.filter(behind), ended

    def _forget(self, keys: Sequence[Any]) -> None:
        """Of keys that are not in the table, the rows, too."""
        if self._others is not None and keys:
            self._others.kept_rows.remove(key_frame(keys, self._keys))

    def run_background_slice(self) -> bool:
        return self._others is not None and self._others.kept_rows.run_background_slice()

    def _sent(self, kept: pl.DataFrame) -> pl.DataFrame:
        """The results of keys that have one."""
        results = [pl.col(stored).alias(name) for stored, name in self._stored.items()]
        return kept.filter(self._sums.there).select(INDEX, *results)

    def _after(self, rows: pl.DataFrame, fresh: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """Sums and results of the touched keys, in their order, with `INDEX`."""
        numbered = fresh.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(INDEX))
        sums = self._sums.merged([before, numbered], [INDEX]).sort(INDEX)
        sums = sums.with_columns(self._sums.folded(rows, numbered.select(*self._keys.names, INDEX), before))
        if self._others is not None:
            self._keep_rows(self._others, rows)
        if not self._stored:
            return sums
        results = self._results(sums, fresh.select(self._keys.names))
        return sums.hstack(results.select(pl.col(name).alias(stored) for stored, name in self._stored.items()))

    def _results(self, sums: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        """The results of keys by these sums, in their order."""
        results = sums.select(INDEX, *self._sums.finish)
        return results if self._others is None else results.hstack(self._others.results(keys))

    def _keep_rows(self, others: _OfRows, rows: pl.DataFrame) -> None:
        changed = rows.select(*others.kept.names, count_of_change())
        if self._table.expires:
            known = others.kept_rows.without_unknown(changed)
            self._context.metrics.lost_changes += changed.height - known.height
            changed = known
        others.kept_rows.add(changed)

    def _keep(self, keys: Sequence[Any], after: pl.DataFrame) -> None:
        """A key whose rows are all gone is forgotten."""
        gone = after[self._sums.rows] == 0
        self._table.remove([keys[index] for index in after.filter(gone)[INDEX]])
        left = after.filter(~gone)
        self._table.put([keys[index] for index in left[INDEX]], left)

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def _header(self) -> dict[str, Any]:
        kept = [] if self._others is None else schema_to_json(self._others.kept)
        return {"kind": self._kind, "partials": self._sums.describe(), "rows": kept}

    def close(self) -> None:
        self._table.close()

    def snapshot(self) -> OperatorSnapshot | None:
        beside = None if self._others is None else self._others.freeze()
        return OperatorSnapshot(keyed=self._table.freeze(self._header(), self._context, beside))

    def _restore(self, restored: RestoredState) -> None:
        for _, header, rows in decode_segments(restored.keyed, self._operator, self._kind, self._keys):
            stored: list[dict[str, Any]] = header.get("partials", [])
            to_current = self._sums.known(stored, self._null_by_now)
            if to_current is None or not self._is_read(header):
                raise IncompatibleStateError(
                    f"operator {self._operator!r}: the snapshot holds other aggregates or windows than the pipeline "
                    "has; restore it with the same aggregates over columns of the same types, or give the operator "
                    "another uid to begin empty"
                )
            rows = canonical_keys(rows, self._keys)
            of_table = rows if COUNT not in rows.columns else rows.filter(pl.col(COUNT).is_null())
            if {part["name"] for part in stored} <= set(rows.columns):
                of_table = of_table.with_columns(to_current)
            if set(self._table.types) <= set(of_table.columns):
                self._table.load(of_table)
            if self._others is not None and COUNT in rows.columns:
                self._others.load(rows.filter(pl.col(COUNT).is_not_null()))
            self._note(rows)

    def _is_read(self, header: Mapping[str, Any]) -> bool:
        """Whether what a segment says beside its partials is what is kept here."""
        expected = {name: value for name, value in self._header().items() if name != "partials"}
        return reads_described(expected, {name: header.get(name) for name in expected})

    def _note(self, rows: pl.DataFrame) -> None:
        """These rows of a snapshot were restored: every key that it has is in one of them at least."""


class _Sums:
    """Aggregates whose partials are sums, and the number of rows."""

    def __init__(
        self,
        aggregates: Sequence[tuple[str, Expr]],
        asked: Sequence[tuple[str, Expr]],
        schema: Schema,
        keys: Schema,
        where: str,
    ) -> None:
        self._plan = AggregatePlan.build([(_ROWS, count()), *aggregates, *asked], schema, where)
        self._by = list(keys.names)
        folds = {fold.partial for fold in self._plan.folds}
        self._init_grouped, self._merge = (
            [expr for expr in exprs if expr.meta.output_name() not in folds]
            for exprs in (self._plan.init_grouped, self._plan.merge)
        )
        self.types = {field.name: polars_type(field.type) for field in self._plan.partial_fields}
        self._added_up = {name: kind for name, kind in self.types.items() if name not in folds}
        """Those of `types` that are sums."""
        self.rows = self._plan.partial_fields[0].name
        """The column that counts rows."""
        _, *results = self._plan.finish
        self.finish = results[: len(aggregates)]
        self.asked = results[len(aggregates) :]
        self.there = pl.all_horizontal(pl.col(self.rows) > 0, *(each.cast(pl.Boolean) for each in self.asked))
        """Which keys have a result: those of which nothing that is asked is false or zero."""

    def describe(self) -> list[dict[str, Any]]:
        """The partial columns for the header of a segment."""
        return _described(self._plan.partial_fields)

    def known(self, stored: list[dict[str, Any]], null_by_now: Collection[str]) -> list[pl.Expr] | None:
        """What makes these partials of those of a segment: nothing if they are the same; None if they do not follow."""
        if reads_described(self.describe(), stored):
            return []
        former = self._plan.narrower(null_by_now)
        if former is None or not reads_described(_described(former.fields), stored):
            return None
        return former.to_current

    def of_rows(self, rows: pl.DataFrame, hidden: Sequence[str]) -> pl.DataFrame:
        """Partials of rows, one per key: added up, less those of what is retracted."""
        newest = [pl.col(name).last() for name in hidden]
        parts = rows.group_by(*self._by, RETRACTED, maintain_order=True).agg(*newest, *self._init_grouped)
        parts = parts.with_columns(
            pl.when(RETRACTED).then(_negated(name, kind)).otherwise(name).alias(name)
            for name, kind in self._added_up.items()
        )
        return self._carried(parts.group_by(self._by, maintain_order=True).agg(*newest, *self._merge))

    def merged(self, frames: Sequence[pl.DataFrame], by: Sequence[str]) -> pl.DataFrame:
        """Sums of sums."""
        together = pl.concat([frame.select(*by, *self._added_up) for frame in frames])
        return self._carried(together.group_by(by, maintain_order=True).agg(self._merge))

    def folded(self, rows: pl.DataFrame, keys: pl.DataFrame, before: pl.DataFrame) -> list[pl.Series]:
        """The accumulators of keys, in their order, behind rows in the order in which they came.

        Args:
            rows: the changes.
            keys: the keys that they touch, with `INDEX`.
            before: what is kept of those keys.
        """
        if not self._plan.folds:
            return []
        places = joined_by_keys(rows.select(*self._by, RETRACTED), keys, self._by, "left")
        kept: dict[str, dict[int, bytes]] = {
            fold.partial: dict(zip(before[INDEX], before[fold.partial], strict=True)) for fold in self._plan.folds
        }
        found: list[pl.Series] = []
        for fold in self._plan.folds:
            names = [f"__argument{number}" for number in range(len(fold.args))]
            given = rows.with_columns(arg.alias(name) for name, arg in zip(names, fold.args, strict=True)).select(names)
            changes: list[list[tuple[bool, Sequence[Any]]]] = [[] for _ in range(keys.height)]
            for place, retracted, values in zip(places[INDEX], places[RETRACTED], given.iter_rows(), strict=True):
                changes[place].append((retracted, values))
            states = [fold.calls.changed(kept[fold.partial].get(place), each) for place, each in enumerate(changes)]
            found.append(pl.Series(fold.partial, states, pl.Binary()))
        return found

    def _carried(self, parts: pl.DataFrame) -> pl.DataFrame:
        return parts.with_columns(self._plan.carry) if self._plan.carry else parts


class CopiesOperator(AggregateChangesOperator):
    """Equal rows, of which the number is kept. Where it changes, so many are sent as were added or retracted."""

    def _send(self, before: pl.DataFrame, after: pl.DataFrame, beside: pl.DataFrame, output: Output) -> None:
        had, has = self._copies(before, beside.height), self._copies(after, beside.height)
        gone, come = np.maximum(had - has, 0), np.maximum(has - had, 0)
        if self._table.expires:  # one for all equal ones lets the keys behind live on
            same = (had == has) & (has > 0)
            gone, come = gone + same, come + same
        counts = np.stack([gone, come], axis=1).ravel()
        numbers = np.repeat(np.arange(counts.size), counts)
        if numbers.size:
            sent = beside[numbers // 2].with_columns(pl.Series(RETRACTED, numbers % 2 == 0))
            output.rows(sent.select(*self._names, *self._hidden))

    def _copies(self, kept: pl.DataFrame, keys: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """How many equal rows each of so many keys has."""
        found = np.zeros(keys, np.int64)
        found[kept[INDEX].to_numpy()] = kept.select(self._sums.asked[0].cast(pl.Int64)).to_series().to_numpy()
        return found


def _asked(operation: AggregateChanges) -> list[tuple[str, Expr]]:
    """What is asked of the sums beside the results."""
    asked = ((_HOLDS, operation.holds), (_COPIES, operation.copies))
    return [(name, expr) for name, expr in asked if expr is not None]


class _OfRows:
    """Aggregates that are computed from the rows, as far as these aggregates look at them."""

    def __init__(
        self, aggregates: Sequence[tuple[str, Expr]], schema: Schema, keys: Schema, where: str, freezes: Freezes
    ) -> None:
        read = frozenset[str]().union(*(columns_of(expr) for _, expr in aggregates))
        self.kept = Schema(tuple(field for field in schema if field.name in keys or field.name in read))
        """The columns of a row that is kept."""
        self._names = [name for name, _ in aggregates]
        self._plan = AggregatePlan.build(aggregates, schema, where, event_time=False)
        self._distinct = all(is_of_distinct(expr) for _, expr in aggregates)
        self.kept_rows = CountedRows(keys.names, self.kept.polars(), freezes=freezes)

    def results(self, keys: pl.DataFrame) -> pl.DataFrame:
        """The results of all rows of these keys, in their order."""
        found = self.kept_rows.of(keys).filter(pl.col(COUNT) > 0)
        if not self._distinct:
            found = found[np.repeat(np.arange(found.height), found[COUNT].to_numpy())]
        partials = found.group_by(INDEX).agg(self._plan.init_grouped)
        if self._plan.carry:
            partials = partials.with_columns(self._plan.carry)
        numbers = pl.DataFrame({INDEX: pl.int_range(keys.height, dtype=pl.Int64, eager=True)})
        results = partials.select(INDEX, *self._plan.finish)
        return numbers.join(results, on=INDEX, how="left", maintain_order="left").select(self._names)

    def freeze(self) -> Beside:
        """All rows as they are now."""
        frames = [(run.epoch, [run.rows().frame]) for run in self.kept_rows.freeze()]
        return Beside({**self.kept.polars(), COUNT: pl.Int64()}, frames)

    def load(self, rows: pl.DataFrame) -> None:
        """Add rows of a snapshot."""
        self.kept_rows.add(rows.select(*self.kept.names, COUNT))


def _described(fields: Sequence[Field]) -> list[dict[str, Any]]:
    return [{"name": field.name, "type": type_to_json(field.type)} for field in fields]


def _negated(name: str, kind: pl.DataType) -> pl.Expr:
    return pl.lit(0, kind) - pl.col(name) if kind == pl.UInt64() else -pl.col(name)
