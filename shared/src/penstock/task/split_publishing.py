"""Publishes what a subtask reads by the positions of its splits, in transactions of their own, without checkpoints.

Each split that the subtask reads has a loop, which carries out what its `SplitPublisherMachine` commands: rows and the
position behind them become visible together, as soon as the transaction before is over. Where the source goes on after a
failure is what the mark of the split says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.connectors.base import Position, PublishContext, PublishedMark, PublishedSink, SinkPublisher
from penstock.coordination.job_store import JobReader
from penstock.errors import CorruptDataError, PipelineError
from penstock.plan.operations.write import Write
from penstock.ports import Clock
from penstock.protocol.publishing import CommitTransaction, InitProducer
from penstock.protocol.split_publishing import (
    NOBODY,
    Flush,
    Offered,
    SplitCommand,
    SplitEvent,
    SplitMark,
    SplitPublisherMachine,
)
from penstock.task.environment import TaskEnvironment
from penstock.task.transaction_loop import PublishingError, TransactionLoop

if TYPE_CHECKING:
    import polars as pl

PENDING_BYTES: Final = 64 << 20
"""With so many bytes read and not published, the source waits."""
PACE_MS: Final = 20
"""From the beginning of one transaction of a split to that of the next, so that few rows make no request each."""


class SplitLoop(TransactionLoop[SplitMark]):
    """The loop of one split in one attempt. `run` ends by cancellation, or raises."""

    def __init__(
        self,
        machine: SplitPublisherMachine,
        publisher: SinkPublisher,
        clock: Clock,
        committed: Callable[[int, int], None],
        changed: Callable[[], None],
        pace_ms: Callable[[], int] = lambda: PACE_MS,
    ) -> None:
        """The loop of a split.

        Args:
            machine: decides.
            publisher: of the split.
            clock: for pauses.
            committed: hears of so many rows that became visible, and so many that were left out.
            changed: told that something is published, or what is waited for.
            pace_ms: from the beginning of one transaction to that of the next.
        """
        super().__init__(machine, publisher, clock)
        self.machine = machine
        self.opened = asyncio.Event()
        """Whether the split may be read."""
        self.advanced = asyncio.Event()
        """Set whenever something was committed."""
        self.waits_for = ""
        self._hear = committed
        self._changed = changed
        self._pace_ms = pace_ms
        self._began_ms = 0

    async def run(self) -> None:
        """Announce the attempt, then publish whatever is offered."""
        try:
            await self._open()
            self._commands.extend(self.machine.start())
            covered = 0
            while True:
                await self._step()
                if self.machine.announced:
                    self.opened.set()
                if self.machine.covered != covered:  # perhaps by a mark that was read, after a doubt
                    covered = self.machine.covered
                    self.advanced.set()
                    self._changed()
        finally:
            await self._publisher.close()

    async def _answer(self, command: SplitCommand) -> SplitEvent | None:
        answer = await super()._answer(command)
        if isinstance(command, InitProducer) and self.machine.announced:
            await self._clock.sleep_ms(max(0, self._began_ms + self._pace_ms() - self._clock.monotonic_ms()))
        return answer

    def _mark(self, found: PublishedMark) -> SplitMark:
        return decode_split_mark(found)

    def _transaction(self, command: CommitTransaction[SplitMark]) -> tuple[Sequence[pl.DataFrame], PublishedMark]:
        self._began_ms = self._clock.monotonic_ms()
        return command.refs, encode_split_mark(command.mark)

    def _committed(self, command: CommitTransaction[SplitMark], rows: int, left_out: int) -> None:
        self._hear(rows, left_out)

    def _waits(self, what: str) -> None:
        if what != self.waits_for:
            self.waits_for = what
            self._changed()


class SplitPublishing:
    """The splits of one subtask, and the encoded rows that its chain makes of them. A `Receiver` of those."""

    def __init__(
        self,
        environment: TaskEnvironment,
        committed: Callable[[int, int], None],
        wake: Callable[[], None],
        jitter: Callable[[int], int],
    ) -> None:
        """The splits of a subtask.

        Args:
            environment: what the subtask is given.
            committed: hears of rows that became visible, and of those that were left out because they are refused.
            wake: called when the source may perhaps go on.
            jitter: gives a random number below its argument.
        """
        self._jitter = jitter
        self._environment = environment
        self._hear = committed
        self._wake = wake
        operator = environment.vertex.operators[-1]
        node = environment.plan.by_operator(operator.id)
        operation = node.operation if node is not None else None
        if not isinstance(operation, Write) or not isinstance(operation.sink, PublishedSink):
            raise PipelineError(f"the pipeline has no sink {operator.id!r}, whose rows are to be published")
        self._operator = operator.id
        self._sink = operation.sink
        self._loops: dict[str, SplitLoop] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._frames: list[pl.DataFrame] = []
        self._barriers: dict[int, dict[str, int]] = {}
        self._failed = asyncio.Event()
        self._elsewhere: frozenset[str] | None = None
        """Sinks of another job that published behind the restored checkpoint."""

    # -- rows -----------------------------------------------------------------------------------------------------------

    def rows(self, frame: pl.DataFrame) -> None:
        """Take encoded rows of the split that is being read."""
        if frame.height:
            self._frames.append(frame)

    def watermark(self, watermark: int) -> None:
        """Nothing waits behind a sink."""

    def read(self, split: str, position: Position) -> None:
        """A run of a split has been read, and every row of it has come."""
        frames, self._frames = tuple(self._frames), []
        self._loops[split].tell(Offered(frames, position, sum(int(frame.estimated_size()) for frame in frames)))

    @property
    def pending_bytes(self) -> int:
        """How much was read and is not known to be published."""
        return sum(loop.machine.pending_bytes for loop in self._loops.values())

    @property
    def is_full(self) -> bool:
        """Whether nothing may be read for now."""
        return self.pending_bytes >= PENDING_BYTES

    @property
    def waits_for(self) -> str:
        """What keeps a split from being published."""
        return next((loop.waits_for for loop in self._loops.values() if loop.waits_for), "")

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def barrier(self, checkpoint: int) -> None:
        """What was read until now is before this one."""
        read = {split: loop for split, loop in self._loops.items() if loop.opened.is_set()}
        self._barriers[checkpoint] = {split: loop.machine.offered for split, loop in read.items()}
        for loop in read.values():
            loop.tell(Flush())

    async def covered(self, checkpoint: int) -> None:
        """Wait until marks stand behind everything that was read before this barrier."""
        for split, offered in self._barriers.pop(checkpoint).items():
            loop = self._loops[split]
            while loop.machine.covered < offered:
                loop.advanced.clear()
                await loop.advanced.wait()

    # -- life -----------------------------------------------------------------------------------------------------------

    async def begin(self, split: str, position: Position, *, known: bool, splits: int) -> Position:
        """Announce the attempt at a split; where it is read from.

        Args:
            split: its id.
            position: where it goes on if it has no mark.
            known: whether the restored checkpoint has it.
            splits: how many there are.
        """
        manifest, deploy = self._environment.manifest, self._environment.deploy
        own = manifest is not None and manifest.job == deploy.job
        if manifest is not None and not own:
            position = await self._position_elsewhere(split, position, known=known)
        machine = SplitPublisherMachine(
            deploy.attempt_number, self._jitter, position, must_have_mark=known and own,
            split=f"{self._operator}, split {split}",
        )  # fmt: skip
        clock = self._environment.services.clock
        publisher = self._sink.publisher(self._context(deploy.job, split, splits))
        loop = self._loops[split] = SplitLoop(machine, publisher, clock, self._hear, self._wake, self._pace_ms)
        task = self._tasks[split] = asyncio.create_task(loop.run())
        task.add_done_callback(lambda _: self._failed.set())
        opened = asyncio.create_task(loop.opened.wait())
        try:
            await asyncio.wait((task, opened), return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
        if task.done():
            await task
        return machine.position

    def _pace_ms(self) -> int:
        """Of many splits each has its turn less often: a transaction costs a subtask a millisecond or two."""
        return max(PACE_MS, 2 * len(self._loops))

    def _context(self, job: str, split: str, splits: int) -> PublishContext:
        clock = self._environment.services.clock
        return PublishContext(job, self._operator, 0, int(split), splits, clock.now_us)

    async def _position_elsewhere(self, split: str, position: Position, *, known: bool) -> Position:
        """Where another job's checkpoint lets a split go on: its mark, if that job published beyond the checkpoint.

        The mark is closed: a worker of that job that nobody hears may be alive, and leaves when it finds that.
        """
        manifest = self._environment.manifest
        assert manifest is not None
        restore = self._environment.deploy.restore
        assert restore is not None
        if self._elsewhere is None:
            store = JobReader(self._environment.services.blobs)
            self._elsewhere = await store.published_beyond(restore.manifest, manifest.job)
        if self._operator not in self._elsewhere:
            return position
        publisher = self._sink.publisher(self._context(manifest.job, split, int(split) + 1))
        try:
            await publisher.open()
            await publisher.init_producer()
            found = await publisher.read_mark()
            mark = None if found is None else decode_split_mark(found)
            if mark is not None and mark.attempt_number != NOBODY:
                closed = SplitMark(mark.number + 1, NOBODY, mark.position)
                await publisher.commit((), encode_split_mark(closed))
        finally:
            await publisher.close()
        if mark is None and not known:
            return position
        if mark is None:
            raise PublishingError(
                f"{self._operator}: job {manifest.job[:8]} published beyond its checkpoint {manifest.checkpoint}, and "
                f"its mark of split {split} is gone; start from a savepoint"
            )
        return mark.position

    async def run(self) -> None:
        """Raise what ends a loop."""
        while True:
            await self._failed.wait()
            self._failed.clear()
            for task in self._tasks.values():
                if task.done():
                    await task

    async def close(self) -> None:
        """End all loops; a transaction that is not committed is not."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


class _Rest(msgspec.Struct, frozen=True):
    attempt_number: int
    position: Position


def encode_split_mark(mark: SplitMark) -> PublishedMark:
    """The mark as it stands in the sink's system: the number as the position, the rest as JSON beside it."""
    return PublishedMark(mark.number, msgspec.json.encode(_Rest(mark.attempt_number, mark.position)).decode())


def decode_split_mark(found: PublishedMark) -> SplitMark:
    """The inverse of `encode_split_mark`.

    Raises:
        CorruptDataError: somebody else has written there.
    """
    try:
        rest = msgspec.json.decode(found.metadata, type=_Rest)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise CorruptDataError(
            f"the mark of this split is unreadable ({found.metadata[:80]!r}, number {found.position}): it was changed by "
            "somebody else; publishing from there is not safe"
        ) from error
    return SplitMark(found.position, rest.attempt_number, rest.position)
