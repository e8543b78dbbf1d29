"""What the master of a job is told and what it orders: the vocabulary of `penstock.protocol.jobmaster`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.protocol.joblog import AnyRecord, TerminalState
from penstock.protocol.manifests import Manifest
from penstock.protocol.messages import Acknowledged, AnyCommand, BarrierMarker, Declined, Restore, SubtaskId, TaskStatus


@dataclass(frozen=True)
class Topology:
    """The subtasks of a job at one parallelism, as far as the protocol cares."""

    subtasks: tuple[SubtaskId, ...]
    sources: frozenset[SubtaskId]
    sinks: frozenset[SubtaskId]
    """Subtasks that publish what a checkpoint covers (staged files, Kafka transactions)."""
    exchanges: Mapping[str, int]
    """Consuming vertex to number of partitions."""
    publishers: frozenset[str]
    """Sink vertices that publish from their own exchange."""
    slots: Mapping[SubtaskId, int]
    """The slot that each subtask shares with others, numbered from 0."""
    parallelism: int
    max_parallelism: int
    operators: Mapping[str, str] = field(default_factory=dict[str, str])
    """Operator id to its description, written into manifests."""

    @property
    def slot_count(self) -> int:
        """How many slots the job needs."""
        return max(self.slots.values(), default=-1) + 1


@dataclass(frozen=True)
class ChangedGraph:
    """The graph that the next generation of a job runs, where it is not the one that the job log says."""

    topology: Topology
    graph: Mapping[str, Any]


RequestKind = Literal["savepoint", "stop", "cancel", "rescale", "suspend"]


# -- events -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """A leader took over (or the job was just submitted) and knows what heartbeats and `commands` say."""

    epoch: int
    statuses: Mapping[SubtaskId, tuple[str, TaskStatus]]
    """Subtasks of the newest attempt that live, with their worker."""
    markers: tuple[BarrierMarker, ...] = ()
    """Every barrier marker of this job found in `commands`."""
    manifest: Manifest | None = None
    """The manifest of the checkpoint to restore, if there is one."""
    unreadable: str = ""
    """Why the checkpoint to restore cannot be read, if it cannot: no attempt begins until the job is opened again."""


@dataclass(frozen=True)
class RecordStored:
    """A record that was asked for stands in the job log."""

    record: AnyRecord


@dataclass(frozen=True)
class SlotsOffered:
    """All slots this job may use now: worker instance to number of slots."""

    workers: Mapping[str, int]


@dataclass(frozen=True)
class OffsetsCaptured:
    """The end offsets of all exchanges of `generation`."""

    generation: int
    offsets: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ExchangesTaken:
    """An exchange of `generation` exists in another shape."""

    generation: int


@dataclass(frozen=True)
class StatusReported:
    """A worker reports a subtask."""

    worker: str
    status: TaskStatus


@dataclass(frozen=True)
class TasksListed:
    """A heartbeat listed these subtasks of the newest attempt, and no others: what ran there before is gone."""

    worker: str
    subtasks: frozenset[SubtaskId]


@dataclass(frozen=True)
class WorkerGone:
    """A worker process is dead or silent for too long."""

    worker: str
    reason: str


@dataclass(frozen=True)
class AckReceived:
    """A subtask acknowledged or declined a checkpoint."""

    message: Acknowledged | Declined


@dataclass(frozen=True)
class ManifestStored:
    """The manifest is durable."""

    checkpoint: int
    nonce: str
    key: str
    sha256: str


@dataclass(frozen=True)
class Requested:
    """Somebody asked for something; a request id is obeyed once."""

    request: str
    kind: RequestKind
    drain: bool = False
    changed: ChangedGraph | None = None
    reason: str = ""


@dataclass(frozen=True)
class CheckpointAsked:
    """Somebody wants a checkpoint now; a request id is answered once."""

    request: str


@dataclass(frozen=True)
class Ticked:
    """Time has passed."""


JobEvent = (
    Opened | RecordStored | SlotsOffered | OffsetsCaptured | ExchangesTaken | StatusReported | TasksListed | WorkerGone
    | AckReceived | ManifestStored | Requested | CheckpointAsked | Ticked
)  # fmt: skip

# -- commands -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Append:
    """Write this record to the job log; `RecordStored` follows."""

    record: AnyRecord


@dataclass(frozen=True)
class Announce:
    """Append this command to `commands`."""

    command: AnyCommand


@dataclass(frozen=True)
class CaptureOffsets:
    """Create the exchanges of this generation if they are missing and read their end offsets.

    `OffsetsCaptured` follows, or `ExchangesTaken`.
    """

    generation: int
    exchanges: Mapping[str, int]


@dataclass(frozen=True)
class StoreManifest:
    """Write the manifest under `key`; `ManifestStored` follows."""

    manifest: Manifest
    nonce: str
    key: str


@dataclass(frozen=True)
class MissSlots:
    """The job waits: of the slots that it wants so many are missing."""

    missing: int
    wanted: int


@dataclass(frozen=True)
class RequestDone:
    """A request is answered."""

    request: str
    outcome: str
    """`completed`, `rescaled`, `suspended`, or `refused: ` with the reason."""
    savepoint: Restore | None = None


@dataclass(frozen=True)
class JobEnded:
    """The job is terminated or suspended; nothing more happens."""

    state: TerminalState | Literal["SUSPENDED"]
    reason: str


JobCommand = Append | Announce | CaptureOffsets | StoreManifest | MissSlots | RequestDone | JobEnded
