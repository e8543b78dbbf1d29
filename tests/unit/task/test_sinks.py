"""What an attempt removes of a sink before its writers open, and what it proves before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from penstock import Pipeline
from penstock.adapters.memory import MemoryBlobs
from penstock.adapters.system_clock import SystemClock
from penstock.connectors import files, iterables
from penstock.connectors.base import SinkWriter, WriteContext
from penstock.coordination.job_store import JobStore
from penstock.errors import ProtocolError
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.write import Write
from penstock.protocol.joblog import (
    AnyRecord,
    Begin,
    JobHistory,
    Leader,
    Savepoint,
    Submit,
    Terminated,
    encode_record,
    log_key,
)
from penstock.protocol.manifests import Manifest, manifest_key
from penstock.protocol.messages import Deploy, Restore, SubtaskId
from penstock.task.sinks import are_visible, prepare_sink
from penstock.types import INT64, Field, Schema

JOB = "j"
SCHEMA = Schema((Field("i", INT64),))


class Log:
    """The job's log in a store that does something when it is asked for its newest record."""

    def __init__(self) -> None:
        self.history = JobHistory()
        self.blobs = MemoryBlobs()
        self.store = JobStore(self, SystemClock())  # pyright: ignore[reportArgumentType] (get and list are all it needs)
        self.meanwhile: Callable[[], Any] | None = None

    async def append(self, record: AnyRecord) -> None:
        self.history.apply(record)
        await self.blobs.create(log_key(JOB, record.seq), encode_record(record))

    async def begin(self, number: int) -> None:
        await self.append(
            Begin(
                seq=self.history.next_seq, attempt=str(number) * 32, attempt_number=number, restore=None, parallelism=1,
                generation=0, start_offsets={},
            )
        )  # fmt: skip

    async def list(self, prefix: str) -> list[str]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await self.blobs.list(prefix)

    async def get(self, key: str) -> bytes:
        return await self.blobs.get(key)

    async def put(self, key: str, data: bytes) -> None:
        await self.blobs.put(key, data)

    async def delete(self, key: str) -> None:
        await self.blobs.delete(key)


@pytest.fixture
async def log() -> Log:
    """The log of a job whose first attempt has begun."""
    log = Log()
    await log.append(Submit(seq=0, job=JOB, name="n", graph={}))
    await log.append(Leader(seq=1, epoch=1))
    await log.begin(1)
    return log


def deploy(number: int, restore: Restore | None = None) -> Deploy:
    return Deploy(
        epoch=1, job=JOB, attempt=str(number) * 32, attempt_number=number, subtask=SubtaskId("v", 0), worker="w",
        generation=0, restore=restore, start_offset=0,
    )  # fmt: skip


def plan_of(folder: Path) -> tuple[LogicalPlan, str, str]:
    """A pipeline into a folder that replaces what is there; the operator and the node of its sink."""
    pipeline = Pipeline("p")
    pipeline.read(iterables.Source([{"i": 1}], schema=SCHEMA)).write(files.Sink(folder, existing="replace"))
    node = next(node for node in pipeline.plan if isinstance(node.operation, Write))
    return pipeline.plan, node.operator_id, node.id


def writer_of(plan: LogicalPlan, node: str, operator: str, number: int) -> SinkWriter:
    """The sink's writer in an attempt."""
    operation = plan.node(node).operation
    assert isinstance(operation, Write)
    context = WriteContext(operator, 0, str(number) * 32, number, lambda: 0)
    return operation.sink.open(plan.node(node).schema, context)


def stage(writer: SinkWriter) -> Any:
    """One part of a row."""
    writer.write(pl.DataFrame({"i": [1]}))
    [committable] = writer.prepare(1).committables
    return committable


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*") if path.is_file()}


async def test_a_new_job_makes_room_and_removes_what_dead_attempts_staged(tmp_path: Path, log: Log) -> None:
    """As long as its attempt is the newest; with a compacted log, too."""
    plan, operator, node = plan_of(tmp_path)
    stage(writer_of(plan, node, operator, 1))
    await log.begin(2)
    own = stage(writer_of(plan, node, operator, 2))
    (tmp_path / "part-old.jsonl").touch()
    await log.store.compact(JOB, log.history)
    await prepare_sink(operator, node, plan, deploy(2), None, log.store)
    assert names(tmp_path) == set()
    assert names(tmp_path / ".staging") == {own["staged"]}


@pytest.mark.parametrize("ended", [False, True])
async def test_an_attempt_that_is_not_the_newest_removes_nothing(tmp_path: Path, log: Log, ended: bool) -> None:
    """Neither what it found nor, above all, what a newer attempt or job stages and shows while it looks."""
    plan, operator, node = plan_of(tmp_path)
    stage(writer_of(plan, node, operator, 1))
    before = names(tmp_path / ".staging")

    async def superseded() -> None:
        if ended:
            await log.append(Terminated(seq=log.history.next_seq, state="CANCELED"))
        else:
            await log.begin(2)
        newer = writer_of(plan, node, operator, 2)
        newer.commit(stage(newer))
        stage(newer)

    log.meanwhile = superseded
    reason = "the job has ended" if ended else "attempt 2 has begun"
    with pytest.raises(ProtocolError, match=f"attempt 1 is no longer the newest: {reason}"):
        await prepare_sink(operator, node, plan, deploy(1), None, log.store)
    assert before < names(tmp_path / ".staging")
    assert len(names(tmp_path)) == 1


async def test_what_begins_after_the_question_is_not_removed(tmp_path: Path, log: Log) -> None:
    """The answer may be old when the removal comes: it removes by name what was found before the question."""
    plan, operator, node = plan_of(tmp_path)
    stage(writer_of(plan, node, operator, 9))
    shown = list[Any]()
    (tmp_path / "part-old.jsonl").touch()

    async def go_on() -> None:
        newer = writer_of(plan, node, operator, 1)
        shown.append(stage(newer))
        newer.commit(shown[0])

    log.meanwhile = go_on
    await prepare_sink(operator, node, plan, deploy(1), None, log.store)
    assert names(tmp_path) == {shown[0]["visible"]}
    assert names(tmp_path / ".staging") == {shown[0]["proof"]}, "the earlier job's part has the higher number"


async def test_parts_of_another_jobs_savepoint_are_visible(log: Log) -> None:
    """A savepoint is on record only once all is published; of any other checkpoint that is not certain."""
    key = manifest_key(JOB, "1" * 32, 3, "n" * 8)
    restore = Restore(3, key, "s")
    manifest = Manifest(
        job=JOB, checkpoint=3, attempt="1" * 32, parallelism=1, max_parallelism=8, subtasks={}, operators={}
    )
    theirs = deploy(1, restore)
    ours = msgspec.structs.replace(theirs, job="k")
    assert not await are_visible(manifest, ours, log.store)
    await log.append(
        Savepoint(seq=log.history.next_seq, checkpoint=3, manifest=key, sha256="s", request="r", published=True)
    )
    assert await are_visible(manifest, ours, log.store)
    assert not await are_visible(manifest, theirs, log.store)
    imported = msgspec.structs.replace(ours, restore=Restore(3, "imported/0/manifest.json", "s"))
    assert await are_visible(manifest, imported, log.store)
