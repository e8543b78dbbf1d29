"""Kafka, MinIO and Redis together: what a cluster needs of others."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from penstock.platform.errors import PlatformError
from penstock.platform.free_ports import free_port
from penstock.platform.kafka import DEFAULT_SESSION_MS, KafkaCluster, KafkaNode, KafkaServer, new_cluster_id
from penstock.platform.minio import MinioServer
from penstock.platform.parts import Parts
from penstock.platform.redis import RedisServer
from penstock.platform.server import Recorder, Server, no_recorder
from penstock.settings import ClusterSettings


@dataclass(frozen=True)
class ServersPlan:
    """What stays the same over all restarts: ports, names, passwords. The passwords are in no repr."""

    brokers: tuple[KafkaNode, ...]
    minio_port: int
    redis_port: int
    cluster_id: str = field(default_factory=new_cluster_id)
    access_key: str = field(default_factory=lambda: f"penstock-{secrets.token_hex(4)}")
    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    redis_password: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    heap_mb: int = 512
    broker_session_ms: int = DEFAULT_SESSION_MS
    """How long a killed broker counts as alive; it cannot come back earlier. Kafka's default, 9 s, unless tests hurry."""


def plan_servers(
    *,
    brokers: int = 1,
    kafka_port: int | None = None,
    minio_port: int | None = None,
    redis_port: int | None = None,
    heap_mb: int = 512,
    broker_session_ms: int = DEFAULT_SESSION_MS,
) -> ServersPlan:
    """A plan with fresh passwords, and free ports where none is named (`kafka_port` is the first broker's)."""
    if brokers not in (1, 3):
        raise PlatformError(f"{brokers} brokers: there can be one, or three that replicate")
    taken = {port for port in (kafka_port, minio_port, redis_port) if port is not None}
    nodes = [
        KafkaNode(number, (kafka_port if number == 1 else None) or free_port(taken), free_port(taken))
        for number in range(1, brokers + 1)
    ]
    return ServersPlan(
        brokers=tuple(nodes),
        minio_port=minio_port or free_port(taken),
        redis_port=redis_port or free_port(taken),
        heap_mb=heap_mb,
        broker_session_ms=broker_session_ms,
    )


class Servers:
    """The three servers of one platform, below one folder.

    Args:
        parts: what they are started from.
        folder: theirs alone; each server has its own folder in it.
        record: told of every process; see `server.Recorder`.
    """

    def __init__(self, parts: Parts, folder: Path, plan: ServersPlan, *, record: Recorder = no_recorder) -> None:
        self.folder = folder.absolute()
        self.plan = plan
        mark = str(self.folder)
        self.kafka = KafkaCluster(
            [
                KafkaServer(
                    parts,
                    self.folder / f"kafka-{node.id}",
                    node,
                    nodes=plan.brokers,
                    cluster_id=plan.cluster_id,
                    heap_mb=plan.heap_mb,
                    session_ms=plan.broker_session_ms,
                    name=f"kafka-{node.id}",
                    record=record,
                    mark=mark,
                )
                for node in plan.brokers
            ]
        )
        self.minio = MinioServer(
            parts,
            self.folder / "minio",
            plan.minio_port,
            access_key=plan.access_key,
            secret_key=plan.secret_key,
            record=record,
            mark=mark,
        )
        self.redis = RedisServer(
            parts, self.folder / "redis", plan.redis_port, password=plan.redis_password, record=record, mark=mark
        )

    @property
    def all(self) -> tuple[Server, ...]:
        """Every single server, each broker by itself."""
        return (*self.kafka.nodes, self.minio, self.redis)

    def settings(self, name: str = "local", rest: str = "http://127.0.0.1:8081") -> ClusterSettings:
        """How a cluster of this name reaches them."""
        return ClusterSettings(
            name=name,
            rest=rest,
            kafka=self.kafka.settings,
            redis=self.redis.settings,
            store=self.minio.settings,
        )

    async def start(self) -> None:
        """Start all that do not run, at the same time.

        Raises:
            ServerStartError: one did not become ready. Those that this call started are ended again.
        """
        stopped = [server for server in (self.kafka, self.minio, self.redis) if not server.is_running]
        outcomes = await asyncio.gather(*(server.start() for server in stopped), return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            await asyncio.gather(*(server.kill() for server in stopped))
            raise failures[0]

    async def stop(self) -> None:
        """End all in order, at the same time."""
        await asyncio.gather(self.kafka.stop(), self.minio.stop(), self.redis.stop())

    async def kill(self) -> None:
        """End all by SIGKILL."""
        await asyncio.gather(self.kafka.kill(), self.minio.kill(), self.redis.kill())
