"""Units: what one batch of a subtask gives to one consumer, sent again after a failure and counted once.

A unit is named by the number of the producer's batch. It may travel in parts, and counts when all parts *of one
incarnation* of the producer are there. Whatever is sent again for a number that has counted is dropped, so a unit that
counts is never withdrawn. Numbers are those of batches and not dense: a batch without rows for a consumer sends nothing,
and whether it has rows may change when a compacted topic is read again. So that a missing unit is noticed all the same,
each names the one before it on its channel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.core.times import MIN_WATERMARK
from penstock.errors import ProtocolError
from penstock.protocol.decisions import AlignedBarrier
from penstock.protocol.frames import Channel
from penstock.protocol.outputs import OutputId


class MissingUnitError(ProtocolError):
    """A unit of a channel is missing in the log: going on would lose rows."""


class UnitPart(msgspec.Struct, frozen=True):
    """The header of a record: one part of a unit."""

    channel: Channel
    incarnation: int
    """Of the producing subtask. It tells the parts of different incarnations apart, and nothing else."""
    number: int
    previous: int
    """The number of the unit before on this channel; 0 if there is none."""
    part: int = 0
    last: bool = True
    watermark: int = MIN_WATERMARK
    """Of the last part: how far event time has come behind the unit."""
    idle: bool = False
    barrier: AlignedBarrier | None = None
    """A unit of its own, without rows."""


class Unit(msgspec.Struct, frozen=True):
    """A unit that counts."""

    channel: Channel
    number: int
    refs: tuple[Any, ...]
    """What the caller said of its parts, in order."""
    watermark: int
    idle: bool
    barrier: AlignedBarrier | None


@dataclass(slots=True)
class _Open:
    """The parts that one incarnation has sent of its newest unit on a channel."""

    number: int
    refs: list[Any] = field(default_factory=list[Any])


@dataclass(slots=True)
class _ChannelUnits:
    last: int = 0
    """The number of the newest unit that counts."""
    open: dict[int, _Open] = field(default_factory=dict[int, _Open])
    """By incarnation."""


class UnitGate:
    """Which units of a partition count: the reader's rules for all channels of one consuming subtask."""

    def __init__(self, channels: Iterable[Channel]) -> None:
        self._channels = {channel: _ChannelUnits() for channel in channels}

    def receive(self, part: UnitPart, ref: Any) -> Unit | None:
        """A record of the partition was read: the unit that it completes, if it does and the unit counts.

        Raises:
            MissingUnitError: what comes before it on its channel is not there.
        """
        state = self._channels.get(part.channel)
        if state is None:
            raise ProtocolError(f"unit of an unknown channel ({part.channel}); there are {len(self._channels)}")
        if part.number <= state.last:
            return None
        opened = state.open.get(part.incarnation)
        if opened is None or opened.number < part.number:
            opened = state.open[part.incarnation] = _Open(part.number)
        if part.number < opened.number or part.part < len(opened.refs):
            return None  # appended twice
        if part.part > len(opened.refs):
            raise MissingUnitError(
                f"{part.channel}: part {part.part} of unit {part.number} follows part {len(opened.refs) - 1}"
            )
        if part.previous > state.last:
            raise MissingUnitError(f"{part.channel}: unit {part.previous} is missing, {state.last} is the newest")
        opened.refs.append(ref)
        if not part.last:
            return None
        state.last = part.number
        state.open = {whose: each for whose, each in state.open.items() if each.number > part.number}
        return Unit(part.channel, part.number, tuple(opened.refs), part.watermark, part.idle, part.barrier)

    def newest(self) -> dict[Channel, int]:
        """Per channel the number of the newest unit that counts."""
        return {channel: state.last for channel, state in self._channels.items()}

    def snapshot(self) -> Any:
        """What `restore` needs, open parts included: the rest of them stands behind the position of the snapshot."""
        return {
            channel: (state.last, {whose: (each.number, tuple(each.refs)) for whose, each in state.open.items()})
            for channel, state in self._channels.items()
        }

    def restore(self, snapshot: Any) -> None:
        """Go on from a snapshot."""
        for channel, (last, opened) in snapshot.items():
            self._channels[channel] = _ChannelUnits(
                last, {whose: _Open(number, list(refs)) for whose, (number, refs) in opened.items()}
            )


@dataclass(slots=True)
class _OutputUnits:
    last: int = 0
    sent: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    """Numbers that the consumer has not reported as processed, with their bytes."""
    bytes: int = 0
    """Of these."""
    processed: int = 0
    """The newest number that the consumer reported."""
    appended: int = 0
    """Parts that were handed to the log."""
    confirmed: int = 0
    """Parts that the log has confirmed; it does so in order."""


class UnitLedger:
    """The units that an incarnation of a subtask has sent, and how much more it may send."""

    def __init__(self, producer: int, incarnation: int, outputs: Iterable[OutputId], credit_bytes: int) -> None:
        self._producer = producer
        self._incarnation = incarnation
        self._outputs = {output: _OutputUnits() for output in outputs}
        self._credit_bytes = credit_bytes

    @property
    def outputs(self) -> Iterable[OutputId]:
        """All partitions written to."""
        return self._outputs.keys()

    def unit(
        self, output: OutputId, number: int, sizes: tuple[int, ...], watermark: int, idle: bool,
        barrier: AlignedBarrier | None = None,
    ) -> list[UnitPart]:  # fmt: skip
        """The headers of a unit's parts, one for each size in bytes; a unit without rows has one part of no bytes.

        They are none if the consumer has processed the unit already, as it may have where a batch is computed again.
        """
        state = self._outputs[output]
        previous, state.last = state.last, number
        if number <= state.processed:
            return []
        sizes = sizes or (0,)
        size = sum(sizes)
        state.sent.append((number, size))
        state.bytes += size
        state.appended += len(sizes)
        channel = Channel(output.input, self._producer)
        return [
            UnitPart(
                channel, self._incarnation, number, previous, part, part == len(sizes) - 1, watermark, idle, barrier
            )
            for part in range(len(sizes))
        ]  # fmt: skip

    def confirmed(self, output: OutputId) -> None:
        """The log has confirmed the oldest part of this output that was not confirmed."""
        self._outputs[output].confirmed += 1

    def processed(self, output: OutputId, number: int) -> None:
        """The consumer has processed this unit and those before; older reports are ignored."""
        state = self._outputs[output]
        state.processed = max(state.processed, number)
        while state.sent and state.sent[0][0] <= state.processed:
            state.bytes -= state.sent.popleft()[1]

    def blocked(self) -> bool:
        """Whether a consumer is so far behind that no further batch may be processed."""
        return any(state.bytes >= self._credit_bytes for state in self._outputs.values())

    def appended(self) -> dict[OutputId, int]:
        """Per output, the parts handed to the log so far."""
        return {output: state.appended for output, state in self._outputs.items()}

    def all_confirmed(self, appended: dict[OutputId, int]) -> bool:
        """Whether these are in the log."""
        return all(self._outputs[output].confirmed >= count for output, count in appended.items())

    def snapshot(self) -> Any:
        """Per output the number of the newest unit."""
        return {output: state.last for output, state in self._outputs.items()}

    def restore(self, snapshot: Any) -> None:
        """Go on from a snapshot."""
        for output, last in snapshot.items():
            self._outputs[output].last = last
