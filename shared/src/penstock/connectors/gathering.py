"""The at-least-once writer of sinks that write in calls: rows are gathered, and sent when a checkpoint begins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from penstock.connectors.base import Prepared, SinkEncoder
from penstock.core.blocking import run_blocking
from penstock.errors import ExternalError

if TYPE_CHECKING:
    import polars as pl

Send = Callable[[Sequence["pl.DataFrame"]], Coroutine[Any, Any, "int | None"]]
"""Is given what the encoder made, in order, and returns when the destination has it for certain; where the destination
may refuse rows, how many were left out. Called with the same list again after an `ExternalError`."""


class GatheringWriter:
    """Writes the rows of one subtask; see `SinkWriter`. It stages nothing: the checkpoint waits until all is sent."""

    def __init__(self, encoder: SinkEncoder, send: Send) -> None:
        self._encoder = encoder
        self._send = send
        self._frames: list[pl.DataFrame] = []
        self._one_at_a_time = threading.Lock()
        self._sending: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._closed = False
        self.skipped = 0

    def write(self, frame: pl.DataFrame) -> None:
        """See `SinkWriter.write`."""
        encoded = self._encoder.encode(frame)
        self.skipped += encoded.skipped
        if encoded.frame.height:
            self._frames.append(encoded.frame)

    def prepare(self, checkpoint: int) -> Prepared:
        """See `SinkWriter.prepare`."""
        frames, self._frames = self._frames, []

        def persist() -> None:
            with self._one_at_a_time:  # a checkpoint that was given up goes on sending, and the next one sends it again
                if frames:
                    left_out = run_blocking(self._until_closed(frames))
                    self.skipped += left_out
                    frames.clear()

        return Prepared(persist=persist)

    async def _until_closed(self, frames: Sequence[pl.DataFrame]) -> int:
        task = asyncio.current_task()
        assert task is not None
        self._sending = asyncio.get_running_loop(), task
        try:
            if self._closed:
                raise ExternalError("the writer is closed: its attempt is over")
            return await self._send(frames) or 0
        except asyncio.CancelledError:
            if not self._closed:
                raise
            raise ExternalError("the writer was closed while it sent: its attempt is over") from None
        finally:
            self._sending = None

    def commit(self, committable: Any) -> None:
        """Nothing is staged."""

    def discard(self, committable: Any) -> None:
        """Nothing is staged."""

    def close(self) -> None:
        """See `SinkWriter.close`: what is being sent at this moment is broken off."""
        self._closed = True
        self._frames.clear()
        if (sending := self._sending) is not None:
            loop, task = sending
            loop.call_soon_threadsafe(task.cancel)
