"""Reading partitions of Kafka: many readers, few requests, no reader waiting for another's long poll.

Kafka answers the requests of one connection one after another, so a long poll blocks its connection. aiokafka's
consumer has one connection per broker: a partition added while it polls waits for the poll's end, and taking
partitions in and out drops what was fetched. Here the wants of all readers are sent over a few connections (lanes):

* readers that do not wait share lane 0, whose requests are answered at once;
* waiting readers are taken together by the next free lane, whose poll ends with the first record of any of them. All
  lanes but one may poll for long. The last free one polls briefly, so that a reader who comes meanwhile waits
  `LONGEST_SHORT_POLL_MS` at most; once another lane is free again, the wants of both go into one long poll.
* long polls of a process end at the same moments, and what they wanted goes on in one: else every reader that was
  served apart from the others would keep a lane of its own for ever, and those who come then the one for short polls.

No state ties a reader to the fetcher: a read names its offset, so reading back, stopping and starting cost nothing.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from aiokafka import errors
from aiokafka.protocol.fetch import FetchRequest

from penstock.adapters.kafka.chunks import Chunk, ChunkStore, Partition, decode
from penstock.adapters.kafka.connection import KafkaConnection

LONG_POLL_MS: Final = 1_000
"""How far the moments are apart at which long polls end."""
SHORT_POLL_MS: Final = 10
LONGEST_SHORT_POLL_MS: Final = 40
"""What it grows to while it brings nothing."""
LANES: Final = 12
"""Connections per broker that poll for waiting readers, at most. With four, a reader of a busy job often found none free
but the last, and waited for it: a checkpoint, which crosses several readers, took a third longer."""
SMALLEST_FETCH_BYTES: Final = 256 << 10
"""Readers that ask for less are served from what was fetched for them before."""
OVERDUE_MS: Final = 50
"""An answer that has been due for so long is not waited for by those who would have gone on with it."""
QUIET_S: Final = 2 * LONG_POLL_MS / 1_000
"""A broker that has answered nothing for so long is not taken for one that has nothing."""
ANSWER_BYTES: Final = 32 << 20
"""Bound of one answer, over all its partitions."""
_FIRST_LANE: Final = 100
_READ_UNCOMMITTED: Final = 0


@dataclass(slots=True, eq=False)
class _Want:
    """Somebody wants the records of a partition from `offset` on. `answer` gives a chunk, or None: nothing there yet."""

    partition: Partition
    offset: int
    max_bytes: int
    waits: bool
    answer: asyncio.Future[Chunk | None]
    position: int
    readers: int = 0
    starved: bool = False
    """The last answer was full before it came to this partition."""
    certain: bool = False
    """There are records, so that a reader who does not wait may take part too."""

    def resolve(self, chunk: Chunk | None) -> None:
        if not self.answer.done():
            self.answer.set_result(chunk)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # it may be that nobody looks any more


@dataclass(slots=True, eq=False)
class _Broker:
    """The wants for one broker and its lanes. Lane 0 is for those that do not wait."""

    node: int
    wanted: dict[_Want, None] = field(default_factory=dict[_Want, None])
    busy: dict[int, float] = field(default_factory=dict[int, float])
    """Lanes with a request under way; when its answer is due at the latest."""
    pumping: bool = False
    looks_again: bool = False
    short_poll_ms: int = SHORT_POLL_MS
    heard_s: float = -inf
    """When it answered last."""


class KafkaFetcher:
    """Fetches for all reads of one log."""

    def __init__(self, connection: KafkaConnection, chunks: ChunkStore) -> None:
        self._connection = connection
        self._chunks = chunks
        self._brokers: dict[int, _Broker] = {}
        self._wants: dict[tuple[Partition, int], _Want] = {}
        """Those that readers may share: all that wait."""
        self._requests: set[asyncio.Task[None]] = set()
        self._origin_s = time.monotonic()
        """One of the moments at which long polls end: those of other processes are others."""

    async def fetch(
        self, node: int, partition: Partition, offset: int, max_bytes: int, timeout_s: float
    ) -> Chunk | None:
        """The records from `offset` on, or None if there were none within the timeout.

        A broker that stands still, or that cannot be reached, says nothing either: what it has is not known before its
        next answer, which is waited for.

        Raises:
            KafkaError, OSError, TimeoutError: the broker's refusal or the lack of an answer.
            CorruptDataError: a checksum does not match.
        """
        want = self._want(node, partition, offset, max_bytes, waits=timeout_s > 0)
        want.readers += 1
        try:
            # Without a timeout of its own where the reader does not wait: the broker answers at once.
            await asyncio.wait([want.answer], timeout=timeout_s if timeout_s > 0 else None)
        finally:
            want.readers -= 1
        if not want.answer.done() and self._is_quiet(node):
            await asyncio.wait([want.answer])
        return want.answer.result() if want.answer.done() else None

    def _is_quiet(self, node: int) -> bool:
        broker = self._brokers.get(node)
        return broker is None or time.monotonic() - broker.heard_s > QUIET_S

    def prefetch(self, node: int, partition: Partition, offset: int, max_bytes: int) -> None:
        """Begin to fetch what is known to be there and will be asked for next."""
        self._want(node, partition, offset, max_bytes, waits=True).certain = True

    def fail_topic(self, topic: str, error: BaseException) -> None:
        """End the waiting of all readers of the topic."""
        for want in [want for want in self._wants.values() if want.partition[0] == topic]:
            self._forget(want)
            want.fail(error)

    async def close(self, error: BaseException) -> None:
        """End all waiting and all requests."""
        for want in list(self._wants.values()):
            self._forget(want)
            want.fail(error)
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    def _want(self, node: int, partition: Partition, offset: int, max_bytes: int, *, waits: bool) -> _Want:
        want = self._wants.get((partition, offset))
        if want is None or not (waits or want.certain):
            answer = asyncio.get_running_loop().create_future()
            want = _Want(partition, offset, max(max_bytes, SMALLEST_FETCH_BYTES), waits, answer, offset)
            broker = self._brokers.setdefault(node, _Broker(node))
            if waits:
                self._wants[partition, offset] = want
            broker.wanted[want] = None
            self._pump_soon(broker)
        return want

    def _forget(self, want: _Want) -> None:
        if want.waits:
            self._wants.pop((want.partition, want.offset), None)
        for broker in self._brokers.values():
            broker.wanted.pop(want, None)

    def _pump_soon(self, broker: _Broker) -> None:
        if not broker.pumping:  # once per turn of the loop: what is wanted in one turn goes out together
            broker.pumping = True
            asyncio.get_running_loop().call_soon(self._pump, broker)

    def _pump(self, broker: _Broker) -> None:
        broker.pumping = False
        if 0 not in broker.busy:
            self._send(broker, 0, [want for want in broker.wanted if not want.waits], 0)
        while waiting := [want for want in broker.wanted if want.waits]:
            free = [lane for lane in range(1, LANES + 1) if lane not in broker.busy]
            if not free:
                return
            if self._ends_soon(broker):
                self._look_again(broker)
                return  # what is under way ends soon, and then all go together
            if len(free) > 1:
                broker.short_poll_ms = SHORT_POLL_MS
                self._send(broker, free[0], waiting, self._long_poll_ms())
            else:
                self._send(broker, free[0], waiting, broker.short_poll_ms)
                broker.short_poll_ms = min(2 * broker.short_poll_ms, LONGEST_SHORT_POLL_MS)

    @staticmethod
    def _ends_soon(broker: _Broker) -> bool:
        """Whether a lane is about to be free."""
        now_s = time.monotonic()
        due_s = [due_s - now_s for lane, due_s in broker.busy.items() if lane]
        return any(-OVERDUE_MS <= 1_000 * left_s <= SHORT_POLL_MS for left_s in due_s)

    def _look_again(self, broker: _Broker) -> None:
        """Whatever becomes of the answer that is due."""
        if not broker.looks_again:
            broker.looks_again = True
            after_s = (SHORT_POLL_MS + OVERDUE_MS + 1) / 1_000
            asyncio.get_running_loop().call_later(after_s, self._looked_again, broker)

    def _looked_again(self, broker: _Broker) -> None:
        broker.looks_again = False
        self._pump(broker)

    def _long_poll_ms(self) -> int:
        """Until the next moment at which long polls end."""
        left_ms = LONG_POLL_MS - round(1_000 * (time.monotonic() - self._origin_s)) % LONG_POLL_MS
        return left_ms if left_ms > 2 * SHORT_POLL_MS else left_ms + LONG_POLL_MS

    def _send(self, broker: _Broker, lane: int, wants: list[_Want], poll_ms: int) -> None:
        taken: dict[Partition, _Want] = {}
        for want in sorted(wants, key=lambda want: not want.starved):
            taken.setdefault(want.partition, want)  # Kafka takes a partition once per request
        if not taken:
            return
        for want in taken.values():
            del broker.wanted[want]
        broker.busy[lane] = time.monotonic() + poll_ms / 1_000
        request = asyncio.create_task(self._request(broker, lane, taken, poll_ms))
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)

    async def _request(self, broker: _Broker, lane: int, wants: dict[Partition, _Want], poll_ms: int) -> None:
        try:
            answer = await self._connection.ask(broker.node, _fetch_request(wants, poll_ms), _FIRST_LANE + lane)
            broker.heard_s = time.monotonic()
            for topic, partitions in answer.topics:
                for index, code, partition_end, *_, data in partitions:
                    self._answered(broker, wants.pop((topic, index)), code, partition_end, data)
            for want in wants.values():
                self._failed(want, errors.KafkaConnectionError(f"the broker's answer lacks {want.partition}"))
        except asyncio.CancelledError:
            for want in wants.values():
                self._failed(want, errors.KafkaConnectionError("the request was cancelled"))
            raise
        except Exception as error:  # whatever it is, the readers must hear of it and not this task alone
            for want in wants.values():
                self._failed(want, error)
        finally:
            del broker.busy[lane]
            self._pump_soon(broker)

    def _answered(self, broker: _Broker, want: _Want, code: int, partition_end: int, data: Any) -> None:
        if code:
            self._failed(want, errors.for_code(code)(f"{want.partition[0]}/{want.partition[1]}"))
            return
        try:
            chunk = decode(want.partition, want.offset, data or b"", partition_end)
        except Exception as error:  # whatever it is, the reader must hear of it
            self._failed(want, error)
            return
        if chunk.records:
            broker.short_poll_ms = SHORT_POLL_MS
            self._forget(want)
            self._chunks.keep(want.partition, chunk)
            want.resolve(chunk)
            return
        more = partition_end > max(chunk.end, want.position)
        want.starved = more and chunk.end <= want.position
        want.position = max(chunk.end, want.position)
        if more or (want.waits and want.readers and not want.answer.done()):
            broker.wanted[want] = None
        else:
            self._forget(want)
            want.resolve(None)

    def _failed(self, want: _Want, error: BaseException) -> None:
        self._forget(want)
        want.fail(error)


def _fetch_request(wants: dict[Partition, _Want], poll_ms: int) -> FetchRequest:
    topics: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, partition), want in wants.items():
        topics.setdefault(topic, []).append((partition, want.position, want.max_bytes))
    return FetchRequest(poll_ms, 1, ANSWER_BYTES, _READ_UNCOMMITTED, list(topics.items()))
