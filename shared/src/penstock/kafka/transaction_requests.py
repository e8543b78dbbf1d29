"""Requests on transactions that neither Kafka client has, as structures of aiokafka's: who has one open in a partition,
what its coordinator knows of it, and the markers that end one. Source: the message definitions of Kafka (KIP-664).
"""

# aiokafka declares the two numbers of a response as properties, and sets plain numbers in all of its own.
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

_STRING = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
_NO_TAGS: dict[int, bytes] = {}
Places = Mapping[str, Sequence[int]]
"""Topic to partitions."""


class DescribeProducersResponse_v0(Response):  # noqa: N801 # as aiokafka names them
    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("topics", CompactArray(
            ("name", _STRING),
            ("partitions", CompactArray(
                ("partition", Int32),
                ("error_code", Int16),
                ("error_message", _STRING),
                ("producers", CompactArray(
                    ("producer_id", Int64),
                    ("producer_epoch", Int32),
                    ("last_sequence", Int32),
                    ("last_timestamp", Int64),
                    ("coordinator_epoch", Int32),
                    ("transaction_start_offset", Int64),
                    _TAGS,
                )),
                _TAGS,
            )),
            _TAGS,
        )),
        _TAGS,
    )  # fmt: skip


class DescribeProducersRequest_v0(RequestStruct):  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 61
    API_VERSION = 0
    RESPONSE_TYPE = DescribeProducersResponse_v0
    SCHEMA = Schema(
        ("topics", CompactArray(("name", _STRING), ("partitions", CompactArray(Int32)), _TAGS)), _TAGS
    )  # fmt: skip


class DescribeProducersRequest(Request[DescribeProducersRequest_v0]):
    """Who writes to these partitions, of which the broker asked leads each (Kafka 2.8)."""

    API_KEY = 61

    def __init__(self, places: Places) -> None:
        self._places = places

    def build(self, request_struct_class: type[DescribeProducersRequest_v0]) -> DescribeProducersRequest_v0:
        topics = [(topic, list(partitions), _NO_TAGS) for topic, partitions in self._places.items()]
        return request_struct_class(topics, _NO_TAGS)


class DescribeTransactionsResponse_v0(Response):  # noqa: N801
    API_KEY = 65
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("transactions", CompactArray(
            ("error_code", Int16),
            ("transactional_id", _STRING),
            ("state", _STRING),
            ("timeout_ms", Int32),
            ("start_time_ms", Int64),
            ("producer_id", Int64),
            ("producer_epoch", Int16),
            ("topics", CompactArray(("name", _STRING), ("partitions", CompactArray(Int32)), _TAGS)),
            _TAGS,
        )),
        _TAGS,
    )  # fmt: skip


class DescribeTransactionsRequest_v0(RequestStruct):  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 65
    API_VERSION = 0
    RESPONSE_TYPE = DescribeTransactionsResponse_v0
    SCHEMA = Schema(("transactional_ids", CompactArray(_STRING)), _TAGS)


class DescribeTransactionsRequest(Request[DescribeTransactionsRequest_v0]):
    """What the broker asked, the coordinator of this id, knows of its newest transaction (Kafka 3.0)."""

    API_KEY = 65

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id

    def build(self, request_struct_class: type[DescribeTransactionsRequest_v0]) -> DescribeTransactionsRequest_v0:
        return request_struct_class([self._transactional_id], _NO_TAGS)


class ListTransactionsResponse_v0(Response):  # noqa: N801
    API_KEY = 66
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("unknown_states", CompactArray(_STRING)),
        ("transactions", CompactArray(
            ("transactional_id", _STRING), ("producer_id", Int64), ("state", _STRING), _TAGS,
        )),
        _TAGS,
    )  # fmt: skip


class ListTransactionsRequest_v0(RequestStruct):  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 66
    API_VERSION = 0
    RESPONSE_TYPE = ListTransactionsResponse_v0
    SCHEMA = Schema(("states", CompactArray(_STRING)), ("producer_ids", CompactArray(Int64)), _TAGS)


class ListTransactionsRequest(Request[ListTransactionsRequest_v0]):
    """The transactional ids of these producers of which the broker asked is the coordinator (Kafka 3.0)."""

    API_KEY = 66

    def __init__(self, producer_ids: Sequence[int]) -> None:
        self._producer_ids = list(producer_ids)

    def build(self, request_struct_class: type[ListTransactionsRequest_v0]) -> ListTransactionsRequest_v0:
        return request_struct_class([], self._producer_ids, _NO_TAGS)


class WriteTxnMarkersResponse_v1(Response):  # noqa: N801
    API_KEY = 27
    API_VERSION = 1
    SCHEMA = Schema(
        ("markers", CompactArray(
            ("producer_id", Int64),
            ("topics", CompactArray(
                ("name", _STRING),
                ("partitions", CompactArray(("partition", Int32), ("error_code", Int16), _TAGS)),
                _TAGS,
            )),
            _TAGS,
        )),
        _TAGS,
    )  # fmt: skip


class WriteTxnMarkersRequest_v1(RequestStruct):  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 27
    API_VERSION = 1
    RESPONSE_TYPE = WriteTxnMarkersResponse_v1
    SCHEMA = Schema(
        ("markers", CompactArray(
            ("producer_id", Int64),
            ("producer_epoch", Int16),
            ("committed", Boolean),
            ("topics", CompactArray(("name", _STRING), ("partitions", CompactArray(Int32)), _TAGS)),
            ("coordinator_epoch", Int32),
            _TAGS,
        )),
        _TAGS,
    )  # fmt: skip


class WriteTxnMarkersRequest(Request[WriteTxnMarkersRequest_v1]):
    """End a producer's transaction in a partition that the broker asked leads. Needs `ClusterAction` (Kafka 2.8)."""

    API_KEY = 27

    def __init__(
        self, topic: str, partition: int, *, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool
    ) -> None:
        places = [(topic, [partition], _NO_TAGS)]
        self._marker: Any = (producer_id, producer_epoch, commit, places, coordinator_epoch, _NO_TAGS)

    def build(self, request_struct_class: type[WriteTxnMarkersRequest_v1]) -> WriteTxnMarkersRequest_v1:
        return request_struct_class([self._marker], _NO_TAGS)
