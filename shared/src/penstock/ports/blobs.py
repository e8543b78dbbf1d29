"""The store of immutable objects: snapshots, job logs, job artifacts."""

from __future__ import annotations

from typing import Protocol

from penstock.errors import ExternalError


class BlobNotFoundError(ExternalError):
    """No object has this key."""

    retryable = False


class BlobExistsError(ExternalError):
    """A conditional create met an object with that key: nothing was written by this call.

    A caller that retried must read back and compare its nonce: the object may be its own, written by an earlier try.
    """

    retryable = False


class Blobs(Protocol):
    """Objects by key (`/`-separated, relative).

    * A returned write is durable and visible to every later read and list; readers never see a part of an object.
    * Any other error than those named means *unknown*: the object may or may not have been written.
    * `create` is atomic: of several concurrent creates of one key exactly one returns.
    """

    async def put(self, key: str, data: bytes) -> None:
        """Write or replace the object."""
        ...

    async def create(self, key: str, data: bytes) -> None:
        """Write the object if there is none of that key, else raise `BlobExistsError`."""
        ...

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """The object's bytes in `[start, end)`; raises `BlobNotFoundError`."""
        ...

    async def list(self, prefix: str) -> list[str]:
        """All keys that begin with `prefix`, sorted."""
        ...

    async def delete(self, key: str) -> None:
        """Remove the object; nothing happens if there is none."""
        ...
