"""Transactions that hang: open in a partition though their coordinator is done with them, so that no marker will come.

A single broker of Kafka 4.3 that is killed between a decision and its markers leaves them so (docs/kafka.md). Which way
it was decided is known to the coordinator until the next InitProducerId of that id, so Penstock's own comes after a look
(`end_hanging`), unless it is asked for over the very connection on which the transaction was ended: then no
coordinator can have been killed since. It is also written in the partition of the mark, if that one has got its marker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    IncompatibleBrokerVersion,
    KafkaError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.record.memory_records import MemoryRecords

from penstock.errors import ExternalError
from penstock.kafka.transaction_requests import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)

MARKS: Final = ".marks"
"""How the topics of marks end: one partition of them is in every transaction of ours."""
_DONE: Final = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
_DECIDED: Final = {"CompleteCommit": True, "CompleteAbort": False}
_DENIED: Final = (29, 31, 53)
"""Rights that lack: TOPIC, CLUSTER and TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""
_UNKNOWN_ID: Final = 105
_PAUSE_S: Final = 0.1
_COORDINATOR_MOVES: Final = (CoordinatorNotAvailableError, NotCoordinatorError, CoordinatorLoadInProgressError)
"""It is just being found, changing, or reading its log; whoever asks has the deadline."""
_FETCH_BYTES: Final = 1 << 20
_COMMIT: Final = b"\0\0\0\1"
_REFUSED: Final = (ClusterAuthorizationFailedError, TopicAuthorizationFailedError)
_OPERATOR: Final = "`penstock doctor` tells more, and ends it with --settle-transactions"
_log = structlog.get_logger("penstock.publishing")


class _State(NamedTuple):
    """What a coordinator says of a transactional id."""

    name: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True)
class OpenTransaction:
    """A producer's open transaction in one partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start: int
    """Its first offset: readers of what is committed stop here."""


@dataclass(frozen=True)
class Hanging:
    """A transaction that hangs, in one partition of those it wrote to."""

    open: OpenTransaction
    transactional_id: str
    commit: bool | None
    """Which way it was decided; None: nobody knows any more."""
    because: str

    def __str__(self) -> str:
        way = {True: "to be committed", False: "to be aborted", None: "undecidable"}[self.commit]
        place = f"{self.open.topic}[{self.open.partition}] from offset {self.open.start}"
        return f"{self.transactional_id or f'producer {self.open.producer_id}'}: {place}: {way}: {self.because}"


async def end_hanging(client: AIOKafkaClient, transactional_id: str, mark: TopicPartition, topics: list[str]) -> None:
    """Do nothing unless the last transaction of this id hangs in the partition of its mark, or in one of these topics.

    Then write its markers, the way its coordinator says that it was decided. Where the brokers are too old to tell, or
    tell this user nothing, nothing is done either.

    Raises:
        ExternalError: it cannot be ended here; InitProducerId would make its coordinator forget which way it was decided.
        KafkaError: no answer, or its markers are still on their way.
    """
    try:
        state = await _state(client, transactional_id)
        while state.name.startswith("Prepare"):  # decided; a broker that comes back may be about to forget the markers
            await asyncio.sleep(_PAUSE_S)
            state = await _state(client, transactional_id)
        if state.name not in _DECIDED:
            return
        leaders = await _leaders(client, [mark.topic, *topics])
        if mark not in leaders:
            raise LeaderNotAvailableError(f"{mark.topic}[{mark.partition}]")
        asked = {place: node for place, node in leaders.items() if place == mark or place.topic in topics}
        found = [one for one in await _open(client, asked) if one.producer_id == state.producer_id]
    except (IncompatibleBrokerVersion, NotImplementedError):
        return
    said = f"its coordinator says {state.name}"
    problem = (
        f"{mark.topic}[{mark.partition}]: the last transaction of {transactional_id!r} hangs: {said}, and no marker"
    )
    # Each transaction has an epoch of its own: nothing later is meant, and a marker that comes late is fenced by it.
    meant = [one for one in found if one.producer_epoch == state.producer_epoch]
    try:
        for line in await settle(client, [Hanging(one, transactional_id, _DECIDED[state.name], said) for one in meant]):
            _log.warning("ended a transaction that its broker had left hanging", transaction=line)
    except (*_REFUSED, IncompatibleBrokerVersion, NotImplementedError):
        raise ExternalError(f"{problem} came; to end it the right ClusterAction is needed: {_OPERATOR}") from None
    if any((one.topic, one.partition) == mark for one in found if one not in meant):
        raise ExternalError(f"{problem} came: {_OPERATOR}")


async def hanging_transactions(client: AIOKafkaClient, cluster: str) -> list[Hanging]:
    """Those of the sinks of a cluster, in whatever topic they hang.

    Raises:
        KafkaError: no answer, or no right to ask.
    """
    leaders = await _leaders(client, None)
    marks = {p: n for p, n in leaders.items() if p.topic.startswith(f"penstock.{cluster}.") and p.topic.endswith(MARKS)}
    ours = {producer[0]: place for place, producer in await _producers(client, marks)}
    before = [found for found in await _open(client, leaders) if found.producer_id in ours]
    if not before:
        return []
    ids = await _transactional_ids(client, {found.producer_id for found in before})
    states = {producer_id: await _state(client, name) for producer_id, name in ids.items()}
    after = set(await _open(client, leaders))  # one that went on meanwhile does not hang
    return [
        await _hanging(client, found, ids.get(found.producer_id, ""), states.get(found.producer_id), ours, leaders)
        for found in before
        if found in after and (found.producer_id not in states or states[found.producer_id].name in _DONE)
    ]


async def settle(client: AIOKafkaClient, found: Iterable[Hanging]) -> list[str]:
    """Write the markers of those of which it is known which way they were decided; what was done, a line each.

    Raises:
        KafkaError: a broker refuses.
    """
    leaders = await _leaders(client, None)
    done: list[str] = []
    for hanging in found:
        if hanging.commit is None:
            done.append(f"left alone: {hanging}")
            continue
        place = TopicPartition(hanging.open.topic, hanging.open.partition)
        request = WriteTxnMarkersRequest(
            place.topic, place.partition, producer_id=hanging.open.producer_id, commit=hanging.commit,
            producer_epoch=hanging.open.producer_epoch, coordinator_epoch=max(0, hanging.open.coordinator_epoch),
        )  # fmt: skip
        answer: Any = await client.send(leaders[place], request)
        _raise(answer.markers[0][1][0][1][0][1], f"{place.topic}[{place.partition}]")
        done.append(f"{'committed' if hanging.commit else 'aborted'}: {hanging}")
    return done


# -- what the brokers know ----------------------------------------------------------------------------------------------


async def _leaders(client: AIOKafkaClient, topics: list[str] | None) -> dict[TopicPartition, int]:
    node = client.get_random_node()
    assert node is not None
    answer: Any = await client.send(node, MetadataRequest(topics, allow_auto_topic_creation=False))
    return {
        TopicPartition(topic, partition): leader
        for code, topic, _, partitions in answer.topics
        for _, partition, leader, *_ in partitions
        if not code and leader >= 0
    }


async def _producers(client: AIOKafkaClient, leaders: Mapping[TopicPartition, int]) -> list[tuple[TopicPartition, Any]]:
    """Who has written to these partitions, as far as the brokers remember and may tell."""
    found: list[tuple[TopicPartition, Any]] = []
    for node in set(leaders.values()):
        places: dict[str, list[int]] = {}
        for place in (place for place, leader in leaders.items() if leader == node):
            places.setdefault(place.topic, []).append(place.partition)
        answer: Any = await client.send(node, DescribeProducersRequest(places))
        for topic, partitions, _ in answer.topics:
            for partition, code, _, producers, _ in partitions:
                if code not in _DENIED:
                    _raise(code, f"{topic}[{partition}]")
                    found += [(TopicPartition(topic, partition), producer) for producer in producers]
    return found


async def _open(client: AIOKafkaClient, leaders: Mapping[TopicPartition, int]) -> list[OpenTransaction]:
    return [
        OpenTransaction(place.topic, place.partition, producer_id, epoch, coordinator_epoch, start)
        for place, (producer_id, epoch, _, _, coordinator_epoch, start, _) in await _producers(client, leaders)
        if start >= 0
    ]


async def _transactional_ids(client: AIOKafkaClient, producer_ids: set[int]) -> dict[int, str]:
    """Producer id to transactional id, as far as they are the same still."""
    found: dict[int, str] = {}
    for broker in client.cluster.brokers():
        answer: Any = await client.send(broker.nodeId, ListTransactionsRequest(sorted(producer_ids)))
        _raise(answer.error_code, "listing transactions")
        found |= {producer_id: name for name, producer_id, *_ in answer.transactions}
    return found


async def _state(client: AIOKafkaClient, transactional_id: str) -> _State:
    """What the coordinator says of the id, as soon as it knows."""
    while True:
        try:
            node = await client.coordinator_lookup(CoordinationType.TRANSACTION, transactional_id)
            answer: Any = await client.send(node, DescribeTransactionsRequest(transactional_id))
            code, _, name, _, _, producer_id, epoch, *_ = answer.transactions[0]
            if code == _UNKNOWN_ID or code in _DENIED:
                return _State("Empty", -1, -1)
            _raise(code, transactional_id)
        except _COORDINATOR_MOVES:
            await asyncio.sleep(_PAUSE_S)
            continue
        return _State(name, producer_id, epoch)


# -- which way ----------------------------------------------------------------------------------------------------------


async def _hanging(
    client: AIOKafkaClient, found: OpenTransaction, name: str, state: _State | None,
    marks: Mapping[int, TopicPartition], leaders: Mapping[TopicPartition, int],
) -> Hanging:  # fmt: skip
    mark = marks[found.producer_id]
    marker = await _marker(client, mark, leaders[mark], found.producer_id, found.producer_epoch)
    if marker is not None:
        return Hanging(found, name, marker, f"its marker stands in {mark.topic}[{mark.partition}]")
    # Of a later epoch it may be a later transaction that is meant, so only the very same one counts.
    if state is not None and state.producer_epoch == found.producer_epoch and state.name in _DECIDED:
        return Hanging(found, name, _DECIDED[state.name], f"its coordinator says {state.name}")
    said = "knows it no more" if state is None else f"says {state.name}, of a later one"
    return Hanging(found, name, None, f"no marker in {mark.topic}[{mark.partition}], and its coordinator {said}")


async def _marker(
    client: AIOKafkaClient, mark: TopicPartition, leader: int, producer_id: int, epoch: int
) -> bool | None:
    """Whether the partition of the mark holds the transaction's commit (True) or abort (False); None: no marker."""
    position = 0
    while True:
        request = FetchRequest(0, 1, _FETCH_BYTES, 0, [(mark.topic, [(mark.partition, position, _FETCH_BYTES)])])
        answer: Any = await client.send(leader, request)
        _, code, end, *_, data = answer.topics[0][1][0]
        if code == 1:  # OFFSET_OUT_OF_RANGE: its beginning was trimmed; marks are compacted, so only by hand
            return None
        _raise(code, f"{mark.topic}[{mark.partition}]")
        records = MemoryRecords(data or b"")
        before = position
        batch: Any  # of the present format, the only one that transactions have
        while (batch := records.next_batch()) is not None:
            position = batch.next_offset
            if batch.is_control_batch and (batch.producer_id, batch.producer_epoch) == (producer_id, epoch):
                return next(record.key for record in batch) == _COMMIT
        if position == before or position >= end:
            return None


def _raise(code: int, where: str) -> None:
    if code:
        error = for_code(code)
        raise error(where) if issubclass(error, KafkaError) else KafkaError(where)
