"""The ports in memory with delays and trouble: what their contracts allow, and no more.

What a process has sent is on its way without it: its death may come before or after, and so may the answer. `trouble` is
asked about every call and says what becomes of it:

* `error`: nothing was done, and the caller hears of no certain answer
* `lost`: it was done, and the caller hears of no certain answer
* `late`: as before, but it is done a while later
* `vanish`: (credit reports) nothing was done, and the caller believes that it was
* `conflict`: (conditional creates) refused though nothing stands there
* `slow`: it takes most of a second
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, TypeVar

from tests.simulation.shells.loop import SeededLoop, current

from penstock.adapters.memory import MemoryBlobs, MemoryLog, MemoryMetadata
from penstock.errors import ExternalError
from penstock.ports import BlobExistsError, Clock, LogRecord, NewRecord, RecordTooLargeError

T = TypeVar("T")
Trouble = Callable[[str, str], str]
"""What becomes of an action on a topic or key; empty: nothing special."""
WORLD = Context()
"""What is under way belongs to no process."""


class VirtualClock:
    """A `Clock` of the loop's time, shared by all processes."""

    def __init__(self, loop: SeededLoop) -> None:
        self._loop = loop

    def now_us(self) -> int:
        """See `Clock.now_us`."""
        return 1_700_000_000_000_000 + self.monotonic_us()

    def monotonic_ms(self) -> int:
        """See `Clock.monotonic_ms`."""
        return self.monotonic_us() // 1_000

    def monotonic_us(self) -> int:
        """See `Clock.monotonic_us`."""
        return round(self._loop.now_s * 1_000_000)

    async def sleep_ms(self, duration_ms: float) -> None:
        """See `Clock.sleep_ms`."""
        await asyncio.sleep(duration_ms / 1_000)


class Wire:
    """How calls reach the world, and answers the processes."""

    def __init__(self, loop: SeededLoop) -> None:
        self.loop = loop
        self.trouble: Trouble = lambda action, what: ""
        self.slow_s = 0.0
        self._lands_at: dict[tuple[str, str], float] = {}
        self._dropped: set[tuple[str, str]] = set()

    def delay_s(self) -> float:
        """Of one way."""
        draw = self.loop.random
        return draw.uniform(0.0005, 0.004) + (draw.uniform(0, self.slow_s) if self.slow_s else 0)

    async def call(self, action: str, what: str, work: Callable[[], T], *, in_order: bool = False) -> T:
        """Have `work` done over there; `in_order`: behind what this process has sent there before."""
        loop, process = self.loop, current()
        if loop.over:
            raise asyncio.CancelledError
        trouble = self.trouble(action, what)
        unknown = ExternalError(f"{action} {what}: no certain answer")
        answer: asyncio.Future[T] = loop.create_future()
        key = (process.name if process else "", what)
        at = loop.now_s + self.delay_s() + (loop.random.uniform(0.3, 0.95) if trouble == "slow" else 0.0)
        if in_order:
            at = self._lands_at[key] = max(at, self._lands_at.get(key, 0.0))

        def reply(result: T | None, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # pyright: ignore

        def land() -> None:
            if process is not None and not process.alive and (key in self._dropped or loop.random.random() < 0.5):
                self._dropped.add(key)
                return
            result, error = None, None
            if trouble not in ("error", "vanish"):
                try:
                    result = work()
                except ExternalError as raised:
                    error = raised
            if trouble in ("error", "lost"):
                error = unknown
            if trouble == "conflict" and action == "create":
                error = BlobExistsError(f"{what}: a conflict")
            loop.call_later(self.delay_s(), reply, result, error, context=WORLD)

        if trouble == "late":
            loop.call_later(loop.random.uniform(0.02, 0.1), reply, None, unknown, context=WORLD)
            at = loop.now_s + loop.random.uniform(0.1, 3.0)
        elif trouble == "conflict" and action == "create":
            work = _nothing  # pyright: ignore
        loop.call_at(at, land, context=WORLD)
        return await answer


def _nothing() -> None:
    """Done where nothing is to be done."""


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits for something")


class SimulatedLog(MemoryLog):
    """Records of one process to one topic land in order, but for those that are late."""

    def __init__(self, wire: Wire, most_bytes: int = 1 << 20) -> None:
        super().__init__()
        self._wire = wire
        self._most_bytes = most_bytes
        self.too_large: Callable[[str, bytes], bool] = lambda topic, value: False
        self.asked: Callable[[str, Sequence[NewRecord], str], None] = lambda topic, records, who: None
        self.landed: Callable[[str, int, Sequence[NewRecord], str], None] = lambda topic, number, records, who: None

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        """See `Log.append`."""
        process = current()
        who = process.name if process else ""
        self.asked(topic, records, who)
        most = self._most_bytes
        if any(len(record.value) > most or self.too_large(topic, record.value) for record in records):
            raise RecordTooLargeError(f"{topic}: a record is larger than {self._most_bytes} bytes")

        def work() -> int:
            end = at_once(MemoryLog.append(self, topic, partition, records))
            self.landed(topic, partition, records, who)
            return end

        return await self._wire.call("append", f"{topic}/{partition}", work, in_order=True)

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int = 4 << 20, timeout_s: float = 0.0
    ) -> list[LogRecord]:
        """See `Log.read`."""
        await self._wire.call("read", f"{topic}/{partition}", _nothing)
        return await super().read(topic, partition, offset, max_bytes=max_bytes, timeout_s=timeout_s)

    async def offsets(self, topic: str, partition: int) -> tuple[int, int]:
        """See `Log.offsets`."""
        return await self._wire.call(
            "offsets", f"{topic}/{partition}", lambda: at_once(MemoryLog.offsets(self, topic, partition))
        )


class SimulatedBlobs(MemoryBlobs):
    """Objects."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire
        self.written: Callable[[str, bytes, str], None] = lambda key, data, who: None

    def object(self, key: str) -> bytes | None:
        """As it is now, for those who look on."""
        return self._objects.get(key)

    def keys(self, prefix: str) -> list[str]:
        """As they are now, for those who look on."""
        return at_once(MemoryBlobs.list(self, prefix))

    async def put(self, key: str, data: bytes) -> None:
        """See `Blobs.put`."""
        await self._write("put", key, data)

    async def create(self, key: str, data: bytes) -> None:
        """See `Blobs.create`."""
        await self._write("create", key, data)

    async def _write(self, action: str, key: str, data: bytes) -> None:
        process = current()

        def work() -> None:
            at_once(MemoryBlobs.create(self, key, data) if action == "create" else MemoryBlobs.put(self, key, data))
            self.written(key, data, process.name if process else "")

        await self._wire.call(action, key, work)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Blobs.get`."""
        return await self._wire.call("get", key, lambda: at_once(MemoryBlobs.get(self, key, start, end)))

    async def list(self, prefix: str) -> list[str]:
        """See `Blobs.list`."""
        return await self._wire.call("list", prefix, lambda: self.keys(prefix))

    async def delete(self, key: str) -> None:
        """See `Blobs.delete`."""
        await self._wire.call("delete", key, lambda: at_once(MemoryBlobs.delete(self, key)))


class SimulatedMetadata:
    """The lease and what is shown; it may be wiped."""

    def __init__(self, wire: Wire, clock: Clock) -> None:
        self._wire = wire
        self._inner = MemoryMetadata(clock)

    def wipe(self) -> None:
        """Everything is gone."""
        self._inner._values.clear()

    def holder(self, key: str) -> str:
        """Whose a lease is now, for those who look on; empty: nobody's."""
        value = at_once(self._inner.get(key))
        return value.decode() if value is not None else ""

    async def acquire(self, key: str, value: bytes, ttl_ms: int) -> bool:
        """See `Metadata.acquire`."""
        return await self._asked("acquire", key, lambda: self._inner.acquire(key, value, ttl_ms))

    async def renew(self, key: str, value: bytes, ttl_ms: int) -> bool:
        """See `Metadata.renew`."""
        return await self._asked("renew", key, lambda: self._inner.renew(key, value, ttl_ms))

    async def release(self, key: str, value: bytes) -> bool:
        """See `Metadata.release`."""
        return await self._asked("release", key, lambda: self._inner.release(key, value))

    async def put(self, key: str, value: bytes) -> None:
        """See `Metadata.put`."""
        await self._asked("put", key, lambda: self._inner.put(key, value))

    async def get(self, key: str) -> bytes | None:
        """See `Metadata.get`."""
        return await self._asked("get", key, lambda: self._inner.get(key))

    async def _asked(self, action: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._wire.call(action, f"metadata {key}", lambda: at_once(work()))
