"""Files as sinks: formats, two-phase commit, consumed files, recovery."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors import files
from penstock.connectors.base import ExistingRowsError, LostPartError, WriteContext
from penstock.connectors.files import local as local_files
from penstock.errors import PipelineError
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT32,
    FLOAT64,
    INT8,
    INT64,
    STRING,
    TIMESTAMP,
    UINT64,
    Field,
    ListType,
    Schema,
    StructType,
)

FORMATS = ["jsonl", "csv", "parquet", "arrow"]
SIMPLE = Schema((Field("i", INT64), Field("at", TIMESTAMP), Field("s", STRING, nullable=True)))
START = datetime(2001, 1, 1, tzinfo=UTC)


def frame(*numbers: int) -> pl.DataFrame:
    """Rows of SIMPLE."""
    return pl.DataFrame(
        {"i": numbers, "at": [START] * len(numbers), "s": [None if n % 2 else f"é{n}" for n in numbers]},
        schema=SIMPLE.polars(),
    )


def visible(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*"))


async def rows_in(folder: Path, read_split: Callable[..., Any], schema: Schema = SIMPLE) -> list[dict[str, Any]]:
    """What a source reads from the folder."""
    source = files.Source(folder, schema=schema)
    return [row for split in source.discover() for row in (await read_split(source, split.id)).rows]


@pytest.mark.parametrize("kind", FORMATS)
async def test_rows_become_visible_with_the_commit(
    kind: str, tmp_path: Path, read_split: Callable[..., Any], write_context: Callable[..., Any]
) -> None:
    """Staged rows are not seen; a commit shows exactly those of its checkpoint; the source reads them back."""
    folder = tmp_path / "out"
    writer = files.Sink(folder, format=kind).open(SIMPLE, write_context())
    writer.write(frame(1, 2))
    writer.write(frame())
    writer.write(frame(3))
    prepared = writer.prepare(7)
    assert prepared.persist is not None
    prepared.persist()
    writer.write(frame(4))
    assert visible(folder) == []
    [committable] = json.loads(json.dumps(prepared.committables))
    writer.commit(committable)
    assert [path.name for path in visible(folder)] == [f"part-00000007-sink-0-aaaaaaaa.{kind}"]
    assert await rows_in(folder, read_split) == frame(1, 2, 3).to_dicts()
    [later] = writer.prepare(8).committables
    writer.commit(later)
    assert await rows_in(folder, read_split) == frame(1, 2, 3, 4).to_dicts()
    for part in (committable, later):
        writer.forget(part)
        writer.forget(part)
    assert list((folder / ".staging").iterdir()) == []


def test_a_consumed_file_never_reappears(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """A commit repeated after the visible file was moved away does nothing, by this writer or another one."""
    writer = files.Sink(tmp_path).open(SIMPLE, write_context())
    writer.write(frame(1))
    [committable] = writer.prepare(1).committables
    writer.commit(committable)
    visible(tmp_path)[0].unlink()
    writer.commit(committable)
    files.Sink(tmp_path).open(SIMPLE, write_context(attempt="b" * 32)).commit(committable)
    assert visible(tmp_path) == []


def test_checkpoints_without_rows_write_no_file(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """Nothing written means nothing staged."""
    writer = files.Sink(tmp_path).open(SIMPLE, write_context())
    writer.write(frame())
    prepared = writer.prepare(1)
    assert prepared.committables == ()
    assert prepared.persist is None
    assert list((tmp_path / ".staging").iterdir()) == []


def test_discard_and_close(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """Discarding removes the staged part, again and again; closing removes what was not prepared."""
    writer = files.Sink(tmp_path).open(SIMPLE, write_context())
    writer.write(frame(1))
    [committable] = writer.prepare(1).committables
    writer.discard(committable)
    writer.discard(committable)
    writer.write(frame(2))
    writer.close()
    assert visible(tmp_path) == []
    assert list((tmp_path / ".staging").iterdir()) == []


def test_recovery_keeps_what_is_needed(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """Recovery removes staged parts that no checkpoint names, of this sink's operator only, and commits go on."""
    sink = files.Sink(tmp_path)
    committables: list[Any] = []
    for operator in ("a", "a--b", "ns/é"):
        for subtask in (0, 1):
            writer = sink.open(SIMPLE, write_context(operator, subtask))
            writer.write(frame(subtask))
            committables += writer.prepare(1).committables
    sink.recover([committables[1]], "a")()
    staged = {path.name for path in (tmp_path / ".staging").iterdir()}
    assert staged == {part["staged"] for part in committables[1:]}
    sink.recover(committables[1:5], "ns/é")()
    sink.recover([committables[2]], "a--b")()
    sink.open(SIMPLE, write_context("a", 1, "b" * 32)).commit(committables[1])
    assert len(visible(tmp_path)) == 1
    sink.recover([])()
    assert list((tmp_path / ".staging").iterdir()) == []
    files.Sink(tmp_path / "never").recover([])()


def stage(sink: files.Sink, context: WriteContext, checkpoint: int = 1) -> Any:
    """One part of a writer; returns its committable."""
    writer = sink.open(SIMPLE, context)
    writer.write(frame(context.attempt_number))
    [committable] = writer.prepare(checkpoint).committables
    return committable


def test_what_other_attempts_staged_is_removed(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """Also what an earlier job left whose attempts have higher numbers, and what a former version named otherwise."""
    sink = files.Sink(tmp_path)
    _, own, higher = (stage(sink, write_context(attempt=str(n) * 32, number=n)) for n in (9, 10, 11))
    (tmp_path / ".staging" / f"sink--0-{'7' * 32}-1.jsonl").write_text("{}")
    (tmp_path / ".staging" / higher["proof"]).touch()
    sink.recover([], "sink", "10" * 32)()
    assert {path.name for path in (tmp_path / ".staging").iterdir()} == {own["staged"]}


def test_what_comes_after_the_search_is_not_removed(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """A removal knows names: what is staged or made visible between search and removal stays, whoever wrote it."""
    sink = files.Sink(tmp_path, existing="replace")
    (tmp_path / "part-old.jsonl").write_text("{}")
    removals = [sink.begin(), sink.recover([], "sink", "b" * 32)]
    staged, committed = (stage(sink, write_context(attempt=each * 32)) for each in "cd")
    sink.open(SIMPLE, write_context(attempt="d" * 32)).commit(committed)
    for remove in removals:
        remove()
        remove()
    assert [path.name for path in visible(tmp_path)] == [committed["visible"]]
    assert {path.name for path in (tmp_path / ".staging").iterdir()} == {staged["staged"], committed["proof"]}


def test_a_part_that_is_gone_without_a_proof_of_its_commit_is_an_error(
    tmp_path: Path, write_context: Callable[..., Any]
) -> None:
    """Its rows are lost. The proof stays for whoever commits again, and goes when no checkpoint lists the part."""
    sink = files.Sink(tmp_path)
    lost, kept = (stage(sink, write_context(subtask=subtask)) for subtask in (0, 1))
    (tmp_path / ".staging" / lost["staged"]).unlink()
    writer = sink.open(SIMPLE, write_context(attempt="b" * 32, number=2))
    with pytest.raises(LostPartError, match=r"sink--0-attempt1-a+-1\.jsonl is gone, and nothing says"):
        writer.commit(lost)
    writer.commit(kept)
    visible(tmp_path)[0].unlink()
    sink.recover([kept], "sink", "b" * 32)()
    writer.commit(kept)
    sink.recover([], "sink", "b" * 32)()
    assert list((tmp_path / ".staging").iterdir()) == []
    with pytest.raises(LostPartError):
        writer.commit(kept)
    assert visible(tmp_path) == []


def test_parts_of_a_version_without_proofs_are_committed(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """A manifest of the version before names them without number and proof; where one is gone it is visible."""
    writer = files.Sink(tmp_path).open(SIMPLE, write_context())
    name = f"sink--0-{'7' * 32}-1.jsonl"
    (tmp_path / ".staging" / name).write_text("{}")
    committable = {"staged": name, "visible": "part-00000007-sink-0-77777777.jsonl"}
    files.Sink(tmp_path).recover([committable], "sink", "b" * 32)()
    writer.commit(committable)
    assert [path.name for path in visible(tmp_path)] == [committable["visible"]]
    visible(tmp_path)[0].unlink()
    writer.commit(committable)
    assert visible(tmp_path) == []


class Disk:
    """What a power loss leaves: names and contents as they were at the last sync of their folder and file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._synced: dict[Path, Any] = {}
        self._descriptors: dict[int, Path] = {}
        self._folder = folder
        self._open = os.open
        monkeypatch.setattr(local_files.os, "open", self._opened)
        monkeypatch.setattr(local_files.os, "fsync", self._sync)

    def _opened(self, path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = self._open(path, flags, mode)
        self._descriptors[descriptor] = Path(path)
        return descriptor

    def _sync(self, descriptor: int) -> None:
        path = self._descriptors[descriptor]
        self._synced[path] = frozenset(os.listdir(path)) if path.is_dir() else path.read_bytes()

    def names(self, folder: Path) -> frozenset[str]:
        """What stands in a folder after a power loss."""
        return self._synced.get(folder, frozenset())

    def content(self, path: Path) -> bytes | None:
        """What a file holds after a power loss."""
        return self._synced.get(path)


def test_what_was_committed_survives_a_power_loss(
    tmp_path: Path, write_context: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The staged file before the checkpoint, the proof before the rename, the rename before the commit returns."""
    disk, staging = Disk(tmp_path, monkeypatch), tmp_path / ".staging"
    writer = files.Sink(tmp_path).open(SIMPLE, write_context())
    writer.write(frame(1))
    prepared = writer.prepare(1)
    [committable] = prepared.committables
    prepared.persist()
    staged = staging / committable["staged"]
    assert disk.content(staged) == staged.read_bytes() != b""
    assert disk.names(staging) == {staged.name}
    rename, before = os.rename, list[frozenset[str]]()

    def renamed(source: Path, target: Path) -> None:
        before.append(disk.names(staging))
        rename(source, target)

    monkeypatch.setattr(local_files.os, "rename", renamed)
    writer.commit(committable)
    assert before == [{staged.name, committable["proof"]}]
    assert committable["visible"] in disk.names(tmp_path)
    assert disk.names(staging) == {committable["proof"]}


def test_a_commit_that_is_repeated_after_a_kill_is_durable(
    tmp_path: Path, write_context: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who renamed the file was killed before it synced: whoever finds it renamed syncs."""
    sink, staging = files.Sink(tmp_path), tmp_path / ".staging"
    committable = stage(sink, write_context())
    (staging / committable["proof"]).touch()
    (staging / committable["staged"]).rename(tmp_path / committable["visible"])
    disk = Disk(tmp_path, monkeypatch)
    sink.open(SIMPLE, write_context(attempt="b" * 32, number=2)).commit(committable)
    assert committable["visible"] in disk.names(tmp_path)
    assert disk.names(staging) == {committable["proof"]}


def test_rows_that_files_cannot_hold(tmp_path: Path) -> None:
    """Nested columns in CSV are refused when the pipeline is built; updates are rows like others."""
    files.Sink(tmp_path).check(SIMPLE, updates=True)
    with pytest.raises(PipelineError, match="CSV cannot hold"):
        files.Sink(tmp_path, format="csv").check(Schema((Field("l", ListType(INT64)),)), updates=False)
    with pytest.raises(PipelineError, match="did you mean 'parquet'"):
        files.Sink(tmp_path, format="parket")
    files.Sink(tmp_path, format="csv").check(SIMPLE, updates=False)
    assert files.Sink(tmp_path).guarantee == "exactly-once"


def test_text_of_jsonl(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """Timestamps end in Z with a fraction only where there is one; NaN and infinity are null; text is UTF-8."""
    schema = Schema((Field("at", TIMESTAMP), Field("f", FLOAT64), Field("s", STRING), Field("l", ListType(TIMESTAMP))))
    moments = [START, START + timedelta(milliseconds=1), START + timedelta(microseconds=1)]
    rows = {"at": moments, "f": [0.1, float("nan"), float("-inf")], "s": ['é"', "", "\n"], "l": [[START], [], [None]]}
    writer = files.Sink(tmp_path).open(schema, write_context())
    writer.write(pl.DataFrame(rows, schema=schema.polars()))
    writer.commit(writer.prepare(1).committables[0])
    assert visible(tmp_path)[0].read_text() == (
        '{"at":"2001-01-01T00:00:00Z","f":0.1,"s":"é\\"","l":["2001-01-01T00:00:00Z"]}\n'
        '{"at":"2001-01-01T00:00:00.001Z","f":null,"s":"","l":[]}\n'
        '{"at":"2001-01-01T00:00:00.000001Z","f":null,"s":"\\n","l":[null]}\n'
    )


def test_csv_has_one_header_per_file(tmp_path: Path, write_context: Callable[..., Any]) -> None:
    """Each file begins with the header; the delimiter can be chosen."""
    writer = files.Sink(tmp_path, format="csv", delimiter=";").open(SIMPLE, write_context())
    for checkpoint in (1, 2):
        writer.write(frame(1))
        writer.write(frame(2))
        writer.commit(writer.prepare(checkpoint).committables[0])
    text = "i;at;s\n1;2001-01-01T00:00:00Z;\n2;2001-01-01T00:00:00Z;é2\n"
    assert [path.read_text() for path in visible(tmp_path)] == [text, text]


def nullable(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


FLAT: dict[Any, st.SearchStrategy[Any]] = {
    INT64: st.integers(-(2**63), 2**63 - 1),
    INT8: st.integers(-128, 127),
    UINT64: st.integers(0, 2**64 - 1),
    FLOAT64: st.floats(allow_nan=False, allow_infinity=False),
    FLOAT32: st.floats(width=32, allow_nan=False, allow_infinity=False),
    STRING: st.text(max_size=5).filter(lambda text: "\x00" not in text),
    BINARY: st.binary(max_size=4),
    BOOLEAN: st.booleans(),
    DATE: st.dates(),
    TIMESTAMP: st.datetimes(timezones=st.just(UTC)),
    DURATION: st.timedeltas(timedelta(days=-9_999), timedelta(days=9_999)),
}
INNER = StructType((Field("a b", INT64, nullable=True), Field("t", TIMESTAMP, nullable=True)))
NESTED: dict[Any, st.SearchStrategy[Any]] = {
    ListType(DURATION): st.lists(nullable(FLAT[DURATION]), max_size=2),
    INNER: st.fixed_dictionaries({"a b": nullable(FLAT[INT64]), "t": nullable(FLAT[TIMESTAMP])}),
    ListType(INNER): st.lists(
        nullable(st.fixed_dictionaries({"a b": nullable(FLAT[INT64]), "t": nullable(FLAT[TIMESTAMP])})), max_size=2
    ),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_brings_back_what_was_written(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    read_split: Callable[..., Any],
    write_context: Callable[..., Any],
) -> None:
    """Rows of every type, nulls included, written by the sink and read by the source, are the same."""
    types = FLAT if kind == "csv" else {**FLAT, **NESTED}
    schema = Schema(tuple(Field(f"c{index}", each, nullable=True) for index, each in enumerate(types)))

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.tuples(*map(nullable, types.values())), min_size=1, max_size=4))
    def check(values: list[tuple[Any, ...]]) -> None:
        folder = tmp_path_factory.mktemp("round")
        written = pl.DataFrame(values, schema=schema.polars(), orient="row")
        writer = files.Sink(folder, format=kind).open(schema, write_context())
        writer.write(written)
        writer.commit(writer.prepare(1).committables[0])
        assert asyncio.run(rows_in(folder, read_split, schema)) == written.to_dicts()

    check()


def test_a_new_job_says_what_becomes_of_what_earlier_ones_left(tmp_path: Path) -> None:
    """It refuses such a folder, unless it is told to append or to replace; what is none of a sink's files stays."""
    (tmp_path / "notes.txt").write_text("not ours")
    files.Sink(tmp_path).begin()()
    for name in ("part-2.jsonl", "day=1/part-1.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    wanted = rf"{tmp_path} holds rows of an earlier run \(day=1/part-1.jsonl and 1 more\).*'replace'.*'append'"
    with pytest.raises(ExistingRowsError, match=wanted.replace("'", "[\"']")) as refused:
        files.Sink(tmp_path).begin()
    assert refused.value.terminal
    files.Sink(tmp_path, existing="append").begin()()
    assert len(visible(tmp_path)) == 1
    files.Sink(tmp_path, existing="replace").begin()()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["notes.txt"]
    with pytest.raises(PipelineError, match="no existing='overwrite'; there are: fail, append, replace"):
        files.Sink(tmp_path, existing="overwrite")  # pyright: ignore[reportArgumentType] (the point of the test)


def test_paths_that_look_like_urls_and_are_none(tmp_path: Path) -> None:
    """A drive, a time in a name, a folder that is really called so."""
    for path in ("C:/out", "2026-01-01T00:00:00/out", "./s3:/out", tmp_path / "a:" / "b"):
        assert files.Sink(path).folder == str(path)


def test_csv_cannot_hold_a_row_of_null_alone(tmp_path: Path) -> None:
    """It would be a blank line, which readers pass over; a text for null is one."""
    alone = Schema((Field("s", STRING, nullable=True),))
    with pytest.raises(PipelineError, match=r"'s', which may be null, is the only column.*say null=\"NULL\""):
        files.Sink(tmp_path, format="csv").check(alone, updates=False)
    files.Sink(tmp_path, format="csv", null="NULL").check(alone, updates=False)
    files.Sink(tmp_path, format="csv").check(Schema((Field("s", STRING),)), updates=False)
    beside = Schema((Field("s", STRING, nullable=True), Field("day", STRING)))
    files.Sink(tmp_path, format="csv").check(beside, updates=False)
    with pytest.raises(PipelineError, match="is the only column"):
        files.Sink(tmp_path, format="csv", partition_by=["day"]).check(beside, updates=False)
