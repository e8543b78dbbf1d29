"""Whether a store's conditional create is atomic, tried out: what the job log's safety rests on.

Some servers accept `If-None-Match: *` and check it without a lock (RustFS #1659, SeaweedFS #8800), so the store is
asked at start-up and not believed.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from penstock.errors import ExternalError
from penstock.ports import BlobExistsError, BlobNotFoundError, Blobs

WRITERS: Final = 8
ROUNDS: Final = 5
FOLDER: Final = "probes"


async def check_conditional_put(blobs: Blobs) -> None:
    """Let several writers create the same objects at once and see that exactly one wins each, then clean up.

    Raises:
        ExternalError: more or less than one won, or the stored bytes are not the winner's; or the store failed.
    """
    folder = f"{FOLDER}/{uuid.uuid4().hex}"
    for number in range(ROUNDS):
        await _race(blobs, f"{folder}/{number}")


async def _race(blobs: Blobs, key: str) -> None:
    contents = [f"{key} {writer}".encode() for writer in range(WRITERS)]
    try:
        won = await asyncio.gather(*(_created(blobs, key, content) for content in contents))
        winners = [content for content, first in zip(contents, won, strict=True) if first]
        try:
            stored = await blobs.get(key)
        except BlobNotFoundError:
            stored = None
        if len(winners) != 1 or stored != winners[0]:
            raise ExternalError(
                f"the store's conditional PUT is not atomic: of {WRITERS} writers that created {key} with "
                f"If-None-Match: * at once {len(winners)} were told they had, and the object "
                f"{'is' if stored in winners else 'is not'} one of theirs. Two leaders could both believe to lead, "
                "so HA is refused; use a store with atomic conditional writes (AWS S3, MinIO)"
            )
    finally:
        await blobs.delete(key)


async def _created(blobs: Blobs, key: str, content: bytes) -> bool:
    try:
        await blobs.create(key, content)
    except BlobExistsError:
        return False
    return True
