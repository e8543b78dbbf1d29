"""Kafka, Redis and MinIO in containers, for tests that want the real thing: what the fixture `penstock_containers` gives.

Each is started when it is first asked for and removed at the end. They are Penstock's own set-up of the official images:
transactions and small internal topics for Kafka, no authentication for Redis, a bucket in MinIO.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from penstock.core.extras import install
from penstock.errors import ExternalError, UsageError
from penstock.settings import ClusterSettings, KafkaSettings, RedisSettings, Secret, StoreSettings

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

T = TypeVar("T")

IMAGES: Final = {
    "kafka": "apache/kafka:4.3.1",
    "redis": "redis:7",
    "minio": "minio/minio:RELEASE.2025-09-07T16-13-09Z",
}
"""The official images, unless others are named."""
START_S: Final = 90
"""How long a part may take from its container's start until it answers."""

_ACCESS_KEY: Final = "penstock"
_SECRET_KEY: Final = Secret("penstock-secret")
_BUCKET: Final = "penstock"
_KAFKA_PORT: Final = 9094
_SCRIPT: Final = "/tmp/penstock-start.sh"
# The port under which clients reach the broker is known once the container runs: it waits for a script that says so.
_KAFKA_COMMAND: Final = [
    "sh",
    "-c",
    f"while [ ! -s {_SCRIPT} ]; do sleep 0.1; done; . {_SCRIPT}; exec /etc/kafka/docker/run",
]
_KAFKA: Final = {
    "CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw",
    "KAFKA_HEAP_OPTS": "-Xmx384m -Xms384m",
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@127.0.0.1:9093",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_LISTENERS": f"INSIDE://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093,OUTSIDE://:{_KAFKA_PORT}",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "INSIDE",
    "KAFKA_LOG_DIRS": "/var/lib/kafka/data",
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "4",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_MESSAGE_MAX_BYTES": "8388608",
    "KAFKA_REPLICA_FETCH_MAX_BYTES": "8388608",
    "KAFKA_TRANSACTION_MAX_TIMEOUT_MS": "900000",
    "KAFKA_LOG_CLEANER_DEDUPE_BUFFER_SIZE": "8388608",
}


def image_of(part: str, configured: str = "", environ: Mapping[str, str] | None = None) -> str:
    """The image of a part: as the environment says, else as configured, else the official one."""
    environment = os.environ if environ is None else environ
    return environment.get(f"PENSTOCK_TEST_{part.upper()}_IMAGE") or configured or IMAGES[part]


class PenstockContainers:
    """Kafka, Redis and MinIO, each from the moment that it is first asked for.

    Args:
        images: other images than the official ones, by part: `kafka`, `redis`, `minio`.

    Raises (by every property):
        UsageError: testcontainers is not installed.
        ExternalError: no container engine answers, an image cannot be had, or the part does not start; says what to do.

    Example:
        def test_orders(penstock_containers):
            source = kafka.Source("orders", schema=Order, brokers=penstock_containers.kafka)
    """

    def __init__(self, images: Mapping[str, str] | None = None) -> None:
        configured = images or {}
        self.images = {part: image_of(part, configured.get(part, "")) for part in IMAGES}
        self._running: dict[str, DockerContainer] = {}
        self._bucket_made = False

    @property
    def kafka(self) -> str:
        """`host:port` of the broker."""
        return self._address("kafka", _KAFKA_PORT, self._kafka, self._kafka_answers)

    @property
    def redis(self) -> str:
        """The URL of Redis."""
        return f"redis://{self._address('redis', 6379, self._redis, self._redis_answers)}/0"

    @property
    def store(self) -> StoreSettings:
        """How to reach MinIO: its bucket is there."""
        address = self._address("minio", 9000, self._minio, self._minio_answers)
        return _store(address)

    def settings(self, name: str = "test") -> ClusterSettings:
        """A fresh cluster on all three: `name` is made unique, so nothing of another test is in its way."""
        return ClusterSettings(
            name=f"{name}-{secrets.token_hex(4)}",
            kafka=KafkaSettings(brokers=self.kafka),
            redis=RedisSettings(Secret(self.redis)),
            store=self.store,
        )

    def close(self) -> None:
        """Remove all containers and what they wrote."""
        for container in self._running.values():
            container.stop()
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the parts ------------------------------------------------------------------------------------------------------

    def _kafka(self, container: DockerContainer) -> None:
        for name, value in _KAFKA.items():
            container.with_env(name, value)
        container.with_command(_KAFKA_COMMAND)

    def _redis(self, container: DockerContainer) -> None:
        container.with_command(["redis-server", "--protected-mode", "no", "--save", ""])

    def _minio(self, container: DockerContainer) -> None:
        container.with_envs(MINIO_ROOT_USER=_ACCESS_KEY, MINIO_ROOT_PASSWORD=_SECRET_KEY.reveal(), MINIO_BROWSER="off")
        container.with_command(["server", "/data"])

    def _kafka_answers(self, address: str) -> None:
        from confluent_kafka.admin import AdminClient

        AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=5)

    def _redis_answers(self, address: str) -> None:
        from redis import Redis

        host, _, port = address.rpartition(":")
        with contextlib.closing(Redis(host, int(port), socket_timeout=5)) as client:
            client.ping()

    def _minio_answers(self, address: str) -> None:
        from penstock.platform.buckets import ensure_bucket

        ensure_bucket(_store(address))

    # -- containers -----------------------------------------------------------------------------------------------------

    def _address(
        self, part: str, port: int, prepare: Callable[[DockerContainer], None], ask: Callable[[str], None]
    ) -> str:
        if part in self._running:
            return _outside(self._running[part], port)
        container = _made(self.images[part], port)
        prepare(container)
        try:
            _start(container, part, self.images[part])
            address = _outside(container, port)
            if part == "kafka":
                script = f"export KAFKA_ADVERTISED_LISTENERS=INSIDE://127.0.0.1:9092,OUTSIDE://{address}\n"
                container.copy_into_container(script.encode(), _SCRIPT, mode=0o644)
            _wait(container, part, lambda: ask(address))
        except BaseException:
            container.stop()
            raise
        self._running[part] = container
        return address


def _store(address: str) -> StoreSettings:
    return StoreSettings(f"http://{address}", _BUCKET, access_key=_ACCESS_KEY, secret_key=_SECRET_KEY)


def _made(image: str, port: int) -> DockerContainer:
    try:
        from docker.errors import DockerException
        from testcontainers.core.container import DockerContainer
    except ImportError as error:
        raise UsageError(f"penstock_containers: testcontainers is not installed; {install('testing')}") from error
    try:
        _without_reaper_if_there_is_none()
        return DockerContainer(image).with_exposed_ports(port)
    except DockerException as error:
        raise ExternalError(
            f"penstock_containers: no container engine answers: {error}; start Docker, or set DOCKER_HOST to where one is"
        ) from error


def _without_reaper_if_there_is_none() -> None:
    """testcontainers has a container of its own that removes others when a run is killed: not where it has no image."""
    from docker.errors import DockerException
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.docker_client import DockerClient

    if testcontainers_config.ryuk_disabled:
        return
    with contextlib.closing(DockerClient().client) as client:
        client.ping()
        try:
            client.images.get(testcontainers_config.ryuk_image)
        except DockerException:
            try:
                client.images.pull(testcontainers_config.ryuk_image)
            except DockerException:
                testcontainers_config.ryuk_disabled = True


def _start(container: DockerContainer, part: str, image: str) -> None:
    from docker.errors import DockerException

    try:
        container.start()
    except DockerException as error:
        raise ExternalError(
            f"penstock_containers: {part}: no container of {image} starts: {error}; docker pull {image}, or name another "
            f"image by PENSTOCK_TEST_{part.upper()}_IMAGE or penstock_{part}_image in pytest's configuration"
        ) from error


def _outside(container: DockerContainer, port: int) -> str:
    return f"{container.get_container_host_ip()}:{container.get_exposed_port(port)}"


def _wait(container: DockerContainer, part: str, ask: Callable[[], Any]) -> None:
    """Until the part answers; a container that has ended will not."""
    end_s = time.monotonic() + START_S
    while True:
        try:
            ask()
            return
        except Exception as error:
            wrapped = container.get_wrapped_container()
            wrapped.reload()
            if wrapped.status == "running" and time.monotonic() < end_s:
                time.sleep(0.2)
                continue
            output = wrapped.logs(tail=20).decode(errors="replace")
            raise ExternalError(
                f"penstock_containers: {part} does not answer within {START_S} s ({wrapped.status}): {error}; "
                f"the end of its output:\n{output}"
            ) from error
