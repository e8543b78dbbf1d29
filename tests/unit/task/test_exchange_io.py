"""What a subtask tells the producers of its partition."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock.adapters.memory import MemoryLog
from penstock.graph.executiongraph import credits_topic, exchange_topic
from penstock.ports import NewRecord
from penstock.protocol.channels import InputGate
from penstock.protocol.frames import Channel
from penstock.protocol.messages import Deploy, SubtaskId
from penstock.protocol.outputs import OutputId, OutputLedger
from penstock.protocol.subtask import FrameRead
from penstock.task import exchange_io
from penstock.task.exchange_io import CreditReport, ExchangeReader


@pytest.mark.parametrize("barriers", [False, True])
async def test_the_newest_credit_report_is_repeated(monkeypatch: pytest.MonkeyPatch, barriers: bool) -> None:
    """A report that nobody has read holds its producers up for no longer than that, whatever else comes meanwhile."""
    monkeypatch.setattr(exchange_io, "CREDIT_REPEAT_S", 0.2)
    log, job = MemoryLog(compact_after=0), "j" * 32
    topic = credits_topic(job)
    await log.create_topic(topic, 1, compacted=True)
    deploy = Deploy(
        epoch=1, job=job, attempt="a", attempt_number=1, subtask=SubtaskId("v", 0), worker="w", generation=0,
        restore=None, start_offset=0,
    )  # fmt: skip
    processed: dict[Channel, int] = {Channel(0, 0): 0}
    reader = ExchangeReader(deploy, log, lambda: processed, 100, lambda _: None)
    reporting = asyncio.create_task(reader.report_credit())
    coming = asyncio.create_task(_frames_without_rows(reader, often=barriers))
    try:
        async with asyncio.timeout(20):
            processed[Channel(0, 0)] = 30
            reader.credit_changed()
            position, seen = 0, list[CreditReport]()
            while len(seen) < 3:
                for record in await log.read(topic, 0, position, timeout_s=1.0):
                    position = record.next_offset
                    seen.append(msgspec.json.decode(record.value, type=CreditReport))
        assert set(seen) == {CreditReport("a", "v", 0, ((0, 0, 30),))}
    finally:
        reporting.cancel()
        coming.cancel()


async def _frames_without_rows(reader: ExchangeReader, *, often: bool) -> None:
    while often:
        await asyncio.sleep(0.001)
        reader.credit_changed()


async def test_what_is_processed_is_what_was_sent() -> None:
    """Frames of all kinds, processed in full, leave a producer the credit that it began with: headers, watermarks and
    barriers take none and give none back."""
    log, job, attempt, output = MemoryLog(), "j" * 32, "a" * 32, OutputId("v", 0, 0)
    deploy = Deploy(
        epoch=1, job=job, attempt=attempt, attempt_number=1, subtask=SubtaskId("v", 0), worker="w", generation=0,
        restore=None, start_offset=0,
    )  # fmt: skip
    topic = exchange_topic(job, "v", 0)
    await log.create_topic(topic, 1)
    ledger, gate = OutputLedger(attempt, 0, [output], 100), InputGate(attempt, [Channel(0, 0)])
    frames = [
        (ledger.data(output, 1, 90), bytes(90)), (ledger.watermark(output, 5), b""), (ledger.idle(output), b""),
        (ledger.data(output, 1, 70), bytes(70)), (ledger.barrier(output, 1, "0" * 16, "aligned"), b""),
    ]  # fmt: skip
    await log.append(topic, 0, [NewRecord(frame.encode(payload)) for frame, payload in frames])
    events: asyncio.Queue[FrameRead] = asyncio.Queue()
    reader = ExchangeReader(deploy, log, gate.processed_bytes, 100, events.put_nowait)
    fetching = asyncio.create_task(reader.fetch())
    async with asyncio.timeout(20):
        for _ in frames:
            event = await events.get()
            gate.receive(event.frame, event.ref, event.size_bytes)
            reader.fed(event)
    assert gate.processed_bytes() == {Channel(0, 0): 90 + 70}
    assert reader._ahead_bytes == 0
    fetching.cancel()
