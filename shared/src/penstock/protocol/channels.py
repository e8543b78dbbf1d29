"""The consuming side of an exchange: which frames count, in what order, and when a snapshot is due.

`InputGate` follows every channel of one subtask's partition. It applies the reader's rules (foreign attempt, duplicate,
gap), holds back the frames of channels whose barrier has come until all have delivered it, and combines watermarks and
idleness. It never looks into a payload: `ref` is whatever the caller wants back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import ProtocolError
from penstock.protocol.frames import Channel, Frame, FrameKind
from penstock.protocol.messages import Flavour
from penstock.protocol.watermarks import CombinedProgress, InputProgress, combined


class Deliver(msgspec.Struct, frozen=True):
    """Hand the rows of this frame to the operator."""

    channel: Channel
    ref: Any
    size_bytes: int
    bounds: tuple[int, int] | None = None
    """Of a timed frame: the watermark of all channels before it, and how far that can rise while its rows are taken
    because the other channels have come so far."""
    combined: bool = False
    """Whether the rows are partial aggregates."""


class AdvanceWatermark(msgspec.Struct, frozen=True):
    """Event time of the subtask has advanced."""

    watermark: int


class BecomeIdle(msgspec.Struct, frozen=True):
    """Every channel is idle: tell the consumers not to wait for this subtask."""


class Align(msgspec.Struct, frozen=True):
    """The barrier has come on every channel and nothing behind it was delivered: take the snapshot, then `resume`."""

    checkpoint: int
    nonce: str
    flavour: Flavour


GateCommand = Deliver | AdvanceWatermark | BecomeIdle | Align


@dataclass(slots=True)
class _ChannelState(InputProgress):
    last_seq: int = -1
    ordinal: int = 0
    barriers: deque[Frame] = field(default_factory=deque[Frame])
    """Barriers that came and whose checkpoint has not been taken yet."""
    stashed: int = 0
    """Frames of this channel that are held back."""
    processed_bytes: int = 0
    """What was handed on and may be reported as credit; grows only."""


class _Stashed(msgspec.Struct, frozen=True):
    frame: Frame
    ref: Any
    size_bytes: int


class GapError(ProtocolError):
    """A frame of a channel is missing: the attempt must fail, going on would lose rows."""


class InputGate:
    """The channels of one subtask in one attempt."""

    def __init__(self, attempt: str, channels: Iterable[Channel]) -> None:
        self._attempt = attempt
        self._channels = {channel: _ChannelState() for channel in channels}
        self._progress = CombinedProgress(self._channels.values())
        self._stash: list[_Stashed] = []
        self._watermark = MIN_WATERMARK
        self._idle = False
        self._aligning: Frame | None = None
        self._arrived = 0
        """On how many channels the barrier of `_aligning` has come."""
        self._snapshot_due = False

    @property
    def watermark(self) -> int:
        """Event time of the subtask."""
        return self._watermark

    @property
    def aligning(self) -> tuple[int, str] | None:
        """The checkpoint whose barrier has come on some channels, and its nonce."""
        return (self._aligning.checkpoint, self._aligning.nonce) if self._aligning else None

    @property
    def stashed_bytes(self) -> int:
        """What is held back by the alignment."""
        return sum(item.size_bytes for item in self._stash)

    @property
    def ended(self) -> bool:
        """Whether every channel has reached the end of event time."""
        return all(state.ended for state in self._channels.values())

    def processed_bytes(self) -> dict[Channel, int]:
        """Per channel, the bytes that no longer count against its credit. Stashed frames do."""
        return {channel: state.processed_bytes for channel, state in self._channels.items()}

    def receive(self, frame: Frame, ref: Any, size_bytes: int) -> list[GateCommand]:
        """A record of the partition was read.

        Raises:
            GapError: frames of its channel are missing.
            ProtocolError: its channel is unknown, or channels disagree on the sequence of barriers.
        """
        if frame.attempt != self._attempt:
            return []
        state = self._channels.get(frame.channel)
        if state is None:
            raise ProtocolError(
                f"frame of unknown channel ({frame.channel}); the deployment names {len(self._channels)}"
            )
        if frame.seq <= state.last_seq:
            return []
        if frame.seq != state.last_seq + 1:
            raise GapError(
                f"{frame.channel}: frame {frame.seq} follows {state.last_seq}, frames in between are missing"
            )
        state.last_seq = frame.seq
        if frame.kind is FrameKind.DATA:
            if frame.ordinal != state.ordinal:
                raise GapError(f"{frame.channel}: rows start at ordinal {frame.ordinal}, {state.ordinal} were read")
            state.ordinal += frame.rows
        commands: list[GateCommand] = []
        self._accept(_Stashed(frame, ref, size_bytes), commands)
        return commands

    def resume(self) -> list[GateCommand]:
        """The snapshot asked for by `Align` is taken: hand on what was held back, up to the next barrier."""
        if not self._snapshot_due:
            raise ProtocolError("resume without a snapshot that was due")
        self._snapshot_due = False
        self._aligning = None
        self._arrived = 0
        commands: list[GateCommand] = []
        for state in self._channels.values():
            state.barriers.popleft()
            state.stashed = 0
            if state.barriers:
                self._align(state.barriers[0], commands)
        held, self._stash = self._stash, []
        for item in held:
            self._accept(item, commands)
        return commands

    def _accept(self, item: _Stashed, commands: list[GateCommand]) -> None:
        state = self._channels[item.frame.channel]
        if self._held_back(state):
            state.stashed += 1
            self._stash.append(item)
            return
        frame = item.frame
        match frame.kind:
            case FrameKind.DATA:
                if state.idle:
                    self._progress.wake(state, self._watermark)
                self._idle = False
                bounds = (self._watermark, self._progress.least_beside(state, MAX_WATERMARK)) if frame.timed else None
                commands.append(Deliver(frame.channel, item.ref, item.size_bytes, bounds, frame.combined))
            case FrameKind.BARRIER:
                state.barriers.append(frame)
                if len(state.barriers) == 1:
                    self._align(frame, commands)
            case FrameKind.WATERMARK:
                self._progress.advance(state, frame.watermark, self._watermark)
                self._combine(commands)
            case FrameKind.IDLE:
                self._progress.rest(state)
                self._combine(commands)
        state.processed_bytes += item.size_bytes

    def _held_back(self, state: _ChannelState) -> bool:
        """Aligned barriers hold back what is behind them; while a snapshot is due nothing moves at all."""
        if self._snapshot_due:
            return True
        if state.stashed:
            return True
        return bool(state.barriers) and state.barriers[0].flavour != "at_least_once"

    def _align(self, barrier: Frame, commands: list[GateCommand]) -> None:
        """The oldest barrier of one more channel: all channels must deliver the same ones in the same order."""
        first = self._aligning = self._aligning or barrier
        if (barrier.checkpoint, barrier.nonce) != (first.checkpoint, first.nonce):
            raise ProtocolError(
                f"channels disagree on the barriers: {barrier.channel} delivered checkpoint {barrier.checkpoint}, "
                f"{first.channel} delivered {first.checkpoint}"
            )
        self._arrived += 1
        if self._arrived == len(self._channels):
            self._snapshot_due = True
            commands.append(Align(first.checkpoint, first.nonce, first.flavour))

    def _combine(self, commands: list[GateCommand]) -> None:
        """What of event time has changed is said once."""
        watermark, idle = self._progress.combined(self._watermark)
        if watermark == MAX_WATERMARK and not self.ended:
            # Operators take this watermark for the end of the input, and rows of the others, which rest, may still come:
            # as a split that is read to its end, a channel that has ended is not there any more.
            watermark, idle = combined([each for each in self._channels.values() if not each.ended], self._watermark)
        if watermark > self._watermark:
            self._watermark = watermark
            commands.append(AdvanceWatermark(watermark))
        if idle and not self._idle:
            commands.append(BecomeIdle())
        self._idle = idle
