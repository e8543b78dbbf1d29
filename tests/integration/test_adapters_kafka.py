"""The log in Kafka when a broker dies, hangs or the process does not come to its turn; what needs a server of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from penstock.adapters.kafka.log import KafkaLog
from penstock.errors import ExternalError
from penstock.platform.servers import Servers
from penstock.ports import NewRecord, TopicNotFoundError
from penstock.settings import KafkaSettings

pytestmark = pytest.mark.timeout(180)

OpenLog = Callable[[str], KafkaLog]


@pytest.fixture
async def open_log(own_platform: Servers) -> AsyncIterator[OpenLog]:
    """Opens logs of one cluster on a Kafka of this test, and closes them."""
    opened: list[KafkaLog] = []

    def open_log(client_id: str) -> KafkaLog:
        settings = own_platform.settings("faults")
        opened.append(KafkaLog(settings.kafka, settings.name, client_id=client_id))
        return opened[-1]

    yield open_log
    await asyncio.gather(*(log.close() for log in opened))


async def within(seconds: float, condition: Callable[[], bool]) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.02)


class Following:
    """A reader that follows a partition and remembers what it saw."""

    def __init__(self, log: KafkaLog, topic: str, partition: int) -> None:
        self.seen: list[bytes] = []
        self._log, self._topic, self._partition = log, topic, partition

    async def run(self) -> None:
        offset = 0
        while True:
            for record in await self._log.read(self._topic, self._partition, offset, timeout_s=0.5):
                assert record.offset >= offset
                self.seen.append(record.value)
                offset = record.next_offset


async def appending(log: KafkaLog, topic: str, partition: int, confirmed: list[bytes]) -> None:
    """Append without end, the same record again when its fate is unknown."""
    number = 0
    while True:
        value = b"%d" % number
        try:
            await log.append(topic, partition, [NewRecord(value)])
        except ExternalError:
            continue
        confirmed.append(value)
        number += 1


async def run_while(work: list[Awaitable[None]], during: Awaitable[None]) -> None:
    """Run endless work beside something that ends; an error of either ends both."""
    tasks = [asyncio.ensure_future(one) for one in work]
    ending = asyncio.ensure_future(during)
    await asyncio.wait([ending, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await ending


async def test_broker_killed_and_started_again(own_platform: Servers, open_log: OpenLog) -> None:
    """Readers go on by themselves, appends are confirmed or in doubt, nothing confirmed is lost or out of order."""
    writer, reader = open_log("writer"), open_log("reader")
    await writer.create_topic("t", 3)
    followers = [Following(reader, "t", partition) for partition in range(3)]
    confirmed: list[list[bytes]] = [[], [], []]
    expected: list[list[bytes]] = []

    async def faults() -> None:
        await within(20, lambda: min(map(len, confirmed)) > 50)
        for _ in range(2):
            await own_platform.kafka.kill()
            await asyncio.sleep(0.5)  # the outage itself
            await own_platform.kafka.start()
            goals = [len(values) + 50 for values in confirmed]
            await within(60, lambda goals=goals: all(len(c) > g for c, g in zip(confirmed, goals, strict=True)))
        expected.extend(list(values) for values in confirmed)
        await within(20, lambda: all(e[-1] in f.seen for e, f in zip(expected, followers, strict=True)))

    work = [appending(writer, "t", partition, confirmed[partition]) for partition in range(3)]
    await run_while([*work, *(follower.run() for follower in followers)], faults())
    for values, follower in zip(expected, followers, strict=True):
        seen = list(dict.fromkeys(follower.seen))  # a record in doubt was appended again
        assert set(values) <= set(seen)
        assert [int(value) for value in seen] == sorted(int(value) for value in seen)
    assert await reader.topics() == ["t"]


async def test_long_outage_is_an_error(
    own_platform: Servers, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the brokers stay away, reads and appends fail with their address, and work again afterwards."""
    for module in ("connection", "appender", "topics"):
        monkeypatch.setattr(f"penstock.adapters.kafka.{module}.RECOVERY_TIMEOUT_S", 3.0)
    log = open_log("log")
    await log.create_topic("t", 1)
    end = await log.append("t", 0, [NewRecord(b"a")])
    await own_platform.kafka.kill()
    waiting = [
        log.append("t", 0, [NewRecord(b"b")]),
        log.append("t", 0, [NewRecord(b"c")]),
        log.read("t", 0, 0),
        log.read("t", 0, end, timeout_s=1),
        log.offsets("t", 0),
        log.topics(),
        log.trim("t", 0, 1),
        log.create_topic("u", 1),
    ]
    failures = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
    for failure in failures:
        assert isinstance(failure, ExternalError), failure
        assert "127.0.0.1" in str(failure)
        assert "kafka.brokers" in str(failure)
    await own_platform.kafka.start()
    assert await log.append("t", 0, [NewRecord(b"d")]) > end
    values = [record.value for record in await log.read("t", 0, 0, timeout_s=5)]
    assert (values[0], values[-1]) == (b"a", b"d")


async def test_blocked_loop(open_log: OpenLog) -> None:
    """A process that does not come to its turn for 20 s goes on afterwards as if nothing had been."""
    log = open_log("log")
    await log.create_topic("t", 2)
    follower = Following(log, "t", 0)
    confirmed: list[bytes] = []

    async def block() -> None:
        await within(20, lambda: len(follower.seen) > 20)
        time.sleep(20)  # noqa: ASYNC251 - what user code may do
        goal = len(confirmed) + 20
        await within(20, lambda: len(follower.seen) > goal)

    idle = Following(log, "t", 1)
    await run_while([appending(log, "t", 0, confirmed), follower.run(), idle.run()], block())
    both = min(len(follower.seen), len(confirmed))
    assert follower.seen[:both] == confirmed[:both]
    assert not idle.seen


async def test_topic_deleted_by_another_process(open_log: OpenLog) -> None:
    """Readers and appenders of a topic that another process deletes are told so, and others go on."""
    mine, other = open_log("mine"), open_log("other")
    await mine.create_topic("t", 2)
    await mine.create_topic("u", 1)
    await mine.append("t", 0, [NewRecord(b"a")])
    waiting = asyncio.create_task(mine.read("t", 1, 0, timeout_s=30))
    staying = asyncio.create_task(mine.read("u", 0, 0, timeout_s=30))
    assert await mine.read("t", 1, 0) == []
    await other.delete_topic("t")
    with pytest.raises(TopicNotFoundError):
        await asyncio.wait_for(waiting, 10)
    with pytest.raises(TopicNotFoundError):
        await asyncio.wait_for(mine.append("t", 0, [NewRecord(b"b")]), 10)
    await mine.append("u", 0, [NewRecord(b"c")])
    assert [record.value for record in await asyncio.wait_for(staying, 10)] == [b"c"]


async def test_compacted_away_records_are_passed_over(own_platform: Servers, open_log: OpenLog) -> None:
    """Reading continues behind records that the broker has compacted away, whole batches of them included."""
    log = open_log("log")
    await log.create_topic("c", 1, compacted=True)
    await _compact_soon(own_platform.settings().kafka, "penstock.faults.c")
    ends = [await log.append("c", 0, [NewRecord(b"%d" % n, b"same"), NewRecord(b"", b"too")]) for n in range(200)]
    deadline = time.monotonic() + 60
    while (await log.read("c", 0, ends[3], timeout_s=1))[0].offset == ends[3]:
        assert time.monotonic() < deadline
        await log.append("c", 0, [NewRecord(b"again", b"same")])
        await asyncio.sleep(0.1)
    start, end = await log.offsets("c", 0)
    assert start == 0
    for offset in (0, ends[3], ends[100]):
        position, found = offset, 0
        while position < end:
            records = await asyncio.wait_for(log.read("c", 0, position, timeout_s=5), 20)
            assert records
            assert records[0].offset >= position
            found += len(records)
            position = records[-1].next_offset
        assert 0 < found < 400


async def _compact_soon(settings: KafkaSettings, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.brokers)
    await admin.start()
    configs = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "-1",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "200",
    }
    answer = await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs)])
    assert all(not resource[0] for part in answer for resource in part.resources)
    await admin.close()
