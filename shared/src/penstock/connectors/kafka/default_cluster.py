"""Which Kafka a connector means that names no brokers: that of the cluster which this process belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.connectors.base import Dataset
from penstock.core.arguments import checked
from penstock.errors import PipelineError
from penstock.settings import KafkaSettings, load_settings


@dataclass
class _Platform:
    """The Kafka of the cluster that this process belongs to."""

    settings: KafkaSettings | None = None
    name: str | None = None


_platform = _Platform()


@checked
def use_cluster(settings: KafkaSettings, name: str = "local") -> None:
    """Make this the Kafka of sinks and sources that name no brokers, in this process; `name` is the cluster's.

    Example:
        >>> kafka.use_cluster(KafkaSettings(brokers="localhost:9092"))
    """
    _platform.settings = settings
    _platform.name = name


def platform() -> tuple[KafkaSettings, str]:
    """What `use_cluster` was told in this process, or the settings of the cluster that it finds; for other processes."""
    if _platform.settings is not None:
        return _platform.settings, _platform.name or "local"
    found = load_settings()
    return found.kafka, found.name


def check_brokers(what: str, brokers: str | None, security: KafkaSettings | None) -> None:
    """Raise `PipelineError` if two options name the brokers, and not the same ones."""
    if brokers is not None and security is not None and security.brokers != brokers:
        raise PipelineError(f"{what}: name the brokers once: security= names {security.brokers!r} as well")


def resolve(brokers: str | None, security: KafkaSettings | None) -> KafkaSettings:
    """How to reach the Kafka that a connector was declared with."""
    if security is not None:
        return security
    if brokers is not None:
        return KafkaSettings(brokers=brokers)
    return _platform.settings or load_settings().kafka


def topic_dataset(settings: KafkaSettings, topic: str) -> Dataset:
    """A topic as other tools know it: by the first of the brokers that were named."""
    return Dataset(f"kafka://{settings.brokers.split(',')[0].strip()}", topic)


def cluster_name() -> str:
    """The name that begins the names of all that Penstock itself keeps in Kafka."""
    return _platform.name or load_settings().name
