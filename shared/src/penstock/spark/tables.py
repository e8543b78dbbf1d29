"""Savepoints as tables of Spark: `spark.read.format("penstock").load(path)`; `table_writing` is the way back.

    from penstock.spark.tables import register

    register(spark)
    spark.read.format("penstock").load("kept").show()  # its operators
    totals = spark.read.format("penstock").option("uid", "totals").load("kept")

What a table holds is what `penstock.savepoint` gives; tasks read it a key group at a time. Nothing is pushed down: the
filters that Spark hands to a Python source stay with it for later queries (Spark 4.2 and 4.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import UsageError, nearest
from penstock.savepoint.reading import Savepoint, read
from penstock.spark.table_writing import SavepointWriter, write_options
from penstock.spark.wire import _WIDER

_PARTITION_BYTES: Final = 4 << 20
"""About how much state a task reads, as it is stored."""
_OPTIONS: Final = ("path", "uid", "state", "table", "cluster")
_TABLES: Final = ("operators", "state", "keys", "timers", "splits", "watermarks")


def register(spark: SparkSession) -> None:
    """Make the format `penstock` known to a session.

    Options of the reader:
        path: the folder of a savepoint, or the key of its manifest in a cluster's store.
        cluster: the file with that cluster's settings, if not the default one.
        uid: the operator whose state is read.
        state: one of its declared states.
        table: `operators` (if no uid is given), `state` (if one is), `keys`, `timers`, `splits` or `watermarks`.

    Options of the writer, whose rows take the place of those of one table in a copy of a savepoint:
        path: the new folder, which driver and executors share.
        from: the savepoint that is copied, as `path` of the reader; `cluster` as there.
        uid, state, table: what is replaced: `state` (if nothing is said), `timers` or `splits`.

    Rows have the columns that are read; see `EditedSavepoint.replace`. Of lists the column `index` is needed. It is
    `mode("append")`, because nothing is overwritten.
    """
    spark.dataSource.register(SavepointSource)


@dataclass(frozen=True)
class _ReadOptions:
    """The options of the reader: which table of which savepoint."""

    path: str
    table: str
    uid: str | None
    state: str | None
    cluster: str | None

    def open(self) -> Savepoint:
        return read(self.path, store=self.cluster)

    @property
    def by_key_group(self) -> bool:
        """Whether it is state, of which there may be more than one task should read."""
        return self.table in ("state", "keys", "timers")


class SavepointSource(DataSource):
    """See `register`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "penstock"

    def schema(self) -> StructType:
        """The columns; see `penstock.savepoint.Savepoint`."""
        options = _read_options(self.options)
        sp = options.open()
        frame = next(iter(_frames(sp, options, (0, sp.max_parallelism))), None)
        return from_arrow_schema(_arrow(_whole(sp, options) if frame is None else frame).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads it in tasks."""
        return _Reader(_read_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> SavepointWriter:
        """What writes another one in tasks."""
        if overwrite:
            raise UsageError(
                'penstock: a savepoint is not overwritten: write mode("append"), and save it in a new folder'
            )
        return SavepointWriter(write_options(self.options))


class _Reader(DataSourceReader):
    def __init__(self, options: _ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Ranges of key groups, as many as the size of the state is worth."""
        sp = self._options.open()
        if self._options.uid is None or not self._options.by_key_group or not _is_keyed(sp, self._options):
            return [InputPartition(None)]
        parts = 1 + sp.operator(self._options.uid).keyed_bytes // _PARTITION_BYTES
        width = max(1, sp.max_parallelism // parts)
        starts = range(0, sp.max_parallelism, width)
        return [InputPartition((start, min(start + width, sp.max_parallelism))) for start in starts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a range, as record batches."""
        sp = self._options.open()
        frames = [_whole(sp, self._options)] if partition.value is None else _frames(sp, self._options, partition.value)
        for frame in frames:
            yield from _arrow(frame).to_batches()


def _read_options(options: Any) -> _ReadOptions:
    for name in options:
        if name not in _OPTIONS:
            raise UsageError(f"penstock: there is no option {name!r}; {nearest(name, _OPTIONS)}")
    uid = options.get("uid")
    table = options.get("table", "operators" if uid is None else "state")
    if table not in _TABLES:
        raise UsageError(f"penstock: there is no table {table!r}; {nearest(table, _TABLES)}")
    if "path" not in options:
        raise UsageError("penstock: say which savepoint: .load(PATH)")
    if uid is None and table in ("state", "keys", "timers"):
        raise UsageError(f'penstock: whose {table}? write .option("uid", ...)')
    return _ReadOptions(options["path"], table, uid, options.get("state"), options.get("cluster"))


def _is_keyed(sp: Savepoint, options: _ReadOptions) -> bool:
    assert options.uid is not None
    operator = sp.operator(options.uid)
    return bool(operator.keys.fields) and options.state not in operator.broadcast


def _frames(sp: Savepoint, options: _ReadOptions, groups: tuple[int, int]) -> Iterator[pl.DataFrame]:
    """The tables of the key groups that hold anything."""
    uid = options.uid
    if uid is None or not options.by_key_group or not _is_keyed(sp, options):
        yield _whole(sp, options)
        return
    if options.table == "state":
        yield from (frame for _, frame in sp.tables(uid, options.state, key_groups=groups))
        return
    stored = sorted({group for group, _, _ in sp.segments(uid, groups)})
    for group in stored:
        one = (group, group + 1)
        yield sp.timers(uid, key_groups=one) if options.table == "timers" else sp.keys(uid, key_groups=one)


def _whole(sp: Savepoint, options: _ReadOptions) -> pl.DataFrame:
    match options.table:
        case "operators":
            rows = [
                (o.uid, o.verb, o.keys.names, list(o.states), o.subtasks, o.key_groups, o.keyed_bytes)
                for o in sp.operators
            ]
            names = ("uid", "verb", "keys", "states", "subtasks", "key_groups", "keyed_bytes")
            kinds = (pl.String, pl.String, pl.List(pl.String), pl.List(pl.String), pl.Int64, pl.Int64, pl.Int64)
            return pl.DataFrame(rows, dict(zip(names, kinds, strict=True)), orient="row")
        case "splits":
            return sp.splits(options.uid)
        case "watermarks":
            return sp.watermarks()
        case _:
            assert options.uid is not None
            return _of_operator(sp, options.table, options.uid, options.state)


def _of_operator(sp: Savepoint, table: str, uid: str, state: str | None) -> pl.DataFrame:
    if table == "timers":
        return sp.timers(uid)
    return sp.keys(uid) if table == "keys" else sp.table(uid, state)


def _arrow(frame: pl.DataFrame) -> pa.Table:
    """In types that Spark keeps as they are."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    return table.cast(pa.schema([pa.field(field.name, _kept(field.type)) for field in table.schema]))


def _kept(kind: Any) -> Any:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_kept(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _kept(field.type)) for field in kind])
    return _WIDER.get(kind, kind)
