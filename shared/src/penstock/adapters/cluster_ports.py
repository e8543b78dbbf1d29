"""The ports of a service on a cluster, opened: Kafka, Redis, the object store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from penstock.adapters.kafka.log import KafkaLog
from penstock.adapters.redis_metadata import RedisMetadata
from penstock.adapters.s3_blobs import S3Blobs
from penstock.ports import Blobs, Log, Metadata
from penstock.settings import ClusterSettings


@asynccontextmanager
async def cluster_log(settings: ClusterSettings, client_id: str) -> AsyncGenerator[Log]:
    """The cluster's log."""
    log = KafkaLog(settings.kafka, settings.name, client_id=client_id)
    try:
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def cluster_metadata(settings: ClusterSettings) -> AsyncGenerator[Metadata]:
    """The cluster's lease and cache."""
    metadata = RedisMetadata(settings.redis, settings.name)
    try:
        yield metadata
    finally:
        await metadata.close()


@asynccontextmanager
async def cluster_store(settings: ClusterSettings) -> AsyncGenerator[Blobs]:
    """The cluster's objects."""
    blobs = S3Blobs(settings.store, settings.name)
    try:
        yield blobs
    finally:
        await blobs.close()
