"""Where the splits of a job's sources began: an object per split, written before its first row is read.

"The end of the topic" and "the first record after a time" mean something else a minute later. An attempt that fails
before the first checkpoint must not make the next one begin elsewhere.
"""

from __future__ import annotations

import urllib.parse

import msgspec

from penstock.connectors.base import Position
from penstock.ports import BlobExistsError, Blobs


def start_positions_prefix(job: str) -> str:
    """Where the objects of a job stand."""
    return f"jobs/{job}/beginnings/"


class StartPositionStore:
    """The beginnings of one source's splits."""

    def __init__(self, blobs: Blobs, job: str, operator: str) -> None:
        self._blobs = blobs
        self._prefix = f"{start_positions_prefix(job)}{operator}/"

    async def remember(self, split: str, position: Position) -> Position:
        """Keep a split's beginning; what was kept before it counts."""
        key = self._prefix + urllib.parse.quote(split, safe="")
        try:
            await self._blobs.create(key, msgspec.json.encode(position))
        except BlobExistsError:
            return msgspec.json.decode(await self._blobs.get(key))
        return position
