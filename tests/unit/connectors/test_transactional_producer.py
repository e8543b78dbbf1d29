"""The requests of a transaction, in their order, against a broker that answers as it is told."""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict, deque
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition, errors
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from penstock.connectors.kafka import transactional_producer
from penstock.connectors.kafka.transactional_producer import RefusedBatchError, TransactionalProducer
from penstock.protocol.publishing import ProducerEpoch

ROWS = [TopicPartition("rows", n) for n in range(3)]
MARK = TopicPartition("marks", 0)
PRODUCER = struct.Struct(">qhii")
"""Where a batch says who wrote it."""
LEADERS = {ROWS[0]: 1, ROWS[1]: 2, ROWS[2]: 1, MARK: 2}


class Broker:
    """Both a client and the connection to the coordinator."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.errors: dict[str, deque[int | BaseException]] = defaultdict(deque)
        """By request: what is answered, one after another; then success."""
        self.refusals: dict[tuple[str, int], tuple[Any, ...]] = {}
        """What is answered of a partition behind its number: code, three numbers, records that are refused, a text."""
        self.epoch = 4
        self.lookups = 0
        self.batches: list[tuple[int, int, int, int]] = []
        """Producer id, epoch, first sequence and count of each."""
        self.open = True
        self.cluster = SimpleNamespace(leader_for_partition=LEADERS.get)
        self.metadata: deque[dict[TopicPartition, int]] = deque()
        """Leaders, as one request after the other finds them; then those of before."""
        self._conns: dict[Any, Any] = {}

    # as the client
    async def coordinator_lookup(self, _: int, __: str) -> int:
        self.lookups += 1
        return 1

    async def ready(self, node: int, *, group: Any) -> bool:
        self._conns[node, group] = self
        self.open = True
        return True

    async def force_metadata_update(self) -> bool:
        await asyncio.sleep(0)
        if self.metadata:
            self.cluster.leader_for_partition = self.metadata.popleft().get
        return True

    def connected(self) -> bool:
        return self.open

    def close(self) -> asyncio.Future[None]:
        self.open = False
        closed = asyncio.get_running_loop().create_future()
        closed.set_result(None)
        return closed

    async def send(self, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        request = arguments[-1]
        error = self.errors[type(request).__name__].popleft() if self.errors[type(request).__name__] else 0
        if isinstance(error, BaseException):
            raise error
        match request:
            case InitProducerIdRequest():
                self.epoch += not error
                self.said.append(("init", error))
                return SimpleNamespace(error_code=error, producer_id=9, producer_epoch=self.epoch)
            case AddPartitionsToTxnRequest():
                self.said.append(("add", request._topics))
                found = [
                    (t, [(p, error if p == parts[-1] else error and 55) for p in parts]) for t, parts in request._topics
                ]
                return SimpleNamespace(errors=found)
            case ProduceRequest():
                places = [(topic, number) for topic, parts in request._topics for number, _ in parts]
                self.said.append((f"produce at {arguments[0]}", places))
                self.batches += [PRODUCER.unpack_from(data, 43) for _, parts in request._topics for _, data in parts]
                told = lambda place: self.refusals.get(place, (error, 0))  # noqa: E731
                return SimpleNamespace(topics=[(topic, [(number, *told((topic, number)))]) for topic, number in places])
            case EndTxnRequest():
                self.said.append(("end", request._producer_epoch))
                return SimpleNamespace(error_code=error)
            case _:
                raise AssertionError(request)


@pytest.fixture
def broker() -> Broker:
    """One that grants all."""
    return Broker()


@pytest.fixture
async def producer(broker: Broker) -> TransactionalProducer:
    """Of that broker."""
    subject = TransactionalProducer({"bootstrap_servers": "localhost:1", "request_timeout_ms": 1_000}, "id", 60_000)
    await subject.client.close()
    subject.client = broker  # pyright: ignore[reportAttributeAccessIssue]
    return subject


async def fill(producer: TransactionalProducer, place: TopicPartition, count: int = 1, size: int = 10) -> None:
    batch = producer.batch(1 << 20, None)
    for _ in range(count):
        batch.append(timestamp=1, key=None, value=b"x" * size)
    await producer.send(place, batch)


async def test_records_that_are_refused_are_found_in_all_batches(
    producer: TransactionalProducer, broker: Broker
) -> None:
    """Kafka names them; the rest of the transaction is sent, whose next batch has the number of the refused one."""
    await producer.init()
    await fill(producer, ROWS[0], 3, 1)
    broker.refusals["rows", 0] = (32, -1, -1, -1, [(1, "it is ahead"), (2, None)], "some")
    await producer.send(ROWS[0], other := producer.batch(1 << 20, None))
    other.append(timestamp=7, key=b"k", value=b"v")
    await asyncio.sleep(0.01)
    broker.refusals["rows", 0] = (87, -1, -1, -1, [], "no key")
    with pytest.raises(RefusedBatchError, match=r"rows\[0\]: INVALID_TIMESTAMP it is ahead") as raised:
        await producer.commit()
    assert [(r.code, r.said, r.at_ms, r.key, r.value) for r in raised.value.records] == [
        ("INVALID_TIMESTAMP", "it is ahead", 1, None, b"x"),
        ("INVALID_TIMESTAMP", "some", 1, None, b"x"),
        ("INVALID_RECORD", "no key", 7, b"k", b"v"),
    ]
    assert [sequence for _, _, sequence, _ in broker.batches] == [0, 0]
    assert not [what for what, _ in broker.said if what == "end"]


async def test_a_batch_of_which_no_record_is_named_is_refused_as_a_whole(
    producer: TransactionalProducer, broker: Broker
) -> None:
    """As by a broker that is older than KIP-467, or because all of it is too large."""
    await producer.init()
    await fill(producer, ROWS[0], 2)
    broker.refusals["rows", 0] = (10, -1, -1, -1)
    with pytest.raises(RefusedBatchError) as raised:
        await producer.commit()
    assert (raised.value.records, [r.code for r in raised.value.unknown]) == ([], ["MESSAGE_TOO_LARGE"])


async def test_few_rows_are_three_requests(producer: TransactionalProducer, broker: Broker) -> None:
    """Records for one leader go together, those for another one at the same time."""
    assert await producer.init() == ProducerEpoch(9, 5)
    for place in (*ROWS, MARK):
        await fill(producer, place)
    await producer.commit()
    assert broker.said == [
        ("init", 0),
        ("add", [("marks", [0]), ("rows", [0, 1, 2])]),
        ("produce at 1", [("rows", 0), ("rows", 2)]),
        ("produce at 2", [("rows", 1), ("marks", 0)]),
        ("end", 5),
    ]
    assert broker.lookups == 1


async def test_batches_of_a_partition_follow_on_one_another(producer: TransactionalProducer, broker: Broker) -> None:
    """By their sequence, which each epoch begins anew; a partition is announced once per transaction."""
    for _ in range(2):
        await producer.init()
        for count in (2, 3, 1):
            await fill(producer, ROWS[0], count)
        await producer.commit()
    assert broker.batches == [(9, epoch, first, count) for epoch in (5, 6) for first, count in ((0, 2), (2, 3), (5, 1))]
    assert [what for what, _ in broker.said] == ["init", "add", *["produce at 1"] * 3, "end"] * 2


async def test_a_request_has_its_size(producer: TransactionalProducer, broker: Broker, monkeypatch) -> None:
    """However many partitions there are."""
    monkeypatch.setattr(transactional_producer, "REQUEST_BYTES", 2_000)
    await producer.init()
    for place in ROWS:
        await fill(producer, place, 1, 1_500)
    await producer.commit()
    assert [places for what, places in broker.said if what.startswith("produce")] == [[("rows", n)] for n in range(3)]


@pytest.mark.parametrize("request_of", ["InitProducerIdRequest", "AddPartitionsToTxnRequest"])
@pytest.mark.parametrize("code", [51, 14])
async def test_what_was_not_done_is_asked_for_again(
    producer: TransactionalProducer, broker: Broker, request_of: str, code: int
) -> None:
    """CONCURRENT_TRANSACTIONS, COORDINATOR_LOAD_IN_PROGRESS: markers are still being written, the log is still read."""
    broker.errors[request_of].extend([code, code])
    await producer.init()
    await fill(producer, ROWS[0])
    await producer.commit()
    assert [what for what, _ in broker.said].count("init" if request_of.startswith("Init") else "add") == 3


@pytest.mark.parametrize("request_of", ["AddPartitionsToTxnRequest", "ProduceRequest", "EndTxnRequest"])
@pytest.mark.parametrize(
    "error", [15, 16, 47, 48, 53, errors.RequestTimedOutError(), errors.KafkaConnectionError("gone"), TimeoutError()]
)
async def test_whatever_else_is_a_doubt(
    producer: TransactionalProducer, broker: Broker, request_of: str, error: int | BaseException
) -> None:
    """And nothing is sent a second time."""
    await producer.init()
    broker.errors[request_of].append(error)
    await fill(producer, ROWS[0])
    with pytest.raises(type(error) if isinstance(error, BaseException) else errors.for_code(error)):
        await producer.commit()
    await producer.close()
    assert [what for what, _ in broker.said].count("init") == 1
    assert len({what for what, _ in broker.said}) == len(broker.said)


async def test_an_end_that_meets_another_transaction_is_a_doubt(
    producer: TransactionalProducer, broker: Broker
) -> None:
    """CONCURRENT_TRANSACTIONS at EndTxn: nobody else should be there."""
    await producer.init()
    broker.errors["EndTxnRequest"].append(51)
    with pytest.raises(errors.ConcurrentTransactions):
        await producer.commit()


@pytest.mark.parametrize("code", [15, 16])
async def test_the_coordinator_is_looked_for_where_it_went(
    producer: TransactionalProducer, broker: Broker, code: int
) -> None:
    """Before anything was granted; afterwards that is a doubt, because it may have been killed."""
    broker.errors["InitProducerIdRequest"].append(code)
    await producer.init()
    assert broker.lookups == 2
    broker.errors["InitProducerIdRequest"].append(code)
    with pytest.raises(errors.for_code(code)):
        await producer.init()
    assert not producer.connected


async def test_a_coordinator_that_does_not_answer_is_not_asked_again(
    producer: TransactionalProducer, broker: Broker
) -> None:
    """Its answer to this request would be taken for that to the next one."""
    await producer.init()
    broker.errors["EndTxnRequest"].append(TimeoutError())
    with pytest.raises(TimeoutError):
        await producer.commit()
    assert not producer.connected


async def test_the_error_of_a_partition_is_told_not_that_of_its_neighbours(
    producer: TransactionalProducer, broker: Broker
) -> None:
    """OPERATION_NOT_ATTEMPTED stands at those that are in order."""
    await producer.init()
    broker.errors["AddPartitionsToTxnRequest"].append(29)
    for place in ROWS:
        await fill(producer, place)
    with pytest.raises(errors.TopicAuthorizationFailedError, match=r"rows\[2\]"):
        await producer.commit()


async def test_the_leader_of_a_topic_that_was_made_just_now_is_waited_for(
    producer: TransactionalProducer, broker: Broker
) -> None:
    """Not every broker knows it at once."""
    new = TopicPartition("new", 0)
    broker.metadata.extend([LEADERS, {new: 2}])
    await producer.init()
    await fill(producer, new)
    await producer.commit()
    assert [what for what, _ in broker.said] == ["init", "add", "produce at 2", "end"]


async def test_a_partition_without_leader_is_named(
    producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have one soon: the publisher tries again."""
    monkeypatch.setattr(producer, "_request_timeout_ms", 50)
    await producer.init()
    await fill(producer, TopicPartition("rows", 7))
    with pytest.raises(errors.LeaderNotAvailableError, match=r"rows\[7\]"):
        await producer.commit()


async def test_closing_ends_what_is_under_way(producer: TransactionalProducer, broker: Broker) -> None:
    """Nothing is sent afterwards."""
    await producer.init()
    await fill(producer, ROWS[0])
    await producer._dispatch()
    await producer.close()
    said = list(broker.said)
    await asyncio.sleep(0)
    assert broker.said == said
    assert "end" not in [what for what, _ in said]
