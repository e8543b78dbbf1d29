"""An exchange in memory and sinks' clusters that lose answers: what tests of publishing are made of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from penstock.connectors.base import ProducerFencedError, PublishedMark
from penstock.errors import ExternalError
from penstock.protocol.frames import Channel, Frame, FrameKind
from penstock.protocol.manifests import Interval
from penstock.protocol.publishing import FramesRead, Mark, ProducerEpoch, PublisherMachine, ReadFrames
from penstock.task.publish_loop import PublishHooks, PublishLoop


class NoWait:
    """A clock on which waiting takes no time."""

    def __init__(self) -> None:
        self._now_ms = 0

    def now_us(self) -> int:
        return self._now_ms * 1_000

    def monotonic_ms(self) -> int:
        return self._now_ms

    def monotonic_us(self) -> int:
        return self._now_ms * 1_000

    async def sleep_ms(self, duration_ms: int) -> None:
        self._now_ms += duration_ms
        await asyncio.sleep(0)


@dataclass
class Exchange:
    """One partition: frames of several attempts."""

    frames: list[tuple[Frame, pl.DataFrame]] = field(default_factory=list)
    _seqs: dict[str, int] = field(default_factory=dict)

    def rows(self, attempt: str, numbers: Sequence[int]) -> None:
        """Append a DATA frame whose values are these numbers."""
        self._add(attempt, FrameKind.DATA, pl.DataFrame({"value": [str(n).encode() for n in numbers]}))

    def barrier(self, attempt: str, checkpoint: int = 1) -> int:
        """Append the BARRIER of a checkpoint; returns the offset behind it."""
        nothing = pl.DataFrame({"value": []}, schema={"value": pl.Binary})
        self._add(attempt, FrameKind.BARRIER, nothing, checkpoint)
        return len(self.frames)

    def _add(self, attempt: str, kind: FrameKind, frame: pl.DataFrame, checkpoint: int = 0) -> None:
        seq = self._seqs[attempt] = self._seqs.get(attempt, -1) + 1
        header = Frame(kind, attempt, Channel(0, 0), seq, rows=frame.height, checkpoint=checkpoint)
        self.frames.append((header, frame))

    async def read(self, command: ReadFrames) -> FramesRead:
        """As a publisher reads it, two frames at a time."""
        end = min(command.end, command.start + 2)
        found = [(n, n + 1, *self.frames[n], 0) for n in range(command.start, end)]
        return FramesRead(found, end)


class FakeCluster:
    """A sink's cluster: producers, one mark, records that are committed."""

    def __init__(self, seed: int = 0, trouble: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.trouble = trouble
        self.epoch = 0
        self.mark: PublishedMark | None = None
        self.records: list[bytes] = []
        self.commits = 0

    def hesitates(self) -> bool:
        return self.random.random() < self.trouble


class FakePublisher:
    """A publisher on the fake cluster: every step may fail before or after it has happened."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._epoch = -1
        self.closed = False

    async def open(self) -> None:
        self._doubt("open")

    async def init_producer(self) -> ProducerEpoch:
        self._doubt("InitProducerId, not done")
        self._cluster.epoch += 1
        self._epoch = self._cluster.epoch
        await asyncio.sleep(0)
        self._doubt("InitProducerId, done")
        return ProducerEpoch(*divmod(self._epoch, 5))

    async def read_mark(self) -> PublishedMark | None:
        await asyncio.sleep(0)
        self._doubt("mark")
        return self._cluster.mark

    async def commit(self, frames: Sequence[pl.DataFrame], mark: PublishedMark) -> None:
        await asyncio.sleep(0)
        self._doubt("commit, not done")
        if self._epoch != self._cluster.epoch:
            raise ProducerFencedError("fenced")
        self._cluster.records += [value for frame in frames for value in frame["value"]]
        self._cluster.mark = mark
        self._cluster.commits += 1
        self._doubt("commit, done")

    async def close(self) -> None:
        self.closed = True

    def _doubt(self, step: str) -> None:
        if self._cluster.hesitates():
            raise ExternalError(f"no answer: {step}")


class Running:
    """A loop that runs until a test stops it."""

    task: asyncio.Future[None]

    async def until(self, condition: Any, deadline_s: float = 30) -> None:
        """Wait for a condition; raises what the loop raised."""
        async with asyncio.timeout(deadline_s):
            while not condition():
                if self.task.done():
                    self.task.result()
                await asyncio.sleep(0.001)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Run(Running):
    """A publish loop of one attempt, and what it said."""

    def __init__(
        self, publisher: Any, exchange: Exchange, number: int, intervals: Sequence[Interval] | None = None,
        *, restored: int = 0, start: int = 0, clock: Any = None, seed: int = 0, waits: Any = lambda _: None,
    ) -> None:  # fmt: skip
        """`intervals` None: nothing of this generation can be published, the mark begins at `start`."""
        self.published = 0
        self.marks: list[Mark] = []
        jitter = random.Random(seed)
        machine = PublisherMachine(
            number, jitter.randrange, restored=restored, first_position=start if intervals is None else None
        )
        hooks = PublishHooks(
            exchange.read, lambda ref: ref, lambda mark, *_: self.marks.append(mark), self._published, waits
        )
        self.loop = PublishLoop(machine, publisher, clock or NoWait(), hooks)
        self.task = asyncio.ensure_future(self.loop.run(intervals or ()))

    def _published(self, checkpoint: int) -> None:
        self.published = checkpoint
