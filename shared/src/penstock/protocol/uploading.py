"""When a snapshot counts as durable: every object of it was stored for certain.

A lost answer means unknown: the identical bytes are sent again, a bounded number of times, then the checkpoint is
declined. Objects have names of their own attempt and checkpoint, so a late write of a given-up try harms nobody.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

UPLOAD_TRIES = 4


class Put(msgspec.Struct, frozen=True):
    """Store this object (again, the identical bytes); `stored` or `unknown` follows."""

    key: str


class UploadDone(msgspec.Struct, frozen=True):
    """Every object is durable: the checkpoint may be acknowledged."""


class UploadGivenUp(msgspec.Struct, frozen=True):
    """An object could not be stored: the checkpoint is declined."""

    reason: str


UploadCommand = Put | UploadDone | UploadGivenUp


class UploadMachine:
    """The objects of one subtask's snapshot."""

    def __init__(self, keys: Iterable[str], tries: int = UPLOAD_TRIES) -> None:
        self._missing = dict.fromkeys(keys, tries)
        self._given_up = False

    def start(self) -> list[UploadCommand]:
        """Store all objects."""
        return [Put(key) for key in self._missing] or [UploadDone()]

    def stored(self, key: str) -> list[UploadCommand]:
        """The store confirmed this object."""
        self._missing.pop(key)
        return [UploadDone()] if not self._missing and not self._given_up else []

    def unknown(self, key: str, reason: str) -> list[UploadCommand]:
        """No certain answer."""
        self._missing[key] -= 1
        if self._missing[key] > 0:
            return [Put(key)]
        if self._given_up:
            return []
        self._given_up = True
        return [UploadGivenUp(reason)]
