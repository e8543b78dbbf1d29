"""The control topics of a cluster."""

from __future__ import annotations

from typing import Final

from penstock.ports import Log

COMMANDS: Final = "commands"
EVENTS: Final = "events"
REQUESTS: Final = "requests"

RETENTION_MS: Final = 24 * 3_600_000
"""How long control messages are kept: longer than anybody may be away and still go on from where it was."""


async def create_control_topics(log: Log) -> None:
    """Create what is missing; before anything else runs."""
    for topic in (COMMANDS, EVENTS, REQUESTS):
        await log.create_topic(topic, 1, retention_ms=RETENTION_MS)
