"""What the leader is told instead of an event that the log does not take: no event may end who sends it."""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from penstock.protocol.messages import (
    Acknowledged,
    AnyEvent,
    Declined,
    Heartbeat,
    TaskChanged,
    TaskProgress,
    TaskStatus,
)

SAID: Final = 10_000
"""So many characters of a text are kept."""


def instead_of(event: AnyEvent, reason: str) -> AnyEvent:
    """A small event that says why this one could not be sent, with the same consequences for no one else.

    A snapshot that cannot be told is declined; a subtask whose status cannot be told has failed.
    """
    match event:
        case Acknowledged() | Declined():
            return Declined(
                job=event.job, attempt=event.attempt, checkpoint=event.checkpoint, nonce=event.nonce,
                subtask=event.subtask, reason=cut(f"what it has to say of the checkpoint cannot be sent: {reason}"),
            )  # fmt: skip
        case TaskChanged():
            return msgspec.structs.replace(event, status=_shortened(event.status, reason))
        case Heartbeat():
            return msgspec.structs.replace(event, tasks=tuple(_without_counters(status) for status in event.tasks))
        case _:
            assert_never(event)


def cut(text: str) -> str:
    """The beginning of a text, in characters that any log takes."""
    short = text if len(text) <= SAID else f"{text[:SAID]}... ({len(text):,} characters)"
    return short.encode(errors="replace").decode()


def _shortened(status: TaskStatus, reason: str) -> TaskStatus:
    if status.state == "failed":
        return _without_counters(status)
    failed = msgspec.structs.replace(status, state="failed", error=cut(f"its status cannot be sent: {reason}"))
    return _without_counters(failed)


def _without_counters(status: TaskStatus) -> TaskStatus:
    return msgspec.structs.replace(
        status, error=cut(status.error), frames=cut(status.frames), metrics={}, progress=TaskProgress()
    )  # fmt: skip
