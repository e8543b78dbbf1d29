"""Appends workers' events to the log. One that the log does not take is replaced, and never ends who sends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import structlog

from penstock.coordination.control_topics import EVENTS
from penstock.ports import Log, NewRecord, RecordTooLargeError
from penstock.protocol.messages import AnyEvent, encode
from penstock.protocol.unsendable import instead_of

_log = structlog.get_logger("penstock.worker")


NOT_ENCODED: Final = (TypeError, ValueError)
"""What the encoder raises, `UnicodeEncodeError` among it."""


def encode_batch(events: Sequence[AnyEvent]) -> bytes:
    """A batch for the pipe between a worker and its supervisor; what cannot be encoded is replaced."""
    try:
        return msgspec.json.encode(list(events))
    except NOT_ENCODED:
        return b"[" + b",".join(_encoded(event) for event in events) + b"]"


def _encoded(event: AnyEvent) -> bytes:
    try:
        return encode(event)
    except NOT_ENCODED as error:
        _log.error("an event cannot be sent", kind=type(event).__name__, reason=str(error))
        return encode(instead_of(event, str(error)))


async def append_events(log: Log, events: Sequence[AnyEvent]) -> None:
    """Append in order; a repeated event tells the leader nothing new. `log` waits until that is certain."""
    if not events:
        return
    try:
        await log.append(EVENTS, 0, [NewRecord(_encoded(event)) for event in events])
    except RecordTooLargeError as error:
        if len(events) == 1:
            await _append_instead(log, events[0], str(error))
            return
        for event in events:
            await append_events(log, [event])


async def _append_instead(log: Log, event: AnyEvent, reason: str) -> None:
    _log.error("an event cannot be sent", kind=type(event).__name__, reason=reason)
    try:
        await log.append(EVENTS, 0, [NewRecord(encode(instead_of(event, reason)))])
    except RecordTooLargeError as error:
        _log.error("nor can what would have been said instead", kind=type(event).__name__, reason=str(error))
