"""Files as sources: splits, formats, positions, bad rows, files that change, rates."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from penstock import Pipeline, col, lit
from penstock.connectors import files
from penstock.connectors.base import EndOfSplit, ReadContext
from penstock.connectors.files import reading as file_reading
from penstock.errors import BadRecordError, ExternalError, PipelineError


@dataclass
class Reading:
    id: int
    at: datetime
    text: str | None


START = datetime(2001, 1, 1, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {"id": number, "at": START + timedelta(milliseconds=number), "text": None if number % 3 else "line\nend é"}
    for number in range(57)
]
FORMATS = ["jsonl", "jsonl.gz", "csv", "csv.gz", "parquet", "arrow", "arrows"]


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    """A file of the format that its name tells; columnar ones in groups of 10 rows, one of them empty."""
    frame = pl.DataFrame(rows, schema={"id": pl.Int64, "at": pl.Datetime("us", "UTC"), "text": pl.String})
    kind = path.name.split(".", 1)[1]
    if kind.startswith("jsonl"):
        lines = [json.dumps({**row, "at": row["at"].isoformat()}, ensure_ascii=False) for row in rows]
        text = "\n".join(lines).encode()
    elif kind.startswith("csv"):
        text = frame.with_columns(pl.col("at").dt.to_string("iso")).write_csv().encode()
    else:
        groups = [frame[start : start + 10].to_arrow() for start in range(0, max(len(rows), 1), 10)]
        groups.insert(2, groups[0].slice(0, 0))
        if kind == "parquet":
            with parquet.ParquetWriter(path, groups[0].schema) as writer:
                for group in groups:
                    writer.write_table(group)
        else:
            new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
            with new(path, groups[0].schema) as writer:
                for group in groups:
                    for batch in group.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], group.schema)]:
                        writer.write_batch(batch)
        return path
    path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    return path


# -- splits -------------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_recursively(tmp_path: Path) -> None:
    """Every file with a known extension is a split named by its path; hidden ones and others are left out."""
    for name in ("b.jsonl", "a/c.jsonl.gz", "a/b/d.parquet", "z.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name)
    for name in (".hidden.jsonl", "_tmp.jsonl", "README.md", "a/.staging.jsonl"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".staging").mkdir()
    write(tmp_path / ".staging" / "e.jsonl")
    splits = files.Source(tmp_path, schema=Reading).discover()
    assert [split.id for split in splits] == ["a/b/d.parquet", "a/c.jsonl.gz", "b.jsonl", "z.csv"]
    assert splits[2].size_bytes == (tmp_path / "b.jsonl").stat().st_size


async def test_patterns_and_single_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_split: Callable[..., Any]
) -> None:
    """A pattern finds files below the folder before its first wildcard; a file is one split; both may be relative."""
    (tmp_path / "in" / "x").mkdir(parents=True)
    for name in ("in/a.jsonl", "in/x/b.jsonl", "in/c.csv"):
        write(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert [s.id for s in files.Source("in/**/*.jsonl", schema=Reading).discover()] == ["a.jsonl", "x/b.jsonl"]
    assert [s.id for s in files.Source("in/*.jsonl", schema=Reading).discover()] == ["a.jsonl"]
    assert [s.id for s in files.Source("in/c.csv", schema=Reading).discover()] == ["c.csv"]
    assert [s.id for s in files.Source("*/*/b.*", schema=Reading).discover()] == ["in/x/b.jsonl"]
    assert (await read_split(files.Source("in/**/a.jsonl", schema=Reading))).rows == ROWS
    assert (await read_split(files.Source("in/c.csv", schema=Reading))).rows == ROWS


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.jsonl", "neither a file nor a folder 'missing.jsonl'"),
        ("empty", "no file is in 'empty'; correct the path"),
        ("*.csv", "no file matches the pattern '*.csv'; correct the path"),
        ("other", "no file that is in 'other' has a known extension; name the format"),
    ],
)
def test_missing_input(path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not there is an error that names it."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineError, match=message.replace("*", r"\*")):
        files.Source(path, schema=Reading).discover()


def test_declaration_errors(tmp_path: Path) -> None:
    """Wrong parameters are told when the source is declared."""
    path = write(tmp_path / "a.jsonl")
    with pytest.raises(PipelineError, match=r"no format='json'; did you mean 'jsonl'"):
        files.Source(path, schema=Reading, format="json")
    with pytest.raises(PipelineError, match="does not tell the types"):
        files.Source(path)
    with pytest.raises(PipelineError, match="rate="):
        files.Source(path, schema=Reading, rate=0)
    with pytest.raises(PipelineError, match="delimiter="):
        files.Source(path, schema=Reading, delimiter=", ")
    odd = files.Source(write(tmp_path / "a.jsonl").rename(tmp_path / "odd.txt"), schema=Reading)
    with pytest.raises(PipelineError, match="known extension"):
        odd.open(odd.discover()[0], None, _context())


# -- reading ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", FORMATS)
async def test_formats(extension: str, tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """Every format gives the same rows in file order."""
    found = await read_split(files.Source(write(tmp_path / f"a.{extension}"), schema=Reading))
    assert found.rows == ROWS
    assert not found.bad


@pytest.mark.parametrize("extension", FORMATS)
async def test_empty_files(extension: str, tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """A file without rows ends at once."""
    found = await read_split(files.Source(write(tmp_path / f"a.{extension}", []), schema=Reading))
    assert found.rows == []


@pytest.mark.parametrize("extension", FORMATS)
def test_positions(
    extension: str, tmp_path: Path, read_split: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in any pieces and reopened at any position, the rows are the same, and no read gives more than asked for."""
    monkeypatch.setattr(file_reading, "CHUNK_BYTES", 300)
    source = files.Source(write(tmp_path / f"a.{extension}"), schema=Reading)

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.integers(1, 20), max_size=70), st.booleans(), st.data())
    def check(pieces: list[int], reopen: bool, data: st.DataObject) -> None:
        found = asyncio.run(read_split(source, pieces=pieces, reopen=reopen))
        assert found.rows == ROWS
        assert all(count <= size for count, size in zip(found.counts, pieces, strict=False))
        index = data.draw(st.integers(0, len(found.positions) - 1))
        rest = asyncio.run(read_split(source, position=found.positions[index]))
        assert ROWS[sum(found.counts[: index + 1]) :] == rest.rows

    check()


async def test_bad_rows_say_where_they_are(tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """A bad record of a text file comes with file, line and byte, also after it was reopened in between."""
    path = tmp_path / "a.jsonl"
    good = b'{"id":1,"at":"2001-01-01T00:00:00Z"}'
    path.write_bytes(b"\n".join([good, b"x", b"", good, b"y", good]))
    for reopen in (False, True):
        found = await read_split(files.Source(path, schema=Reading), pieces=[2] * 9, reopen=reopen)
        assert [row["id"] for row in found.rows] == [1, 1, 1]
        assert [(bad.raw, bad.where) for bad in found.bad] == [
            (b"x", "a.jsonl, line 2 (byte 37)"),
            (b"y", "a.jsonl, line 5 (byte 77)"),
        ]


async def test_bad_csv_rows_count_lines_not_records(tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """The line of a bad CSV record counts the header and the lines within quotes."""
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,at,text\n1,2001-01-01T00:00:00Z,"a\nb"\nx,2001-01-01T00:00:00Z,c\n')
    found = await read_split(files.Source(path, schema=Reading))
    assert [bad.where for bad in found.bad] == ["a.csv, line 4 (byte 40)"]
    assert found.rows[0]["text"] == "a\nb"


async def test_bad_parquet_rows(tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """Null and out-of-range values of columnar files make rows bad, with row group and row."""
    path = tmp_path / "a.parquet"
    frame = pl.DataFrame({"id": [1, None, 2**40], "at": [START] * 3, "text": ["a"] * 3})
    frame.write_parquet(path)
    schema = pa.schema([pa.field("id", pa.int8(), nullable=False), ("text", pa.string())])
    found = await read_split(files.Source(path, schema=schema))
    assert found.rows == [{"id": 1, "text": "a"}]
    assert [bad.where for bad in found.bad] == ["a.parquet, row 2 of row group 1", "a.parquet, row 3 of row group 1"]
    assert "missing" in found.bad[0].error
    assert "1099511627776 does not fit into int8" in found.bad[1].error


async def test_schema_of_columnar_files(tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """Parquet and Arrow files bring their schema; naive timestamps need a zone; narrower types are widened."""
    path = tmp_path / "a.parquet"
    table = pa.table({"i": pa.array([1], pa.int16()), "at": pa.array([datetime(2001, 7, 1)], pa.timestamp("ns"))})  # noqa: DTZ001
    parquet.write_table(table, path)
    with pytest.raises(PipelineError, match="timezone="):
        files.Source(path)
    source = files.Source(path, timezone="Europe/Berlin", event_time="at")
    assert str(source.schema) == "i: int16 or null, at: timestamp"
    found = await read_split(source)
    assert found.rows == [{"i": 1, "at": datetime(2001, 6, 30, 22, tzinfo=UTC)}]
    wide = files.Source(path, schema=pa.schema([("i", pa.int64()), ("new", pa.string())]))
    assert (await read_split(wide)).rows == [{"i": 1, "new": None}]


def test_moments_of_96_bits(tmp_path: Path) -> None:
    """INT96, which Spark, Hive and Impala write: moments that nanoseconds do not reach are what they are."""
    moments = [datetime(9999, 12, 31), datetime(1500, 1, 1), datetime(2020, 1, 1), None]  # noqa: DTZ001
    path = tmp_path / "a.parquet"
    table = pa.table({"id": [0, 1, 2, 3], "valid_to": pa.array(moments, pa.timestamp("us"))})
    parquet.write_table(table, path, use_deprecated_int96_timestamps=True, row_group_size=1)
    read = Pipeline("read").read(files.Source(path, timezone="UTC"))
    assert [each and each.replace(tzinfo=None) for each in read.collect()["valid_to"]] == moments
    later = read.filter(col("valid_to") > lit(datetime(2030, 1, 1, tzinfo=UTC)))
    assert later.collect()["id"].to_list() == [0]
    assert read.filter(col("valid_to") < lit(datetime(1700, 1, 1, tzinfo=UTC))).collect()["id"].to_list() == [1]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([("i", pa.string())]), "column 'i' holds int64, but the schema declares string"),
        (pa.schema([pa.field("j", pa.int64(), nullable=False)]), "has no column 'j'; there are: i"),
    ],
)
def test_columnar_files_of_another_schema(schema: pa.Schema, message: str, tmp_path: Path) -> None:
    """A column that is missing or of another type is an error before a row is read."""
    pl.DataFrame({"i": [1]}).write_parquet(tmp_path / "a.parquet")
    source = files.Source(tmp_path / "a.parquet", schema=schema)
    with pytest.raises(PipelineError, match=message):
        source.open(source.discover()[0], None, _context())


def _context() -> Any:
    from penstock.connectors.base import ReadContext

    return ReadContext(lambda: 0, lambda: 0)


async def test_byte_order_mark(tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """A byte order mark at the beginning is no part of the first row or column."""
    for name in ("a.jsonl", "a.csv"):
        path = write(tmp_path / name)
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert (await read_split(files.Source(path, schema=Reading))).rows == ROWS


# -- files that change --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", FORMATS)
async def test_replaced_file_is_refused(extension: str, tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """A position does not fit a file with other content."""
    path = write(tmp_path / f"a.{extension}")
    source = files.Source(path, schema=Reading)
    positions = (await read_split(source, pieces=[10] * 9)).positions
    write(path, [{**row, "id": row["id"] + 100} for row in ROWS[::-1]])
    with pytest.raises(PipelineError, match="is not the file that was read"):
        await read_split(source, position=positions[2])


async def test_cut_file_is_refused(tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """A position behind the end of the file does not fit."""
    path = write(tmp_path / "a.jsonl")
    source = files.Source(path, schema=Reading)
    positions = (await read_split(source, pieces=[10] * 9)).positions
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(PipelineError, match="replaced, cut or rewritten"):
        await read_split(source, position=positions[2])


async def test_growing_file_is_read_to_where_it_ended_at_first(tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """Rows appended after the start are not read, not even after a restart: the input is bounded."""
    path = write(tmp_path / "a.jsonl")
    source = files.Source(path, schema=Reading)
    positions = (await read_split(source, pieces=[10] * 9)).positions
    with path.open("ab") as file:
        file.write(b'\n{"id":1000,"at":"2001-01-01T00:00:00Z"}\n')
    assert (await read_split(source, position=positions[2])).rows == ROWS[30:]


async def test_damaged_files(tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """Compressed and columnar files that cannot be read are errors that name them."""
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"x" * 1_000_000)[:500])
    with pytest.raises(ExternalError, match=r"a\.jsonl\.gz"):
        await read_split(files.Source(tmp_path / "a.jsonl.gz", schema=Reading))
    (tmp_path / "a.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(PipelineError, match="neither a Parquet nor an Arrow file"):
        await read_split(files.Source(tmp_path / "a.parquet", schema=Reading))


# -- the rest -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["a.parquet", "z.parquet", "a.arrow"])
def test_a_file_of_no_bytes_among_others_is_a_bad_record(mark: str, tmp_path: Path) -> None:
    """Interrupted writers leave some; its size is looked at, whichever file tells the schema."""
    parquet.write_table(pa.table({"n": [1, 2]}), tmp_path / "m.parquet")
    (tmp_path / mark).touch()
    for options in ({}, {"schema": pa.schema([("n", pa.int64())])}):
        rows = Pipeline("p").read(files.Source(tmp_path, bad_rows="skip", **options))
        assert rows.collect()["n"].to_list() == [1, 2]
        dead = Pipeline("p").read(files.Source(tmp_path, bad_rows="dead_letter", **options)).dead_letters()
        [(error, raw, where)] = dead.collect().rows()
        assert (raw, where) == (b"", mark)
        assert error.startswith("the file is empty (0 bytes)")
        with pytest.raises(BadRecordError, match=f"{mark}: the file is empty"):
            Pipeline("p").read(files.Source(tmp_path, **options)).collect()


@pytest.mark.parametrize("extension", ["parquet", "arrow"])
def test_vectors_of_a_fixed_size_and_small_floats(extension: str, tmp_path: Path) -> None:
    """As models write them; within others too."""
    vector = pa.list_(pa.float16(), 2)
    table = pa.table(
        {
            "v": pa.array([[1.5, 2.0], None, [0.5, -1.0]], vector),
            "h": pa.array([1.5, None, -2.0], pa.float16()),
            "s": pa.array(
                [{"at": [1, 2]}, None, {"at": None}], pa.struct([("at", pa.list_(pa.timestamp("s", "UTC"), 2))])
            ),
        }
    )
    path = tmp_path / f"vectors.{extension}"
    if extension == "parquet":
        parquet.write_table(table, path, row_group_size=2)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    at = [datetime(1970, 1, 1, 0, 0, second, tzinfo=UTC) for second in (1, 2)]
    for options in ({}, {"schema": table.schema}, {"batch_rows": 1}):
        stream = Pipeline("p").read(files.Source(path, **options))
        assert [str(stream.schema.field(name).type) for name in ("v", "h")] == ["list[float32]", "float32"]
        found = stream.collect()
        assert found["v"].to_list() == [[1.5, 2.0], None, [0.5, -1.0]]
        assert found["h"].to_list() == [1.5, None, -2.0]
        assert [s and s["at"] for s in found["s"].to_list()] == [at, None, None]


def test_lines_that_end_with_cr_alone_are_named(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_bytes(b"n,text\r1,a\r2,b\r")
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    with pytest.raises(PipelineError, match=r"old\.csv: its lines end with CR alone.* tr '\\r' '\\n'"):
        Pipeline("p").read(files.Source(tmp_path, schema=schema, bad_rows="skip")).collect()


async def test_rate(tmp_path: Path, time: Any) -> None:
    """With a rate, rows become due with time; splits share it; a resumed reader counts from its own start."""
    write(tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl")
    source = files.Source(tmp_path, schema=Reading, rate=20)
    reader = source.open(source.discover()[0], None, time.context())
    assert await reader.read(100) is None
    counts: list[int] = []
    for _ in range(4):
        time.ms += 550
        fetched = await reader.read(100)
        counts.append(fetched.frame.height if fetched else 0)
    assert counts == [5, 6, 5, 6]
    resumed = source.open(source.discover()[0], reader.position(), time.context())
    time.ms += 100
    fetched = await resumed.read(100)
    assert fetched is not None
    assert fetched.frame["id"].to_list() == [22]
    await reader.close()
    await resumed.close()


@pytest.mark.parametrize("extension", FORMATS)
async def test_cancelled_reads_lose_nothing(extension: str, tmp_path: Path, time: Any) -> None:
    """A read that is cancelled while it waits for the disk is continued by the next one."""
    source = files.Source(write(tmp_path / f"a.{extension}"), schema=Reading)
    reader = source.open(source.discover()[0], None, time.context())
    rows: list[Any] = []
    while True:
        cancelled = asyncio.create_task(reader.read(20))
        await asyncio.sleep(0)
        cancelled.cancel()
        try:
            fetched = await cancelled
        except asyncio.CancelledError:
            try:
                fetched = await reader.read(20)
            except EndOfSplit:
                break
        except EndOfSplit:
            break
        assert fetched is not None
        rows += fetched.frame.to_dicts()
    assert rows == ROWS
    await reader.close()


async def test_closing_during_a_read(tmp_path: Path, time: Any) -> None:
    """A reader can be closed while a fetch is under way."""
    source = files.Source(write(tmp_path / "a.jsonl"), schema=Reading)
    reader = source.open(source.discover()[0], None, time.context())
    reading = asyncio.create_task(reader.read(20))
    await asyncio.sleep(0)
    reading.cancel()
    await reader.close()


def test_description_and_flags(tmp_path: Path) -> None:
    """Files are bounded and replayable, and the description holds what was chosen."""
    source = files.Source(write(tmp_path / "a.jsonl"), schema=Reading, event_time="at", max_out_of_orderness="9h")
    assert source.bounded
    assert source.replayable
    assert source.row_type is Reading
    assert source.describe() == {"path": str(tmp_path / "a.jsonl")}
    assert source.event_time is not None
    assert source.event_time.watermarks.describe() == "out of order by at most 9h"


@pytest.mark.parametrize("what", ["cut", "emptied", "rewritten"])
@pytest.mark.parametrize("extension", ["jsonl", "csv"])
async def test_a_text_file_that_is_cut_or_rewritten_while_it_is_read(
    what: str, extension: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Does not end like any other, nor are rows of both mixed."""
    monkeypatch.setattr(file_reading, "CHUNK_BYTES", 1_000)
    path = write(tmp_path / f"a.{extension}")
    text = path.read_bytes()
    assert len(text) > 2_000
    source = files.Source(path, schema=Reading)
    reader = source.open(source.discover()[0], None, ReadContext(lambda: 0, lambda: 0))
    assert await reader.read(1) is not None
    with path.open("r+b") as opened:
        if what == "rewritten":
            opened.write(text.replace(b"0", b"9"))
        else:
            opened.truncate(1_500 if what == "cut" else 0)

    async def rest() -> None:
        while True:
            await reader.read(5)

    with pytest.raises(
        PipelineError, match=r"is not the file that was read up to byte \d+ before: it was replaced, cut"
    ):
        await rest()
    await reader.close()
