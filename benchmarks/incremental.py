"""Full and incremental checkpoints of object state on the local disk, beside each other in one process.

`python -m benchmarks.incremental [keys]`: a value and a timer per key; one per cent of the keys changes per checkpoint.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

from benchmarks.checkpoints import Checkpoints
from penstock.adapters.directory.blobs import DirectoryBlobs
from penstock.functions.process_functions import KeyedProcess, ValueState
from penstock.ports import Blobs
from penstock.protocol.keygroups import KeyGroupRange, key_group_range
from penstock.protocol.manifests import Manifest
from penstock.state.declarations import declared_states, describe_states
from penstock.state.keyed_state import KeyCursor
from penstock.task.keyed_states import keyed_backend
from penstock.task.operator import OperatorContext, OperatorSnapshot
from penstock.task.snapshot_objects import RestoreFolder
from penstock.task.snapshots import restore_operator
from penstock.types import INT64, Field, Schema

GROUPS = 240
KEYS = Schema((Field("key", INT64),))
BATCH = 10_000
DELTAS = 5


class Total(KeyedProcess[int, int]):
    """A number per key."""

    total = ValueState(int)


class State:
    """An operator's state and its checkpoints."""

    def __init__(self, folder: Path, *, incremental: bool) -> None:
        self.folder = folder
        self.incremental = incremental
        self.blobs = DirectoryBlobs(folder / "blobs")
        self.checkpoints = Checkpoints(self.blobs, GROUPS)
        self.cursor = KeyCursor()
        context = OperatorContext(
            "op",
            0,
            1,
            GROUPS,
            KeyGroupRange(0, GROUPS),
            lambda: 0,
            local_state=folder / "local",
            incremental=incremental,
        )
        self.backend = keyed_backend("op", KEYS, self.cursor, context)
        self.total = self.backend.bind(declared_states(Total)["total"], describe_states(Total)["total"])

    def update(self, keys: list[int]) -> float:
        """Add one to each key and set its timer; the seconds it took."""
        began = time.perf_counter()
        total, cursor, timers = self.total, self.cursor, self.backend.event_timers
        for start in range(0, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            self.backend.learn(pl.DataFrame({"key": batch}), batch)
            for key in batch:
                cursor.key = key
                value = total.get(0) + 1
                total.set(value)
                timers.set(key, value)
            self.backend.maintain(len(batch))
        return time.perf_counter() - began

    async def take(self, *, canonical: bool = False) -> tuple[Manifest, int, float, float]:
        """A checkpoint: its manifest, bytes written, milliseconds of the freeze, seconds of the upload."""
        began = time.perf_counter()
        snapshot = OperatorSnapshot(self.backend.freeze())
        froze = time.perf_counter()
        incremental = self.incremental and not canonical
        manifest, written = await self.checkpoints.write(snapshot, incremental=incremental)
        return manifest, written, 1_000 * (froze - began), time.perf_counter() - froze


async def restored(blobs: Blobs, manifest: Manifest, subtask: int = 0, parallelism: int = 1) -> tuple[float, float]:
    """Seconds and CPU-seconds until a subtask of another operator has its part of the state."""
    after = State(Path(tempfile.mkdtemp()), incremental=False)
    began, cpu = time.perf_counter(), time.process_time()
    folder, owned = RestoreFolder(after.folder), key_group_range(subtask, parallelism, GROUPS)
    state = await restore_operator(manifest, "op", owned, subtask, parallelism, blobs, folder)
    assert state is not None
    after.backend.restore(state.keyed)
    folder.close()
    took = time.perf_counter() - began, time.process_time() - cpu
    after.backend.close()
    shutil.rmtree(after.folder)
    return took


async def main(count: int) -> None:
    """Print a table."""
    random.seed(1)
    states = [State(Path(tempfile.mkdtemp()), incremental=incremental) for incremental in (False, True)]
    every = list(range(count))
    random.shuffle(every)
    for state in states:
        print(f"{state.incremental=}: inserts, {count / state.update(every):,.0f} keys a second")
    manifests: dict[bool, Manifest] = {}
    for number in range(DELTAS + 1):
        for state in states[number not in (0, DELTAS) :]:  # full ones take long
            manifest, written, froze_ms, seconds = await state.take()
            print(
                f"{state.incremental=}: checkpoint {number}: {written:,} bytes, {seconds:.2f} s, freeze {froze_ms:.2f} ms"
            )
            manifests[state.incremental] = manifest
        some = random.sample(range(count), count // 100)
        for state in states:
            state.update(some)
    some = random.sample(range(count), min(count, 200_000))
    for round_ in range(3):
        for state in states if round_ % 2 else states[::-1]:
            print(f"{state.incremental=}: updates, {len(some) / state.update(some):,.0f} keys a second")
    for state in states:
        manifest = manifests[state.incremental]
        handles = manifest.subtasks["v"][0].operators["op"]
        seconds, _ = await restored(state.blobs, manifest)
        print(f"{state.incremental=}: restore with {len(handles.deltas)} deltas: {seconds:.2f} s")
    for state in states:
        state.backend.close()
        shutil.rmtree(state.folder)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
