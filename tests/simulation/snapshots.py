"""The snapshots of a simulated subtask: captured at a barrier, uploaded in the background, read back by a restore."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from tests.simulation.incremental import IncrementalHandles
from tests.simulation.kernel import Violation, Work

from penstock.errors import ExternalError
from penstock.ports import BlobNotFoundError
from penstock.protocol import subtask
from penstock.protocol.committing import StagedPart, StagedParts
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
    lists: dict[str, tuple[bytes, ...]]
    unions: dict[str, tuple[bytes, ...]]
    watermark: int
    watermarks: dict[int, int]
    position: int


class Snapshots:
    """What one subtask captured and has not uploaded, its staged parts, and the handles it may use again."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._frozen: dict[int, _Frozen] = {}
        self.staged = StagedParts((), 0)
        self.incremental = IncrementalHandles({})

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
        if len(parts) == task.parallelism and parts[task.index].operators["op"].keyed is not None:
            self.incremental = IncrementalHandles({"op": parts[task.index].operators["op"].keyed})
        for snapshot in parts.values():
            handles = snapshot.operators["op"]
            staged += handles.lists.get("staged", ())
            if handles.keyed is not None:
                yield from self._restore_keyed(handles.keyed)
        mine = [msgspec.json.decode(entry, type=StagedPart) for entry in staged[task.index :: task.parallelism]]
        self.staged = StagedParts(mine, manifest.checkpoint)

    def _restore_keyed(self, handle: Handle) -> Work:
        operator = self._task.operator
        wanted = {group: bounds for group, bounds in handle.key_groups.items() if group in operator.key_groups}
        if not wanted:
            return
        data = yield from self._get(handle.key)
        if hashlib.sha256(data).hexdigest() != handle.sha256:
            raise Violation(f"I9: {handle.key} is not what was acknowledged")
        for group, (start, end) in wanted.items():
            operator.restore(group, data[start:end])

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
        self._frozen[checkpoint] = _Frozen(operator.snapshot(), lists, unions, operator.watermark, above, position)

    def upload(self, command: subtask.Upload) -> Work:
        """Make it durable."""
        task, frozen = self._task, self._frozen.pop(command.checkpoint)
        prefix = blob_prefix(task.deploy.job, task.deploy.attempt, command.checkpoint, command.nonce)
        handle, data = self._assemble(frozen, f"{prefix}{task.vertex}-{task.index}-op.state")
        reused = self.incremental.reusable("op", handle.sha256) if handle else None
        handle = reused or handle
        self.incremental.taken(command.checkpoint, {"op": handle} if handle else {})
        operator = OperatorHandles(keyed=handle, lists=frozen.lists, unions=frozen.unions)
        snapshot = SubtaskSnapshot(
            operators={"op": operator},
            watermark=frozen.watermark,
            ahead=frozen.watermarks,
            position=frozen.position,
        )
        uploads = UploadMachine([handle.key] if handle and not reused else [], tries=3)
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
                    task.put(subtask.Uploaded(command.checkpoint, command.nonce, snapshot))
                case UploadGivenUp(reason=reason):
                    away = task.world.blobs.down
                    task.put(subtask.UploadFailed(command.checkpoint, command.nonce, reason, away))

    @staticmethod
    def _assemble(frozen: _Frozen, key: str) -> tuple[Handle | None, bytes]:
        index: dict[int, tuple[int, int]] = {}
        data = b""
        for group, segment in frozen.keyed.items():
            index[group] = (len(data), len(data) + len(segment))
            data += segment
        if not data:
            return None, b""
        return Handle(key, hashlib.sha256(data).hexdigest(), len(data), index), data
