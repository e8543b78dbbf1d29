"""Kafka sources as they are declared, and decisions of their readers that need no broker."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from penstock.connectors import kafka
from penstock.connectors.kafka.decoding import Records
from penstock.connectors.kafka.reading import COLLECT_AFTER, WAIT_S, Attention, TopicPartitionReader, ease_collection
from penstock.errors import ExternalError, PipelineError
from penstock.settings import KafkaSettings, Secret


@dataclass
class Row:
    n: int
    at: datetime


@dataclass
class WithKey:
    n: int
    key: str


BROKER = KafkaSettings(brokers="127.0.0.1:1")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"format": "jsn"}, "there is no format='jsn'; did you mean 'json'"),
        ({"start": "earlist"}, "there is no start='earlist'; did you mean 'earliest'"),
        ({"end": "earliest"}, "there is no end='earliest'"),
        ({"start": datetime(2026, 1, 1)}, "start= is a datetime without time zone"),  # noqa: DTZ001 (what is refused)
        ({"start": {0: -1}}, "start= is partition to offset, both from 0"),
        ({"end": 7}, "end= takes text, a datetime, a dict or None, got 7"),
        ({"brokers": "a:1", "security": KafkaSettings(brokers="b:1")}, "name the brokers once"),
        ({"registry": "http://r"}, 'are for format="avro"'),
        ({"metadata": {"offst": "n"}}, "a record has no 'offst'; did you mean 'offset'"),
        ({"metadata": {"key": "n"}}, "column 'n' for the key is .*; declare it as bytes or str"),
        ({"metadata": {"offset": "m"}}, "metadata: .*'m'"),
        ({"format": "raw"}, 'format="raw" puts the value into the only column'),
        ({"metadata": {"offset": "n", "timestamp": "at"}}, "every column is metadata"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_written(options, error):
    """With the nearest name, or what to write."""
    with pytest.raises(PipelineError, match=error):
        kafka.Source("t", schema=Row, **options)


def test_plans_show_what_is_not_the_default_and_no_secret():
    """The start is part of what is shown, the password is not."""
    security = KafkaSettings(brokers="b:1", sasl_username="u", sasl_password=Secret("hidden"))
    source = kafka.Source(
        "t", schema=Row, security=security, start=datetime(2026, 1, 1, tzinfo=UTC), end={1: 5}, format="csv"
    )
    assert source.describe() == {
        "topic": "t",
        "format": "csv",
        "start": "2026-01-01T00:00:00+00:00",
        "end": {"1": 5},
        "brokers": "b:1",
    }
    assert kafka.Source("t", schema=Row).describe() == {"topic": "t", "format": "json"}
    assert repr(kafka.Source("t", schema=Row)) == "kafka.Source(topic='t', format='json')"
    assert "hidden" not in repr(kafka.Source("t", schema=Row, format="avro", registry="https://u:hidden@host"))
    assert source.bounded
    assert not kafka.Source("t", schema=Row).bounded


def test_metadata_is_no_part_of_the_value():
    """Columns of metadata are not looked for in the record."""
    source = kafka.Source("t", schema=WithKey, metadata={"key": "key"})
    assert source.value_schema.names == ["n"] or tuple(source.value_schema.names) == ("n",)


class Message:
    """What confluent hands out, as far as records are made of it."""

    def __init__(self, offset: int, value: bytes | None = b"{}", error: KafkaError | None = None) -> None:
        self._offset, self._value, self._error = offset, value, error

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes | None:
        return self._value


@pytest.mark.parametrize("offsets", [[5, 6, 7], [5, 7, 8], [3], [1, 9]])
def test_offsets_of_records(offsets):
    """Also where markers or removed records lie between them."""
    records = Records(keep_messages=False)
    records.add([Message(offset) for offset in offsets])
    records.add([])
    assert records.offsets == offsets
    assert records.size_bytes == 2 * len(offsets)
    assert not records.messages


def sorted_out(monkeypatch, *batches):
    """The offsets of the records that a reader at offset 3 takes of these messages, and where it stands behind them."""
    monkeypatch.setattr("penstock.connectors.kafka.reading.Message", Message)
    source = kafka.Source("t", schema=Row, security=BROKER)
    reader = TopicPartitionReader(BROKER, "t", 3, {"offset": 3}, decoder_of(source), Attention())
    records, behind = Records(keep_messages=False), 3
    for messages in batches:
        behind = reader._sorted_out(messages, records, behind)
    return records.offsets, behind


def of(*offsets):
    return [Message(offset) for offset in offsets]


@pytest.mark.parametrize(
    "batches",
    [
        [[3, 4], [3, 4], [5, 6, 7]],
        [[3, 4], [4], [5, 6, 7]],
        [[3, 4], [2, 3, 4, 5, 6], [5, 6, 7]],
        [[3, 4, 5, 3, 4, 5, 6, 7]],
        [[3, 4], [5, 6, 3, 4, 5, 6, 7]],
        [[3, 4, 5, 6, 5, 7]],
        [[3, 4, 4, 5, 6], [7, 6, 7]],
    ],
)
def test_what_the_client_gives_out_again_is_left_out(batches, monkeypatch):
    """librdkafka has done so when the leader of a partition changed; a row would count twice."""
    assert sorted_out(monkeypatch, *(of(*offsets) for offsets in batches)) == ([3, 4, 5, 6, 7], 8)


@pytest.mark.parametrize("place", range(4))
def test_the_news_that_a_partition_is_at_its_end_leaves_out_no_records(place, monkeypatch):
    """The client gives it out among the records: those before it were lost where it said that reading was behind them."""
    messages = of(3, 4, 5)
    messages.insert(place, Message(3 + place, error=KafkaError(KafkaError._PARTITION_EOF)))
    assert sorted_out(monkeypatch, messages) == ([3, 4, 5], 6)


def test_the_end_of_a_partition_lies_behind_the_markers_of_transactions(monkeypatch):
    news = Message(8, error=KafkaError(KafkaError._PARTITION_EOF))
    assert sorted_out(monkeypatch, [*of(3, 4), news]) == ([3, 4], 8)
    assert sorted_out(monkeypatch, [*of(3, 4), news], of(8, 9)) == ([3, 4, 8, 9], 10)


def test_nobody_waits_while_a_sibling_has_records():
    """All silent readers together wait as long as one alone would."""
    attention = Attention()
    assert attention.wait_s == 0
    attention.note(0, silent=True)
    assert attention.wait_s == WAIT_S
    attention.note(1, silent=False)
    assert attention.wait_s == 0
    attention.note(1, silent=True)
    assert attention.wait_s == WAIT_S / 2
    for partition in range(100):
        attention.note(partition, silent=True)
    assert attention.wait_s == 0.005
    for partition in range(100):
        attention.forget(partition)
    assert attention.wait_s == 0


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (KafkaError._AUTO_OFFSET_RESET, PipelineError, "offset 7 is not there .* Nothing was skipped"),
        (KafkaError.OFFSET_OUT_OF_RANGE, PipelineError, "offset 7 is not there"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, PipelineError, "deleted while it was read"),
        (KafkaError.UNKNOWN_TOPIC_ID, PipelineError, "deleted while it was read"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, PipelineError, "grant it to this user"),
        (KafkaError._BAD_MSG, ExternalError, "at 127.0.0.1:1"),
    ],
)
def test_what_the_broker_says_as_an_error(code, kind, message):
    """Each names topic and partition and what to do."""
    source = kafka.Source("t", schema=Row, security=BROKER)
    attention = Attention()
    reader = TopicPartitionReader(BROKER, "t", 3, {"offset": 7}, decoder_of(source), attention)
    error = reader._failed(KafkaError(code))
    assert isinstance(error, kind)
    with pytest.raises(kind, match=f"kafka topic 't', partition 3.*{message}"):
        raise error


def decoder_of(source):
    return source._decoder(None)


def test_collection_is_eased_once_and_never_switched_on():
    """Who has switched the collector off, or eased it more, is left alone."""
    before = gc.get_threshold()
    try:
        for first, expected in ((700, COLLECT_AFTER), (0, 0), (COLLECT_AFTER + 1, COLLECT_AFTER + 1)):
            gc.set_threshold(first, 10, 10)
            ease_collection()
            assert gc.get_threshold() == (expected, 10, 10)
    finally:
        gc.set_threshold(*before)


def test_arrow_headers_need_their_shape():
    """A list of name and value, nothing else."""
    schema = pa.schema([pa.field("n", pa.int64()), pa.field("h", pa.list_(pa.string()))])
    with pytest.raises(PipelineError, match="list of objects with name: str and value: bytes"):
        kafka.Source("t", schema=schema, metadata={"headers": "h"})
