"""What tasks stage for exactly-once sinks, without Spark and Kafka around it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore

from penstock import Pipeline, count
from penstock.adapters.system_clock import SystemClock
from penstock.connectors import collecting, files, iterables, kafka
from penstock.connectors.base import Encoded, PublishContext, WriteContext
from penstock.connectors.files import store_clients
from penstock.connectors.files.writing import PartFolder
from penstock.errors import BadRecordError, CorruptDataError, PipelineError, UsageError
from penstock.graph.jobgraph import JobEdge, Link
from penstock.spark import staging
from penstock.spark.committing import RunManifests
from penstock.spark.engine import batch_graph
from penstock.spark.explain import explain_stages
from penstock.spark.native import ways
from penstock.spark.outputs import BATCH_BYTES, StageOutputs
from penstock.spark.publishing import StagedSink, forget, publish
from penstock.spark.staging import (
    RecordStager,
    StagedFileError,
    StagedPart,
    read_batches,
    remove_staged,
    staging_folder,
)
from penstock.spark.wire import StageEdge
from penstock.types import BINARY, STRING, Field, Schema, schema_to_json

ENCODED = Schema((Field("value", BINARY),))


class Encoder:
    """Skips empty values."""

    def encode(self, frame: pl.DataFrame) -> Encoded:
        kept = frame.filter(pl.col("value").bin.size() > 0)
        return Encoded(kept, frame.height - kept.height)


KINDS = ("a folder", "a store")


def at(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> PartFolder:
    """The place for staged files: a folder, or a store that is one."""
    store = LocalStore(folder)
    patch.setattr(store_clients, "_client", lambda root, options: {"s3://bucket": store}[root])
    return staging_folder(str(folder) if kind == "a folder" else "s3://bucket")


def stage(folder: PartFolder, subtask: int, frames: list[list[bytes]]) -> list[StagedPart]:
    """What one task stages when it is given rows in these frames."""
    context = WriteContext("n1-write", subtask, "execution-0", 0, lambda: 0)
    stager = RecordStager(folder, Encoder(), ENCODED, context, partition=0)
    for values in frames:
        stager.write(pl.DataFrame({"value": values}, schema=ENCODED.polars()))
    prepared = stager.prepare(1)
    if prepared.persist is not None:
        prepared.persist()
    stager.close()
    assert stager.skipped == sum(value == b"" for values in frames for value in values)
    return msgspec.convert(list(prepared.committables), list[StagedPart])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.lists(st.binary(max_size=3), max_size=9), max_size=4), min_size=1, max_size=3), st.data())
def test_staged_rows_are_read_again_from_any_batch(kind, tasks, data):
    """In their order, task after task; a batch has its number whatever number reading begins at."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "BATCH_ROWS", 4)
        folder = at(kind, Path(name), patch)
        parts = [part for subtask, frames in enumerate(tasks) for part in stage(folder, subtask, frames)]
        batches = list(read_batches(folder, parts, 0))
        staged = [value for frames in tasks for values in frames for value in values if value]
        assert [value for _, frame, _ in batches for value in frame["value"].to_list()] == staged
        assert sum(part.rows for part in parts) == len(staged)
        assert [number for number, _, _ in batches] == list(range(sum(part.batches for part in parts)))
        start = data.draw(st.integers(0, len(batches)))
        again = [(number, frame["value"].to_list()) for number, frame, _ in read_batches(folder, parts, start)]
        assert again == [(number, frame["value"].to_list()) for number, frame, _ in batches[start:]]


def test_wide_rows_make_small_batches(tmp_path):
    """A transaction holds whole batches, so none may be much larger than said."""
    folder = staging_folder(str(tmp_path))
    (part,) = stage(folder, 0, [[os.urandom(100_000)] * 100])
    sizes = [size for _, _, size in read_batches(folder, [part], 0)]
    assert len(sizes) == part.batches > 3
    assert max(sizes) <= staging.BATCH_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_changed_or_is_gone_is_not_published(kind, tmp_path, monkeypatch):
    """Neither is a reason to try again at once."""
    folder = at(kind, tmp_path, monkeypatch)
    (part,) = stage(folder, 0, [[b"a"]])
    with pytest.raises(CorruptDataError, match="instead of 2"):
        list(read_batches(folder, [msgspec.structs.replace(part, batches=2)], 0))
    (tmp_path / ".staging" / part.file).write_bytes(b"torn")
    with pytest.raises(CorruptDataError, match="not what was staged"):
        list(read_batches(folder, [part], 0))
    remove_staged(folder, {part.file})
    assert folder.staged() == [part.file]
    remove_staged(folder, set())
    with pytest.raises(StagedFileError, match="by its id") as raised:
        list(read_batches(folder, [part], 0))
    assert not raised.value.retryable
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_runs_of_two_folders_share_a_store_without_sharing_a_place(tmp_path):
    """What one of them removes as a leftover must not be what another one has just staged; nothing relative is taken."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, second = (RunManifests(tmp_path / name, "s3://bucket/staged/") for name in ("one", "two"))
    assert first.staging.startswith("s3://bucket/staged/")
    assert first.staging != second.staging
    assert RunManifests(tmp_path / "one", "s3://bucket/staged").staging == first.staging
    assert RunManifests(tmp_path / "one").staging == str(tmp_path / "one")
    with pytest.raises(UsageError, match="absolute path"):
        RunManifests(tmp_path, "shared")


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_fails_leaves_nothing(kind, tmp_path, monkeypatch):
    """A row that cannot be a record fails the task; what it had staged is removed."""

    class Strict:
        def encode(self, frame: pl.DataFrame) -> Encoded:
            raise BadRecordError("too large")

    context = WriteContext("n1-write", 0, "execution-0", 0, lambda: 0)
    stager = RecordStager(at(kind, tmp_path, monkeypatch), Strict(), ENCODED, context, partition=0)
    with pytest.raises(BadRecordError):
        stager.write(pl.DataFrame({"value": [b"x"]}, schema=ENCODED.polars()))
    stager.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_wide_rows_are_handed_on_early():
    """A task gathers some MiB for an edge, however few rows that is."""
    schema = Schema((Field("text", STRING),))
    outputs = StageOutputs(
        [StageEdge(JobEdge("v0", Link("n0", None, ()), "rebalance", schema_to_json(schema), event_time=False), 2, 240)],
        0,
    )
    outputs.edges[0].rows(pl.DataFrame({"text": ["x" * (BATCH_BYTES // 4)] * 3}))
    assert list(outputs.drain()) == []
    outputs.edges[0].rows(pl.DataFrame({"text": ["x" * (BATCH_BYTES // 4)]}))
    assert [batch.num_rows for batch in outputs.drain()] == [4]


def test_the_plan_says_when_rows_of_a_sink_are_seen(tmp_path):
    """By the driver, by a commit, or as tasks write them."""
    p = Pipeline("sinks")
    read = p.read(iterables.Source([{"a": 1}], schema=pa.schema({"a": pa.int64()})))
    read.write(kafka.Sink("once"))
    read.write(kafka.Sink("again", delivery="at-least-once"))
    read.write(files.Sink(tmp_path))
    graph = batch_graph(p.plan, 2)
    shown = explain_stages(graph, p.plan, ways(graph, p.plan, native=True), [])
    assert "staged by tasks, published once per run by the driver; exactly-once" in shown
    assert "seen as tasks write them; at-least-once" in shown
    assert "commits once per run; exactly-once" in shown


def test_the_plan_says_the_mode_of_rows_between_stages():
    """Nothing of facts."""
    p = Pipeline("modes")
    rows = p.read(iterables.Source([{"a": 1}], schema=pa.schema({"a": pa.int64()})))
    totals = rows.key_by("a").agg(n=count())
    totals.key_by("n").agg(keys=count()).write(collecting.Sink())
    graph = batch_graph(p.plan, 2)
    shown = explain_stages(graph, p.plan, ways(graph, p.plan, native=True), [])
    ways_between = [line.split(", ")[0].strip() for line in shown.splitlines() if " <- " in line]
    assert ways_between == ["<- v0 shuffle by a", "<- v1 shuffle by a (upsert)", "<- v2 shuffle by n (retract)"]


class Topic:
    """A sink whose producers share an id per job: rows and mark are visible together, or not at all."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.mark: Any = None
        self.epoch = 0

    def publisher(self, _context: PublishContext) -> Any:
        return Producer(self)


class Producer:
    """The newest one may commit."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def init_producer(self) -> None:
        self._topic.epoch += 1
        self._epoch = self._topic.epoch

    async def read_mark(self) -> Any:
        return self._topic.mark

    async def commit(self, frames: list[pl.DataFrame], mark: Any) -> None:
        assert self._epoch == self._topic.epoch, "fenced"
        self._topic.rows += [row for frame in frames for row in frame["value"].to_list()]
        self._topic.mark = mark


def test_a_driver_that_was_thought_dead_does_not_touch_what_the_next_step_published(tmp_path):
    """It had looked at its step before another one carried it to its end: the next step stays published, once."""
    topic, over = Topic(), set[int]()

    def step(number: int, values: list[int]) -> tuple[StagedSink, Path]:
        folder = tmp_path / f"{number:08d}"
        staging_folder(str(folder)).open()
        table = pa.table({"value": values})
        with pa.OSFile(str(folder / ".staging/part"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        parts = (StagedPart("part", 0, 1, len(values)),)
        sink: Any = topic
        return StagedSink(
            "p", f"job-{number}", "sink", sink, parts, str(folder), SystemClock(), "job", lambda: number in over
        ), folder  # fmt: skip

    first, second = step(1, [1, 2]), step(2, [3])
    publish(*first)
    over.add(1)
    forget(*first)
    publish(*second)
    with pytest.raises(PipelineError, match="run job-1: another process has carried this step to its end"):
        publish(*first)
    publish(*second)
    assert topic.rows == [1, 2, 3]
