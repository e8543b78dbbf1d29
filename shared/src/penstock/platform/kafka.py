"""Kafka brokers of this machine: one, or several as one cluster, in KRaft's combined mode."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.platform.free_ports import HOST
from penstock.platform.parts import Parts, packaged
from penstock.platform.processes import MARK_VARIABLE, run_to_end
from penstock.platform.server import Recorder, Server, accepts, no_recorder
from penstock.settings import KafkaSettings

_READY: Final = re.compile(r"\[KafkaRaftServer nodeId=\d+\] Kafka Server started")
DEFAULT_SESSION_MS: Final = 9_000
_HEARTBEAT_MS: Final = 2_000
_FORMAT_DEADLINE_S: Final = 60
_MEGABYTE: Final = 1024 * 1024


@dataclass(frozen=True)
class KafkaNode:
    """One broker's number and ports."""

    id: int
    port: int
    controller_port: int


class KafkaServer(Server):
    """One node, broker and controller at once. Alone it is a whole Kafka; otherwise see `KafkaCluster`.

    Args:
        nodes: all nodes of its cluster, itself among them.
        cluster_id: the same for all of them; 22 characters of URL-safe base 64.
        heap_mb: of the Java machine; 256 suffices for tests.
        session_ms: how long a killed node counts as alive; a restarted one must wait for that.
    """

    start_deadline_s = 120.0
    stop_grace_s = 30.0

    def __init__(
        self,
        parts: Parts,
        folder: Path,
        node: KafkaNode,
        *,
        nodes: Sequence[KafkaNode],
        cluster_id: str,
        heap_mb: int = 512,
        session_ms: int = DEFAULT_SESSION_MS,
        name: str = "kafka",
        record: Recorder = no_recorder,
        mark: str = "",
    ) -> None:
        super().__init__(name, folder, node.port, record=record, mark=mark)
        self.node = node
        self._nodes = tuple(nodes)
        self._parts = parts
        self._cluster_id = cluster_id
        self._heap_mb = heap_mb
        self._session_ms = session_ms

    @property
    def settings(self) -> KafkaSettings:
        """How to reach this node's cluster through this node."""
        return KafkaSettings(brokers=self.address, replication=min(3, len(self._nodes)))

    async def prepare(self) -> None:
        self._properties.write_text(server_properties(self.node, self._nodes, self.data, self._session_ms))
        (self.folder / "log4j2.properties").write_text(packaged("kafka-log4j2.properties"))
        if not (self.data / "meta.properties").exists():
            await self._format()

    def command(self) -> list[str]:
        return [
            *self._java(self._heap_mb),
            f"-XX:ErrorFile={self.folder}/java-crash-%p.log",
            "-XX:+ExitOnOutOfMemoryError",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "kafka.Kafka",
            str(self._properties),
        ]

    async def is_ready(self) -> bool:
        return bool(_READY.search(self.new_log())) and accepts(self.port)

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _java(self, heap_mb: int) -> list[str]:
        return [
            str(self._parts.java),
            f"-Xms{heap_mb}m",
            f"-Xmx{heap_mb}m",
            "-XX:+UseSerialGC",
            "-Djava.net.preferIPv4Stack=true",
            "-cp",
            f"{self._parts.kafka}/*",
        ]

    async def _format(self) -> None:
        command = [
            *self._java(128),
            "-XX:TieredStopAtLevel=1",
            "kafka.tools.StorageTool",
            "format",
            "--ignore-formatted",
        ]
        command += ["-t", self._cluster_id, "-c", str(self._properties)]
        await run_to_end(
            command,
            self.folder,
            self.folder / f"{self.name}-format.log",
            f"Kafka's tool could not format {self.data}",
            _FORMAT_DEADLINE_S,
            {**os.environ, MARK_VARIABLE: f"{self._mark}/{self.name}"},
        )


class KafkaCluster:
    """All nodes of one Kafka; a chaos test kills single ones through `nodes`."""

    def __init__(self, nodes: Sequence[KafkaServer]) -> None:
        self.nodes = tuple(nodes)

    @property
    def settings(self) -> KafkaSettings:
        """How to reach it through all its nodes."""
        return KafkaSettings(brokers=",".join(node.address for node in self.nodes), replication=min(3, len(self.nodes)))

    @property
    def is_running(self) -> bool:
        """Whether all nodes run."""
        return all(node.is_running for node in self.nodes)

    async def start(self, deadline_s: float | None = None) -> None:
        """Start the nodes that do not run, all at once: alone none becomes ready.

        Raises:
            ServerStartError: a node did not become ready; none of those started here is left running.
        """
        stopped = [node for node in self.nodes if not node.is_running]
        deadline = KafkaServer.start_deadline_s if deadline_s is None else deadline_s
        end = time.monotonic() + deadline
        try:
            await asyncio.gather(*(node.spawn() for node in stopped))
            await asyncio.gather(*(node.wait_until_ready(end - time.monotonic()) for node in stopped))
        except BaseException:
            await asyncio.gather(*(node.kill() for node in stopped))
            raise

    async def stop(self) -> None:
        """End all nodes in order, all at once: one that is left without a quorum cannot leave in order any more."""
        await asyncio.gather(*(node.stop() for node in self.nodes))

    async def kill(self) -> None:
        """End all nodes by SIGKILL."""
        await asyncio.gather(*(node.kill() for node in self.nodes))

    async def restart(self, *, by_force: bool = False, deadline_s: float | None = None) -> None:
        """End all nodes and start them on the same ports and data."""
        await asyncio.gather(*(node.end(by_force=by_force) for node in self.nodes))
        await self.start(deadline_s)

    def pause(self) -> None:
        """SIGSTOP to all nodes."""
        for node in self.nodes:
            node.pause()

    def resume(self) -> None:
        """SIGCONT to all nodes."""
        for node in self.nodes:
            node.resume()


def new_cluster_id() -> str:
    """A fresh id in Kafka's form. It never begins with a dash, which the tools would take for an option."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not made.startswith("-"):
            return made


def server_properties(
    node: KafkaNode, nodes: Sequence[KafkaNode], data: Path, session_ms: int = DEFAULT_SESSION_MS
) -> str:
    """The configuration of one node."""
    replication = min(3, len(nodes))
    in_sync = max(1, replication - 1)
    values = {
        "process.roles": "broker,controller",
        "node.id": node.id,
        "controller.quorum.voters": ",".join(f"{n.id}@{HOST}:{n.controller_port}" for n in nodes),
        "listeners": f"BROKER://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"BROKER://{HOST}:{node.port}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        "default.replication.factor": replication,
        "min.insync.replicas": in_sync,
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": replication,
        "transaction.state.log.num.partitions": 4,
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replication,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": 0,
        "message.max.bytes": 8 * _MEGABYTE,
        "replica.fetch.max.bytes": 8 * _MEGABYTE,
        "transaction.max.timeout.ms": 900_000,
        "log.cleaner.dedupe.buffer.size": 8 * _MEGABYTE,
        "broker.session.timeout.ms": session_ms,
        "broker.heartbeat.interval.ms": min(_HEARTBEAT_MS, session_ms // 3),
        "unclean.leader.election.enable": "false",
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())
