"""What a consumer sees of a topic."""

from __future__ import annotations

from typing import Any

import aiokafka

Record = aiokafka.ConsumerRecord[Any, Any]


async def committed(brokers: str, topic: str, partitions: int) -> list[Record]:
    """All committed records, those of a partition in their order."""
    parts = [aiokafka.TopicPartition(topic, number) for number in range(partitions)]
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=brokers, isolation_level="read_committed", auto_offset_reset="none"
    )
    await consumer.start()
    try:
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        ends = await consumer.end_offsets(parts)
        found: list[Record] = []
        while any([await consumer.position(part) < ends[part] for part in parts]):
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                found += batch
        return found
    finally:
        await consumer.stop()
