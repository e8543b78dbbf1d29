"""Carries out what `StagedParts` decides: makes staged parts visible, one at a time, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec
import structlog

from penstock.connectors.base import ForgetsCommits, SinkWriter
from penstock.errors import ExternalError
from penstock.protocol.committing import StagedPart, StagedParts

STAGED = "staged"
"""Name of the list state that holds staged parts."""

_log = structlog.get_logger("penstock.committer")


class Committer:
    """The staged parts of one subtask's sinks."""

    def __init__(
        self,
        writers: Mapping[str, SinkWriter],
        restored: Sequence[StagedPart],
        restored_checkpoint: int,
        changed: Callable[[], None],
        elsewhere: Mapping[str, Callable[[StagedPart], Awaitable[None]]] = MappingProxyType({}),
    ) -> None:
        """`changed` is called when `published` has risen. Parts of operators in `elsewhere` are committed by that and
        not by their writers."""
        self._writers = writers
        self._elsewhere = elsewhere
        self._parts = StagedParts(restored, restored_checkpoint)
        self._wake = asyncio.Event()
        self._wake.set()
        self._changed = changed
        self._unpersisted: list[Callable[[], None]] = []
        """Work that makes staged parts durable and has not succeeded yet: a declined checkpoint leaves it to the next."""

    @property
    def published(self) -> int:
        """The checkpoint up to which everything is visible."""
        return self._parts.published

    def prepare(self, checkpoint: int) -> tuple[dict[str, list[bytes]], list[Callable[[], None]]]:
        """Stage what was written; returns per sink operator what its snapshot lists, and the work to make it durable."""
        for operator, writer in self._writers.items():
            prepared = writer.prepare(checkpoint)
            self._parts.prepared(StagedPart(operator, checkpoint, part) for part in prepared.committables)
            if prepared.persist is not None:
                self._unpersisted.append(prepared.persist)
        listed: dict[str, list[bytes]] = {operator: [] for operator in self._writers}
        for part in self._parts.listed(checkpoint):
            listed[part.operator].append(msgspec.json.encode(part))
        return listed, list(self._unpersisted)

    def persisted(self, persists: Sequence[Callable[[], None]]) -> None:
        """This work has succeeded."""
        self._unpersisted = [persist for persist in self._unpersisted if persist not in persists]

    def completed(self, checkpoint: int) -> None:
        """COMPLETE: commit what it covers."""
        self._parts.completed(checkpoint)
        self._wake.set()

    async def run(self) -> None:
        """Commit whenever there is something to commit; ends by cancellation."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            for part in self._parts.to_commit():
                if part.operator in self._elsewhere:
                    await self._elsewhere[part.operator](part)
                else:
                    await asyncio.to_thread(self._writers[part.operator].commit, part.committable)
                self._parts.committed(part)
            self._changed()
            if unlisted := self._parts.to_forget():
                await asyncio.to_thread(self._forget, unlisted)
                self._parts.forgotten(unlisted)

    async def job_ended(self) -> None:
        """Forget the proofs of what the last checkpoints committed: nobody restores what lists it any more.

        What cannot be removed is in nobody's way.
        """
        try:
            await asyncio.to_thread(self._forget, self._parts.to_forget_at_the_end())
        except ExternalError as error:
            _log.warning("proofs of commits stay behind", error=str(error))

    def _forget(self, parts: Sequence[StagedPart]) -> None:
        for part in parts:
            writer = self._writers[part.operator]
            if isinstance(writer, ForgetsCommits):
                writer.forget(part.committable)


def decode_staged(entries: Sequence[bytes]) -> list[StagedPart]:
    """Staged parts from list state."""
    return [msgspec.json.decode(entry, type=StagedPart) for entry in entries]
