"""Publishing without checkpoints, exactly once: where rows go from a replayable source to a sink through no state.

Then nothing has to be COMPLETE before rows may be visible: a transaction holds the rows of a run of a split and, as the
*mark*, where the split goes on behind them (Kafka's consume-transform-produce). One `SplitPublisherMachine` per split in
each attempt. As in `penstock.protocol.publishing`, the mark is read back after every InitProducerId before anything is
published, unless the producer's epoch proves that nobody else has had its id since.

The mark decides where a split is read from: a checkpoint is older, or as old. Checkpoints remain for what a split is
besides its position, for savepoints and for the end of the job; a subtask acknowledges one when marks stand behind
everything that was read before its barrier, so whoever begins from there without a mark begins where rows end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, assert_never

import msgspec

from penstock.protocol.publishing import (
    CHUNK_BYTES,
    BackedOff,
    BackOff,
    Committed,
    CommitTransaction,
    Doubtful,
    Exit,
    FailJob,
    Fenced,
    InitProducer,
    MarkRead,
    ProducerReady,
    PublisherPhase,
    ReadMark,
    TransactionMachine,
)

MOVES: dict[PublisherPhase, frozenset[PublisherPhase]] = {
    PublisherPhase.WAITING: frozenset({PublisherPhase.WAITING, PublisherPhase.FENCING, PublisherPhase.COMMITTING}),
    PublisherPhase.FENCING: frozenset(
        {PublisherPhase.READING_MARK, PublisherPhase.WAITING, PublisherPhase.BACKING_OFF}
    ),
    PublisherPhase.READING_MARK: frozenset({PublisherPhase.WAITING, PublisherPhase.BACKING_OFF, PublisherPhase.EXITED}),
    PublisherPhase.COMMITTING: frozenset({PublisherPhase.FENCING, PublisherPhase.BACKING_OFF}),
    PublisherPhase.BACKING_OFF: frozenset({PublisherPhase.FENCING}),
    PublisherPhase.EXITED: frozenset(),
}
"""What may follow on what. No frames are read: they are in memory, and after a failure the split is read again."""


NOBODY: Final = 1 << 62
"""The attempt number of a mark behind which another job goes on: every attempt of the former one finds it higher."""


class SplitMark(msgspec.Struct, frozen=True):
    """How far a split is published, committed with its rows."""

    number: int
    """Of the transaction, for this split: it rises by one."""
    attempt_number: int
    position: Any = None
    """Where the split goes on, as its source says it."""


class Offered(msgspec.Struct, frozen=True):
    """What a run of the split became."""

    refs: tuple[Any, ...]
    """References to its rows, empty if there are none: only the position has moved."""
    position: Any
    """Where the split goes on behind it."""
    size_bytes: int = 0


class Flush(msgspec.Struct, frozen=True):
    """A barrier: a mark is to stand behind what was offered, also where no row came of it."""


SplitEvent = Offered | Flush | ProducerReady | MarkRead[SplitMark] | Committed | Doubtful | Fenced | BackedOff
SplitCommand = InitProducer | ReadMark | CommitTransaction[SplitMark] | BackOff | Exit | FailJob


class SplitPublisherMachine(TransactionMachine):
    """The publishing of one split in one attempt."""

    def __init__(
        self,
        attempt_number: int,
        jitter: Callable[[int], int],
        restored: Any = None,
        *,
        must_have_mark: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        split: str = "the split",
    ) -> None:
        """The publishing of one attempt.

        Args:
            attempt_number: of the attempt that runs it.
            jitter: gives a random number below its argument.
            restored: where the split goes on if it has no mark.
            must_have_mark: whether a checkpoint of this very job knows the split: then a missing mark fails the job.
            chunk_bytes: about how much one transaction publishes.
            split: what it is called in messages.
        """
        super().__init__(split, MOVES, jitter)
        self.offered = 0
        """How many runs were offered."""
        self.covered = 0
        """How many of them a mark stands behind, or the mark of the run behind them."""
        self._attempt_number = attempt_number
        self._restored = restored
        self._must_have_mark = must_have_mark
        self._chunk_bytes = chunk_bytes
        self._pending: deque[Offered] = deque()
        self._counts: deque[int] = deque()
        """How many runs stand in each of those: without rows they are one."""
        self.pending_bytes = 0
        """How much was offered and is not known to be published."""
        self._pending_rows = 0
        """How many of the pending have rows."""
        self._flushed = 0
        """A mark is to stand behind so many of the offered runs, also where no row came of them."""
        self._mark: SplitMark | None = None
        """The last one that is committed for certain."""
        self._committing: tuple[SplitMark, int] | None = None
        """The mark of a transaction that was begun, and how many of the pending it holds; kept in doubt."""
        self._announced = False

    @property
    def announced(self) -> bool:
        """Whether this attempt's number stands in the mark: from then on the split may be read, from `position`."""
        return self._announced

    @property
    def position(self) -> Any:
        """Where the last certain mark says that the split goes on."""
        assert self._mark is not None
        return self._mark.position

    def start(self) -> list[SplitCommand]:
        """Announce the attempt, so that older ones exit."""
        return self._next()

    def handle(self, event: SplitEvent) -> list[SplitCommand]:
        """Take an event; the commands are to be carried out in order."""
        if self.phase is PublisherPhase.EXITED:
            return []
        match event:
            case Offered():
                self._offer(event)
                return self._next() if self.phase is PublisherPhase.WAITING else []
            case Flush():
                self._flushed = self.offered
                return self._next() if self.phase is PublisherPhase.WAITING else []
            case ProducerReady():
                return self._on_producer(event.epoch)
            case MarkRead():
                return self._on_mark(event.mark)
            case Committed():
                return self._on_committed()
            case Doubtful() | Fenced():
                return self._back_off()
            case BackedOff():
                return self._next()
            case _:
                assert_never(event)

    def _offer(self, run: Offered) -> None:
        self.offered += 1
        self.pending_bytes += run.size_bytes
        self._pending_rows += bool(run.refs)
        begun = self._committing[1] if self._committing is not None else 0
        if not run.refs and len(self._pending) > begun and not self._pending[-1].refs:
            self._pending[-1] = run
            self._counts[-1] += 1
            return
        self._pending.append(run)
        self._counts.append(1)

    def _on_mark(self, mark: SplitMark | None) -> list[SplitCommand]:
        if mark is not None and mark.attempt_number > self._attempt_number:
            return self._exit(f"attempt number {mark.attempt_number} publishes")
        if self._committing is not None and mark == self._committing[0]:
            self._confirm()
        elif not self._announced:  # until then an older attempt may publish
            return self._opened(mark)
        elif mark != self._mark:
            return self._fail(f"the mark of {self._what} is {mark}, where {self._mark} was committed")
        self._committing = None
        return self._found()

    def _opened(self, mark: SplitMark | None) -> list[SplitCommand]:
        """The mark decides where the split is read from, whatever a checkpoint says."""
        if mark is None and self._must_have_mark:
            return self._fail(
                f"the mark of {self._what} is missing, and a checkpoint of this job knows the split: rows behind "
                "the checkpoint may be visible; start a new job from a savepoint"
            )
        self._mark, self._committing = mark or SplitMark(0, 0, self._restored), None
        return self._found()

    def _go_on(self) -> list[SplitCommand]:
        """With a fresh producer, from the mark."""
        mark = self._mark
        assert mark is not None
        if not self._announced:
            return self._commit([], mark.position)
        run = self._run()
        if not run:
            self._move(PublisherPhase.WAITING)
            return []
        return self._commit(run, run[-1].position)

    def _run(self) -> list[Offered]:
        """What the next transaction holds: nothing before there are rows, or a barrier wants a mark."""
        if not (self._pending_rows or self.covered < self._flushed):
            return []
        run: list[Offered] = []
        size = 0
        for offered in self._pending:
            if run and size + offered.size_bytes > self._chunk_bytes:
                break
            run.append(offered)
            size += offered.size_bytes
        return run

    def _commit(self, run: Sequence[Offered], position: Any) -> list[SplitCommand]:
        assert self._mark is not None
        self._move(PublisherPhase.COMMITTING)
        mark = SplitMark(self._mark.number + 1, self._attempt_number, position)
        self._committing = mark, len(run)
        self._ready = False
        return [CommitTransaction(tuple(ref for offered in run for ref in offered.refs), mark)]

    def _on_committed(self) -> list[SplitCommand]:
        self._confirm()
        self._committed_as = self._granted
        self._failures = 0
        return self._next()

    def _confirm(self) -> None:
        """The transaction that was begun is visible."""
        assert self._committing is not None
        self._mark, count = self._committing
        self._committing = None
        self._announced = True
        for _ in range(count):
            run = self._pending.popleft()
            self.pending_bytes -= run.size_bytes
            self._pending_rows -= bool(run.refs)
            self.covered += self._counts.popleft()
