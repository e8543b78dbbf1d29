"""Sinks whose destination refuses a row, or is away: the one fails the run at once, neither keeps it from ending."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from penstock import Pipeline
from penstock.connectors import base, collecting, iterables
from penstock.connectors.base import Encoded, Guarantee
from penstock.connectors.gathering import GatheringWriter
from penstock.coordination.job_progress import JobResult
from penstock.embedded import EmbeddedJob, EmbeddedSettings
from penstock.errors import ExternalError, PenstockError, PipelineError, RefusedRowError
from penstock.protocol import endings
from penstock.types import Schema


@dataclass
class Event:
    n: int


class Sink(collecting.Sink):
    """What its writer is to send raises."""

    def __init__(self, problem: Callable[[], PenstockError]) -> None:
        super().__init__()
        self.sent = 0
        self.asked = asyncio.Event()
        self._problem = problem
        self._loop = asyncio.get_running_loop()

    @property
    def guarantee(self) -> Guarantee:
        return "at-least-once"

    def open(self, schema: Schema, context: base.WriteContext) -> base.SinkWriter:
        return GatheringWriter(self, self._send)

    def encode(self, frame: pl.DataFrame) -> Encoded:
        return Encoded(frame)

    async def _send(self, frames: Any) -> None:
        self.sent += 1
        self._loop.call_soon_threadsafe(self.asked.set)
        raise self._problem()


def endless() -> Iterator[Event]:
    return (Event(n) for n in itertools.count())


def job(sink: Sink, directory: Path) -> EmbeddedJob:
    pipeline = Pipeline("refused")
    pipeline.read(iterables.Source(endless, schema=Event, rate=1_000)).write(sink)
    return EmbeddedJob(pipeline, directory, EmbeddedSettings(checkpoint_interval_ms=50, durable=False))


@pytest.mark.parametrize("error", [RefusedRowError, PipelineError])
async def test_what_is_refused_fails_the_run_at_its_first_checkpoint(error: Any, tmp_path: Path) -> None:
    """It is not sent again with the next checkpoints: the run ends, and says what was refused."""
    sink = Sink(lambda: error("row 7 is refused"))
    async with asyncio.timeout(20):
        result = await job(sink, tmp_path).run(resume=False)
    assert (result.state, sink.sent) == ("FAILED", 1)
    assert "row 7 is refused" in result.reason


async def test_a_run_whose_sink_is_away_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last checkpoint cannot be taken: it goes on from the one before, and says so."""
    monkeypatch.setattr(endings, "SUSPEND_DEADLINE_MS", 200)
    sink = Sink(lambda: ExternalError("the store is away"))
    running = job(sink, tmp_path)

    async def interrupted() -> JobResult:
        run = asyncio.ensure_future(running.run(resume=False))
        await sink.asked.wait()
        running.suspend()
        return await run

    async with asyncio.timeout(20):
        result = await interrupted()
    assert result.state == "SUSPENDED"
    assert "without a last checkpoint" in result.reason
    assert "the store is away" in result.reason
