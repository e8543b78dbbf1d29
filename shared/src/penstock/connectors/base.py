"""What a source and a sink are: the declaration that a pipeline holds and the reader or writer that a subtask runs.

A connector is one file. A `Source` declares schema, event time and policies, lists its splits and opens readers; a
`Sink` declares its guarantee and opens writers. Neither knows the engine that drives it: the same objects serve the
streaming runtime and batch engines.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Protocol, runtime_checkable

from penstock.errors import ExternalError, PipelineError
from penstock.types import Schema

if TYPE_CHECKING:
    import polars as pl
    from typing_extensions import TypeVar

    from penstock.connectors.event_times import EventTimeForm
    from penstock.expressions import Expr
    from penstock.protocol.publishing import ProducerEpoch

    T = TypeVar("T", default="Row")
else:
    from typing import TypeVar

    T = TypeVar("T")  # Python 3.11 knows no defaults; what has no class of the user is `Row` to editors


class Row:
    """A row of a stream that has no class of the user: its columns are attributes."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


Guarantee = Literal["exactly-once", "at-least-once", "none"]
Policy = Literal["fail", "skip", "dead_letter"]

Position = Any
"""Where a reader stands in its split: a JSON value that only its connector understands. None is the beginning."""


# -- event time ---------------------------------------------------------------------------------------------------------


class WatermarkStrategy(ABC):
    """How a source's watermarks come about. One generator is made per split."""

    @abstractmethod
    def generator(self) -> WatermarkGenerator:
        """A fresh generator for one split."""

    @abstractmethod
    def describe(self) -> str:
        """One line for `penstock plan`."""

    @property
    def lag_us(self) -> int:
        """How far watermarks stay behind the newest row where rows come in order; 0 if that is not known.

        A batch engine, which sorts its input, lets event time come on by this rule.
        """
        return 0

    @property
    def in_order(self) -> bool:
        """Whether rows of a split are said to come in order of event time."""
        return False

    @property
    def undetermined(self) -> str:
        """What of its watermarks does not follow from the rows, as a clause; empty if nothing."""
        return "what its watermark function returns"

    @property
    def every_us(self) -> int:
        """How often `on_period` of its generators wants to be called; Flink's auto-watermark interval by default."""
        return 200_000


@dataclass(frozen=True, slots=True)
class WatermarkMoves:
    """How the watermark of a split moves over rows; microseconds, never falling."""

    at_rows: pl.Series
    """Int64: the watermark that holds when the turn of each row comes; null where none is known yet."""
    after: int | None
    """The watermark behind the last row."""


class WatermarkGenerator(Protocol):
    """Follows the rows of one split. `state` is a JSON value that survives a restart."""

    def on_batch(self, event_times: pl.Series, frame: pl.DataFrame) -> WatermarkMoves | None:
        """Event times (Int64, microseconds) and rows in order; how the watermark moves, None if they do not move it.

        The result for each row must not depend on where batches begin and end.
        """
        ...

    def on_period(self) -> int | None:
        """Called every watermark interval; the current watermark, if this strategy is periodic."""
        ...

    def state(self) -> Any:
        """A JSON value from which `restore` continues."""
        ...

    def restore(self, state: Any) -> None:
        """Continue from what `state` returned."""
        ...


@dataclass(frozen=True)
class WatermarkAlignment:
    """How far a split may be ahead of the slowest split of all sources of the group in a job."""

    max_drift_us: int
    group: str = ""


MAX_AHEAD_US: Final = 30 * 86_400_000_000
"""How far an event time may be ahead of the wall clock where an unbounded source says nothing of it: 30 days."""


@dataclass(frozen=True)
class EventTime:
    """What of a row is its event time, how watermarks follow from it, and when a silent split stops holding them back."""

    form: EventTimeForm
    watermarks: WatermarkStrategy
    idle_after_us: int | None = None
    alignment: WatermarkAlignment | None = None
    max_ahead_us: int | Literal["default"] | None = "default"
    """How far event times may be ahead of the wall clock; None: as far as they are. See `Source.max_ahead_us`."""


# -- sources ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dataset:
    """Data outside, by the name that other tools know it by (OpenLineage's naming)."""

    namespace: str
    """Such as `kafka://broker:9092`, `s3://bucket`, `file`."""
    name: str
    """Such as a topic, or the path of a folder."""


@dataclass(frozen=True)
class Split:
    """A part of a source that one reader follows in order.

    `id` is stable across restarts and the same wherever it is computed (a path, a partition number): the owning
    subtask is a function of it.
    """

    id: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that could not become a row of the schema."""

    error: str
    raw: bytes
    where: str
    """Human-readable place: `flights.jsonl, line 17`."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one `read` brought: rows in order with the schema's columns (see `Schema.polars`), bad records.

    Beside them a frame has only what `EventTimeForm.hidden` may need.
    """

    frame: pl.DataFrame
    bad: Sequence[BadRow] = ()
    size_bytes: int = 0
    is_all: bool = False
    """Whether no more was at hand: where that is little, more is let come before the next read. False is always safe."""
    misspelt: Mapping[str, str] = field(default_factory=dict[str, str])
    """Optional fields that records seem to spell otherwise, each with the name that they have; see `formats.misspelt`."""


class SplitReader(Protocol):
    """Follows one split. Used by one subtask; `read` may be cancelled and then must not lose rows."""

    async def read(self, max_rows: int) -> Fetched | None:
        """The next rows, None if there are none right now; raises `EndOfSplit` when there will never be any more.

        Returns without waiting where rows are at hand; a reader of something live may wait up to about 50 ms.
        """
        ...

    def position(self) -> Position:
        """The position behind everything returned so far; reading from it continues exactly there."""
        ...

    async def close(self) -> None:
        """Give back files and connections."""
        ...


@runtime_checkable
class MeasuresLag(Protocol):
    """A reader that knows how much is still to come."""

    def records_behind(self) -> int | None:
        """Records between the position and the newest one; None while that is not known. Does not wait for anything."""
        ...


@runtime_checkable
class KnowsAnswers(Protocol):
    """A reader that may return None because nobody outside has answered yet: a connection that is being opened, a broker
    that is away. That says nothing of the split, which does not become idle by it."""

    @property
    def has_answered(self) -> bool:
        """Whether there was an answer since reading began or was interrupted. Does not wait for anything."""
        ...


@runtime_checkable
class ConfirmsPositions(Protocol):
    """A reader whose input is kept outside until it is told that nobody needs it any more."""

    def confirm(self, position: Position) -> None:
        """A checkpoint with this position is complete: the job goes on from there or from behind it. Does not wait."""
        ...


A_MOMENT_S = 0.05
"""How long a reader may wait for records whatever else there is to do."""


class EndOfSplit(Exception):  # noqa: N818 (a signal, not an error, like StopAsyncIteration)
    """The split has no more rows and never will."""


async def _a_moment() -> None:
    await asyncio.sleep(A_MOMENT_S)


@dataclass(frozen=True)
class ReadContext:
    """What a reader may need of its surroundings."""

    clock_us: Callable[[], int]
    monotonic_ms: Callable[[], int]
    parallelism: int = 1
    shared: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """For what the readers of one subtask have in common, by a name that its connector chooses."""
    next_timer_us: Callable[[], int | None] = field(default=lambda: None, compare=False)
    """When the operators behind the source want the wall clock looked at next: a reader that waits holds them up."""
    other_work: Callable[[], Awaitable[None]] = field(default=_a_moment, compare=False)
    """Returns as soon as the subtask has something else to do than to wait for records of this source: whoever waits for
    them for longer than `A_MOMENT_S` waits for that as well."""


@dataclass(frozen=True)
class ScanRequest:
    """The columns and rows of a source that a pipeline looks at (see `penstock.plan.passes.reading`)."""

    columns: frozenset[str] | None = None
    """Others may be null in the rows that it is given; None: it looks at all."""
    predicate: Expr | None = None
    """Rows for which it is not true may be left out; None: no row may."""
    whole_splits: bool = False
    """Whether splits may only be left out as a whole: rows that are dropped move the event time of their split."""
    window_reach_us: int = 0
    """How far the bounds of windows may be from a row of them: rows nearer to the ends of the calendar are bad."""


class Source(ABC, Generic[T]):
    """A declared source of rows `T`. Instances of subclasses have these attributes, and never change."""

    kind: ClassVar[str]
    """Name in plans, such as `files`."""
    schema: Schema
    row_type: type[T] | None
    """The user's class of the rows, if the schema was declared by one."""
    event_time: EventTime | None
    bad_rows: Policy
    timezone: str | None
    """Zone of naive timestamps in the data."""
    on_spark_alone: ClassVar[bool] = False
    """Whether no reader of its splits can be opened, because Spark gives tasks its rows."""
    has_numbered_splits: ClassVar[bool] = False
    """Whether its splits have the ids 0, 1, 2 and so on, and each a position for as long as it is there, as the
    partitions of a topic have: then a sink may keep where each stands (see `penstock.protocol.split_publishing`)."""
    has_moment: ClassVar[bool] = False
    """Whether `moment` is to be asked."""
    ends_on_request: ClassVar[bool] = False
    """Whether `until_now` ends a split that has no end of its own, so that a batch engine can read it up to now."""

    makes_event_times: ClassVar[bool] = False
    """Whether event times are computed here, and not told by clocks outside, which may be wrong."""

    @property
    def max_ahead_us(self) -> int | None:
        """How far ahead of the wall clock an event time may be; a row beyond it is a bad row. None: nobody looks.

        One event far in the future takes the watermark there, behind which every other row is late: so a source that
        never ends has a limit if it says nothing.
        """
        said = self.event_time.max_ahead_us if self.event_time is not None else None
        if said != "default":
            return said
        return None if self.bounded or self.makes_event_times else MAX_AHEAD_US

    def moment(self) -> Position:
        """What of the input is fixed for all its splits before the first is looked for, such as the snapshot of a table.

        Asked once in the life of a job and remembered; may block. None: nothing.
        """
        return None

    def at(self, moment: Position) -> Source[T]:
        """The same source, whose `discover` and `resolve` go by what `moment` returned."""
        return self

    @abstractmethod
    def discover(self) -> Sequence[Split]:
        """All splits there are now, sorted by id. Called at the start and, if `unbounded`, again from time to time.

        Raises:
            PipelineError: the input is missing or unreadable, saying what and where.
        """

    def resolve(self, split: Split, *, late: bool) -> Position:
        """Where a split without a position begins, if that depends on when it is asked (the end of a topic, a time).

        Asked once in the life of a job and remembered before the first row; may block. None: its beginning. `late`: the
        split was found while the job ran, so it is read from its beginning whatever the source says of the start.
        """
        return None

    def until_now(self, split: Split, position: Position) -> Position:
        """`position` with an end, where a batch engine stops: the one the source declares, else all that is there now.

        Asked once in a run and remembered; may block. A position that has an end already is returned as it is.
        """
        return position

    def at_end(self, position: Position) -> bool:
        """Whether nothing lies between `position` and the end that `until_now` gave it; False where that is not known."""
        return False

    def go_on_from(self, position: Position) -> Position | None:
        """From where a stream reads on behind a split that was read to the end that `until_now` gave it.

        None: the split is over for good, as a file is.
        """
        return None

    def ranges(self, split: Split, most_bytes: int) -> Sequence[Position]:
        """Positions from which parts of a split that nobody has read of are read side by side, each up to the next one.

        Every row is in just one part, and all parts in order have the rows of the split in order. Does not look at the
        input: what `split` says of its size counts. Empty: it is read as a whole.

        Args:
            split: as `discover` found it.
            most_bytes: how much a part is to have, at most.
        """
        return ()

    def needs_survey(self, split: Split) -> bool:
        """Whether all `ranges` of a split must be looked at (`survey`) before one of them can be read."""
        return False

    def survey(self, split: Split, position: Position) -> Any:
        """Look at one of the `ranges` of a split; a JSON value for `surveyed`. Blocks; in a task, beside others."""
        raise NotImplementedError(f"{self.kind} has nothing to survey")

    def surveyed(self, positions: Sequence[Position], found: Sequence[Any]) -> Sequence[Position]:
        """The `ranges` of a split as they can be read, now that `survey` has `found` this of each of them."""
        return positions

    def behind(self, split: Split, positions: Sequence[Position]) -> Position:
        """The position behind a split whose `ranges`, in order, were read up to these.

        Raises:
            PipelineError: they are not of one input: it was replaced meanwhile.
        """
        return positions[-1]

    def narrowed(self, request: ScanRequest) -> Source[T]:
        """The same source, reading no more than `request` asks for, as far as it can; itself if it cannot.

        Bad rows, the rows that are asked for, and positions stay what they are.
        """
        return self

    def describe_narrowing(self) -> Mapping[str, str]:
        """For plans: what of it is not read, if it is `narrowed`."""
        return {}

    @property
    def relative_path(self) -> str:
        """Its path, if that is relative to the working directory of the process that opens it; otherwise empty."""
        return ""

    def dataset(self) -> Dataset | None:
        """What it reads; None if that has no name outside."""
        return None

    def conflict(self, sink: Sink) -> str:
        """Why a pipeline must not both read this and write there, if so: such as that it would read its own rows."""
        return ""

    @abstractmethod
    def open(self, split: Split, position: Position, context: ReadContext) -> SplitReader:
        """A reader of `split` from `position` (None: its beginning)."""

    @property
    @abstractmethod
    def bounded(self) -> bool:
        """Whether the splits found at the start are all and each of them ends."""

    @property
    @abstractmethod
    def replayable(self) -> bool:
        """Whether reading from a position again returns the same rows: what exactly-once needs."""

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """JSON-able settings for plans and fingerprints; no secrets."""

    def __repr__(self) -> str:
        return _shown(self)


class ChangeSource(Source[T]):
    """A source of changes of rows that have a key: its `schema` has the columns of a row and the boolean `retracted`."""

    rows: Schema
    """The columns of a row."""
    keys: tuple[str, ...]
    """Those of the key, of which at most one row holds at a time."""
    complete: bool
    """Whether every change is there: a row that is retracted as it was, an update as two rows. If not, a row replaces
    the former one of its key, and one with `retracted` true says that the key has none; only its key is not null."""


# -- sinks --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WriteContext:
    """What a writer may need of its surroundings."""

    operator: str
    subtask: int
    attempt: str
    attempt_number: int
    clock_us: Callable[[], int]


class SinkWriter(Protocol):
    """Writes the rows of one subtask. Two-phase: `prepare` stages, `commit` makes visible.

    A writer without transactions returns no committables: it flushes in `prepare` and is at-least-once.
    """

    def write(self, frame: pl.DataFrame) -> None:
        """Take rows (exactly the schema's columns)."""
        ...

    def prepare(self, checkpoint: int) -> Prepared:
        """Close what was written since the last `prepare`; later rows belong to the next checkpoint. Returns at once."""
        ...

    def commit(self, committable: Any) -> None:
        """Make a staged part visible. Idempotent, by anyone, also after it was committed *and consumed*.

        Called in a background thread, never concurrently with itself.

        Raises:
            LostPartError: the part is gone, and nothing proves that it was committed.
        """
        ...

    def discard(self, committable: Any) -> None:
        """Remove a staged part that belongs to no completed checkpoint. Idempotent."""
        ...

    def close(self) -> None:
        """Give back files and connections; what was not prepared is removed."""
        ...


@dataclass(frozen=True)
class Prepared:
    """The staged parts of one checkpoint: JSON values for `commit`, and the work that makes them durable.

    `persist` runs in a background thread; when it returns the staged parts survive a power loss. It may be called again,
    also after they were committed: a checkpoint that is declined leaves it to the next one.
    """

    committables: Sequence[Any] = ()
    persist: Callable[[], None] | None = None


@runtime_checkable
class ForgetsCommits(Protocol):
    """A writer that keeps a proof of every commit."""

    def forget(self, committable: Any) -> None:
        """The part is committed, and no checkpoint that may be restored lists it: its proof may go. Idempotent.

        Called in a background thread, never concurrently with itself or `commit`.
        """
        ...


@runtime_checkable
class CommitsTogether(Protocol):
    """A writer that makes several parts visible at once, where a batch engine has them all."""

    def commit_together(self, committables: Sequence[Any]) -> None:
        """As `commit`, for all of them or none. Given again they are the same ones in the same order."""
        ...


class LostPartError(ExternalError):
    """What was staged for a completed checkpoint is gone, and it was not committed: its rows would be missing."""

    retryable = False


class ExistingRowsError(PipelineError):
    """A job starts anew where rows of an earlier one are, and nobody said what is to become of them."""

    terminal = True


Removal = Callable[[], None]
"""Removes what was found before, by name, and nothing else. Blocks; whatever is gone already is no error."""


def remove_nothing() -> None:
    """The removal where nothing is to be removed."""


class Sink(ABC):
    """A declared destination. Instances of subclasses never change."""

    kind: ClassVar[str]
    in_process: ClassVar[bool] = False
    """Whether what it writes is for the process that declares it, so that its writers must run there."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """The best this sink can give, before source and mode are considered."""

    def conflict(self, other: Sink) -> str:
        """Why a pipeline must not write to this sink as well as to the other one, and what to do; empty if it may."""
        return ""

    @property
    def relative_path(self) -> str:
        """Its path, if that is relative to the working directory of the process that opens it; otherwise empty."""
        return ""

    def dataset(self) -> Dataset | None:
        """What it writes; None if that has no name outside."""
        return None

    @abstractmethod
    def check(self, schema: Schema, *, updates: bool) -> None:
        """Raise `PipelineError` if rows of this schema cannot be written; `updates`: rows may replace earlier ones."""

    @property
    def wants_changes(self) -> bool:
        """Whether a stream of updates is to be made into changes for it."""
        return False

    @property
    def upsert_key(self) -> tuple[str, ...] | None:
        """The columns by which a row replaces another at the destination; None if all rows stay."""
        return None

    def of_changes(self) -> Sink:
        """The sink for changes; those of a row with the key `upsert_key` come in order. Else they are written as rows."""
        return self

    def reach(self, schema: Schema) -> None:
        """Called before writers open, also of an attempt that repeats: see to it that the destination takes such rows.

        Blocks. Makes what is missing, where the sink does that, and leaves what is there as it is.

        Raises:
            PipelineError: it does not take them.
            ExternalError: it cannot be reached.
        """
        return

    @abstractmethod
    def open(self, schema: Schema, context: WriteContext) -> SinkWriter:
        """A writer for one subtask.

        Opening removes staged leftovers only of the same operator and subtask and only of other attempts that
        `recover` was told are not needed.
        """

    def begin(self) -> Removal:
        """Called when a job starts anew (not when it is resumed), before `recover`: find what it does not keep.

        As in `recover`, nothing is removed before the removal is called.

        Raises:
            ExistingRowsError: rows of earlier jobs are there, and the sink was not told what becomes of them.
        """
        return remove_nothing

    def recover(
        self,
        needed: Sequence[Any],
        operator: str | None = None,
        attempt: str = "",
        attempts: Collection[str] | None = None,
    ) -> Removal:
        """Called when an attempt starts, and behind the end of a job: find staged parts that are not in `needed`.

        The caller proves that the attempt is still the newest one after this has returned and before it calls the
        removal: a part of a newer attempt, or a row of it, cannot be among what was found before. So a thread of a dead
        attempt may go on whenever it likes.

        Args:
            needed: committables that stay, and the proofs of their commits.
            operator: limits that to the parts of one sink operator, because several may share a destination.
            attempt: its own parts stay, because its other writers may be open already.
            attempts: limits that to the parts of these attempts; None: of whichever attempt or job.
        """
        return remove_nothing

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """JSON-able settings for plans and fingerprints; no secrets."""

    def __repr__(self) -> str:
        return _shown(self)


def _shown(connector: Source[Any] | Sink) -> str:
    """What it is made with, as far as `describe` tells: `kafka.Source(topic='bids')`; no secrets."""
    options = ", ".join(f"{name}={value!r}" for name, value in connector.describe().items())
    return f"{connector.kind}.{type(connector).__name__}({options})"


# -- sinks that publish from their own exchange -------------------------------------------------------------------------


class ProducerFencedError(ExternalError):
    """Another producer with the same transactional id has started: what this one had begun is aborted."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows as they will be published: a frame of `PublishedSink.encoded_schema`, and how many rows were skipped."""

    frame: pl.DataFrame
    skipped: int = 0


class SinkEncoder(Protocol):
    """Makes rows into what is published. Runs before the exchange, so that a row that cannot be published meets the
    policy for bad rows there and never in the publisher.
    """

    def encode(self, frame: pl.DataFrame) -> Encoded:
        """Take rows of the schema, in order; raises `BadRecordError` for one that cannot be, if the policy is `fail`."""
        ...


@dataclass(frozen=True)
class PublishContext:
    """Which part of which sink a publisher publishes. Whoever has the same one fences the others.

    A part is a partition of the sink's exchange in a generation; where there is no exchange, a split of the source, whose
    generation is 0 whatever the job's is.
    """

    job: str
    operator: str
    generation: int
    partition: int
    partitions: int
    clock_us: Callable[[], int]


@dataclass(frozen=True, slots=True)
class PublishedMark:
    """How far a partition of a sink is published, as it stands in the sink's system."""

    position: int
    metadata: str


class SinkPublisher(Protocol):
    """Publishes encoded rows and a mark in one transaction. Driven by one task, one call at a time.

    Any `ExternalError` that may be retried means doubt: the transaction may have been committed or not, or may be a
    while later. `init_producer` ends that: afterwards nothing of earlier producers can become visible any more.
    """

    async def open(self) -> None:
        """Called once: check that what is needed is there. Raises `PipelineError` if it is not and will not be."""
        ...

    async def init_producer(self) -> ProducerEpoch | None:
        """A fresh producer: fences all others of this context and settles their transactions.

        Called before each transaction, as soon as the one before it is over. Returns what was granted, if the system
        counts that: then the mark need not be read where nobody else was granted anything since the last commit.
        """
        ...

    async def read_mark(self) -> PublishedMark | None:
        """The mark; only right after `init_producer`. None if there is none."""
        ...

    async def commit(self, frames: Sequence[pl.DataFrame], mark: PublishedMark) -> int | None:
        """Publish rows and mark in one transaction; returns when it is committed for certain.

        Where the policy for bad rows says so, rows that the destination refuses for what they are may be left out of it;
        returns how many were.

        Raises:
            ProducerFencedError: another producer has started.
            RefusedRowError: the destination refuses a row, and would again.
        """
        ...

    async def close(self) -> None:
        """Give back connections; a transaction that is not committed is not."""
        ...


class PublishedSink(Sink):
    """A sink that publishes exactly once from its own exchange (see `penstock.protocol.publishing`).

    Where its guarantee or the job's mode is at-least-once, rows go through `open` and its writer instead.
    """

    @property
    def publishes_directly(self) -> bool:
        """Whether it is not to wait for checkpoints where it need not: see `penstock.protocol.split_publishing`."""
        return False

    @abstractmethod
    def encoded_schema(self, schema: Schema) -> Schema:
        """The columns of encoded rows."""

    @abstractmethod
    async def encoder(self, schema: Schema, operator: str) -> SinkEncoder:
        """The encoder of one subtask; may ask the destination for its limits."""

    @abstractmethod
    def publisher(self, context: PublishContext) -> SinkPublisher:
        """The publisher of one partition."""

    @abstractmethod
    async def forget(self, context: PublishContext) -> None:
        """Remove the marks of all partitions of a context. Only when nobody will ever publish with it again."""


@dataclass
class Collected:
    """Rows that a `collect` sink gathered, in the process that ran the pipeline."""

    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
