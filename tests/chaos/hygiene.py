"""After `cancel` nothing is left behind: topics, groups, keys and objects are listed, and each must have a reason."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from confluent_kafka.admin import AdminClient
from redis.asyncio import Redis
from tests.chaos.cluster import NAME, ChaosCluster, ChaosError, until
from tests.chaos.feed import TOPIC
from tests.chaos.outputs import SINKS

from penstock.coordination.control_topics import COMMANDS, EVENTS, REQUESTS
from penstock.coordination.job_store import JobReader
from penstock.kafka.clients import confluent_options

_CONTROL: Final = {f"penstock.{NAME}.{topic}" for topic in (COMMANDS, EVENTS, REQUESTS)}
_KAFKAS_OWN: Final = {"__consumer_offsets", "__transaction_state"}
_KEYS: Final = {"leader", "view", "requests-read"}
_KEPT: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"leaders/\d+",
        r"finished/[0-9a-f]{32}",
        r"artifacts/[0-9a-f]{64}\.zip",
        r"jobs/[0-9a-f]{32}/log/(compacted-)?\d{20}",
        r"jobs/[0-9a-f]{32}/answers/[0-9a-f]{32}",
    )
)
_GONE_S: Final = 30.0


async def inspect(cluster: ChaosCluster) -> list[str]:
    """Run a second job, cancel it, and look at everything that is left; the objects that are, each for a reason.

    Raises:
        ChaosError: there is something without a reason.
    """
    job = await cluster.submit()

    async def running() -> bool:
        view = await cluster.job(job)
        return view is not None and view.state == "RUNNING" and view.last_checkpoint > 0

    await until("the second job running, with a checkpoint", 60, running)
    answer = await cluster.answer(job, await cluster.cancel(job))
    if answer.outcome != "completed":
        raise ChaosError(f"the second job was not cancelled: {answer}")
    await until("the second job in the list of ended ones", 60, lambda: cluster.finished(job))
    found: list[str] = []

    async def clean() -> bool:
        found[:] = [*await asyncio.to_thread(_in_kafka, cluster), *await _in_redis(cluster), *await _in_store(cluster)]
        return not found

    try:
        await until("nothing left of ended jobs", _GONE_S, clean)
    except ChaosError as error:
        raise ChaosError(f"{error}: {found}") from error
    return await cluster.blobs.list("")


def _in_kafka(cluster: ChaosCluster) -> list[str]:
    admin = AdminClient({**confluent_options(cluster.settings.kafka, "chaos-hygiene"), "log_level": 3})
    topics = set(admin.list_topics(timeout=10).topics) - _CONTROL - _KAFKAS_OWN - {TOPIC, *SINKS}
    groups = {group.group_id for group in admin.list_consumer_groups().result(10).valid}
    return [*(f"topic {name}" for name in sorted(topics)), *(f"group {name}" for name in sorted(groups))]


async def _in_redis(cluster: ChaosCluster) -> list[str]:
    client: Redis = Redis.from_url(cluster.settings.redis.url.reveal())
    try:
        prefix = f"penstock:{NAME}:"
        keys = [key.decode() async for key in client.scan_iter()]
    finally:
        await client.aclose()
    return [f"Redis key {key}" for key in keys if key.removeprefix(prefix) not in _KEYS]


async def _in_store(cluster: ChaosCluster) -> list[str]:
    """Objects that are neither the job log, nor answers, nor part of a savepoint that the log names."""
    kept = await _savepoints(cluster)
    keys = await cluster.blobs.list("")
    return [
        f"object {key}"
        for key in keys
        if not any(pattern.fullmatch(key) for pattern in _KEPT) and not any(part in key for part in kept)
    ]


async def _savepoints(cluster: ChaosCluster) -> set[str]:
    """Beginnings of the keys that belong to savepoints."""
    jobs = {key.split("/")[1] for key in await cluster.blobs.list("jobs/") if "/log/" in key}
    histories = [await JobReader(cluster.blobs).history(job) for job in sorted(jobs)]
    return {record.manifest.rpartition("/")[0] + "/" for history in histories for record in history.savepoints.values()}
