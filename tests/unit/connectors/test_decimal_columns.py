"""Columns of decimals: declared, decoded, encoded, in rows as `decimal.Decimal`, as keys and in state."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Annotated, Any

import fastavro
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    Accumulator,
    DecimalType,
    KeyedContext,
    KeyedProcess,
    MapState,
    Pipeline,
    PipelineError,
    ValueState,
    aggregate,
    col,
    count,
    lag,
    tumbling,
)
from penstock.connectors import collecting, files, iterables
from penstock.connectors.kafka.encoding import KafkaEncoder, RecordShape
from penstock.connectors.kafka.limits import TopicLimits
from penstock.core.decimals import of_units, rounded_units, units_of
from penstock.errors import UserCodeError
from penstock.formats.avro import avro_schema, encode_avro
from penstock.formats.columns import FrameBuilder
from penstock.formats.csv_decoding import CsvDecoder
from penstock.formats.decoding import JsonDecoder
from penstock.formats.encoding import encode_csv, encode_jsonl
from penstock.formats.schema_matching import SchemaMatcher
from penstock.spark.wire import wire_type
from penstock.task.rows import RowReader, RowWriter
from penstock.testing import run_pipeline
from penstock.testing.harness import OperatorHarness
from penstock.types import (
    Field,
    ListType,
    Schema,
    StructType,
    arrow_type,
    of_arrow,
    polars_type,
    row_class,
    schema_of,
    type_from_json,
    type_to_json,
)

D = Decimal
Price = Annotated[Decimal, DecimalType(12, 2)]


@dataclass
class Part:
    """A nested row."""

    tax: Annotated[Decimal | None, DecimalType(5, 4)]


@dataclass
class Sale:
    """A row with decimals everywhere."""

    price: Price
    note: str
    large: Annotated[Decimal, DecimalType(38, 0)] | None
    parts: list[Price]
    part: Part | None


SCHEMA = schema_of(Sale)
ROWS = [
    Sale(D("0.10"), "decimal:0:1.10", D("9" * 38), [D("1.00"), D("2.50")], Part(D("0.1900"))),
    Sale(D("-1.10"), '"decimal:1:', None, [], None),
    Sale(D("9999999999.99"), "", D(0), [D("0.00")], Part(None)),
]
FRAME = RowWriter(SCHEMA, Sale).frame(ROWS)
FLAT = SCHEMA.select(["price", "note", "large"])


def test_declarations_have_digits() -> None:
    """And travel, whole and within lists and structs, to Arrow, Polars, classes of rows and Spark's wire."""
    kinds = [field.type for field in SCHEMA]
    assert kinds[0] == DecimalType(12, 2)
    assert kinds[3] == ListType(DecimalType(12, 2))
    assert kinds[4] == StructType((Field("tax", DecimalType(5, 4), nullable=True),))
    assert SCHEMA.field("large").nullable
    assert schema_of(row_class(SCHEMA)) == SCHEMA
    for kind in kinds:
        assert type_from_json(json.loads(json.dumps(type_to_json(kind)))) == kind
    kind = DecimalType(12, 2)
    assert of_arrow(arrow_type(kind), "x") == kind
    assert of_arrow(pa.decimal32(5, 4), "x") == DecimalType(5, 4)
    assert pl.Series([D(1)], dtype=polars_type(kind)).to_arrow().type == wire_type(kind) == arrow_type(kind)


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        (Decimal, r"is no column type; .*; write Annotated\[Decimal, DecimalType\(12, 2\)\]: how many digits in all"),
        (Annotated[float, DecimalType(12, 2)], r"decimal\(12, 2\) is a Decimal, not <class 'float'>"),
        (list[Decimal], r"write Annotated\[Decimal, DecimalType\(12, 2\)\]"),
    ],
)
def test_a_decimal_without_digits_is_refused(hint: Any, reason: str) -> None:
    """Engines disagree about what it is."""
    wrong = type("Wrong", (), {"__annotations__": {"x": hint}})
    with pytest.raises(PipelineError, match=rf"schema: Wrong\.x: .*{reason}"):
        schema_of(dataclass(wrong))


def test_rows_have_decimals() -> None:
    """With all digits of the column, there and back."""
    assert RowReader(SCHEMA, Sale).rows(FRAME) == ROWS
    assert [str(row.price) for row in RowReader(SCHEMA, Sale).rows(FRAME)] == ["0.10", "-1.10", "9999999999.99"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (D("1.105"), "more than 2 digits behind the point; round it, or declare more digits"),
        (D("1E+10"), "more than 10 digits before the point; declare more digits"),
        (D("NaN"), "only numbers fit; write None"),
        (1.5, "write a Decimal"),
        ("1.5", "write a Decimal"),
        (True, "write a Decimal"),
        (None, "declare it as '... | None'"),
    ],
)
def test_a_returned_value_that_does_not_fit_is_named(value: Any, reason: str) -> None:
    """Nothing is rounded without a word."""
    with pytest.raises(UserCodeError, match=rf"map: f: column 'price' is decimal\(12, 2\), got .*{reason}"):
        RowWriter(SCHEMA.select(["price"]), where="map: f").frame([{"price": value}])


def test_a_returned_value_may_be_written_otherwise() -> None:
    """As an int, or with more or fewer zeros."""
    frame = RowWriter(SCHEMA.select(["price"])).frame(
        [{"price": value} for value in (5, D("1E+2"), D("0.5000"), D("-0"))]
    )
    assert [str(value) for value in frame["price"]] == ["5.00", "100.00", "0.50", "0.00"]


def test_json_is_read_digit_by_digit() -> None:
    """From numbers and texts."""
    lines = b"""
{"price": 0.1, "note": "", "large": 12345678901234567890123456789012345678, "parts": [1, "2.5"], "part": {"tax": 1e-4}}
{"price": "1.10", "note": "", "parts": []}
"""
    decoded = JsonDecoder(SCHEMA).decode(lines)
    assert not decoded.bad
    rows = decoded.frame.rows(named=True)
    assert rows[0]["price"] == D("0.1")
    assert rows[0]["large"] == D("12345678901234567890123456789012345678")
    assert rows[0]["parts"] == [D(1), D("2.5")]
    assert rows[0]["part"] == {"tax": D("0.0001")}
    assert rows[1]["price"] == D("1.10")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (
            "1.105",
            "price: 1.105 does not fit into decimal(12, 2); it has more than 2 digits behind the point; round it",
        ),
        ("12345678901", "price: 12345678901 does not fit into decimal(12, 2); it has more than 10 digits before"),
        ("1e999999999", "price: 1E+999999999 does not fit into decimal(12, 2)"),
        ("1e-999999999", "price: 1E-999999999 does not fit into decimal(12, 2)"),
        (f"0.{'1' * 5_000}", "price: 0.111"),
        ('"NaN"', "price: NaN does not fit into decimal(12, 2); only numbers fit"),
        ('"x"', "Invalid decimal string - at `$.price`"),
        ("true", "Expected `decimal`, got `bool` - at `$.price`"),
        ("null", "price: missing"),
    ],
)
def test_what_is_no_decimal_of_the_column_makes_a_record_bad(value: str, reason: str) -> None:
    """And says why."""
    decoded = JsonDecoder(schema_of(Sale).select(["price"])).decode(f'{{"price": {value}}}\n{{"price": 7}}\n'.encode())
    assert decoded.frame["price"].to_list() == [D(7)]
    assert [bad.error[: len(reason)] for bad in decoded.bad] == [reason]


def test_json_is_written_as_numbers() -> None:
    """With all digits, whatever texts stand beside them, and is read again as it was."""
    lines = encode_jsonl(FRAME, SCHEMA)
    assert lines.splitlines()[0] == (
        b'{"price":0.10,"note":"decimal:0:1.10","large":99999999999999999999999999999999999999,"parts":[1.00,2.50],'
        b'"part":{"tax":0.1900}}'
    )
    assert JsonDecoder(SCHEMA).decode(lines).frame.equals(FRAME)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.text('decimal:01".-', max_size=14), st.integers(-(10**12) + 1, 10**12 - 1)), max_size=4))
def test_texts_that_look_like_decimals_stay_texts(values: list[tuple[str, int]]) -> None:
    """Whatever marks the writer uses."""
    rows = [{"price": of_units(units, 2), "note": note, "large": None} for note, units in values]
    frame = RowWriter(FLAT).frame(rows)
    lines = encode_jsonl(frame, FLAT)
    assert JsonDecoder(FLAT).decode(lines).frame.equals(frame)
    read = [json.loads(line, parse_float=D) for line in lines.splitlines()]
    assert [(row["note"], row["price"]) for row in read] == [(row["note"], row["price"]) for row in rows]


def test_numbers_of_any_length_are_judged() -> None:
    """Python's int does not read more than 4,300 digits."""
    long = "1" * 5_000
    decoded = CsvDecoder(FLAT, FLAT.names, "a.csv").decode(f"0.{long},,\n{long},,\n1.{'0' * 5_000},,\n".encode())
    assert decoded.frame["price"].to_list() == [D(1)]
    assert len(decoded.bad) == 2
    assert rounded_units(D(f"0.{long}"), 12, 2) == 11


def test_csv() -> None:
    """With all digits; what does not fit makes the record bad."""
    flat = FRAME.select(FLAT.names)
    table = encode_csv(flat, FLAT, header=False)
    assert CsvDecoder(FLAT, FLAT.names, "a.csv").decode(table).frame.equals(flat)
    decoded = CsvDecoder(FLAT, FLAT.names, "a.csv").decode(
        b"1.105,a,\n1e2,b,\n1.1,c,x\n 1,d,\n,e,\n1.10,f,0.5\n+7,g,3.0\n"
    )
    assert decoded.frame["price"].to_list() == [D(100), D(7)]
    assert [bad.error for bad in decoded.bad] == [
        "price: expected decimal(12, 2), got '1.105'; it has more than 2 digits behind the point; round it, or declare "
        "more digits",
        "large: expected decimal(38, 0), got 'x'",
        "price: expected decimal(12, 2), got ' 1'",
        "price: missing; declare it as '... | None' if it may be (the event time never may)",
        "large: expected decimal(38, 0), got '0.5'; it has more than 0 digits behind the point; round it, or declare "
        "more digits",
    ]


def test_avro_has_the_logical_type() -> None:
    """Of bytes, with precision and scale."""
    described = avro_schema(SCHEMA)
    assert described["fields"][0]["type"] == {
        "type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2,
    }  # fmt: skip
    parsed = fastavro.parse_schema(described)
    read = [fastavro.schemaless_reader(io.BytesIO(datum), parsed, None) for datum in encode_avro(FRAME, SCHEMA)]
    assert read == FRAME.rows(named=True)


def test_typed_columns_may_have_fewer_digits(tmp_path) -> None:
    """Behind the point; more are refused, and numbers that do not fit make rows bad."""
    schema = SCHEMA.select(["price"])
    found = pa.record_batch({"price": pa.array([D("1.5"), D("99999999999.5")], pa.decimal128(13, 1))})
    frame, bad = SchemaMatcher(schema, found.schema, "a.parquet").frame(found)
    assert frame["price"].to_list() == [D("1.50")]
    assert [(row, reason) for row, reason, _ in bad] == [(1, "price: 99999999999.5 does not fit into decimal(12, 2)")]
    with pytest.raises(PipelineError, match=r"holds decimal\(13, 3\), but the schema declares decimal\(12, 2\)"):
        SchemaMatcher(schema, pa.schema({"price": pa.decimal128(13, 3)}), "a.parquet")
    with pytest.raises(PipelineError, match=r"holds float64, but the schema declares decimal\(12, 2\)"):
        SchemaMatcher(schema, pa.schema({"price": pa.float64()}), "a.parquet")


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl", "csv"])
def test_files_hold_decimals(form: Any, tmp_path) -> None:
    """Written by a sink and read again by a source."""
    schema = SCHEMA if form != "csv" else FLAT
    made = Pipeline("write")
    made.read(iterables.Source(ROWS)).select(*schema.names).write(files.Sink(str(tmp_path / "out"), format=form))
    assert made.run().state == "FINISHED"
    again = Pipeline("read")
    declared: Any = schema.arrow()
    read = again.read(files.Source(str(tmp_path / "out" / "*"), format=form, schema=declared)).collect()
    wanted = FRAME.select(schema.names).rows()
    assert sorted(map(repr, read.rows())) == sorted(map(repr, wanted))
    if form == "parquet":
        [part] = (tmp_path / "out").glob("part-*")
        assert pq.read_schema(part).field("price").type == pa.decimal128(12, 2)


def test_kafka_records() -> None:
    """Values are JSON, keys the text of the number."""
    encoder = KafkaEncoder("kafka", FLAT, RecordShape("json", key=("price",)), TopicLimits(10**6), "fail")
    records = encoder.encode(FRAME.select(FLAT.names)).frame
    assert records["key"].to_list() == [b"0.10", b"-1.10", b"9999999999.99"]
    assert records["value"][1] == b'{"price":-1.10,"note":"\\"decimal:1:","large":null}'
    nested = KafkaEncoder("kafka", SCHEMA, RecordShape("json", key=("part", "price")), TopicLimits(10**6), "fail")
    assert nested.encode(FRAME).frame["key"][0] == b'{"part":{"tax":0.1900},"price":0.10}'
    alone = KafkaEncoder("kafka", SCHEMA, RecordShape("json", key=("parts",)), TopicLimits(10**6), "fail")
    assert alone.encode(FRAME).frame["key"][0] == b"[1.00,2.50]"


# -- pipelines ----------------------------------------------------------------------------------------------------------


@dataclass
class Bid:
    """Money that was offered for something at some time."""

    price: Annotated[Decimal, DecimalType(12, 2)]
    item: str
    at: datetime


@dataclass
class Total:
    """What was offered."""

    price: Annotated[Decimal, DecimalType(12, 2)]
    total: Annotated[Decimal, DecimalType(20, 2)]


START = datetime(2026, 1, 1, tzinfo=UTC)
BIDS = [Bid(D(number % 4) / 10, "ab"[number % 2], START + timedelta(seconds=number)) for number in range(12)]


class Sum(KeyedProcess[Bid, Total]):
    """The sum per price, and how often each item was there."""

    total = ValueState(Decimal)
    seen = MapState(str, Decimal)

    def on_row(self, row: Bid, ctx: KeyedContext[Total]) -> None:
        self.total.set(self.total.get(D(0)) + row.price)
        self.seen.set(row.item, self.seen.get(row.item, D(0)) + 1)
        ctx.emit(Total(row.price, self.total.get(D(0))))


def test_pipelines_compute_with_decimals() -> None:
    """Keys, windows, sums, functions of rows."""
    made = Pipeline("bids")
    read = made.read(iterables.Source([], schema=Bid, event_time="at"))
    doubled = read.map(twice).filter(col("price") > D("0.1"))
    windows = (
        doubled.key_by("price")
        .window(tumbling("6s"))
        .agg(total=col("price").sum(), mean=col("price").mean(), n=count())
    )
    windows.select("price", "total", "mean", "n").write(collecting.Sink())
    got = run_pipeline(made, BIDS)
    expected = []
    for begin in (0, 6):
        rows = [bid.price * 2 for bid in BIDS[begin : begin + 6] if bid.price]
        for price in sorted(set(rows)):
            n = rows.count(price)
            expected.append({"price": price, "total": price * n, "mean": price, "n": n})
    assert sorted(got, key=repr) == sorted(expected, key=repr)
    assert {str(row["price"]) for row in got} == {"0.20", "0.40", "0.60"}


def twice(bid: Bid) -> Bid:
    """Double."""
    return Bid(bid.price * 2, bid.item, bid.at)


class Added(Accumulator[Decimal, Decimal]):
    """A sum written by a user."""

    accumulator_type = Decimal

    def create(self) -> Decimal:
        return D(0)

    def add(self, accumulator: Decimal, price: Decimal) -> Decimal:
        return accumulator + price

    def merge(self, left: Decimal, right: Decimal) -> Decimal:
        return left + right

    def result(self, accumulator: Decimal) -> Annotated[Decimal, DecimalType(20, 2)]:
        return accumulator


def test_every_verb_takes_decimals() -> None:
    """Order, rows beside rows, users' own aggregates, rows that came before."""
    prices = [bid.price for bid in BIDS]
    read = Pipeline("bids").read(iterables.Source(BIDS, event_time="at"))
    top = read.key_by("item").top(1, by=col("price")).final().select("price").collect().rows()
    assert sorted(top) == [(D("0.2"),), (D("0.3"),)]
    summed = read.key_by("item").agg(own=aggregate(Added(), "price"), ours=col("price").sum()).final().collect().rows()
    assert {(own, ours) for _, own, ours in summed} == {(D("0.6"), D("0.6")), (D("1.2"), D("1.2"))}
    beside = read.key_by("item").over(rows=2).with_columns(two=col("price").sum(), was=lag("price", default=D("0.0")))
    got = sorted((row["at"], row["two"], row["was"]) for row in beside.collect().rows(named=True))
    was = [D(0), D(0), *prices]
    assert [row[1:] for row in got] == [(price + old, old) for price, old in zip(prices, was, strict=False)]
    assert sorted(read.distinct("price").select("price").collect().rows()) == [
        (price,) for price in sorted(set(prices))
    ]


@pytest.mark.parametrize("make", [lambda: (3, 1), lambda: (1, 3)])
def test_state_with_decimals_is_restored(make: Callable[[], tuple[int, int]]) -> None:
    """As values and as keys, at another parallelism."""
    before, after = make()
    first = OperatorHarness.of_process(Sum(), Bid, keys=["price"], parallelism=before)
    first.rows(*BIDS[:7])
    second = OperatorHarness.of_process(Sum(), Bid, keys=["price"], parallelism=after, restored=first.snapshot())
    second.rows(*BIDS[7:])
    got = [(row["price"], row["total"]) for row in (*first.output(), *second.output())]
    totals: dict[Decimal, Decimal] = {}
    expected = []
    for bid in BIDS:
        totals[bid.price] = totals.get(bid.price, D(0)) + bid.price
        expected.append((bid.price, totals[bid.price]))
    assert sorted(got) == sorted(expected)


# -- numbers of units ---------------------------------------------------------------------------------------------------


WRITTEN = st.builds(
    lambda whole, zeros, exponent: Decimal(f"{whole}{'0' * zeros}e{exponent}"),
    st.integers(-(10**40), 10**40) | st.integers(-99, 99),
    st.integers(0, 60),
    st.integers(-90, 40) | st.sampled_from([-999_999_999, 999_999_999]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(WRITTEN, min_size=1, max_size=3), st.integers(1, 38), st.data())
def test_columns_are_made_exactly_or_not_at_all(values: list[Decimal], precision: int, data: st.DataObject) -> None:
    """From Python's decimals and from texts, with any zeros and exponents: Arrow alone would wrap around, or crash."""
    kind = DecimalType(precision, data.draw(st.integers(0, precision)))
    field = Field("x", kind)
    expected = [units_of(value, kind.precision, kind.scale) for value in values]
    texts = [str(value) if data.draw(st.booleans()) or abs(value.adjusted()) > 99 else f"{value:f}" for value in values]
    decoded = CsvDecoder(Schema((field,)), ["x"], "a.csv").decode("".join(f"{text}\n" for text in texts).encode())
    assert decoded.frame["x"].to_physical().to_list() == [units for units in expected if units is not None]
    frame, bad = FrameBuilder(Schema((field,))).frame([values])
    assert frame["x"].to_physical().to_list() == [units for units in expected if units is not None]
    assert len(bad) == len(decoded.bad) == expected.count(None)
    for value, units in zip(values, expected, strict=True):
        if units is None:
            with pytest.raises(UserCodeError, match=r"behind the point|before the point"):
                RowWriter(Schema((field,))).frame([{"x": value}])
        else:
            assert RowWriter(Schema((field,))).frame([{"x": value}])["x"].to_physical().to_list() == [units]


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(1, 38), st.data())
def test_units_are_exact(value: Decimal, precision: int, data: st.DataObject) -> None:
    """As a context of many digits rounds, or not."""
    scale = data.draw(st.integers(0, precision))
    if abs(value.adjusted()) > 500:
        assert units_of(value, precision, scale) is None or not value
        return
    with localcontext() as context:
        context.prec, context.rounding = 2_000, "ROUND_HALF_UP"
        whole = value.scaleb(scale)
        rounded = int(whole.to_integral_value())
        fits = abs(rounded) < 10**precision
        assert rounded_units(value, precision, scale) == (rounded if fits else None)
        assert units_of(value, precision, scale) == (rounded if fits and rounded == whole else None)
