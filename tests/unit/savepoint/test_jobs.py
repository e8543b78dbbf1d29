"""Savepoints of whole jobs: stopped anywhere, read, copied, edited, and continued to the very rows of one run."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    Context,
    KeyedContext,
    KeyedProcess,
    ListState,
    MapState,
    OperatorListState,
    Pipeline,
    Process,
    UnionListState,
    ValueState,
    col,
    count,
    savepoint,
    session,
    tumbling,
)
from penstock.adapters.directory.blobs import DirectoryBlobs
from penstock.adapters.memory import MemoryBlobs
from penstock.connectors import collecting, iterables
from penstock.coordination.job_catalog import JobCatalog
from penstock.embedded import CURRENT, EmbeddedJob, EmbeddedSettings, JobResult
from penstock.errors import CorruptDataError, UsageError
from penstock.graph.jobgraph import build_job_graph
from penstock.protocol.joblog import Submit
from penstock.savepoint import objects
from penstock.savepoint.operators import parts_of
from penstock.savepoint.transfer import export_savepoint, import_savepoint
from penstock.submission.admission import check_compatible

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 10_000
SLOWLY = 400.0
"""Rows per second of what is to be stopped long before its end, which is 25 s away: a busy machine needs ten to begin."""


@dataclass
class Event:
    key: int
    value: int
    at: datetime


@dataclass
class Note:
    key: int
    total: int
    names: int
    items: int
    what: str


def events() -> Iterable[Event]:
    """A row a second, with a pause of a minute after each hundred."""
    return (Event(n % 7, n, START + timedelta(seconds=n + 60 * (n // 100))) for n in range(ROWS))


class Totals(KeyedProcess[Event, Note]):
    total = ValueState(int)
    names = MapState(str, int)
    items = ListState(int)

    def on_row(self, row: Event, ctx: KeyedContext[Note]) -> None:
        self.total.set(self.total.get(0) + row.value)
        self.names.set(f"n{row.value % 10}", row.value)
        self.items.add(row.value)
        if row.value % 4 == 0:
            self.items.update(self.items.get()[-2:])
        ctx.event_timer(row.at.replace(minute=59, second=59))
        names, items = sum(self.names.values()), sum(self.items.get())
        ctx.emit(Note(row.key, self.total.get(0), names, items, "row"))

    def on_timer(self, at: datetime, ctx: KeyedContext[Note]) -> None:
        ctx.emit(Note(at.hour, 0, 0, 0, "timer"))


class Seen(Process[Event, Event]):
    """Keeps the numbers of some rows in lists without key."""

    rows = OperatorListState(int)
    marks = UnionListState(int)

    def on_row(self, row: Event, ctx: Context[Event]) -> None:
        if row.value % 10 == 0:
            self.rows.add(row.value)
        if row.value % 25 == 0:
            self.marks.add(row.value)
        ctx.emit(row)


@dataclass
class Job:
    """A pipeline and what it collected."""

    pipeline: Pipeline
    sinks: dict[str, collecting.Sink]

    def rows(self) -> dict[str, Counter[str]]:
        return {name: Counter(map(str, sink.rows)) for name, sink in self.sinks.items()}


def declare(rate: float | None = None, sinks: dict[str, collecting.Sink] | None = None) -> Job:
    """Windows, sessions, a process with every kind of state and timers, a list without key.

    A job that continues another one is given its sinks: they know which rows they have.
    """
    p = Pipeline("tables")
    sinks = sinks or {name: collecting.Sink() for name in ("windows", "sessions", "totals")}
    source = p.read(iterables.Source(events, schema=Event, event_time="at", rate=rate)).uid("source")
    keyed = source.process(Seen()).uid("seen").key_by("key")
    aggregates = {"n": count(), "total": col("value").sum()}
    keyed.window(tumbling("100s")).agg(**aggregates).uid("windows").write(sinks["windows"])
    keyed.window(session("30s")).agg(**aggregates).uid("sessions").write(sinks["sessions"])
    keyed.process(Totals()).uid("totals").write(sinks["totals"])
    return Job(p, sinks)


def embedded(job: Job, directory: Path, parallelism: int, interval_ms: int = 10_000) -> EmbeddedJob:
    return EmbeddedJob(
        job.pipeline, directory, EmbeddedSettings(parallelism, checkpoint_interval_ms=interval_ms, durable=False)
    )


async def stop(job: Job, directory: Path, parallelism: int, checkpoints: int, folder: Path) -> None:
    """Run until some checkpoints are complete, stop, and export the last one."""
    engine = embedded(job, directory, parallelism, 30)
    running = asyncio.create_task(engine.run(resume=False))
    async with asyncio.timeout(60):
        while not running.done() and not (engine.started and len(engine.progress.completed_checkpoints) >= checkpoints):
            await asyncio.wait([running], timeout=0.005)
        engine.suspend()
        result = await running
    assert result.state == "SUSPENDED", (result.state, result.reason, result.error)
    found = await engine.find()
    assert found is not None
    assert found.history.restore is not None
    await export_savepoint(DirectoryBlobs(directory / "blobs"), found.history.restore, folder)


async def go_on(job: Job, folder: Path, directory: Path, parallelism: int) -> JobResult:
    """A new job in an empty directory that begins with a savepoint, as `submit --from-savepoint` makes it."""
    blobs = DirectoryBlobs(directory / "blobs")
    restore = await import_savepoint(blobs, folder)
    graph = build_job_graph(job.pipeline.plan, parallelism)
    check_compatible(graph, savepoint.read(folder).manifest)
    submit = Submit(seq=0, nonce="n", job=uuid.uuid4().hex, name="tables", graph=graph.to_json(), restored_from=restore)
    await JobCatalog(blobs).create(submit)
    await blobs.put(CURRENT, submit.job.encode())
    return await embedded(job, directory, parallelism).run(resume=True)


def finish(job: Job, folder: Path, directory: Path, parallelism: int) -> None:
    result = asyncio.run(go_on(job, folder, directory, parallelism))
    assert result.state == "FINISHED", (result.state, result.reason, result.error)


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[str, Counter[str]]:
    """The rows of one run without interruption."""
    job = declare()
    result = asyncio.run(embedded(job, tmp_path_factory.mktemp("whole"), 1).run(resume=False))
    assert result.state == "FINISHED", (result.state, result.reason, result.error)
    return job.rows()


def copy_of(sp: savepoint.Savepoint) -> savepoint.EditedSavepoint:
    """Everything replaced by what it is."""
    edited = sp.edit()
    for uid in ("windows", "sessions"):
        edited.replace(uid, None, sp.table(uid))
    for uid, state in (
        *(("totals", name) for name in sp.operator("totals").states),
        ("seen", "rows"),
        ("seen", "marks"),
    ):
        edited.replace(uid, state, sp.table(uid, state))
    return edited.replace_timers("totals", sp.timers("totals")).replace_splits("source", sp.splits("source"))


@settings(max_examples=4, deadline=None)
@given(before=st.integers(1, 2), after=st.integers(1, 2), checkpoints=st.integers(1, 5))
def test_a_copy_continues_to_exactly_the_same_rows(expected, before, after, checkpoints):
    """Stopped at some checkpoint; tables are what the rows read so far come to; the copy gives the rest of one run."""
    with tempfile.TemporaryDirectory() as root:
        base, job = Path(root), declare(SLOWLY)
        asyncio.run(stop(job, base / "first", before, checkpoints, base / "kept"))
        sp = savepoint.read(base / "kept")
        read = list(itertools.islice(events(), position(sp)))
        assert 0 < len(read) < ROWS
        totals: Counter[int] = Counter()
        for row in read:
            totals[row.key] += row.value
        assert dict(sp.table("totals", "total").rows()) == dict(totals)
        assert sorted(sp.table("seen", "rows")["value"]) == [row.value for row in read if row.value % 10 == 0]
        assert sorted(sp.table("seen", "marks")["value"]) == [row.value for row in read if row.value % 25 == 0]
        open_windows = sp.table("windows")
        assert open_windows["__p0"].sum() <= len(read)
        copied = copy_of(sp).write(base / "copy")
        assert sorted(copied.table("seen", "marks")["value"]) == sorted(sp.table("seen", "marks")["value"])
        assert (copied.job, copied.checkpoint, copied.parallelism) == (sp.job, sp.checkpoint, before)
        assert copied.splits().equals(sp.splits())
        assert copied.watermarks().equals(sp.watermarks())
        finish(declare(sinks=job.sinks), base / "copy", base / "second", after)
    assert job.rows() == expected


def position(sp: savepoint.Savepoint) -> int:
    """How many rows the source had read."""
    (text,) = sp.splits()["position"].to_list()
    return int(text)


def test_edited_state_is_what_the_results_come_from(expected, tmp_path):
    """Totals of one key are raised by a million: exactly its rows after the savepoint show it. Windows likewise."""
    job = declare(SLOWLY)
    asyncio.run(stop(job, tmp_path / "first", 2, 2, tmp_path / "kept"))
    sp = savepoint.read(tmp_path / "kept")
    raised = pl.when(pl.col("key") == 3).then(1_000_000).otherwise(0)
    windows = sp.table("windows")
    assert windows.height
    edited = sp.edit()
    edited.replace("totals", "total", sp.table("totals", "total").with_columns(pl.col("value") + raised))
    edited.replace("windows", None, windows.with_columns(pl.col("__p1") - 10**9))
    edited.write(tmp_path / "edited")
    published = {name: len(sink.rows) for name, sink in job.sinks.items()}
    finish(declare(sinks=job.sinks), tmp_path / "edited", tmp_path / "second", 1)
    after = [row for row in job.sinks["totals"].rows[published["totals"] :] if row["what"] == "row"]
    assert {row["total"] >= 1_000_000 for row in after if row["key"] == 3} == {True}
    for row in after:
        if row["key"] == 3:
            row["total"] -= 1_000_000
    changed = [row for row in job.sinks["windows"].rows if row["total"] < 0]
    assert len(changed) == windows.height
    for row in changed:
        row["total"] += 10**9
    assert job.rows() == expected


def test_a_source_can_be_sent_back(tmp_path):
    """A split with another position is read again from there; what a table does not say stays."""
    job = declare(SLOWLY)
    asyncio.run(stop(job, tmp_path / "first", 1, 2, tmp_path / "kept"))
    sp = savepoint.read(tmp_path / "kept")
    splits = sp.splits("source")
    assert splits["watermark"].null_count() == 0
    at_end = splits.select("split", position=pl.lit(str(ROWS - 5)))
    sent = sp.edit().replace_splits("source", at_end).write(tmp_path / "sent")
    assert sent.splits().drop("position").equals(splits.drop("position"))
    published = len(job.sinks["totals"].rows)
    finish(declare(sinks=job.sinks), tmp_path / "sent", tmp_path / "second", 1)
    assert len([row for row in job.sinks["totals"].rows[published:] if row["what"] == "row"]) == 5
    for wrong, message in [
        (splits.with_columns(position=pl.lit("{")), "is no JSON"),
        (pl.concat([splits, splits]), "names a split twice"),
        (splits.drop("position"), "'position' is missing"),
    ]:
        with pytest.raises(UsageError, match=message):
            sp.edit().replace_splits("source", wrong)


async def test_a_savepoint_in_a_store_reads_like_one_in_a_folder(tmp_path):
    """By the key of its manifest, also where an event loop runs; a wrong key says where to look."""
    await stop(declare(SLOWLY), tmp_path / "first", 2, 2, tmp_path / "kept")
    blobs = MemoryBlobs()
    restore = await import_savepoint(blobs, tmp_path / "kept")
    there, here = savepoint.read(restore.manifest, store=blobs), savepoint.read(tmp_path / "kept")
    for uid, state in (("windows", None), ("sessions", None), ("totals", None), ("totals", "items"), ("seen", "rows")):
        assert there.table(uid, state).equals(here.table(uid, state))
    assert there.timers("totals").equals(here.timers("totals"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_WHOLE_BYTES", 0)  # every object is a large one
        patch.setattr(objects, "_PART_BYTES", 100)
        in_parts = savepoint.read(restore.manifest, store=blobs)
        assert in_parts.table("totals").equals(here.table("totals"))
        key = next(part.keyed.key for part in parts_of(in_parts.manifest, "windows") if part.keyed)
        await blobs.put(key, (await blobs.get(key))[:-1] + b"?")
        with pytest.raises(CorruptDataError, match="checksum"):
            in_parts.table("windows")
        await blobs.delete(key)
        with pytest.raises(CorruptDataError, match="missing"):
            in_parts.table("windows")
        restore = await import_savepoint(blobs, tmp_path / "kept")
    there.edit().write(tmp_path / "copy")
    assert savepoint.read(tmp_path / "copy").table("totals").equals(here.table("totals"))
    with pytest.raises(UsageError, match="penstock checkpoints JOB"):
        savepoint.read("jobs/nothing/manifest.json", store=blobs)


def test_reading_needs_no_client_of_a_cluster():
    """A folder is read where only the library is installed."""
    program = "import sys, penstock.savepoint\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"aiokafka", "confluent_kafka", "redis", "obstore", "boto3", "httpx2"} & set(done.stdout.split())
