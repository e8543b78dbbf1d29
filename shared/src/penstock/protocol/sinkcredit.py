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
        self._uncovered: deque[tuple[int, int]] = deque()
        """Those of them that COMPLETE does not cover."""
        self._waiting_bytes = 0
        self._covered = 0
        self._published = 0

    def scanned(self, channel: Channel, size_bytes: int, offset: int) -> None:
        """A frame was scanned; `offset` is the one behind it."""
        self._scanned[channel] = self._scanned.get(channel, 0) + size_bytes
        self._frames.append((offset, size_bytes))
        self._uncovered.append((offset, size_bytes))
        self.covered(self._covered)

    def covered(self, offset: int) -> None:
        """COMPLETE covers everything below `offset`."""
        self._covered = max(self._covered, offset)
        while self._uncovered and self._uncovered[0][0] <= self._covered:
            self._waiting_bytes += self._uncovered.popleft()[1]

    def published(self, offset: int) -> None:
        """Everything below `offset` is published."""
        self._published = max(self._published, offset)
        while self._frames and self._frames[0][0] <= self._published:
            end, size_bytes = self._frames.popleft()
            if end <= self._covered:
                self._waiting_bytes -= size_bytes
            else:
                self._uncovered.popleft()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that COMPLETE covers and that are not published."""
        return self._waiting_bytes

    def processed_bytes(self) -> dict[Channel, int]:
        """Per channel, the bytes that no longer count against its credit."""
        withheld = max(0, self.waiting_bytes - self._limit_bytes)
        return {channel: size - min(size, withheld) for channel, size in self._scanned.items()}
