"""One subtask of one attempt: what it does about barriers, snapshots, acks, pauses and its end.

`SubtaskMachine` is the same for sources and for subtasks behind an exchange; only how a barrier reaches them differs.
The shell that drives it (`penstock.task.subtask`) carries commands out in the order given, synchronously, except
`Upload`, which runs in the background and comes back as `Uploaded`, and the sending of frames, which comes back as
`FrameConfirmed`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import msgspec

from penstock.errors import ProtocolError
from penstock.protocol.channels import AdvanceWatermark, Align, BecomeIdle, Deliver, GateCommand, InputGate
from penstock.protocol.frames import Channel, Frame
from penstock.protocol.messages import (
    Acknowledged,
    BarrierMarker,
    CheckpointAborted,
    CheckpointCompleted,
    Declined,
    Flavour,
    SubtaskId,
    SubtaskSnapshot,
)
from penstock.protocol.outputs import OutputId, OutputLedger

# -- events -------------------------------------------------------------------------------------------------------------


class FrameRead(msgspec.Struct, frozen=True):
    """A record of this subtask's partition; `ref` comes back in `Deliver`."""

    frame: Frame
    ref: Any
    size_bytes: int
    """Of the payload: what the producer has counted as sent."""


class MarkerRead(msgspec.Struct, frozen=True):
    """A barrier marker for this attempt stands in `commands`, behind this subtask's deploy."""

    marker: BarrierMarker


class Frozen(msgspec.Struct, frozen=True):
    """What `Freeze` asked for is done: the operators' state is captured."""

    checkpoint: int


class BarrierSent(msgspec.Struct, frozen=True):
    """What `SendBarrier` asked for is done: its frames are cut, the ack waits for them and all before."""

    checkpoint: int


class Uploaded(msgspec.Struct, frozen=True):
    """The captured state is durable."""

    checkpoint: int
    nonce: str
    snapshot: SubtaskSnapshot


class UploadFailed(msgspec.Struct, frozen=True):
    """The captured state could not be made durable; `unavailable`: because the store was away."""

    checkpoint: int
    nonce: str
    reason: str
    unavailable: bool = False


class FrameConfirmed(msgspec.Struct, frozen=True):
    """The log confirmed a frame of this subtask."""

    output: OutputId
    seq: int


class CreditReported(msgspec.Struct, frozen=True):
    """A consumer has processed so many bytes of this subtask's channel."""

    output: OutputId
    processed_bytes: int


class CompletionRead(msgspec.Struct, frozen=True):
    """A checkpoint of this attempt is COMPLETE."""

    message: CheckpointCompleted


class AbortRead(msgspec.Struct, frozen=True):
    """A checkpoint of this attempt was aborted."""

    message: CheckpointAborted


class SourceExhausted(msgspec.Struct, frozen=True):
    """Every split of this source subtask has been read to its end."""


class FinishRead(msgspec.Struct, frozen=True):
    """The leader commands the end: the final checkpoint is complete and published; `final`: the job has ended."""

    final: bool = False


SubtaskEvent = (
    FrameRead | MarkerRead | Frozen | BarrierSent | Uploaded | UploadFailed | FrameConfirmed | CreditReported
    | CompletionRead | AbortRead | SourceExhausted | FinishRead
)  # fmt: skip

# -- commands -----------------------------------------------------------------------------------------------------------


class Freeze(msgspec.Struct, frozen=True):
    """Capture positions and the state of all operators now; report `Frozen` before anything else is processed."""

    checkpoint: int
    nonce: str


class FlushRows(msgspec.Struct, frozen=True):
    """Cut frames of all rows that wait in the outputs."""


class SendBarrier(msgspec.Struct, frozen=True):
    """Append this barrier on every output, behind everything cut before."""

    checkpoint: int
    nonce: str
    flavour: Flavour


class Upload(msgspec.Struct, frozen=True):
    """Make the captured state durable in the background."""

    checkpoint: int
    nonce: str
    canonical: bool = False
    """Whether it must not refer to objects of other checkpoints."""


class Send(msgspec.Struct, frozen=True):
    """Append this event to `events`."""

    message: Acknowledged | Declined


class EmitEndOfTime(msgspec.Struct, frozen=True):
    """Send the maximum watermark through the chain: no row will follow."""


class SetPaused(msgspec.Struct, frozen=True):
    """Stop or resume the reading of source rows."""

    paused: bool


class Publish(msgspec.Struct, frozen=True):
    """Make visible what sinks staged up to this checkpoint (it is COMPLETE)."""

    checkpoint: int
    nonce: str


class ReportEnded(msgspec.Struct, frozen=True):
    """Tell the leader that this source subtask has no more rows."""


class Finish(msgspec.Struct, frozen=True):
    """End: close operators, report `finished`; `final`: forget what was kept for whoever goes on with the job."""

    final: bool = False


SubtaskCommand = (
    Deliver | AdvanceWatermark | BecomeIdle | Freeze | FlushRows | SendBarrier | Upload | Send
    | EmitEndOfTime | SetPaused | Publish | ReportEnded | Finish
)  # fmt: skip


@dataclass(slots=True)
class _Pending:
    """A checkpoint between its freeze and its ack."""

    nonce: str
    barrier_seqs: dict[OutputId, int] | None = None
    """The newest frame per output when the barrier was cut; None until then."""
    snapshot: SubtaskSnapshot | None = None


class SubtaskMachine:
    """The decisions of one subtask in one attempt."""

    def __init__(
        self,
        job: str,
        attempt: str,
        subtask: SubtaskId,
        kind: Literal["source", "inner"],
        channels: Iterable[Channel],
        ledger: OutputLedger,
    ) -> None:
        self.job = job
        self.attempt = attempt
        self.subtask = subtask
        self.kind = kind
        self.gate = InputGate(attempt, channels)
        self.ledger = ledger
        self._highest_marker = 0
        self._freezing: tuple[int, str, Flavour] | None = None
        self._pending: dict[int, _Pending] = {}
        self._paused_by: int | None = None
        self._end_of_time_sent = False
        self.finished = False

    def handle(self, event: SubtaskEvent) -> list[SubtaskCommand]:
        """Take an event; the commands are to be carried out in order."""
        match event:
            case FrameRead():
                return self._gate_commands(self.gate.receive(event.frame, event.ref, event.size_bytes))
            case MarkerRead():
                return self._on_marker(event.marker)
            case Frozen():
                return self._on_frozen(event.checkpoint)
            case BarrierSent():
                self._pending[event.checkpoint].barrier_seqs = self.ledger.last_seqs()
                return []
            case Uploaded():
                return self._on_uploaded(event)
            case UploadFailed():
                return self._on_upload_failed(event)
            case FrameConfirmed():
                self.ledger.confirmed(event.output, event.seq)
                return self._acks()
            case CreditReported():
                self.ledger.credit_reported(event.output, event.processed_bytes)
                return []
            case CompletionRead():
                return self._on_completed(event.message)
            case AbortRead():
                return self._on_aborted(event.message)
            case SourceExhausted():
                return [*self._end_of_time(), ReportEnded()]
            case FinishRead():
                self.finished = True
                return [Finish(event.final)]
            case _:
                assert_never(event)

    # -- barriers -------------------------------------------------------------------------------------------------------

    def _on_marker(self, marker: BarrierMarker) -> list[SubtaskCommand]:
        if marker.attempt != self.attempt or marker.checkpoint <= self._highest_marker:
            return []
        self._highest_marker = marker.checkpoint
        if self.kind != "source":
            return []
        commands: list[SubtaskCommand] = []
        if marker.drain:
            commands += self._end_of_time()
        if marker.pause:
            self._paused_by = marker.checkpoint
            commands.append(SetPaused(True))
        return commands + self._freeze(marker.checkpoint, marker.nonce, marker.flavour)

    def _gate_commands(self, commands: list[GateCommand]) -> list[SubtaskCommand]:
        result: list[SubtaskCommand] = []
        for command in commands:
            match command:
                case Align():
                    result += self._freeze(command.checkpoint, command.nonce, command.flavour)
                case Deliver() | AdvanceWatermark() | BecomeIdle():
                    result.append(command)
                case _:
                    assert_never(command)
        return result

    def _freeze(self, checkpoint: int, nonce: str, flavour: Flavour) -> list[SubtaskCommand]:
        if self._freezing is not None:
            raise ProtocolError(f"{self.subtask}: checkpoint {checkpoint} while {self._freezing[0]} is being frozen")
        self._freezing = (checkpoint, nonce, flavour)
        return [Freeze(checkpoint, nonce)]

    def _on_frozen(self, checkpoint: int) -> list[SubtaskCommand]:
        if self._freezing is None or self._freezing[0] != checkpoint:
            raise ProtocolError(f"{self.subtask}: frozen {checkpoint} was not asked for")
        _, nonce, flavour = self._freezing
        self._freezing = None
        commands: list[SubtaskCommand] = [
            FlushRows(),
            SendBarrier(checkpoint, nonce, flavour),
            Upload(checkpoint, nonce, flavour == "canonical"),
        ]
        self._pending[checkpoint] = _Pending(nonce)
        if self.kind == "inner":
            commands += self._gate_commands(self.gate.resume())
        return commands

    # -- acks -----------------------------------------------------------------------------------------------------------

    def _on_uploaded(self, event: Uploaded) -> list[SubtaskCommand]:
        pending = self._pending.get(event.checkpoint)
        if pending is None or pending.nonce != event.nonce:
            return []
        pending.snapshot = event.snapshot
        return self._acks()

    def _on_upload_failed(self, event: UploadFailed) -> list[SubtaskCommand]:
        if self._pending.pop(event.checkpoint, None) is None:
            return []
        declined = Declined(
            job=self.job, attempt=self.attempt, checkpoint=event.checkpoint, nonce=event.nonce,
            subtask=self.subtask, reason=event.reason, unavailable=event.unavailable,
        )  # fmt: skip
        return [Send(declined)]

    def _acks(self) -> list[SubtaskCommand]:
        """Ack what is durable and whose frames up to the barrier are individually confirmed, lowest first."""
        commands: list[SubtaskCommand] = []
        for checkpoint, pending in sorted(self._pending.items()):
            if pending.snapshot is None or pending.barrier_seqs is None:
                continue
            if not self.ledger.all_confirmed(pending.barrier_seqs):
                continue
            del self._pending[checkpoint]
            acknowledged = Acknowledged(
                job=self.job, attempt=self.attempt, checkpoint=checkpoint, nonce=pending.nonce,
                subtask=self.subtask, snapshot=pending.snapshot,
            )  # fmt: skip
            commands.append(Send(acknowledged))
        return commands

    # -- what the leader decided ----------------------------------------------------------------------------------------

    def _on_completed(self, message: CheckpointCompleted) -> list[SubtaskCommand]:
        if message.attempt != self.attempt:
            return []
        return [Publish(message.checkpoint, message.nonce)]

    def _on_aborted(self, message: CheckpointAborted) -> list[SubtaskCommand]:
        """Acks of it no longer matter; barriers flow on. A source that paused for it goes on."""
        if message.attempt != self.attempt or self._paused_by != message.checkpoint:
            return []
        self._paused_by = None
        return [SetPaused(False)]

    def _end_of_time(self) -> list[SubtaskCommand]:
        if self._end_of_time_sent:
            return []
        self._end_of_time_sent = True
        return [EmitEndOfTime()]
