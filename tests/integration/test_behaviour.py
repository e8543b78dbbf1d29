"""What a run does when pipelines change, code fails, checkpoints fail, and inputs are of unusual shapes."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from embedded_runs import counted, finish, newest, rows, run, settings
from pipelines import Event, source

from penstock import (
    KeyedContext,
    KeyedProcess,
    Pipeline,
    Process,
    ValueState,
    col,
    count,
    session,
    tumbling,
)
from penstock.connectors import collecting, console, files, generate, iterables, sockets
from penstock.connectors.base import ExistingRowsError
from penstock.connectors.files.writing import FileWriter
from penstock.embedded import EmbeddedJob, JobResult
from penstock.errors import BadRecordError, ExternalError, IncompatibleStateError, UserCodeError
from penstock.task import snapshots

START = datetime(2026, 1, 1, tzinfo=UTC)


def event(number: int, seconds: float = 0.0) -> Event:
    return Event(number, str(number % 3), number, START + timedelta(seconds=seconds or number))


def suspend_after(pipeline: Pipeline, directory: Path, checkpoints: int = 2) -> JobResult:
    """Run until so many checkpoints are complete, then stop at one more."""

    async def until() -> JobResult:
        job = EmbeddedJob(pipeline, directory, settings(interval_ms=10))
        running = asyncio.create_task(job.run(resume=False))
        while not running.done():
            if job.started and len(job.progress.completed_checkpoints) >= checkpoints:
                job.suspend()
                break
            await asyncio.wait([running], timeout=0.002)
        return await running

    result = asyncio.run(until())
    assert result.state == "SUSPENDED", result
    return result


# -- a pipeline that changed --------------------------------------------------------------------------------------------


class Totals(KeyedProcess[Event, Event]):
    total = ValueState(int)

    def on_row(self, row: Event, ctx: KeyedContext[Event]) -> None:
        self.total.set(self.total.get(0) + row.value)
        ctx.emit(Event(row.number, row.key, self.total.get(0), row.at))


class TextTotals(KeyedProcess[Event, Event]):
    total = ValueState(str)

    def on_row(self, row: Event, ctx: KeyedContext[Event]) -> None:
        ctx.emit(row)


SLOWLY = 250.0
"""Rows per second of what is to be suspended: that happens at its second checkpoint, long before the end."""


def windows(out: Path, window: Any = None, key: str = "key", rate: float | None = None, **aggregates: Any) -> Pipeline:
    p = Pipeline("changing")
    keyed = p.read(source(rate)).uid("events").key_by(key)
    windowed = keyed.window(window or tumbling("10s")).agg(**(aggregates or {"n": count()})).uid("by-key")
    windowed.write(files.Sink(out)).uid("out")
    return p


def totals(out: Path, process: KeyedProcess[Event, Event], rate: float | None = None) -> Pipeline:
    p = Pipeline("changing")
    p.read(source(rate)).key_by("key").process(process).uid("by-key").write(files.Sink(out))
    return p


def without_windows(out: Path) -> Pipeline:
    p = Pipeline("changing")
    p.read(source(None)).uid("events").write(files.Sink(out)).uid("out")
    return p


CHANGES: dict[str, tuple[Callable[..., Pipeline], Callable[[Path], Pipeline]]] = {
    "window size": (windows, lambda out: windows(out, tumbling("20s"))),
    "kind of window": (windows, lambda out: windows(out, session("10s"))),
    "aggregate": (windows, lambda out: windows(out, n=col("value").sum())),
    "key": (windows, lambda out: windows(out, key="value")),
    "removed operator": (windows, without_windows),
    "type of a state": (lambda out, rate=None: totals(out, Totals(), rate), lambda out: totals(out, TextTotals())),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_does_not_fit_the_state_is_refused(change: str, tmp_path: Path) -> None:
    """The error names the operator, nothing runs, and the unchanged pipeline still goes on."""
    before, after = CHANGES[change]
    suspend_after(before(tmp_path / "out", rate=SLOWLY), tmp_path / "state")
    there = counted(rows(tmp_path / "out"))
    try:
        result = run(after(tmp_path / "out"), tmp_path / "state", resume=True)
        refused = result.error
    except IncompatibleStateError as error:
        refused = error
    assert isinstance(refused, IncompatibleStateError)
    assert "by-key" in str(refused)
    assert counted(rows(tmp_path / "out")) == there
    finish(before(tmp_path / "out"), tmp_path / "state", resume=True)


def test_a_filter_may_be_added_where_operators_have_uids(tmp_path: Path) -> None:
    """State is found again by uid; a filter that lets everything through changes no row."""

    def filtered(out: Path) -> Pipeline:
        p = Pipeline("changing")
        keyed = p.read(source(None)).uid("events").filter(col("value") >= 0).key_by("key")
        keyed.window(tumbling("10s")).agg(n=count()).uid("by-key").write(files.Sink(out)).uid("out")
        return p

    suspend_after(windows(tmp_path / "out", rate=SLOWLY), tmp_path / "state")
    finish(filtered(tmp_path / "out"), tmp_path / "state", settings(2), resume=True)
    finish(windows(tmp_path / "expected"), tmp_path / "reference")
    assert counted(rows(tmp_path / "out")) == counted(rows(tmp_path / "expected"))


# -- code that fails ----------------------------------------------------------------------------------------------------


def fragile(out: Path, state: Path | None) -> Pipeline:
    """Fails as soon as there is a complete checkpoint in `state`."""

    def check(row: Event) -> Event:
        if state is not None and row.number % 20 == 0 and completes(state):
            raise ValueError("no such number")
        return row

    p = Pipeline("fragile")
    read = p.read(source(1_000 if state else None)).map(check)
    read.key_by("key").window(tumbling("10s")).agg(n=count()).write(files.Sink(out))
    return p


def completes(state: Path) -> bool:
    return any(b'"Complete"' in path.read_bytes() for path in state.glob("blobs/jobs/*/log/0*"))


@pytest.mark.parametrize("parallelism", [1, 2])
def test_after_the_fix_the_run_goes_on_from_its_newest_checkpoint(tmp_path: Path, parallelism: int) -> None:
    """A failed job stays failed; --resume begins another one from where it was, also at another parallelism."""
    state = tmp_path / "state"
    failed = run(fragile(tmp_path / "out", state), state, settings(parallelism, 20))
    assert failed.state == "FAILED"
    assert isinstance(failed.error, UserCodeError)
    assert isinstance(failed.error.__cause__, ValueError)
    assert "check raised ValueError: no such number" in failed.reason
    again = run(fragile(tmp_path / "out", state), state, settings(parallelism, 20), resume=True)
    assert again.state == "FAILED"
    fixed = finish(fragile(tmp_path / "out", None), state, settings(3 - parallelism), resume=True)
    assert fixed.job == failed.job
    assert fixed.progress.restored
    finish(fragile(tmp_path / "expected", None), tmp_path / "reference")
    assert counted(rows(tmp_path / "out")) == counted(rows(tmp_path / "expected"))


def test_a_bad_row_fails_the_job_by_default(tmp_path: Path) -> None:
    """With file and line in the error."""
    (tmp_path / "in.jsonl").write_text('{"number": 1}\n')
    p = Pipeline("strict")
    p.read(files.Source(tmp_path / "in.jsonl", schema=Event)).write(console.Sink(stream=io.StringIO()))
    failed = run(p, tmp_path / "state")
    assert isinstance(failed.error, BadRecordError)
    assert "in.jsonl, line 1" in failed.reason


class Escaping(Process[Event, Event]):
    """Ends the process, or tries to."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_row(self, row, ctx):
        raise self.error


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [SystemExit(0), pl.exceptions.PanicException("boom")])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_would_end_the_process_fails_the_job(tmp_path: Path, error: BaseException, asynchronous: bool) -> None:
    """The user's `sys.exit()`, or a panic within Polars, is no end of the run without an error."""

    async def escape(row: Event) -> Event:
        raise error

    p = Pipeline("escaping")
    events = p.read(iterables.Source([event(1)], schema=Event))
    escaped = events.map_async(escape) if asynchronous else events.process(Escaping(error))
    escaped.write(console.Sink(stream=io.StringIO()))
    failed = run(p, tmp_path / "state")
    assert isinstance(failed.error, UserCodeError)
    assert f"{type(error).__name__}: {error}" in failed.reason


def test_a_run_clears_the_store_of_the_one_before_and_keeps_its_folder(tmp_path: Path) -> None:
    """A dashboard that was started first reads it meanwhile; a store that is gone would be an error."""
    p = Pipeline("again")
    p.read(iterables.Source([event(1)], schema=Event)).write(files.Sink(tmp_path / "out", existing="replace"))
    finish(p, tmp_path / "state")
    store = tmp_path / "state" / "blobs"
    leftover = store / "leftover"
    leftover.touch()
    inode = store.stat().st_ino
    before = {path.name for path in (store / "jobs").iterdir()}
    finish(p, tmp_path / "state")
    assert store.stat().st_ino == inode
    assert not before & {path.name for path in (store / "jobs").iterdir()}
    assert not leftover.exists()


# -- checkpoints and commits --------------------------------------------------------------------------------------------


def copied(out: Path, rate: float | None = None) -> Pipeline:
    p = Pipeline("copied")
    p.read(source(rate)).select("number").write(files.Sink(out))
    return p


def test_a_commit_that_fails_fails_the_job_and_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was staged for the complete checkpoint becomes visible when the job goes on, once."""
    commit, failures = FileWriter.commit, iter([True])

    def once(self: FileWriter, committable: Any) -> None:
        if next(failures, False):
            raise ExternalError("no rename today")
        commit(self, committable)

    monkeypatch.setattr(FileWriter, "commit", once)
    failed = run(copied(tmp_path / "out", SLOWLY), tmp_path / "state", settings(interval_ms=20))
    assert (failed.state, failed.reason) == ("FAILED", "v0[0]: no rename today")
    assert rows(tmp_path / "out") == []
    finish(copied(tmp_path / "out"), tmp_path / "state", settings(2), resume=True)
    assert sorted(row["number"] for row in rows(tmp_path / "out")) == list(range(3_000))


def test_a_checkpoint_that_cannot_be_written_is_declined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three in a row are tolerated; with the fourth the job fails and says why, and goes on from the one before."""
    upload, calls = snapshots.upload, itertools.count()

    async def fails_from_the_third(*arguments: Any, **named: Any) -> Any:
        if next(calls) >= 2:
            raise OSError(28, "No space left on device")
        return await upload(*arguments, **named)

    monkeypatch.setattr("penstock.task.subtask_checkpoints.upload", fails_from_the_third)
    failed = run(copied(tmp_path / "out", SLOWLY), tmp_path / "state", settings(interval_ms=20))
    assert failed.state == "FAILED"
    assert "No space left on device" in failed.reason
    assert "checkpoint 6" in failed.reason
    monkeypatch.setattr("penstock.task.subtask_checkpoints.upload", upload)
    finish(copied(tmp_path / "out"), tmp_path / "state", resume=True)
    assert sorted(row["number"] for row in rows(tmp_path / "out")) == list(range(3_000))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_at_least_once_loses_nothing(tmp_path: Path, parallelism: int) -> None:
    """Suspended and resumed without alignment every row is there at least once; the plan says so."""
    p = windows(tmp_path / "out")
    how = settings(parallelism, 10, at_least_once=True)
    job = EmbeddedJob(p, tmp_path / "state", how)
    [sink] = [operator for operator in job.graph.operators() if operator.verb == "write"]
    assert sink.guarantee == "at-least-once: barriers are not aligned in this mode"
    suspend_after(windows(tmp_path / "out", rate=SLOWLY), tmp_path / "state")
    finish(p, tmp_path / "state", how, resume=True)
    found = newest(rows(tmp_path / "out"), "key", "window_start")
    assert sum(row["n"] for row in found.values()) >= 3_000


# -- inputs of unusual shapes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("count_of_rows", [0, 1])
def test_an_input_with_no_row_or_one(tmp_path: Path, parallelism: int, count_of_rows: int) -> None:
    """The job ends, with as many windows; also where most subtasks own no split."""
    lines = [json.dumps({"number": 1, "key": "a", "value": 1, "at": START.isoformat()}) + "\n"] * count_of_rows
    (tmp_path / "in.jsonl").write_text("".join(lines))
    p = Pipeline("small")
    read = p.read(files.Source(tmp_path / "in.jsonl", schema=Event, event_time="at"))
    read.key_by("key").window(tumbling("1m")).agg(n=count()).write(files.Sink(tmp_path / "out"))
    finish(p, tmp_path / "state", settings(parallelism, 5))
    assert [row["n"] for row in rows(tmp_path / "out")] == [1] * count_of_rows


@pytest.mark.parametrize("parallelism", [1, 2])
def test_sources_that_end_at_different_times(tmp_path: Path, parallelism: int) -> None:
    """The one that ended holds nothing back, and checkpoints go on through it."""
    quick = [event(number) for number in range(10)]
    slow = [event(number) for number in range(200)]
    p = Pipeline("unequal")
    both = p.read(iterables.Source(quick, event_time="at")).union(
        p.read(iterables.Source(slow, event_time="at", rate=100))
    )
    both.key_by("key").window(tumbling("30s")).agg(n=count()).write(files.Sink(tmp_path / "out"))
    result = finish(p, tmp_path / "state", settings(parallelism, 20))
    found = rows(tmp_path / "out")
    assert sum(row["n"] for row in found) == 210
    assert len(found) == 21
    assert len(result.progress.completed_checkpoints) > 2
    assert len(list((tmp_path / "out").glob("part-*"))) > parallelism, "windows came only at the end"


def test_an_idle_split_holds_nothing_back(tmp_path: Path) -> None:
    """A source that is silent is left out of the watermark after `idle_after`: windows of the other fire."""

    def silent() -> Iterator[Event]:
        yield event(0)

    def lively() -> Iterator[Event]:
        yield from (event(number) for number in range(1, 200))

    sink = collecting.Sink()
    p = Pipeline("idle")
    quiet = p.read(iterables.Source(silent, schema=Event, event_time="at", idle_after="50ms", rate=0.8))
    other = p.read(iterables.Source(lively, schema=Event, event_time="at", rate=400))
    quiet.union(other).key_by("key").window(tumbling("10s")).agg(n=count()).write(sink)

    async def watch() -> tuple[int, int]:
        job = EmbeddedJob(p, tmp_path / "state", settings(interval_ms=20))
        running = asyncio.create_task(job.run(resume=False))
        early = 0
        while not running.done():
            await asyncio.wait([running], timeout=0.01)
            source_states = (
                [s.state for i, s in job.progress.statuses.items() if i.vertex == "v0"] if job.started else []
            )
            if "ended" not in source_states:
                early = max(early, len(sink.rows))
        assert (await running).state == "FINISHED"
        [window] = [operator.id for operator in job.graph.operators() if operator.verb == "window"]
        return early, job.progress.total(window, "late_rows")

    early, late = asyncio.run(watch())
    assert early >= 10, "no window fired while the silent source was idle"
    assert sum(row["n"] for row in sink.rows) + late == 200, "the silent source's row may be late, but is counted"


async def cancelled_once(job: EmbeddedJob, seen: Callable[[], bool]) -> None:
    """Run a job without end until something was seen, then cancel it; both within a deadline."""
    running = asyncio.create_task(job.run(resume=False))
    async with asyncio.timeout(60):
        while not seen():
            assert not running.done(), running
            await asyncio.wait([running], timeout=0.01)
        running.cancel()
        await asyncio.wait([running])


def test_more_subtasks_than_splits_without_end_hold_nothing_back(tmp_path: Path) -> None:
    """A subtask that reads nothing is not waited for: windows come out while the source goes on."""

    def numbered(numbers: Any) -> dict[str, Any]:
        return {"n": numbers, "at": [START + timedelta(seconds=number) for number in numbers.tolist()]}

    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    sink = collecting.Sink()
    p = Pipeline("more-subtasks")
    p.read(generate.Source(numbered, schema=schema, rate=2_000, splits=2, event_time="at")).key_by("n").window(
        tumbling("10s")
    ).agg(rows=count()).write(sink)
    asyncio.run(cancelled_once(EmbeddedJob(p, tmp_path / "state", settings(3, 20)), lambda: bool(sink.rows)))


class Endless(KeyedProcess[Event, Event]):
    """A timer that sets itself for a moment that is over."""

    fired = 0

    def on_row(self, row: Event, ctx: KeyedContext[Event]) -> None:
        ctx.event_timer(START)

    def on_timer(self, at: datetime, ctx: KeyedContext[Event]) -> None:
        type(self).fired += 1
        ctx.event_timer(at)


def test_a_job_whose_timers_never_end_can_be_cancelled(tmp_path: Path) -> None:
    """Timers fire in parts, between which a cancellation is heard."""
    p = Pipeline("endless")
    p.read(iterables.Source([event(1), event(2)], event_time="at", rate=1)).key_by("key").process(Endless()).write(
        collecting.Sink()
    )
    asyncio.run(cancelled_once(EmbeddedJob(p, tmp_path / "state", settings()), lambda: Endless.fired > 20_000))


class Reminder(KeyedProcess[Event, Event]):
    """Emits its newest row 30 ms (wall time) after a key's first."""

    newest = ValueState(Event)

    def on_row(self, row: Event, ctx: KeyedContext[Event]) -> None:
        if self.newest.get() is None:
            ctx.processing_timer(ctx.processing_time + timedelta(milliseconds=30))
        self.newest.set(row)

    def on_timer(self, at: datetime, ctx: KeyedContext[Event]) -> None:
        row = self.newest.get()
        assert row is not None
        ctx.emit(row)
        self.newest.clear()


def reminders(out: Path, rate: float) -> Pipeline:
    p = Pipeline("reminders")
    events = [event(number) for number in range(150)]
    p.read(iterables.Source(events, event_time="at", rate=rate)).key_by("key").process(Reminder()).write(
        files.Sink(out)
    )
    return p


@pytest.mark.parametrize("parallelism", [1, 2])
def test_processing_time_timers_fire_and_survive_a_restart(tmp_path: Path, parallelism: int) -> None:
    """Timers fire while rows come, and those of a snapshot after the restore."""
    suspend_after(reminders(tmp_path / "out", 50), tmp_path / "state")
    before = len(rows(tmp_path / "out"))
    finish(reminders(tmp_path / "out", 300), tmp_path / "state", settings(parallelism, 20), resume=True)
    found = Counter(row["key"] for row in rows(tmp_path / "out"))
    assert len(rows(tmp_path / "out")) > before
    assert set(found) == {"0", "1", "2"}


# -- other ends ---------------------------------------------------------------------------------------------------------


@contextmanager
def server(lines: list[str]) -> Iterator[int]:
    """A server that sends these lines to whoever connects, then closes."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write("".join(line + "\n" for line in lines).encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield listening.server_address[1]
        finally:
            listening.shutdown()
            thread.join()


@dataclass
class Word:
    word: str


def test_lines_from_a_socket_to_the_terminal(tmp_path: Path) -> None:
    """The source ends with the connection; the guarantee says that it cannot be read again."""
    stream = io.StringIO()
    with server(['{"word": "a"}', '{"word": "b"}']) as port:
        p = Pipeline("words")
        read = p.read(sockets.Source("127.0.0.1", port, schema=Word))
        read.write(console.Sink(label="w", stream=stream))
        read.write(files.Sink(tmp_path / "out"))
        job = EmbeddedJob(p, tmp_path / "plan", settings())
        guarantees = [operator.guarantee for operator in job.graph.operators() if operator.verb == "write"]
        finish(p, tmp_path / "state")
    assert stream.getvalue() == 'w> {"word":"a"}\nw> {"word":"b"}\n'
    assert [row["word"] for row in rows(tmp_path / "out")] == ["a", "b"]
    assert "console sink cannot do better" in guarantees[0]
    assert "sockets source cannot be read again" in guarantees[1]


def test_a_run_that_a_sink_refuses_costs_nothing_of_the_one_before(tmp_path: Path) -> None:
    """Its rows are there, so a second run would double them; what can be resumed stays."""
    p = Pipeline("twice")
    p.read(iterables.Source([event(1)], schema=Event)).write(files.Sink(tmp_path / "out"))
    finish(p, tmp_path / "state")
    before = set(tmp_path.rglob("*"))
    with pytest.raises(ExistingRowsError, match="out holds rows of an earlier run"):
        finish(p, tmp_path / "state")
    assert set(tmp_path.rglob("*")) == before
    assert len(rows(tmp_path / "out")) == 1


def test_a_missing_input_costs_no_earlier_result(tmp_path: Path) -> None:
    """The input is looked for before a sink that replaces makes room."""
    (tmp_path / "in.jsonl").write_text('{"word": "a"}\n')

    def declared() -> Pipeline:
        p = Pipeline("replacing")
        p.read(files.Source(tmp_path / "in.jsonl", schema=Word)).write(files.Sink(tmp_path / "out", existing="replace"))
        return p

    finish(declared(), tmp_path / "state")
    (tmp_path / "in.jsonl").unlink()
    with pytest.raises(Exception, match=r"in\.jsonl"):
        run(declared(), tmp_path / "state")
    assert len(rows(tmp_path / "out")) == 1
