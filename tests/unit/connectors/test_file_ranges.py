"""Large files in ranges that are read side by side: together they are the file, whatever the size of a range."""

from __future__ import annotations

import asyncio
import csv
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from penstock import col
from penstock.connectors import files
from penstock.connectors.base import EndOfSplit, ReadContext, ScanRequest
from penstock.connectors.files import reading
from penstock.connectors.files.ranges import ranges
from penstock.errors import PipelineError
from penstock.formats import csv_quotes


@dataclass
class Line:
    id: int
    text: str | None = None


def ranges_of(source: files.Source[Any], most_bytes: int) -> Sequence[Any]:
    """Where the ranges of the only file begin, as they are read."""
    (split,) = source.discover()
    assert split.size_bytes is not None
    found = source.ranges(split, most_bytes)
    assert len(found) == -(-split.size_bytes // most_bytes) > 1
    if not source.needs_survey(split):
        return found
    return source.surveyed(found, json.loads(json.dumps([source.survey(split, position) for position in found])))


def read_ranges(read_split: Callable[..., Any], source: files.Source[Any], most_bytes: int, **how: Any) -> list[Any]:
    """What each range of the only file brings, in order."""
    return [asyncio.run(read_split(source, position=each, **how)) for each in ranges_of(source, most_bytes)]


def assert_whole(read_split: Callable[..., Any], source: files.Source[Any], most_bytes: int, **how: Any) -> list[Any]:
    """The ranges bring what the whole file brings, in order, and lead to the same place."""
    whole, parts = asyncio.run(read_split(source)), read_ranges(read_split, source, most_bytes, **how)
    assert [row for part in parts for row in part.rows] == whole.rows
    bad = [(row.error, row.raw) for row in whole.bad]
    assert [(row.error, row.raw) for part in parts for row in part.bad] == bad
    return parts


def position_of(source: files.Source[Any], position: Any) -> Any:
    """Where a reader from there is at the end."""

    async def end() -> Any:
        from penstock.connectors.base import ReadContext

        reader = source.open(source.discover()[0], position, ReadContext(lambda: 0, lambda: 0))
        try:
            while True:
                await reader.read(7)
        except EndOfSplit:
            return json.loads(json.dumps(reader.position()))
        finally:
            await reader.close()

    return asyncio.run(end())


def line(number: int, text: str = "") -> str:
    return json.dumps({"id": number, "text": text}, ensure_ascii=False)


TEXTS = {
    "lines": "\n".join(line(number, "x" * (number % 5)) for number in range(20)) + "\n",
    "no newline at the end": "\n".join(line(number) for number in range(9)),
    "CRLF": "\r\n".join(line(number) for number in range(9)) + "\r\n",
    "a long line first": "\n".join([line(0, "a" * 300), line(1), line(2)]),
    "a long line in the middle": "\n".join([line(0), line(1, "a" * 300), line(2), ""]),
    "a long line last": "\n".join([line(0), line(1), line(2, "a" * 300)]),
    "one line": line(0, "a" * 100),
    "blank lines": "\n\n\n" + line(1) + "\n\n\n\n\n" + line(2) + "\n\n\n",
    "many bytes a sign": "\n".join(line(number, "é€😀" * number) for number in range(9)),
    "a byte order mark": "\ufeff" + "\n".join(line(number) for number in range(9)),
    "bad rows": "\n".join(line(number) if number % 3 else "no row é" for number in range(12)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_lines_at_any_size_of_a_range(name: str, tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """A boundary on every byte: on a line end, behind it, within a sign of several bytes; ranges without a line."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(TEXTS[name].encode())
    source = files.Source(path, schema=Line, bad_rows="skip")
    size = path.stat().st_size
    for most_bytes in sorted({*range(1, min(size, 14)), size // 2, size - 1} - {0}):
        assert_whole(read_split, source, most_bytes)


@settings(deadline=None, max_examples=25)
@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=40), min_size=2),
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    share=st.floats(0, 1),
)
def test_any_text(
    lines: list[str], end: str, last: bool, share: float, tmp_path_factory: Any, read_split: Callable[..., Any]
) -> None:
    """Random lines, some of which are rows."""
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    rows = [line(number, text) if number % 3 else text for number, text in enumerate(lines)]
    path.write_bytes((end.join(rows) + end * last).encode())
    source = files.Source(path, schema=Line, bad_rows="skip")
    size = path.stat().st_size
    most_bytes = max(1, size // 20, int(share * (size - 1)))
    assert_whole(read_split, source, most_bytes)
    (split,) = source.discover()
    ends = [position_of(source, position) for position in source.ranges(split, most_bytes)]
    assert source.behind(source.discover()[0], ends) == position_of(source, None)


CSVS = {
    "plain": "id,text\n" + "".join(f"{number},{'x' * (number % 5)}\n" for number in range(20)),
    "line ends in quotes": "id,text\n" + "".join(f'{n},"a\n{n}""\r\n,\n"\n' for n in range(9)),
    "one long value": 'id,text\n1,x\n2,"' + "a\n" * 60 + '"\n3,y\n4,z',
    "quotes at ends of values": "id,text\n" + "\n".join(f'"{n}",""""' for n in range(12)),
    "a quote that nobody closes": 'id,text\n1,x\n2,5" disk\n3,y\n4,z\n',
    "two quotes amid values": 'id,text\n1,x\n2,5" disk\n3,6" disk\n4,z\n5,w\n',
    "a quote that nobody closes before a value": 'id,text\n1,"x"\n2,"disk\n3,"y\nz"\n4,z\n',
    "too much in quotes": 'id,text\n1,"' + "a\n" * 60 + '"\nx,y\n3,"y"\n4,z',
    "CRLF, a mark, no last line end": '\ufeffid,text\r\n1,é\r\n2,"€\r\n😀"\r\n3,x',
    "quotes in the header, which is long": '"id","text","' + "h" * 60 + '"\n' + '1,"a\nb",c\n2,d,e\n3,f,g\n',
    "bad rows": 'id,text\n1,x\nbad,y\n2,"\n\n"\nworse,z\n\n3,x,y\n4,w\n',
}


@pytest.mark.parametrize("name", CSVS)
def test_records_of_csv_at_any_size_of_a_range(
    name: str, tmp_path: Path, read_split: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a range begins, in quotes or not; bad rows say their lines, which the survey has counted."""
    if name == "too much in quotes":
        monkeypatch.setattr(csv_quotes, "MOST_QUOTED", 20)
        monkeypatch.setattr("penstock.connectors.files.ranges.MOST_QUOTED", 20)
    path = tmp_path / "a.csv"
    path.write_bytes(CSVS[name].encode())
    source, size = files.Source(path, schema=Line, bad_rows="skip"), path.stat().st_size
    whole = asyncio.run(read_split(source))
    assert whole.rows
    for most_bytes in sorted({*range(1, min(size, 14)), size // 2, size - 1}):
        parts = assert_whole(read_split, source, most_bytes)
        assert [row.where for part in parts for row in part.bad] == [row.where for row in whole.bad]
    ends = [position_of(source, position) for position in ranges_of(source, size // 5)]
    assert source.behind(source.discover()[0], ends) == position_of(source, None)


@settings(deadline=None, max_examples=30)
@given(
    values=st.lists(st.text(st.sampled_from('a",\n\r1é'), max_size=20), min_size=3, max_size=20),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    share=st.floats(0, 1),
)
def test_any_csv(
    values: list[str], quoting: Any, share: float, tmp_path_factory: Any, read_split: Callable[..., Any]
) -> None:
    """Random values with quotes and line ends in them."""
    path = tmp_path_factory.mktemp("any") / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=quoting).writerows([["id", "text"], *enumerate(values)])
    source, size = files.Source(path, schema=Line), path.stat().st_size
    most_bytes = max(1, size // 15, int(share * (size - 1)))
    assert_whole(read_split, source, most_bytes)


def test_a_range_is_read_on_from_its_middle(tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """A position of a range goes on there, and ends where the range does."""
    path = tmp_path / "a.jsonl"
    path.write_text(TEXTS["lines"])
    source = files.Source(path, schema=Line)
    assert_whole(read_split, source, 100, reopen=True, pieces=[1] * 30)


def test_bad_rows_of_a_range_say_their_byte(tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """Lines are numbered as far as somebody has counted them: in the first range."""
    path = tmp_path / "a.jsonl"
    path.write_text(f"{line(1)}\nbad\n{line(2)}\nworse\n")
    source = files.Source(path, schema=Line, bad_rows="skip")
    begin = path.read_bytes().index(b"worse")
    parts = read_ranges(read_split, source, begin - 1)
    assert [row.where for part in parts for row in part.bad] == [
        f"a.jsonl, line 2 (byte {len(line(1)) + 1})",
        f"a.jsonl, byte {begin}",
    ]


def columnar(path: Path, groups: list[int]) -> files.Source[Any]:
    """A file with row groups (batches) of so many rows; those of text of very different size."""
    frame = pl.DataFrame({"id": range(sum(groups)), "text": [str(n) * (n % 50) for n in range(sum(groups))]})
    table = frame.to_arrow().cast(pa.schema([("id", pa.int64()), ("text", pa.string())]))
    tables = [table.slice(end - rows, rows) for end, rows in zip(accumulate(groups), groups, strict=True)]
    if path.suffix == ".parquet":
        with parquet.ParquetWriter(path, table.schema) as writer:
            for each in tables:
                writer.write_table(each)
    else:
        new = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
        with new(str(path), table.schema) as writer:
            for each in tables:
                for batch in each.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]:
                    writer.write_batch(batch)
    return files.Source(path, schema=Line)


@pytest.mark.parametrize("groups", [[50], [1, 200, 1], [0, 10, 0, 10, 0], [10] * 12], ids=str)
@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows"])
def test_row_groups_at_any_size_of_a_range(
    kind: str, groups: list[int], tmp_path: Path, read_split: Callable[..., Any]
) -> None:
    """Each row group, or batch of an Arrow file, is in one range; a stream of batches is in the first."""
    source = columnar(tmp_path / f"a.{kind}", groups)
    (split,) = source.discover()
    assert split.size_bytes is not None
    for most_bytes in (split.size_bytes // 40, split.size_bytes // 7, split.size_bytes // 2, split.size_bytes - 1):
        parts = assert_whole(read_split, source, most_bytes)
        ends = [position_of(source, position) for position in source.ranges(split, most_bytes)]
        assert source.behind(source.discover()[0], ends) == position_of(source, None)
        if kind == "arrows":
            assert not any(part.rows for part in parts[1:])
    if len(groups) == 12 and kind != "arrows":
        counts = [len(part.rows) for part in read_ranges(read_split, source, split.size_bytes // 3)]
        assert min(counts[:3]) >= 20, "work is shared"
    assert_whole(read_split, source, split.size_bytes // 3, reopen=True, pieces=[7] * 100)


@pytest.mark.parametrize("weights", [[], [0], [0, 0, 0], [5, 0], [0, 5, 0], [1, 1_000, 0, 0, 3]], ids=str)
def test_each_row_group_lies_in_one_range(weights: list[int]) -> None:
    """Also one of which the footer says that it has nothing, before or behind all others."""
    for most_bytes in (1, 3, 10, 99):
        found = [number for part in ranges(100, most_bytes) for number in range(*part.groups(weights))]
        assert found == list(range(len(weights)))


def test_what_nobody_looks_at_is_not_read_in_ranges_either(tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """Row groups are left out by their statistics, columns are null."""
    columnar(tmp_path / "a.parquet", [10] * 12)
    source = files.Source(tmp_path / "a.parquet").narrowed(ScanRequest(frozenset({"id"}), col("id") >= 95))
    (split,) = source.discover()
    assert split.size_bytes is not None
    parts = assert_whole(read_split, source, split.size_bytes // 5)
    assert [row for part in parts for row in part.rows] == [{"id": id, "text": None} for id in range(90, 120)]


def test_columns_of_folders_are_in_every_range(tmp_path: Path, read_split: Callable[..., Any]) -> None:
    (tmp_path / "id=7").mkdir()
    (tmp_path / "id=7" / "a.jsonl").write_text("".join(f'{{"text": "{n}"}}\n' for n in range(30)))
    parts = assert_whole(read_split, files.Source(tmp_path, schema=Line), 100)
    assert {row["id"] for part in parts for row in part.rows} == {7}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_that_is_another_one_is_refused(kind: str, tmp_path: Path, read_split: Callable[..., Any]) -> None:
    """Else a part of each would be read; but what comes behind text, as into a log, is not read and does no harm."""
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        path.write_text(TEXTS["lines"])
        source: files.Source[Any] = files.Source(path, schema=Line)
    else:
        source = columnar(path, [10] * 12)
    (split,) = source.discover()
    found, whole = source.ranges(split, 100), asyncio.run(read_split(source)).rows
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(PipelineError, match=f"{path} has {len(content) - 1} bytes, and had {len(content)} when"):
        asyncio.run(read_split(source, position=found[1]))
    path.write_bytes(content + content)
    if kind == "jsonl":
        rows = [row for each in found for row in asyncio.run(read_split(source, position=each)).rows]
        assert rows == whole
    else:
        with pytest.raises(PipelineError, match=f"{path} has {2 * len(content)} bytes, and had"):
            asyncio.run(read_split(source, position=found[1]))


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_file_that_is_replaced_between_two_ranges_is_noticed(kind: str, tmp_path: Path) -> None:
    """Also by one of the same size: what two ranges have in common is compared behind them."""
    path = tmp_path / f"a.{kind}"
    contents: list[bytes] = []
    for text in ("a", "b"):
        lines = [f"{number},{text}" if kind == "csv" else line(number, text) for number in range(100)]
        path.write_text("\n".join(["id,text"] * (kind == "csv") + lines))
        contents.append(path.read_bytes())
    assert len(contents[0]) == len(contents[1])
    source = files.Source(path, schema=Line)
    (split,) = source.discover()
    path.write_bytes(contents[0])
    parts = ranges_of(source, len(contents[0]) // 4)
    right = [position_of(source, position) for position in parts]
    path.write_bytes(contents[1])
    other = [position_of(source, position) for position in parts]
    with pytest.raises(PipelineError, match=r"a\..* was replaced or rewritten while the run read it in parts"):
        source.behind(split, right[:2] + other[2:])
    source.behind(split, right)
    if kind == "csv":  # what was counted in the survey is that of another file
        with pytest.raises(PipelineError, match=r"a\..* was replaced or rewritten while the run read it in parts"):
            source.behind(split, other)
    else:
        source.behind(split, other)


def test_a_file_that_is_cut_while_its_last_range_is_read_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends before the place where it ended when the ranges were planned."""
    monkeypatch.setattr(reading, "CHUNK_BYTES", 100)
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(line(number) for number in range(100)))
    source = files.Source(path, schema=Line)
    (split,) = source.discover()
    *_, last = ranges_of(source, path.stat().st_size // 3)

    async def cut() -> None:
        reader = source.open(split, last, ReadContext(lambda: 0, lambda: 0))
        await reader.read(1)
        os.truncate(path, last["range"][0] + 300)
        try:
            while True:
                await reader.read(10)
        finally:
            await reader.close()

    with pytest.raises(PipelineError, match="it was replaced, cut or rewritten"):
        asyncio.run(cut())


def test_what_is_read_as_a_whole(tmp_path: Path) -> None:
    """Small files, compressed text, and files that are replayed at a rate."""
    for name in ("a.jsonl", "a.jsonl.gz", "a.csv"):
        (tmp_path / name).write_bytes(b"x" * 100)
    source = files.Source(tmp_path, schema=Line)
    assert {split.id: len(source.ranges(split, 30)) for split in source.discover()} == {
        "a.csv": 4,
        "a.jsonl": 4,
        "a.jsonl.gz": 0,
    }
    assert not any(source.ranges(split, 100) for split in source.discover())
    slow = files.Source(tmp_path, schema=Line, rate=1_000)
    assert not any(slow.ranges(split, 30) for split in slow.discover())
