"""Reading what others write: nobody waits for ever, a bounded number at a time, and what is old is not taken for new."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from penstock.coordination.cluster_view import ClusterView
from penstock.errors import CorruptDataError, ExternalError
from penstock.ports import Clock, Metadata
from penstock.runs.run_views import PipelineView

ANSWER_S: Final = 8.0
STALE_US: Final = 5_000_000
"""A view that has not been renewed for so long: nobody is there who would."""
KEPT: Final = 10_000
BESIDE_EACH_OTHER: Final = 16
"""How many objects are read at a time."""


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V", ClusterView, PipelineView)

_log = structlog.get_logger("penstock.dispatcher")


class _Freshness:
    """Whether a view is of now. Clocks may differ between machines, so one that changes is fresh whatever its time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_us: int | None = None
        self._changed_us: int | None = None

    def is_fresh(self, view: ClusterView | PipelineView) -> bool:
        """Judge a view just read."""
        now_us = self._clock.monotonic_us()
        if self._seen_us is not None and view.seen_us != self._seen_us:
            self._changed_us = now_us
        self._seen_us = view.seen_us
        if self._changed_us is not None:
            return now_us - self._changed_us < STALE_US
        return abs(self._clock.now_us() - view.seen_us) < STALE_US


class PublishedView(Generic[V]):
    """What a leader or a service renews in Redis for everybody to see."""

    def __init__(self, metadata: Metadata, clock: Clock, key: str, kind: type[V], what: str) -> None:
        """`what` is seen in it, in words."""
        self._metadata = metadata
        self._freshness = _Freshness(clock)
        self._key = key
        self._kind = kind
        self._what = what

    async def read(self) -> V | None:
        """The view; None if nobody renews it."""
        data = await within_deadline("Redis", self._metadata.get(self._key))
        if data is None:
            return None
        try:
            view = msgspec.json.decode(data, type=self._kind)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise CorruptDataError(f"{self._what}'s view is not readable by this version: {error}") from error
        return view if self._freshness.is_fresh(view) else None

    async def if_any(self) -> V | None:
        """The same; where Redis does not answer, there is nothing to show, and what the store knows is still said."""
        try:
            return await self.read()
        except ExternalError as error:
            _log.warning(f"no view of {self._what}", error=str(error))
            return None


async def within_deadline(who: str, answer: Awaitable[T], deadline_s: float = ANSWER_S) -> T:
    """Wait for an answer, but not for ever."""
    try:
        async with asyncio.timeout(deadline_s):
            return await answer
    except TimeoutError as error:
        raise ExternalError(f"{who} does not answer within {deadline_s:.0f} s") from error


async def for_each_concurrently(items: list[K], act: Callable[[K], Awaitable[None]]) -> None:
    """Do it for all items, a bounded number at a time."""
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await act(item)

    await asyncio.gather(*(work() for _ in range(min(BESIDE_EACH_OTHER, len(items)))))


def cache_bounded(cache: dict[str, T], key: str, value: T) -> None:
    cache[key] = value
    while len(cache) > KEPT:
        del cache[next(iter(cache))]
