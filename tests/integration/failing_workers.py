"""A job whose workers die again and again, and that gets wider: what its sink has of it in the end."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.integration.one_job import Cluster, until

from penstock.protocol.requests import RescaleJob


async def with_failing_workers(sink: Any) -> Cluster:
    """Windows of a job that has ended; returns what it ran on, whose `input` says what was read."""
    cluster = Cluster(rate=1_200, held=True, sink=sink)
    await cluster.submit()
    try:
        _, ended, _ = await cluster.candidate()
        workers = [cluster.tasks[cluster.worker().name] for _ in range(3)]

        async def complete() -> int:
            record = (await cluster.history()).complete
            return record.checkpoint if record else 0

        async def beyond(checkpoint: int) -> bool:
            return await complete() > checkpoint

        for _ in range(2):
            seen = await complete()
            await until(lambda seen=seen: beyond(seen), "a checkpoint is complete")
            workers.pop(0).cancel()
            workers.append(cluster.tasks[cluster.worker().name])
        seen = await complete()
        await until(lambda: beyond(seen), "a checkpoint is complete after a restart")
        await cluster.request(RescaleJob(request="wider", job=cluster.job, parallelism=3))
        answer = await cluster.answer("wider")
        assert answer.outcome == "completed", answer.reason
        cluster.input.end()
        outcome = await asyncio.wait_for(ended, 90)
        assert outcome.state == "FINISHED", outcome.reason
        records = (await cluster.history()).records
        assert [type(record).__name__ for record in records].count("Begin") >= 4
    finally:
        await cluster.stop()
    return cluster
