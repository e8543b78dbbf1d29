"""A plugin of pytest: operators' tests once more, with snapshots that have only what came since an earlier one, and with
what the backend `rocksdb` has on disk there for every second operator.

Checkpoints are taken behind batches, become COMPLETE at once, later, or never, or are not written at all; what an
operator begins with is put together from the objects of the newest one. What is expected is what the tests say anyway::

    python -m pytest -p tests.unit.task.incremental_checkpoints tests/unit/task/test_windows.py
"""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from penstock.adapters.memory import MemoryBlobs
from penstock.protocol.incremental import Chain, SnapshotChains
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import SubtaskSnapshot
from penstock.state import segments, sorted_runs
from penstock.task import operator
from penstock.task.operator import OperatorSnapshot
from penstock.task.operators import levels, waiting_rows, window_panes
from penstock.task.snapshots import FrozenSubtask, chains_of, restore_operator, upload
from penstock.testing.harness import HarnessSnapshot, OperatorHarness

MOST_DELTAS = 4
"""A few rows of state would mostly be heavier as deltas."""
DEALT_ROWS = (5, 1_000)
"""What is restored is one level, or several that are merged when a window fires: both, in turn."""


@dataclass
class Store:
    """The checkpoints of one harness."""

    max_parallelism: int
    chains: list[SnapshotChains]
    rng: random.Random
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    checkpoint: int = 0
    pending: list[int] = field(default_factory=list[int])
    is_frozen: bool = False
    """A checkpoint is still to be written; no later one is before it."""
    deltas: int = 0
    """How many snapshots had one."""

    def taken(self, frozen: list[OperatorSnapshot | None]) -> list[tuple[int, bytes]]:
        """Write a checkpoint; what a restore at any parallelism is given of it."""
        return asyncio.run(self._taken(frozen))

    async def _taken(self, frozen: list[OperatorSnapshot | None]) -> list[tuple[int, bytes]]:
        self.checkpoint += 1
        written: dict[int, SubtaskSnapshot] = {}
        for index, part in enumerate(frozen):
            subtask = FrozenSubtask({"op": part or OperatorSnapshot()}, 0, 0)
            prefix = f"{self.checkpoint}/{index}/"
            written[index] = await upload(subtask, prefix, self.blobs, "fs", lambda: 0, self.chains[index].base)
            self.chains[index].snapshot_stored(self.checkpoint, chains_of(subtask, written[index]))
            self.deltas += len(written[index].operators["op"].runs) > 1
        manifest = Manifest(
            job="j", checkpoint=self.checkpoint, attempt="a", parallelism=len(frozen),
            max_parallelism=self.max_parallelism, subtasks={"v": written}, operators={},
        )  # fmt: skip
        self.pending.append(self.checkpoint)
        restored = await restore_operator(manifest, "op", KeyGroupRange(0, self.max_parallelism), 0, 1, self.blobs)
        assert restored is not None
        return list(restored.keyed)

    def go_on(self, frozen: Callable[[], list[OperatorSnapshot | None]]) -> None:
        """Behind a batch: perhaps a checkpoint, and perhaps one of those that are pending is COMPLETE."""
        if self.rng.random() < 0.2:
            frozen()  # aborted before it is written
        if self.rng.random() < 0.7:
            self.taken(frozen())
        if self.pending and self.rng.random() < 0.7:
            newest = self.rng.choice(self.pending)
            for chains in self.chains:
                chains.completed(newest)
            self.pending = [number for number in self.pending if number > newest]


@pytest.fixture(scope="session", autouse=True)
def incremental_checkpoints() -> Iterator[None]:
    """Every harness has them."""
    stores: WeakKeyDictionary[OperatorHarness, Store] = WeakKeyDictionary()
    deltas = 0
    feed = OperatorHarness.frame

    def store_of(harness: OperatorHarness) -> Store:
        if harness not in stores:
            chains = [SnapshotChains() for _ in harness.operators]
            stores[harness] = Store(harness._max_parallelism, chains, random.Random())
        return stores[harness]

    def frozen_of(harness: OperatorHarness) -> list[OperatorSnapshot | None]:
        return [made.snapshot() for made in harness.operators]

    def frame(harness: OperatorHarness, *args: Any, **options: Any) -> None:
        if harness not in stores:
            store_of(harness).rng.seed(str(args[0].rows()))
        feed(harness, *args, **options)
        if not store_of(harness).is_frozen:
            store_of(harness).go_on(lambda: frozen_of(harness))

    def freeze(harness: OperatorHarness) -> Callable[[], HarnessSnapshot]:
        whole, frozen = freeze_whole(harness), frozen_of(harness)  # no later freeze comes before this one is written
        store_of(harness).is_frozen = True

        def write() -> HarnessSnapshot:
            nonlocal deltas
            keyed = store_of(harness).taken(frozen)
            store_of(harness).is_frozen = False
            deltas += store_of(harness).deltas
            return replace(whole(), keyed=keyed)

        return write

    freeze_whole, numbers = OperatorHarness.freeze, itertools.count()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:

        def context_of(**options: Any) -> operator.OperatorContext:
            number = next(numbers)
            place = Path(folder) if number % 2 else None
            if levels._DEALT_ROWS in DEALT_ROWS:  # no test says otherwise
                levels._DEALT_ROWS = DEALT_ROWS[number // 2 % 2]
            return context_class(**{"incremental": True, **options, "local_state": options.get("local_state") or place})

        context_class = operator.OperatorContext
        patch.setattr(OperatorHarness, "frame", frame)
        patch.setattr(OperatorHarness, "freeze", freeze)
        patch.setattr(window_panes, "_RAW_ROWS", 2)  # rows are grouped, and partials merged, all the time
        patch.setattr(window_panes, "_RAW_ROWS_BESIDE_DISK", 10)
        patch.setattr(window_panes, "_HELD_BYTES", 200)
        patch.setattr(levels, "_DEALT_ROWS", DEALT_ROWS[0])
        patch.setattr(sorted_runs, "_LEAST_ROWS", 2)
        patch.setattr(sorted_runs, "_ON_DISK_ROWS", 3)
        patch.setattr(waiting_rows, "_HELD_ROWS", 3)
        patch.setattr(segments, "_PIECES_IN_MEMORY", 0)
        patch.setattr(Chain, "is_heavy", property(lambda chain: len(chain.runs) > MOST_DELTAS))
        patch.setattr("penstock.testing.harness.OperatorContext", context_of)
        yield
    assert deltas, "no snapshot had a delta"
