"""Credit of a sink's exchange: given back when a frame is scanned, not when it is published.

Frames before a barrier cannot be published before the barrier's COMPLETE; if they withheld credit until then, a full
channel would wait for a barrier that waits behind it. Only frames that COMPLETE covers and that publishing has not
drained withhold credit, so that a slow sink slows its producers.
"""

from __future__ import annotations

from collections import deque

from penstock.protocol.frames import Channel


class SinkCredit:
    """One partition of a sink's exchange in one attempt."""

    def __init__(self, limit_bytes: int) -> None:
        """At most `limit_bytes` of what is covered may wait for publishing before credit is withheld."""
        self._limit_bytes = limit_bytes
        self._scanned: dict[Channel, int] = {}
        self._frames: deque[tuple[int, int]] = deque()
        """(offset behind the frame, bytes) of what was scanned and is not published."""
        self._covered = 0
        self._published = 0

    def scanned(self, channel: Channel, size_bytes: int, offset: int) -> None:
        """A frame was scanned; `offset` is the one behind it."""
        self._scanned[channel] = self._scanned.get(channel, 0) + size_bytes
        self._frames.append((offset, size_bytes))

    def covered(self, offset: int) -> None:
        """COMPLETE covers everything below `offset`."""
        self._covered = max(self._covered, offset)

    def published(self, offset: int) -> None:
        """Everything below `offset` is published."""
        self._published = max(self._published, offset)
        while self._frames and self._frames[0][0] <= self._published:
            self._frames.popleft()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that COMPLETE covers and that are not published."""
        return sum(size for offset, size in self._frames if offset <= self._covered)

    def processed_bytes(self) -> dict[Channel, int]:
        """Per channel, the bytes that no longer count against its credit."""
        withheld = max(0, self.waiting_bytes - self._limit_bytes)
        return {channel: size - min(size, withheld) for channel, size in self._scanned.items()}
