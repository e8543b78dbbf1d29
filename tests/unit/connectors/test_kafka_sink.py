"""Kafka sinks as they are declared, and rows as they become records."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import aiokafka.partitioner
import fastavro
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Pipeline
from penstock.connectors import iterables, kafka
from penstock.connectors.kafka import encoding as kafka_encoding
from penstock.connectors.kafka.encoding import KafkaEncoder, RecordShape, encoded_schema
from penstock.connectors.kafka.limits import TopicLimits
from penstock.connectors.kafka.marks import marks_of
from penstock.connectors.kafka.partitioning import key_hashes
from penstock.errors import BadRecordError, PipelineError
from penstock.formats.avro import avro_schema
from penstock.functions.windows import definitions as windows
from penstock.settings import KafkaSettings, Secret
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT64,
    INT64,
    STRING,
    TIMESTAMP,
    UINT64,
    Field,
    ListType,
    Schema,
    StructType,
)

ROWS = Schema(
    (
        Field("id", INT64, False),
        Field("name", STRING, True),
        Field("at", TIMESTAMP, True),
        Field("ok", BOOLEAN, True),
    )
)
AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def frame(**columns) -> pl.DataFrame:
    rows = max(len(values) for values in columns.values())
    given_columns = {"id": list(range(rows)), "name": ["x"] * rows, "at": [AT] * rows, "ok": [True] * rows} | columns
    return pl.DataFrame(given_columns, schema=ROWS.polars())


def encoder(shape: RecordShape, *, schema: Schema = ROWS, limit: int = 1_000_000, bad_rows="fail") -> KafkaEncoder:
    return KafkaEncoder("kafka topic 't'", schema, shape, TopicLimits(limit), bad_rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "jsom"}, "did you mean 'json'"),
        ({"delivery": "exactly_once"}, "did you mean 'exactly-once'"),
        ({"delivery": "upsert"}, "needs key="),
        ({"format": "arrow", "key": "id"}, "holds many rows"),
        ({"bad_rows": "dead_letter"}, "needs dead_letters="),
        ({"dead_letters": "d"}, "gets no rows with bad_rows='fail'"),
        ({"bad_rows": "dead_letter", "dead_letters": "t"}, "names the topic itself"),
        ({"compression": "zst"}, "did you mean 'zstd'"),
        ({"create_partitions": 0}, "number of partitions"),
        ({"registry": "http://r:8081"}, "for format=\"avro\", this one is 'json'"),
        ({"format": "avro", "registry": "r:8081"}, "an address such as https://"),
        ({"format": "avro", "register_schema": False}, "for a sink with registry="),
        ({"brokers": "a:1", "security": KafkaSettings(brokers="b:1")}, "name the brokers once"),
    ],
)
def test_a_wrong_declaration_is_refused(options, message):
    """When the sink is declared, not when it runs."""
    with pytest.raises(PipelineError, match=message):
        kafka.Sink("t", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "nane"}, "kafka.Sink: key.*did you mean 'name'"),
        ({"partition_by": "nane"}, "partition_by.*did you mean 'name'"),
        ({"headers": {"h": "nane"}}, "headers.*did you mean 'name'"),
        ({"timestamp": "id"}, "not a timestamp"),
        ({"format": "raw"}, "bytes of a column `value`"),
    ],
)
def test_a_sink_that_does_not_fit_the_stream_is_refused(options, message):
    """Unknown columns with the nearest name, columns of the wrong type."""
    with pytest.raises(PipelineError, match=message):
        kafka.Sink("t", **options).check(ROWS, updates=False)


def test_updates_need_a_key():
    """Every update would count as a row; with a key the newest counts."""
    with pytest.raises(PipelineError, match=r'delivery="upsert"'):
        kafka.Sink("t").check(ROWS, updates=True)
    kafka.Sink("t", key="id", delivery="upsert").check(ROWS, updates=True)
    kafka.Sink("t", key="id").check(ROWS, updates=True)


def test_no_secret_is_described():
    """The description stands in the job graph and in plans."""
    security = KafkaSettings(brokers="b:1", sasl_username="me", sasl_password=Secret("geheim"))
    sink = kafka.Sink("t", key="id", security=security)
    assert "geheim" not in json.dumps(sink.describe()) + repr(sink)
    assert sink.describe()["brokers"] == "b:1"
    assert "brokers" not in kafka.Sink("t").describe()


def test_json_is_an_object_per_row():
    """As the JSON of file sinks."""
    found = encoder(RecordShape("json")).encode(frame(name=['a"b', None])).frame
    assert found.columns == ["value"]
    assert found["value"].to_list() == [
        b'{"id":0,"name":"a\\"b","at":"2026-01-01T12:00:00Z","ok":true}',
        b'{"id":1,"name":null,"at":"2026-01-01T12:00:00Z","ok":true}',
    ]


def test_keys_headers_and_timestamp_are_columns():
    """One key column as it is, several as a JSON object."""
    shape = RecordShape("json", ("name",), timestamp="at", headers={"id": "id", "when": "at"})
    found = encoder(shape).encode(frame(name=["k", None])).frame
    assert found.schema == encoded_schema(shape).polars()
    row = found.row(0, named=True)
    assert (row["key"], row["timestamp"]) == (b"k", int(AT.timestamp() * 1_000))
    assert (row["header0"], row["header1"]) == (b"0", b"2026-01-01T12:00:00Z")
    assert found.row(1, named=True)["key"] is None
    assert found.row(1, named=True)["hash"] is None
    both = encoder(RecordShape("json", ("id", "name"))).encode(frame(name=["k"])).frame
    assert both["key"].to_list() == [b'{"id":0,"name":"k"}']


def test_another_column_may_choose_the_partition():
    """The key stays what it is."""
    found = encoder(RecordShape("json", ("id",), partition_by="name")).encode(frame(name=["k", "l", None])).frame
    hashes = [aiokafka.partitioner.murmur2(name) & 0x7FFFFFFF for name in (b"k", b"l")]
    assert found["hash"].to_list() == [*hashes, None]
    assert found["key"].to_list() == [b"0", b"1", b"2"]


@given(st.lists(st.none() | st.binary(max_size=70)))
def test_the_partitioner_is_kafkas(keys: list[bytes | None]):
    """murmur2 as the other clients compute it."""
    expected = [None if key is None else aiokafka.partitioner.murmur2(key) & 0x7FFFFFFF for key in keys]
    column = pl.Series(keys, dtype=pl.Binary)
    assert key_hashes(column).to_list() == expected
    assert key_hashes(column[1:3]).to_list() == expected[1:3]


def test_a_row_that_is_too_large_for_the_topic_is_a_bad_row():
    """It fails with what to do, or is skipped and counted."""
    rows = frame(name=["x", "y" * 2_000, "z"])
    with pytest.raises(BadRecordError, match=r"the topic takes 1,000 \(max.message.bytes\); raise that"):
        encoder(RecordShape("json"), limit=1_000).encode(rows)
    found = encoder(RecordShape("json"), limit=1_000, bad_rows="skip").encode(rows)
    assert (found.skipped, found.frame.height) == (1, 2)


def test_an_upsert_without_key_is_a_bad_row():
    """Nobody could tell which record it replaces."""
    shape = RecordShape("json", ("name",), key_needed=True)
    with pytest.raises(BadRecordError, match="no key"):
        encoder(shape).encode(frame(name=["x", None]))
    assert encoder(shape, bad_rows="skip").encode(frame(name=["x", None])).skipped == 1


SESSIONS = Schema(
    (
        Field("user", STRING, False),
        Field("window_start", TIMESTAMP, False),
        Field("window_end", TIMESTAMP, False),
        Field("retracted", BOOLEAN, False),
        Field("n", INT64, False),
    )
)


def retracted(shape: RecordShape) -> list[bool]:
    """Which records of three results have no value: the first session, its retraction, the session it became part of."""
    rows = pl.DataFrame(
        {"user": ["a"] * 3, "window_start": [AT] * 3, "window_end": [AT, AT, AT + timedelta(minutes=1)],
         "retracted": [False, True, False], "n": [1, 1, 2]},
        schema=SESSIONS.polars(),
    )  # fmt: skip
    found = pl.concat(encoder(shape, schema=SESSIONS).encode(row).frame for row in rows.iter_slices(1))
    assert found["key"].null_count() == 0
    assert found["key"][0] == found["key"][1]
    return found["value"].is_null().to_list()


def test_a_retracted_session_is_a_tombstone_of_an_upsert_topic():
    """Compaction and tables made of the topic then forget the window; its key is that of the result it takes away."""
    assert windows.RETRACTED == kafka_encoding.RETRACTED
    for key in (("user", "window_start"), ("user", "window_end"), ("user", "window_start", "window_end")):
        shape = RecordShape("json", key, key_needed=True, changes=True)
        assert retracted(shape) == [False, True, False]
        sink = kafka.Sink("t", key=key, delivery="upsert").of_changes()
        assert sink.encoded_schema(SESSIONS).field("value").nullable


def test_where_nothing_says_which_window_it_is_a_retraction_stays_a_row():
    """The newest record of the user may be another session's; and a topic of all rows has all of them."""
    assert retracted(RecordShape("json", ("user",), key_needed=True)) == [False] * 3
    assert retracted(RecordShape("json", ("user", "window_start"))) == [False] * 3
    assert not kafka.Sink("t", key="user", delivery="upsert").encoded_schema(SESSIONS).field("value").nullable


def test_changes_become_records_and_tombstones_of_their_key():
    """Of the changes of a key in one batch the last one counts; the column that says so is in none."""
    schema = Schema((Field("town", STRING, False), Field("n", INT64, False), Field("retracted", BOOLEAN, False)))
    rows = [("a", 1, False), ("b", 1, True), ("b", 2, False), ("a", 1, True), ("c", 7, True), ("a", 3, False)]
    frame = pl.DataFrame(rows, schema=schema.polars(), orient="row")
    sink = kafka.Sink("t", key="town", delivery="upsert").of_changes()
    assert sink.encoded_schema(schema).field("value").nullable
    found = encoder(sink.shape, schema=schema).encode(frame).frame
    assert found.select("key", "value").rows() == [
        (b"b", b'{"town":"b","n":2}'), (b"c", None), (b"a", b'{"town":"a","n":3}'),
    ]  # fmt: skip


def test_a_log_of_changes_has_every_change():
    log = kafka.Sink("t", key="town")
    assert log.of_changes() is log
    assert log.upsert_key is None


@given(st.lists(st.text(), min_size=1))
def test_a_csv_record_is_a_row_whatever_stands_in_it(names: list[str]):
    """Newlines and quotes within a text end no record."""
    schema = Schema((Field("id", INT64, False), Field("name", STRING, False)))
    rows = pl.DataFrame({"id": range(len(names)), "name": names}, schema=schema.polars())
    found = encoder(RecordShape("csv"), schema=schema).encode(rows).frame["value"].to_list()
    assert found == [rows.slice(n, 1).write_csv(include_header=False).encode()[:-1] for n in range(len(names))]


def test_raw_writes_the_bytes_of_a_column():
    """`value`, or the only column that nothing else uses."""
    schema = Schema((Field("key", STRING, True), Field("payload", BINARY, True)))
    shape = RecordShape("raw", ("key",))
    kafka.Sink("t", key="key", format="raw").check(schema, updates=False)
    rows = pl.DataFrame({"key": ["a", "b"], "payload": [b"\x00", None]}, schema=schema.polars())
    found = encoder(shape, schema=schema).encode(rows).frame
    assert found["value"].to_list() == [b"\x00", None]  # a tombstone
    with pytest.raises(BadRecordError, match="neither value nor key"):
        encoder(RecordShape("raw"), schema=schema.select(["payload"])).encode(rows.select("payload"))


def test_arrow_puts_many_rows_into_a_record_that_the_topic_takes():
    """Too large ones are split; a single row that is too large is a bad row."""
    rows = frame(name=["x" * 50] * 1_000)
    found = encoder(RecordShape("arrow"), limit=20_000).encode(rows).frame["value"].to_list()
    assert 1 < len(found) < 100
    assert max(map(len, found)) < 20_000
    tables = [pa.ipc.open_stream(value).read_all() for value in found]
    assert pa.concat_tables(tables).column("id").to_pylist() == list(range(1_000))
    assert encoder(RecordShape("arrow"), limit=300, bad_rows="skip").encode(frame(name=["x"])).skipped == 1
    with pytest.raises(BadRecordError, match="a row makes a record of"):
        encoder(RecordShape("arrow"), limit=300).encode(frame(name=["x"]))


def test_avro_is_a_datum_per_row():
    """Readable with the schema that the stream has."""
    inner = StructType((Field("x", FLOAT64, True), Field("d", DURATION, True)))
    schema = Schema(
        (
            Field("id", INT64, False),
            Field("at", TIMESTAMP, True),
            Field("day", DATE, True),
            Field("took", DURATION, True),
            Field("many", ListType(STRING), True),
            Field("inner", inner, True),
        )
    )
    row = {
        "id": 1,
        "at": AT,
        "day": date(2026, 1, 2),
        "took": timedelta(seconds=2),
        "many": ["a", None],
        "inner": {"x": 0.5, "d": timedelta(seconds=1)},
    }
    rows = pl.DataFrame([row, dict.fromkeys(row) | {"id": 2}], schema=schema.polars())
    values = encoder(RecordShape("avro"), schema=schema).encode(rows).frame["value"].to_list()
    read = [fastavro.schemaless_reader(io.BytesIO(value), avro_schema(schema), None) for value in values]
    assert read[0] == row | {"took": 2_000_000, "inner": {"x": 0.5, "d": 1_000_000}}
    assert read[1] == dict.fromkeys(row) | {"id": 2}
    with pytest.raises(PipelineError, match="column 'big' is uint64"):
        kafka.Sink("t", format="avro").check(Schema((Field("big", UINT64, False),)), updates=False)


def test_marks_have_names_that_kafka_takes():
    """Whatever the user calls the operator."""
    for operator in ("out", "mein Ausgang/ö", "x" * 300):
        marks = marks_of("cluster", "j" * 32, operator, 3)
        assert len(marks.topic) < 249
        assert marks.topic.replace(".", "").replace("_", "").replace("-", "").isalnum()
        assert marks.topic.isascii()
    assert marks_of("c", "j", "a b", 0) != marks_of("c", "j", "a_20b", 0)


@dataclass
class Row:
    id: int
    name: str


def test_a_sink_that_does_not_fit_fails_where_it_is_written():
    """When the pipeline is built, before anything runs."""
    p = Pipeline("p")
    with pytest.raises(PipelineError, match=r"kafka\.Sink: key"):
        p.read(iterables.Source([], schema=Row)).write(kafka.Sink("t", key="nobody"))


def dead_letters(shape: RecordShape, rows: pl.DataFrame, *, limit: int, dead_limit: int) -> tuple[pl.DataFrame, int]:
    """What the encoder makes of rows where bad ones go to another topic, and how many it counts as bad."""
    made = KafkaEncoder("kafka topic 't'", ROWS, shape, TopicLimits(limit), "dead_letter", dead_limit).encode(rows)
    assert made.frame.schema == encoded_schema(shape).polars()
    return made.frame, made.skipped


@pytest.mark.parametrize("kind", ["json", "csv", "avro", "arrow"])
def test_a_row_that_is_too_large_becomes_a_dead_letter(kind):
    """As JSON whatever the format is, with the reason; the others are as ever."""
    rows = frame(name=["x", "y" * 5_000, "z"])
    found, bad = dead_letters(RecordShape(kind, dead_letters=True), rows, limit=2_000, dead_limit=100_000)
    dead = found.filter(pl.col("dead").is_not_null())
    assert bad == dead.height == 1
    assert json.loads(dead["value"][0])["name"] == "y" * 5_000
    assert "the topic takes 2,000" in dead["dead"][0]
    assert b"y" * 100 not in b"".join(found.filter(pl.col("dead").is_null())["value"])


def test_a_dead_letter_is_cut_to_what_its_topic_takes():
    """With the reason it is no larger."""
    rows = frame(name=["y" * 5_000, "ü" * 3_000])
    found, bad = dead_letters(RecordShape("json", dead_letters=True), rows, limit=2_000, dead_limit=1_000)
    assert bad == 2
    for value, reason in found.select("value", "dead").iter_rows():
        assert 500 < len(value) + len(reason) < 1_000
        assert value.startswith(b'{"id":')


def test_an_upsert_row_without_key_becomes_a_dead_letter():
    """It has no partition; rows with a key keep theirs."""
    shape = RecordShape("json", ("name",), key_needed=True, dead_letters=True)
    found, bad = dead_letters(shape, frame(name=["k", None]), limit=2_000, dead_limit=2_000)
    assert bad == 1
    assert found["key"].to_list() == [b"k", None]
    assert found["hash"].is_null().to_list() == [False, True]
    assert "has no key (column name is null)" in found["dead"][1]


NOW_US = int(AT.timestamp()) * 1_000_000
HOUR_MS = 3_600_000


def dated(limits: TopicLimits, bad_rows="skip") -> KafkaEncoder:
    shape = RecordShape("json", ("name",), timestamp="at", dead_letters=bad_rows == "dead_letter")
    return KafkaEncoder("kafka topic 't'", ROWS, shape, limits, bad_rows, 1_000_000, clock_us=lambda: NOW_US)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, TopicLimits()),
        ({"message.timestamp.after.max.ms": "3600000"}, TopicLimits(after_ms=HOUR_MS)),
        (
            {"message.timestamp.before.max.ms": "9", "message.timestamp.after.max.ms": str(2**63 - 1)},
            TopicLimits(before_ms=9),
        ),
        ({"message.timestamp.difference.max.ms": "5"}, TopicLimits(before_ms=5, after_ms=5)),
        (
            {"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "7"},
            TopicLimits(before_ms=5, after_ms=7),
        ),
        ({"message.timestamp.after.max.ms": "7", "message.timestamp.type": "LogAppendTime"}, TopicLimits()),
        ({"cleanup.policy": "compact,delete", "max.message.bytes": "77"}, TopicLimits(77, needs_key=True)),
    ],
)
def test_the_settings_of_a_topic_say_what_it_takes(settings, expected):
    """Under the names of Kafka 3 and of Kafka 4; where the broker sets the time, any timestamp is taken."""
    assert TopicLimits.of(settings) == expected


def test_a_timestamp_that_the_topic_refuses_is_a_bad_row():
    """Its neighbours are written; the bounds themselves are taken, and a row without a timestamp is of now."""
    moments = [AT, AT + timedelta(hours=2), AT + timedelta(hours=1), None, AT - timedelta(days=1, seconds=1)]
    rows = frame(name=list("abcde"), at=moments)
    limits = TopicLimits(before_ms=24 * HOUR_MS, after_ms=HOUR_MS)
    found = dated(limits).encode(rows)
    assert (found.frame["key"].to_list(), found.skipped) == ([b"a", b"c", b"d"], 2)
    assert dated(TopicLimits()).encode(rows).skipped == 0
    with pytest.raises(
        BadRecordError, match=r"2026-01-01T14:00:00Z \(column at\), 2h ahead of the clock, the topic takes 1h"
    ):
        dated(limits, "fail").encode(rows)
    letters = dated(limits, "dead_letter").encode(rows).frame.filter(pl.col("dead").is_not_null())
    assert [json.loads(value)["name"] for value in letters["value"]] == ["b", "e"]
    assert "1d1s behind the clock, the topic takes 1d (message.timestamp.before.max.ms)" in letters["dead"][1]


def test_a_dated_row_without_value_is_not_said_to_be_misdated():
    """Its time is one that the topic takes."""
    schema = Schema((Field("at", TIMESTAMP, True), Field("payload", BINARY, True)))
    rows = pl.DataFrame({"at": [AT], "payload": [None]}, schema=schema.polars())
    shape = RecordShape("raw", timestamp="at")
    with pytest.raises(BadRecordError, match="a row has neither value nor key"):
        KafkaEncoder("kafka topic 't'", schema, shape, TopicLimits(), "fail", clock_us=lambda: NOW_US).encode(rows)


def test_a_compacted_topic_takes_no_row_without_key():
    """Whatever the delivery is."""
    limits = TopicLimits(needs_key=True)
    assert dated(limits).encode(frame(name=["a", None])).skipped == 1
    with pytest.raises(BadRecordError, match=r"column name is null\), and the topic is compacted"):
        dated(limits, "fail").encode(frame(name=["a", None]))
