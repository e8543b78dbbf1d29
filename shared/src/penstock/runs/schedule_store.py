"""Where schedules are kept: versions `schedules/<name>/<version>`, each the whole schedule, the newest one counts.

A store creates conditionally but does not replace conditionally, so a schedule is replaced by creating the version after
the one that was read. Versions that newer ones stand for are deleted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from penstock.errors import CorruptDataError, ExternalError
from penstock.ports import BlobExistsError, BlobNotFoundError, Blobs, Clock
from penstock.runs.schedule import Schedule

SCHEDULES: Final = "schedules/"
KEPT: Final = 4
"""So many older versions stay, for who has just listed them."""
UNCERTAIN_PAUSE_MS: Final = 200
READ_AGAIN: Final = 10
"""How often a version is looked for that was deleted between listing and reading."""

_VERSION: Final = re.compile(rf"{SCHEDULES}[^/]+/\d{{20}}")
_SCHEDULE: msgspec.json.Decoder[Schedule] = msgspec.json.Decoder(Schedule)
_log = structlog.get_logger("penstock.runs")


class ScheduleStore:
    """The schedules of one cluster. Reads raise `ExternalError` as the store does, and `CorruptDataError`."""

    def __init__(self, blobs: Blobs, clock: Clock, new_id: Callable[[], str]) -> None:
        """`new_id` gives 32 fresh hex digits."""
        self._blobs = blobs
        self._clock = clock
        self._new_id = new_id

    async def versions(self) -> dict[str, int]:
        """The newest version of every schedule, removed ones among them."""
        keys = await self._versions(SCHEDULES)
        return dict(_parts(key) for key in keys)  # sorted: the newest one counts

    async def read(self, name: str) -> Schedule | None:
        """The newest version; None if there never was one."""
        for _ in range(READ_AGAIN):
            keys = await self._versions(f"{SCHEDULES}{name}/")
            if not keys:
                return None
            try:
                return _decoded(await self._blobs.get(keys[-1]), keys[-1])
            except BlobNotFoundError:
                continue  # newer ones have come meanwhile
        raise CorruptDataError(f"{SCHEDULES}{name}: an object that stands in its list cannot be found")

    async def write(self, before: Schedule | None, after: Schedule) -> Schedule | None:
        """Put a schedule in the place of the version `before`; None if another one is there already.

        Returns only when that is certain, however often the store has to be asked.
        """
        version = before.version + 1 if before is not None else 1
        made = msgspec.structs.replace(after, version=version, nonce=self._new_id())
        if not await self._create(made):
            return None
        keys = await self._versions(f"{SCHEDULES}{made.name}/")
        # Had `before` been so old that its successors were deleted, the create was no proof: then newer ones are there.
        if _parts(keys[-1])[1] != version:
            return None
        for key in keys[: -KEPT - 1]:
            await self._blobs.delete(key)
        return made

    async def _versions(self, prefix: str) -> list[str]:
        """Keys of versions, sorted. What somebody else has put beside them is passed over."""
        return [key for key in await self._blobs.list(prefix) if _VERSION.fullmatch(key)]

    async def _create(self, made: Schedule) -> bool:
        key = f"{SCHEDULES}{made.name}/{made.version:020d}"
        while True:
            try:
                await self._blobs.create(key, msgspec.json.encode(made))
                return True
            except BlobExistsError:
                try:
                    return _decoded(await self._blobs.get(key), key).nonce == made.nonce
                except BlobNotFoundError:
                    return False  # others have gone on from it
            except ExternalError as error:
                _log.warning("no certain answer, trying again", schedule=made.name, error=str(error))
            await self._clock.sleep_ms(UNCERTAIN_PAUSE_MS)


def _parts(key: str) -> tuple[str, int]:
    name, _, version = key.removeprefix(SCHEDULES).partition("/")
    return name, int(version)


def _decoded(data: bytes, key: str) -> Schedule:
    try:
        return _SCHEDULE.decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CorruptDataError(
            f"{key}: no schedule that this program reads: {error}; delete this object, and the version before counts"
        ) from error
