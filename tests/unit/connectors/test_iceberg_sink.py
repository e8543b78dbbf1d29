"""Tables of Iceberg as sinks: rows are appended once, whoever dies, compacts or writes meanwhile."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.types import StringType

from penstock import Pipeline, col, tumbling
from penstock.connectors import iceberg, iterables
from penstock.connectors.base import Dataset, LostPartError, WriteContext
from penstock.connectors.iceberg import appending, writing
from penstock.errors import ExternalError, PenstockError, PipelineError
from penstock.settings import Secret
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    STRING,
    TIME,
    TIMESTAMP,
    UINT16,
    UINT32,
    UINT64,
    DecimalType,
    Field,
    ListType,
    MapType,
    Schema,
    StructType,
)

SCHEMA = Schema((Field("n", INT64), Field("shop", STRING, nullable=True), Field("at", TIMESTAMP)))
TABLE = "shop.orders"


class Lake:
    """A SQL catalog and a warehouse in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": (folder / "warehouse").as_uri(),
        }

    @property
    def catalog(self) -> Catalog:
        return SqlCatalog("default", **{name: value for name, value in self.settings.items() if name != "type"})

    def table(self) -> Table:
        return self.catalog.load_table(TABLE)

    def numbers(self) -> list[int]:
        """What is in the table, sorted."""
        return sorted(self.table().scan().to_arrow()["n"].to_pylist())

    def proofs(self) -> dict[str, str]:
        return {name: when for name, when in self.table().properties.items() if name.startswith(appending.PROOF)}

    def files(self, kind: str) -> set[Path]:
        return set(self.folder.glob(f"warehouse/**/{kind}"))

    def sink(self, **options: Any) -> iceberg.Sink:
        return iceberg.Sink(TABLE, catalog=self.settings, **options)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def frame(*numbers: int) -> pl.DataFrame:
    """Rows of SCHEMA."""
    shops = [None if n % 5 == 0 else f"shop {n % 3}" for n in numbers]
    at = [datetime(2026, 11, 20 + n % 2, n % 24, tzinfo=UTC) for n in numbers]
    return pl.DataFrame({"n": numbers, "shop": shops, "at": at}, schema=SCHEMA.polars())


def staged(sink: iceberg.Sink, context: WriteContext, *numbers: int, schema: Schema = SCHEMA) -> tuple[Any, Any]:
    """A writer, and the committable of a durable part."""
    sink.reach(schema)
    writer = sink.open(schema, context)
    writer.write(frame(*numbers))
    prepared = writer.prepare(1)
    assert prepared.persist is not None
    prepared.persist()
    prepared.persist()
    [committable] = prepared.committables
    return writer, committable


@pytest.fixture
def once(lake: Lake, write_context: Callable[..., WriteContext]) -> Iterator[tuple[Any, Any]]:
    """A writer and a part of three rows that is staged."""
    writer, part = staged(lake.sink(), write_context(), 1, 2, 3)
    yield writer, part
    writer.close()


def test_rows_are_there_with_their_commit_and_once(lake: Lake, once: tuple[Any, Any]) -> None:
    """Nothing before; by anybody, as often as they like; others read the same."""
    writer, part = once
    assert lake.numbers() == []
    assert lake.table().current_snapshot() is None
    writer.commit(part)
    writer.commit(part)
    other = lake.sink().open(SCHEMA, WriteContext("x", 7, "c" * 32, 9, lambda: 0))
    other.commit(part)
    assert lake.numbers() == [1, 2, 3]
    assert len(lake.table().history()) == 1
    assert list(lake.proofs()) == [appending.PROOF + part["id"]]
    assert not lake.files("penstock-*.avro")
    assert pl.scan_iceberg(lake.table(), reader_override="pyiceberg").collect().sort("n").equals(frame(1, 2, 3))


def rewrite(table: Table) -> None:
    """As compaction does: other files, same rows."""
    table.overwrite(table.scan().to_arrow())


def expire(table: Table) -> None:
    """All snapshots but the newest one."""
    table.append(frame(100).to_arrow().cast(table.schema().as_arrow()))
    table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()  # noqa: DTZ005
    assert len(table.refresh().snapshots()) == 1


def others(table: Table) -> None:
    for n in (100, 101):
        table.append(frame(n).to_arrow().cast(table.schema().as_arrow()))


def emptied(table: Table) -> None:
    table.delete("n > 0")


@pytest.mark.parametrize("happens", [rewrite, expire, others, emptied])
def test_a_commit_is_not_repeated_whatever_became_of_its_rows(
    happens: Callable[[Table], None], lake: Lake, once: tuple[Any, Any]
) -> None:
    """The proof is no snapshot's: it outlives compaction, expiry, others and deletion."""
    writer, part = once
    writer.commit(part)
    happens(lake.table())
    before = lake.numbers()
    writer.commit(part)
    assert lake.numbers() == before


@pytest.mark.parametrize("dies_at", range(6))
@pytest.mark.parametrize("behind", [False, True])
def test_a_commit_that_dies_anywhere_is_repeated(
    dies_at: int, behind: bool, lake: Lake, once: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In front of or behind any call to catalog and store, those that write."""
    writer, part = once
    calls = iter(range(1_000))

    def dying(original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            dies = next(calls) == dies_at
            if dies and not behind:
                raise OSError("gone")
            result = original(*args, **options)
            if dies:
                raise OSError("gone")
            return result

        return call

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", dying(SqlCatalog.commit_table))
        patch.setattr(PyArrowFileIO, "new_output", dying(PyArrowFileIO.new_output))
        patch.setattr(PyArrowFileIO, "delete", dying(PyArrowFileIO.delete))
        if dies_at < 5:  # manifest, its list, the commit and the metadata in it, the removal
            with pytest.raises(ExternalError, match="gone"):
                writer.commit(part)
        else:
            writer.commit(part)
    assert lake.numbers() in ([], [1, 2, 3])
    writer.commit(part)
    writer.commit(part)
    assert lake.numbers() == [1, 2, 3]
    assert not lake.files("penstock-*.avro") or dies_at == 4


@pytest.mark.parametrize("other", ["the same part", "another writer", "an answer that is lost"])
def test_who_is_overtaken_looks_again(
    other: str, lake: Lake, once: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between load and commit somebody else was faster, or it was oneself: the rows are there once, and all files."""
    writer, part = once
    original, first = SqlCatalog.commit_table, [True]

    def overtaken(catalog: SqlCatalog, table: Table, *changes: Any) -> Any:
        if first:
            first.clear()
            if other == "an answer that is lost":
                original(catalog, table, *changes)
                raise CommitFailedException("conflict")
            if other == "the same part":
                lake.sink().open(SCHEMA, WriteContext("x", 7, "c" * 32, 9, lambda: 0)).commit(part)
            else:
                others(lake.table())
        return original(catalog, table, *changes)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)
    writer.commit(part)
    assert lake.numbers() == ([1, 2, 3, 100, 101] if other == "another writer" else [1, 2, 3])
    listed = {
        manifest.manifest_path for each in lake.table().snapshots() for manifest in each.manifests(lake.table().io)
    }
    assert {path.as_uri() for path in lake.files("*-m*.avro")} == listed, "a commit that was refused leaves nothing"


def test_a_writer_that_is_always_slower_says_so(
    lake: Lake, once: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, part = once

    def refuse(*_: Any) -> None:
        raise CommitFailedException("conflict")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", refuse)
        patch.setattr(appending, "PATIENCE_S", 0.2)
        with pytest.raises(ExternalError, match=r"other writers of table shop.orders .* were always faster; let fewer"):
            writer.commit(part)
    writer.commit(part)
    assert lake.numbers() == [1, 2, 3]


@pytest.mark.parametrize("gone", ["*.parquet", "penstock-*.avro", "table"])
def test_lost_parts_are_errors(gone: str, lake: Lake, once: tuple[Any, Any]) -> None:
    """Never an empty commit, never another table's."""
    writer, part = once
    if gone == "table":
        lake.catalog.drop_table(TABLE)
        lake.sink().reach(SCHEMA)
    for path in lake.files(gone):
        path.unlink()
    with pytest.raises(LostPartError, match=f"is gone, and table shop.orders .* no property .*{part['id']}"):
        writer.commit(part)
    assert lake.numbers() == []


def test_proofs_go_when_nobody_needs_them(lake: Lake, write_context: Callable[..., WriteContext]) -> None:
    """With the commit behind `forget`; those that nobody removed after 30 days, and not a day earlier."""
    now = datetime(2026, 11, 1, tzinfo=UTC)
    writer, first = staged(lake.sink(), write_context(), 1)
    writer._context = WriteContext("x", 0, "a" * 32, 1, lambda: int(now.timestamp() * 1e6))
    writer.commit(first)
    parts = [first]
    for days in (1, 29, 31, 61):
        now = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(days=days)
        writer.write(frame(days))
        prepared = writer.prepare(days)
        assert prepared.persist is not None
        prepared.persist()
        parts += prepared.committables
        writer.commit(parts[-1])
        if days == 1:
            writer.forget(parts[1])
        assert (appending.proof_of([first["id"]]) in lake.proofs()) == (days < 31)
        assert (appending.proof_of([parts[1]["id"]]) in lake.proofs()) == (days < 29)
    writer.close()
    assert len(lake.proofs()) == 2


def test_what_is_not_committed_can_be_removed(lake: Lake, once: tuple[Any, Any]) -> None:
    writer, part = once
    assert lake.files("data/*")
    writer.discard(part)
    writer.discard(part)
    assert not lake.files("data/*")
    assert not lake.files("penstock-*.avro")


def test_staging_that_fails_leaves_nothing_and_is_repeated(
    lake: Lake, write_context: Callable[..., WriteContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.sink().reach(SCHEMA)
    writer = lake.sink().open(SCHEMA, write_context())
    writer.write(frame(1, 2))
    prepared = writer.prepare(1)
    assert prepared.persist is not None

    def fails(*_: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "list_files", fails)
        with pytest.raises(ExternalError, match=r"cannot write data files of table shop.orders .*disk full"):
            prepared.persist()
    assert not lake.files("data/*")
    prepared.persist()
    writer.commit(prepared.committables[0])
    assert lake.numbers() == [1, 2]
    assert writer.prepare(2).committables == ()
    writer.close()


def test_large_checkpoints_are_several_files(
    lake: Lake, write_context: Callable[..., WriteContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_CHUNK_BYTES", 1_000)
    lake.sink(partition_by=["day(at)"]).reach(SCHEMA)
    writer = lake.sink().open(SCHEMA, write_context())
    for begin in range(0, 300_000, 100_000):
        writer.write(frame(*range(begin, begin + 100_000)))
    prepared = writer.prepare(1)
    assert prepared.persist is not None
    prepared.persist()
    writer.commit(prepared.committables[0])
    writer.close()
    assert lake.numbers() == list(range(300_000))
    assert len(lake.files("data/**/*.parquet")) == 6
    assert len(lake.table().history()) == 1


# -- tables -------------------------------------------------------------------------------------------------------------

TYPES: dict[str, tuple[Any, list[Any]]] = {
    "boolean": (BOOLEAN, [True, None]),
    "int8": (INT8, [-128, None]),
    "int32": (INT32, [-(2**31), None]),
    "uint16": (UINT16, [2**16 - 1, None]),
    "uint32": (UINT32, [2**32 - 1, None]),
    "int64": (INT64, [2**63 - 1, None]),
    "float32": (FLOAT32, [0.5, None]),
    "float64": (FLOAT64, [float("inf"), None]),
    "string": (STRING, ["ü\0", None]),
    "binary": (BINARY, [b"\xff\0", None]),
    "date": (DATE, [date(1, 1, 1), None]),
    "time": (TIME, [time(23, 59, 59, 999_999), None]),
    "timestamp": (TIMESTAMP, [datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), None]),
    "decimal": (DecimalType(38, 2), [Decimal("-999999999999999999999999999999999999.99"), None]),
    "list": (ListType(DATE), [[date(2026, 1, 1), None], None]),
    "map": (MapType(INT64), [{"a": 1, "": None}, None]),
    "struct": (StructType((Field("x", INT64, nullable=True), Field("ys", ListType(STRING), nullable=True))),
               [{"x": 1, "ys": ["a", None]}, None]),
    "odd name.?é": (STRING, ["a", None]),
}  # fmt: skip


def test_every_type_there_and_back(lake: Lake) -> None:
    """Through a pipeline, as others read it, and through a pipeline again."""
    schema = Schema(tuple(Field(name, kind, nullable=True) for name, (kind, _) in TYPES.items()))
    rows = [{name: values[i] for name, (_, values) in TYPES.items()} for i in (0, 1)]
    p = Pipeline("write")
    p.read(iterables.Source(rows, schema=schema)).write(lake.sink())
    assert p.run().state == "FINISHED"
    back = Pipeline("read").read(iceberg.Source(TABLE, catalog=lake.settings, schema=schema)).collect()
    given = Pipeline("given").read(iterables.Source(rows, schema=schema)).collect()
    assert back.equals(given)
    inferred = iceberg.Source(TABLE, catalog=lake.settings)
    assert {field.name: field.type for field in inferred.schema} == {
        name: {INT8: INT32, UINT16: INT32, UINT32: INT64}.get(kind, kind) for name, (kind, _) in TYPES.items()
    }


@pytest.mark.parametrize("kind", [UINT64, DURATION, ListType(UINT64), StructType((Field("x", DURATION),))])
def test_types_that_iceberg_lacks_are_refused(kind: Any, lake: Lake) -> None:
    with pytest.raises(PipelineError, match=r"column 'x' is u?\w+, which Iceberg does not have; cast it"):
        lake.sink().check(Schema((Field("x", kind),)), updates=False)


@pytest.mark.parametrize(
    ("partition_by", "names"),
    [
        (["shop"], {"shop=shop+0", "shop=shop+1", "shop=shop+2", "shop=null"}),
        (["day(at)"], {"at_day=2026-11-20", "at_day=2026-11-21"}),
        (
            ["month(at)", "truncate(4, shop)"],
            {"at_month=2026-11/shop_truncate=shop", "at_month=2026-11/shop_truncate=null"},
        ),
        (["bucket(2, n)"], {"n_bucket=0", "n_bucket=1"}),
        (["year(at)"], {"at_year=2026"}),
    ],
)
def test_partitions(
    partition_by: list[str], names: set[str], lake: Lake, write_context: Callable[..., WriteContext]
) -> None:
    """Of a table that is made; one that is there keeps its own."""
    writer, part = staged(lake.sink(partition_by=partition_by), write_context(), *range(20))
    writer.commit(part)
    data = lake.folder / "warehouse/shop/orders/data"
    assert {path.parent.relative_to(data).as_posix() for path in lake.files("*.parquet")} == names
    assert lake.numbers() == list(range(20))
    writer.close()
    lake.sink(partition_by=["hour(at)"]).reach(SCHEMA)


@pytest.mark.parametrize(
    ("partition_by", "match"),
    [
        ("dya(at)", "is no partition; write a column, or year"),
        ("bucket(at)", "is no partition"),
        ("bucket(0, n)", "the number is at least 1"),
        ("day(3, at)", "is no partition"),
        ("shopp", "there is no column 'shopp'; did you mean 'shop'"),
        ("day(shop)", "'shop' is string, which has no day"),
    ],
)
def test_partitions_that_are_none(partition_by: str, match: str, lake: Lake) -> None:
    with pytest.raises(PipelineError, match=match):
        lake.sink(partition_by=[partition_by]).check(SCHEMA, updates=False)


def test_a_table_that_changes_meanwhile(lake: Lake, once: tuple[Any, Any]) -> None:
    """Other partitions, more columns, others gone: what was staged before is what it was."""
    writer, part = once
    with lake.table().update_spec() as spec:
        spec.add_field("shop", "identity")
    with lake.table().update_schema() as columns:
        columns.add_column("more", StringType())
        columns.rename_column("shop", "store")
    writer.commit(part)
    assert lake.numbers() == [1, 2, 3]
    table = lake.table()
    assert [entry["spec_id"] for entry in table.inspect.files().to_pylist()] == [0]
    assert sorted(table.scan().to_arrow()["store"].to_pylist()) == ["shop 0", "shop 1", "shop 2"]
    writer.write(frame(4))
    prepared = writer.prepare(2)
    assert prepared.persist is not None
    with pytest.raises(PipelineError, match="the table has no column 'shop'"):
        prepared.persist()


def test_misfits_are_named_before_anything_runs(lake: Lake, tmp_path: Path) -> None:
    """All of them, by an error of the run, before a row is read."""
    columns = [
        ("n", pa.int32(), True),
        ("at", pa.string(), True),
        ("needed", pa.string(), False),
        ("spare", pa.int8(), True),
    ]
    lake.catalog.create_namespace("shop")
    lake.catalog.create_table(TABLE, pa.schema([pa.field(name, kind, null) for name, kind, null in columns]))
    p = Pipeline("misfits")

    def rows() -> Iterator[dict[str, Any]]:
        raise AssertionError("a row was read")
        yield {}

    p.read(iterables.Source(rows, schema=SCHEMA)).write(lake.sink())
    with pytest.raises(PipelineError) as caught:
        p.run()
    for problem in (
        "'n' is long in the rows and int in the table",
        "the table has no column 'shop'",
        "'at' is timestamptz in the rows and string in the table",
        "the rows have no column 'needed', which the table demands",
    ):
        assert problem in str(caught.value)
    assert "the rows have no column 'spare'" not in str(caught.value)


def test_updates_are_refused(lake: Lake) -> None:
    p = Pipeline("updates")
    rows = iterables.Source(frame(1, 2).to_dicts(), schema=SCHEMA)
    running = p.read(rows).key_by("shop").agg(sum=col("n").sum())
    with pytest.raises(PipelineError, match=r"write the final rows \(.final\(\)\)"):
        running.write(lake.sink())
    running.final().write(lake.sink())
    assert p.run().state == "FINISHED"


# -- catalogs -----------------------------------------------------------------------------------------------------------


def test_settings_are_not_shown() -> None:
    """Neither in plans, nor in errors, nor in what is sent to tasks as text."""
    settings = {
        "type": "sql",
        "uri": "postgresql+psycopg2://me:hunter2@db/lake",
        "s3.secret-access-key": "swordfish",
        "token": Secret("sesame"),
        "warehouse": "s3://lake",
    }
    for made in (
        iceberg.Sink("a.b", catalog=settings),
        iceberg.Source("a.b", catalog=settings, schema=SCHEMA),
        pickle.loads(pickle.dumps(iceberg.Sink("a.b", catalog=settings))),
    ):
        with pytest.raises(PenstockError) as caught:
            made._place.load()
        with pytest.raises(ExternalError) as failed, made._place.asking("load"):
            raise RuntimeError("postgresql+psycopg2://me:hunter2@db: key swordfish or sesame")
        for text in (repr(made), str(made.describe()), str(caught.value), str(failed.value)):
            assert not any(secret in text for secret in ("hunter2", "swordfish", "sesame")), text
        assert "//db/lake" in repr(made)
        assert made.dataset() == Dataset("postgresql+psycopg2://db/lake", "a.b")


@pytest.mark.parametrize(
    ("table", "catalog", "match"),
    [
        ("orders", {"type": "rest"}, "names no namespace; write 'namespace.table'"),
        ("a..b", {"type": "rest"}, "names no namespace"),
        ("a.b", {"warehouse": "x"}, "says neither 'type' nor 'uri'"),
    ],
)
def test_names_and_catalogs_that_are_none(table: str, catalog: dict[str, str], match: str) -> None:
    with pytest.raises(PipelineError, match=match):
        iceberg.Sink(table, catalog=catalog)


def test_a_catalog_that_is_not_there_says_so() -> None:
    """Nobody listens, or nobody knows the name."""
    sink = iceberg.Sink("a.b", catalog={"type": "rest", "uri": "http://127.0.0.1:9"})
    with pytest.raises(ExternalError, match=r"cannot open the catalog of table a.b of catalog default"):
        sink.reach(SCHEMA)
    with pytest.raises((PipelineError, ExternalError), match=r"cannot open the catalog of table a.b of catalog nobody"):
        iceberg.Sink("a.b", catalog="nobody").reach(SCHEMA)


def test_without_pyiceberg() -> None:
    """The connector can be imported, and says what to install when it is used."""
    script = (
        "import sys; sys.modules['pyiceberg'] = None\n"
        "from penstock.connectors import iceberg\n"
        "try: iceberg.Sink('a.b', catalog='x')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed == "PipelineError iceberg.Sink needs pyiceberg: pip install 'penstock-streaming[iceberg]'\n"


def test_windows_into_a_table(lake: Lake) -> None:
    """A pipeline of several subtasks, each of which appends."""
    p = Pipeline("windows")
    rows = iterables.Source(frame(*range(100)).to_dicts(), schema=SCHEMA, event_time="at", max_out_of_orderness="2d")
    p.read(rows).key_by("shop").window(tumbling("1d")).agg(n=col("n").sum()).write(lake.sink())
    assert p.run(parallelism=3).state == "FINISHED"
    assert sum(lake.numbers()) == 4950
    assert 1 <= len(lake.table().history()) <= 3


@pytest.mark.parametrize("made", ["create_namespace", "create_table"])
def test_who_is_overtaken_in_making_a_table_uses_it(made: str, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catalogs say so by errors of their own."""
    original = getattr(SqlCatalog, made)

    def overtaken(catalog: SqlCatalog, *given: Any, **options: Any) -> Any:
        original(catalog, *given, **options)
        raise RuntimeError("500")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, made, overtaken)
        lake.sink().reach(SCHEMA)
    assert lake.numbers() == []
    monkeypatch.setattr(SqlCatalog, made, lambda *_, **__: int("not"))
    with pytest.raises(ExternalError, match=r"cannot make table other.orders .*invalid literal"):
        iceberg.Sink("other.orders", catalog=lake.settings).reach(SCHEMA)


def test_a_client_is_kept_until_something_goes_wrong(lake: Lake) -> None:
    """Its token may be over: what comes next asks for another one."""
    place = lake.sink()._place
    first = place.open()
    assert place.open() is first
    with pytest.raises(ExternalError), place.asking("load"):
        raise OSError("token expired")
    assert place.open() is not first


@pytest.mark.parametrize("partition_by", [[], ["shop"]])
def test_null_lists_and_maps_of_structs_stay_null(partition_by: list[str], lake: Lake) -> None:
    """Written and read: pyiceberg makes empty ones of them."""
    struct = StructType((Field("a", INT64, nullable=True),))
    schema = Schema((
        Field("n", INT64), Field("shop", STRING), Field("list", ListType(struct), nullable=True),
        Field("map", MapType(struct), nullable=True), Field("in", ListType(ListType(struct)), nullable=True),
    ))  # fmt: skip
    kinds = [
        ([{"a": 1}, None], {"k": {"a": 2}}, [None, []]),
        (None, None, None),
        ([], {}, []),
        ([None], {"k": None}, []),
    ]
    rows = [(n, f"s{n % 3}", *kinds[n % 4]) for n in range(50)]
    named = [dict(zip(schema.names, row, strict=True)) for row in rows]
    sink = iceberg.Sink(TABLE, catalog=lake.settings, partition_by=partition_by)
    p = Pipeline("write")
    p.read(iterables.Source(named, schema=schema)).write(sink)
    p.run()
    [*paths] = lake.folder.rglob("*.parquet")
    found = pl.concat([pl.read_parquet(path) for path in paths]).sort("n")
    assert found["list"].to_list() == [row[2] for row in rows]
    assert [value is None for value in found["map"]] == [row[3] is None for row in rows]
    read = Pipeline("read").read(iceberg.Source(TABLE, catalog=lake.settings, schema=schema)).collect().sort("n")
    assert read.to_dicts() == named
