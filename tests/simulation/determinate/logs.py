"""A simulated log, and the cluster that sinks publish to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.kernel import Kernel, Node, Violation


class Log:
    """Records in one order. Appends are late, are repeated when their answer is lost, and outlive who sent them."""

    def __init__(self, kernel: Kernel, name: str, lost: float) -> None:
        """`lost`: the share of appends whose answer is lost, so that they come twice."""
        self.name = name
        self.base = 0
        """Records below are trimmed."""
        self._kernel = kernel
        self._lost = lost
        self._records: list[Any] = []
        self._readers: list[Reader] = []

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return len(self._records)

    def at(self, offset: int) -> Any:
        """A record that has been read."""
        if offset < self.base:
            raise Violation(f"D6: {self.name}[{offset}] is needed and was trimmed")
        return self._records[offset]

    def land(self, record: Any) -> None:
        """A record is there."""
        self._records.append(record)
        for reader in self._readers:
            reader.wake()

    def trim(self, base: int) -> None:
        """Drop what is before."""
        self.base = max(self.base, base)

    def reader(self, node: Node, position: int, handle: Callable[[int, Any], bool]) -> None:
        """Hand records on from a position; `handle` returns whether it wants more."""
        reader = Reader(self, node, position, handle)
        self._readers.append(reader)
        reader.wake()

    def appender(self, node: Node) -> Appender:
        """Appends of one writer."""
        return Appender(self, node, self._kernel, self._lost)


class Reader:
    """Reads a log as its process gets to it."""

    def __init__(self, log: Log, node: Node, position: int, handle: Callable[[int, Any], bool]) -> None:
        self._log, self._node, self._position, self._handle = log, node, position, handle
        self._pending = False

    def wake(self) -> None:
        """There may be records."""
        if not self._pending:
            self._pending = True
            self._node.later(self._node.kernel.short(1, 5), self._read)

    def _read(self) -> None:
        self._pending = False
        for _ in range(self._node.kernel.random.randint(1, 4)):
            if self._position >= self._log.end:
                return
            if self._position < self._log.base:
                self._handle(-1, None)
                return
            position, self._position = self._position, self._position + 1
            if not self._handle(position, self._log.at(position)):
                return
        self.wake()


class Appender:
    """One append is under way at a time, so that those of a writer are in order."""

    def __init__(self, log: Log, node: Node, kernel: Kernel, lost: float) -> None:
        self._log, self._node, self._kernel, self._lost = log, node, kernel, lost
        self._queue: deque[tuple[Any, Callable[[], None]]] = deque()
        self._busy = False

    def append(self, record: Any, done: Callable[[], None]) -> None:
        """`done` is called in the writer's process when the record is there for certain."""
        self._queue.append((record, done))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._busy:
            slow = self._kernel.random.random() < 0.05
            self._kernel.after(self._kernel.short(20, 90) if slow else self._kernel.short(1, 8), self._land)

    def _land(self) -> None:
        """Also when the writer is dead by now; but of one that died before, chance says whether it was sent."""
        if not self._node.alive and self._kernel.random.random() < 0.5:
            return
        record, done = self._queue[0]
        self._log.land(record)
        if self._kernel.random.random() < self._lost:
            self._node.later(self._kernel.short(5, 30), self._again)
            return
        self._queue.popleft()
        self._node.later(self._kernel.short(1, 4), self._confirmed, done)

    def _again(self) -> None:
        self._kernel.after(self._kernel.short(1, 8), self._land)

    def _confirmed(self, done: Callable[[], None]) -> None:
        done()
        self._next()


class Cluster:
    """Transactional ids with their epochs, and what was committed under each."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.epochs: dict[str, int] = {}
        self.marks: dict[str, Any] = {}
        self.committed: dict[str, list[Any]] = {}

    def init_producer(self, name: str) -> int:
        """Fence whoever came before."""
        self.epochs[name] = self.epochs.get(name, -1) + 1
        return self.epochs[name]

    def commit(self, name: str, epoch: int, rows: tuple[Any, ...], mark: Any) -> bool:
        """Rows and mark together; False for a producer that is fenced."""
        if self.epochs.get(name) != epoch:
            return False
        self.marks[name] = mark
        self.committed.setdefault(name, []).extend(rows)
        return True
