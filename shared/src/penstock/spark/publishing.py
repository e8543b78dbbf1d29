"""The driver publishes what tasks staged for exactly-once sinks, with the publisher and the machine of streaming.

To a publisher the parts that a run's manifest names are what a COMPLETE checkpoint covers: one interval per partition,
whose positions are numbers of batches. The transactional id follows from pipeline, run id, operator and partition, and
the mark says how far the partition is, committed together with the rows. So whoever executes the run again, after a
crash at any moment, fences the one before, reads the mark back and publishes what lies behind it.

A mark that is missing means that nothing is visible only until the first one was committed. That it was is noted in the
run's folder before any row is published: later a missing mark fails the run instead of doubling its rows.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from penstock.connectors.base import PublishContext, PublishedMark, PublishedSink, SinkPublisher
from penstock.core.blocking import run_in_thread
from penstock.errors import ExternalError, PenstockError, PipelineError
from penstock.ports import Clock
from penstock.protocol.frames import Channel, Frame, FrameKind
from penstock.protocol.manifests import Interval
from penstock.protocol.publishing import CHUNK_BYTES, FramesRead, Mark, PublisherMachine, ReadFrames
from penstock.spark.staging import StagedPart, read_batches, staging_folder
from penstock.task.publish_loop import PublishHooks, PublishLoop, decode_mark

if TYPE_CHECKING:
    import polars as pl

NOTES: Final = "publishing"
"""The folder of notes on marks in the folder of the pipeline's runs."""
_AT_A_TIME: Final = 4
"""Partitions that are published at a time; each holds a chunk or two in memory."""
_CHECKPOINT: Final = 1
"""The number of the only one there is."""
_ATTEMPT: Final = 1
"""The attempt number of every execution: all of them publish the same, so the last one to start goes on."""

_log = structlog.get_logger("penstock.spark")


@dataclass(frozen=True)
class StagedSink:
    """What a run staged for one exactly-once sink."""

    pipeline: str
    run: str
    operator: str
    sink: PublishedSink
    parts: tuple[StagedPart, ...]
    place: str
    """The folder or URL."""
    clock: Clock
    job: str = ""
    """The job of which the run is a step: its steps share transactional ids and marks. Empty: the run has its own."""
    is_over: Callable[[], bool] = lambda: False
    """Whether somebody has carried the run to its end, or cleared it away."""

    @property
    def identity(self) -> str:
        """Differs if other rows were staged: by another execution of the run, whose manifest is not this one."""
        return hashlib.sha256(msgspec.json.encode(self.parts)).hexdigest()[:32]

    @property
    def partitions(self) -> Mapping[int, tuple[StagedPart, ...]]:
        """The parts of each partition in their order."""
        numbers = sorted({part.partition for part in self.parts})
        return {number: tuple(part for part in self.parts if part.partition == number) for number in numbers}

    def context(self, partition: int) -> PublishContext:
        """Whose publisher publishes a partition."""
        count = max(part.partition for part in self.parts) + 1
        if self.job:  # the number of partitions stays as it is for most steps, and is never more than there are
            count = 1 << (count - 1).bit_length()
        name = publishing_job(self.pipeline, self.job or self.run)
        return PublishContext(name, self.operator, count if self.job else 0, partition, count, self.clock.now_us)


def publishing_job(pipeline: str, run: str) -> str:
    """What stands for the job in transactional ids and names of topics of a run."""
    return f"spark-{hashlib.sha256(f'{pipeline}/{run}'.encode()).hexdigest()[:32]}"


def publish(staged: StagedSink, folder: Path) -> None:
    """Publish everything that is not visible yet; `folder` is that of the pipeline's runs.

    Raises:
        ExternalError: a staged file or the sink's system cannot be reached.
        PipelineError: the sink refuses, or rows of this run are visible that another execution had staged.
        PublishingError: going on could double or lose rows, or there was no certain answer for minutes.
    """
    try:
        run_in_thread(_publish(staged, folder))
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


def forget(staged: StagedSink, folder: Path) -> None:
    """Remove marks and notes of a run whose end is on record. What cannot be removed is in nobody's way.

    The marks of a job's steps stay: the next step has the same.
    """
    shutil.rmtree(_notes(folder, staged.run), ignore_errors=True)
    if not staged.parts or staged.job:
        return
    try:
        run_in_thread(staged.sink.forget(staged.context(0)))
    except PenstockError as error:
        _log.warning("the marks of a finished run stay", run=staged.run, operator=staged.operator, reason=str(error))


async def _publish(staged: StagedSink, folder: Path) -> None:
    free = asyncio.Semaphore(_AT_A_TIME)
    async with asyncio.TaskGroup() as group:
        for partition, parts in staged.partitions.items():
            group.create_task(_Partition(staged, folder, partition, parts).publish(free))


class _Partition:
    """One partition of a sink: the parts of it that count, one after another."""

    def __init__(self, staged: StagedSink, folder: Path, partition: int, parts: Sequence[StagedPart]) -> None:
        self._staged = staged
        self._staging = staging_folder(staged.place)
        self._partition = partition
        self._parts = parts
        self._batches = sum(part.batches for part in parts)
        name = f"{urllib.parse.quote(staged.operator, safe='')}--{partition}"
        self._note = _notes(folder, staged.run) / name
        self._visible = asyncio.Event()

    async def publish(self, free: asyncio.Semaphore) -> None:
        """Until all is visible."""
        async with free:
            known = self._note.exists()
            first = None if known else 0
            where = f"what was staged for {self._staged.operator}[{self._partition}]"
            machine = PublisherMachine(_ATTEMPT, random.randrange, CHUNK_BYTES, first_position=first, exchange=where)
            publisher = _Guarded(self._staged.sink.publisher(self._staged.context(self._partition)), self._staged)
            hooks = PublishHooks(self._read, _frame_itself, self._committed, self._published)
            loop = PublishLoop(machine, publisher, self._staged.clock, hooks)
            async with asyncio.TaskGroup() as group:
                interval = Interval(self._staged.identity, 0, self._batches + 1, _CHECKPOINT)
                running = group.create_task(loop.run([interval]))
                await self._visible.wait()
                running.cancel()

    async def _read(self, command: ReadFrames) -> FramesRead:
        return await asyncio.to_thread(self._read_batches, command)

    def _read_batches(self, command: ReadFrames) -> FramesRead:
        """Batches from the mark on, as many as go into one transaction; behind the last one the barrier."""
        frames: list[tuple[int, int, Frame, Any, int]] = []
        position = command.start
        left = command.max_bytes
        channel = Channel(0, self._partition)
        for number, rows, size in read_batches(self._staging, self._parts, command.start):
            if number >= command.end or left <= 0:
                break
            header = Frame(FrameKind.DATA, self._staged.identity, channel, seq=number, rows=rows.height)
            frames.append((number, number + 1, header, rows, size))
            position, left = number + 1, left - size
        if position == self._batches:
            end = Frame(FrameKind.BARRIER, self._staged.identity, channel, seq=position, checkpoint=_CHECKPOINT)
            frames.append((position, position + 1, end, None, 0))
            position += 1
        return FramesRead(frames, position)

    def _committed(self, mark: Mark, rows: int, left_out: int) -> None:
        """The first mark has no rows with it: from its note on it must be there."""
        if not rows and not left_out and not self._note.exists():
            try:
                self._note.parent.mkdir(parents=True, exist_ok=True)
                self._note.touch()
                for place in (self._note, self._note.parent, self._note.parent.parent):
                    _sync(place)
            except OSError as error:
                raise ExternalError(f"cannot write {self._note}: {error}") from error

    def _published(self, checkpoint: int) -> None:
        self._visible.set()


class _Guarded:
    """A publisher that refuses a mark which was committed with other rows than those at hand; see `SinkPublisher`.

    Where the run is a step, such a mark is that of a step before: this one has none yet.
    """

    def __init__(self, publisher: SinkPublisher, staged: StagedSink) -> None:
        self._publisher = publisher
        self._staged = staged
        self.open = publisher.open
        self.init_producer = publisher.init_producer
        self.commit = publisher.commit
        self.close = publisher.close

    async def read_mark(self) -> PublishedMark | None:
        """See `SinkPublisher.read_mark`."""
        found = await self._publisher.read_mark()
        if found is not None:
            mark = decode_mark(found)
            if mark.position and mark.last_attempt != self._staged.identity:
                if self._staged.job:
                    # Whoever published before has been fenced: what it has done it has put on record.
                    if await asyncio.to_thread(self._staged.is_over):
                        raise PipelineError(
                            f"run {self._staged.run}: another process has carried this step to its end, and may have "
                            "published the next one; only one may have the folder of a job"
                        )
                    return None  # that of the step before, which was over before this one began
                raise PipelineError(
                    f"--run-id {self._staged.run}: rows of this run for {self._staged.operator} are visible that an "
                    "execution with another folder had computed; finish it where its manifest is, or give a new run "
                    "another id"
                )
        return found


def _frame_itself(ref: pl.DataFrame) -> pl.DataFrame:
    return ref


def _notes(folder: Path, run: str) -> Path:
    return folder / NOTES / run


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
