"""The loop of a split on a sink's cluster that loses answers, and with an older attempt that goes on."""

from __future__ import annotations

import asyncio
import random

import polars as pl
import pytest
from tests.unit.task.publishing_parts import FakeCluster, FakePublisher, NoWait, Running

from penstock.connectors.base import PublishedMark
from penstock.errors import CorruptDataError
from penstock.protocol.split_publishing import Offered, SplitMark, SplitPublisherMachine
from penstock.task.split_publishing import SplitLoop, decode_split_mark, encode_split_mark
from penstock.task.transaction_loop import PATIENCE_MS


class Attempt(Running):
    """A loop that is offered the rows of a split from where its mark stands."""

    def __init__(self, cluster: FakeCluster, number: int, seed: int) -> None:
        self.machine = SplitPublisherMachine(number, random.Random(seed).randrange, 0)
        self.clock = NoWait()
        self.loop = SplitLoop(self.machine, FakePublisher(cluster), self.clock, lambda *_: None, lambda: None)
        self.task = asyncio.ensure_future(self.loop.run())
        self._position: int | None = None

    async def read(self, count: int) -> None:
        """So many rows more."""
        await self.until(lambda: self.machine.announced)
        start = self.machine.position if self._position is None else self._position
        self._position = start + count
        values = [str(number).encode() for number in range(start, start + count)]
        self.loop.tell(Offered((pl.DataFrame({"value": values}),), start + count))


@pytest.mark.parametrize("seed", range(40))
async def test_every_row_once_whatever_answer_is_lost(seed: int) -> None:
    """Doubts at every step, and an older attempt that is told nothing: rows of the split once and in order."""
    cluster = FakeCluster(seed, trouble=0.25)
    older = Attempt(cluster, 1, seed)
    for _ in range(3):
        await older.read(4)
    await older.until(lambda: cluster.records)
    newer = Attempt(cluster, 2, seed)
    await newer.until(lambda: newer.machine.announced)
    for _ in range(5):
        await older.read(3)
        await newer.read(5)
    await newer.until(lambda: newer.machine.covered == 5)
    await older.stop()
    await newer.stop()
    numbers = [int(record) for record in cluster.records]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 25


def test_marks_survive_and_others_are_told() -> None:
    """The number stands as the position, the rest beside it."""
    mark = SplitMark(7, 3, {"offset": 12, "end": None})
    assert decode_split_mark(encode_split_mark(mark)) == mark
    with pytest.raises(CorruptDataError, match="the mark of this split is unreadable"):
        decode_split_mark(PublishedMark(7, "{}"))


async def test_doubts_far_apart_do_not_add_up() -> None:
    """Between them nothing was in doubt, only nothing was to be published."""
    cluster = FakeCluster()
    attempt = Attempt(cluster, 1, 0)
    await attempt.read(1)
    await attempt.until(lambda: attempt.machine.covered == 1)
    for _ in range(3):
        cluster.trouble = 1.0
        await attempt.read(1)
        await attempt.until(lambda: attempt.loop.waits_for)
        cluster.trouble = 0.0
        await attempt.until(lambda: attempt.machine.covered == attempt.machine.offered)
        await attempt.clock.sleep_ms(PATIENCE_MS)
    await attempt.stop()
