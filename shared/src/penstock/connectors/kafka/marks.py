"""The marks of exactly-once Kafka sinks: their names, and how they are made and removed.

A mark is the last record of a partition in the sink's own cluster, in a topic named after cluster, job, operator and
generation with one partition per partition of the sink. Whoever removes a job finds it here by its job graph alone,
without the user's code.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.settings import KafkaSettings

if TYPE_CHECKING:
    from penstock.graph.jobgraph import JobGraph

KIND: Final = "kafka"
"""`Sink.kind` of Kafka sinks, as it stands in the settings of their operators."""
_MAX_OPERATOR: Final = 80
_PLAIN: Final = re.compile(r"[A-Za-z0-9-]+")


@dataclass(frozen=True)
class SinkMarks:
    """Where the marks of one sink in one generation stand."""

    topic: str
    brokers: str | None = None
    """The sink's own brokers; None: the platform's."""

    def settings(self, platform: KafkaSettings) -> KafkaSettings:
        """How to reach them. Security settings of a sink's own brokers are in no job graph: they have to be added."""
        return platform if self.brokers is None else KafkaSettings(brokers=self.brokers)


def marks_of(cluster: str, job: str, operator: str, generation: int, brokers: str | None = None) -> SinkMarks:
    """The marks of a sink operator."""
    return SinkMarks(f"penstock.{cluster}.{job}.{_topic_part(operator)}.g{generation}.marks", brokers)


def marks_of_job(
    cluster: str, job: str, graph: JobGraph, generations: Iterable[int], kept: Collection[str] = ()
) -> list[SinkMarks]:
    """All marks of a job but for those of the sink operators in `kept`."""
    return [
        marks_of(cluster, job, operator.id, generation, operator.settings.get("brokers"))
        for operator in graph.operators()
        if operator.verb == "publish" and operator.settings.get("sink") == KIND and operator.id not in kept
        for generation in generations
    ]


async def delete_marks(settings: KafkaSettings, topic: str) -> None:
    """Remove the marks of a sink of a job that has ended. Nothing happens if there are none.

    Raises:
        ExternalError: the cluster could not be reached, or refuses.
    """
    from penstock.connectors.kafka.topics import TopicAdmin

    admin = TopicAdmin(settings, "penstock-marks")
    await asyncio.to_thread(admin.delete_topic, topic)


def _topic_part(operator: str) -> str:
    """An operator's id in the alphabet of topics: as it is, quoted, or if that is too long its digest."""
    if _PLAIN.fullmatch(operator) and len(operator) <= _MAX_OPERATOR:
        return operator
    quoted = re.sub(rb"[^A-Za-z0-9-]", lambda found: b"_%02x" % found[0][0], operator.encode()).decode()
    return quoted if len(quoted) <= _MAX_OPERATOR else "_" + hashlib.sha256(operator.encode()).hexdigest()[:32]
