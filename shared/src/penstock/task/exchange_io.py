"""The log side of a subtask's exchanges: frames out in order and confirmed, frames in within a budget, credit, trimming.

What frames mean is decided by `penstock.protocol`; how rows become frames stands in `penstock.task.exchange`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from penstock.graph.executiongraph import credits_topic, exchange_topic
from penstock.ports import Log, NewRecord
from penstock.protocol.frames import HEADER_BYTES, Channel, Frame, decode_frame
from penstock.protocol.messages import Deploy
from penstock.protocol.outputs import OutputId
from penstock.protocol.subtask import FrameConfirmed, FrameRead
from penstock.protocol.trimming import PartitionHolds

CREDIT_REPEAT_S: Final = 10.0
"""The newest report is repeated so often, barriers or not: what got lost holds up nobody for longer."""
TRIM_S: Final = 1.0
FETCH_BYTES: Final = 8 << 20
"""How much of its partition a subtask reads ahead."""

Payload = bytes | memoryview


class CreditReport(msgspec.Struct, frozen=True):
    """A record of the credits topic: bytes processed per channel of one partition in one attempt."""

    attempt: str
    vertex: str
    partition: int
    processed: tuple[tuple[int, int, int], ...]
    """(input, producer, bytes)."""
    reached: int | None = None
    """Of the subtask of an aligned source instead: how far it has come."""


class FrameSender:
    """Appends the frames of one subtask, in order per partition. A failed append fails the attempt."""

    def __init__(self, deploy: Deploy, log: Log, confirmed: Callable[[FrameConfirmed], None]) -> None:
        self.bytes_out = 0
        self._deploy = deploy
        self._log = log
        self._confirmed = confirmed
        self._frames: deque[tuple[OutputId, Frame, Payload]] = deque()
        self._wake = asyncio.Event()

    def enqueue(self, output: OutputId, frame: Frame, payload: Payload) -> None:
        """Append this frame behind all before it."""
        self._frames.append((output, frame, payload))
        self.bytes_out += len(payload)
        self._wake.set()

    async def run(self) -> None:
        """Append whatever is enqueued; ends by cancellation."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._frames:
                batches: dict[OutputId, list[tuple[Frame, Payload]]] = {}
                while self._frames:
                    output, frame, payload = self._frames.popleft()
                    batches.setdefault(output, []).append((frame, payload))
                await asyncio.gather(*(self._append(output, frames) for output, frames in batches.items()))

    async def _append(self, output: OutputId, frames: list[tuple[Frame, Payload]]) -> None:
        topic = exchange_topic(self._deploy.job, output.exchange, self._deploy.generation)
        records = [NewRecord(frame.encode(payload)) for frame, payload in frames]
        await self._log.append(topic, output.partition, records)
        for frame, _ in frames:
            self._confirmed(FrameConfirmed(output, frame.seq))


class ExchangeReader:
    """Reads the one partition of a subtask ahead, reports credit for what was processed, trims what nobody needs."""

    def __init__(
        self,
        deploy: Deploy,
        log: Log,
        processed: Callable[[], Mapping[Channel, int]],
        credit_bytes: int,
        read: Callable[[FrameRead], None],
    ) -> None:
        """A reader of the subtask's partition.

        Args:
            deploy: whose partition.
            log: where it is.
            processed: per channel, the bytes that no longer count against its credit.
            credit_bytes: the budget of a channel.
            read: is called with every frame, in order; `fed` is to be called when it has been taken.
        """
        self.bytes_in = 0
        self._deploy = deploy
        self._log = log
        self._processed = processed
        self._read = read
        self._credit_threshold = credit_bytes // 4
        self._topic = exchange_topic(deploy.job, deploy.subtask.vertex, deploy.generation)
        self._ahead_bytes = 0
        self._room = asyncio.Event()
        self._offsets: deque[int] = deque()
        """Offset behind each frame that was read and not yet fed."""
        self._fed_offset = deploy.start_offset
        self._barriers: dict[int, int] = {}
        """The offset behind the barrier of each snapshot that is not complete yet."""
        self._holds = PartitionHolds()
        self._trim_wake = asyncio.Event()
        self._reported: dict[Channel, int] = {}
        self._credit_wake = asyncio.Event()

    def fed(self, event: FrameRead) -> None:
        """The gate has taken this frame."""
        self._ahead_bytes -= HEADER_BYTES + event.size_bytes
        self._fed_offset = self._offsets.popleft()
        self._room.set()
        self._credit_wake.set()

    @property
    def position(self) -> int:
        """The offset behind the frame that was fed last."""
        return self._fed_offset

    @property
    def next_position(self) -> int:
        """The offset behind the frame that is to be fed next; only while one was read that is not fed."""
        return self._offsets[0]

    def credit_changed(self) -> None:
        """Something else than a fed frame has given credit back."""
        self._credit_wake.set()

    def hold(self, name: str, offset: int) -> None:
        """Somebody else, such as a publisher, needs the partition from `offset` on, and no longer what is before."""
        self._holds.hold(name, offset)
        self._trim_wake.set()

    def frozen(self, checkpoint: int) -> None:
        """The barrier of a checkpoint has come on every channel."""
        self._barriers[checkpoint] = self._fed_offset

    def completed(self, checkpoint: int) -> None:
        """A checkpoint is COMPLETE."""
        if checkpoint in self._barriers:
            self._holds.hold("reader", self._barriers[checkpoint])
            self._barriers = {n: offset for n, offset in self._barriers.items() if n > checkpoint}
            self._trim_wake.set()

    async def fetch(self) -> None:
        """Read ahead within the budget; ends by cancellation."""
        offset = self._deploy.start_offset
        while True:
            while self._ahead_bytes >= FETCH_BYTES:
                self._room.clear()
                await self._room.wait()
            records = await self._log.read(self._topic, self._deploy.subtask.index, offset, timeout_s=1.0)
            for record in records:
                offset = record.next_offset
                frame, payload = decode_frame(record.value)
                self._ahead_bytes += len(record.value)
                self.bytes_in += len(record.value)
                self._offsets.append(offset)
                # The payload alone, as producers count it: else every frame gave back more credit than it took.
                self._read(FrameRead(frame, payload, len(payload)))

    async def trim(self) -> None:
        """With a COMPLETE, give back what stands before its barrier: a later attempt begins behind that.

        Once in `TRIM_S` at most: for a broker it is a request of its own, and beside checkpoints of 100 ms they are many.
        Not what was read: a subtask of an old attempt that has not heard of its end reads past newer attempts' frames.
        """
        while True:
            await self._trim_wake.wait()
            self._trim_wake.clear()
            before = self._holds.trim_to()
            if before is not None:
                await self._log.trim(self._topic, self._deploy.subtask.index, before)
                await asyncio.sleep(TRIM_S)

    async def report_credit(self) -> None:
        """Tell producers what was processed, not more often than it matters to them, but now and then in any case."""
        topic, subtask = credits_topic(self._deploy.job), self._deploy.subtask
        key = f"{self._deploy.attempt}/{subtask.vertex}/{subtask.index}".encode()
        time_s = asyncio.get_running_loop().time
        repeat_s = time_s() + CREDIT_REPEAT_S
        while True:
            await self._credit_changed(repeat_s)
            due, processed = time_s() >= repeat_s, self._processed()
            if due:
                repeat_s = time_s() + CREDIT_REPEAT_S
            if not (due or self._is_news(processed)) or not any(processed.values()):
                continue
            self._reported = dict(processed)
            channels = tuple((channel.input, channel.producer, size) for channel, size in processed.items())
            report = CreditReport(self._deploy.attempt, subtask.vertex, subtask.index, channels)
            await self._log.append(topic, 0, [NewRecord(msgspec.json.encode(report), key)])

    def _is_news(self, processed: Mapping[Channel, int]) -> bool:
        return any(size - self._reported.get(c, 0) >= self._credit_threshold for c, size in processed.items())

    async def _credit_changed(self, until_s: float) -> None:
        """Until something may have been processed since the last time, or that moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._credit_wake.wait()
        self._credit_wake.clear()
