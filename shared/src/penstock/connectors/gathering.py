"""The at-least-once writer of sinks that write in calls: rows are gathered, and sent when a checkpoint begins."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from penstock.blocking import run_blocking
from penstock.connectors.base import Prepared, SinkEncoder

if TYPE_CHECKING:
    import polars as pl


class GatheringWriter:
    """Writes the rows of one subtask; see `SinkWriter`. It stages nothing: the checkpoint waits until all is sent."""

    def __init__(
        self, encoder: SinkEncoder, send: Callable[[Sequence[pl.DataFrame]], Coroutine[Any, Any, int | None]]
    ) -> None:
        """`send` is given what the encoder made, in order, and returns when the destination has it for certain.

        Where the destination may refuse rows it returns how many were left out.
        """
        self._encoder = encoder
        self._send = send
        self._frames: list[pl.DataFrame] = []
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
            if frames:
                self.skipped += run_blocking(self._send(frames)) or 0
                frames.clear()

        return Prepared(persist=persist)

    def commit(self, committable: Any) -> None:
        """Nothing is staged."""

    def discard(self, committable: Any) -> None:
        """Nothing is staged."""

    def close(self) -> None:
        """See `SinkWriter.close`."""
        self._frames.clear()
