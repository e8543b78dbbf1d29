"""What every implementation of the Log port keeps. Another one joins by adding its factory to `FACTORIES`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.lanes import implementations

from penstock.adapters.directory.log import DirectoryLog
from penstock.adapters.kafka.log import KafkaLog
from penstock.adapters.memory import MemoryLog
from penstock.errors import ExternalError, UsageError
from penstock.ports import (
    Log,
    LogRecord,
    NewRecord,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicMismatchError,
    TopicNotFoundError,
)
from penstock.settings import ClusterSettings


async def memory(_: Path, __: Callable[[], ClusterSettings]) -> AsyncIterator[Log]:
    yield MemoryLog(compact_after=50)


async def directory(root: Path, _: Callable[[], ClusterSettings]) -> AsyncIterator[Log]:
    yield DirectoryLog(root / "log", segment_bytes=2_000)


async def kafka(_: Path, cluster: Callable[[], ClusterSettings]) -> AsyncIterator[Log]:
    settings = cluster()
    yield KafkaLog(settings.kafka, settings.name)


FACTORIES = {"memory": memory, "directory": directory, "kafka": kafka}
LARGEST_BYTES = {"memory": 9 << 20, "directory": 9 << 20, "kafka": (8 << 20) - 1_024}


@pytest.fixture(params=implementations(FACTORIES, "kafka"))
def kind(request: pytest.FixtureRequest) -> str:
    """Which implementation the test runs on."""
    return request.param


@pytest.fixture
async def log(kind: str, tmp_path: Path, cluster: Callable[[], ClusterSettings]) -> AsyncIterator[Log]:
    """A fresh log with a topic `t` of two partitions."""
    async for made in FACTORIES[kind](tmp_path, cluster):
        await made.create_topic("t", 2)
        yield made
        await made.close()


async def everything(log: Log, topic: str = "t", partition: int = 0, max_bytes: int = 1 << 20) -> list[LogRecord]:
    """All records of a partition, read piece by piece."""
    offset, end = await log.offsets(topic, partition)
    found: list[LogRecord] = []
    while offset < end:
        records = await log.read(topic, partition, offset, max_bytes=max_bytes)
        assert records
        found += records
        offset = records[-1].next_offset
    return found


def new(*values: str, key: str | None = None) -> list[NewRecord]:
    return [NewRecord(value.encode(), key.encode() if key else None) for value in values]


async def test_reads_what_was_appended_in_order(log: Log) -> None:
    """Records come back in append order, with their keys, and offsets rise to the end that append returned."""
    end = 0
    for number in range(100):
        end = await log.append("t", 0, [NewRecord(b"%d" % number, b"k%d" % number), NewRecord(b"")])
    records = await everything(log)
    assert [record.value for record in records[::2]] == [b"%d" % number for number in range(100)]
    assert [record.key for record in records[:4]] == [b"k0", None, b"k1", None]
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert [record.next_offset for record in records[:-1]] == offsets[1:]
    assert (await log.offsets("t", 0)) == (0, end) == (0, records[-1].next_offset)


async def test_empty_key_differs_from_no_key(log: Log) -> None:
    """An empty key comes back as an empty key."""
    await log.append("t", 0, [NewRecord(b"a", b""), NewRecord(b"b", None)])
    assert [record.key for record in await everything(log)] == [b"", None]


async def test_partitions_are_separate(log: Log) -> None:
    """A record is in the partition it was appended to and in no other."""
    await log.append("t", 1, new("one"))
    assert await log.read("t", 0, 0) == []
    assert [record.value for record in await log.read("t", 1, 0)] == [b"one"]


async def test_max_bytes_bounds_a_read_but_never_stops_it(log: Log) -> None:
    """A read returns about `max_bytes`, and at least one record even if it is larger."""
    await log.append("t", 0, new(*["x" * 100] * 15))
    assert 1 <= len(await log.read("t", 0, 0, max_bytes=350)) <= 4
    assert len(await log.read("t", 0, 0, max_bytes=1)) == 1
    assert len(await everything(log, max_bytes=350)) == 15


async def test_large_records(log: Log, kind: str) -> None:
    """A record larger than any buffer is written and read whole."""
    values = [bytes([number]) * size for number, size in enumerate((LARGEST_BYTES[kind], 10, 5 << 20, 1))]
    await log.append("t", 0, [NewRecord(value) for value in values])
    assert [record.value for record in await everything(log)] == values


async def test_read_from_any_record(log: Log) -> None:
    """Reading from a record's offset returns exactly that record and those behind it."""
    await log.append("t", 0, new(*map(str, range(300))))
    records = await everything(log)
    for index in range(0, 300, 37):
        assert (await log.read("t", 0, records[index].offset))[0] == records[index]


async def test_offsets_out_of_range_are_errors(log: Log) -> None:
    """Below the start and beyond the end no read succeeds, and none is moved elsewhere silently."""
    end = await log.append("t", 0, new("a"))
    for offset in (-1, end + 1):
        with pytest.raises(OffsetOutOfRangeError, match=rf"{offset}.*{end}"):
            await log.read("t", 0, offset)
    assert await log.read("t", 0, end) == []


async def test_trim_forgets_only_what_is_below(log: Log) -> None:
    """After a trim everything at or above the offset is there, and what is below the new start is out of range."""
    for number in range(100):
        await log.append("t", 0, new(f"{number:0100d}"))
    records = await everything(log)
    await log.trim("t", 0, records[60].offset)
    start, end = await log.offsets("t", 0)
    assert 0 < start <= records[60].offset
    assert end == records[-1].next_offset
    assert (await everything(log))[-40:] == records[60:]
    with pytest.raises(OffsetOutOfRangeError):
        await log.read("t", 0, 0)
    await log.trim("t", 0, records[10].offset)
    assert await log.offsets("t", 0) == (start, end)


async def test_trim_beyond_the_end_empties(log: Log) -> None:
    """A trim of everything leaves an empty partition that takes appends at its old end."""
    end = await log.append("t", 0, new("a", "b"))
    await log.trim("t", 0, end + 1_000)
    start, stop = await log.offsets("t", 0)
    assert stop == end
    assert start <= end
    await log.append("t", 0, new("c"))
    assert [record.value for record in await log.read("t", 0, end)] == [b"c"]


async def test_waiting_reader_is_woken(log: Log) -> None:
    """A read with a timeout returns as soon as there is a record."""
    waiting = asyncio.create_task(log.read("t", 0, 0, timeout_s=30))
    others = [asyncio.create_task(log.read("t", 0, 0, timeout_s=30)) for _ in range(3)]
    await asyncio.sleep(0)
    await log.append("t", 0, new("now"))
    for task in (waiting, *others):
        assert [record.value for record in await asyncio.wait_for(task, 5)] == [b"now"]


async def test_waiting_reader_times_out_with_nothing(log: Log) -> None:
    """A read that waited in vain returns an empty list; appends to other partitions do not count."""
    waiting = asyncio.create_task(log.read("t", 0, 0, timeout_s=0.05))
    await log.append("t", 1, new("elsewhere"))
    assert await asyncio.wait_for(waiting, 5) == []


async def test_cancelled_reader_loses_nothing(log: Log) -> None:
    """A cancelled read has no effect on later ones."""
    waiting = asyncio.create_task(log.read("t", 0, 0, timeout_s=30))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await log.append("t", 0, new("a"))
    assert len(await log.read("t", 0, 0, timeout_s=1)) == 1


async def test_concurrent_appends_stay_whole(log: Log) -> None:
    """Records of one call are contiguous and in order whatever else is appended; every record is there once."""

    async def produce(name: int) -> None:
        for call in range(20):
            await log.append("t", 0, [NewRecord(b"%d %d %d" % (name, call, part)) for part in range(5)])
            await asyncio.sleep(0)

    await asyncio.gather(*(produce(name) for name in range(20)))
    found = [tuple(map(int, record.value.split())) for record in await everything(log)]
    assert len(found) == 2_000
    for first in range(0, 2_000, 5):
        assert found[first : first + 5] == [(*found[first][:2], part) for part in range(5)]
    for name in range(20):
        assert [call for who, call, part in found if (who, part) == (name, 0)] == list(range(20))


async def test_readers_follow_writers(log: Log) -> None:
    """Readers that follow concurrently all see the same complete sequence."""

    async def follow() -> list[bytes]:
        values: list[bytes] = []
        offset = 0
        while len(values) < 200:
            for record in await log.read("t", 1, offset, timeout_s=10, max_bytes=100):
                values.append(record.value)
                offset = record.next_offset
        return values

    readers = [asyncio.create_task(follow()) for _ in range(3)]
    for number in range(200):
        await log.append("t", 1, new(str(number)))
        await asyncio.sleep(0)
    expected = [b"%d" % number for number in range(200)]
    assert await asyncio.wait_for(asyncio.gather(*readers), 20) == [expected] * 3


async def test_compacted_topic_keeps_the_last_record_of_every_key(log: Log, kind: str) -> None:
    """Old records of a key go, the newest of each stays, offsets stay as they were, and order is kept."""
    await log.create_topic("c", 1, compacted=True)
    offsets: dict[bytes, int] = {}
    for number in range(1_000):
        key = b"k%d" % (number % 7 if number < 900 else number % 5)
        offsets[key] = (await log.offsets("c", 0))[1]
        await log.append("c", 0, [NewRecord(b"%d" % number, key)])
    records = await everything(log, "c", max_bytes=100)
    latest = {record.key: record for record in records}
    assert {key: record.offset for key, record in latest.items()} == offsets
    assert len(records) < 300 or kind == "kafka"  # whose brokers compact closed segments, later
    assert [record.offset for record in records] == sorted(record.offset for record in records)
    for record in records[::10]:
        assert (await log.read("c", 0, record.offset))[0] == record


async def test_compacted_topic_reads_on_from_a_removed_record(log: Log, kind: str) -> None:
    """A reader whose next record was compacted away continues with the first one kept behind it."""
    await log.create_topic("c", 1, compacted=True)
    ends = [await log.append("c", 0, [NewRecord(b"%d" % number, b"same")]) for number in range(500)]
    records = await log.read("c", 0, ends[3])
    assert records[0].offset > ends[3] or kind == "kafka"  # see tests/integration/test_adapters_kafka.py


async def test_compacted_topic_can_be_trimmed(log: Log) -> None:
    """Trimming a compacted topic removes what lies below."""
    await log.create_topic("c", 1, compacted=True)
    for number in range(400):
        await log.append("c", 0, [NewRecord(b"%d" % number, b"k%d" % (number % 200))])
    records = await everything(log, "c")
    await log.trim("c", 0, records[-1].offset)
    kept = await everything(log, "c")
    assert len(kept) < len(records)
    assert kept[-1] == records[-1]


async def test_topics(log: Log) -> None:
    """Topics are listed by name; creating one again is harmless unless it would differ."""
    await log.create_topic("a.b-c_d", 1)
    await log.create_topic("a.b-c_d", 1)
    assert await log.topics() == ["a.b-c_d", "t"]
    with pytest.raises(TopicMismatchError, match="exists with 2 partitions"):
        await log.create_topic("t", 3)
    with pytest.raises(TopicMismatchError, match="compacted"):
        await log.create_topic("t", 2, compacted=True)


async def test_a_topic_that_several_make_at_once(log: Log) -> None:
    """All of them may use it as soon as their call is back."""
    for number in range(5):
        topic = f"shared-{number}"
        await asyncio.gather(*(log.create_topic(topic, 2) for _ in range(4)))
        assert await log.offsets(topic, 1) == (0, 0)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a\x00b", "a b", "x" * 300])
async def test_names_that_are_refused(log: Log, name: str) -> None:
    """A name that could leave the folder, hide or exceed a file name is refused with a reason."""
    with pytest.raises(UsageError, match="choose another name"):
        await log.create_topic(name, 1)


async def test_unknown_topics_and_partitions(log: Log) -> None:
    """Every operation on what does not exist says so."""
    for topic, partition in (("nowhere", 0), ("t", 2), ("t", -1)):
        with pytest.raises(TopicNotFoundError):
            await log.read(topic, partition, 0)
        with pytest.raises(TopicNotFoundError):
            await log.append(topic, partition, new("a"))
        with pytest.raises(TopicNotFoundError):
            await log.offsets(topic, partition)
        with pytest.raises(TopicNotFoundError):
            await log.trim(topic, partition, 0)
    await log.delete_topic("nowhere")


async def test_deleted_topic_is_gone(log: Log) -> None:
    """A deleted topic cannot be used; one made again under its name begins empty at zero."""
    await log.append("t", 0, new("a"))
    await log.delete_topic("t")
    assert await log.topics() == []
    with pytest.raises(TopicNotFoundError):
        await log.read("t", 0, 0)
    with pytest.raises(TopicNotFoundError):
        await log.append("t", 0, new("a"))
    await log.create_topic("t", 1)
    assert await log.offsets("t", 0) == (0, 0)
    await log.append("t", 0, new("b"))
    assert [record.value for record in await log.read("t", 0, 0)] == [b"b"]


async def test_deleting_a_topic_ends_waiting_readers(log: Log) -> None:
    """A reader that waits when its topic is deleted gets an error instead of waiting on."""
    waiting = asyncio.create_task(log.read("t", 0, 0, timeout_s=30))
    await asyncio.sleep(0)
    await log.delete_topic("t")
    with pytest.raises(TopicNotFoundError):
        await asyncio.wait_for(waiting, 5)


async def test_sync_can_be_called_at_any_time(log: Log) -> None:
    """Syncing with and without news, beside appends and after a deletion, succeeds and changes nothing."""
    await log.sync()
    await log.append("t", 0, new("a"))
    await asyncio.gather(log.sync(), log.append("t", 0, new("b")), log.sync())
    await log.append("t", 1, new("c"))
    await log.delete_topic("t")
    await log.sync()


async def test_closed_log_refuses(log: Log) -> None:
    """After close nothing succeeds, and a reader that waits gets an error."""
    waiting = asyncio.create_task(log.read("t", 0, 0, timeout_s=30))
    await asyncio.sleep(0)
    await log.close()
    with pytest.raises(ExternalError):
        await asyncio.wait_for(waiting, 5)
    with pytest.raises(ExternalError):
        await log.append("t", 0, new("a"))


async def test_concurrent_appends_of_one_log_keep_the_order_of_calls(log: Log) -> None:
    """Appends that are under way together are written in the order in which they began."""
    calls = [asyncio.create_task(log.append("t", 0, new(str(number)))) for number in range(300)]
    ends = await asyncio.gather(*calls)
    assert ends == sorted(set(ends))
    records = await everything(log)
    assert [record.value for record in records] == [b"%d" % number for number in range(300)]
    assert [record.next_offset for record in records] == ends


async def test_many_readers_wait_at_once(log: Log) -> None:
    """Readers of many partitions wait beside each other; each is woken by its own record and by no other."""
    await log.create_topic("many", 40)
    waiting = [asyncio.create_task(log.read("many", partition, 0, timeout_s=30)) for partition in range(40)]
    assert await log.read("many", 0, 0) == []
    order = [(partition * 7) % 40 for partition in range(40)]
    for partition in order:
        await log.append("many", partition, new(str(partition)))
        assert [record.value for record in await asyncio.wait_for(waiting[partition], 5)] == [b"%d" % partition]
        late = order[-1]
        assert not waiting[late].done() or partition == late


async def test_reading_back_and_forth(log: Log) -> None:
    """A reader may go on from any offset at any time, also back, also while others wait at the end."""
    ends = [await log.append("t", 0, new(str(number))) for number in range(60)]
    waiting = asyncio.create_task(log.read("t", 0, ends[-1], timeout_s=30))
    offsets = [0, *ends[:-1]]
    for index in (59, 0, 30, 10, 59, 31, 5, 0):
        records = await log.read("t", 0, offsets[index], max_bytes=4)
        assert records[0].value == b"%d" % index
        assert len(records) <= 4
        assert await log.read("t", 0, ends[-1]) == []
    await log.append("t", 0, new("last"))
    assert [record.value for record in await asyncio.wait_for(waiting, 5)] == [b"last"]


async def test_a_waiting_reader_behind_a_trim(log: Log) -> None:
    """Who waits at the end is not disturbed by a trim up to there; who is behind it is told."""
    end = await log.append("t", 0, new("a", "b"))
    waiting = asyncio.create_task(log.read("t", 0, end, timeout_s=30))
    await asyncio.sleep(0)
    await log.trim("t", 0, end)
    start, stop = await log.offsets("t", 0)
    assert stop == end
    if start > 0:  # a trim may be put off
        with pytest.raises(OffsetOutOfRangeError):
            await log.read("t", 0, 0, timeout_s=1)
    await log.append("t", 0, new("c"))
    assert [record.value for record in await asyncio.wait_for(waiting, 5)] == [b"c"]


async def test_deleting_a_topic_leaves_others_alone(log: Log) -> None:
    """Readers and appenders of other topics go on while a topic is deleted that is read and written just then."""
    await log.create_topic("d", 1)
    staying = asyncio.create_task(log.read("t", 0, 0, timeout_s=30))
    leaving = [asyncio.create_task(log.read("d", 0, 0, timeout_s=30)) for _ in range(3)]
    await asyncio.sleep(0)
    await log.delete_topic("d")
    for outcome in await asyncio.wait_for(asyncio.gather(*leaving, return_exceptions=True), 5):
        assert isinstance(outcome, TopicNotFoundError)
    await log.append("t", 0, new("a"))
    assert [record.value for record in await asyncio.wait_for(staying, 5)] == [b"a"]


async def test_append_of_nothing(log: Log) -> None:
    """No records are appended at once, and the end is returned."""
    end = await log.append("t", 0, new("a"))
    assert await log.append("t", 0, []) == end
    assert len(await everything(log)) == 1


async def test_a_record_too_large_is_refused(log: Log, kind: str) -> None:
    """Where records have a largest size, a larger one is refused with it, and nothing else is hurt."""
    assert log.largest_record_bytes >= LARGEST_BYTES[kind]
    if kind != "kafka":
        return
    assert log.largest_record_bytes == LARGEST_BYTES[kind]
    beside = asyncio.create_task(log.append("t", 0, new("a")))
    with pytest.raises(RecordTooLargeError, match="larger than"):
        await log.append("t", 0, [NewRecord(bytes(LARGEST_BYTES[kind] + 1))])
    await beside
    assert [record.value for record in await everything(log)] == [b"a"]
