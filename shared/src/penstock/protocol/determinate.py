"""A subtask whose output follows from logs: after a failure it continues alone, and what it has sent is never withdrawn.

`DeterminateSubtask` reads the partition of its vertex and the decision log of its slot (`penstock.protocol.decisions`),
and `DeterminateSource` the decision log alone. Both make *batches*, numbered from 1, and what a batch gives to a consumer
is a unit (`penstock.protocol.units`). A new incarnation restores the newest completed snapshot and reads the logs from
there: it makes the same batches with the same numbers, and its consumers drop the units that they have.

Periodic checkpoints need no barriers: each subtask takes a snapshot at its own place, between two batches, when it reads
the leader's marker. Barriers are for snapshots that other subtasks restore together at one place of the data: savepoints,
rescaling and the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.core.times import MIN_WATERMARK
from penstock.protocol.decisions import AlignedBarrier, AnyDecision, Cut, Decision, Rest, Take
from penstock.protocol.frames import Channel
from penstock.protocol.outputs import OutputId
from penstock.protocol.units import Unit, UnitGate, UnitLedger, UnitPart
from penstock.protocol.watermarks import InputProgress, combined


class Rows(msgspec.Struct, frozen=True):
    """The rows of a split that a batch of a source consists of."""

    split: str
    start: int
    end: int


class Batch(msgspec.Struct, frozen=True):
    """What the operators are given at once."""

    units: tuple[Unit, ...]
    time: int
    """In µs. Operators know no other clock; what is due by it is done behind the rows."""
    watermark: int
    """Takes effect behind the rows."""
    idle: bool


class SourceBatch(msgspec.Struct, frozen=True):
    """What a source is given at once: rows to read, or a split that rests."""

    rows: Rows | None
    """Without rows of their own where the split rests; None where time alone has moved."""
    time: int
    rests: bool = False


class Process(msgspec.Struct, frozen=True):
    """Give a batch to the operators, and tell what came out of it (`processed`)."""

    number: int
    batch: Batch | SourceBatch


class SendPart(msgspec.Struct, frozen=True):
    """Append a part of a unit to this output; parts of an output in this order, each until the log has it for certain."""

    output: OutputId
    part: UnitPart
    ref: Any


class TakeSnapshot(msgspec.Struct, frozen=True):
    """Keep the state of the operators as it is now, together with the place of the subtask."""

    checkpoint: int
    nonce: str
    aligned: bool
    """Whether a barrier has come to this place on every channel."""
    place: Mapping[str, Any]


class AcknowledgeSnapshot(msgspec.Struct, frozen=True):
    """The snapshot can be restored: it is durable, and all that was sent before it is as well."""

    checkpoint: int
    nonce: str
    aligned: bool


class SeekSplit(msgspec.Struct, frozen=True):
    """Rows that were fetched of a split are not the next ones: it is to be read from this position."""

    split: str
    position: int


DeterminateCommand = Process | SendPart | TakeSnapshot | AcknowledgeSnapshot | SeekSplit


class Output(msgspec.Struct, frozen=True):
    """What a batch gives to one consumer."""

    parts: tuple[tuple[Any, int], ...] = ()
    """What the caller calls the rows, and their bytes."""
    watermark: int = MIN_WATERMARK
    idle: bool = False


@dataclass(slots=True)
class _Pending:
    """A snapshot that is not acknowledged yet."""

    appended: dict[OutputId, int]
    number: int
    stored: bool = False


@dataclass(slots=True)
class _Channel(InputProgress):
    barrier: AlignedBarrier | None = None
    """That has come while others' has not."""


class Determinate(ABC):
    """What subtasks of sources and of other vertices have in common."""

    def __init__(self, vertex: str, ledger: UnitLedger, decided: int, *, publishes: bool) -> None:
        """A subtask that begins.

        Args:
            vertex: whose subtask it is; decisions of others in the slot are passed over.
            ledger: its outputs.
            decided: where the decision log ended when this incarnation began. It proposes nothing before it has come to
                that place: what it would propose is decided already.
            publishes: whether the vertex has a sink: then snapshots wait for its marks (`made_visible`).
        """
        self.number = 0
        """Of the newest batch or barrier."""
        self._processed = 0
        """Of the newest batch."""
        self.time = 0
        self.stopped = False
        """Whether a barrier has come behind which nothing is processed."""
        self.decided = 0
        """The offset of the record of the decision log that was obeyed last. It is read again after a failure: what was
        obeyed of it is void by then."""
        self.published = -1 if publishes else None
        """The number of the newest batch whose rows the sink of this vertex has made visible; None without a sink."""
        self._vertex = vertex
        self._ledger = ledger
        self._caught_up = decided
        self._decisions: deque[tuple[int, AnyDecision]] = deque()
        self._steps: deque[Batch | SourceBatch | AlignedBarrier] = deque()
        """What follows from the decisions that were obeyed: batches, and barriers between them."""
        self._doing: Batch | SourceBatch | None = None
        """What the operators are at."""
        self._sent: dict[OutputId, tuple[int, bool]] = {}
        self._markers: deque[tuple[int, str]] = deque()
        self._pending: dict[tuple[int, str, bool], _Pending] = {}
        self._proposed: dict[str, AnyDecision] = {}
        """What was proposed and has not been read back: of each split one decision, and one without a split."""
        self._read_decisions = 0

    # -- events ----------------------------------------------------------------------------------------------------

    def decisions(self, offset: int, record: Iterable[AnyDecision]) -> list[DeterminateCommand]:
        """A record of the decision log was read."""
        for decision in record:
            if not isinstance(decision, Decision) or decision.vertex == self._vertex:
                self._decisions.append((offset, decision))
        self._read_decisions = offset + 1
        return self._advance()

    def marker(self, checkpoint: int, nonce: str) -> list[DeterminateCommand]:
        """The leader wants a snapshot of every subtask at its own place.

        There is none behind a barrier that stops: whoever begins anew passes that barrier again, and says so again.
        """
        self._markers.append((checkpoint, nonce))
        return self._advance()

    def processed(self, outputs: Mapping[OutputId, Output]) -> list[DeterminateCommand]:
        """The operators have done the batch of the last `Process`."""
        self._doing = None
        commands: list[DeterminateCommand] = []
        for output in self._ledger.outputs:
            commands += self._send(output, outputs.get(output, Output()))
        return commands + self._advance()

    def stored(self, checkpoint: int, nonce: str, aligned: bool) -> list[DeterminateCommand]:
        """The objects of a snapshot are durable."""
        self._pending[checkpoint, nonce, aligned].stored = True
        return self._acknowledged()

    def confirmed(self, output: OutputId) -> list[DeterminateCommand]:
        """The log has the oldest part that was sent to this output and not confirmed."""
        self._ledger.confirmed(output)
        return self._acknowledged()

    def made_visible(self, number: int) -> list[DeterminateCommand]:
        """A mark of the sink of this vertex stands behind the batch of this number."""
        self.published = max(number, self.published or 0)
        return self._acknowledged()

    def credit(self, output: OutputId, number: int) -> list[DeterminateCommand]:
        """The consumer has processed the unit of this number."""
        self._ledger.processed(output, number)
        return self._advance()

    # -- what they do ----------------------------------------------------------------------------------------------

    @property
    def caught_up(self) -> bool:
        """Whether the subtask has come to where the decision log ended when it began, and has nothing left to obey."""
        waits = self._decisions or self._steps or self._doing is not None
        return self._read_decisions >= self._caught_up and not waits

    @abstractmethod
    def _obey(self, decision: AnyDecision) -> list[DeterminateCommand] | None:
        """Queue the steps that follow from a decision; None if what it needs has not been read yet."""

    @abstractmethod
    def _place(self) -> dict[str, Any]:
        """What a restored subtask needs beside what all of them do."""

    def _advance(self) -> list[DeterminateCommand]:
        commands: list[DeterminateCommand] = []
        while self._doing is None:
            if self._steps:
                step = self._steps[0]
                if isinstance(step, AlignedBarrier):
                    commands += self._barrier(step)
                elif self._ledger.blocked():
                    break
                else:
                    self._doing = step
                    self.number += 1
                    self._processed = self.number
                    commands.append(Process(self.number, step))
                self._steps.popleft()
            elif self._markers and not self.stopped:
                commands += self._snapshot(*self._markers.popleft(), aligned=False)
            elif self._decisions and not self.stopped:
                offset, decision = self._decisions[0]
                obeyed = self._obey(decision)
                if obeyed is None:
                    break
                commands += obeyed
                self._decisions.popleft()
                self.decided = offset
                self._proposed = {key: each for key, each in self._proposed.items() if each != decision}
            else:
                break
        return commands

    def _propose(self, wanted: Mapping[str, AnyDecision]) -> list[AnyDecision]:
        """Those of which no other is under way."""
        new = {key: decision for key, decision in wanted.items() if key not in self._proposed}
        self._proposed |= new
        return list(new.values())

    def _send(self, output: OutputId, made: Output) -> list[DeterminateCommand]:
        """The unit of the newest batch that was processed, if there is something to say."""
        before = self._sent.get(output, (MIN_WATERMARK, False))
        watermark = max(made.watermark, before[0])
        if not made.parts and (watermark, made.idle) == before:
            return []
        self._sent[output] = watermark, made.idle
        sizes = tuple(size for _, size in made.parts)
        parts = self._ledger.unit(output, self.number, sizes, watermark, made.idle)
        refs = [ref for ref, _ in made.parts] or [None]
        return [SendPart(output, part, refs[part.part]) for part in parts]

    def _barrier(self, barrier: AlignedBarrier) -> list[DeterminateCommand]:
        """Everything before the barrier is processed. It has a number of its own."""
        commands = self._snapshot(barrier.checkpoint, barrier.nonce, aligned=True)
        self.number += 1
        for output in self._ledger.outputs:
            watermark, idle = self._sent.get(output, (MIN_WATERMARK, False))
            parts = self._ledger.unit(output, self.number, (), watermark, idle, barrier)
            commands += [SendPart(output, part, None) for part in parts]
        return commands

    def _snapshot(self, checkpoint: int, nonce: str, *, aligned: bool) -> list[DeterminateCommand]:
        self._pending[checkpoint, nonce, aligned] = _Pending(self._ledger.appended(), self._processed)
        place = {
            "number": self.number,
            "processed": self._processed,
            "time": self.time,
            "decided": self.decided,
            "outputs": self._ledger.snapshot(),
            "sent": dict(self._sent),
            **self._place(),
        }
        return [TakeSnapshot(checkpoint, nonce, aligned, place)]

    def _acknowledged(self) -> list[DeterminateCommand]:
        commands: list[DeterminateCommand] = []
        for key, pending in list(self._pending.items()):
            visible = self.published is None or self.published >= pending.number
            if pending.stored and visible and self._ledger.all_confirmed(pending.appended):
                del self._pending[key]
                commands.append(AcknowledgeSnapshot(*key))
        return commands

    def _restore(self, place: Mapping[str, Any]) -> None:
        self.number, self._processed, self.time = place["number"], place["processed"], place["time"]
        self._sent = dict(place["sent"])
        self.decided = self._read_decisions = place["decided"]
        self._ledger.restore(place["outputs"])


class DeterminateSubtask(Determinate):
    """A subtask that reads an exchange."""

    def __init__(
        self, vertex: str, channels: Iterable[Channel], ledger: UnitLedger, decided: int,
        place: Mapping[str, Any] | None = None, *, publishes: bool = False,
    ) -> None:  # fmt: skip
        """`place`: of the snapshot that is restored."""
        super().__init__(vertex, ledger, decided, publishes=publishes)
        channels = tuple(channels)
        self.upto = 0
        """Records of the partition below this offset are in batches."""
        self.read = 0
        """The offset of the next record that is to be read."""
        self.watermark = MIN_WATERMARK
        self.credited: dict[Channel, int] = {}
        """Per channel the newest unit whose batch is processed, which is reported as credit. Part of the snapshot: a
        producer that begins anew, from an older place, does not send again what this subtask has processed."""
        self._gate = UnitGate(channels)
        self._progress = {channel: _Channel() for channel in channels}
        self._units: deque[tuple[int, Unit]] = deque()
        """That count, with the offset of their last part, and are in no batch."""
        self._held: list[Unit] = []
        """Behind a barrier, on channels whose barrier has come while others' has not."""
        if place is not None:
            self._restore(place)

    def data(self, offset: int, part: UnitPart, ref: Any) -> list[DeterminateCommand]:
        """A record of the partition was read."""
        unit = self._gate.receive(part, ref)
        if unit is not None:
            self._units.append((offset, unit))
        self.read = offset + 1
        return self._advance()

    def proposals(self, now: int, *, due: bool = False) -> list[AnyDecision]:
        """What is to be proposed: a batch ends when there are new records, or a timer is `due`."""
        if not (self.caught_up and (due or self.read > self.upto)):
            return []
        return self._propose({"": Cut(self._vertex, self.read, max(now, self.time))})

    def processed(self, outputs: Mapping[OutputId, Output]) -> list[DeterminateCommand]:
        """See `Determinate.processed`."""
        assert isinstance(self._doing, Batch)
        self.credited |= {unit.channel: unit.number for unit in self._doing.units}
        return super().processed(outputs)

    def _obey(self, decision: AnyDecision) -> list[DeterminateCommand] | None:
        if not isinstance(decision, Cut):
            return []  # barriers in the decision log are for sources
        if decision.upto > self.read:
            return None
        if decision.upto <= self.upto and decision.time <= self.time:
            return []
        self.upto, self.time = max(self.upto, decision.upto), max(self.time, decision.time)
        units: list[Unit] = []
        while self._units and self._units[0][0] < self.upto and not self.stopped:
            self._take(self._units.popleft()[1], units)
        if not self.stopped:
            self._batch(units)
        return []

    def _take(self, unit: Unit, units: list[Unit]) -> None:
        """Into the batch, or behind the barrier that its channel has delivered."""
        channel = self._progress[unit.channel]
        if channel.barrier is not None:
            self._held.append(unit)
        elif unit.barrier is None:
            units.append(unit)
        else:
            channel.barrier = unit.barrier
            self._align(unit.barrier, units)

    def _align(self, barrier: AlignedBarrier, units: list[Unit]) -> None:
        """A channel has delivered a barrier: the last one ends the batch, and a newer one ends older alignments."""
        channels = self._progress.values()
        newest = max(each.barrier.order for each in channels if each.barrier is not None)
        if all(each.barrier is not None and each.barrier.order == newest for each in channels):
            self._batch(units)
            units.clear()
            self._steps.append(barrier)
            self.stopped = barrier.stops
            passed = list(channels)
        else:
            passed = [each for each in channels if each.barrier is not None and each.barrier.order < newest]
        if not passed or self.stopped:
            return
        for each in passed:
            each.barrier = None
        held, self._held = self._held, []
        for unit in held:
            self._take(unit, units)

    def _batch(self, units: list[Unit]) -> None:
        """Watermarks and idleness are parts of units, and take effect behind the rows."""
        for unit in units:
            channel = self._progress[unit.channel]
            channel.advance(unit.watermark, self.watermark)
            if unit.idle:
                channel.rest()
        self.watermark, idle = combined(self._progress.values(), self.watermark)
        self._steps.append(Batch(tuple(units), self.time, self.watermark, idle))

    def _place(self) -> dict[str, Any]:
        return {
            "upto": self.upto,
            "read": self.read,
            "gate": self._gate.snapshot(),
            "units": list(self._units),
            "held": list(self._held),
            "credited": dict(self.credited),
            "watermark": self.watermark,
            "progress": {
                channel: (each.watermark, each.idle, each.aligned, each.barrier)
                for channel, each in self._progress.items()
            },
        }

    def _restore(self, place: Mapping[str, Any]) -> None:
        super()._restore(place)
        self.upto, self.read, self.watermark = place["upto"], place["read"], place["watermark"]
        self._gate.restore(place["gate"])
        self._units, self._held = deque(place["units"]), list(place["held"])
        self.credited = dict(place["credited"])
        for channel, (watermark, idle, aligned, barrier) in place["progress"].items():
            self._progress[channel] = _Channel(watermark=watermark, idle=idle, aligned=aligned, barrier=barrier)


class DeterminateSource(Determinate):
    """A subtask that reads splits, each of which can read a range of its rows again."""

    def __init__(
        self, vertex: str, splits: Mapping[str, int], ledger: UnitLedger, decided: int,
        place: Mapping[str, Any] | None = None, *, publishes: bool = False,
    ) -> None:  # fmt: skip
        """A source that begins.

        Args:
            vertex: see `Determinate`.
            splits: its splits, with the position where each begins.
            ledger: its outputs.
            decided: see `Determinate`.
            place: of the snapshot that is restored.
            publishes: see `Determinate`.
        """
        super().__init__(vertex, ledger, decided, publishes=publishes)
        self.positions = dict(splits)
        """Where each split stands: rows before this are in batches."""
        self._fetched: dict[str, tuple[int, int]] = {}
        """Rows at hand, which begin where the split stands."""
        self._resting: set[str] = set()
        self._barrier_order = 0, 0
        """Of the newest barrier that has come."""
        if place is not None:
            self._restore(place)

    def fetched(self, split: str, start: int, end: int) -> list[DeterminateCommand]:
        """Rows of a split are at hand, those included that were fetched before and not taken.

        Once all of them are taken, or a `SeekSplit` says where, the caller fetches further ones.
        """
        self._fetched[split] = start, end
        return self._checked(split)

    def proposals(self, now: int, *, due: bool = False, resting: Iterable[str] = ()) -> list[AnyDecision]:
        """What is to be proposed: the fetched rows of each split are taken, splits without rows rest.

        Args:
            now: what the clock says, in µs.
            due: whether the clock alone makes a batch, for a timer of operators that are chained to the source.
            resting: splits that have had no rows for long.
        """
        if not self.caught_up:
            return []
        time = max(now, self.time)
        wanted: dict[str, AnyDecision] = {
            split: Rest(self._vertex, split, self.positions[split], time)
            for split in resting
            if split not in self._resting
        }
        for split, (start, end) in self._fetched.items():
            wanted[split] = Take(self._vertex, split, start, end, time)
        if due:
            wanted[""] = Cut(self._vertex, 0, time)
        return self._propose(wanted)

    def _obey(self, decision: AnyDecision) -> list[DeterminateCommand] | None:
        match decision:
            case Take(split=split, start=start, end=end) if start == self.positions[split]:
                self.positions[split] = end
                self._resting.discard(split)
                self._batch(decision.time, Rows(split, start, end))
                return self._checked(split)
            case Rest(split=split, start=start) if start == self.positions[split] and split not in self._resting:
                self._resting.add(split)
                self._batch(decision.time, Rows(split, start, start), rests=True)
            case Cut() if decision.time > self.time:
                self._batch(decision.time, None)
            case AlignedBarrier(order=order) if order > self._barrier_order:
                self._barrier_order = order
                self.stopped = decision.stops
                self._steps.append(decision)
            case _:
                pass  # void
        return []

    def _batch(self, time: int, rows: Rows | None, *, rests: bool = False) -> None:
        self.time = max(self.time, time)
        self._steps.append(SourceBatch(rows, self.time, rests))

    def _checked(self, split: str) -> list[DeterminateCommand]:
        """Fetched rows begin where the split stands, or are dropped: somebody else has decided what is taken."""
        start, end = self._fetched.get(split, (0, 0))
        position = self.positions[split]
        if start <= position < end:
            self._fetched[split] = position, end
            return []
        if self._fetched.pop(split, None) is None or position == end:
            return []
        return [SeekSplit(split, position)]

    def _place(self) -> dict[str, Any]:
        return {
            "positions": dict(self.positions),
            "resting": sorted(self._resting),
            "barrier_order": self._barrier_order,
        }

    def _restore(self, place: Mapping[str, Any]) -> None:
        super()._restore(place)
        self.positions, self._resting = dict(place["positions"]), set(place["resting"])
        self._barrier_order = place["barrier_order"]
