"""Events that cannot be sent as they are: replaced, and nothing else is lost."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.adapters.memory import MemoryLog
from penstock.coordination.control_topics import EVENTS, create_control_topics
from penstock.ports import NewRecord, RecordTooLargeError
from penstock.protocol.messages import (
    Acknowledged,
    Declined,
    Heartbeat,
    OperatorHandles,
    OperatorMetrics,
    SubtaskId,
    SubtaskSnapshot,
    TaskChanged,
    TaskStatus,
    decode_event,
)
from penstock.taskmanager.event_appender import append_events, encode_batch
from penstock.taskmanager.worker_process import decode_batch

LARGEST = 50_000


class SmallLog(MemoryLog):
    """Takes records of a few kilobytes."""

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        if any(len(record.value) > LARGEST for record in records):
            raise RecordTooLargeError(f"a record is larger than {LARGEST}")
        return await super().append(topic, partition, records)


def status(state: str = "running", **more: object) -> TaskStatus:
    return msgspec.convert(
        {"job": "j", "attempt": "a", "subtask": {"vertex": "v", "index": 0}, "state": state, **more}, TaskStatus
    )


def ack(size: int) -> Acknowledged:
    handles = OperatorHandles(unions={"splits": (b"x" * size,)})
    return Acknowledged(
        job="j", attempt="a", checkpoint=3, nonce="n", subtask=SubtaskId("v", 0),
        snapshot=SubtaskSnapshot(operators={"source": handles}),
    )  # fmt: skip


async def test_an_event_that_is_too_large_is_replaced():
    """A snapshot by a decline, a status by a failure, a heartbeat by one without counters; all others arrive."""
    log = SmallLog()
    await create_control_topics(log)
    small = Heartbeat(worker="w", slots=1, tasks=(status(),))
    large = status(metrics={"x" * LARGEST: OperatorMetrics()})
    failed = status("failed", error="é" * LARGEST, frames="f" * LARGEST)
    events = [
        small, ack(LARGEST), ack(10), TaskChanged(worker="w", status=large), TaskChanged(worker="w", status=failed),
        Heartbeat(worker="w", slots=1, tasks=(large, failed)), small,
    ]  # fmt: skip
    await append_events(log, events)
    arrived = [decode_event(record.value) for record in await log.read(EVENTS, 0, 0)]
    assert (arrived[0], arrived[2], arrived[6]) == (small, ack(10), small)
    assert isinstance(arrived[1], Declined)
    assert (arrived[1].checkpoint, arrived[1].nonce, arrived[1].subtask) == (3, "n", SubtaskId("v", 0))
    assert "larger than" in arrived[1].reason
    assert isinstance(arrived[3], TaskChanged)
    assert arrived[3].status.state == "failed"
    assert "larger than" in arrived[3].status.error
    assert isinstance(arrived[4], TaskChanged)
    assert arrived[4].status.error.startswith("é" * 10_000)
    assert isinstance(arrived[5], Heartbeat)
    assert [task.state for task in arrived[5].tasks] == ["running", "failed"]


def test_an_event_that_cannot_be_encoded_is_replaced():
    """Text that is no text, or a counter of an odd type, ends neither the worker nor what else is in the batch."""
    odd = TaskChanged(worker="w", status=status("failed", error="broken \ud800 text"))
    strange = TaskChanged(worker="w", status=msgspec.structs.replace(status(), metrics={"op": object()}))
    beat = Heartbeat(worker="w", slots=1)
    first, second, third = decode_batch(encode_batch([odd, strange, beat]))
    assert isinstance(first, TaskChanged)
    assert first.status.error == "broken ? text"
    assert isinstance(second, TaskChanged)
    assert second.status.state == "failed"
    assert third == beat
