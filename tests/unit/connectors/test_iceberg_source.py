"""Tables of Iceberg as sources: a snapshot that stays what it was, positions, and what is appended to a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from uuid import UUID

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema as TableSchema
from pyiceberg.table import DataScan, Table
from pyiceberg.types import FixedType, IntegerType, NestedField, StringType, TimestampType, UUIDType

from penstock import Pipeline, col, count, lit, tumbling
from penstock.connectors import iceberg, iterables
from penstock.connectors.base import EndOfSplit, ReadContext, SplitReader
from penstock.connectors.iceberg import scanning
from penstock.errors import PipelineError
from penstock.types import INT64, STRING, Field, Schema

ROWS = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("shop", pa.string())])
TABLE = "shop.orders"


class Orders:
    """A table that somebody else writes."""

    def __init__(self, folder: Path) -> None:
        warehouse = (folder / "warehouse").as_uri()
        self.settings = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": warehouse}
        self.catalog = SqlCatalog("default", uri=self.settings["uri"], warehouse=warehouse)
        self.catalog.create_namespace("shop")
        self.table: Table = self.catalog.create_table(TABLE, ROWS)

    def append(self, *numbers: int) -> int:
        """One more file, and the id of its snapshot."""
        shops = [f"s{n % 2}" for n in numbers]
        self.table.append(pa.table({"n": numbers, "shop": shops}, schema=ROWS))
        return self.newest

    @property
    def newest(self) -> int:
        snapshot = self.table.refresh().current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def compact(self) -> None:
        """The same rows in one other file, as an engine that knows how says it."""
        rows = self.table.refresh().scan().to_arrow()
        with self.table.transaction() as transaction, transaction.update_snapshot().overwrite() as rewriting:
            from pyiceberg.io.pyarrow import _dataframe_to_data_files
            from pyiceberg.table.snapshots import Operation

            summary = rewriting._summary

            def replacing(properties: Any) -> Any:
                made = summary(properties)
                # pyiceberg itself does not compact yet
                return made.model_copy(update={"operation": Operation.REPLACE})

            rewriting._summary = replacing
            for task in self.table.scan().plan_files():
                rewriting.delete_data_file(task.file)
            for file in _dataframe_to_data_files(self.table.metadata, rows, self.table.io):
                rewriting.append_data_file(file)

    def expire(self) -> None:
        later = datetime.now() + timedelta(days=1)  # noqa: DTZ005
        self.table.refresh().maintenance.expire_snapshots().older_than(later).commit()

    def source(self, **options: Any) -> iceberg.Source[Any]:
        return iceberg.Source(TABLE, catalog=self.settings, **options)


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path)


def numbers(source: iceberg.Source[Any]) -> list[int]:
    return sorted(Pipeline("read").read(source).collect()["n"].to_list())


# -- a snapshot ---------------------------------------------------------------------------------------------------------


async def test_positions(orders: Orders, read_split: Callable[..., Any]) -> None:
    """Every piece read by a new reader from where the one before ended, which is JSON: the same rows."""
    orders.append(*range(100))
    source = orders.source()
    [split] = source.discover()
    assert split.size_bytes
    whole = await read_split(source)
    assert [row["n"] for row in whole.rows] == list(range(100))
    pieces = await read_split(source, pieces=[1, 7, 3, 20], reopen=True)
    assert pieces.rows == whole.rows
    behind = await read_split(source, position=pieces.positions[2])
    assert [row["n"] for row in behind.rows] == list(range(11, 100))


def test_an_empty_table_has_no_rows(orders: Orders) -> None:
    assert numbers(orders.source()) == []
    orders.append(1)
    orders.table.delete("n = 1")
    assert numbers(orders.source()) == []


def test_a_snapshot_stays_what_it_was(orders: Orders) -> None:
    """Chosen, or fixed at the start: later rows, compaction and other splits change nothing."""
    first = orders.append(1, 2)
    orders.append(3)
    source = orders.source()
    fixed = source.at(json.loads(json.dumps(source.moment())))
    positions = {split.id: fixed.resolve(split, late=False) for split in fixed.discover()}
    orders.append(4)
    orders.compact()
    assert {split.id for split in fixed.discover()} == positions.keys()
    assert len(positions) == 2
    assert numbers(orders.source(snapshot=first)) == [1, 2]
    assert numbers(orders.source()) == [1, 2, 3, 4]
    with pytest.raises(PipelineError, match="has no snapshot 5"):
        numbers(orders.source(snapshot=5, schema=ROWS))


def test_only_what_is_wanted_is_opened(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns, rows, and files whose statistics say that they have none."""
    for begin in range(0, 100, 10):
        orders.append(*range(begin, begin + 10))
    narrow = orders.source(schema=Schema((Field("n", INT64),)), row_filter="n >= 35 and n < 47 and shop = 's1'")
    assert len(narrow.discover()) == 2
    assert numbers(narrow) == [35, 37, 39, 41, 43, 45]
    planned = narrow._spec
    assert planned.columns == ("n",)
    with pytest.raises(PipelineError, match=r"row_filter='n >>> 1' is not understood"):
        orders.source(row_filter="n >>> 1")
    with pytest.raises(Exception, match="nn"):
        orders.source(row_filter="nn > 1").discover()


def test_columns_by_name_and_type(orders: Orders) -> None:
    """Missing ones are null where the schema allows it; others are refused before a row is read."""
    orders.append(1)
    found = Pipeline("p").read(orders.source(schema=Schema((Field("more", STRING, nullable=True), Field("n", INT64)))))
    assert found.collect().rows() == [(None, 1)]
    with pytest.raises(PipelineError, match="has no column 'm'"):
        orders.source(schema=Schema((Field("m", INT64),))).discover()
    with pytest.raises(PipelineError, match="column 'n' holds int64, but the schema declares string"):
        orders.source(schema=Schema((Field("n", STRING),))).discover()
    with pytest.raises(PipelineError, match=r"cannot load table shop.nothing .*create it, or correct its name"):
        iceberg.Source("shop.nothing", catalog=orders.settings)


def test_types_that_only_tables_have(orders: Orders) -> None:
    """UUIDs and fixed-size bytes are bytes, timestamps without a zone need one; a renamed column stays the same one."""
    kinds = [("u", UUIDType()), ("f", FixedType(3)), ("i", IntegerType()), ("t", TimestampType())]
    schema = TableSchema(*(NestedField(i + 1, name, kind) for i, (name, kind) in enumerate(kinds)))
    table = orders.catalog.create_table("shop.odd", schema)
    u = UUID(int=7)
    row = {"u": [u.bytes], "f": [b"abc"], "i": [5], "t": [datetime(2026, 1, 1)]}  # noqa: DTZ001
    table.append(pa.table(row, schema=table.schema().as_arrow()))
    with table.update_schema() as columns:
        columns.rename_column("i", "number")
        columns.add_column("new", StringType())
    with pytest.raises(PipelineError, match="timezone"):
        iceberg.Source("shop.odd", catalog=orders.settings)
    source = iceberg.Source("shop.odd", catalog=orders.settings, timezone="Europe/Berlin")
    found = Pipeline("p").read(source).collect().to_dicts()
    at = datetime(2025, 12, 31, 23, tzinfo=UTC)
    assert found == [{"u": u.bytes, "f": b"abc", "number": 5, "t": at, "new": None}]


def test_moments_of_96_bits(orders: Orders) -> None:
    """INT96 in a table that Spark or Hive wrote before it was one of Iceberg: moments that nanoseconds do not reach."""
    columns = TableSchema(NestedField(1, "at", TimestampType()))
    table = orders.catalog.create_table("shop.old", columns)
    moments = [datetime(9999, 12, 31), datetime(1500, 1, 1), datetime(2020, 1, 1)]  # noqa: DTZ001
    rows = pa.table({"at": moments}, schema=columns.as_arrow())
    table.append(rows)
    (task,) = table.scan().plan_files()
    parquet.write_table(rows, urlparse(task.file.file_path).path, use_deprecated_int96_timestamps=True)
    source = iceberg.Source("shop.old", catalog=orders.settings, timezone="UTC")
    found = Pipeline("p").read(source)
    assert [each.replace(tzinfo=None) for each in found.collect()["at"]] == moments
    later = lit(datetime(2030, 1, 1, tzinfo=UTC))
    assert found.filter(col("at") > later).collect().height == 1


def test_equality_deletes_are_refused(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.append(1)

    def planning(_: DataScan) -> Any:
        raise ValueError(
            "PyIceberg does not yet support equality deletes: https://github.com/apache/iceberg/issues/6568"
        )

    monkeypatch.setattr(DataScan, "plan_files", planning)
    scanning.plan.cache_clear()
    with pytest.raises(PipelineError, match=r"has equality deletes, .* rewrite its data files"):
        orders.source().discover()


def test_bad_rows_say_where(orders: Orders) -> None:
    """A value that does not fit what the schema declares."""
    orders.append(1, 2)
    orders.table.append(pa.table({"n": [3], "shop": [None]}, schema=ROWS))
    source = orders.source(schema=Schema((Field("n", INT64), Field("shop", STRING))), bad_rows="skip")
    assert numbers(source) == [1, 2]
    with pytest.raises(Exception, match=r"file 1 of this split, row 1"):
        numbers(orders.source(schema=Schema((Field("n", INT64), Field("shop", STRING)))))


def test_who_appends_may_read_what_was_there(orders: Orders) -> None:
    """A snapshot is fixed; a stream of one's own rows is refused."""
    orders.append(1, 2)
    p = Pipeline("doubled")
    p.read(orders.source()).with_columns(n=col("n") + 10).write(iceberg.Sink(TABLE, catalog=orders.settings))
    assert p.run().state == "FINISHED"
    assert numbers(orders.source()) == [1, 2, 11, 12]
    p = Pipeline("endless")
    p.read(orders.source(follow=True)).write(iceberg.Sink(TABLE, catalog=orders.settings))
    with pytest.raises(PipelineError, match=r"would read what .* writes, without end"):
        p.run()


# -- what is appended ---------------------------------------------------------------------------------------------------


class Following:
    """Reads all splits of a stream; every piece with new readers, from the positions of the ones before."""

    def __init__(self, source: iceberg.Source[Any]) -> None:
        self.source = source.at(source.moment())
        self.ms = 0
        self.rows: list[int] = []
        self.positions = {split.id: self.source.resolve(split, late=False) for split in self.source.discover()}

    async def read(self, pieces: int = 1_000) -> list[int]:
        """The rows that are new, sorted."""
        begin = len(self.rows)
        for split in self.source.discover():
            self.ms += 10_000
            context = ReadContext(lambda: 0, lambda: self.ms)
            reader = self.source.open(split, self.positions[split.id], context)
            await self._drain(reader, pieces)
            self.positions[split.id] = json.loads(json.dumps(reader.position()))
            await reader.close()
        return sorted(self.rows[begin:])

    async def _drain(self, reader: SplitReader, pieces: int) -> None:
        silent = 0
        while silent < 3:
            try:
                fetched = await reader.read(pieces)
            except EndOfSplit:
                return
            opened = reader._reader  # type: ignore[attr-defined]
            idle = fetched is None and opened._fetching is None  # else it is still asking
            silent = silent + idle if fetched is None else 0
            if fetched is not None:
                self.rows += fetched.frame["n"].to_list()


async def test_what_is_appended_follows_and_compaction_does_not(orders: Orders) -> None:
    """In the order of commits; snapshots that are read may be expired."""
    stream = Following(orders.source(follow=True, splits=3))
    assert await stream.read() == []
    orders.append(1, 2)
    orders.append(3)
    assert await stream.read() == [1, 2, 3]
    orders.compact()
    orders.append(4)
    assert await stream.read() == [4]
    orders.append(5, 6)
    assert await stream.read(pieces=1) == [5, 6]
    orders.compact()
    assert await stream.read() == []
    orders.expire()
    orders.append(7)
    assert await stream.read() == [7]


async def test_a_stream_begins_with_the_table(orders: Orders) -> None:
    """As it was when the job started, at another snapshot if one is named; files are dealt to the splits."""
    first = orders.append(1)
    for n in range(2, 20):
        orders.append(n)
    stream = Following(orders.source(follow=True, splits=2))
    orders.append(20)
    assert await stream.read() == list(range(1, 21))
    assert await Following(orders.source(follow=True, snapshot=first)).read() == list(range(1, 21))


async def test_rows_that_are_taken_away(orders: Orders) -> None:
    """An error that says what to do, or passed over when asked."""
    orders.append(1, 2)
    streams = [Following(orders.source(follow=True, changes=changes)) for changes in ("fail", "skip")]
    orders.table.refresh().delete("n = 2")
    orders.append(9)
    with pytest.raises(PipelineError, match=r"is an? '(delete|overwrite)': it takes rows away.*changes='skip'"):
        await streams[0].read()
    assert await streams[1].read() == [1, 2, 9]


async def test_history_that_is_gone_is_an_error(orders: Orders) -> None:
    """Never a hole: snapshots that were expired before they were read."""
    empty = Following(orders.source(follow=True))
    orders.append(1)
    stream = Following(orders.source(follow=True))
    assert await stream.read() == [1]
    orders.append(2)
    orders.append(3)
    orders.append(4)
    orders.expire()
    for each in (stream, empty):
        with pytest.raises(PipelineError, match=r"what followed snapshot .* is not known any more: snapshots were exp"):
            await each.read()


async def test_up_to_now(orders: Orders) -> None:
    """As a batch engine reads a stream: to the end that was asked for, and on from there."""
    orders.append(1)
    stream = Following(orders.source(follow=True, splits=2))
    for _ in range(2):
        for split in stream.source.discover():
            ended = stream.source.until_now(split, stream.positions[split.id])
            assert stream.source.until_now(split, ended) == ended
            stream.positions[split.id] = ended
    orders.append(2)
    assert await stream.read() == [1]
    assert all(stream.source.at_end(position) for position in stream.positions.values())
    stream.positions = {split: stream.source.go_on_from(at) for split, at in stream.positions.items()}
    assert not any(stream.source.at_end(position) for position in stream.positions.values())
    assert await stream.read() == [2]


async def test_an_error_is_no_end(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that failed goes on where it was."""
    orders.append(1)
    source = orders.source()
    [split] = source.discover()
    reader = source.open(split, source.resolve(split, late=False), ReadContext(lambda: 0, lambda: 0))

    def fails(*_: Any) -> Any:
        raise OSError("away")

    with monkeypatch.context() as patch:
        patch.setattr(scanning.Plan, "batches", fails)
        for _ in range(2):
            with pytest.raises(Exception, match=r"cannot read table shop.orders .*away"):
                await reader.read(10)
    fetched = await reader.read(10)
    assert fetched is not None
    assert fetched.frame["n"].to_list() == [1]
    with pytest.raises(EndOfSplit):
        await reader.read(10)
    await reader.close()


def test_event_time(orders: Orders) -> None:
    """Windows over a table whose files overlap in time: nothing is late, because each file is a split."""
    rows = [{"at": datetime(2026, 1, 1, 0, n, tzinfo=UTC)} for n in range(60)]
    for part in range(4):
        p = Pipeline(f"write-{part}")
        frame = pl.DataFrame(rows[part::4])
        p.read(iterables.Source(frame.to_dicts(), schema=frame.to_arrow().schema)).write(
            iceberg.Sink("shop.times", catalog=orders.settings)
        )
        assert p.run().state == "FINISHED"
    source = iceberg.Source("shop.times", catalog=orders.settings, event_time="at")
    made = Pipeline("read").read(source).with_columns(k=col("at").dt.year()).key_by("k").window(tumbling("10m"))
    assert made.agg(n=count()).collect()["n"].to_list() == [10] * 6


def test_rows_of_which_a_table_or_its_files_have_no_column(orders: Orders) -> None:
    """Null in every row, of which there are as many as always."""
    orders.append(1, 2)
    added = pa.schema([("added", pa.int64())])
    assert Pipeline("read").read(orders.source(schema=added)).collect()["added"].to_list() == [None, None]
    with orders.table.update_schema() as columns:
        columns.add_column("added", IntegerType())
    assert Pipeline("read").read(orders.source(schema=added)).collect()["added"].to_list() == [None, None]
