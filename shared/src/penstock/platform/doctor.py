"""Whether the parts of a cluster do what Penstock builds on: asked of the servers themselves, with everything removed.

The checks of each part are in `doctor_kafka`, `doctor_redis`, `doctor_store` and `doctor_rest`; this module runs them and
collects what they find. It knows nothing of how the servers were started: any Kafka, Redis and S3 store can be checked.
"""

from __future__ import annotations

import asyncio

from penstock.platform.doctor_checks import Finding
from penstock.platform.doctor_kafka import check_kafka
from penstock.platform.doctor_redis import check_redis
from penstock.platform.doctor_rest import check_rest
from penstock.platform.doctor_store import check_store
from penstock.settings import ClusterSettings


async def examine(settings: ClusterSettings) -> list[Finding]:
    """All findings on Kafka, Redis, the store and REST, in this order; they are asked at the same time."""
    parts = (check_kafka(settings), check_redis(settings), check_store(settings), check_rest(settings))
    found = await asyncio.gather(*parts)
    return [finding for findings in found for finding in findings]
