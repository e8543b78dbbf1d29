"""The manifest: what a complete checkpoint consists of, one object named by its COMPLETE record.

`intervals` lists, per sink partition, what is complete and not known to be published, oldest first: which attempt's
frames count in which range of the sink's exchange. Every manifest repeats those of its parent that are still open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.errors import CorruptDataError
from penstock.protocol.messages import BesideKeys, Handle, OperatorHandles, SubtaskId, SubtaskSnapshot

FORMAT_VERSION = 4
"""The newest form: lists may stand in objects of their own (2), the keyed state of an operator in several (3), or in a
full run and deltas (4). A manifest without such is written in the oldest form that has all of it, which programs of
earlier versions read too."""


class Interval(msgspec.Struct, frozen=True):
    """Frames of `attempt` at offsets `start <= offset < end` of a sink's partition, completed by `checkpoint`."""

    attempt: str
    start: int
    end: int
    checkpoint: int


class Manifest(msgspec.Struct, frozen=True):
    """A complete checkpoint."""

    job: str
    checkpoint: int
    attempt: str
    parallelism: int
    max_parallelism: int
    subtasks: dict[str, dict[int, SubtaskSnapshot]]
    """Vertex to subtask index to what it acknowledged."""
    operators: dict[str, str]
    """Operator id to its description, for the check that a restored pipeline fits."""
    intervals: dict[str, dict[int, tuple[Interval, ...]]] = {}
    """Sink vertex to partition to what is complete and perhaps not published."""
    generation: int = 0
    attempt_number: int = 0
    version: int = 1


def covers_rows(manifest: Manifest) -> bool:
    """Whether rows that it covers stood in an exchange, perhaps unpublished, when it was written."""
    return any(
        interval.start < interval.end
        for partitions in manifest.intervals.values()
        for intervals in partitions.values()
        for interval in intervals
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of the object."""
    snapshots = (snapshot for subtasks in manifest.subtasks.values() for snapshot in subtasks.values())
    versions = (_version(handles) for snapshot in snapshots for handles in snapshot.operators.values())
    return msgspec.json.encode(msgspec.structs.replace(manifest, version=max(versions, default=1)))


def _version(handles: OperatorHandles) -> int:
    """The oldest form that has these."""
    if handles.incremental:
        return 4
    if handles.more:
        return 3
    return 2 if handles.beside is not None else 1


def decode_manifest(data: bytes, key: str) -> Manifest:
    """The manifest in the object `key`; raises `CorruptDataError` naming it."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if not 1 <= version <= FORMAT_VERSION:
            raise CorruptDataError(
                f"{key}: manifest format {version}, this program reads up to {FORMAT_VERSION}; use the Penstock that "
                "wrote it"
            )
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CorruptDataError(f"{key}: no readable manifest: {error}") from error


def objects_beside(manifest: Manifest) -> list[Handle]:
    """The objects that hold what was too large to stand in the manifest."""
    return [
        handles.beside
        for subtasks in manifest.subtasks.values()
        for snapshot in subtasks.values()
        for handles in snapshot.operators.values()
        if handles.beside is not None
    ]


def with_beside(manifest: Manifest, found: Mapping[str, BesideKeys]) -> Manifest:
    """The manifest with what these objects hold, by key, in its places."""

    def filled(handles: OperatorHandles) -> OperatorHandles:
        part = found.get(handles.beside.key) if handles.beside is not None else None
        if part is None:
            return handles
        return msgspec.structs.replace(handles, lists=part.lists, unions=part.unions, broadcast=part.broadcast)

    subtasks = {
        vertex: {
            index: msgspec.structs.replace(snapshot, operators={o: filled(h) for o, h in snapshot.operators.items()})
            for index, snapshot in snapshots.items()
        }
        for vertex, snapshots in manifest.subtasks.items()
    }
    return msgspec.structs.replace(manifest, subtasks=subtasks)


class _Versioned(msgspec.Struct):
    version: int


def checkpoints_prefix(job: str) -> str:
    """Where the checkpoints of a job stand."""
    return f"jobs/{job}/checkpoints/"


def checkpoint_of(key: str) -> int | None:
    """The number of the checkpoint that an object under `checkpoints_prefix` belongs to."""
    parts = key.split("/")
    number = parts[3].partition("-")[0] if len(parts) > 4 and parts[2] == "checkpoints" else ""
    return int(number) if number.isdecimal() else None


def manifest_key(job: str, attempt: str, checkpoint: int, nonce: str) -> str:
    """The key of a checkpoint's manifest."""
    return f"{blob_prefix(job, attempt, checkpoint, nonce)}manifest.json"


def blob_prefix(job: str, attempt: str, checkpoint: int, nonce: str) -> str:
    """Where the state objects of a checkpoint stand."""
    return f"{checkpoints_prefix(job)}{checkpoint:010d}-{attempt[:8]}-{nonce[:8]}/"


def open_intervals(
    parent: Mapping[str, Mapping[int, tuple[Interval, ...]]],
    snapshots: Mapping[SubtaskId, SubtaskSnapshot],
    sinks: Iterable[str],
    start_offsets: Mapping[str, tuple[int, ...]],
    attempt: str,
    checkpoint: int,
    published: Mapping[SubtaskId, int],
) -> dict[str, dict[int, tuple[Interval, ...]]]:
    """The intervals of a new checkpoint: its own, and those of its parent not known to be published.

    Args:
        parent: the intervals of the manifest before.
        snapshots: what the sink subtasks acknowledged; `position` is the offset behind the barrier.
        sinks: the vertices that publish from an exchange.
        start_offsets: where the attempt began to read each exchange.
        attempt: the attempt that takes this checkpoint.
        checkpoint: its number.
        published: per sink subtask, the checkpoint up to which everything is known to be visible.
    """
    result: dict[str, dict[int, tuple[Interval, ...]]] = {}
    for sink in sinks:
        result[sink] = {}
        positions = {s.index: snapshot.position for s, snapshot in snapshots.items() if s.vertex == sink}
        former = parent.get(sink, {})
        for partition in sorted(positions.keys() | former.keys()):
            earlier = former.get(partition, ())
            visible = published.get(SubtaskId(sink, partition), 0)
            kept = [interval for interval in earlier if interval.checkpoint > visible]
            if partition in positions:
                ends = [interval.end for interval in earlier if interval.attempt == attempt]
                start = max([start_offsets[sink][partition], *ends])
                kept.append(Interval(attempt, start, positions[partition], checkpoint))
            result[sink][partition] = tuple(kept)
    return result


class PartitionIntervals:
    """What a publisher knows of its own partition without reading manifests: the same as they say (`open_intervals`).

    Its ack said where the barrier of a checkpoint stands, and what COMPLETE adds is the way from the one before. So
    nobody reads the manifest of every checkpoint, which has as much to say of every other subtask.
    """

    def __init__(self, attempt: str, start_offset: int, restored: Sequence[Interval]) -> None:
        """`restored` are those of the checkpoint that the attempt starts from."""
        self._attempt = attempt
        self._end = start_offset
        self._open = tuple(restored)
        self._barriers: dict[int, int] = {}

    def acknowledged(self, checkpoint: int, position: int) -> None:
        """The barrier of this checkpoint ends at `position`."""
        self._barriers[checkpoint] = position

    def completed(self, checkpoint: int, published: int) -> tuple[Interval, ...]:
        """All that is complete and not known to be published; nothing if COMPLETE of `checkpoint` was heard before.

        `published` is the checkpoint up to which everything is known to be visible.
        """
        end = self._barriers.get(checkpoint)
        if end is None:
            return ()
        self._barriers = {n: position for n, position in self._barriers.items() if n > checkpoint}
        kept = tuple(interval for interval in self._open if interval.checkpoint > published)
        self._open = (*kept, Interval(self._attempt, self._end, end, checkpoint))
        self._end = end
        return self._open
