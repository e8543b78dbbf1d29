"""What a subtask tells the producers of its partition."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.adapters.memory import MemoryLog
from penstock.graph.executiongraph import credits_topic
from penstock.protocol.frames import Channel
from penstock.protocol.messages import Deploy, SubtaskId
from penstock.task import exchange_io
from penstock.task.exchange_io import CreditReport, ExchangeReader


async def test_the_newest_credit_report_is_repeated(monkeypatch):
    """A report that nobody has read holds its producers up for no longer than that."""
    monkeypatch.setattr(exchange_io, "CREDIT_REPEAT_S", 0.02)
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
