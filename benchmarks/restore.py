"""How long state takes to be there again, and how much of it a subtask reads: `python -m benchmarks.restore [keys]`.

A value and a timer per key on the local disk, one full checkpoint. It is restored by one subtask, and by each of four.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.incremental import GROUPS, State
from penstock.adapters.directory.blobs import DirectoryBlobs
from penstock.protocol.keygroups import key_group_range
from penstock.protocol.manifests import Manifest
from penstock.task.snapshot_objects import RestoreFolder
from penstock.task.snapshots import restore_operator


class CountedBlobs(DirectoryBlobs):
    """Counts what is read."""

    read = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        data = await super().get(key, start, end)
        self.read += len(data)
        return data


async def restored(folder: Path, manifest: Manifest, subtask: int, parallelism: int) -> tuple[float, float, int, int]:
    """Seconds and CPU-seconds until a subtask has its part, the bytes that it read, and those that are its own."""
    after, blobs = State(Path(tempfile.mkdtemp()), incremental=False), CountedBlobs(folder / "blobs")
    owned = key_group_range(subtask, parallelism, GROUPS)
    began, cpu = time.perf_counter(), time.process_time()
    laid_down = RestoreFolder(after.folder)
    state = await restore_operator(manifest, "op", owned, subtask, parallelism, blobs, laid_down)
    assert state is not None
    after.backend.restore(state.keyed)
    laid_down.close()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    after.backend.close()
    shutil.rmtree(after.folder)
    handles = [handle for run in manifest.subtasks["v"][0].operators["op"].runs for handle in run]
    own = sum(end - start for handle in handles for group, (start, end) in handle.key_groups.items() if group in owned)
    return seconds, cpu, blobs.read, own


async def main(count: int) -> None:
    """Print a line per restore."""
    random.seed(1)
    state = State(Path(tempfile.mkdtemp()), incremental=False)
    every = list(range(count))
    random.shuffle(every)
    print(f"{count:,} keys: {count / state.update(every):,.0f} inserts a second")
    del every
    manifest, written, _, seconds = await state.take()
    print(f"written: {written:,} bytes in {seconds:.1f} s")
    state.backend.close()
    for parallelism in (1, 4):
        for subtask in range(parallelism):
            seconds, cpu, read, own = await restored(state.folder, manifest, subtask, parallelism)
            print(
                f"subtask {subtask} of {parallelism}: {seconds:.1f} s, {cpu:.1f} CPU-s, "
                f"{read:,} bytes read, of which {own:,} are of its key groups"
            )
    shutil.rmtree(state.folder)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
