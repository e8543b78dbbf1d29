"""Savepoints of real operators, written and restored as the engine does it, without a job around them."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from penstock.adapters.memory import MemoryBlobs
from penstock.plan.logical import Node
from penstock.plan.signatures import state_signature
from penstock.protocol.joblog import StateBackend
from penstock.protocol.keygroups import key_group_range
from penstock.protocol.manifests import Manifest, decode_manifest, encode_manifest
from penstock.protocol.messages import Restore, SubtaskSnapshot
from penstock.savepoint.transfer import export_savepoint, import_savepoint
from penstock.task.operator import Operator
from penstock.task.snapshots import FrozenSubtask, restore_operator, upload
from penstock.testing.harness import HarnessSnapshot, OperatorHarness

GROUPS = 16
UID = "tested"


def export(
    harness: OperatorHarness, node: Node, folder: Path, backend: StateBackend = "fs", *, incremental: bool = False
) -> Path:
    """What a harness's operators hold, as a savepoint in a folder, or as the first one of incremental checkpoints."""
    base = (lambda _: None) if incremental else None
    return asyncio.run(_export(harness.operators, state_signature(node), folder, backend, base))


async def _export(
    operators: Sequence[Operator],
    signature: str,
    folder: Path,
    backend: StateBackend,
    base: Callable[[str], None] | None,
) -> Path:
    blobs, clock = MemoryBlobs(), itertools.count()
    subtasks: dict[int, SubtaskSnapshot] = {}
    for index, operator in enumerate(operators):
        snapshot = operator.snapshot()
        assert snapshot is not None
        frozen = FrozenSubtask({UID: snapshot}, 0, 1)
        subtasks[index] = await upload(
            frozen, f"jobs/j/checkpoints/0000000003-a-b/{index}-", blobs, backend, clock.__next__, base
        )
    manifest = Manifest("j", 3, "a", len(operators), GROUPS, {"v1": subtasks}, {UID: signature})
    await export_savepoint(blobs, await stored(blobs, manifest), folder)
    return folder


async def stored(blobs: MemoryBlobs, manifest: Manifest) -> Restore:
    """A manifest in a store."""
    data = encode_manifest(manifest)
    await blobs.put("jobs/j/checkpoints/0000000003-a-b/manifest.json", data)
    return Restore(3, "jobs/j/checkpoints/0000000003-a-b/manifest.json", hashlib.sha256(data).hexdigest())


def restored(folder: Path, node: Node, parallelism: int, now_us: int = 0) -> OperatorHarness:
    """A harness whose operators begin with a savepoint, brought into an empty store first."""
    return OperatorHarness(
        node,
        parallelism=parallelism,
        max_parallelism=GROUPS,
        restored=asyncio.run(_restored(folder, parallelism)),
        now_us=now_us,
    )


async def _restored(folder: Path, parallelism: int) -> HarnessSnapshot:
    blobs = MemoryBlobs()
    brought = await import_savepoint(blobs, folder)
    manifest = decode_manifest(await blobs.get(brought.manifest), brought.manifest)
    keyed: list[tuple[int, bytes]] = []
    watermarks: dict[int, int] = {}
    lists: dict[str, list[bytes]] = {}
    unions: Mapping[str, Sequence[bytes]] = {}
    broadcast: dict[str, bytes] = {}
    for index in range(parallelism):
        owned = key_group_range(index, parallelism, GROUPS)
        state = await restore_operator(manifest, UID, owned, index, parallelism, blobs)
        assert state is not None
        keyed += state.keyed
        watermarks |= state.watermarks
        unions = state.unions
        broadcast = dict(state.broadcast)
        for name, values in state.lists.items():
            lists.setdefault(name, []).extend(values)
    return HarnessSnapshot(keyed, watermarks, lists, {name: list(values) for name, values in unions.items()}, broadcast)


def dicts(frame: pl.DataFrame, *keys: str) -> dict[Any, Any]:
    """The rows of a table by key columns: the one other value, or a tuple of the others."""
    others = [name for name in frame.columns if name not in keys]
    return {
        tuple(row[key] for key in keys) if len(keys) > 1 else row[keys[0]]: row[others[0]]
        if len(others) == 1
        else tuple(row[name] for name in others)
        for row in frame.iter_rows(named=True)
    }
