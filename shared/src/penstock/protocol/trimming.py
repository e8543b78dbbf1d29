"""The one rule of trimming: an exchange partition is trimmed to the minimum over everything that holds it."""

from __future__ import annotations

from collections.abc import Mapping


class PartitionHolds:
    """Who still needs what of one exchange partition. A hold is a name and the lowest offset it needs."""

    def __init__(self) -> None:
        self._holds: dict[str, int] = {}
        self.trimmed = 0

    @property
    def holds(self) -> Mapping[str, int]:
        """Name to lowest offset needed."""
        return self._holds

    def hold(self, name: str, offset: int) -> None:
        """`name` (a reader, a stash, a start offset, a marker, a retained checkpoint, a replay) needs `offset` and on."""
        self._holds[name] = offset

    def release(self, name: str) -> None:
        """`name` needs nothing any more."""
        self._holds.pop(name, None)

    def trim_to(self) -> int | None:
        """The offset to trim to, if something more can go. Without any hold nothing is trimmed."""
        if not self._holds:
            return None
        lowest = min(self._holds.values())
        if lowest <= self.trimmed:
            return None
        self.trimmed = lowest
        return lowest
