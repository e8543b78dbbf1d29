"""Ports that wait until the world answers: what a coordinator has decided must be carried out, however late, and a
subtask outlives a broker that is away.

In a coordinator each job has a task of its own, so that a store that is down holds up no lease and no heartbeat; the end
of leadership cancels those tasks. Every command may be appended twice: receivers know them by epoch, attempt, checkpoint
and nonce.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import structlog

from penstock.errors import ExternalError
from penstock.ports import Blobs, Clock, Log, LogRecord, NewRecord

PAUSE_MS: Final = 200
MAX_PAUSE_MS: Final = 5_000
TELL_AFTER_S: Final = 3.0
_A_MOMENT_S: Final = 0.05
REPEAT_S: Final = 30.0

T = TypeVar("T")
Waiting = Callable[[str], None]
"""Is told what is waited for and why, and with an empty text that it is over."""

_log = structlog.get_logger("penstock.coordinator")


async def retry_until_done(
    what: str,
    clock: Clock,
    ask: Callable[[], Awaitable[T]],
    bound_ms: int | None = None,
    waiting: Waiting | None = None,
) -> T:
    """Ask until there is an answer; errors that say what is the case (`retryable` is false) come through.

    So does the last one once there has been no answer for `bound_ms`.
    """
    pause_ms = PAUSE_MS
    told = _Told(what, clock, waiting)
    try:
        while True:
            try:
                return await ask()
            except ExternalError as error:
                if not error.retryable or (bound_ms is not None and told.waited_ms >= bound_ms):
                    raise
                told.failed(str(error))
                await clock.sleep_ms(pause_ms)
                pause_ms = min(2 * pause_ms, MAX_PAUSE_MS)
    finally:
        told.over()


class _Told:
    """Says what is waited for: soon, though the first attempt may take its time to fail, and then only now and then."""

    def __init__(self, what: str, clock: Clock, waiting: Waiting | None = None) -> None:
        self._what = what
        self._clock = clock
        self._waiting = waiting
        self._since_ms = clock.monotonic_ms()
        self._problem = "no answer yet"
        self._told = False
        self._timer = asyncio.get_running_loop().call_later(TELL_AFTER_S, self._tell_soon)

    def failed(self, problem: str) -> None:
        """An attempt was in vain."""
        self._problem = problem
        if self._waiting is not None:
            self._waiting(f"{self._what}: {problem}")
        if not self._told:
            self._timer.cancel()
            self._tell()

    def over(self) -> None:
        """It is waited for no longer."""
        self._timer.cancel()
        if self._waiting is not None:
            self._waiting("")

    @property
    def waited_ms(self) -> int:
        """For how long."""
        return self._clock.monotonic_ms() - self._since_ms

    def _tell_soon(self) -> None:
        """Not at once: where the process stood still, or virtual time has jumped, the answer may be there already."""
        self._timer = asyncio.get_running_loop().call_later(_A_MOMENT_S, self._tell)

    def _tell(self) -> None:
        self._told = True
        seconds = (self._clock.monotonic_ms() - self._since_ms) // 1_000
        _log.warning("waiting", what=self._what, seconds=seconds, error=self._problem)
        self._timer = asyncio.get_running_loop().call_later(REPEAT_S, self._tell_soon)


class RetryingBlobs:
    """A store whose reads and idempotent writes never fail for reasons that may pass; `create` answers at once."""

    def __init__(self, blobs: Blobs, clock: Clock) -> None:
        self._blobs = blobs
        self._clock = clock

    async def put(self, key: str, data: bytes) -> None:
        """The identical bytes again until that is certain."""
        await retry_until_done(f"write {key}", self._clock, lambda: self._blobs.put(key, data))

    async def create(self, key: str, data: bytes) -> None:
        """As the store does it: what an uncertain answer means is decided by the protocol."""
        await self._blobs.create(key, data)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """The object; `BlobNotFoundError` is an answer."""
        return await retry_until_done(f"read {key}", self._clock, lambda: self._blobs.get(key, start, end))

    async def list(self, prefix: str) -> list[str]:
        """The keys."""
        return await retry_until_done(f"list {prefix}", self._clock, lambda: self._blobs.list(prefix))

    async def delete(self, key: str) -> None:
        """Delete it for certain."""
        await retry_until_done(f"delete {key}", self._clock, lambda: self._blobs.delete(key))


class RetryingLog:
    """A log whose calls wait: see the module. Without a bound they do so for ever."""

    def __init__(self, log: Log, clock: Clock, bound_ms: int | None = None, waiting: Waiting | None = None) -> None:
        self._log = log
        self._clock = clock
        self._bound_ms = bound_ms
        self._waiting = waiting

    async def _insist(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        return await retry_until_done(what, self._clock, ask, self._bound_ms, self._waiting)

    @property
    def largest_record_bytes(self) -> int:
        """See `Log.largest_record_bytes`."""
        return self._log.largest_record_bytes

    async def create_topic(
        self, topic: str, partitions: int, *, compacted: bool = False, retention_ms: int | None = None
    ) -> None:
        """Create it for certain; what is there in another shape stays so, and raises `TopicMismatchError`."""
        await self._insist(
            f"create topic {topic}",
            lambda: self._log.create_topic(topic, partitions, compacted=compacted, retention_ms=retention_ms),
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete it for certain."""
        await self._insist(f"delete topic {topic}", lambda: self._log.delete_topic(topic))

    async def topics(self) -> list[str]:
        """All topics."""
        return await self._insist("list topics", self._log.topics)

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        """Append at least once."""
        return await self._insist(f"append to {topic}", lambda: self._log.append(topic, partition, records))

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 4 << 20, timeout_s: float = 0.0
    ) -> list[LogRecord]:
        """Read; an offset out of range is an answer."""
        return await self._insist(
            f"read {topic}",
            lambda: self._log.read(topic, partition, offset, max_bytes=max_bytes, timeout_s=timeout_s),
        )

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """First and next offset."""
        return await self._insist(f"offsets of {topic}", lambda: self._log.offsets(topic, partition))

    async def trim(self, topic: str, partition: int, before: int) -> None:
        """Trim for certain."""
        await self._insist(f"trim {topic}", lambda: self._log.trim(topic, partition, before))

    async def sync(self) -> None:
        """As the log does it."""
        await self._insist("sync", self._log.sync)

    async def close(self) -> None:
        """As the log does it."""
        await self._log.close()
