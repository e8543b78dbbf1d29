"""Publishing to Kafka, exactly once: consume the sink's exchange, produce, commit the position in one transaction.

One `PublisherMachine` per partition of a sink. Whoever runs it, on whatever attempt, publishes the same frames: the
position (the *mark*) lives in the sink's own cluster, is committed with the records, and is read back after every
InitProducerId before anything is published, unless the producer's epoch proves that nobody else has had its id since this
one committed the mark. The next producer is asked for as soon as a transaction is over: then nothing but the transaction
itself lies between COMPLETE and its rows being visible. What may be published is said by the intervals of COMPLETE
manifests.

The log may have lost what it had confirmed. So the frames of an attempt must follow on one another without a gap, from
its first one, or from the last one that the mark names; and an interval must end in the barrier of its checkpoint, behind
which its end was taken. Where that is not so, rows that are complete are gone: the job fails and says which.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar, assert_never

import msgspec

from penstock.protocol.frames import Frame, FrameKind
from penstock.protocol.manifests import Interval
from penstock.protocol.phases import RECENT, check_move

CHUNK_BYTES = 16 << 20
"""About how much one transaction publishes; whole frames. A transaction of 4 MiB costs half as much again per record."""


M = TypeVar("M")
"""What a machine calls its mark."""


class Mark(msgspec.Struct, frozen=True):
    """How far a sink partition is published: value and metadata of the group offset."""

    position: int
    checkpoint: int
    attempt_number: int
    closed: bool = False
    last_attempt: str = ""
    """Whose frames were published last, and up to which seq: the transport may repeat a frame."""
    last_seq: int = -1


class ProducerEpoch(NamedTuple):
    """What InitProducerId grants. Each grant to a transactional id raises the epoch by one, or gives a new id."""

    producer_id: int
    epoch: int

    def follows(self, other: ProducerEpoch | None) -> bool:
        """Whether nobody was granted anything in between."""
        return other is not None and (self.producer_id, self.epoch) == (other.producer_id, other.epoch + 1)


class PublisherPhase(Enum):
    """Where the loop stands."""

    WAITING = "waiting for COMPLETE"
    FENCING = "InitProducerId"
    READING_MARK = "reading the mark"
    READING_FRAMES = "reading frames"
    COMMITTING = "committing"
    BACKING_OFF = "backing off"
    EXITED = "exited"


MOVES: dict[PublisherPhase, frozenset[PublisherPhase]] = {
    PublisherPhase.WAITING: frozenset(
        {
            PublisherPhase.WAITING,
            PublisherPhase.FENCING,
            PublisherPhase.READING_FRAMES,
            PublisherPhase.COMMITTING,
            PublisherPhase.EXITED,
        }
    ),
    PublisherPhase.FENCING: frozenset(
        {PublisherPhase.READING_MARK, PublisherPhase.WAITING, PublisherPhase.BACKING_OFF}
    ),
    PublisherPhase.READING_MARK: frozenset(
        {
            PublisherPhase.READING_FRAMES,
            PublisherPhase.COMMITTING,
            PublisherPhase.WAITING,
            PublisherPhase.BACKING_OFF,
            PublisherPhase.EXITED,
        }
    ),
    PublisherPhase.READING_FRAMES: frozenset(
        {PublisherPhase.COMMITTING, PublisherPhase.BACKING_OFF, PublisherPhase.EXITED}
    ),
    PublisherPhase.COMMITTING: frozenset({PublisherPhase.FENCING, PublisherPhase.BACKING_OFF}),
    PublisherPhase.BACKING_OFF: frozenset({PublisherPhase.WAITING}),
    PublisherPhase.EXITED: frozenset(),
}
"""What may follow on what."""


# -- events -------------------------------------------------------------------------------------------------------------


class Covered(msgspec.Struct, frozen=True):
    """COMPLETE covers these intervals of the partition; repeats those that are perhaps not published."""

    intervals: tuple[Interval, ...]


class ProducerReady(msgspec.Struct, frozen=True):
    """InitProducerId succeeded: older producers of this id are fenced, their transactions settled."""

    epoch: ProducerEpoch | None = None
    """What was granted; None where the sink's system counts nothing, and the mark has to be read."""


class MarkRead(msgspec.Struct, Generic[M], frozen=True):
    """The mark as it stands now; None if there is none."""

    mark: M | None


class FramesRead(msgspec.Struct, frozen=True):
    """Records of the exchange from the asked offset on: (offset, next offset, header, payload reference, bytes)."""

    frames: Sequence[tuple[int, int, Frame, Any, int]]
    end: int
    """The offset behind everything that was scanned."""


class FramesGone(msgspec.Struct, frozen=True):
    """The log does not hold what was asked for, and never will: it was truncated or trimmed."""

    reason: str


class Committed(msgspec.Struct, frozen=True):
    """The transaction is committed for certain."""


class Doubtful(msgspec.Struct, frozen=True):
    """An error, a time-out, any doubt: the producer is thrown away."""

    reason: str


class Fenced(msgspec.Struct, frozen=True):
    """Another producer with this transactional id has started."""


class BackedOff(msgspec.Struct, frozen=True):
    """The asked back-off is over."""


class MarkAged(msgspec.Struct, frozen=True):
    """The mark was committed long ago: group offsets expire."""


PublisherEvent = (
    Covered | ProducerReady | MarkRead[Mark] | FramesRead | FramesGone | Committed | Doubtful | Fenced | BackedOff
    | MarkAged
)  # fmt: skip

# -- commands -----------------------------------------------------------------------------------------------------------


class InitProducer(msgspec.Struct, frozen=True):
    """A fresh producer for this partition's transactional id; `ProducerReady`, `Fenced` or `Doubtful` follows."""


class ReadMark(msgspec.Struct, frozen=True):
    """Read the group offset back, stable; `MarkRead` or `Doubtful` follows."""


class ReadFrames(msgspec.Struct, frozen=True):
    """Read the exchange at `start <= offset < end`, at most about `max_bytes`.

    `FramesRead`, `FramesGone` or `Doubtful` follows.
    """

    start: int
    end: int
    max_bytes: int


class CommitTransaction(msgspec.Struct, Generic[M], frozen=True):
    """Produce the rows of these frames and commit the mark in the same transaction."""

    refs: tuple[Any, ...]
    mark: M


class BackOff(msgspec.Struct, frozen=True):
    """Wait a random time; `BackedOff` follows."""

    delay_ms: int


class ReportPublished(msgspec.Struct, frozen=True):
    """Everything up to this checkpoint is visible."""

    checkpoint: int


class Exit(msgspec.Struct, frozen=True):
    """A newer attempt publishes, or the sink is closed: stop without a failure."""

    reason: str


class FailJob(msgspec.Struct, frozen=True):
    """Going on would lose or double rows."""

    reason: str
    damaged: bool = False
    """Whether rows that are complete are gone: no other attempt can publish them either."""


PublisherCommand = (
    InitProducer | ReadMark | ReadFrames | CommitTransaction[Mark] | BackOff | ReportPublished | Exit | FailJob
)


class TransactionMachine(ABC):
    """How a machine comes by producers, and what it does in doubt: alike for all that publish in transactions."""

    def __init__(
        self, what: str, moves: Mapping[PublisherPhase, frozenset[PublisherPhase]], jitter: Callable[[int], int]
    ) -> None:
        """A machine that waits.

        Args:
            what: is published, in messages.
            moves: which phase may follow on which.
            jitter: gives a random number below its argument.
        """
        self.phase = PublisherPhase.WAITING
        self._what = what
        self._moves = moves
        self._jitter = jitter
        self._phases = deque([self.phase], maxlen=RECENT)
        self._ready = False
        """Whether a fresh producer waits, and the mark is known since it is."""
        self._granted: ProducerEpoch | None = None
        """To the producer at hand."""
        self._committed_as: ProducerEpoch | None = None
        """Who committed the mark for certain; None once another producer was granted."""
        self._failures = 0

    @abstractmethod
    def _go_on(self) -> list[Any]:
        """With a fresh producer, from the mark."""

    def _next(self) -> list[Any]:
        """Every transaction has a producer of its own, asked for before it is needed."""
        if self._ready:
            return self._go_on()
        self._move(PublisherPhase.FENCING)
        return [InitProducer()]

    def _on_producer(self, granted: ProducerEpoch | None) -> list[Any]:
        """Where nobody else has had the id since the last commit, the mark is the one that was committed."""
        alone = granted is not None and granted.follows(self._committed_as)
        self._granted, self._committed_as = granted, None
        if alone:
            return self._found()
        self._move(PublisherPhase.READING_MARK)
        return [ReadMark()]

    def _found(self) -> list[Any]:
        """The mark is known, and a fresh producer is at hand."""
        self._ready = True
        self._move(PublisherPhase.WAITING)
        return self._go_on()

    def _back_off(self) -> list[Any]:
        """Random and growing: two publishers that fence each other in step would never get anywhere."""
        self._failures += 1
        self._move(PublisherPhase.BACKING_OFF)
        return [BackOff(1 + self._jitter(min(10 * 2**self._failures, 10_000)))]

    def _move(self, phase: PublisherPhase) -> None:
        check_move(f"publisher of {self._what}", self._moves, self._phases, phase)
        self.phase = phase
        self._phases.append(phase)

    def _exit(self, reason: str) -> list[Any]:
        self._move(PublisherPhase.EXITED)
        return [Exit(reason)]

    def _fail(self, reason: str) -> list[Any]:
        self._move(PublisherPhase.EXITED)
        return [FailJob(reason)]


class PublisherMachine(TransactionMachine):
    """The loop of one sink partition in one attempt."""

    def __init__(
        self,
        attempt_number: int,
        jitter: Callable[[int], int],
        chunk_bytes: int = CHUNK_BYTES,
        *,
        restored: int = 0,
        first_position: int | None = None,
        exchange: str = "the exchange of this sink",
    ) -> None:
        """The loop of one attempt.

        Args:
            attempt_number: of the attempt that runs it.
            jitter: gives a random number below its argument.
            chunk_bytes: about how much one transaction publishes.
            restored: the checkpoint that the attempt starts from.
            first_position: where the mark begins if there is none. Given only if nothing of this generation can have
                been published: the attempt restores nothing, or a checkpoint of another job or generation. Otherwise a
                missing mark fails the job.
            exchange: what the partition is called in messages.
        """
        super().__init__(exchange, MOVES, jitter)
        self._attempt_number = attempt_number
        self._chunk_bytes = chunk_bytes
        self._intervals: tuple[Interval, ...] = ()
        self._mark: Mark | None = None
        self._committing: Mark | None = None
        self._announced = False
        """Whether this attempt's number stands in the mark."""
        self._reported = 0
        self._restored = restored
        self._first_position = first_position
        self._aged = False
        """Whether the mark is to be committed again although nothing is published."""
        self._covered_end = first_position or 0
        """A mark beyond it means that rows are visible which this attempt would produce again."""

    @property
    def announced(self) -> bool:
        """Whether this attempt's number stands in the mark.

        Until then its subtask does not count as running, so that no checkpoint is taken: once one is COMPLETE, a later
        attempt that finds no mark could not tell whether rows are visible.
        """
        return self._announced

    def handle(self, event: PublisherEvent) -> list[PublisherCommand]:
        """Take an event; the commands are to be carried out in order."""
        if self.phase is PublisherPhase.EXITED:
            return []
        match event:
            case Covered():
                self._cover(event.intervals)
                return self._next() if self.phase is PublisherPhase.WAITING else []
            case ProducerReady():
                return self._on_producer(event.epoch)
            case MarkRead():
                return self._on_mark(event.mark)
            case FramesRead():
                return self._on_frames(event)
            case FramesGone():
                return self._damaged(event.reason)
            case Committed():
                return self._on_committed()
            case Doubtful() | Fenced():
                return self._back_off()
            case BackedOff():
                self._move(PublisherPhase.WAITING)
                return self._next()
            case MarkAged():
                self._aged = True
                return self._next() if self.phase is PublisherPhase.WAITING else []
            case _:
                assert_never(event)

    def start(self, intervals: Sequence[Interval] = ()) -> list[PublisherCommand]:
        """The first thing a publisher does: announce its attempt, so that older ones exit.

        `intervals` are those of the checkpoint that the attempt starts from.
        """
        self._cover(tuple(intervals))
        return self._next()

    def _cover(self, intervals: tuple[Interval, ...]) -> None:
        """The newest manifest counts; one that was read late says less."""
        if max((i.checkpoint for i in intervals), default=0) < max((i.checkpoint for i in self._intervals), default=0):
            return
        self._intervals = intervals
        self._covered_end = max([self._covered_end, *(interval.end for interval in intervals)])

    def _go_on(self) -> list[PublisherCommand]:
        """With a fresh producer, from the mark."""
        mark = self._mark
        assert mark is not None
        if not self._announced or self._aged:
            return self._commit((), msgspec.structs.replace(mark, attempt_number=self._attempt_number))
        run = self._run()
        if not run:
            self._move(PublisherPhase.WAITING)
            return self._report()
        for earlier, later in itertools.pairwise(self._intervals):
            if later.start < earlier.end:  # written on there: to read past it would lose the later rows too
                return self._damaged(f"it ended at {later.start} when an attempt began, {earlier.end} was complete")
        self._move(PublisherPhase.READING_FRAMES)
        return [ReadFrames(max(run[0].start, mark.position), run[-1].end, self._chunk_bytes)]

    def _open(self) -> list[Interval]:
        position = self._mark.position if self._mark else 0
        return [interval for interval in self._intervals if interval.end > position]

    def _run(self) -> list[Interval]:
        """The first open intervals, as far as they follow on one another in one attempt.

        They are published together: with a transaction for each, a publisher whose transactions take longer than the time
        between two checkpoints would fall behind for ever.
        """
        run: list[Interval] = []
        for interval in self._open():
            if run and (interval.attempt != run[-1].attempt or interval.start != run[-1].end):
                break
            run.append(interval)
        return run

    def _on_mark(self, mark: Mark | None) -> list[PublisherCommand]:
        if mark is None and self._first_position is not None and not self._announced:
            return self._commit((), Mark(self._first_position, 0, self._attempt_number))
        if mark is None:
            return self._fail(
                "the mark of this sink is missing: neither zero nor the manifest is safe; give a position"
            )
        if mark.closed:
            return self._exit("the sink is closed")
        if mark.attempt_number > self._attempt_number:
            return self._exit(f"attempt number {mark.attempt_number} publishes")
        if mark.position > self._covered_end:
            return self._fail(
                f"the mark stands at {mark.position}, beyond {self._covered_end}, the end of what is complete: rows "
                "are visible that would be produced again; restore the newest checkpoint"
            )
        self._mark = mark
        self._ready = True
        return self._go_on()

    def _on_frames(self, event: FramesRead) -> list[PublisherCommand]:
        mark = self._mark
        assert mark is not None
        run = self._run()
        attempt = run[0].attempt
        refs: list[Any] = []
        counted: list[tuple[int, Frame]] = []
        position = event.end
        last_seq = self._last_seq(mark, run[0], event.frames)
        for offset, _, frame, ref, _ in event.frames:
            if frame.attempt != attempt or frame.seq <= last_seq:
                continue
            if frame.seq != last_seq + 1:
                return self._damaged(
                    f"behind frame {last_seq} of attempt {attempt[:8]} follows {frame.seq} at {offset}"
                )
            last_seq = frame.seq
            counted.append((offset, frame))
            if frame.kind is FrameKind.DATA:
                refs.append(ref)
        for interval in run:
            if interval.end <= position and not _ends_in_its_barrier(interval, counted):
                return self._damaged(
                    f"the barrier of checkpoint {interval.checkpoint} before {interval.end} is missing"
                )
        checkpoint = max([mark.checkpoint, *(interval.checkpoint for interval in run if interval.end <= position)])
        return self._commit(
            tuple(refs), Mark(position, checkpoint, self._attempt_number, last_attempt=attempt, last_seq=last_seq)
        )

    @staticmethod
    def _last_seq(mark: Mark, first: Interval, frames: Sequence[tuple[int, int, Frame, Any, int]]) -> int:
        """Behind which frame of its attempt `first` goes on; -1 at its beginning.

        Intervals are published in their order, so where the mark names another attempt, nothing of this one is. Only a
        mark that was made by hand names none although something is published: then the first frame says.
        """
        if mark.last_attempt == first.attempt:
            return mark.last_seq
        if not mark.last_attempt and (mark.checkpoint or mark.position > first.start):
            return next((frame.seq - 1 for _, _, frame, _, _ in frames if frame.attempt == first.attempt), -1)
        return -1

    def _damaged(self, what: str) -> list[PublisherCommand]:
        run = self._run()
        self._move(PublisherPhase.EXITED)
        reason = (
            f"{self._what}: the log has lost frames that were confirmed: {what}. Checkpoints {run[0].checkpoint} to "
            f"{run[-1].checkpoint} cover offsets {run[0].start} to {run[-1].end}, and what of that is not published "
            "cannot be published as it was; repair the log, or accept the loss and start the job anew from a savepoint"
        )
        return [FailJob(reason, damaged=True)]

    def _commit(self, refs: tuple[Any, ...], mark: Mark) -> list[PublisherCommand]:
        self._move(PublisherPhase.COMMITTING)
        self._committing = mark
        self._ready = False
        return [CommitTransaction(refs, mark)]

    def _on_committed(self) -> list[PublisherCommand]:
        self._mark = self._committing
        self._committed_as = self._granted
        self._announced = True
        self._aged = False
        self._failures = 0
        return [*self._report(), *self._next()]

    def _report(self) -> list[PublisherCommand]:
        """Published up to the newest checkpoint all of whose intervals lie below the mark."""
        position = self._mark.position if self._mark else 0
        done = [interval.checkpoint for interval in self._intervals if interval.end <= position]
        newest = max([self._restored, *done]) if not self._open() else max(done, default=0)
        if newest <= self._reported:
            return []
        self._reported = newest
        return [ReportPublished(newest)]


def _ends_in_its_barrier(interval: Interval, counted: Sequence[tuple[int, Frame]]) -> bool:
    """Whether the last frame of it, among those that count, is what its end was taken behind.

    That one is read together with the end, whatever chunk of the interval that is.
    """
    last = next((frame for offset, frame in reversed(counted) if offset < interval.end), None)
    return last is not None and last.kind is FrameKind.BARRIER and last.checkpoint == interval.checkpoint
