"""Protobuf of Kafka records: what is read of messages, what is written, and what is refused when it is declared."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protobuf_messages import message

from penstock import Pipeline, PipelineError, col
from penstock.connectors import iterables, kafka
from penstock.connectors.kafka.encoding import DEAD, KafkaEncoder
from penstock.connectors.kafka.limits import TopicLimits
from penstock.connectors.kafka.protobuf_values import ProtobufValues
from penstock.errors import BadRecordError
from penstock.formats.columns import FrameBuilder
from penstock.formats.protobuf import ProtobufMessage, encode_protobuf
from penstock.types import BOOLEAN, FLOAT32, INT64, Field, Schema, schema_of

ORDER = message("Order")
OF_ORDERS = ProtobufMessage.of(ORDER, "test")
AT = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


@dataclass
class Item:
    name: str
    number: int | None


@dataclass
class Order:
    id: int
    customer: str
    note: str | None
    amount: float
    paid: bool
    data: bytes
    at: datetime | None
    took: timedelta | None
    state: int
    items: list[Item]
    tags: list[str]
    weights: dict[str, float]
    limit: int | None
    small: int
    place: Item | None
    ratio: float


ALL = schema_of(Order, "test")
SCHEMA = Schema(tuple(replace(field, type=FLOAT32) if field.name == "ratio" else field for field in ALL))
FULL = Order(
    -(2**63), "é", "", 0.1, True, b"\x00\xff", AT, timedelta(days=-1, microseconds=1), 1, [Item("a", 0), Item("", None)],
    ["x", ""], {"k": 1.5}, 0, -(2**31), Item("here", 7), 0.5,
)  # fmt: skip
EMPTY = Order(0, "", None, 0.0, False, b"", None, None, 0, [], [], {}, None, 0, None, 0.0)


def written(*rows: Order) -> list[bytes]:
    builder = FrameBuilder(SCHEMA)
    frame, wrong = builder.frame([[getattr(row, name) for row in rows] for name in SCHEMA.names])
    assert not wrong
    values, wrong = encode_protobuf(frame, SCHEMA, OF_ORDERS)
    assert not wrong
    return values.to_list()


def read(values: list[bytes], schema: Any = SCHEMA, *, prefixed: bool = False) -> Any:
    decoded, _ = ProtobufValues(schema, OF_ORDERS, prefixed=prefixed).decode(values)
    return decoded


def test_other_clients_read_what_is_written() -> None:
    """Every type; what is null is absent."""
    full, empty = (ORDER.FromString(value) for value in written(FULL, EMPTY))
    assert (full.id, full.customer, full.note, full.amount, full.paid, full.data) == (
        -(2**63),
        "é",
        "",
        0.1,
        True,
        b"\x00\xff",
    )
    assert full.HasField("note")
    assert (full.at.ToDatetime(UTC), full.took.ToTimedelta()) == (AT, FULL.took)
    assert [(item.name, item.number, item.HasField("number")) for item in full.items] == [
        ("a", 0, True),
        ("", 0, False),
    ]
    assert (list(full.tags), dict(full.weights), full.limit.value, full.small) == (["x", ""], {"k": 1.5}, 0, -(2**31))
    assert (full.place.name, full.place.number, full.ratio, full.state) == ("here", 7, 0.5, 1)
    assert empty.ByteSize() == 0


def test_what_is_written_is_read() -> None:
    """The same rows."""
    decoded = read(written(FULL, EMPTY, FULL))
    assert decoded.bad == []
    rows = decoded.frame.to_dicts()
    assert rows[0] == rows[2]
    assert rows[0]["items"] == [{"name": "a", "number": 0}, {"name": "", "number": None}]
    assert {name: rows[1][name] for name in ("note", "at", "took", "limit", "place", "tags")} == {
        "note": None, "at": None, "took": None, "limit": None, "place": None, "tags": [],
    }  # fmt: skip
    assert (rows[0]["at"], rows[0]["took"], rows[0]["ratio"]) == (AT, FULL.took, 0.5)


@given(st.lists(st.builds(
    Order, st.integers(-(2**63), 2**63 - 1), st.text(max_size=5), st.none() | st.text(max_size=5),
    st.floats(allow_nan=False), st.booleans(), st.binary(max_size=5),
    st.none() | st.datetimes(timezones=st.just(UTC)),
    st.none() | st.timedeltas(timedelta(days=-9_999), timedelta(days=9_999)), st.integers(0, 1),
    st.lists(st.builds(Item, st.text(max_size=3), st.none() | st.integers(-5, 5)), max_size=3),
    st.lists(st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=3),
    st.none() | st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1),
    st.none() | st.builds(Item, st.text(max_size=3), st.none()), st.floats(width=32, allow_nan=False),
), min_size=1, max_size=5))  # fmt: skip
def test_any_rows(rows: list[Order]) -> None:
    """Come back as they were."""
    frame, _ = FrameBuilder(SCHEMA).frame([[getattr(row, name) for row in rows] for name in SCHEMA.names])
    values, wrong = encode_protobuf(frame, SCHEMA, OF_ORDERS)
    decoded = read(values.to_list())
    assert (decoded.bad, wrong) == ([], {})
    assert decoded.frame.to_dicts() == frame.to_dicts()


@dataclass
class Named:
    id: int
    state: str
    at: datetime


def test_names_of_enums_and_bad_records() -> None:
    """A value that has no name, what is missing, and bytes that are no message, are bad records with their reason."""
    good = ORDER(id=1, state=1)
    good.at.FromDatetime(AT)
    strange, without, far = ORDER(id=2, state=7), ORDER(id=3), ORDER(id=4)
    strange.at.FromDatetime(AT)
    far.at.seconds = 2**60
    values = [each.SerializeToString() for each in (good, strange, without, far)] + [b"\x08"]
    decoded = read(values, schema_of(Named, "test"))
    assert decoded.frame.to_dicts() == [{"id": 1, "state": "PAID", "at": AT}]
    reasons = [line.error for line in decoded.bad]
    assert [line.index for line in decoded.bad] == [1, 2, 3, 4]
    assert "shop.State has no value 7; declare the column as int" in reasons[0]
    assert "missing" in reasons[1]
    assert reasons[2].startswith("no message shop.Order: OverflowError")
    assert reasons[3].startswith("no message shop.Order: DecodeError")


@dataclass
class WithDefault:
    id: int
    note: str = "none"


def test_defaults_stand_for_what_is_absent() -> None:
    """As in JSON."""
    values = [ORDER(id=1).SerializeToString(), ORDER(id=2, note="x").SerializeToString()]
    assert read(values, schema_of(WithDefault, "test")).frame["note"].to_list() == ["none", "x"]


@pytest.mark.parametrize(
    ("prefix", "problem"),
    [
        (b"\x00\x00\x00\x00\x07\x02\x02", ""),
        (b"\x00\x00\x00\x00\x07\x00", "it is the message [0] of its file, and not [1]"),
        (b"\x00\x00\x00\x00\x07\x04\x02\x00", "it is the message [1, 0] of its file"),
        (b"\x01\x00\x00\x00\x07\x02\x02", "begins with 1, not with 0"),
        (b"\x00\x00", "bytes end before it does"),
    ],
)
def test_the_wire_format_of_a_registry(prefix: bytes, problem: str) -> None:
    """The id is skipped, the place of the message in its file is looked at."""
    decoded = read([prefix + ORDER(id=5).SerializeToString()], schema_of(WithDefault, "test"), prefixed=True)
    if not problem:
        assert decoded.frame["id"].to_list() == [5]
    else:
        assert problem in decoded.bad[0].error


def test_a_message_needs_no_module_elsewhere() -> None:
    """Its descriptors go along."""
    copied = pickle.loads(pickle.dumps(OF_ORDERS))
    assert copied == OF_ORDERS
    assert copied.type().FromString(ORDER(id=3).SerializeToString()).id == 3
    assert [
        name
        for name in ("timestamp", "duration", "wrappers", "orders")
        if any(name.encode() in f for f in copied.files)
    ]


def source(**options: Any) -> Any:
    return kafka.Source("t", brokers="b:1", **{"schema": Order, "format": "protobuf", "message": ORDER, **options})


def schema(**columns: Any) -> Any:
    import pyarrow as pa

    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


def pa_types() -> Any:
    import pyarrow as pa

    return pa


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"message": None}, 'format="protobuf" needs message='),
        ({"message": ORDER()}, "message= is a class that protoc has made"),
        ({"message": str}, "message= is a class that protoc has made"),
        ({"format": "json"}, 'message= is for format="protobuf", this one is .json'),
        ({"writer_schema": "{}"}, 'writer_schema= is for format="avro"'),
        ({"message": message("Other")}, "message shop.Other has no field id; there are: n"),
        (
            {"schema": schema(id=pa_types().string())},
            r"id: the column is string, which field shop.Order.id .int64.",
        ),
        ({"schema": schema(items=pa_types().string())}, r"items: .*repeated shop.Order.Item"),
        ({"schema": schema(weights=pa_types().list_(pa_types().string()))}, "weights: the column is list"),
        ({"schema": schema(at=pa_types().int64())}, r"google.protobuf.Timestamp. is not read"),
        ({"schema": schema(tags=pa_types().list_(pa_types().int64()))}, r"tags: the column is int64"),
        ({"schema": schema(amount=pa_types().decimal128(10, 2))}, r"amount: the column is decimal"),
    ],
)
def test_sources_that_do_not_fit(options: dict[str, Any], said: str) -> None:
    """When they are declared."""
    with pytest.raises(PipelineError, match=said):
        source(**options)


def test_what_a_source_says_of_itself() -> None:
    """Its message's name."""
    assert source().describe()["message"] == "shop.Order"
    assert source(registry="http://r").describe()["registry"] == "http://r"


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"id": col("id") + 0.5}, r"id: the column is float64, which field shop.Order.id"),
        ({"ratio": col("amount")}, r"ratio: the column is float64, which field shop.Order.ratio .float."),
        (
            {"customer": col("note")},
            r"customer: the column may be null, and field shop.Order.customer cannot be absent",
        ),
        ({"state": col("customer")}, r"state: the column is string, which field shop.Order.state .enum."),
        ({"more": col("id")}, "message shop.Order has no field more"),
    ],
)
def test_sinks_that_do_not_fit(column: dict[str, Any], said: str) -> None:
    """When the pipeline is built: nothing is rounded, cut or made zero."""
    rows = Pipeline("p").read(iterables.Source([], schema=SCHEMA.arrow())).with_columns(**column)
    with pytest.raises(PipelineError, match=said):
        rows.write(kafka.Sink("t", brokers="b:1", format="protobuf", message=ORDER))
    with pytest.raises(PipelineError, match='registry= is for format="avro"'):
        kafka.Sink("t", brokers="b:1", format="protobuf", message=ORDER, registry="http://r")


@pytest.mark.parametrize("policy", ["fail", "skip", "dead_letter"])
def test_numbers_that_do_not_fit(policy: Any) -> None:
    """Bad rows, by the sink's policy."""
    dead: dict[str, Any] = {"dead_letters": "dead"} if policy == "dead_letter" else {}
    sink = kafka.Sink("t", brokers="b:1", format="protobuf", message=ORDER, bad_rows=policy, **dead)
    encoder = KafkaEncoder("topic t", schema_of(Number, "test"), sink.shape, TopicLimits(1_000), policy, 1_000)
    frame = pl.DataFrame({"id": [1, 2, 3], "small": [2**31 - 1, 2**31, -(2**31)]})
    if policy == "fail":
        with pytest.raises(BadRecordError, match=r"topic t: a row makes no message shop.Order: .*2147483648"):
            encoder.encode(frame)
        return
    encoded = encoder.encode(frame)
    assert encoded.skipped == 1
    values = encoded.frame["value"].to_list()
    assert [ORDER.FromString(value).id for value in values[:2]] == [1, 3]
    assert len(values) == (3 if dead else 2)
    if dead:
        assert (values[2], "2147483648" in encoded.frame[DEAD][2]) == (b'{"id":2,"small":2147483648}', True)


def test_a_row_that_only_deletes_makes_no_message() -> None:
    """So nothing of it can be wrong."""
    sink = kafka.Sink("t", brokers="b:1", format="protobuf", message=ORDER, key="id", delivery="upsert")
    shape = replace(sink.shape, changes=True)
    schema = Schema((*schema_of(Number, "test"), Field("retracted", BOOLEAN)))
    frame = pl.DataFrame({"id": [1, 2], "small": [2**40, 5], "retracted": [True, False]})
    encoded = KafkaEncoder("topic t", schema, shape, TopicLimits(1_000), "fail").encode(frame).frame
    assert (encoded["value"][0], ORDER.FromString(encoded["value"][1]).small) == (None, 5)


@dataclass
class Number:
    id: int
    small: int


def test_a_sink_tells_its_message() -> None:
    """In plans."""
    sink = kafka.Sink("t", brokers="b:1", format="protobuf", message=ORDER, key="id")
    Pipeline("p").read(iterables.Source([], schema=SCHEMA.arrow())).write(sink)
    assert sink.describe()["message"] == "shop.Order"


def choice() -> Any:
    """A message with two fields of a oneof, a required one, and a list of wrappers; nested behind a map."""
    return message("Choice")


@dataclass
class Chosen:
    number: int | None
    text: str | None
    limits: list[int | None]


def test_rows_that_make_no_message() -> None:
    """Nothing is left out or made zero in silence; what can be written is."""
    schema, known = schema_of(Chosen, "test"), ProtobufMessage.of(choice(), "test")
    rows = {"number": [1, None, 1, None], "text": [None, "x", "x", None], "limits": [[1], [], [2], [3, None]]}
    values, wrong = encode_protobuf(pl.DataFrame(rows, schema=schema.polars()), schema, known)
    assert [value is None for value in values] == [False, False, True, True]
    assert "number and text are both not null, and only one of which can be" in wrong[2]
    assert "limits has a null in it, which a message cannot have" in wrong[3]
    assert [choice().FromString(value).WhichOneof("which") for value in values[:2]] == ["number", "text"]


@pytest.mark.parametrize(
    ("indexes", "found"), [(b"\x04\x04\x02", True), (b"\x04\x04\x00", True), (b"\x04\x04\x04", False)]
)
def test_the_place_of_a_message_behind_a_map(indexes: bytes, found: bool) -> None:
    """Clients that go by descriptors count the entries of maps, those that go by the text do not."""
    inner = ProtobufMessage.of(message("Choice.Inner"), "test")
    decoder = ProtobufValues(Schema((Field("n", INT64),)), inner, prefixed=True)
    decoded, _ = decoder.decode([b"\x00\x00\x00\x00\x07" + indexes + b"\x08\x05"])
    assert (decoded.frame["n"].to_list(), len(decoded.bad)) == (([5], 0) if found else ([], 1))


@dataclass
class Point:
    x: int


@dataclass
class Pinned:
    at: Point | None
    way: list[Point]


def test_a_message_whose_name_has_that_of_a_number_in_it() -> None:
    """`shop.Point` is a message, and no `int`."""
    schema, known = schema_of(Pinned, "test"), ProtobufMessage.of(message("Pinned"), "test")
    rows = [{"at": {"x": 1}, "way": [{"x": 2}, {"x": 3}]}, {"at": None, "way": []}]
    values, wrong = encode_protobuf(pl.DataFrame(rows, schema=schema.polars()), schema, known)
    decoded, _ = ProtobufValues(schema, known, prefixed=False).decode(values.to_list())
    assert (wrong, decoded.bad, decoded.frame.to_dicts()) == ({}, [], rows)
