"""The snapshots of a simulated subtask: captured at a barrier, uploaded in the background, read back by a restore."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from tests.simulation.kernel import Violation, Work

from penstock.errors import ExternalError
from penstock.ports import BlobNotFoundError
from penstock.protocol import subtask
from penstock.protocol.committing import StagedPart, StagedParts
from penstock.protocol.incremental import Chain, SnapshotChains
from penstock.protocol.manifests import Manifest, blob_prefix, decode_manifest
from penstock.protocol.messages import Handle, OperatorHandles, Restore, SubtaskSnapshot
from penstock.protocol.restoring import key_group_watermarks, watermarks_above
from penstock.protocol.uploading import Put, UploadDone, UploadGivenUp, UploadMachine

if TYPE_CHECKING:
    from tests.simulation.tasks import Task


@dataclass
class _Frozen:
    """What was captured at a barrier."""

    keyed: dict[int, bytes]
    epoch: int
    lists: dict[str, tuple[bytes, ...]]
    unions: dict[str, tuple[bytes, ...]]
    watermark: int
    watermarks: dict[int, int]
    position: int
    runs: dict[str, int]
    """How many runs of each split stand before the barrier, where its subtask publishes them."""


class Snapshots:
    """What one subtask captured and has not uploaded, its staged parts, and the handles it may use again."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._frozen: dict[int, _Frozen] = {}
        self.staged = StagedParts((), 0)
        self.chains = SnapshotChains()
        self._epochs: list[dict[int, bytes]] = []
        """What was frozen, to tell what has changed since: its number is one above its index."""

    # -- restoring ------------------------------------------------------------------------------------------------------

    def restore(self, restore: Restore) -> Work:
        """Read the manifest and the own part of its state; returns the manifest."""
        data = yield from self._get(restore.manifest)
        manifest = decode_manifest(data, restore.manifest)
        yield from self._restore(manifest)
        return manifest

    def _get(self, key: str) -> Work:
        task = self._task
        for _ in range(4):
            try:
                return (yield task.world.blobs.get(key))
            except BlobNotFoundError as error:
                if task.deploy.attempt == task.world.newest_attempt:
                    raise Violation(f"I9/I12: {task.deploy.subtask} needs {key}, which is not there") from error
                raise
            except ExternalError:
                yield task.worker.sleep(task.world.kernel.short(20, 60))
        raise ExternalError(f"{key} cannot be read")

    def _restore(self, manifest: Manifest) -> Work:
        task, operator = self._task, self._task.operator
        parts = {i: s for i, s in sorted(manifest.subtasks.get(task.vertex, {}).items()) if "op" in s.operators}
        for snapshot in parts.values():
            task.source.restore(snapshot.operators["op"].unions.get("splits", ()))
        operator.restored_watermarks = key_group_watermarks(parts, operator.key_groups, manifest.max_parallelism)
        staged: list[bytes] = []
        for snapshot in parts.values():
            handles = snapshot.operators["op"]
            staged += handles.lists.get("staged", ())
            runs: list[dict[int, bytes]] = []
            for run in handles.runs:
                runs.append({})
                for handle in run:
                    runs[-1] |= yield from self._read_keyed(handle)
            for group, state in merged(runs).items():
                if group in operator.key_groups:
                    operator.restore(group, state)
        mine = [msgspec.json.decode(entry, type=StagedPart) for entry in staged[task.index :: task.parallelism]]
        self.staged = StagedParts(mine, manifest.checkpoint)

    def _read_keyed(self, handle: Handle) -> Work:
        operator = self._task.operator
        wanted = {group: bounds for group, bounds in handle.key_groups.items() if group in operator.key_groups}
        if not wanted:
            return {}
        data = yield from self._get(handle.key)
        if hashlib.sha256(data).hexdigest() != handle.sha256:
            raise Violation(f"I9: {handle.key} is not what was acknowledged")
        return {group: data[start:end] for group, (start, end) in wanted.items()}

    # -- taking ---------------------------------------------------------------------------------------------------------

    def freeze(self, checkpoint: int, position: int) -> None:
        """Capture everything now; `position` is behind the barrier, for a publisher."""
        task, operator = self._task, self._task.operator
        written = operator.take_written()
        if written:
            name = f"{checkpoint}-{task.deploy.attempt[:8]}-{task.deploy.subtask}"
            task.world.folder.staged[name] = written
            self.staged.prepared([StagedPart("op", checkpoint, name)])
        lists = {"staged": tuple(msgspec.json.encode(part) for part in self.staged.listed(checkpoint))}
        unions = {"splits": task.source.snapshot()}
        above = watermarks_above(operator.restored_watermarks, operator.watermark)
        keyed = operator.snapshot()
        self._epochs.append(keyed)
        epoch = len(self._epochs)
        runs = {name: publisher.machine.offered for name, publisher in task.direct.items()}
        self._frozen[checkpoint] = _Frozen(keyed, epoch, lists, unions, operator.watermark, above, position, runs)

    def upload(self, command: subtask.Upload) -> Work:
        """Make it durable."""
        task, frozen = self._task, self._frozen.pop(command.checkpoint)
        while any(task.direct[name].machine.covered < count for name, count in frozen.runs.items()):
            yield task.worker.sleep(3)
        prefix = blob_prefix(task.deploy.job, task.deploy.attempt, command.checkpoint, command.nonce)
        chain, handle, data = self._chained(command, frozen, f"{prefix}{task.vertex}-{task.index}-op.state")
        handles = OperatorHandles(lists=frozen.lists, unions=frozen.unions)
        incremental = task.world.scenario.checkpoints.incremental
        operator = handles.with_runs(chain.runs) if incremental else handles.with_parts(chain.runs[0])
        snapshot = SubtaskSnapshot(
            operators={"op": operator},
            watermark=frozen.watermark,
            ahead=frozen.watermarks,
            position=frozen.position,
        )
        uploads = UploadMachine([handle.key] if handle else [], tries=3)
        pending = deque(uploads.start())
        while pending:
            match pending.popleft():
                case Put(key=key):
                    try:
                        yield task.world.blobs.put(key, data)
                        pending.extend(uploads.stored(key))
                    except ExternalError as error:
                        pending.extend(uploads.unknown(key, str(error)))
                case UploadDone():
                    self.chains.snapshot_stored(command.checkpoint, {} if command.canonical else {"op": chain})
                    task.put(subtask.Uploaded(command.checkpoint, command.nonce, snapshot))
                case UploadGivenUp(reason=reason):
                    away = task.world.blobs.down
                    task.put(subtask.UploadFailed(command.checkpoint, command.nonce, reason, away))

    def _chained(self, command: subtask.Upload, frozen: _Frozen, key: str) -> tuple[Chain, Handle | None, bytes]:
        """What the snapshot consists of, and the object to be stored for it."""
        incremental = self._task.world.scenario.checkpoints.incremental and not command.canonical
        base = self.chains.base("op") if incremental else None
        handle, data = self._assemble(frozen.keyed, key)
        if base is None:
            return Chain(((handle,) if handle else (),), frozen.epoch), handle, data
        handle, data = self._assemble(_changed(self._epochs[base.epoch - 1], frozen.keyed), key)
        self._task.world.coverage.add("delta" if handle else "empty delta")
        return Chain((*base.runs, (handle,)) if handle else base.runs, frozen.epoch), handle, data

    @staticmethod
    def _assemble(keyed: dict[int, bytes], key: str) -> tuple[Handle | None, bytes]:
        index: dict[int, tuple[int, int]] = {}
        data = b""
        for group, segment in keyed.items():
            index[group] = (len(data), len(data) + len(segment))
            data += segment
        if not data:
            return None, b""
        return Handle(key, hashlib.sha256(data).hexdigest(), len(data), index), data


def _changed(before: dict[int, bytes], now: dict[int, bytes]) -> dict[int, bytes]:
    """Per key group the entries that are others than before; those that are gone are null."""
    result: dict[int, bytes] = {}
    for group in sorted({*before, *now}):
        old, new = (json.loads(state.get(group, b"{}")) for state in (before, now))
        entries = {key: new.get(key) for key in {**old, **new} if old.get(key) != new.get(key)}
        if entries:
            result[group] = json.dumps(entries).encode()
    return result


def merged(runs: Iterable[Mapping[int, bytes]]) -> dict[int, bytes]:
    """The state of each key group after a full run and deltas."""
    states: dict[int, dict[str, Any]] = {}
    for run in runs:
        for group, data in run.items():
            states.setdefault(group, {}).update(json.loads(data))
    found = {group: {key: value for key, value in s.items() if value is not None} for group, s in states.items()}
    return {group: json.dumps(state).encode() for group, state in found.items() if state}
