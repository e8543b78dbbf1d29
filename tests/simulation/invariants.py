"""The invariants of the protocol as functions over the world, told of every fact in the step it happens.

They look at what stands in the simulated parts and never ask the machines whose work they judge.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from tests.simulation.kernel import Violation
from tests.simulation.snapshots import merged

from penstock.protocol import joblog
from penstock.protocol.committing import StagedPart
from penstock.protocol.frames import Frame, FrameKind
from penstock.protocol.manifests import Interval, Manifest, decode_manifest
from penstock.protocol.messages import Acknowledged, Handle, SubtaskId
from penstock.protocol.publishing import Mark
from penstock.protocol.split_publishing import SplitMark

if TYPE_CHECKING:
    from tests.simulation.operators import Output
    from tests.simulation.tasks import Task
    from tests.simulation.world import World


class Invariants:
    """Everything that must always hold. Each finding names its invariant."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._started: set[tuple[str, SubtaskId]] = set()
        self._acks: dict[tuple[str, int, str, SubtaskId], Any] = {}
        self._published: set[tuple[str, int, int]] = set()
        self._numbers: dict[int, int] = {}
        self._windows: Counter[tuple[int, int]] = Counter()
        self._ids: Counter[int] = Counter()
        self._landed: dict[tuple[str, int], list[tuple[int, Frame]]] = {}
        """The rows of sinks' exchanges as they were confirmed, whatever the log has lost since."""
        self._last_seq: dict[tuple[str, int, str, Any], int] = {}
        self._intervals: dict[tuple[int, int], set[Interval]] = {}
        self._parts: set[str] = set()
        self._visible: set[str] = set()
        self._marked: set[str] = set()
        """Marks that were committed once: they must not be missing again."""
        self.records: list[joblog.AnyRecord] = []
        self.complete: joblog.Complete | None = None
        self.begin: joblog.Begin | None = None
        self.terminated: joblog.Terminated | None = None
        self.manifest: Manifest | None = None
        self._epoch = 0

    # -- the job log ----------------------------------------------------------------------------------------------------

    def recorded(self, record: joblog.AnyRecord) -> None:
        """A record has landed in the job log."""
        name = type(record).__name__
        if record.seq != len(self.records):
            raise Violation(f"I5: record {record.seq} where {len(self.records)} should follow")
        if self.terminated is not None:
            raise Violation(f"I13: {name} after TERMINATED")
        self.records.append(record)
        match record:
            case joblog.Leader():
                if record.epoch <= self._epoch:
                    raise Violation(f"I5: LEADER of epoch {record.epoch} after {self._epoch}")
                self._epoch = record.epoch
            case joblog.Begin():
                if self.begin is not None and record.generation != self.begin.generation:
                    self._all_published("a new generation begins")
                self.begin = record
            case joblog.Complete():
                self._completed(record)
            case joblog.Savepoint() if record.published:
                self._all_published("a savepoint is recorded")
            case joblog.Terminated():
                if record.state in ("FINISHED", "STOPPED"):
                    self._all_published(f"the job is {record.state}")
                self.terminated = record
            case _:
                pass

    def _completed(self, record: joblog.Complete) -> None:
        if self.begin is None or record.attempt != self.begin.attempt:
            raise Violation(f"I5: COMPLETE {record.checkpoint} of an attempt that is not the newest")
        if self.complete is not None and record.checkpoint <= self.complete.checkpoint:
            raise Violation(f"I5: COMPLETE {record.checkpoint} after COMPLETE {self.complete.checkpoint}")
        if record.parent != (self.complete.seq if self.complete else -1):
            raise Violation(f"I5: COMPLETE {record.checkpoint} has another parent")
        data = self._world.blobs.objects.get(record.manifest)
        if data is None or hashlib.sha256(data).hexdigest() != record.sha256:
            raise Violation(f"I9: the manifest of COMPLETE {record.checkpoint} is not readable")
        manifest = decode_manifest(data, record.manifest)
        for vertex, subtasks in manifest.subtasks.items():
            for index, snapshot in subtasks.items():
                key = (record.attempt, record.checkpoint, record.checkpoint_nonce, SubtaskId(vertex, index))
                if self._acks.get(key) != snapshot:
                    raise Violation(f"I7: COMPLETE {record.checkpoint} holds an ack of {vertex}[{index}] not its own")
                for handles in snapshot.operators.values():
                    for handle in handles.objects:
                        if not self._readable(handle):
                            raise Violation(f"I9: COMPLETE {record.checkpoint} names {handle.key}, which is not there")
        self.complete, self.manifest = record, manifest
        self._all_direct(f"COMPLETE {record.checkpoint}")
        for index, intervals in manifest.intervals.get("w", {}).items():
            self._intervals.setdefault((manifest.generation, index), set()).update(intervals)
        self._parts.update(_parts_of(manifest))

    def _all_published(self, when: str) -> None:
        """I11 and the order of a rescale: everything that is COMPLETE is visible."""
        if self.manifest is None:
            return
        for index, intervals in self.manifest.intervals.get("w", {}).items():
            mark = self._world.cluster.marks.get(f"w.g{self.manifest.generation}/{index}")
            end = max((interval.end for interval in intervals), default=0)
            if mark is None or mark.position < end:
                raise Violation(f"I11: {when}, but partition {index} is published up to {mark}, not {end}")
        missing = _parts_of(self.manifest) - self._visible
        if missing:
            raise Violation(f"I11: {when}, but {sorted(missing)} are not visible")

    def _all_direct(self, when: str) -> None:
        """I11: what a checkpoint says was read of splits that are published by their positions is visible."""
        if not self._world.scenario.direct or self.manifest is None:
            return
        for name, position in _positions(self.manifest).items():
            mark = self._world.cluster.marks.get(f"d/{name}")
            if mark is None or mark.position < position:
                raise Violation(f"I11: {when} covers split {name} up to {position}, published is {mark}")

    # -- subtasks -------------------------------------------------------------------------------------------------------

    def starts(self, attempt: str, subtask: SubtaskId) -> None:
        """A worker starts a subtask."""
        if (attempt, subtask) in self._started:
            raise Violation(f"I3: {subtask} of attempt {attempt[:8]} is started a second time")
        self._started.add((attempt, subtask))

    def froze(self, task: Task, checkpoint: int, delivered: dict[Any, int]) -> None:
        """I7: an aligned snapshot reflects exactly the rows before the barrier on every channel."""
        if task.vertex == "s" or not self._world.scenario.exact or self._world.log_damaged:
            return
        partition = self._world.log.partition(task.topic, task.index)
        for channel in self._world.scenario.channels(task.deploy.subtask, task.parallelism):
            rows, last = 0, -1
            for frame, _ in partition.values:
                if frame.attempt != task.deploy.attempt or frame.channel != channel or frame.seq <= last:
                    continue
                last = frame.seq
                if frame.kind is FrameKind.BARRIER and frame.checkpoint == checkpoint:
                    break
                rows += frame.rows
            else:
                raise Violation(f"I7: {task.deploy.subtask} froze {checkpoint} without a barrier of {channel}")
            if rows != delivered.get(channel, 0):
                raise Violation(
                    f"I7: {task.deploy.subtask} froze {checkpoint} after {delivered.get(channel, 0)} rows of {channel}, "
                    f"{rows} stand before its barrier"
                )

    def acknowledged(self, task: Task, message: Acknowledged) -> None:
        """I9, and that every frame up to the barrier is confirmed."""
        key = (message.attempt, message.checkpoint, message.nonce, message.subtask)
        self._acks[key] = message.snapshot
        for handles in message.snapshot.operators.values():
            own = f"{message.checkpoint:010d}-{message.attempt[:8]}-{message.nonce[:8]}/"
            if self.complete is not None and message.checkpoint < self.complete.checkpoint:
                continue  # aborted by a later COMPLETE: its objects may be deleted already
            if not all(self._readable(handle) for handle in handles.objects if own in handle.key):
                raise Violation(f"I9: {message.subtask} acked {message.checkpoint}, its state is not durable")
        for output in task.ledger.outputs:
            topic = f"{output.exchange}.g{task.deploy.generation}"
            barrier = (topic, output.partition, message.attempt, task.index, message.checkpoint)
            if barrier not in self._world.log.barriers_landed:
                raise Violation(f"I9: {message.subtask} acked {message.checkpoint}, its barrier is not in the log")

    def _readable(self, handle: Handle) -> bool:
        data = self._world.blobs.objects.get(handle.key)
        return data is not None and hashlib.sha256(data).hexdigest() == handle.sha256

    def frame_landed(self, topic: str, partition: int, frame: Frame, offset: int) -> None:
        """I6: dense as it was sent; a frame without a certain answer may come again."""
        if frame.seq <= self._last_seq.get((topic, partition, frame.attempt, frame.channel), -1):
            return
        if topic.startswith("w") and frame.kind is FrameKind.DATA:
            self._landed.setdefault((topic, partition), []).append((offset, frame))
        key = (topic, partition, frame.attempt, frame.channel)
        if frame.seq != self._last_seq.get(key, -1) + 1:
            raise Violation(f"I6: {topic}/{partition} {frame.channel}: {frame.seq} follows {self._last_seq.get(key)}")
        self._last_seq[key] = frame.seq

    # -- output ---------------------------------------------------------------------------------------------------------

    def transaction(self, name: str, refs: Sequence[Any], mark: Mark, before: Mark | None) -> None:
        """I1 to I4 and I8 for a transaction that is visible now."""
        if name.startswith("d/"):
            self._split_transaction(name, refs, mark, before)
            return
        if before is None:
            if refs or name in self._marked:
                raise Violation(f"I2: the mark of {name} is missing, and {len(refs)} rows become visible")
            self._marked.add(name)
            return
        if mark.position < before.position:
            raise Violation(f"I1: the mark of {name} goes back from {before.position} to {mark.position}")
        generation, index = int(name[3:].split("/")[0]), int(name.split("/")[1])
        for topic, number, offset, frame, rows in refs:
            if not before.position <= offset < mark.position:
                raise Violation(f"I2: {name}: offset {offset} is visible, the mark moved {before} -> {mark}")
            if (topic, number, offset) in self._published:
                raise Violation(f"I4: {name}: offset {offset} is published twice")
            self._published.add((topic, number, offset))
            if not any(
                i.attempt == frame.attempt and i.start <= offset < i.end
                for i in self._intervals.get((generation, index), ())
            ):
                raise Violation(f"I3: {name}: offset {offset} of attempt {frame.attempt[:8]} is covered by no COMPLETE")
            self._visible_rows(rows, ordered=True)
        self._nothing_passed_over(name.split("/")[0], generation, index, before.position, mark.position)

    def _split_transaction(self, name: str, refs: Sequence[Output], mark: SplitMark, before: SplitMark | None) -> None:
        """I1 to I4 where the mark is a position of a split: all rows behind the one mark and before the next, once."""
        if before is None and (refs or name in self._marked):
            raise Violation(f"I2: the mark of {name} is missing, and {len(refs)} rows become visible")
        self._marked.add(name)
        start = before.position if before is not None else mark.position
        if mark.position < start:
            raise Violation(f"I1: the mark of {name} goes back from {start} to {mark.position}")
        if before is not None and mark.attempt_number < before.attempt_number:
            raise Violation(f"I3: {name}: attempt number {mark.attempt_number} publishes after {before.attempt_number}")
        scenario = self._world.scenario
        between = [row.id for row in scenario.splits[name[2:]][start : mark.position] if scenario.becomes(row)]
        if [number for row in refs for number in row.ids] != between:
            raise Violation(f"I2: {name}: {refs} become visible, the mark moves from {before} to {mark}: {between}")
        for row in refs:
            self._ids.update(row.ids)

    def _nothing_passed_over(self, topic: str, generation: int, index: int, before: int, position: int) -> None:
        """I11: of an interval that lies below the mark every row is visible."""
        for interval in self._intervals.get((generation, index), ()):
            if not before < interval.end <= position:
                continue
            for offset, frame in self._landed.get((topic, index), ()):
                covered = frame.attempt == interval.attempt and interval.start <= offset < interval.end
                if covered and (topic, index, offset) not in self._published:
                    raise Violation(f"I11: {topic}/{index}: the mark passed {interval}, offset {offset} is not visible")

    def part_visible(self, name: str, rows: Sequence[Output]) -> None:
        """I3 for files."""
        self._visible.add(name)
        if name not in self._parts:
            raise Violation(f"I3: part {name} is visible, no COMPLETE lists it")
        self._visible_rows(rows, ordered=False)

    def _visible_rows(self, rows: Sequence[Output], *, ordered: bool) -> None:
        if not self._world.scenario.exact:
            for row in rows:
                self._ids.update(row.ids)
            return
        for row in rows:
            for number in row.ids:
                self._ids[number] += 1
                if self._ids[number] > 1:
                    raise Violation(f"I4: source row {number} is visible twice")
            if row.kind == "window":
                self._windows[(row.key, row.number)] += 1
                if self._windows[(row.key, row.number)] > 1:
                    raise Violation(f"I7: window {row.number} of key {row.key} fired twice")
            if row.kind == "row" and ordered:
                if row.number != self._numbers.get(row.key, 0) + 1:
                    raise Violation(f"I8: key {row.key}: row {row.number} follows {self._numbers.get(row.key, 0)}")
                self._numbers[row.key] = row.number

    def final_output(self, state: str, *, complete: bool) -> None:
        """What is visible is what the newest COMPLETE covers, no more and no less."""
        scenario = self._world.scenario
        positions = dict.fromkeys(scenario.splits, 0)
        held: Counter[int] = Counter()
        if self.manifest is not None:
            positions |= _positions(self.manifest)
            held = self._held_in_windows(self.manifest)
        if scenario.direct:
            self._final_direct(state, positions)
            return
        covered = {row.id for name, rows in scenario.splits.items() for row in rows[: positions[name]]}
        total = sum(len(rows) for rows in scenario.splits.values())
        if state == "FINISHED" and (len(covered) != total or held):
            raise Violation(f"I11: FINISHED, but the newest COMPLETE covers {len(covered)} of {total} rows")
        seen = set(self._ids)
        if scenario.exact and not seen <= covered:
            raise Violation(f"I3: rows {sorted(seen - covered)} are visible and not covered")
        missing = covered - seen - set(held)
        if complete and missing:
            raise Violation(f"I11: {state}: rows {sorted(missing)} are lost")
        if scenario.exact and seen & set(held):
            raise Violation(f"I7: rows {sorted(seen & set(held))} are visible and still in the state")

    def _final_direct(self, state: str, positions: dict[str, int]) -> None:
        """Every row before a mark is visible; marks stand where the last checkpoint says, or beyond if nobody stopped."""
        splits, marks = self._world.scenario.splits, self._world.cluster.marks
        for name, position in positions.items():
            mark = marks.get(f"d/{name}")
            reached = mark.position if mark is not None else 0
            if reached < position or (state in ("FINISHED", "STOPPED") and reached != position):
                raise Violation(
                    f"I11: {state}: split {name} is published up to {reached}, the checkpoint covers {position}"
                )
            if state == "FINISHED" and reached != len(splits[name]):
                raise Violation(f"I11: FINISHED: of split {name} {reached} of {len(splits[name])} rows are published")
        twice = [number for number, count in self._ids.items() if count > 1]
        if twice:
            raise Violation(f"I4: source rows {twice} are visible twice")

    def _held_in_windows(self, manifest: Manifest) -> Counter[int]:
        held: Counter[int] = Counter()
        if not self._world.scenario.windowed:
            return held
        for snapshot in manifest.subtasks.get("k", {}).values():
            runs = [
                {
                    group: self._world.blobs.objects[handle.key][start:end]
                    for group, (start, end) in handle.key_groups.items()
                }
                for run in snapshot.operators["op"].runs
                for handle in run
            ]
            for state in merged(runs).values():
                for windows in json.loads(state).values():
                    for ids in windows.values():
                        held.update(ids)
        return held


def _positions(manifest: Manifest) -> dict[str, int]:
    """Where splits stand in a checkpoint."""
    entries = [e for s in manifest.subtasks["s"].values() for e in s.operators["op"].unions["splits"]]
    return {name: position for name, position, _ in (json.loads(entry) for entry in entries)}


def _parts_of(manifest: Manifest) -> set[str]:
    entries = [
        entry
        for subtasks in manifest.subtasks.values()
        for snapshot in subtasks.values()
        for handles in snapshot.operators.values()
        for entry in handles.lists.get("staged", ())
    ]
    return {msgspec.json.decode(entry, type=StagedPart).committable for entry in entries}
