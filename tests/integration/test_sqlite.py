"""Tables of SQLite as a sink: what is written and refused, that every row is there once, and back through the source."""

from __future__ import annotations

import itertools
import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from time import time_ns
from typing import Annotated, Any

import polars as pl
import pytest
from embedded_runs import Attempt, Stress
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tests.integration.publishing_by_hand import (
    check_a_stopped_publisher_is_refused,
    check_doubt_changes_nothing,
    check_rows_are_visible_once,
    published,
)
from tests.integration.sink_rows import ALL, EMPTY, Everything, Sale, sales, sales_by_shop, write
from tests.unit.task.publishing_parts import Exchange

from penstock import DecimalType, Pipeline, PipelineError, col, count, lit
from penstock.connectors import iterables, sqlite
from penstock.connectors.base import ProducerFencedError, PublishContext, PublishedMark, WriteContext
from penstock.connectors.keyed_rows import KeyedRows
from penstock.connectors.sqlite.database import Database
from penstock.connectors.sqlite.decoding import RowDecoder
from penstock.connectors.sqlite.encoding import row_encoder
from penstock.connectors.sqlite.publishing import SqlitePublisher
from penstock.connectors.sqlite.writing import TableWriting
from penstock.core.decimals import of_units
from penstock.errors import BadRecordError, ExternalError, RefusedRowError
from penstock.formats.columns import FrameBuilder
from penstock.task import sources
from penstock.types import schema_of

pytestmark = pytest.mark.timeout(120)


class Table:
    """A table of one test; none if no columns are given."""

    def __init__(self, folder: Path, columns: str = "", name: str = "t") -> None:
        self.file, self.name = folder / "shop.db", name
        if columns:
            self.do(f'create table "{name}" ({columns})')

    def do(self, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()

    def sink(self, **options: Any) -> sqlite.Sink:
        return sqlite.Sink(self.file, self.name, **options)

    def source(self, schema: Any = None, **options: Any) -> sqlite.Source[Any]:
        return sqlite.Source(self.file, self.name, schema=schema, **options)


def read_back(table: Table) -> list[Everything]:
    """The rows as objects, in the order in which they are there."""
    found: list[Everything] = []

    def keep(row: Everything) -> Everything:
        found.append(row)
        return row

    rows = Pipeline("p").read(table.source(Everything)).map(keep).collect()
    assert rows.height == len(found)
    return found


# -- what is written ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("key", [None, "id"])
def test_all_types(tmp_path: Path, delivery: Any, key: str | None) -> None:
    """Each comes back as it went in, whatever is in the texts; the table is made."""
    table = Table(tmp_path)
    least = replace(
        ALL, id=3, text="\x00'\"\r\n,\x01", at=datetime(1, 1, 1, tzinfo=UTC), day=date.min, ratio=-5e-324,
        moment=time.min, span=timedelta(days=40_000, microseconds=1), tags=["\\", "\n", "null", '"'], small=-(2**63),
    )  # fmt: skip
    most = replace(ALL, id=4, at=datetime.max.replace(tzinfo=UTC), day=date.max, amount=Decimal("-9999999999.99"))
    rows = [ALL, EMPTY, least, most]
    write(table.sink(key=key, delivery=delivery), rows, Everything)
    assert read_back(table) == rows
    assert table.do("select at, day, moment, span, amount, tags from t where id = 1") == [
        (
            "2026-01-01T12:30:15.123456Z", "2026-02-03", "04:05:06.000007", "-P399DT23H59M58.5S", "10.10",
            '["a","b,"]',
        )
    ]  # fmt: skip


@dataclass
class Inner:
    at: datetime | None
    amount: Annotated[Decimal, DecimalType(5, 3)] | None


@dataclass
class Anything:
    id: int
    text: str | None
    ratio: float | None
    truth: bool | None
    data: bytes | None
    at: datetime | None
    day: date | None
    moment: time | None
    span: timedelta | None
    amount: Annotated[Decimal, DecimalType(38, 9)] | None
    small: Annotated[Decimal, DecimalType(15, 4)] | None
    inner: Inner | None
    tags: list[str | None] | None
    weights: dict[str, int] | None


SPANS = st.timedeltas(timedelta(days=-(10**6)), timedelta(days=10**6))
MOMENTS = st.datetimes(timezones=st.just(UTC))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda units: of_units(units, scale))


ROWS = st.builds(
    Anything,
    id=st.integers(-(2**63), 2**63 - 1), text=st.none() | TEXTS, ratio=st.none() | st.floats(allow_nan=False),
    truth=st.none() | st.booleans(), data=st.none() | st.binary(max_size=5), at=st.none() | MOMENTS,
    day=st.none() | st.dates(), moment=st.none() | st.times(), span=st.none() | SPANS,
    amount=st.none() | decimals(38, 9), small=st.none() | decimals(15, 4),
    inner=st.none() | st.builds(Inner, at=st.none() | MOMENTS, amount=st.none() | decimals(5, 3)),
    tags=st.none() | st.lists(st.none() | TEXTS, max_size=3),
    weights=st.none() | st.dictionaries(TEXTS, st.integers(-(2**63), 2**63 - 1), max_size=3),
)  # fmt: skip


def test_any_row_comes_back(tmp_path: Path) -> None:
    """Through a table that the sink makes, and through one whose columns say nothing or make numbers of texts."""
    schema = schema_of(Anything)
    encoder = row_encoder("t", schema, KeyedRows("sqlite.Sink", ()), skips=False)
    writing = TableWriting(Database("sqlite.Sink", tmp_path / "shop.db", "60s"), "made", (), create=True)
    writing.prepare(schema)
    others = replace(writing, table="others")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute(
            "create table others (id numeric, text, ratio numeric, truth integer, data, at datetime, day numeric,"
            " moment, span text, amount text, small decimal(15, 4), inner, tags text, weights varchar(7))"
        )
    others.prepare(schema)

    @examples(max_examples=30)
    @given(st.lists(ROWS, max_size=4))
    def rows_come_back(rows: list[Anything]) -> None:
        frame, bad = FrameBuilder(schema).frame([[getattr(row, name) for row in rows] for name in schema.names])
        assert not bad
        encoded = encoder.encode(frame)
        assert encoded.skipped == 0
        names = ", ".join(f'"{name}"' for name in schema.names)
        for target in (writing, others):
            with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as connection:
                connection.execute("begin")
                target.write(connection, [encoded.frame])
                found = connection.execute(f"select {names} from {target.table} order by rowid").fetchall()
                connection.execute("rollback")
            if found:
                again, wrong = RowDecoder(schema, None).frame(found)
                assert not wrong
                assert again.equals(frame)

    rows_come_back()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_updates_by_key(tmp_path: Path, delivery: Any) -> None:
    """The table is the result; its other columns keep what they have, and letters of its names may be large."""
    table = Table(tmp_path, "SHOP text primary key, Total bigint, note text default 'kept'")
    table.do("insert into t values ('s1', -1, 'mine'), ('other', 5, 'mine')")
    p = Pipeline("p")
    totals = p.read(iterables.Source(sales(), schema=Sale)).key_by("shop").agg(total=col("amount").sum())
    totals.write(table.sink(key="shop", delivery=delivery, create=False))
    assert p.run(parallelism=2).state == "FINISHED"
    expected = {(shop, total, "mine" if shop == "s1" else "kept") for shop, total in sales_by_shop().items()}
    assert set(table.do("select * from t")) == expected | {("other", 5, "mine")}


def test_changes_delete(tmp_path: Path) -> None:
    """What is taken back and does not come again is deleted."""
    table = Table(tmp_path, "shop text, total bigint, primary key (shop)")
    table.do("insert into t values ('s1', -1)")
    p = Pipeline("p")
    totals = p.read(iterables.Source(sales(), schema=Sale)).key_by("shop").agg(total=col("amount").sum())
    totals.filter(col("total") % 2 == 0).write(table.sink(key="shop"))
    assert p.run().state == "FINISHED"
    even = {(shop, total) for shop, total in sales_by_shop().items() if total % 2 == 0}
    assert set(table.do("select * from t")) - {("s1", -1)} == even


@dataclass
class Id:
    id: int


def test_a_key_alone(tmp_path: Path) -> None:
    """There is nothing to update."""
    table = Table(tmp_path)
    write(table.sink(key="id"), [Id(1), Id(2), Id(1)], Id)
    write(table.sink(key="id"), [Id(2), Id(3)], Id)
    assert table.do("select id from t order by id") == [(1,), (2,), (3,)]


def test_odd_names(tmp_path: Path) -> None:
    """They are quoted, in the table that is made and everywhere else."""
    import pyarrow as pa

    table = Table(tmp_path, name='a "b" (select)')
    names = ("select", "a b", "b'a", "%s", "é", "gone", "c:gone")
    schema = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in names])
    rows = [dict.fromkeys(names, 1), dict.fromkeys(names, 2)]
    write(table.sink(key=["select", "b'a"]), rows, schema)
    found = Pipeline("p").read(table.source()).collect()
    assert tuple(found.columns) == names
    assert found.rows() == [(1,) * 7, (2,) * 7]


# -- what is refused ----------------------------------------------------------------------------------------------------


@dataclass
class Floats:
    id: int
    value: float | None


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("", {"create": False}, "there is no table 't'; there are none; or make it with create=True"),
        ("id integer", {}, "it has no column 'value'; there are: id"),
        ("id text, value integer", {}, "id is int64 (INTEGER), the column is TEXT; value is float64 (REAL)"),
        ("id integer, value real not null", {}, "value may be null, the column may not"),
        ("id integer, value real, more text not null", {}, "the column more needs a value, and no row has one"),
        ("id integer, value real as (id / 2.0)", {}, "value is generated by the table"),
        ("id integer, value real", {"key": "id"}, "no unique index has just the columns of key=['id']"),
        ("id integer, value real, k integer primary key, m text not null default 'x'", {}, None),
        ("id, value numeric", {}, None),
    ],
)  # fmt: skip
def test_tables_that_take_no_such_rows(tmp_path: Path, columns: str, options: dict[str, Any], said: str | None) -> None:
    """Before a row flows, all columns by name."""
    table = Table(tmp_path, columns)
    table.do("select 1")
    rows = [Floats(1, 0.5), Floats(2, None), Floats(3, float("-inf"))]
    if said is None:
        write(table.sink(**options), rows, Floats)
        assert table.do("select id, value from t") == [(1, 0.5), (2, None), (3, float("-inf"))]
        return
    with pytest.raises(PipelineError) as caught:
        write(table.sink(**options), rows, Floats)
    assert str(caught.value).startswith(f"sqlite.Sink: table t of {table.file}: ")
    assert said in str(caught.value)


@dataclass
class Large:
    id: int | None
    value: float
    most: int


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Large(1, float("nan"), 1), "value is NaN, of which SQLite would make null"),
        (Large(1, 0.5, 2**63), "most is 9223372036854775808, and whole numbers of SQLite go to 9223372036854775807"),
        (Large(None, 0.5, 1), "a row has no key (column id is null)"),
    ],
)
def test_rows_that_cannot_be_written(tmp_path: Path, row: Large, said: str) -> None:
    """None is made another one; with `skip` those beside it are there."""
    import pyarrow as pa

    schema = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("most", pa.uint64())])
    table = Table(tmp_path)
    rows = [vars(each) for each in (Large(5, 1.5, 2**63 - 1), row, Large(6, 2.5, 0))]
    with pytest.raises(BadRecordError) as caught:
        write(table.sink(key="id"), rows, schema)
    assert said in str(caught.value)
    write(table.sink(key="id", bad_rows="skip"), rows, schema)
    assert table.do("select * from t order by id") == [(5, 1.5, 2**63 - 1), (6, 2.5, 0)]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize(
    ("columns", "key", "said"),
    [
        ("id integer, value real, check (id <> 3)", None, "CHECK constraint failed"),
        ("id integer primary key, value real, check (id <> 3)", "id", "CHECK constraint failed"),
        ("id integer primary key, value real unique", None, "UNIQUE constraint failed: t.value"),
    ],
)
def test_rows_that_sqlite_refuses(tmp_path: Path, columns: str, key: Any, said: str, delivery: Any) -> None:
    """Nothing of the transaction is there; with `skip` all but they."""
    table = Table(tmp_path, columns)
    rows = [Floats(n, 2.0 if n == 3 else n * 1.0) for n in range(6)]
    with pytest.raises(RefusedRowError, match=f"{said}.*; change the table, or say bad_rows='skip'"):
        write(table.sink(key=key, delivery=delivery), rows, Floats)
    assert table.do("select * from t") == []
    write(table.sink(key=key, delivery=delivery, bad_rows="skip"), rows, Floats)
    assert table.do("select id from t order by id") == [(n,) for n in range(6) if n != 3]


def test_a_table_that_rolls_back(tmp_path: Path) -> None:
    """Its own rule would undo the rows beside: nothing is written, and the error says what to change."""
    table = Table(tmp_path, "id integer primary key on conflict rollback, value real")
    with pytest.raises(RefusedRowError, match="the table says `on conflict rollback`"):
        write(table.sink(bad_rows="skip"), [Floats(1, 1.0), Floats(1, 2.0)], Floats)
    assert table.do("select * from t") == []


def test_a_trigger_refuses(tmp_path: Path) -> None:
    """It says why."""
    table = Table(tmp_path, "id integer, value real")
    table.do("create trigger no before insert on t when new.id = 2 begin select raise(abort, 'not two'); end")
    with pytest.raises(RefusedRowError, match="not two"):
        write(table.sink(), [Floats(1, 1.0), Floats(2, 2.0)], Floats)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: s.write(sqlite.Sink("x.db", "t", key=[])), "key= names no column"),
        (lambda s: s.write(sqlite.Sink("x.db", "t", key="nope")), "key: there is no column 'nope'"),
        (lambda s: s.write(sqlite.Sink("x.db", "t", key="value")), "value is float64, by which rows"),
        (lambda s: s.key_by("id").agg(n=count()).write(sqlite.Sink("x.db", "t")), "every update would"),
        (lambda s: s.select(n=lit(None)).write(sqlite.Sink("x.db", "t")), "n is null, which SQLite"),
        (
            lambda s: s.select(n=col("id"), N=col("id")).write(sqlite.Sink("x.db", "t")),
            "n and N are one name to SQLite",
        ),
        (lambda s: s.write(sqlite.Sink(":memory:", "t")), "a database in memory"),
        (lambda s: s.write(sqlite.Sink("x.db", "")), "no name of a table"),
    ],
)
def test_wrong_sinks(make: Any, said: str) -> None:
    """When the pipeline is built."""
    with pytest.raises(PipelineError, match=said):
        make(Pipeline("p").read(iterables.Source([], schema=Floats)))


def test_places_that_are_none(tmp_path: Path) -> None:
    """A folder that is not there is not made, nor a file where `create=False`."""
    with pytest.raises(PipelineError, match=r"there is no folder .*nowhere"):
        write(sqlite.Sink(tmp_path / "nowhere" / "x.db", "t"), [Id(1)], Id)
    with pytest.raises(PipelineError, match=r"there is no file .*x.db"):
        write(sqlite.Sink(tmp_path / "x.db", "t", create=False), [Id(1)], Id)
    assert not (tmp_path / "x.db").exists()


def test_a_file_that_is_locked(tmp_path: Path) -> None:
    """The writer waits, and then may be tried again."""
    table = Table(tmp_path, "id integer")
    with closing(sqlite3.connect(table.file, isolation_level=None)) as other:
        other.execute("begin immediate")
        writing = table.sink(lock_timeout="10ms")
        with pytest.raises(ExternalError, match=r"has kept the lock of .* for more than 10ms"):
            writing._write([pl.DataFrame({"c:id": [1]})])
        other.execute("rollback")
        writing._write([pl.DataFrame({"c:id": [1]})])
    assert table.do("select * from t") == [(1,)]


# -- exactly once -------------------------------------------------------------------------------------------------------


class Target:
    """A table of numbers and a sink to it, published by hand."""

    def __init__(self, folder: Path) -> None:
        self.table = Table(folder, "n integer")
        self.context = PublishContext(uuid.uuid4().hex, "out", 0, 0, 1, lambda: time_ns() // 1_000)

    def publisher(self) -> Any:
        return _OfNumbers(self.table.sink()._writing, self.context)

    def numbers(self) -> list[int]:
        return sorted(n for (n,) in self.table.do("select n from t"))


class _OfNumbers(SqlitePublisher):
    """Frames of the exchange of these tests have a column `value`."""

    async def commit(self, frames: Any, mark: PublishedMark) -> int:
        numbers = pl.col("value").cast(pl.String).cast(pl.Int64).alias("c:n")
        return await super().commit([frame.select(numbers) for frame in frames], mark)


async def test_rows_are_visible_once(tmp_path: Path) -> None:
    """And the mark says how far; a second attempt goes on behind it."""
    await check_rows_are_visible_once(Target(tmp_path))


async def test_a_publisher_that_was_stopped_is_refused(tmp_path: Path) -> None:
    """Before its transaction another one starts: what it commits never becomes visible."""
    await check_a_stopped_publisher_is_refused(Target(tmp_path))


async def test_a_transaction_of_an_older_number_that_waited_is_refused(tmp_path: Path) -> None:
    """Its call was cancelled, its thread goes on when the same publisher has a newer number."""
    target = Target(tmp_path)
    publisher = target.publisher()
    await publisher.open()
    await publisher.init_producer()
    older = publisher._producer
    await publisher.init_producer()
    frame = pl.DataFrame({"c:n": [1]})
    with pytest.raises(ProducerFencedError, match="another publisher of partition 0 has started"):
        publisher._commit([frame], PublishedMark(1, "{}"), older)
    publisher._commit([frame], PublishedMark(1, "{}"), publisher._producer)
    assert target.numbers() == [1]


async def test_a_commit_whose_answer_is_lost_is_not_repeated(tmp_path: Path) -> None:
    """The transaction is in, the publisher does not know: it finds out from the mark. Others are not in."""
    target = Target(tmp_path)
    publisher = target.publisher()

    async def before(turn: int, _: Any) -> None:
        if turn == 1:
            raise ExternalError("the file is locked")

    await check_doubt_changes_nothing(target, publisher, 3, before)


async def test_marks_are_forgotten(tmp_path: Path) -> None:
    """Those of one generation alone; where there are none, or no file, that is fine."""
    target = Target(tmp_path)
    sink = target.table.sink()
    run, _ = await published(target, Exchange())
    await run.stop()
    await sink.forget(replace(target.context, generation=1))
    assert target.table.do("select count(*) from penstock_marks") == [(1,)]
    await sink.forget(target.context)
    assert target.table.do("select count(*) from penstock_marks") == [(0,)]
    await sqlite.Sink(tmp_path / "elsewhere.db", "t").forget(target.context)
    assert not (tmp_path / "elsewhere.db").exists()


def test_the_at_least_once_writer_writes_before_the_checkpoint(tmp_path: Path) -> None:
    """Rows of a checkpoint at once, or none, which is tried again with the next one."""
    table = Table(tmp_path)
    sink = table.sink(delivery="at-least-once", lock_timeout="10ms")
    schema = schema_of(Id)
    sink.reach(schema)
    writer = sink.open(schema, WriteContext("out", 0, "a" * 32, 1, lambda: 0))
    for number in range(3):
        writer.write(pl.DataFrame({"id": [number]}))
    prepared = writer.prepare(1)
    assert prepared.persist is not None
    with closing(sqlite3.connect(table.file, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(ExternalError, match="has kept the lock"):
            prepared.persist()
    assert table.do("select * from t") == []
    prepared.persist()
    prepared.persist()
    assert table.do("select * from t") == [(0,), (1,), (2,)]
    writer.close()


@pytest.mark.parametrize("key", [None, "id"])
def test_interruptions_between_two_tables_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """A job is cancelled anywhere and goes on, with other numbers of subtasks and splits: every row is there once."""
    monkeypatch.setattr(sources, "BATCH_ROWS", 100)
    splits = itertools.cycle([5, 8, 2])
    table = Table(tmp_path, "id integer primary key, shop text, amount integer")
    with closing(sqlite3.connect(table.file)) as connection, connection:
        rows = [(sale.id, sale.shop, sale.amount) for sale in sales(6_000)]
        connection.executemany("insert into t values (?, ?, ?)", rows)

    def make(_: Path) -> Pipeline:
        p = Pipeline("copy")
        p.read(table.source(Sale, splits=next(splits))).write(sqlite.Sink(table.file, "copy", key=key))
        return p

    stress = Stress(make, tmp_path, "sqlite", planned=(Attempt(2, 5, 30, 1), Attempt(3, 5, 30, 2)))
    stress.run()
    assert stress.resumed
    assert table.do("select * from copy order by id") == rows
