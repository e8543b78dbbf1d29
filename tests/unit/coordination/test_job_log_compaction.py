"""Job logs that are compacted while leaders that are leaders no more go on: one chain, and everyone reads the same."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable

import pytest

from penstock.adapters.memory import MemoryBlobs
from penstock.adapters.system_clock import SystemClock
from penstock.coordination.job_store import JobReader, JobStore
from penstock.errors import CorruptDataError, ProtocolError
from penstock.ports import BlobExistsError
from penstock.protocol import joblog, joblog_writer
from penstock.protocol.joblog import (
    AnyRecord,
    Begin,
    Complete,
    JobHistory,
    Leader,
    LogKeys,
    Savepoint,
    Submit,
    Terminated,
    encode_record,
    log_key,
    log_prefix,
)
from penstock.protocol.joblog_writer import (
    CreateRecord,
    JobLogWriter,
    LookForCompaction,
    ReadRecord,
    RecordCommitted,
    StepDown,
)

JOB = "j"
SEEDS = 60


def a_history(checkpoints: int) -> JobHistory:
    """An attempt with so many checkpoints, of which the second is a savepoint, and three leaders."""
    history = JobHistory.of([Submit(seq=0, job=JOB, name="n", graph={"a": 1}), Leader(seq=1, epoch=1)])
    records: list[AnyRecord] = [begin(history, "a")]
    history.apply(records[0])
    for number in range(1, checkpoints + 1):
        history.apply(complete(history, number))
        if number == 2:
            history.apply(
                Savepoint(seq=history.next_seq, checkpoint=2, manifest="m", sha256="s", request="r", published=True)
            )
        if number in (5, 9):
            history.apply(Leader(seq=history.next_seq, epoch=number))
    return history


def begin(history: JobHistory, attempt: str) -> Begin:
    return Begin(
        seq=history.next_seq, attempt=attempt, attempt_number=1, restore=history.restore, parallelism=1, generation=0,
        start_offsets={},
    )  # fmt: skip


def complete(history: JobHistory, checkpoint: int) -> Complete:
    assert history.begin is not None
    parent = history.complete.seq if history.complete else -1
    return Complete(
        seq=history.next_seq, checkpoint=checkpoint, checkpoint_nonce="n", attempt=history.begin.attempt,
        parent=parent, manifest=f"m{checkpoint}", sha256="s",
    )  # fmt: skip


def essence(history: JobHistory) -> tuple[object, ...]:
    """Everything that decisions depend on."""
    return (
        history.submit, history.begin, history.complete, history.terminated, history.graph, history.epoch,
        history.highest_checkpoint, history.attempts, history.savepoints, history.rescales, history.next_seq,
        history.fences, history.restore,
    )  # fmt: skip


async def store(history: JobHistory) -> tuple[MemoryBlobs, JobStore]:
    blobs = MemoryBlobs()
    for record in history.records:
        await blobs.create(log_key(JOB, record.seq), encode_record(record))
    return blobs, JobStore(blobs, SystemClock())


async def test_a_compacted_log_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on; compacted again it stays small. SUBMIT and every LEADER stand for ever."""
    monkeypatch.setattr(joblog, "KEPT_COMPLETES", 4)
    history = a_history(30)
    before = essence(history)
    blobs, jobs = await store(history)
    await jobs.compact(JOB, history)
    read = await jobs.history(JOB)
    assert essence(read) == essence(history) == before
    assert read.records == history.records
    assert Counter(type(record).__name__ for record in read.records) == {
        "Submit": 1, "Begin": 1, "Savepoint": 1, "Leader": 1, "Complete": 4,
    }  # fmt: skip
    for number in range(31, 60):
        record = complete(history, number)
        assert await jobs.create_record(JOB, record) == "created"
        history.apply(record)
    assert essence(await jobs.history(JOB)) == essence(history)
    await jobs.compact(JOB, history)
    again = await jobs.history(JOB)
    assert essence(again) == essence(history)
    again.apply(Terminated(seq=again.next_seq, state="CANCELED"))
    found = LogKeys.of(await blobs.list(log_prefix(JOB)))
    assert sorted(found.records) == history.fences == [0, 1, 9, 14]
    assert list(found.compactions) == [history.next_seq - 1]


async def test_records_are_read_once_by_who_remembers_them() -> None:
    """No more of them than it was told; the newest is read when it is new."""
    history = a_history(20)
    blobs, _ = await store(history)
    asked: list[str] = []
    whole = blobs.get

    async def get(key: str) -> bytes:
        asked.append(key)
        return await whole(key)

    blobs.get = get
    jobs = JobReader(blobs, remembered=1_000)
    assert essence(await jobs.history(JOB)) == essence(history)
    assert len(asked) == history.next_seq
    newest = complete(history, 21)
    await blobs.create(log_key(JOB, newest.seq), encode_record(newest))
    asked.clear()
    assert (await jobs.history(JOB)).complete == newest
    assert asked == [log_key(JOB, newest.seq)]
    few = JobReader(blobs, remembered=5)
    for _ in range(2):
        assert (await few.history(JOB)).complete == newest


async def test_what_is_no_part_of_a_log_is_named() -> None:
    """An object with another name, or one that lists but cannot be read."""
    history = a_history(3)
    blobs, jobs = await store(history)
    await blobs.put(f"{log_prefix(JOB)}compacted-00000000000000000002", b"{}")
    with pytest.raises(CorruptDataError, match="compacted-00000000000000000002 is no compaction"):
        await jobs.history(JOB)
    await blobs.put(f"{log_prefix(JOB)}notes.txt", b"")
    with pytest.raises(CorruptDataError, match=r"notes\.txt is neither"):
        await jobs.history(JOB)


class SlowBlobs(MemoryBlobs):
    """Every operation takes a random while before and after it happens, and may happen although nobody hears of it."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    async def _pause(self) -> None:
        for _ in range(self._rng.choice((0, 0, 1, 3, 20))):
            await asyncio.sleep(0)

    async def create(self, key: str, data: bytes) -> None:
        await self._pause()
        await super().create(key, data)
        await self._pause()

    async def put(self, key: str, data: bytes) -> None:
        await self._pause()
        await super().put(key, data)
        await self._pause()

    async def get(self, key: str) -> bytes:
        await self._pause()
        return await super().get(key)

    async def list(self, prefix: str) -> list[str]:
        await self._pause()
        return await super().list(prefix)

    async def delete(self, key: str) -> None:
        await self._pause()
        await super().delete(key)


class SomeLeader:
    """Loads the log, writes LEADER, BEGIN and COMPLETEs as long as it is let, and compacts at random."""

    def __init__(
        self, blobs: SlowBlobs, rng: random.Random, epoch: int, committed: list[AnyRecord], given_up: list[AnyRecord]
    ) -> None:
        self._blobs = blobs
        self._jobs = JobStore(blobs, SystemClock())
        self._rng = rng
        self._epoch = epoch
        self._committed = committed
        self._given_up = given_up

    async def lead(self) -> None:
        """Until another one acts, or it has done enough."""
        history = await self._jobs.history(JOB)
        writer = JobLogWriter(history)
        if not await self._write(writer, Leader(epoch=self._epoch)):
            return
        if not await self._write(writer, begin(history, f"a{self._epoch}")):
            return
        for _ in range(self._rng.randrange(2, 25)):
            if not await self._write(writer, complete(history, history.highest_checkpoint + 1)):
                return
            if self._rng.random() < 0.3:
                await self._jobs.compact(JOB, history)

    async def _write(self, writer: JobLogWriter, record: AnyRecord) -> bool:
        commands = writer.append(record, f"{self._epoch}-{self._rng.random()}")
        tried = record
        while commands:
            match commands.pop(0):
                case CreateRecord(record=tried):
                    commands += await self._created(writer, tried)
                case ReadRecord(seq=seq):
                    commands += writer.read_back(await self._jobs.record(JOB, seq))
                case LookForCompaction():
                    commands += writer.newest_compaction(await self._jobs.compacted(JOB))
                case RecordCommitted(record=made):
                    self._committed.append(made)
                case StepDown():
                    self._given_up.append(tried)
                    return False
        return True

    async def _created(self, writer: JobLogWriter, record: AnyRecord) -> list[joblog_writer.WriterCommand]:
        try:
            await self._blobs.create(log_key(JOB, record.seq), encode_record(record))
        except BlobExistsError:
            return writer.refused()
        return writer.unknown() if self._rng.random() < 0.1 else writer.created()


async def a_history_of_leaders(seed: int) -> None:
    """Several leaders beside each other; raises `AssertionError` if they did not write one chain."""
    rng = random.Random(seed)
    blobs = SlowBlobs(rng)
    submit = Submit(seq=0, job=JOB, name="n", graph={})
    await blobs.create(log_key(JOB, 0), encode_record(submit))
    committed: list[AnyRecord] = [submit]
    given_up: list[AnyRecord] = []
    leaders: list[asyncio.Task[None]] = []
    for epoch in range(1, 8):
        leaders.append(asyncio.create_task(SomeLeader(blobs, rng, epoch, committed, given_up).lead()))
        for _ in range(rng.randrange(200)):
            await asyncio.sleep(0)
    await asyncio.gather(*leaders)
    seqs = {record.seq: record for record in committed}
    assert len(seqs) == len(committed), f"seed {seed}: two leaders committed the same seq"
    # A LEADER may be followed and compacted by another leader before its own writer has looked, which then gives it up.
    for record in given_up:
        if isinstance(record, Leader) and record.seq >= 0:
            seqs.setdefault(record.seq, record)
    chain = JobHistory.of(seqs[seq] for seq in sorted(seqs))
    read = await JobReader(blobs).history(JOB)
    assert essence(read) == essence(chain), f"seed {seed}"


def seeds() -> list[int]:
    chosen = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**9)))
    print(f"PENSTOCK_TEST_SEED={chosen}")
    return [chosen + number for number in range(SEEDS)]


async def test_leaders_that_are_none_any_more_write_nothing_into_a_compacted_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is compacted while whoever is slow."""
    monkeypatch.setattr(joblog, "KEPT_COMPLETES", 2)
    for seed in seeds():
        await a_history_of_leaders(seed)


@pytest.mark.parametrize("rule", ["fences", "look", "look again"])
async def test_without_the_rules_they_would(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either taken out: the test above would notice."""
    monkeypatch.setattr(joblog, "KEPT_COMPLETES", 2)
    whole: Callable[[LogKeys, joblog.Compaction], list[str]] = LogKeys.superseded

    def careless(self: LogKeys, compaction: joblog.Compaction) -> list[str]:
        return whole(self, joblog.Compaction(compaction.through, compaction.records, ()))

    async def blind(self: JobStore, job: str) -> int:
        return -1

    async def trusting(self: JobStore, job: str, found: LogKeys) -> bool:
        return True

    seeds = range(300)
    if rule == "fences":
        monkeypatch.setattr(LogKeys, "superseded", careless)
    elif rule == "look":
        monkeypatch.setattr(JobStore, "compacted", blind)
    else:  # of readers, not of writers
        monkeypatch.setattr(JobStore, "_is_as_it_was", trusting)
        seeds = range(576057068, 576057068 + SEEDS)
    assert await any_breaks(seeds)


async def any_breaks(tried: range) -> bool:
    for seed in tried:
        try:
            await a_history_of_leaders(seed)
        except (AssertionError, ProtocolError):
            return True
    return False
