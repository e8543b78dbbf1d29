"""The job log: the one authority on what happened to a job.

Records are objects `jobs/<job>/log/<seq>` in the store, dense, created conditionally, each with a nonce. `JobHistory`
folds them and refuses what would break the chain (invariants I5 and I13); `JobLogWriter`, in a module of its own, decides
what an answer of the store to a conditional create means.

A `Compaction` stands for all records up to one of them, without those that nothing depends on any more; their objects
are deleted once it is in the store, but for SUBMIT and every LEADER: the first record that a former leader does not know
of is the LEADER of its successor, so the next record that it tries to create is refused however much was compacted. Who
becomes leader may have read the log before the one before wrote on and compacted, so its LEADER counts only after a look
at the compactions: one that reaches as far as LEADER was there before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from penstock.errors import CorruptDataError, ProtocolError
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.messages import Restore
from penstock.protocol.restarts import ExponentialDelay, RestartStrategy

TerminalState = Literal["FINISHED", "STOPPED", "CANCELED", "FAILED"]


KEPT_COMPLETES: Final = 100
"""How many COMPLETEs stay in a compaction; only the newest is needed, the others are shown to people."""
KEPT_FAILURES: Final = 100
"""How many records of failed attempts stay in a compaction: none is needed, all are shown to people."""

StateBackend = Literal["memory", "fs", "rocksdb"]
"""Where snapshots of keyed state go: with the coordinator's metadata (for tests and small state), or to the store."""


class JobSettings(msgspec.Struct, frozen=True):
    """How a job is run, whatever its graph."""

    checkpoints: CheckpointSettings = CheckpointSettings()
    restart: RestartStrategy = ExponentialDelay()
    state_backend: StateBackend = "fs"
    per_job: bool = False
    """Whether it runs on task managers that are started for it and end with it."""


class Artifact(msgspec.Struct, frozen=True):
    """The sources of a job: a zip in the store with the pipeline file and the local modules that it imports."""

    key: str
    sha256: str
    target: str
    """The pipeline in it: `file.py`, or `file.py:name`."""
    parameters: dict[str, str] = {}
    """What `--param` gave."""
    requirements: tuple[str, ...] = ()
    """Distributions that the sources import, with their versions where the job was submitted: `polars==1.35.1`."""


class Record(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all records; the writer sets seq and nonce."""

    seq: int = -1
    nonce: str = ""
    at_us: int = 0
    """When it was written, in microseconds since the epoch by its leader's clock. Nothing is decided by it."""


class Submit(Record, frozen=True, kw_only=True):
    """The job exists. Always the record 0; the job id is the request's id."""

    job: str
    name: str
    graph: dict[str, Any]
    restored_from: Restore | None = None
    settings: JobSettings = JobSettings()
    artifact: Artifact | None = None
    scalable: dict[str, Any] | None = None
    """The form of the graph from which that of another parallelism is made."""
    submitted_us: int = 0


class Leader(Record, frozen=True, kw_only=True):
    """A leader with this epoch acts for the job from now on."""

    epoch: int


class Begin(Record, frozen=True, kw_only=True):
    """An attempt may start. `generation` names its exchanges, `start_offsets` where it reads them."""

    attempt: str
    attempt_number: int
    restore: Restore | None
    parallelism: int
    generation: int
    start_offsets: dict[str, tuple[int, ...]]
    graph: dict[str, Any] | None = None
    """The graph, where it differs from that of the record before (another parallelism, a changed pipeline)."""
    request: str = ""
    """The rescale that this attempt carries out."""
    publishes_only: bool = False
    """Whether only its sinks run: they make visible what the newest COMPLETE covers, and no row is read."""


class AttemptFailed(Record, frozen=True, kw_only=True):
    """Why an attempt was given up. Nothing depends on it: it tells people what nobody else may remember."""

    attempt: str
    attempt_number: int
    reason: str
    subtask: str = ""
    """Where it failed, if that was in a subtask."""
    worker: str = ""
    """Which worker process it was that failed, or ran the subtask."""
    frames: str = ""
    """Where in the user's code, as in a traceback."""


class Complete(Record, frozen=True, kw_only=True):
    """Checkpoint `checkpoint` is complete; valid only for the newest `Begin`."""

    checkpoint: int
    checkpoint_nonce: str
    attempt: str
    parent: int
    """Seq of the previous COMPLETE, -1 if this is the first."""
    manifest: str
    sha256: str
    ending: str = ""
    """The ending that the checkpoint belongs to: a leader that takes over carries it on, or undoes it."""
    request: str = ""
    reason: str = ""
    refers: bool = False
    """Whether its manifest names objects of earlier checkpoints, which are kept as long as it is."""

    @property
    def restore(self) -> Restore:
        """How an attempt is started from it."""
        return Restore(self.checkpoint, self.manifest, self.sha256)


class Savepoint(Record, frozen=True, kw_only=True):
    """The checkpoint is a savepoint: published, and self-contained unless `refers`: see `Complete`."""

    checkpoint: int
    manifest: str
    sha256: str
    request: str
    published: bool
    refers: bool = False

    @property
    def restore(self) -> Restore:
        """How a job is started from it."""
        return Restore(self.checkpoint, self.manifest, self.sha256)


class Terminated(Record, frozen=True, kw_only=True):
    """The end. No record follows, no task of the job ever runs again."""

    state: TerminalState
    reason: str = ""
    unpublished: bool = False
    """Whether the newest COMPLETE covers rows that are not known to be published: their exchanges are kept."""


AnyRecord = Submit | Leader | Begin | AttemptFailed | Complete | Savepoint | Terminated


class Compaction(msgspec.Struct, frozen=True):
    """What the records up to the seq `through` come to."""

    through: int
    records: tuple[AnyRecord, ...]
    fences: tuple[int, ...]
    """The seqs up to `through` of SUBMIT and every LEADER, whose objects stay."""


_RECORDS: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)


def encode_record(record: AnyRecord) -> bytes:
    """The bytes of the object."""
    return msgspec.json.encode(record)


def decode_record(data: bytes, key: str) -> AnyRecord:
    """The record in the object `key`; raises `CorruptDataError`."""
    try:
        return _RECORDS.decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CorruptDataError(f"job log: object {key} is no record this program reads: {error}") from error


def decode_compaction(data: bytes, key: str) -> Compaction:
    """The compaction in the object `key`; raises `CorruptDataError`."""
    try:
        return msgspec.json.decode(data, type=Compaction)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CorruptDataError(f"job log: object {key} is no compaction this program reads: {error}") from error


def log_prefix(job: str) -> str:
    """Where the records of a job stand, and their compactions; those sort behind the records."""
    return f"jobs/{job}/log/"


def log_key(job: str, seq: int) -> str:
    """The key of a record."""
    return f"{log_prefix(job)}{seq:020d}"


def compaction_key(job: str, through: int) -> str:
    """The key of a compaction."""
    return f"{log_prefix(job)}compacted-{through:020d}"


@dataclass(frozen=True)
class LogKeys:
    """What stands under the prefix of a job's log."""

    records: dict[int, str]
    """Seq to key."""
    compactions: dict[int, str]
    """`through` to key."""

    @classmethod
    def of(cls, keys: Iterable[str]) -> LogKeys:
        """Sorted out; raises `CorruptDataError` for a key that is neither."""
        found = cls({}, {})
        for key in keys:
            kind, dash, number = key.rpartition("/")[2].rpartition("-")
            if not number.isdigit() or (dash and kind != "compacted"):
                raise CorruptDataError(f"job log: object {key} is neither a record nor a compaction")
            (found.compactions if dash else found.records)[int(number)] = key
        return found

    @property
    def through(self) -> int:
        """Up to where the newest compaction goes; -1 if there is none."""
        return max(self.compactions, default=-1)

    def superseded(self, compaction: Compaction) -> list[str]:
        """What may be deleted once `compaction` is in the store: older ones, and records that it stands for."""
        older = [key for through, key in self.compactions.items() if through < compaction.through]
        fences = frozenset(compaction.fences)
        return older + [k for seq, k in self.records.items() if seq <= compaction.through and seq not in fences]


@dataclass(slots=True)
class JobHistory:
    """What the job log says so far."""

    records: list[AnyRecord] = field(default_factory=list[AnyRecord])
    """Without those that a compaction left out."""
    next_seq: int = 0
    """The seq of the next record."""
    fences: list[int] = field(default_factory=list[int])
    """The seqs of SUBMIT and every LEADER."""
    compacted: int = -1
    """Up to where the newest compaction goes that this knows of."""
    submit: Submit | None = None
    begin: Begin | None = None
    complete: Complete | None = None
    terminated: Terminated | None = None
    graph: dict[str, Any] = field(default_factory=dict[str, Any])
    epoch: int = 0
    highest_checkpoint: int = 0
    attempts: set[str] = field(default_factory=set[str])
    savepoints: dict[str, Savepoint] = field(default_factory=dict[str, Savepoint])
    """By the request that asked for them."""
    rescales: set[str] = field(default_factory=set[str])
    """Requests for another parallelism that an attempt has carried out."""

    @classmethod
    def of(cls, records: Iterable[AnyRecord], compaction: Compaction | None = None) -> JobHistory:
        """The history after these records, of which the first follows the compaction."""
        history = cls()
        if compaction is not None:
            for record in compaction.records:
                history._take(record)
            history.next_seq, history.fences = compaction.through + 1, list(compaction.fences)
            history.compacted = compaction.through
        for record in records:
            history.apply(record)
        return history

    def compaction(self) -> Compaction:
        """What stands for all records so far."""
        shown: dict[type[Record], int] = {
            Complete: self._newest(Complete, KEPT_COMPLETES),
            AttemptFailed: self._newest(AttemptFailed, KEPT_FAILURES),
        }
        newest_leader = max((record.seq for record in self.records if isinstance(record, Leader)), default=-1)
        kept = (
            record
            for record in self.records
            if record.seq >= shown.get(type(record), 0)
            and not (isinstance(record, Leader) and record.seq != newest_leader)
        )
        return Compaction(self.next_seq - 1, tuple(kept), tuple(self.fences))

    def _newest(self, kind: type[Record], number: int) -> int:
        """The seq from which on the newest records of a kind stand."""
        return min([record.seq for record in self.records if isinstance(record, kind)][-number:], default=0)

    def forget(self, compaction: Compaction) -> None:
        """Keep of the records up to its end only those of the compaction."""
        later = [record for record in self.records if record.seq > compaction.through]
        self.records = [*compaction.records, *later]
        self.compacted = compaction.through

    @property
    def failures(self) -> list[AttemptFailed]:
        """The newest failed attempts, oldest first."""
        return [record for record in self.records if isinstance(record, AttemptFailed)]

    @property
    def retained(self) -> Complete | None:
        """The checkpoint that an ended job leaves behind, if it does: whoever wants starts another job from it."""
        terminated = self.terminated
        if terminated is None or not (terminated.state == "FAILED" or terminated.unpublished):
            return None
        return self.complete

    def is_published(self, manifest: str) -> bool:
        """Whether everything that this checkpoint covers is known to be visible, so that a job may start from it."""
        if any(savepoint.published and savepoint.manifest == manifest for savepoint in self.savepoints.values()):
            return True
        retained, terminated = self.retained, self.terminated
        return retained is not None and retained.manifest == manifest and not (terminated and terminated.unpublished)

    @property
    def restore(self) -> Restore | None:
        """The checkpoint that a new attempt starts from."""
        if self.complete is not None:
            return self.complete.restore
        return self.submit.restored_from if self.submit else None

    def check(self, record: AnyRecord) -> None:
        """Raise `ProtocolError` if the record may not follow."""
        if self.terminated is not None:
            raise ProtocolError(f"job log: {type(record).__name__} after TERMINATED{{{self.terminated.state}}}")
        if (self.submit is None) != isinstance(record, Submit):
            raise ProtocolError(f"job log: record {self.next_seq} is {type(record).__name__}")
        match record:
            case Leader() if record.epoch <= self.epoch:
                raise ProtocolError(f"job log: LEADER of epoch {record.epoch} after epoch {self.epoch}")
            case Begin() if record.attempt in self.attempts:
                raise ProtocolError(f"job log: attempt {record.attempt} begins twice")
            case AttemptFailed() if self.begin is None or record.attempt != self.begin.attempt:
                raise ProtocolError(f"job log: attempt {record.attempt} failed, which is not newest")
            case Complete():
                self._check_complete(record)
            case _:
                pass

    def _check_complete(self, record: Complete) -> None:
        if self.begin is None or record.attempt != self.begin.attempt:
            raise ProtocolError(
                f"job log: COMPLETE {record.checkpoint} of attempt {record.attempt}, which is not newest"
            )
        if record.checkpoint <= self.highest_checkpoint:
            raise ProtocolError(f"job log: COMPLETE {record.checkpoint} after {self.highest_checkpoint}")
        parent = self.complete.seq if self.complete else -1
        if record.parent != parent:
            raise ProtocolError(f"job log: COMPLETE {record.checkpoint} names parent {record.parent}, not {parent}")

    def apply(self, record: AnyRecord) -> None:
        """Take the next record.

        Raises:
            ProtocolError: it may not follow what is there.
        """
        if record.seq != self.next_seq:
            raise ProtocolError(f"job log: record {record.seq} where {self.next_seq} should follow")
        self.check(record)
        self._take(record)

    def _take(self, record: AnyRecord) -> None:
        self.records.append(record)
        self.next_seq = record.seq + 1
        if isinstance(record, Submit | Leader):
            self.fences.append(record.seq)
        match record:
            case Submit():
                self.submit = record
                self.graph = record.graph
                self.highest_checkpoint = record.restored_from.checkpoint if record.restored_from else 0
            case Leader():
                self.epoch = record.epoch
            case Begin():
                self.begin = record
                self.attempts.add(record.attempt)
                self.rescales.update({record.request} - {""})
                self.graph = record.graph or self.graph
            case Complete():
                self.complete = record
                self.highest_checkpoint = record.checkpoint
            case Terminated():
                self.terminated = record
            case Savepoint():
                self.savepoints[record.request] = record
            case AttemptFailed():
                pass
