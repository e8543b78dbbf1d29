"""The simulated outside: log, store of blobs, metadata, the sink's Kafka cluster, a folder of files.

Each part has switches that faults turn. Every answer of an operation comes later, through the kernel.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.kernel import Kernel, Node, Operation, Reply

from penstock.errors import ExternalError
from penstock.ports import BlobExistsError, BlobNotFoundError, OffsetOutOfRangeError
from penstock.protocol.frames import Frame, FrameKind
from penstock.protocol.publishing import Mark


@dataclass
class Partition:
    """Records by rising, not dense offsets."""

    offsets: list[int] = field(default_factory=list[int])
    values: list[Any] = field(default_factory=list[Any])
    end: int = 0
    trimmed: int = 0
    waiting: list[tuple[int, Reply]] = field(default_factory=list[tuple[int, Reply]])

    def add(self, value: Any, width: int) -> int:
        """Append a record that takes `width` offsets (transaction markers occupy some)."""
        self.offsets.append(self.end)
        self.values.append(value)
        self.end += width
        return self.end

    def lose(self, offset: int) -> None:
        """A record that was confirmed is gone."""
        index = self.offsets.index(offset)
        del self.offsets[index], self.values[index]

    def truncate(self, end: int) -> None:
        """Everything from that offset on is gone, and what comes next takes its place."""
        kept = bisect.bisect_left(self.offsets, end)
        del self.offsets[kept:], self.values[kept:]
        self.end = end

    def read(self, offset: int, most: int) -> list[tuple[int, int, Any]]:
        """(offset, next offset, value) from `offset` on."""
        if offset < self.trimmed or offset > self.end:
            raise OffsetOutOfRangeError(f"offset {offset} is not within [{self.trimmed}, {self.end}]")
        first = bisect.bisect_left(self.offsets, offset)
        last = min(len(self.offsets), first + most)
        return [
            (self.offsets[i], self.offsets[i + 1] if i + 1 < len(self.offsets) else self.end, self.values[i])
            for i in range(first, last)
        ]


def _nobody(value: Any = None, error: BaseException | None = None) -> None:
    """Who sent this has given up waiting."""


class SimulatedLog:
    """Topics. Appends of one process to one partition land in order; confirmations may be late or lost."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._created: dict[str, int] = {}
        self._lands_at: dict[tuple[str, str, int], int] = {}
        self._dropped: set[tuple[str, str, int]] = set()
        self._confirms_at: dict[tuple[str, str, int], int] = {}
        self.slow_ms = 0
        self.retried: Callable[[str], tuple[str, int]] = lambda topic: ("", 0)
        """Says `error`, `lost` or `late` for an append to this topic, and after how many ms its sender tries again."""
        self.barriers_landed: set[tuple[str, int, str, int, int]] = set()
        self.lose_confirmation: Callable[[Node, str], bool] = lambda node, topic: False
        self.damage: Callable[[str, Any], str] = lambda topic, value: ""
        """Says `duplicate` or `gap` for a record of an exchange that the transport is to damage."""
        self.landed: Callable[[str, int, Any, int], None] = lambda topic, partition, value, offset: None

    def partition(self, topic: str, number: int) -> Partition:
        """Created when first named."""
        return self._partitions.setdefault((topic, number), Partition())

    def create_topic(self, topic: str, partitions: int) -> bool:
        """Whether the topic has that many partitions, because nobody made it before or because they made it so."""
        return self._created.setdefault(topic, partitions) == partitions

    def append(self, node: Node, topic: str, number: int, value: Any) -> Operation:
        """The offset behind the record, once it is confirmed."""

        def start(reply: Reply) -> None:
            kernel = self._kernel
            key = (node.name, topic, number)
            at = max(self._lands_at.get(key, 0), kernel.now + kernel.short() + kernel.random.randint(0, self.slow_ms))
            trouble, again_ms = self.retried(topic)
            if trouble in ("lost", "late"):  # the first try lands as well: in its place, or behind what comes later
                late_ms = 4 * again_ms if trouble == "late" else 0
                kernel.after(at + late_ms - kernel.now, self._land, node, topic, number, value, _nobody)
            self._lands_at[key] = at = at + again_ms
            kernel.after(at - kernel.now, self._land, node, topic, number, value, reply)

        return start

    def _land(self, node: Node, topic: str, number: int, value: Any, reply: Reply) -> None:
        kernel = self._kernel
        if not node.alive and ((node.name, topic, number) in self._dropped or kernel.random.random() < 0.5):
            self._dropped.add((node.name, topic, number))
            return
        partition = self.partition(topic, number)
        damage = ""
        if isinstance(value, tuple) and isinstance(value[0], Frame):
            frame = value[0]
            damage = self.damage(topic, value)
            self.landed(topic, number, value, partition.end)
            if frame.kind is FrameKind.BARRIER:
                self.barriers_landed.add((topic, number, frame.attempt, frame.channel.producer, frame.checkpoint))
        width = 1 if kernel.random.random() < 0.9 else 2
        if damage != "gap":
            partition.add(value, width)
        if damage == "duplicate":
            partition.add(value, width)
        waiting, partition.waiting = partition.waiting, []
        for offset, reader in waiting:
            kernel.after(kernel.short(1, 3), self._answer_read, partition, offset, reader)
        key = (node.name, topic, number)
        lost = self.lose_confirmation(node, topic)
        at = max(self._confirms_at.get(key, 0), kernel.now + (kernel.short(20, 60) if lost else kernel.short(1, 4)))
        self._confirms_at[key] = at
        if lost:
            kernel.after(at - kernel.now, reply, None, ExternalError(f"{topic}: no confirmation"))
        else:
            kernel.after(at - kernel.now, reply, partition.end)

    def read(self, topic: str, number: int, offset: int) -> Operation:
        """At least one record at or after `offset`, when there is one."""

        def start(reply: Reply) -> None:
            self._kernel.after(1, self._answer_read, self.partition(topic, number), offset, reply)

        return start

    def _answer_read(self, partition: Partition, offset: int, reply: Reply) -> None:
        try:
            records = partition.read(offset, 8)
        except OffsetOutOfRangeError as error:
            reply(None, error)
            return
        if records:
            reply(records)
        else:
            partition.waiting.append((offset, reply))


class SimulatedBlobs:
    """Objects. Faults: down, slow, reply lost, answer unknown and written later, a conflict that wrote nothing."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.objects: dict[str, bytes] = {}
        self.down = False
        self.slow_ms = 0
        self.trouble: Callable[[str, str], str] = lambda action, key: ""
        """Says for an action on a key: lost, late, conflict, error, or nothing."""
        self.created: Callable[[str, bytes], None] = lambda key, data: None

    def _delay(self) -> int:
        return self._kernel.short(1, 8) + (self._kernel.random.randint(0, self.slow_ms) if self.slow_ms else 0)

    def create(self, key: str, data: bytes) -> Operation:
        """Conditional create."""
        return lambda reply: self._kernel.after(self._delay(), self._write, "create", key, data, reply)

    def put(self, key: str, data: bytes) -> Operation:
        """Write or replace."""
        return lambda reply: self._kernel.after(self._delay(), self._write, "put", key, data, reply)

    def _write(self, action: str, key: str, data: bytes, reply: Reply) -> None:
        kernel = self._kernel
        trouble = "error" if self.down else self.trouble(action, key)
        unknown = ExternalError(f"{action} {key}: no certain answer")
        if trouble == "error":
            kernel.after(kernel.short(10, 30), reply, None, unknown)
        elif trouble == "late":
            kernel.after(kernel.short(20, 60), reply, None, unknown)
            kernel.after(kernel.short(40, 900), self._apply, action, key, data)
        elif trouble == "conflict" and action == "create":
            reply(None, BlobExistsError(f"{key}: conflict"))
        else:
            written = self._apply(action, key, data)
            if trouble == "lost":
                kernel.after(kernel.short(10, 30), reply, None, unknown)
            elif written:
                reply()
            else:
                reply(None, BlobExistsError(key))

    def _apply(self, action: str, key: str, data: bytes) -> bool:
        if action == "create" and key in self.objects:
            return False
        self.objects[key] = data
        self.created(key, data)
        return True

    def get(self, key: str) -> Operation:
        """The object's bytes."""

        def answer(reply: Reply) -> None:
            if self.down or self.trouble("get", key) == "error":
                reply(None, ExternalError(f"get {key}: no answer"))
            elif key in self.objects:
                reply(self.objects[key])
            else:
                reply(None, BlobNotFoundError(key))

        return lambda reply: self._kernel.after(self._delay(), answer, reply)

    def list(self, prefix: str) -> Operation:
        """All keys with the prefix."""

        def answer(reply: Reply) -> None:
            if self.down:
                reply(None, ExternalError(f"list {prefix}: no answer"))
            else:
                reply(sorted(key for key in self.objects if key.startswith(prefix)))

        return lambda reply: self._kernel.after(self._delay(), answer, reply)

    def delete(self, key: str) -> None:
        """Remove an object at once."""
        self.objects.pop(key, None)


class SimulatedMetadata:
    """The lease. It may be wiped, and an old value may come back."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._value: tuple[str, int] | None = None
        self._former: list[str] = []
        self.down = False

    def ask(self, renew: bool, value: str, ttl_ms: int) -> Operation:
        """Acquire or renew."""

        def answer(reply: Reply) -> None:
            if self.down:
                reply(None, ExternalError("metadata: no answer"))
                return
            now = self._kernel.now
            holder = self._value[0] if self._value and self._value[1] > now else None
            held = holder == value if renew else holder is None
            if held:
                if holder != value:
                    self._former.append(value)
                self._value = (value, now + ttl_ms)
            self._kernel.after(self._kernel.short(1, 3), reply, held)

        return lambda reply: self._kernel.after(self._kernel.short(1, 3), answer, reply)

    def wipe(self) -> None:
        """Everything is gone."""
        self._value = None

    def restore_old(self, ttl_ms: int) -> None:
        """An old snapshot of the data comes back: a former holder has the lease again."""
        if self._former:
            self._value = (self._kernel.random.choice(self._former), self._kernel.now + ttl_ms)


class FencedError(Exception):
    """A newer producer has this transactional id."""


@dataclass
class _Transactional:
    epoch: int = 0


class SinkCluster:
    """Transactional producers, topics of rows, group offsets with metadata (marks)."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._producers: dict[str, _Transactional] = {}
        self.marks: dict[str, Mark] = {}
        self._stale: dict[str, tuple[Mark | None, int]] = {}
        """The value before the last commit, and the producer epoch that committed last."""
        self.rows: list[Any] = []
        self.lose_answer: Callable[[], bool] = lambda: False
        self.delay_commit: Callable[[], int] = lambda: 0
        self.time_out: Callable[[], bool] = lambda: False
        self.committed: Callable[[str, Sequence[Any], Mark, Mark | None], None] = lambda name, refs, mark, before: None

    def init_producer(self, name: str) -> Operation:
        """A producer epoch; older ones are fenced and their transactions aborted."""

        def answer(reply: Reply) -> None:
            producer = self._producers.setdefault(name, _Transactional())
            producer.epoch += 1
            self._kernel.after(self._kernel.short(1, 4), reply, producer.epoch)

        return lambda reply: self._kernel.after(self._kernel.short(1, 6), answer, reply)

    def read_mark(self, name: str, epoch: int) -> Operation:
        """The mark: the old one may come back to who has not started a producer since the last commit."""

        def answer(reply: Reply) -> None:
            former, committer = self._stale.get(name, (self.marks.get(name), -1))
            stale = epoch <= committer and self._kernel.random.random() < 0.5
            reply(former if stale else self.marks.get(name))

        return lambda reply: self._kernel.after(self._kernel.short(1, 4), answer, reply)

    def commit(self, name: str, epoch: int, refs: Sequence[Any], mark: Mark) -> Operation:
        """One transaction with the rows and the mark; the answer is certain, or lost."""

        def start(reply: Reply) -> None:
            kernel = self._kernel
            delay = self.delay_commit()
            if self.time_out():
                kernel.after(kernel.short(100, 200), self._expire, name, epoch)
                kernel.after(kernel.short(150, 250), reply, None, ExternalError("the transaction timed out"))
                return
            if delay:
                kernel.after(kernel.short(20, 60), reply, None, ExternalError("no answer to EndTxn"))
            kernel.after(kernel.short(1, 8) + delay, self._end, name, epoch, refs, mark, reply, bool(delay))

        return start

    def _expire(self, name: str, epoch: int) -> None:
        producer = self._producers[name]
        if producer.epoch == epoch:
            producer.epoch += 1

    def _end(self, name: str, epoch: int, refs: Sequence[Any], mark: Mark, reply: Reply, answered: bool) -> None:
        kernel = self._kernel
        if self._producers[name].epoch != epoch:
            if not answered:
                reply(None, FencedError(name))
            return
        before = self.marks.get(name)
        self.rows.extend(refs)
        self._stale[name] = (before, epoch)
        self.marks[name] = mark
        self.committed(name, refs, mark, before)
        if answered:
            return
        if self.lose_answer():
            kernel.after(kernel.short(20, 60), reply, None, ExternalError("no answer to EndTxn"))
        else:
            kernel.after(kernel.short(1, 4), reply)


class Folder:
    """A file sink's folder: staged parts, visible parts, and what a consumer took away."""

    def __init__(self) -> None:
        self.staged: dict[str, list[Any]] = {}
        self.visible: dict[str, list[Any]] = {}
        self.consumed: dict[str, list[Any]] = {}
        self.committed: Callable[[str, list[Any]], None] = lambda name, rows: None
        self.lost: Callable[[str], None] = lambda name: None

    def commit(self, name: str) -> None:
        """Rename: idempotent, and a consumed file does not come back."""
        rows = self.staged.pop(name, None)
        if rows is not None:
            self.visible[name] = rows
            self.committed(name, rows)
        elif name not in self.visible and name not in self.consumed:
            self.lost(name)

    def consume(self) -> None:
        """A consumer takes every visible file and deletes it."""
        self.consumed.update(self.visible)
        self.visible.clear()

    def all_rows(self) -> list[Any]:
        """Everything that was ever visible."""
        parts = [*self.consumed.values(), *self.visible.values()]
        return [row for rows in parts for row in rows]
