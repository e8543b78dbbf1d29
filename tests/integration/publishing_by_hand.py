"""What every publisher keeps, whatever it publishes to: driven by hand, from an exchange in memory."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import pytest
from tests.unit.task.publishing_parts import Exchange, Run

from penstock.adapters.system_clock import SystemClock
from penstock.connectors.base import ProducerFencedError, PublishedMark
from penstock.errors import ExternalError
from penstock.protocol.manifests import Interval
from penstock.protocol.publishing import Mark
from penstock.task.publish_loop import encode_mark

FIRST: Final = "a" * 32


class Publishes(Protocol):
    """A destination of a test."""

    def publisher(self) -> Any:
        """A publisher of frames that have a column `value`."""
        ...


class Target(Publishes, Protocol):
    """One that shows what is visible."""

    def numbers(self) -> list[int]:
        """All values, in order."""
        ...


async def published(target: Publishes, exchange: Exchange, *, frames: int = 4) -> tuple[Run, Interval]:
    """A first attempt that has published its first checkpoint."""
    run = Run(target.publisher(), exchange, 1, clock=SystemClock())
    await run.until(lambda: run.marks)
    for n in range(frames):
        exchange.rows(FIRST, range(10 * n, 10 * n + 10))
    covered = Interval(FIRST, 0, exchange.barrier(FIRST), 1)
    run.loop.covered([covered])
    await run.until(lambda: run.published == 1)
    return run, covered


def checkpoints(exchange: Exchange, number: int) -> list[Interval]:
    """So many of the first attempt, each with ten rows: those of number n are 10 n and the ones behind it."""
    intervals: list[Interval] = []
    start = 0
    for checkpoint in range(1, number + 1):
        exchange.rows(FIRST, range(10 * checkpoint, 10 * checkpoint + 10))
        intervals.append(Interval(FIRST, start, start := exchange.barrier(FIRST, checkpoint), checkpoint))
    return intervals


async def check_rows_are_visible_once(target: Target) -> None:
    """And the mark says how far; a second attempt goes on behind it."""
    exchange = Exchange()
    run, covered = await published(target, exchange)
    await run.stop()
    exchange.rows(FIRST, range(40, 45))
    newer = Interval(FIRST, covered.end, exchange.barrier(FIRST, 2), 2)
    second = Run(target.publisher(), exchange, 2, [covered, newer], restored=2, clock=SystemClock())
    await second.until(lambda: second.published == 2)
    await second.stop()
    assert target.numbers() == list(range(45))


async def check_doubt_changes_nothing(
    target: Target, publisher: Any, turns: int, before: Callable[[int, Any], Awaitable[None]]
) -> None:
    """A publisher that does not know what became of its transactions finds out from the mark.

    Args:
        target: where it publishes.
        publisher: of that.
        turns: the number of each transaction counts from 0 to this; of number 2 the answer is lost.
        before: called with the number and the frames before each; may let it fail, wholly or in part.
    """
    exchange, commit, numbers = Exchange(), publisher.commit, itertools.count()

    async def doubtful(frames: Any, mark: PublishedMark) -> None:
        turn = next(numbers) % turns
        await before(turn, frames)
        await commit(frames, mark)
        if turn == 2:
            raise ExternalError("no answer")

    publisher.commit = doubtful
    target.publisher = lambda: publisher  # type: ignore[method-assign]
    run, _ = await published(target, exchange, frames=12)
    await run.stop()
    assert target.numbers() == list(range(120))


async def check_a_stopped_publisher_is_refused(target: Target) -> None:
    """Before its transaction another one starts: what it commits never becomes visible."""
    exchange = Exchange()
    run, _ = await published(target, exchange)
    await run.stop()
    stopped, newer = target.publisher(), target.publisher()
    granted = []
    for publisher in (stopped, newer, newer):
        await publisher.open()
        granted.append(await publisher.init_producer())
    assert [later.follows(earlier) for earlier, later in itertools.pairwise(granted)] == [True, True]
    assert not granted[2].follows(granted[0])
    with pytest.raises(ProducerFencedError, match="has started"):
        await stopped.commit([exchange.frames[0][1]], encode_mark(Mark(99, 9, 1)))
    assert await newer.read_mark() == await stopped.read_mark()
    await stopped.close()
    await newer.close()
    assert target.numbers() == list(range(40))


async def check_kills_change_nothing(
    target: Target, number: int, every: int, kill: Callable[[], Awaitable[None]]
) -> None:
    """While so many checkpoints are published the destination is killed and started again, behind every so many."""
    exchange = Exchange()
    run = Run(target.publisher(), exchange, 1, clock=SystemClock())
    await run.until(lambda: run.marks)
    intervals = checkpoints(exchange, number)
    for turn, interval in enumerate(intervals, 1):
        run.loop.covered(intervals[:turn])
        if turn % every == 0:
            await kill()
        await run.until(lambda interval=interval: run.published >= interval.checkpoint - 3)
    await run.until(lambda: run.published == number)
    await run.stop()
    assert target.numbers() == list(range(10, 10 * number + 10))
