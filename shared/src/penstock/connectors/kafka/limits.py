"""What a topic takes: how large a batch, which timestamps, whether records without key. Brokers refuse anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DEFAULT_MAX_MESSAGE_BYTES: Final = 1_048_588
"""Kafka's own default, used where a topic's settings may not be read."""
_UNLIMITED: Final = (1 << 63) - 1


@dataclass(frozen=True)
class TopicLimits:
    """The settings of a topic by which a broker refuses records; None: it refuses none for that."""

    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    before_ms: int | None = None
    """How far a record's timestamp may be before the broker's clock."""
    after_ms: int | None = None
    """And how far ahead of it: an hour by default since Kafka 4."""
    needs_key: bool = False
    """Whether the topic is compacted."""

    @staticmethod
    def of(settings: Mapping[str, str | None]) -> TopicLimits:
        """Those that the settings of a topic say, whatever the version of the broker is."""
        before, after = (_bound(settings, f"message.timestamp.{which}.max.ms") for which in ("before", "after"))
        by_broker = (
            settings.get("message.timestamp.type") == "LogAppendTime"
        )  # which then overwrites what a record says
        return TopicLimits(
            int(settings.get("max.message.bytes") or DEFAULT_MAX_MESSAGE_BYTES),
            None if by_broker else before,
            None if by_broker else after,
            "compact" in (settings.get("cleanup.policy") or ""),
        )

    def timestamps(self, now_ms: int) -> tuple[int | None, int | None]:
        """The least and the greatest timestamp that the topic takes now, in milliseconds; None: any."""
        least = None if self.before_ms is None else now_ms - self.before_ms
        return least, None if self.after_ms is None else now_ms + self.after_ms


def _bound(settings: Mapping[str, str | None], name: str) -> int | None:
    """Of several names of one setting the older one holds where the newer one has its default."""
    for known in (name, "message.timestamp.difference.max.ms"):
        value = int(settings.get(known) or _UNLIMITED)
        if value < _UNLIMITED:
            return value
    return None
