"""What travels on the control topics: commands from the leader, events from the workers.

Every message names the job, the attempt and (commands) the epoch of the leader that sent it. All are JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from penstock.core.times import MIN_WATERMARK

Flavour = Literal["aligned", "at_least_once", "canonical"]
"""How a barrier is taken; `canonical` is aligned, and no snapshot of it refers to objects of others (a savepoint where
checkpoints are incremental). Unaligned barriers are a later part of the protocol."""


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all messages."""


class SubtaskId(msgspec.Struct, frozen=True, order=True):
    """A subtask of a job: vertex and index."""

    vertex: str
    index: int

    def __str__(self) -> str:
        return f"{self.vertex}[{self.index}]"


# -- commands: leader -> workers ----------------------------------------------------------------------------------------


class Command(Message, frozen=True, kw_only=True):
    """A command of the leader with that epoch; receivers drop those below the highest epoch they have seen."""

    epoch: int


class EpochStarted(Command, frozen=True, kw_only=True):
    """The first thing a new leader appends: whatever stands behind it from a lower epoch is void."""

    leader: str


class LeaderTick(Command, frozen=True, kw_only=True):
    """The leader is alive; a worker that misses it for too long stops its tasks."""


class Restore(msgspec.Struct, frozen=True):
    """The checkpoint that an attempt starts from."""

    checkpoint: int
    manifest: str
    sha256: str


class Deploy(Command, frozen=True, kw_only=True):
    """Start one subtask in one worker process. No (attempt, subtask) is ever deployed twice."""

    job: str
    attempt: str
    attempt_number: int
    subtask: SubtaskId
    worker: str
    generation: int
    restore: Restore | None
    start_offset: int
    """Where the subtask begins to read its exchange partition; 0 if it has none."""
    publishes_only: bool = False
    """Whether it only makes visible what the restored checkpoint covers."""


class BarrierMarker(Command, frozen=True, kw_only=True):
    """Checkpoint `checkpoint` begins; sources emit the barrier between two batches.

    With `pause` sources emit no further rows behind it until the checkpoint is aborted; with `drain` they emit the
    maximum watermark before it, so that all windows and timers fire.
    """

    job: str
    attempt: str
    checkpoint: int
    nonce: str
    flavour: Flavour = "aligned"
    pause: bool = False
    drain: bool = False


class CheckpointCompleted(Command, frozen=True, kw_only=True):
    """COMPLETE of this checkpoint stands in the job log: sinks publish it."""

    job: str
    attempt: str
    checkpoint: int
    nonce: str


class CheckpointAborted(Command, frozen=True, kw_only=True):
    """The leader discards the acks of this checkpoint. The data path does not care; paused sources go on."""

    job: str
    attempt: str
    checkpoint: int
    nonce: str
    reason: str = ""
    """Why it failed; empty if a later one has replaced it, or nobody is left who wants it."""


class CancelAttempt(Command, frozen=True, kw_only=True):
    """Stop all subtasks of the attempt at once; `final` if the job has ended and no other attempt follows."""

    job: str
    attempt: str
    reason: str = ""
    final: bool = False


class FinishAttempt(Command, frozen=True, kw_only=True):
    """The final checkpoint is complete and published: subtasks end; `final` if nobody restores it any more but as a
    savepoint, all of which is visible."""

    job: str
    attempt: str
    final: bool = False


class UnknownCommand(Command, frozen=True, kw_only=True):
    """A record that this program does not read, such as a newer leader's: only its epoch counts, 0 if it says none."""


AnyCommand = (
    EpochStarted | LeaderTick | Deploy | BarrierMarker | CheckpointCompleted | CheckpointAborted
    | CancelAttempt | FinishAttempt | UnknownCommand
)  # fmt: skip


# -- events: workers -> leader ------------------------------------------------------------------------------------------

TaskState = Literal["initializing", "running", "ended", "finished", "failed", "canceled"]
"""`ended`: a source that has no more rows (or a subtask whose every input has ended) but still forwards barriers."""


class OperatorMetrics(msgspec.Struct):
    """Plain counters that an operator raises and its subtask reports, and behind them what is so now. Rows, unless the
    name says otherwise."""

    rows_in: int = 0
    rows_out: int = 0
    late_rows: int = 0
    bad_rows: int = 0
    state_bytes: int = 0
    failed_calls: int = 0
    """Calls that raised or took too long, those that were made again included."""
    forgotten_keys: int = 0
    """Keys, of joins rows, whose time to live was over."""
    lost_changes: int = 0
    """Changes that would have retracted what was forgotten, and did nothing."""
    partial_matches: int | msgspec.UnsetType = msgspec.UNSET
    """Of a pattern: the matches that have begun and may go on, now. Not in the JSON of other operators."""
    partial_match_age_s: int | msgspec.UnsetType = msgspec.UNSET
    """Event time since the first row of the oldest of them, up to the watermark; 0 if there is none."""
    misspelt: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Of a source: optional fields that its records seem to spell otherwise, with the class ("Order.amuont"), each with
    the name that they have. Only where there are some."""

    @property
    def misspelt_fields(self) -> dict[str, str]:
        """`misspelt`, empty where there are none."""
        return {} if self.misspelt is msgspec.UNSET else self.misspelt


OperatorCounter = Literal[
    "rows_in", "rows_out", "late_rows", "bad_rows", "state_bytes", "failed_calls", "forgotten_keys", "lost_changes"
]
"""A field of `OperatorMetrics` that only rises."""


class TaskProgress(msgspec.Struct, frozen=True):
    """How far a subtask has come in this attempt, and where its time went."""

    watermark: int = MIN_WATERMARK
    busy_us: int = 0
    idle_us: int = 0
    blocked_us: int = 0
    """Held up by what is downstream (backpressure)."""
    bytes_in: int = 0
    bytes_out: int = 0
    state_bytes: int = 0
    """Of its newest durable snapshot."""
    records_behind: int | msgspec.UnsetType = msgspec.UNSET
    """Of a source: records that are there and not read. Not in the JSON where the source cannot tell."""
    unpublished_bytes: int | msgspec.UnsetType = msgspec.UNSET
    """Of a sink that publishes from the log: what waits there. Not in the JSON of other subtasks."""
    silent_split: str | msgspec.UnsetType = msgspec.UNSET
    """Of a source: the split that event time waits for, and that has brought no row for 10 s. Only where there is one."""
    silent_us: int | msgspec.UnsetType = msgspec.UNSET
    """For how long that split has been asked in vain."""
    waiting_to: int | msgspec.UnsetType = msgspec.UNSET
    """Of a source whose `silent_split` has not had a single row: the watermark of the split of the subtask that is
    furthest ahead, `MIN_WATERMARK` if none has had rows."""
    splits_behind: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    """Of a source: records to read of the splits that are furthest behind, a few of them. Only where some are behind."""


class TaskStatus(msgspec.Struct, frozen=True):
    """A subtask as its worker sees it."""

    job: str
    attempt: str
    subtask: SubtaskId
    state: TaskState
    published: int = 0
    """The highest checkpoint up to which everything of this subtask is visible in its sinks (0: none)."""
    error: str = ""
    frames: str = ""
    """Where in the user's code it failed, as in a traceback."""
    metrics: dict[str, OperatorMetrics] = {}
    """Operator id to its counters."""
    progress: TaskProgress = TaskProgress()
    waits_for: str = ""
    """What it waits for that does not answer, and why; the attempt goes on once it does."""
    terminal: bool = False
    """Whether it failed of something that every other attempt would fail of too."""
    refused: bool = False
    """Whether it failed because a sink's destination refuses a row: until somebody changes something, nobody is to wait
    for what is complete to be published."""


class Heartbeat(Message, frozen=True, kw_only=True):
    """The full state of a worker: one heartbeat heals any lost event. The first one registers the worker."""

    worker: str
    slots: int
    tasks: tuple[TaskStatus, ...] = ()
    leaving: str = ""
    """Why the worker is gone, or about to go; it gets no more subtasks, and those it has are lost."""
    bound_to: str = ""
    """The job whose code is loaded there: the process serves no other."""
    host: str = ""
    """Where it runs: task manager, host and process, for people."""
    memory_bytes: int = 0
    """Resident memory of the process."""
    number: int = 0
    """Counts the heartbeats of the worker from 1; 0 if it does not count. A repeated one says what was known before."""


class Handle(msgspec.Struct, frozen=True):
    """A durable object that holds state of one operator of one subtask."""

    key: str
    sha256: str
    size_bytes: int
    key_groups: dict[int, tuple[int, int]] = {}
    """Key group to (start, end) within the object."""
    inline: bytes = b""
    """The bytes themselves, where the state backend keeps snapshots with the coordinator's metadata; no object then."""


class BesideKeys(msgspec.Struct, frozen=True):
    """What an operator of a subtask keeps besides its keyed state."""

    lists: dict[str, tuple[bytes, ...]] = {}
    unions: dict[str, tuple[bytes, ...]] = {}
    broadcast: dict[str, bytes] = {}


class OperatorHandles(msgspec.Struct, frozen=True):
    """What one operator of one subtask put into a checkpoint."""

    keyed: Handle | None = None
    """The first object of its keyed state."""
    lists: dict[str, tuple[bytes, ...]] = {}
    unions: dict[str, tuple[bytes, ...]] = {}
    broadcast: dict[str, bytes] = {}
    beside: Handle | None = None
    """Where lists, unions and broadcast stand if they are too large for a message: in an object of their own, a
    `BesideKeys`. Whoever reads the manifest (`JobReader.manifest`) finds them in their places too."""
    ahead: dict[int, int] = {}
    """Key groups whose event time this operator has not reached again since its restore. Per operator: the operators of
    a chain may have come from different vertices, whose watermarks say nothing about each other."""
    more: tuple[Handle, ...] = ()
    """The further objects of its keyed state. A key group whose segments are too large for one object is in several."""
    incremental: bool = False
    """Whether its keyed state is to be read with `deltas`, even if there are none yet: see `penstock.state.deltas`."""
    deltas: tuple[tuple[Handle, ...], ...] = ()
    """What has changed since `keyed` and `more` were written, oldest first: the objects of each delta."""

    @property
    def parts(self) -> tuple[Handle, ...]:
        """The objects of its keyed state, with rising key groups; of an incremental one, those of its full run."""
        return () if self.keyed is None else (self.keyed, *self.more)

    @property
    def runs(self) -> tuple[tuple[Handle, ...], ...]:
        """The full run of its keyed state and its deltas, oldest first: what a later one says of an entry counts."""
        return (self.parts, *self.deltas)

    @property
    def objects(self) -> tuple[Handle, ...]:
        """Everything that it names."""
        beside = () if self.beside is None else (self.beside,)
        return (*(handle for run in self.runs for handle in run), *beside)

    def with_parts(self, parts: Sequence[Handle]) -> OperatorHandles:
        """The same with its keyed state in these objects."""
        return msgspec.structs.replace(self, keyed=parts[0] if parts else None, more=tuple(parts[1:]))

    def with_runs(self, runs: Sequence[Sequence[Handle]]) -> OperatorHandles:
        """The same with its keyed state in a full run and deltas."""
        deltas = tuple(map(tuple, runs[1:]))
        return msgspec.structs.replace(self.with_parts(runs[0]), incremental=True, deltas=deltas)


class SubtaskSnapshot(msgspec.Struct, frozen=True):
    """What one subtask acknowledges: its operators' state, its event-time progress, where its sink exchange stands."""

    operators: dict[str, OperatorHandles] = {}
    watermark: int = MIN_WATERMARK
    ahead: dict[int, int] = {}
    """Watermarks of key groups that are further: those of a former owner that this subtask has not reached yet."""
    size_bytes: int = 0
    """Of everything it names."""
    written_bytes: int | None = None
    """Of what was written for this checkpoint, if it names older objects too."""
    sync_us: int = 0
    """How long the subtask stood still."""
    async_us: int = 0
    """From the freeze until everything was durable."""
    alignment_us: int = 0
    """From the first barrier of the checkpoint to the last."""
    position: int = 0
    """Sinks behind an exchange: the offset behind this checkpoint's barrier."""


class Acknowledged(Message, frozen=True, kw_only=True):
    """Checkpoint acked: state durable, every frame up to the barrier confirmed."""

    job: str
    attempt: str
    checkpoint: int
    nonce: str
    subtask: SubtaskId
    snapshot: SubtaskSnapshot


class Declined(Message, frozen=True, kw_only=True):
    """The subtask could not take this checkpoint; the attempt goes on."""

    job: str
    attempt: str
    checkpoint: int
    nonce: str
    subtask: SubtaskId
    reason: str
    unavailable: bool = False
    """Whether a part of the world that the checkpoint needs was away: nothing that the job could have done better."""


class TaskChanged(Message, frozen=True, kw_only=True):
    """A subtask's state changed; the next heartbeat says the same."""

    worker: str
    status: TaskStatus


AnyEvent = Heartbeat | Acknowledged | Declined | TaskChanged


class _OfEpoch(msgspec.Struct):
    epoch: int


_ENCODER = msgspec.json.Encoder()
_COMMANDS: msgspec.json.Decoder[AnyCommand] = msgspec.json.Decoder(AnyCommand)
_EPOCHS: msgspec.json.Decoder[_OfEpoch] = msgspec.json.Decoder(_OfEpoch)
_EVENTS: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode(message: Message | msgspec.Struct) -> bytes:
    """The JSON of a message."""
    return _ENCODER.encode(message)


def decode_command(data: bytes) -> AnyCommand:
    """The inverse of `encode` for commands; what is none that this program knows is an `UnknownCommand`."""
    try:
        return _COMMANDS.decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return UnknownCommand(epoch=_epoch_of(data))


def _epoch_of(data: bytes) -> int:
    try:
        return _EPOCHS.decode(data).epoch
    except (msgspec.ValidationError, msgspec.DecodeError):
        return 0


def decode_event(data: bytes) -> AnyEvent:
    """The inverse of `encode` for events; raises `msgspec.ValidationError` or `msgspec.DecodeError`."""
    return _EVENTS.decode(data)
