"""The small, fast, forgetful store: the leader's lease and a cache of what the job log says. Never a source of truth."""

from __future__ import annotations

from typing import Protocol


class Metadata(Protocol):
    """Keys with values and optional time to live. May lose everything at any time; nothing safe depends on it."""

    async def acquire(self, key: str, value: bytes, ttl_ms: int) -> bool:
        """Set `key` if it is unset or has expired; whether this call set it."""
        ...

    async def renew(self, key: str, value: bytes, ttl_ms: int) -> bool:
        """Extend the time to live if the value is still `value`; whether it was."""
        ...

    async def release(self, key: str, value: bytes) -> bool:
        """Delete `key` if the value is still `value`; whether it was."""
        ...

    async def put(self, key: str, value: bytes) -> None:
        """Set `key` unconditionally, without expiry."""
        ...

    async def get(self, key: str) -> bytes | None:
        """The value, or None if unset or expired."""
        ...
