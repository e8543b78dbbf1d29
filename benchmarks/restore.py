"""How long state takes to be there again, and how much of it a subtask reads: `python -m benchmarks.restore [keys]`.

A value and a timer per key on the local disk, one full checkpoint. It is restored by one subtask, and by each of four.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.incremental import GROUPS, State, restored
from penstock.adapters.directory.blobs import DirectoryBlobs
from penstock.protocol.keygroups import key_group_range
from penstock.protocol.manifests import Manifest


class CountedBlobs(DirectoryBlobs):
    """Counts what is read."""

    read = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        data = await super().get(key, start, end)
        self.read += len(data)
        return data


def bytes_of(manifest: Manifest, subtask: int, parallelism: int) -> int:
    """How many bytes of a checkpoint are those of the key groups of a subtask."""
    owned = key_group_range(subtask, parallelism, GROUPS)
    handles = [handle for run in manifest.subtasks["v"][0].operators["op"].runs for handle in run]
    return sum(end - start for handle in handles for group, (start, end) in handle.key_groups.items() if group in owned)


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
            blobs = CountedBlobs(state.folder / "blobs")
            seconds, cpu = await restored(blobs, manifest, subtask, parallelism)
            print(
                f"subtask {subtask} of {parallelism}: {seconds:.1f} s, {cpu:.1f} CPU-s, {blobs.read:,} bytes read, "
                f"of which {bytes_of(manifest, subtask, parallelism):,} are of its key groups"
            )
    shutil.rmtree(state.folder)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
