"""Snapshots of a subtask: what is frozen at a barrier, how it becomes durable in the background, how it comes back.

Operators' keyed state of one checkpoint is one object per operator and subtask, or several if it is large
(`penstock.task.snapshot_objects`), with indices of their key groups in the manifest, so that a restore at another
parallelism only picks key groups (it reads and checks whole objects, because the checksum is the object's) and never
rewrites anything. Small operator state (splits, staged parts, lists) stands in the manifest itself, larger one in an
object of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import structlog

from penstock.errors import CorruptDataError, ExternalError, UsageError
from penstock.ports import BlobNotFoundError, Blobs
from penstock.protocol.incremental import Chain
from penstock.protocol.joblog import StateBackend
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import BesideKeys, Handle, OperatorHandles, SubtaskSnapshot
from penstock.protocol.restoring import key_group_watermarks
from penstock.protocol.uploading import Put, UploadDone, UploadGivenUp, UploadMachine
from penstock.task.operator import IncrementalPart, OperatorSnapshot, RestoredState
from penstock.task.snapshot_objects import (
    LaidDown,
    MergedSegments,
    RestoreFolder,
    Segments,
    SnapshotObject,
    object_key,
    objects_of,
)

_log: Final = structlog.get_logger(__name__)

MAX_INLINE_BYTES: Final = 5 << 20
"""As Flink's JobManagerCheckpointStorage."""
MAX_NAME: Final = 40
"""Characters of an operator id in a key."""
MAX_BESIDE_BYTES: Final = 256 << 10
"""How much of an operator's lists, unions and broadcast state an ack may hold: every publisher reads the manifest."""


@dataclass
class FrozenSubtask:
    """What a subtask captured at a barrier. `persist` runs in a thread before the state is written."""

    operators: dict[str, OperatorSnapshot]
    watermark: int
    sync_us: int
    alignment_us: int = 0
    ahead: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])
    """Per operator: key groups that a former owner had brought further than this subtask has come."""
    persist: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


async def upload(
    frozen: FrozenSubtask,
    prefix: str,
    blobs: Blobs,
    backend: StateBackend,
    monotonic_us: Callable[[], int],
    base: Callable[[str], Chain | None] | None = None,
) -> SubtaskSnapshot:
    """Make a frozen snapshot durable; returns its handles.

    Args:
        frozen: what was captured.
        prefix: of the keys of its objects.
        blobs: where they go.
        backend: whether they go there at all.
        monotonic_us: the clock.
        base: what of an earlier checkpoint an operator's snapshot may build on; None: it is to be canonical.

    Raises:
        UsageError: the state is too large for the `memory` backend.
    """
    started_us = monotonic_us()
    for persist in frozen.persist:
        await asyncio.to_thread(persist)
    operators: dict[str, OperatorHandles] = {}
    chains: dict[str, Chain] = {}
    total = 0
    for operator, snapshot in frozen.operators.items():
        parts: list[Handle] = []
        key = f"{prefix}{safe_name(operator)}.state"
        if base is not None and isinstance(snapshot.keyed, IncrementalPart):
            chains[operator] = await _upload_incremental(snapshot.keyed, base(operator), key, blobs, backend)
        elif snapshot.keyed is not None:
            parts = await _upload_keyed(snapshot.keyed.segments, key, blobs, backend)
            total += sum(handle.size_bytes for handle in parts)
        beside = BesideKeys(
            lists={name: tuple(entries) for name, entries in snapshot.lists.items()},
            unions={name: tuple(entries) for name, entries in snapshot.unions.items()},
            broadcast=dict(snapshot.broadcast),
        )
        size = size_beside(beside)
        ahead = frozen.ahead.get(operator, {})
        if size > MAX_BESIDE_BYTES and backend != "memory":
            large = await _upload_beside(beside, f"{prefix}{safe_name(operator)}.lists", blobs)
            handles = OperatorHandles(beside=large, ahead=ahead)
        else:
            handles = OperatorHandles(None, beside.lists, beside.unions, beside.broadcast, None, ahead)
        operators[operator] = handles.with_parts(parts)
        if operator in chains:
            operators[operator] = handles.with_runs(chains[operator].runs)
        total += size
    chained = [handle for chain in chains.values() for run in chain.runs for handle in run]
    written = sum(handle.size_bytes for handle in chained if handle.key.startswith(prefix))
    return SubtaskSnapshot(
        operators=operators,
        watermark=frozen.watermark,
        size_bytes=total + sum(handle.size_bytes for handle in chained),
        written_bytes=total + written if chains else None,
        sync_us=frozen.sync_us,
        async_us=monotonic_us() - started_us,
        alignment_us=frozen.alignment_us,
    )


def chains_of(frozen: FrozenSubtask, snapshot: SubtaskSnapshot) -> dict[str, Chain]:
    """What later snapshots may build on, per operator whose own one is incremental."""
    return {
        operator: Chain(handles.runs, part.epoch)
        for operator, handles in snapshot.operators.items()
        if handles.incremental and isinstance(part := frozen.operators[operator].keyed, IncrementalPart)
    }


async def _upload_incremental(
    part: IncrementalPart, base: Chain | None, key: str, blobs: Blobs, backend: StateBackend
) -> Chain:
    """Store what has changed since `base`, or everything if there is none or too much has changed."""
    if base is None or not part.knows_since(base.epoch):
        return Chain((tuple(await _upload_keyed(part.full, key, blobs, backend)),), part.epoch)
    delta = await _upload_keyed(lambda: part.delta(base.epoch), key, blobs, backend)
    return Chain((*base.runs, tuple(delta)) if delta else base.runs, part.epoch)


async def _upload_keyed(segments: Segments, key: str, blobs: Blobs, backend: StateBackend) -> list[Handle]:
    """Store the objects of an operator one after the other: one at a time is in memory."""
    objects = objects_of(segments)
    handles: list[Handle] = []
    more = True
    while more:
        handle, more = await _upload_next(objects, object_key(key, len(handles)), blobs, backend)
        handles += [handle] if handle is not None else []
        if backend == "memory":
            _check_inline(sum(handle.size_bytes for handle in handles), key)
    return handles


async def _upload_next(
    objects: Iterator[SnapshotObject], key: str, blobs: Blobs, backend: StateBackend
) -> tuple[Handle | None, bool]:
    """The next object, if there is one, and whether another one follows."""
    found = await asyncio.to_thread(next, objects, None)
    if found is None:
        return None, False
    handle = await asyncio.to_thread(lambda: found.handle(key, inline=backend == "memory"))
    if backend != "memory":
        await _store(key, found.data, blobs)
    return handle, not found.last


def _check_inline(size_bytes: int, key: str) -> None:
    """Refuse what is too large, and say before it is, while a savepoint can still be taken."""
    if size_bytes > MAX_INLINE_BYTES:
        raise UsageError(
            f"the snapshot of an operator has {size_bytes:,} bytes ({key}); the memory state backend keeps it with the "
            f"coordinator's metadata and takes at most {MAX_INLINE_BYTES:,}: use the fs backend"
        )
    if size_bytes > MAX_INLINE_BYTES // 2:
        _log.warning(
            "state nears the limit of the memory backend", snapshot=key, bytes=size_bytes, limit=MAX_INLINE_BYTES,
            advice="stop the job with a savepoint, and go on from it with the fs backend",
        )  # fmt: skip


def size_beside(beside: BesideKeys) -> int:
    """Bytes of all entries."""
    listed = (entry for part in (beside.lists, beside.unions) for entries in part.values() for entry in entries)
    return sum(map(len, listed)) + sum(map(len, beside.broadcast.values()))


async def _upload_beside(beside: BesideKeys, key: str, blobs: Blobs) -> Handle:
    data = await asyncio.to_thread(msgspec.json.encode, beside)
    digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
    await _store(key, data, blobs)
    return Handle(key, digest, len(data))


async def _store(key: str, data: bytes, blobs: Blobs) -> None:
    """Put an object until that is certain; raises `ExternalError` when it does not become so."""
    machine = UploadMachine([key])
    commands = deque(machine.start())
    while commands:
        match commands.popleft():
            case Put():
                try:
                    await blobs.put(key, data)
                except ExternalError as error:
                    commands.extend(machine.unknown(key, str(error)))
                else:
                    commands.extend(machine.stored(key))
            case UploadDone():
                return
            case UploadGivenUp(reason=reason):
                raise ExternalError(f"snapshot object {key} could not be stored: {reason}")


def safe_name(operator: str) -> str:
    """An operator id as a part of a key: another one for every id, and no longer than a file may be called."""
    safe = "".join(character if character.isalnum() or character in "-_." else "_" for character in operator)
    if safe == operator and len(safe) <= MAX_NAME:
        return safe
    return f"{safe[:MAX_NAME]}-{hashlib.sha256(operator.encode()).hexdigest()[:8]}"


async def restore_operator(
    manifest: Manifest,
    operator: str,
    key_groups: KeyGroupRange,
    subtask: int,
    parallelism: int,
    blobs: Blobs,
    folder: RestoreFolder | None = None,
) -> RestoredState | None:
    """The state of one operator for one subtask, whatever the parallelism it was written with.

    Args:
        manifest: the checkpoint.
        operator: its id.
        key_groups: those of the subtask.
        subtask: its index.
        parallelism: of the operator now.
        blobs: where the objects are.
        folder: where segments lie on the local disk until they are asked for; None: in memory.

    Raises:
        CorruptDataError: an object that the manifest names is missing or not what was written; the error names it.
        ExternalError: the folder cannot be written.
    """
    restored = restored_beside_keys(manifest, operator, key_groups, subtask, parallelism)
    if restored is None:
        return None
    parts = [part.operators[operator] for part in _snapshots_of(manifest, operator).values()]
    handles = [handle for part in parts for run in part.runs for handle in run]
    wanted = [handle for handle in handles if any(group in key_groups for group in handle.key_groups)]
    keyed = await _segments_of(wanted, key_groups, blobs, folder)
    if any(part.incremental for part in parts):
        groups = sorted(group for handle in wanted for group in handle.key_groups if group in key_groups)
        keyed = MergedSegments(operator, groups, keyed)
    return dataclasses.replace(restored, keyed=keyed)


async def _segments_of(
    handles: Sequence[Handle], key_groups: KeyGroupRange, blobs: Blobs, folder: RestoreFolder | None
) -> Sequence[tuple[int, bytes]]:
    """The segments of these key groups, with rising key groups; those of one in the order of the objects."""
    if folder is not None:
        return await _laid_down(handles, key_groups, blobs, folder)
    keyed: list[tuple[int, bytes]] = []
    for handle in handles:
        data = await _read(handle, blobs)
        keyed += [(group, data[start:end]) for group, start, end in _bounds(handle, key_groups)]
    return sorted(keyed, key=lambda segment: segment[0])


async def _laid_down(
    handles: Sequence[Handle], key_groups: KeyGroupRange, blobs: Blobs, folder: RestoreFolder
) -> LaidDown:
    places: list[tuple[int, Path, int, int]] = []
    for handle in handles:
        path = await asyncio.to_thread(folder.lay_down, await _read(handle, blobs))
        places += [(group, path, start, end) for group, start, end in _bounds(handle, key_groups)]
    return LaidDown(sorted(places, key=lambda place: place[0]))


def _bounds(handle: Handle, key_groups: KeyGroupRange) -> list[tuple[int, int, int]]:
    return [(group, *bounds) for group, bounds in handle.key_groups.items() if group in key_groups]


def restored_beside_keys(
    manifest: Manifest, operator: str, key_groups: KeyGroupRange, subtask: int, parallelism: int
) -> RestoredState | None:
    """What `restore_operator` gives, without keyed state: that stands in the manifest itself."""
    snapshots = _snapshots_of(manifest, operator)
    if not snapshots:
        return None
    parts = [snapshot.operators[operator] for snapshot in snapshots.values()]
    return RestoredState(
        lists=_redistribute([part.lists for part in parts], subtask, parallelism),
        unions=_union([part.unions for part in parts]),
        broadcast=dict(parts[0].broadcast),
        watermarks=key_group_watermarks(snapshots, key_groups, manifest.max_parallelism),
    )


def _snapshots_of(manifest: Manifest, operator: str) -> dict[int, SubtaskSnapshot]:
    """The snapshots of the subtasks that an operator had, with its own key groups that were ahead."""
    return {
        index: msgspec.structs.replace(snapshot, ahead=snapshot.operators[operator].ahead)
        for subtasks in manifest.subtasks.values()
        for index, snapshot in sorted(subtasks.items())
        if operator in snapshot.operators
    }


async def _read(handle: Handle, blobs: Blobs) -> bytes:
    try:
        data = handle.inline or await blobs.get(handle.key)
    except BlobNotFoundError as error:
        raise CorruptDataError(
            f"snapshot object {handle.key} is missing; restore an older savepoint explicitly"
        ) from error
    digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
    if digest != handle.sha256:
        raise CorruptDataError(f"snapshot object {handle.key} is not what was written (its checksum differs)")
    return data


def _redistribute(
    lists: Sequence[Mapping[str, Sequence[bytes]]], subtask: int, parallelism: int
) -> dict[str, Sequence[bytes]]:
    """List state: all entries in order, dealt out round robin."""
    return {name: entries[subtask::parallelism] for name, entries in _union(lists).items()}


def _union(lists: Sequence[Mapping[str, Sequence[bytes]]]) -> dict[str, Sequence[bytes]]:
    """Union list state: all entries of all subtasks."""
    result: dict[str, list[bytes]] = {}
    for named in lists:
        for name, entries in named.items():
            result.setdefault(name, []).extend(entries)
    return dict(result)
