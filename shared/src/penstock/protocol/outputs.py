"""The producing side of an exchange: sequence numbers, what is confirmed, and how much more may be sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.errors import ProtocolError
from penstock.protocol.frames import Channel, Frame, FrameKind
from penstock.protocol.messages import Flavour

CREDIT_BYTES: Final = 4 << 20
"""How far a producer may be ahead of what the consumer reported as processed, per channel."""


class OutputId(msgspec.Struct, frozen=True, order=True):
    """One partition that this subtask writes to: of which vertex, as which of its inputs."""

    exchange: str
    input: int
    partition: int


@dataclass(slots=True)
class _OutputState:
    next_seq: int = 0
    ordinal: int = 0
    sent_bytes: int = 0
    processed_bytes: int = 0
    confirmed_seq: int = -1


class OutputLedger:
    """Every frame this subtask cut, in one attempt. Frames of a partition are appended in the order of their seq."""

    def __init__(self, attempt: str, producer: int, outputs: Iterable[OutputId], credit_bytes: int) -> None:
        self.producer = producer
        """The index of this subtask."""
        self._attempt = attempt
        self._outputs = {output: _OutputState() for output in outputs}
        self._credit_bytes = credit_bytes
        self._blocked: dict[OutputId, None] = {}

    @property
    def outputs(self) -> Collection[OutputId]:
        """All partitions written to."""
        return self._outputs.keys()

    def data(
        self, output: OutputId, rows: int, size_bytes: int, *, timed: bool = False, combined: bool = False
    ) -> Frame:
        """The header of the next DATA frame (`timed`, `combined`: see there); its rows and bytes are counted as sent."""
        state = self._outputs[output]
        frame = self._next(
            output, state, FrameKind.DATA, rows=rows, ordinal=state.ordinal, timed=timed, combined=combined
        )
        state.ordinal += rows
        state.sent_bytes += size_bytes
        if state.sent_bytes - state.processed_bytes >= self._credit_bytes:
            self._blocked[output] = None
        return frame

    def watermark(self, output: OutputId, watermark: int) -> Frame:
        """The header of the next WATERMARK frame."""
        return self._next(output, self._outputs[output], FrameKind.WATERMARK, watermark=watermark)

    def idle(self, output: OutputId) -> Frame:
        """The header of the next IDLE frame."""
        return self._next(output, self._outputs[output], FrameKind.IDLE)

    def barrier(self, output: OutputId, checkpoint: int, nonce: str, flavour: Flavour) -> Frame:
        """The header of the next BARRIER frame."""
        state = self._outputs[output]
        return self._next(output, state, FrameKind.BARRIER, checkpoint=checkpoint, nonce=nonce, flavour=flavour)

    def confirmed(self, output: OutputId, seq: int) -> None:
        """The log confirmed the frame `seq`. Confirmations of a partition come in order."""
        state = self._outputs[output]
        if seq != state.confirmed_seq + 1 or seq >= state.next_seq:
            raise ProtocolError(
                f"{output}: frame {seq} confirmed after {state.confirmed_seq}, next is {state.next_seq}"
            )
        state.confirmed_seq = seq

    def credit_reported(self, output: OutputId, processed_bytes: int) -> None:
        """The consumer has processed so many bytes of this attempt's channel in all (older reports are ignored)."""
        state = self._outputs[output]
        state.processed_bytes = max(state.processed_bytes, processed_bytes)
        if state.sent_bytes - state.processed_bytes < self._credit_bytes:
            self._blocked.pop(output, None)

    def blocked(self) -> Collection[OutputId]:
        """The partitions without credit. Asked before an input batch is taken, never in the middle of one.

        A channel with nothing outstanding always has credit, so one frame larger than the budget passes.
        """
        return self._blocked.keys()

    def last_seqs(self) -> dict[OutputId, int]:
        """The newest seq per partition; -1 if nothing was cut."""
        return {output: state.next_seq - 1 for output, state in self._outputs.items()}

    def all_confirmed(self, seqs: dict[OutputId, int]) -> bool:
        """Whether every frame up to these is individually confirmed."""
        return all(self._outputs[output].confirmed_seq >= seq for output, seq in seqs.items())

    def _next(
        self, output: OutputId, state: _OutputState, kind: FrameKind, *, rows: int = 0, ordinal: int = 0,
        watermark: int = 0, checkpoint: int = 0, nonce: str = "", flavour: Flavour = "aligned", timed: bool = False,
        combined: bool = False,
    ) -> Frame:  # fmt: skip
        frame = Frame(
            kind, self._attempt, Channel(output.input, self.producer), state.next_seq,
            ordinal, rows, watermark, checkpoint, nonce, flavour, timed, combined,
        )  # fmt: skip
        state.next_seq += 1
        return frame
