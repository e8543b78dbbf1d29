"""The tiny operators of a simulated subtask: the reader of splits, and what counts keys or windows.

The operator in `k` is non-deterministic on purpose: every row it emits carries a random nonce, so that a row that was
published by two attempts can never look like one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from tests.simulation.kernel import Violation
from tests.simulation.scenario import WINDOW, Row, key_group_of

from penstock.core.times import MIN_WATERMARK

if TYPE_CHECKING:
    from tests.simulation.tasks import Task


class Output(msgspec.Struct, frozen=True):
    """A row of the result: which source rows it stands for, and the nonce of whoever made it."""

    kind: str
    key: int
    ids: tuple[int, ...]
    number: int
    """The count of the key so far, or the start of the window."""
    nonce: int


class Operator:
    """Keyed state, timers and rows of one subtask."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._vertex = task.vertex
        self._kernel = task.world.kernel
        self._scenario = task.world.scenario
        self.key_groups = self._scenario.key_groups(task.deploy.subtask, task.parallelism)
        self.watermark = MIN_WATERMARK
        self.restored_watermarks: dict[int, int] = {}
        self.keyed: dict[int, dict[int, Any]] = {}
        self._written: list[Output] = []

    def deliver(self, rows: Sequence[Any]) -> None:
        """Rows of a frame."""
        for row in rows:
            if self._vertex == "m":
                state = self.keyed.setdefault(key_group_of(row.spread), {})
                state[row.spread] = state.get(row.spread, 0) + 1
                self._task.sender.send(row, row.key)
            elif self._vertex == "k":
                self._count(row)

    def emit_source(self, name: str, position: int, row: Row) -> None:
        """A row of a split."""
        if self._scenario.direct:
            self._task.direct[name].row(row.id, position, self._nonce() if self._scenario.becomes(row) else None)
        elif self._vertex == self._scenario.vertices[-1]:
            self._written.append(Output("row", int(name), (row.id,), position, self._nonce()))
        else:
            self._task.sender.send(row, row.spread if self._scenario.downstream("s") == "m" else row.key)

    def advance(self, watermark: int) -> None:
        """Event time advances."""
        self.watermark = max(self.watermark, watermark)
        if self._vertex == "k" and self._scenario.windowed:
            self._fire()

    def take_written(self) -> list[Output]:
        """What a file sink has written since the last time."""
        written, self._written = self._written, []
        return written

    def snapshot(self) -> dict[int, bytes]:
        """The keyed state per key group."""
        return {group: json.dumps(state).encode() for group, state in sorted(self.keyed.items()) if state}

    def restore(self, group: int, data: bytes) -> None:
        """The keyed state of a key group."""
        self.keyed[group] = {int(key): value for key, value in json.loads(data).items()}

    def _nonce(self) -> int:
        return self._kernel.random.getrandbits(40)

    def _count(self, row: Row) -> None:
        group = key_group_of(row.key)
        if group not in self.key_groups:
            raise Violation(f"{self._task.deploy.subtask}: key group {group} is not its own")
        state = self.keyed.setdefault(group, {})
        if not self._scenario.windowed:
            state[row.key] = state.get(row.key, 0) + 1
            self._emit(Output("row", row.key, (row.id,), state[row.key], self._nonce()))
            return
        start = row.time // WINDOW * WINDOW
        watermark = max(self.watermark, self.restored_watermarks.get(group, MIN_WATERMARK))
        if start + WINDOW - 1 <= watermark:
            self._emit(Output("late", row.key, (row.id,), start, self._nonce()))
        else:
            state.setdefault(row.key, {}).setdefault(str(start), []).append(row.id)

    def _fire(self) -> None:
        for state in self.keyed.values():
            for key, windows in list(state.items()):
                for start in [s for s in windows if int(s) + WINDOW - 1 <= self.watermark]:
                    self._emit(Output("window", key, tuple(windows.pop(start)), int(start), self._nonce()))
                if not windows:
                    del state[key]

    def _emit(self, output: Output) -> None:
        if self._vertex == self._scenario.vertices[-1]:
            self._written.append(output)
        else:
            self._task.sender.send(output, output.key)


@dataclass
class _Split:
    position: int = 0
    watermark: int = MIN_WATERMARK


class Source:
    """Reads the splits that this subtask owns; a subtask behind an exchange owns none."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._scenario = task.world.scenario
        self._splits: dict[str, _Split] = {}

    def open(self) -> None:
        """Find the own splits."""
        for name in self._scenario.splits:
            if self._task.vertex == "s" and int(name) % self._task.parallelism == self._task.index:
                self._splits[name] = _Split()

    def snapshot(self) -> tuple[bytes, ...]:
        """The positions."""
        return tuple(json.dumps([n, s.position, s.watermark]).encode() for n, s in sorted(self._splits.items()))

    def restore(self, entries: Iterable[bytes]) -> None:
        """The positions of all subtasks, of which the own ones count."""
        for entry in entries:
            name, position, watermark = json.loads(entry)
            if name in self._splits:
                self._splits[name] = _Split(position, watermark)

    @property
    def positions(self) -> dict[str, int]:
        """Where its splits stand."""
        return {name: split.position for name, split in self._splits.items()}

    def begin_at(self, name: str, position: int) -> None:
        """A split is read from where its mark stands."""
        self._splits[name].position = position

    @property
    def progress(self) -> int | None:
        """How many rows are left; None without splits."""
        left = [len(self._scenario.splits[name]) - split.position for name, split in self._splits.items()]
        return sum(left) if left else None

    def read(self) -> bool:
        """Read a few rows; False if there are none left and never will be."""
        draw = self._task.world.kernel.random
        open_splits = [n for n, s in self._splits.items() if s.position < len(self._scenario.splits[n])]
        if not open_splits:
            if self._scenario.endless:
                self._task.sender.idle()
            return self._scenario.endless
        if draw.random() < self._scenario.idle_chance:
            self._task.sender.idle()
            return True
        name = draw.choice(open_splits)
        split = self._splits[name]
        for row in self._scenario.splits[name][split.position : split.position + draw.randint(1, 3)]:
            split.position += 1
            split.watermark = max(split.watermark, row.time - 12)
            self._task.operator.emit_source(name, split.position, row)
        if self._scenario.direct:
            self._task.direct[name].run_read(split.position)
        progress = [self._splits[n].watermark for n in open_splits]
        if min(progress) > self._task.operator.watermark:
            self._task.advance(min(progress))
        if draw.random() < 0.3:
            self._task.sender.flush()
        return True
