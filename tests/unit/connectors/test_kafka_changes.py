"""Topics of changes: what a record of an upsert topic, and an envelope of Debezium, takes back and adds."""

from __future__ import annotations

import base64
import json
import re
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import DecimalType, Pipeline, col, count, lit
from penstock.connectors import files, iterables, kafka
from penstock.connectors.change_rows import UNCHANGED
from penstock.connectors.kafka.decoding import Records
from penstock.connectors.kafka.encoding import KafkaEncoder
from penstock.connectors.kafka.limits import TopicLimits
from penstock.errors import PipelineError
from penstock.plan.operations.key_by import KeyBy
from penstock.plan.operations.materialize import Materialize
from penstock.plan.operations.read import Read
from penstock.plan.operations.to_changes import ToChanges
from penstock.testing import run_pipeline
from penstock.testing.harness import OperatorHarness
from penstock.types import (
    BOOLEAN,
    FLOAT32,
    FLOAT64,
    INT16,
    INT32,
    INT64,
    STRING,
    Field,
    ListType,
    Schema,
    schema_of,
)


@dataclass
class Account:
    account: str
    balance: float
    note: str | None = None


class Message:
    def __init__(self, key: bytes | None, value: bytes | None) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return 0


def records(*messages: tuple[bytes | None, bytes | None]) -> Records:
    found = Records(keep_messages=True)
    found.messages += [Message(*each) for each in messages]
    found.values += [value for _, value in messages]
    found.offsets += range(len(messages))
    return found


def decoded(source: kafka.ChangeSource[Any], *messages: tuple[bytes | None, bytes | None]):
    """The rows of the changes, and index and reason of what is bad."""
    found = source._decoder(None).decode(records(*messages))
    assert dict(found.frame.schema) == source.schema.polars()
    return found.frame.rows(), [(line.index, line.error) for line in found.bad]


# -- declarations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": "acount"}, "kafka.ChangeSource: key: there is no column 'acount'; did you mean 'account'"),
        ({"key": ()}, "key= names no column"),
        ({"key": ("account", "account")}, "names a column twice"),
        ({"key": "account", "format": "arrow"}, "there is no format='arrow'"),
        ({"key": "account", "before_images": True}, 'before_images= is for format="debezium"'),
        ({"key": "account", "format": "debezium", "key_format": "json"}, "leave key_format= out"),
        ({"key": ("account", "balance"), "key_format": "plain"}, 'write key_format="json"'),
        ({"key": ("account", "balance"), "key_format": "binary"}, 'write key_format="json"'),
        ({"key": "account", "key_format": "binary"}, "a binary key is a number of Java .*, not account: string"),
        ({"key": "account", "decimals": "precise"}, 'decimals= is for format="debezium" and columns of decimals'),
        ({"key": "account", "format": "debezium", "decimals": "string"}, "columns of decimals; leave it out"),
        ({"key": "account", "format": "raw"}, 'format="raw" puts the value into the only column'),
        ({"key": "account", "event_time": "at"}, "there is no argument event_time="),
        ({"key": "account", "start": "latest"}, "there is no argument start="),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_written(options, error):
    with pytest.raises(PipelineError, match=error):
        kafka.ChangeSource("t", schema=Account, **options)


def test_names_and_types_that_a_key_cannot_have():
    @dataclass
    class Odd:
        tags: str
        retracted: bool

    with pytest.raises(PipelineError, match="retracted says which changes take rows back"):
        kafka.ChangeSource("t", schema=Odd, key="tags")

    @dataclass
    class Listed:
        tags: list[str]
        n: int

    with pytest.raises(PipelineError, match=r"tags is list\[string\], which cannot be a key"):
        kafka.ChangeSource("t", schema=Listed, key="tags")

    @dataclass
    class Nested:
        account: Account
        n: int

    with pytest.raises(PipelineError, match=r"a plain key is one value, account: struct.*write key_format="):
        kafka.ChangeSource("t", schema=Nested, key="account")


def test_plans_show_the_key():
    assert kafka.ChangeSource("t", schema=Account, key="account").describe() == {
        "topic": "t", "format": "json", "key": ["account"],
    }  # fmt: skip
    debezium = kafka.ChangeSource("t", schema=Account, key="account", format="debezium", before_images=True)
    assert debezium.describe() == {"topic": "t", "format": "debezium", "key": ["account"], "before_images": True}
    keyed = kafka.ChangeSource("t", schema=Account, key="account", key_format="json")
    assert keyed.describe()["key_format"] == "json"


def test_reading_one_is_a_stream_of_changes():
    """With columns as they were declared; what was before is kept unless the topic has it."""
    stream = Pipeline("p").read(kafka.ChangeSource("t", schema=Account, key="account")).uid("accounts")
    assert [type(node.operation) for node in stream._pipeline.plan] == [Read, KeyBy, ToChanges]
    assert [node.uid for node in stream._pipeline.plan] == ["accounts-read", None, "accounts"]
    assert str(stream.schema) == "account: string, balance: float64, note: string or null, retracted: boolean"
    assert stream._node.mode == "retract"
    assert stream.changes()._node is stream._node
    whole = kafka.ChangeSource("t", schema=Account, key="account", format="debezium", before_images=True)
    stream = Pipeline("p").read(whole).uid("accounts")
    assert [(type(node.operation), node.mode, node.uid) for node in stream._pipeline.plan] == [
        (Read, "retract", "accounts")
    ]
    assert stream.schema == stream.filter(col("balance") > 0).schema
    stream.key_by(all=lit(1)).agg(n=count())


@pytest.mark.parametrize("before_images", [False, True])
def test_no_change_is_the_last_one_of_a_topic_that_has_no_end(before_images):
    """Even where the changes come from the source as they are, with no operation between."""
    source = kafka.ChangeSource("t", schema=Account, key="account", format="debezium", before_images=before_images)
    with pytest.raises(PipelineError, match=r"final: the kafka.* source .* has no end"):
        Pipeline("p").read(source).final()


def test_a_pipeline_is_tested_with_rows_that_say_what_they_do(tmp_path):
    """A dict per change; of a row that is no more, only the key."""
    p = Pipeline("p")
    accounts = p.read(kafka.ChangeSource("t", schema=Account, key="account"))
    accounts.key_by(all=lit(1)).agg(n=count(), total=col("balance").sum()).drop("all").write(files.Sink(str(tmp_path)))
    steps = [("a", 1.0, False), ("b", 2.0, False), ("a", None, True)]
    found = run_pipeline(p, [dict(zip(("account", "balance", "retracted"), step, strict=True)) for step in steps])
    assert [tuple(row.values()) for row in found] == [
        (1, 1.0, False), (1, 1.0, True), (2, 3.0, False), (2, 3.0, True), (1, 2.0, False),
    ]  # fmt: skip


def test_what_is_said_of_bad_records():
    stream = Pipeline("p").read(kafka.ChangeSource("t", schema=Account, key="account"))
    with pytest.raises(PipelineError, match="say bad_rows='dead_letter'"):
        stream.dead_letters()


# -- upsert topics ------------------------------------------------------------------------------------------------------


def test_the_newest_record_of_a_key_and_tombstones():
    """The key counts, whatever the value says; in order."""
    source = kafka.ChangeSource("t", schema=Account, key="account")
    rows, bad = decoded(
        source,
        (b"a", b'{"account":"a","balance":1.5,"note":"x"}'),
        (b"b", None),
        (b"c", b'{"balance":2}'),
        (b"d", b'{"account":"other","balance":3}'),
        (b"", b'{"balance":4}'),
    )
    assert rows == [
        ("a", 1.5, "x", False), ("b", None, None, True), ("c", 2.0, None, False), ("d", 3.0, None, False),
        ("", 4.0, None, False),
    ]  # fmt: skip
    assert bad == []


def test_bad_records_of_an_upsert_topic():
    """The others stay, in order."""
    source = kafka.ChangeSource("t", schema=Account, key="account")
    rows, bad = decoded(
        source,
        (None, b'{"balance":1}'),
        (b"a", b'{"balance":"x"}'),
        (None, None),
        (b"\xff", b'{"balance":1}'),
        (b"b", b'{"balance":7}'),
        (b"c", b"{}"),
        (b"d", b"null"),
        (b"e", b""),
        (b"f", None),
    )
    assert rows == [("b", 7.0, None, False), ("f", None, None, True)]
    assert [index for index, _ in bad] == [0, 1, 2, 3, 5, 6, 7]
    assert bad[0][1] == bad[2][1] == "the record has no key"
    assert bad[3][1].startswith(r"the record's key b'\xff': not UTF-8")
    assert decoded(source) == ([], [])
    assert decoded(source, (b"a", None)) == ([("a", None, None, True)], [])


@dataclass
class Wide:
    n: int
    day: date
    price: Annotated[Decimal, DecimalType(12, 2)]
    at: datetime
    flag: bool
    x: float
    raw: bytes
    text: str


WIDE = Wide(-7, date(2026, 1, 2), Decimal("1.50"), datetime(2026, 1, 2, 3, tzinfo=UTC), True, 0.1, b"\xff\x00", '"a",1')


def encoded(sink: kafka.Sink, cls: type[Any], *rows: Any) -> list[tuple[bytes | None, bytes | None]]:
    schema = schema_of(cls)
    frame = pl.DataFrame([[getattr(row, name) for name in schema.names] for row in rows], schema=schema.polars(),
                         orient="row")  # fmt: skip
    found = KafkaEncoder("t", schema, sink.shape, TopicLimits(1_000_000), "fail").encode(frame).frame
    return list(zip(found["key"], found["value"], strict=True))


@pytest.mark.parametrize("kind", ["json", "csv", "avro"])
@pytest.mark.parametrize("key", [*(name for name in Wide.__annotations__), ("n", "text", "at", "price", "raw")])
def test_keys_of_every_type_are_read_as_the_sink_writes_them(kind, key):
    if kind == "csv" and "raw" in (key, *key):
        key = "n"
    sink = kafka.Sink("t", key=key, delivery="upsert", format=kind)
    source = kafka.ChangeSource("t", key=key, schema=Wide, format=kind)
    rows, bad = decoded(source, *encoded(sink, Wide, WIDE))
    assert not bad
    assert rows == [(*vars(WIDE).values(), False)]


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1))
def test_keys_of_any_text_come_back(texts):
    @dataclass
    class Pair:
        a: str
        b: str

    for key in ("a", ("a", "b")):
        messages = encoded(kafka.Sink("t", key=key, delivery="upsert"), Pair, *(Pair(*each) for each in texts))
        rows, bad = decoded(kafka.ChangeSource("t", key=key, schema=Pair), *messages)
        assert not bad
        assert rows == [(*each, False) for each in texts]


def test_plain_keys_that_are_none():
    source = kafka.ChangeSource("t", schema=Wide, key="n")
    _, bad = decoded(source, *((key, None) for key in (b"1,2", b"x", b"", b'1,"day":3', b"1.5", b"null", b"1}")))
    assert [index for index, _ in bad] == [0, 1, 2, 3, 4, 5, 6]
    assert decoded(source, (b"3", None))[0][0][0] == 3


@pytest.mark.parametrize(
    ("kind", "layout"), [(INT16, ">h"), (INT32, ">i"), (INT64, ">q"), (FLOAT32, ">f"), (FLOAT64, ">d")]
)
def test_keys_that_serializers_of_java_write(kind, layout):
    """`b"12345678"` is eight bytes of a number too, where it is said that keys are numbers as bytes."""
    schema = Schema((Field("n", kind), Field("note", STRING)))
    source = kafka.ChangeSource("t", schema=schema, key="n", key_format="binary")
    numbers = [0, 1, -2, 12345]
    digits = b"12345678"[: struct.calcsize(layout)]
    keys = [*(struct.pack(layout, number) for number in numbers), digits]
    rows, bad = decoded(source, *((key, b'{"note":"x"}') for key in [*keys, b"1", b"123456789"]))
    assert rows == [(*struct.unpack(layout, key), "x", False) for key in keys]
    size = struct.calcsize(layout)
    assert bad == [
        (5, f"the record's key b'1': n is {kind}, which has {size} bytes"),
        (6, f"the record's key b'123456789': n is {kind}, which has {size} bytes"),
    ]


def test_a_key_that_java_wrote_is_named_where_text_is_looked_for():
    """And not the record's value."""
    source = kafka.ChangeSource("t", schema=Wide, key="n")
    _, [(_, error), (_, other)] = decoded(source, (struct.pack(">q", 7), b"{}"), (b"x" * 50, b"{}"))
    assert error.startswith(r"the record's key b'\x00\x00\x00\x00\x00\x00\x00\x07': no int64 as text (")
    assert error.endswith("""; if Java's serializers wrote it, write key_format="binary\"""")
    assert other.startswith(f"the record's key {b'x' * 40}...: no int64 as text")
    assert "binary" not in other


def test_an_object_as_key_of_one_column():
    source = kafka.ChangeSource("t", schema=Account, key="account", key_format="json")
    rows, bad = decoded(source, (b'{"account":"a"}', None), (b"a", None), (b'{"acc":1}', None))
    assert rows == [("a", None, None, True)]
    assert [index for index, _ in bad] == [1, 2]


def test_a_raw_value_beside_its_key():
    @dataclass
    class Raw:
        name: str
        data: bytes

    source = kafka.ChangeSource("t", schema=Raw, key="name", format="raw")
    assert decoded(source, (b"a", b"\xff"), (b"b", None)) == ([("a", b"\xff", False), ("b", None, True)], [])


def test_a_table_of_keys_alone():
    @dataclass
    class Name:
        name: str

    source = kafka.ChangeSource("t", schema=Name, key="name")
    assert decoded(source, (b"a", b"{}"), (b"b", None), (b"c", b'{"name":"c"}')) == (
        [("a", False), ("b", True), ("c", False)], [],
    )  # fmt: skip


# -- Debezium -----------------------------------------------------------------------------------------------------------

A1, A2 = {"account": "a", "balance": 1.0}, {"account": "a", "balance": 2.0, "note": "n"}


def event(op: str | None, before: Any = None, after: Any = None, *, wrapped: bool = False, **more: Any) -> bytes:
    found = {"before": before, "after": after, "source": {"db": "x"}, "op": op, "ts_ms": 1, **more}
    return json.dumps({"schema": {"type": "struct"}, "payload": found} if wrapped else found, indent=wrapped).encode()


def of_events(source, *events: bytes | None):
    return decoded(source, *((None, each) for each in events))


@pytest.mark.parametrize("wrapped", [False, True])
def test_events_by_key(wrapped):
    """An update replaces; a deleted row is known by its key; what is before an update is taken back first."""
    source = kafka.ChangeSource("t", schema=Account, key="account", format="debezium")
    rows, bad = of_events(
        source,
        event("r", None, A1, wrapped=wrapped),
        event("u", None, A2, wrapped=wrapped),
        event("d", {"account": "a"}, wrapped=wrapped),
        None,
        event("c", None, A1, wrapped=wrapped),
        event("u", A1, {"account": "b", "balance": 3}, wrapped=wrapped),
    )
    assert bad == []
    assert rows == [
        ("a", 1.0, None, False), ("a", 2.0, "n", False), ("a", None, None, True), ("a", 1.0, None, False),
        ("a", None, None, True), ("b", 3.0, None, False),
    ]  # fmt: skip


def test_events_with_the_former_rows():
    source = kafka.ChangeSource("t", schema=Account, key="account", format="debezium", before_images=True)
    rows, bad = of_events(source, event("c", None, A1), event("u", A1, A2), event("d", A2), None)
    assert bad == []
    assert rows == [("a", 1.0, None, False), ("a", 1.0, None, True), ("a", 2.0, "n", False), ("a", 2.0, "n", True)]


PRICED = Schema(
    (
        Field("id", INT64), Field("price", DecimalType(10, 2), nullable=True),
        Field("parts", ListType(DecimalType(10, 2)), nullable=True),
    )
)  # fmt: skip
_BYTES = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "3"}}


def precise(price: Decimal, scale: int) -> str:
    """As Debezium writes it: the fewest bytes of the unscaled number."""
    unscaled = int(price.scaleb(scale))
    return base64.b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()


def priced(*prices: Any, said: dict[str, Any] | None = None, **options: Any) -> tuple[list[Any], list[str]]:
    """The prices that are read, and what is wrong with others."""
    source = kafka.ChangeSource("t", schema=PRICED, key="id", format="debezium", **options)
    columns = [{"field": "id", "type": "int64"}, {"field": "price", **(said or {})}]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": columns}]}
    found = [{"op": "c", "before": None, "after": {"id": 1, "price": each}} for each in prices]
    events = [each if said is None else {"schema": schema, "payload": each} for each in found]
    rows, bad = of_events(source, *(json.dumps(each).encode() for each in events))
    return [price for _, price, *_ in rows], [error for _, error in bad]


@given(st.lists(st.decimals(-99_999_999, 99_999_999, places=2), min_size=1, max_size=5))
def test_decimals_in_every_mode_of_debezium(prices):
    """`AxY=` is 7.90, and `1234` is -26588.24 where texts are bytes."""
    prices = [Decimal("7.90"), Decimal("-26588.24"), Decimal("-0.01"), Decimal(0), *prices]
    digits = [str(price) for price in prices]
    cases = [
        ([precise(price, 2) for price in prices], {"decimals": "precise"}),
        ([precise(price, 3) for price in prices], {"said": _BYTES}),
        ([precise(price, 3) for price in prices], {"said": _BYTES, "decimals": "string"}),
        ([{"scale": 5, "value": precise(price, 5)} for price in prices], {}),
        (digits, {"decimals": "string"}),
        (digits, {"said": {"type": "string"}, "decimals": "precise"}),
        ([float(price) for price in prices], {"decimals": "precise"}),
        (["1234", "AxY=", "", "12.50"], {"said": {"type": "string"}}),
    ]
    for written, options in cases[:-1]:
        assert priced(*written, **options) == (prices, [])
    found, wrong = priced(*cases[-1][0], **cases[-1][1])
    assert found == [Decimal("1234.00"), Decimal("12.50")]
    assert len(wrong) == 2


def test_a_decimal_that_may_be_digits_or_bytes_is_not_guessed():
    prices, errors = priced("1234", "AxY=", "12.50", "-1", "12345", 1234, None)
    assert prices == [Decimal("12.50"), Decimal("-1.00"), Decimal("12345.00"), Decimal("1234.00"), None]
    assert len(errors) == 2
    assert all(error.startswith("price: a decimal as text, which may be digits or bytes; ") for error in errors)
    assert all('decimals="precise"' in error and "decimal.handling.mode=string" in error for error in errors)
    assert priced("1234", decimals="precise") == ([Decimal("-26588.24")], [])
    assert "no base64 of an unscaled number" in priced("12.5", decimals="precise")[1][0]
    assert "is bytes, and not that they are a decimal" in priced("AxY=", said={"type": "bytes"})[1][0]


def test_decimals_within_lists_and_former_rows():
    source = kafka.ChangeSource("t", schema=PRICED, key="id", format="debezium", decimals="precise", before_images=True)
    row = {"id": 1, "price": None, "parts": ["AxY=", "/w=="]}
    rows, bad = of_events(source, event("u", row, row))
    assert not bad
    parts = [Decimal("7.90"), Decimal("-0.01")]
    assert rows == [(1, None, parts, True), (1, None, parts, False)]


TOAST = "__debezium_unavailable_value"


@dataclass
class Paper:
    id: str
    title: str
    text: str | None = None
    scan: bytes | None = None
    tags: list[str] | None = None


def test_a_large_value_that_an_update_left_as_it_was_is_not_taken_for_one():
    """Of texts and bytes the kept row says what it is, and `before` if that has it; else the event is a bad one."""
    coded = base64.b64encode(TOAST.encode()).decode()
    row = {"id": "a", "title": "t", "text": "long", "scan": "QQ==", "tags": ["x"]}
    without = row | {"title": "u", "text": TOAST, "scan": coded}
    source = kafka.ChangeSource("t", schema=Paper, key="id", format="debezium", bad_rows="skip")
    rows, bad = of_events(
        source, event("c", None, row), event("u", None, without), event("u", row, without),
        event("u", {"id": "a"}, row | {"text": f"about {TOAST}"}),
        event("u", None, row | {"tags": [TOAST]}), event("c", None, without), event("u", {"id": "b"}, without),
    )  # fmt: skip
    kept = (UNCHANGED, UNCHANGED.encode())
    added = [each[1:4] for each in rows if not each[-1]]
    assert added == [
        ("t", "long", b"A"), ("u", *kept), ("u", "long", b"A"), ("t", f"about {TOAST}", b"A")
    ]  # fmt: skip
    assert [index for index, _ in bad] == [4, 5, 6]
    assert all("the event does not have this large value" in error for _, error in bad)
    whole = kafka.ChangeSource("t", schema=Paper, key="id", format="debezium", before_images=True, bad_rows="skip")
    rows, bad = of_events(whole, event("u", row, without), event("u", without, without))
    assert [each[2:4] for each in rows] == [("long", b"A"), ("long", b"A")]
    assert [index for index, _ in bad] == [1]


def test_a_large_value_of_an_unwrapped_row_is_not_taken_for_one():
    """As Debezium's ExtractNewRecordState leaves it in an upsert topic."""
    source = kafka.ChangeSource("t", schema=Paper, key="id")
    coded = base64.b64encode(TOAST.encode()).decode()
    rows, bad = decoded(source, (b"a", json.dumps({"title": "t", "text": TOAST, "scan": coded}).encode()))
    assert bad == []
    assert rows[0][:4] == ("a", "t", UNCHANGED, UNCHANGED.encode())


@pytest.mark.parametrize("together", [False, True])
def test_the_kept_row_has_what_an_update_left_as_it_was(tmp_path, together):
    """Also if it came in the same batch; without one it is null, and a row that must have it is left out."""
    p = Pipeline("p")
    papers = p.read(kafka.ChangeSource("t", schema=Paper, key="id"))
    papers.select("id", "title", "text", "scan", "retracted").write(files.Sink(str(tmp_path)))
    kept = {"text": UNCHANGED, "scan": UNCHANGED.encode(), "retracted": False}
    rows: list[dict[str, Any]] = [
        {"id": "a", "title": "1", "text": "long", "scan": b"A", "retracted": False},
        {"id": "a", "title": "2", **kept},
        {"id": "a", "title": "3", **kept, "scan": b"B"},
        {"id": "b", "title": "1", **kept},
        {"id": "c", **kept, "title": UNCHANGED},
        {"id": "a", "title": "4", **kept},
        {"id": "d", "title": "1", "text": "gone", "scan": None, "retracted": False},
        {"id": "d", "title": None, "text": None, "scan": None, "retracted": True},
        {"id": "d", "title": "2", "text": "new", "scan": None, "retracted": False},
        {"id": "d", "title": UNCHANGED, **kept},
    ]
    node = next(node for node in p.plan if isinstance(node.operation, ToChanges))
    harness = OperatorHarness(node)
    frame = pl.DataFrame([{"tags": None} | row for row in rows], schema=node.inputs[0].schema.polars())
    for part in [frame] if together else frame.iter_slices(1):
        harness.frame(part)
    held: dict[str, Any] = {}
    for row in harness.output():
        change = (row["title"], row["text"], row["scan"])
        if row["retracted"]:
            assert held.pop(row["id"]) == change
        else:
            held[row["id"]] = change
    assert held == {"a": ("4", "long", b"B"), "b": ("1", None, None), "d": ("2", "new", None)}
    assert sum(counted.lost_changes for counted in harness.metrics) == 1


@pytest.mark.parametrize("whole", [False, True])
def test_bad_events(whole):
    """A record is a change as a whole or not at all; the others stay in order."""
    source = kafka.ChangeSource("t", schema=Account, key="account", format="debezium", before_images=whole)
    cases = [
        (b"not json", "malformed"),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b"{}", "`op` is missing"),
        (event("t"), "op 't' is no change of a row"),
        (event("c", None, None), "has no `after`"),
        (event("d", None, None), "has no `before`"),
        (event("u", A1, {"account": "a"}), "after: balance: missing"),
        (event("u", {"balance": 1.0}, A1), "before: account: missing"),
        (event("c", None, {"account": 1, "balance": 1}), "after: Expected `str`"),
        (event("c", None, 7), "after: Expected `object`"),
        (b'{"schema":null,"payload":null}', "`op` is missing"),
        (b'{"op":1}', "Expected `str"),
        (b"\xff", "malformed|UTF-8|utf-8"),
        (b"[" * 100_000, ""),
        *([(event("u", None, A1), "has no `before`")] if whole else []),
    ]
    good = event("c", None, A2)
    rows, bad = of_events(source, *(each for value, _ in cases for each in (value, good)))
    assert rows == [("a", 2.0, "n", False)] * len(cases)
    assert [index for index, _ in bad] == list(range(0, 2 * len(cases), 2))
    for (_, error), (_, reason) in zip(cases, bad, strict=True):
        assert re.search(error, reason, re.IGNORECASE), (error, reason)
    assert of_events(source, *(value for value, _ in cases))[0] == []


# -- Debezium's events written ------------------------------------------------------------------------------------------

CHANGES = Schema((*schema_of(Account), Field("retracted", BOOLEAN)))


def events(sink: kafka.Sink, *rows: tuple[str, float, str | None, bool]) -> list[tuple[Any, Any]]:
    """Key and value of the records."""
    frame = pl.DataFrame(rows, schema=CHANGES.polars(), orient="row")
    encoder = KafkaEncoder("t", CHANGES, sink.of_changes().shape, TopicLimits(1_000_000), "fail")
    found = encoder.encode(frame).frame
    assert found.schema == sink.of_changes().encoded_schema(CHANGES).polars()
    return [(json.loads(key), json.loads(value)) for key, value in zip(found["key"], found["value"], strict=True)]


def test_changes_become_events():
    """What is taken back and replaced by the next row is one event."""
    sink = kafka.Sink("t", key="account", format="debezium")
    a1, a2 = {**A1, "note": None}, A2
    assert events(sink) == []
    assert events(
        sink, ("a", 1.0, None, False), ("b", 5.0, None, True), ("a", 1.0, None, True), ("a", 2.0, "n", False),
        ("a", 2.0, "n", True), ("b", 6.0, None, False),
    ) == [
        ({"account": "a"}, {"before": None, "after": a1, "op": "c"}),
        ({"account": "b"}, {"before": {"account": "b", "balance": 5.0, "note": None}, "after": None, "op": "d"}),
        ({"account": "a"}, {"before": a1, "after": a2, "op": "u"}),
        ({"account": "a"}, {"before": a2, "after": None, "op": "d"}),
        ({"account": "b"}, {"before": None, "after": {"account": "b", "balance": 6.0, "note": None}, "op": "c"}),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.text(max_size=2)), max_size=20), st.data())
def test_events_are_read_as_what_was_written(updates, data):
    """By their former rows, and by their keys, whatever batches the changes come in."""
    held: dict[str, tuple[str, float, str | None]] = {}
    rows: list[tuple[str, float, str | None, bool]] = []
    for key, balance, note in updates:
        if key in held:
            rows.append((*held.pop(key), True))
        if balance:
            held[key] = (key, float(balance), note)
            rows.append((*held[key], False))
    sink, written = kafka.Sink("t", key="account", format="debezium"), list[bytes]()
    begin = 0
    while begin < len(rows):
        end = data.draw(st.integers(begin + 1, len(rows)))
        written += [json.dumps(value).encode() for _, value in events(sink, *rows[begin:end])]
        begin = end
    source = kafka.ChangeSource("t", schema=Account, key="account", format="debezium", before_images=True)
    assert of_events(source, *written) == (rows, [])
    by_key: dict[str, Any] = {}
    source = kafka.ChangeSource("t", schema=Account, key="account", format="debezium")
    for key, balance, note, retracted in of_events(source, *written)[0]:
        by_key.pop(key, None)
        if not retracted:
            by_key[key] = (key, balance, note)
    assert by_key == held


def test_facts_and_updates_as_events():
    """A row that is only added is an insert; of updates, changes are made first."""
    p = Pipeline("p")
    rows = p.read(iterables.Source([Account("a", 1.0)]))
    rows.write(kafka.Sink("facts", format="debezium"))
    last = rows.key_by("account").deduplicate("last")
    written = last.write(kafka.Sink("updates", key="account", format="debezium"))
    assert isinstance(written._node.inputs[0].operation, ToChanges)
    with pytest.raises(PipelineError, match=r'key=\.\.\., format="debezium"'):
        last.write(kafka.Sink("t", format="debezium"))
    by_note = last.write(kafka.Sink("notes", key="note", format="debezium"))
    assert isinstance(by_note._node.inputs[0].operation, Materialize)
    with pytest.raises(PipelineError, match="leave one out"):
        kafka.Sink("t", key="account", delivery="upsert", format="debezium")
    frame = pl.DataFrame([("a", 1.0, None)], schema=schema_of(Account).polars(), orient="row")
    shape = kafka.Sink("t", format="debezium").shape
    found = KafkaEncoder("t", schema_of(Account), shape, TopicLimits(1_000), "fail").encode(frame).frame
    assert found["value"].to_list() == [b'{"before":null,"after":{"account":"a","balance":1.0,"note":null},"op":"c"}']
