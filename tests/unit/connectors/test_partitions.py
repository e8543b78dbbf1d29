"""Columns in the names of folders: written by sinks, found by sources, as Hive and Polars have them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Pipeline, count
from penstock.connectors import files, iterables
from penstock.connectors.files import writing
from penstock.errors import BadRecordError, PipelineError
from penstock.types import BOOLEAN, DATE, INT8, INT64, STRING, Field, Schema

SCHEMA = Schema(
    (
        Field("day", DATE, nullable=True),
        Field("i", INT64),
        Field("shop", STRING, nullable=True),
        Field("big", BOOLEAN),
        Field("n", INT8),
    )
)
VALUES = st.tuples(
    st.none() | st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    st.integers(0, 9),
    st.none() | st.text(min_size=1, max_size=8).filter(lambda text: "\x00" not in text and text.isprintable()),
    st.booleans(),
    st.integers(-128, 127),
)


@dataclass
class _Visit:
    at: datetime
    k: str
    x: float


def frame(rows: list[Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA.polars(), orient="row")


def commit(sink: files.Sink, context: Any, *frames: pl.DataFrame) -> list[str]:
    """Write, prepare and commit one checkpoint; the names that became visible."""
    writer = sink.open(SCHEMA, context)
    for each in frames:
        writer.write(each)
    prepared = writer.prepare(1)
    assert prepared.persist is not None
    prepared.persist()
    for committable in prepared.committables:
        writer.commit(committable)
        writer.commit(committable)
    return [committable["visible"] for committable in prepared.committables]


async def read(source: Any, read_split: Callable[..., Any]) -> list[dict[str, Any]]:
    return [row for split in source.discover() for row in (await read_split(source, split.id)).rows]


@given(rows=st.lists(VALUES, min_size=1, max_size=12))
def test_what_is_written_is_read(
    rows: list[Any], tmp_path_factory: Any, write_context: Callable[..., Any], read_split: Callable[..., Any]
) -> None:
    """Any value of any column that may name a folder; Polars reads the same."""
    folder = tmp_path_factory.mktemp("out")
    commit(files.Sink(folder, format="parquet", partition_by=["shop", "day", "big", "n"]), write_context(), frame(rows))
    found = asyncio.run(read(files.Source(folder, schema=SCHEMA), read_split))
    assert sorted(map(repr, found)) == sorted(map(repr, frame(rows).to_dicts()))
    other = pl.read_parquet(folder / "**/*.parquet", hive_partitioning=True, hive_schema=SCHEMA.polars())
    assert sorted(map(repr, other.select(SCHEMA.names).to_dicts())) == sorted(map(repr, frame(rows).to_dicts()))


def test_folders(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """Outermost first; null, and what a name cannot have, as Hive writes it."""
    rows = [(date(2026, 11, 21), 1, "a/b=c%", True, 1), (None, 2, None, False, 2)]
    shown = commit(files.Sink(tmp_path, partition_by=["day", "shop"]), write_context(), frame(rows))
    assert [name.rpartition("/")[0] for name in shown] == [
        "day=2026-11-21/shop=a%2Fb%3Dc%25",
        "day=__HIVE_DEFAULT_PARTITION__/shop=__HIVE_DEFAULT_PARTITION__",
    ]
    assert (tmp_path / shown[0]).read_text() == '{"i":1,"big":true,"n":1}\n'


def test_types_are_found(tmp_path: Path) -> None:
    """Without a schema: whole numbers, dates, else text; what only some folders name is no column."""
    for name in ("n=1/d=2026-11-21/z=01/x=1", "n=-20/d=__HIVE_DEFAULT_PARTITION__/z=2"):
        (tmp_path / name).mkdir(parents=True)
        pl.DataFrame({"v": [1.5]}).write_parquet(tmp_path / name / "a.parquet")
    schema = files.Source(tmp_path).schema
    assert [str(field) for field in schema] == ["v: float64 or null", "n: int64", "d: date or null", "z: string"]
    p = Pipeline("typed")
    assert sorted(p.read(files.Source(tmp_path)).collect().rows()) == [
        (1.5, -20, None, "2"),
        (1.5, 1, date(2026, 11, 21), "01"),
    ]


@pytest.mark.parametrize("text", ["99999999999999999999", "2026-W47-6", "1_0", "007", "2026-13-01", ""])
def test_what_only_looks_like_a_number_or_a_date_is_text(text: str, tmp_path: Path) -> None:
    """A type is found only where the value would be written so again."""
    (tmp_path / f"x={text}").mkdir()
    pl.DataFrame({"v": [1]}).write_parquet(tmp_path / f"x={text}" / "a.parquet")
    assert Pipeline("typed").read(files.Source(tmp_path)).collect()["x"].to_list() == [text]


@pytest.mark.parametrize("where", ["x=1.parquet", "x=*.parquet", "day=2026-11-*/x=1.parquet", "**/x=?.parquet", ""])
def test_only_folders_name_columns(where: str, tmp_path: Path) -> None:
    """The name of a file does not, nor does a pattern."""
    (tmp_path / "day=2026-11-21").mkdir()
    for folder in (tmp_path, tmp_path / "day=2026-11-21"):
        pl.DataFrame({"v": [1]}).write_parquet(folder / "x=1.parquet")
    found = files.Source(tmp_path / where).schema
    assert [*found.names] == (["v", "day"] if where.startswith("day") else ["v"])


def test_columns_that_begin_with_an_underscore(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """Such folders are read, as by Spark, though other names that begin so are left out; a dot hides from all."""
    schema = Schema((Field("_day", DATE), Field("i", INT64)))
    writer = files.Sink(tmp_path, partition_by=["_day"]).open(schema, write_context())
    writer.write(pl.DataFrame({"_day": [date(2026, 11, 21)], "i": [1]}, schema=schema.polars()))
    prepared = writer.prepare(1)
    writer.commit(prepared.committables[0])
    (tmp_path / "_temporary").mkdir()
    (tmp_path / "_temporary" / "a.jsonl").write_text('{"i":2}')
    assert Pipeline("read").read(files.Source(tmp_path, schema=schema)).collect().rows() == [(date(2026, 11, 21), 1)]
    hidden = Schema((Field(".day", DATE), Field("i", INT64)))
    with pytest.raises(PipelineError, match=r"partition_by='.day': .*begin with a dot"):
        files.Sink(tmp_path, partition_by=[".day"]).check(hidden, updates=False)


@pytest.mark.parametrize("rows", [[("x" * 251, "a")], [("é" * 100, "é" * 40)]])
def test_names_that_no_store_takes(rows: Any, tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """Found when the row comes: when its checkpoint is complete its file could never become visible."""
    schema = Schema((Field("shop", STRING), Field("city", STRING), Field("i", INT64)))
    writer = files.Sink(tmp_path, partition_by=["shop", "city"]).open(schema, write_context())
    row = pl.DataFrame([(*rows[0], 1)], schema=schema.polars(), orient="row")
    with pytest.raises(BadRecordError, match=r"partition_by=.*bytes.*filter such rows, or"):
        writer.write(row)
    writer.close()


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("n=x", "'x' is no int8, as the schema declares 'n'"),
        ("n=300", "'300' is no int8"),
        ("n=__HIVE_DEFAULT_PARTITION__", "'n' is null there; declare it as optional"),
        ("big=maybe", "'maybe' is no boolean"),
        ("day=yesterday", "'yesterday' is no date"),
    ],
)
async def test_values_that_do_not_fit(folder: str, says: str, tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """Named with the file."""
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "a.jsonl").write_text("{}\n")
    source = files.Source(tmp_path, schema=SCHEMA)
    with pytest.raises(PipelineError, match=f"a.jsonl: .*{says}"):
        await read_split(source)


def test_large_files_are_rolled_and_few_are_open(
    tmp_path: Path, write_context: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of names the rows of a folder stay in their order."""
    monkeypatch.setattr(writing, "LARGEST_FILE_BYTES", 300)
    monkeypatch.setattr(writing, "MOST_OPEN_FILES", 2)
    day = date(2026, 11, 21)
    frames = [frame([(day, n, f"s{n % 5}", True, 1), (day, n + 1, f"s{n % 3}", True, 1)]) for n in range(0, 400, 2)]
    shown = commit(files.Sink(tmp_path, format="csv", partition_by=["shop"]), write_context(), *frames)
    assert len(shown) > 100
    assert max(len(list((tmp_path / f"shop=s{n}").iterdir())) for n in range(5)) > 5
    for n in range(5):
        parts = sorted((tmp_path / f"shop=s{n}").iterdir())
        numbers = [i for part in parts for i in pl.read_csv(part)["i"].to_list()]
        assert numbers == sorted(numbers)
        assert numbers == [i for each in frames for i in each.filter(pl.col("shop") == f"s{n}")["i"].to_list()]


def test_replacing_removes_what_lies_in_such_folders(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """Of these columns or those of an earlier job, whose rows would be read beside the new ones; and nothing else."""
    sink = files.Sink(tmp_path, partition_by=["shop"], existing="replace")
    [shown] = commit(sink, write_context(), frame([(None, 1, "a", True, 1)]))
    [otherwise] = commit(
        files.Sink(tmp_path, partition_by=["day", "n"]), write_context(), frame([(None, 1, "a", True, 1)])
    )
    [plain] = commit(files.Sink(tmp_path), write_context(), frame([(None, 1, "a", True, 1)]))
    for kept in ("other/part-x.jsonl", "shop=a/other/part-x.jsonl", "shop=a/notes.txt"):
        (tmp_path / kept).parent.mkdir(exist_ok=True)
        (tmp_path / kept).write_text("{}")
    sink.begin()()
    assert [name for name in (shown, otherwise, plain) if (tmp_path / name).exists()] == []
    assert (tmp_path / "other" / "part-x.jsonl").exists()
    assert sorted(path.name for path in (tmp_path / "shop=a").rglob("*.*")) == ["notes.txt", "part-x.jsonl"]


def test_what_is_refused(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """When the pipeline is built; empty text, which readers take for null, when it comes."""
    rows = [{"at": datetime(2026, 11, 21, tzinfo=UTC), "k": "a", "x": 1.0}]
    with pytest.raises(PipelineError, match="partition_by= takes a list of text"):
        files.Sink(tmp_path, partition_by="day")  # pyright: ignore[reportArgumentType] (the point of the test)
    with pytest.raises(PipelineError, match="names a column twice"):
        files.Sink(tmp_path, partition_by=["a", "a"])
    for columns, says in (
        (["dya"], "no column 'dya'"),
        (["at"], "not for timestamp.*with_columns"),
        (["x"], "not for float64"),
        (["k"], "names all columns"),
    ):
        stream = Pipeline("p").read(iterables.Source(rows, schema=_Visit))
        with pytest.raises(PipelineError, match=says):
            (stream.select("k") if columns == ["k"] else stream).write(files.Sink(tmp_path, partition_by=columns))
    updates = Pipeline("p").read(iterables.Source(rows, schema=_Visit)).key_by("k").agg(n=count())
    with pytest.raises(PipelineError, match="of a stream of updates"):
        updates.write(files.Sink(tmp_path, partition_by=["k"]))
    writer = files.Sink(tmp_path, partition_by=["shop"]).open(SCHEMA, write_context())
    with pytest.raises(BadRecordError, match="column 'shop' of partition_by= is ''"):
        writer.write(frame([(None, 1, "", True, 1)]))


@dataclass
class _Day:
    day: date


@dataclass
class _DayAlone(_Day):
    other: int | None = None


@pytest.mark.parametrize("extension", ["parquet", "arrow", "jsonl", "csv"])
@pytest.mark.parametrize("schema", [_Day, _DayAlone])
async def test_rows_of_which_no_column_stands_in_the_file(
    extension: str, schema: type[Any], tmp_path: Path, read_split: Callable[..., Any]
) -> None:
    """There are as many as the file has, in any pieces, and read by parts, too."""
    path = tmp_path / "day=2026-01-02" / f"a.{extension}"
    path.parent.mkdir()
    rows = pl.DataFrame({"x": [1, 2, 3]})
    {"parquet": rows.write_parquet, "arrow": rows.write_ipc, "jsonl": rows.write_ndjson, "csv": rows.write_csv}[
        extension
    ](path)
    source = files.Source(tmp_path, schema=schema)
    found = await read_split(source, pieces=[2, 2], reopen=True)
    assert [row["day"] for row in found.rows] == [date(2026, 1, 2)] * 3
    assert (found.counts, found.bad) == ([2, 1], [])
    counted = Pipeline("p").read(source).key_by("day").agg(n=count()).final().collect().rows()
    assert counted == [(date(2026, 1, 2), 3)]
    [split] = source.discover()
    parts = source.ranges(split, 5)
    if source.needs_survey(split):
        parts = source.surveyed(parts, [source.survey(split, part) for part in parts])
    assert sum([len((await read_split(source, position=part)).rows) for part in parts]) == 3


def test_files_that_lack_all_columns_of_a_schema_that_is_narrowed(tmp_path: Path) -> None:
    """Null in every row."""
    (tmp_path / "day=2026-01-02").mkdir()
    pl.DataFrame({"x": [1, 2, 3]}).write_parquet(tmp_path / "day=2026-01-02" / "a.parquet")
    stream = Pipeline("p").read(files.Source(tmp_path, schema=_DayAlone))
    assert stream.key_by("day").agg(n=count()).final().collect().rows() == [(date(2026, 1, 2), 3)]
