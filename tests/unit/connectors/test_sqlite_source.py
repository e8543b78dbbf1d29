"""Tables of SQLite as sources: positions, splits, what columns are read as, and what is no row."""

from __future__ import annotations

import pickle
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final

import pytest

from penstock import DecimalType, Pipeline, PipelineError, count, tumbling
from penstock.connectors import sqlite
from penstock.connectors.base import ReadContext, Split
from penstock.errors import BadRecordError, CorruptDataError, ExternalError
from penstock.types import BINARY, BOOLEAN, DATE, FLOAT64, INT64, STRING, TIME, TIMESTAMP, Field, Schema

Read = Callable[..., Any]


@dataclass
class Numbered:
    n: int


class Shop:
    """A database that somebody else writes."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @contextmanager
    def connection(self) -> Generator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            yield connection

    def do(self, statement: str, *rows: tuple[Any, ...]) -> list[Any]:
        with self.connection() as connection:
            connection.execute("pragma synchronous = off")  # what a test writes need not survive a power loss
            if rows:
                connection.execute("begin")
                connection.executemany(statement, rows)
                connection.execute("commit")
                return []
            return connection.execute(statement).fetchall()

    def killed_while(self, statement: str) -> None:
        """A process dies in the middle of a transaction that is partly on disk."""
        program = f"""
import os, signal, sqlite3
writer = sqlite3.connect({str(self.file)!r}, isolation_level=None)
writer.execute("pragma cache_size = 1")
writer.execute("begin")
writer.execute({statement!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL

    def source(self, table: str | None = "t", **options: Any) -> sqlite.Source[Any]:
        return sqlite.Source(self.file, table, **options)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db")


def numbers(shop: Shop, *found: int) -> None:
    shop.do("create table t (n integer primary key)")
    if found:
        shop.do("insert into t values (?)", *((n,) for n in found))


def opened(source: sqlite.Source[Any], split: str = "0", position: Any = None) -> Any:
    return source.open(Split(split), position, ReadContext(lambda: 0, lambda: 0))


# -- positions ----------------------------------------------------------------------------------------------------------

KEYED: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "rowid": ("create table t (n integer, note text)", {"table": "t"}),
    "rowid behind a column of that name": ("create table t (n integer, rowid text, note text)", {"table": "t"}),
    "without rowid": (
        "create table t (n integer, part real, note text, data blob, primary key (note, part, data, n)) without rowid",
        {"table": "t"},
    ),
    "a primary key that does not tell small letters": (
        "create table t (n integer, note text collate nocase, primary key (note)) without rowid",
        {"table": "t"},
    ),
    "view": ("create table base (n integer, note text)", {"table": "t", "order_by": "n"}),
    "query": (
        "create table t (n integer, note text)",
        {"table": None, "query": "select n, note from t -- all;\n;", "order_by": ["note", "n"]},
    ),
}


@pytest.mark.parametrize("name", KEYED)
async def test_positions(shop: Shop, read_split: Read, name: str) -> None:
    """Every row once, in one order, wherever a reader stops; a position is JSON."""
    make, options = KEYED[name]
    shop.do(make)
    if name == "view":
        shop.do("create view t as select n, note from base where n >= 0")
    rows = [(n * 7 % 100, f"N{n % 9}" if "primary" not in name else f"n{n}") for n in range(100)]
    if name == "without rowid":
        shop.do("insert into t values (?, ?, ?, ?)", *((n, n / 3, note, bytes([n, 255])) for n, note in rows))
    else:
        shop.do(f"insert into {'base' if name == 'view' else 't'} (n, note) values (?, ?)", *rows)
    source = shop.source(schema=Numbered, **options)
    whole = await read_split(source)
    assert sorted(row["n"] for row in whole.rows) == list(range(100))
    pieces = await read_split(source, pieces=[1, 7, 30, 1, 1], reopen=True)
    assert pieces.rows == whole.rows
    assert (await read_split(source, position=pieces.positions[1])).rows == whole.rows[8:]


async def test_splits_have_every_row_once(shop: Shop, read_split: Read) -> None:
    """Ranges of numbers with holes, also below zero; what is put in behind the last number is of no split."""
    found = [-(2**62), -5, -1, 0, 1, 2, 3, 500, 501, 2**62]
    numbers(shop, *found)
    for splits in (1, 2, 3, 7):
        source = shop.source(splits=splits)
        source = source.at(source.moment())
        numbers_read = []
        shop.do("insert into t values (?)", (2**62 + splits,))
        for split in source.discover():
            position = source.resolve(split, late=False)
            reading = await read_split(source, split.id, pieces=[2] * 9, position=position, reopen=True)
            numbers_read += [row["n"] for row in reading.rows]
        assert sorted(numbers_read) == found, splits
        shop.do(f"delete from t where n = {2**62 + splits}")


async def test_a_split_that_other_splits_add_is_empty(shop: Shop, read_split: Read) -> None:
    """A savepoint has the whole table in its own splits."""
    numbers(shop, 1, 2, 3)
    source = shop.source(splits=4)
    position = source.resolve(Split("3"), late=True)
    assert (await read_split(source, "3", position=position)).rows == []


async def test_a_table_without_rows(shop: Shop, read_split: Read) -> None:
    """It has no splits, and what comes later is none of the job's."""
    numbers(shop)
    source = shop.source()
    assert source.discover() == []
    source = source.at(source.moment())
    shop.do("insert into t values (1)")
    assert source.discover() == []


async def test_nothing_is_locked_between_pages(shop: Shop) -> None:
    """Others write meanwhile, and see no lock; rows behind the position come as they are then."""
    numbers(shop, *range(10))
    reader = opened(shop.source())
    assert (await reader.read(3)).frame["n"].to_list() == [0, 1, 2]
    shop.do("delete from t where n in (1, 4)")
    shop.do("vacuum")
    assert (await reader.read(3)).frame["n"].to_list() == [3, 5, 6]


async def test_a_database_that_is_locked(shop: Shop) -> None:
    """It is waited for, then the error says what to do; the reader goes on where it was."""
    numbers(shop, *range(4))
    reader = opened(shop.source(lock_timeout="20ms"))
    await reader.read(2)
    with shop.connection() as other:
        other.execute("begin exclusive")
        with pytest.raises(
            ExternalError, match=r"has kept the lock of .*shop.db for more than 20ms; end its transaction"
        ):
            await reader.read(2)
    assert (await reader.read(9)).frame["n"].to_list() == [2, 3]


@pytest.mark.parametrize("journal", ["delete", "wal"])
async def test_what_a_killed_writer_had_begun(shop: Shop, read_split: Read, journal: str) -> None:
    """It is rolled back by whoever comes next, also by who only reads."""
    numbers(shop, *range(2_000))
    shop.do(f"pragma journal_mode = {journal}")
    shop.killed_while("update t set n = n + 10000")
    assert [row["n"] for row in (await read_split(shop.source())).rows] == list(range(2_000))


def test_it_travels(shop: Shop) -> None:
    """To a task of Spark, with what was fixed for the run."""
    numbers(shop, 1, 2, 3)
    source = shop.source()
    again = pickle.loads(pickle.dumps(source.at(source.moment())))
    assert again.describe() == source.describe()
    assert again.resolve(Split("0"), late=False) == {"after": None, "until": 3}


# -- orders that are none -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(1,), (2,), (2,), (3,)], r"order_by: two rows have the same n: \(2,\); name more columns"),
        ([(1,), (None,)], "order_by: n is null in a row"),
    ],
)
async def test_orders_that_are_none(shop: Shop, read_split: Read, rows: Any, said: str) -> None:
    """Rows would be left out in silence: also where the same ones are on two pages."""
    shop.do("create table t (n integer)")
    shop.do("insert into t values (?)", *rows)
    for size in (1, 2, 100):
        with pytest.raises(PipelineError, match=said):
            await read_split(shop.source(order_by="n", schema=Numbered), pieces=[size] * 9)


async def test_an_order_tells_small_letters_from_capital_ones(shop: Shop, read_split: Read) -> None:
    """Whatever the column compares by: two texts that are different are two places."""
    shop.do("create table t (n integer, name text collate nocase)")
    shop.do("insert into t values (?, ?)", (1, "b"), (2, "B"), (3, "a"))
    reading = await read_split(shop.source(order_by="name", schema=Numbered), pieces=[1] * 4, reopen=True)
    assert [row["n"] for row in reading.rows] == [2, 3, 1]


# -- columns ------------------------------------------------------------------------------------------------------------


def test_what_declared_types_say(shop: Shop) -> None:
    """By SQLite's own rules, and by the names that everybody uses."""
    shop.do(
        "create table t (id integer primary key, n bigint not null, a varchar(20), b double precision, c blob, d boolean,"
        " e date, f datetime, g timestamp, h time, i decimal(12, 2), j numeric, k decimal(5) not null, l Text not null)"
    )
    assert shop.source().schema == Schema(
        (
            Field("id", INT64), Field("n", INT64), Field("a", STRING, nullable=True), Field("b", FLOAT64, nullable=True),
            Field("c", BINARY, nullable=True), Field("d", BOOLEAN, nullable=True), Field("e", DATE, nullable=True),
            Field("f", TIMESTAMP, nullable=True), Field("g", TIMESTAMP, nullable=True), Field("h", TIME, nullable=True),
            Field("i", DecimalType(12, 2), nullable=True), Field("j", FLOAT64, nullable=True),
            Field("k", DecimalType(5, 0)), Field("l", STRING),
        )
    )  # fmt: skip
    of_query = shop.source(None, query="select i, n as m from t", order_by="m").schema
    assert of_query.names == ("i", "m")
    assert of_query.field("i").type == DecimalType(12, 2)


def test_columns_whose_types_say_nothing(shop: Shop) -> None:
    """Nothing is guessed."""
    shop.do("create table t (id integer primary key, a, b uuid)")
    with pytest.raises(PipelineError, match=r"do not say what is in them: a \(none\), b \(uuid\); give schema="):
        shop.source()
    with pytest.raises(PipelineError, match=r"in them: n \(none\); give schema="):
        shop.source(None, query="select count(*) as n from t", order_by="n")


@dataclass
class Kinds:
    id: int
    real: float | None
    text: str | None
    data: bytes | None
    truth: bool | None
    at: datetime | None
    day: date | None
    moment: time | None
    span: timedelta | None
    amount: Annotated[Decimal, DecimalType(12, 2)] | None
    tags: list[int] | None


COLUMNS = "id integer primary key, real, text, data, truth, at, day, moment, span, amount, tags"


@pytest.mark.parametrize(
    ("column", "value", "read"),
    [
        ("real", 7, 7.0), ("real", float("inf"), float("inf")), ("truth", 1, True), ("truth", 0, False),
        ("at", "2026-01-02 03:04:05", datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)),
        ("at", "2026-01-02T03:04:05.1234567Z", datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
        ("at", "2026-01-02T03:04:05.1234567", datetime(2026, 1, 2, 2, 4, 5, 123456, tzinfo=UTC)),
        ("at", "2026-01-02T03:04:05.123456Z", datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
        ("at", "2026-01-02 03:04:05.5+05:00", datetime(2026, 1, 1, 22, 4, 5, 500_000, tzinfo=UTC)),
        ("day", "2026-01-02", date(2026, 1, 2)), ("moment", "03:04:05.000006", time(3, 4, 5, 6)),
        ("span", "-P1DT0.5S", -timedelta(days=1, seconds=0.5)), ("amount", "10.10", Decimal("10.10")),
        ("amount", 7, Decimal("7.00")), ("amount", 0.1 + 0.2, Decimal("0.30")), ("tags", "[1, null]", [1, None]),
        ("text", "a\x00b", "a\x00b"),
    ],
)  # fmt: skip
async def test_values_that_fit(shop: Shop, read_split: Read, column: str, value: Any, read: Any) -> None:
    """Also by the conventions of others: a timestamp without offset is of `timezone=`."""
    shop.do(f"create table t ({COLUMNS})")
    shop.do(f"insert into t (id, {column}) values (1, ?)", (value,))
    source = shop.source(schema=Kinds, timezone="Europe/Berlin")
    [row] = (await read_split(source)).rows
    assert row[column] == read


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("real", "x", "real: expected float64, got 'x'"),
        ("real", 2**53 + 1, "real: expected float64, got 9007199254740993; a number with a floating point would round"),
        ("text", 7, "text: expected string, got 7"), ("text", b"x", "text: expected string, got b'x'"),
        ("data", "x", "data: expected binary, got 'x'"), ("truth", 2, "truth: expected boolean, got 2"),
        ("truth", "true", "truth: expected boolean, got 'true'"),
        ("at", "2026-01-02 03:04:05", "at: the timestamp 2026-01-02T03:04:05 has no time zone; name its zone with"),
        ("at", 1_700_000_000, "at: expected timestamp, got the number 1700000000; declare the column as int or float"),
        ("at", "yesterday", "at: expected timestamp, got 'yesterday'; Invalid RFC3339 encoded datetime"),
        ("day", "2026-13-01", "day: expected date, got '2026-13-01'"), ("moment", "25:00", "moment: expected time, got"),
        ("span", "1h", "span: expected duration, got '1h'"), ("amount", "1.234", "amount: 1.234 does not fit into"),
        ("amount", "x", "amount: expected decimal(12, 2), got 'x'; it is no number"),
        ("amount", 1e300, "does not fit into decimal(12, 2)"), ("amount", float("inf"), "only numbers fit"),
        ("tags", "[1", "tags"), ("tags", '["a"]', "tags"), ("tags", 5, "tags: expected a text of JSON, got 5"),
        ("tags", '[1], "value": [2]}, {"value": 3', "tags"),
    ],
)  # fmt: skip
async def test_values_that_do_not_fit(shop: Shop, read_split: Read, column: str, value: Any, said: str) -> None:
    """They make bad rows that say where, and rows beside them stay."""
    shop.do(f"create table t ({COLUMNS})")
    shop.do(f"insert into t (id, {column}) values (?, ?)", (1, None), (2, value), (3, None))
    reading = await read_split(shop.source(schema=Kinds))
    assert [row["id"] for row in reading.rows] == [1, 3]
    [bad] = reading.bad
    assert said in bad.error
    assert bad.where == f"table t of {shop.file}, id=2"
    assert repr(value).encode() in bad.raw
    assert reading.counts == [3]


async def test_null_and_texts_that_are_no_utf_8(shop: Shop, read_split: Read) -> None:
    """One such text does not keep others from being read."""
    shop.do("create table t (id integer primary key, text not null)")
    shop.do("create table n (id integer primary key, text)")
    shop.do("insert into t values (?, cast(? as text))", (1, b"ok"), (2, b"\xff\xfe"), (3, b"\xc3\xa9"))
    shop.do("insert into n values (1, null)")

    @dataclass
    class Texts:
        id: int
        text: str

    reading = await read_split(shop.source(schema=Texts))
    assert [row["text"] for row in reading.rows] == ["ok", "é"]
    assert [bad.error for bad in reading.bad] == [
        "text: the text has a lone surrogate at index 0, which no file can hold"
    ]
    assert "text: missing" in (await read_split(shop.source("n", schema=Texts))).bad[0].error


def test_bad_rows_of_a_pipeline(shop: Shop) -> None:
    """They fail it by name, or are left out."""
    shop.do("create table t (n integer primary key, at timestamp)")
    shop.do("insert into t values (?, ?)", (1, "2026-01-01T00:00:01Z"), (2, "soon"), (3, "2026-01-01T00:01:00Z"))

    def counts(**options: Any) -> list[Any]:
        read = Pipeline("p").read(shop.source(event_time="at", **options))
        return read.key_by("n").window(tumbling("1m")).agg(rows=count()).select("rows").collect().rows()

    with pytest.raises(BadRecordError, match=r"table t of .*shop.db, n=2: at: expected timestamp, got 'soon'"):
        counts()
    assert counts(bad_rows="skip") == [(1,), (1,)]


# -- errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": None}, "give either table= or query="), ({"query": "select 1"}, "give either table= or query="),
        ({"table": None, "query": "select 1"}, "query= needs order_by="),
        ({"splits": 0}, "splits= is a whole number from 1"), ({"splits": 2, "order_by": "n"}, "and 1 with order_by="),
        ({"order_by": []}, "order_by= names columns, each once"),
        ({"order_by": ["n", "N"]}, "each once"), ({"table": ""}, "'' is no name of a table"),
        ({"lock_timeout": "soon"}, "lock_timeout"), ({"table": "tt"}, "there is no table 'tt'; did you mean 't'?"),
    ],
)  # fmt: skip
def test_wrong_declarations(shop: Shop, options: dict[str, Any], said: str) -> None:
    """When the pipeline is built."""
    numbers(shop)
    with pytest.raises(PipelineError) as caught:
        shop.source(**options)
    assert said in str(caught.value)


@dataclass
class Other:
    n: int
    nam: str


@dataclass
class Wrong:
    name: int


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        ("create table t (n, name text)", {"schema": Other}, "it has no column 'nam'; did you mean 'name'?"),
        ("create table t (n, name text)", {"schema": Wrong}, "name is int64, the column is TEXT; change schema="),
        ("create view t as select 1 as n", {"schema": Numbered}, "a view has no key; say with order_by="),
        ("create table t (n)", {"schema": Numbered, "order_by": "m"}, "order_by: it has no column 'm'"),
        ("create table t (n primary key) without rowid", {"schema": Numbered, "splits": 2}, "leave splits= out"),
        ("create table u (n)", {"schema": Numbered}, "there is no table 't'; there are: u"),
        ("create table t (n)", {"table": None, "query": "selec 1", "order_by": "n", "schema": Numbered}, "syntax error"),
        (
            "create table t (n)",
            {"table": None, "query": "select 1 as n; delete from t", "order_by": "n", "schema": Numbered},
            "one statement",
        ),
        (
            "create table t (n)",
            {"table": None, "query": "select n from u", "order_by": "n", "schema": Numbered},
            "no such table: .*u",
        ),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit(shop: Shop, make: str, options: dict[str, Any], said: str) -> None:
    """When splits are looked for, before a row is read."""
    shop.do(make)
    with pytest.raises(PipelineError, match=f"^sqlite.Source: (table t|the query) of {shop.file}: .*{said}"):
        shop.source(**{"table": "t", **options}).discover()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "is no path of a file"), (":memory:", "a database in memory is that of one connection"),
        ("sqlite:///shop.db", "is no path of a file"), ("file:shop.db?mode=ro", "is no path of a file"),
        ("missing.db", r"there is no file .*/missing.db \(it is relative to .*\); correct the path"),
        ("folder", "folder is a folder; name the file"),
        ("text", "the file is no database of SQLite, or an encrypted one"),
    ],
)  # fmt: skip
def test_files_that_are_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, said: str) -> None:
    """Nothing is made by looking for it."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("text").write_text("n\n1\n" * 1_000)
    with pytest.raises(PipelineError, match=said):
        sqlite.Source(path, "t")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "text"]


def test_a_damaged_file(shop: Shop) -> None:
    """It is no user's mistake."""
    shop.do("create table t (n integer primary key, text)")
    shop.do("insert into t values (?, ?)", *((n, "x" * 500) for n in range(100)))
    data = bytearray(shop.file.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    shop.file.write_bytes(data)
    with pytest.raises(CorruptDataError, match="malformed; look at it with `pragma integrity_check`"):
        shop.source(schema=Numbered).moment()


def test_a_pipeline_that_reads_what_it_writes(shop: Shop) -> None:
    """Whatever the letters of its name and the way to the file."""
    numbers(shop, 1)
    source = shop.source()
    p = Pipeline("p")
    p.read(source).write(sqlite.Sink(f"{shop.file.parent}/../{shop.file.parent.name}/shop.db", "T"))
    with pytest.raises(PipelineError, match=r"would read what .* writes; write to another table"):
        p.run()
    assert not source.conflict(sqlite.Sink(shop.file, "u"))
    assert not source.conflict(sqlite.Sink(shop.file.parent / "other.db", "t"))
