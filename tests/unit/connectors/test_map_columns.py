"""Columns of maps: declared, decoded, encoded, in rows as dicts, looked into by expressions, and what they cannot be."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import fastavro
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    DecimalType,
    KeyedContext,
    KeyedProcess,
    Pipeline,
    PipelineError,
    ValueState,
    col,
    count,
    tumbling,
)
from penstock.connectors import collecting, files, iterables
from penstock.connectors.kafka.encoding import KafkaEncoder, RecordShape
from penstock.connectors.kafka.limits import TopicLimits
from penstock.errors import UserCodeError
from penstock.expressions import to_polars
from penstock.formats.avro import avro_schema, encode_avro
from penstock.formats.csv_decoding import CsvDecoder
from penstock.formats.decoding import JsonDecoder
from penstock.formats.encoding import encode_jsonl
from penstock.formats.schema_matching import SchemaMatcher
from penstock.spark.wire import wire_type
from penstock.task.rows import RowReader, RowWriter
from penstock.testing import run_pipeline
from penstock.testing.harness import OperatorHarness
from penstock.types import (
    INT64,
    STRING,
    MapType,
    arrow_type,
    of_arrow,
    polars_type,
    row_class,
    schema_of,
    type_from_json,
    type_to_json,
)

AT = datetime(2026, 1, 1, 10, tzinfo=UTC)


@dataclass
class Part:
    """A nested row."""

    at: datetime
    price: Annotated[Decimal, DecimalType(6, 2)]


@dataclass
class Event:
    """A row with maps of all kinds of values."""

    key: str
    labels: dict[str, str]
    counts: dict[str, int] | None
    parts: dict[str, Part]
    deep: dict[str, dict[str, list[timedelta]]]


SCHEMA = schema_of(Event)
ROWS = [
    Event("a", {"env": "prod", "zone": "b"}, {"n": 1, "none": None}, {}, {}),  # pyright: ignore[reportArgumentType]
    Event("b", {}, None, {"x y": Part(AT, Decimal("1.10"))}, {"a": {"b": [timedelta(seconds=1)], "c": []}}),
]
FRAME = RowWriter(SCHEMA, Event).frame(ROWS)


def test_declarations_travel() -> None:
    """To JSON, Arrow, Polars, classes of rows and Spark's wire and back."""
    assert SCHEMA.field("labels").type == MapType(STRING)
    assert SCHEMA.field("counts").nullable
    assert str(SCHEMA.field("counts").type) == "map[string, int64]"
    assert schema_of(row_class(SCHEMA)) == SCHEMA
    for field in SCHEMA:
        kind = field.type
        assert type_from_json(json.loads(json.dumps(type_to_json(kind)))) == kind
        assert of_arrow(arrow_type(kind), "x") == kind
        column = FRAME[field.name]
        assert column.dtype == polars_type(kind)
        there: Any = column.to_arrow()
        assert pl.from_arrow(there.cast(wire_type(kind)).cast(arrow_type(kind))).to_list() == column.to_list()


@pytest.mark.parametrize(
    ("hint", "reason"),
    [(dict[int, str], "keys are text"), (dict, "keys are text"), (dict[str, set[int]], r"write list\[...\]")],
)
def test_other_maps_are_refused(hint: Any, reason: str) -> None:
    """When the schema is declared."""
    with pytest.raises(PipelineError, match=rf"Wrong\.x: .* is no column type; .*{reason}"):
        schema_of(dataclass(type("Wrong", (), {"__annotations__": {"x": hint}})))
    with pytest.raises(PipelineError, match="x: the keys of a map are text, not int64"):
        of_arrow(pa.map_(pa.int64(), pa.string()), "x")


def test_rows_have_dicts() -> None:
    """With values of the user's classes, in the order of the data."""
    assert RowReader(SCHEMA, Event).rows(FRAME) == ROWS
    assert list(RowReader(SCHEMA, Event).rows(FRAME)[0].labels) == ["env", "zone"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([("a", 1)], "write a dict whose keys are text"),
        ({1: 1}, "write a dict whose keys are text"),
        ({"a": "x"}, "got 'x'"),
        ({"a": 2**63}, "which does not fit"),
    ],
)
def test_a_returned_value_that_does_not_fit_is_named(value: Any, reason: str) -> None:
    """As of any other column."""
    with pytest.raises(UserCodeError, match=rf"map: f: column '\w+' is .*{reason}"):
        RowWriter(SCHEMA.select(["counts"]), where="map: f").frame([{"counts": value}])


def test_json_objects_are_maps() -> None:
    """There and back, whatever the values are; what does not fit makes the record bad."""
    lines = encode_jsonl(FRAME, SCHEMA)
    assert lines.splitlines()[1] == (
        b'{"key":"b","labels":{},"counts":null,"parts":{"x y":{"at":"2026-01-01T10:00:00Z","price":1.10}},'
        b'"deep":{"a":{"b":["PT1S"],"c":[]}}}'
    )
    assert JsonDecoder(SCHEMA).decode(lines).frame.equals(FRAME)
    bad = JsonDecoder(SCHEMA.select(["labels"])).decode(
        b'{"labels": {"a": 1}}\n{"labels": [1]}\n{"labels": {"b": "x"}}\n'
    )
    assert bad.frame["labels"].to_list() == [{"b": "x"}]
    assert [line.error for line in bad.bad] == [
        "Expected `str | null`, got `int` - at `$.labels[...]`", "Expected `object`, got `array` - at `$.labels`",
    ]  # fmt: skip
    part = JsonDecoder(SCHEMA.select(["parts"])).decode(
        b'{"parts": {"a": {"at": "2026-01-01T00:00:00Z", "price": 0.001}}}\n'
    )
    assert "parts['a'].price: 0.001 does not fit into decimal(6, 2)" in part.bad[0].error


def test_other_formats(tmp_path) -> None:
    """Avro has maps, CSV has not, typed files match them by their values."""
    parsed = fastavro.parse_schema(avro_schema(SCHEMA))
    read = [fastavro.schemaless_reader(io.BytesIO(datum), parsed, None) for datum in encode_avro(FRAME, SCHEMA)]
    assert [row["labels"] for row in read] == [row.labels for row in ROWS]
    assert read[1]["parts"] == {"x y": {"at": AT, "price": Decimal("1.10")}}
    assert read[1]["deep"] == {"a": {"b": [1_000_000], "c": []}}
    with pytest.raises(
        PipelineError, match=r"column 'labels' is a map\[string, string\], which CSV cannot hold; use jsonl"
    ):
        CsvDecoder(SCHEMA, SCHEMA.names, "a.csv")
    found = pa.record_batch({"counts": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))})
    frame, bad = SchemaMatcher(SCHEMA.select(["counts"]), found.schema, "a.parquet").frame(found)
    assert frame["counts"].to_list() == [{"a": 1}]
    assert not bad
    with pytest.raises(
        PipelineError, match=r"holds map\[string, int32\], but the schema declares map\[string, string\]"
    ):
        SchemaMatcher(SCHEMA.select(["labels"]), pa.schema({"labels": found.schema.field(0).type}), "a.parquet")
    encoder = KafkaEncoder("kafka", SCHEMA, RecordShape("json", key=("labels",)), TopicLimits(10**6), "fail")
    assert encoder.encode(FRAME).frame["key"].to_list() == [b'{"env":"prod","zone":"b"}', b"{}"]


TWICE = pa.array([[("a", 1), ("b", 5), ("a", 2)], None], pa.map_(pa.string(), pa.int64()))


def test_a_key_that_is_there_twice_has_its_last_value() -> None:
    """Arrow takes such maps: in files, deep within them, and from functions of batches."""
    schema = schema_of(Deep)
    found = pa.record_batch(
        {"m": TWICE, "q": pa.array([[{"m": TWICE[0]}], None], pa.list_(pa.struct({"m": TWICE.type})))}
    )
    frame, bad = SchemaMatcher(schema, found.schema, "a.parquet").frame(found)
    assert not bad
    looked = frame.select(a=to_polars(col("m").map.get("a"), schema), n=to_polars(col("m").map.len(), schema))
    assert looked.rows() == [(2, 2), (None, None)]
    assert frame["q"].list.first().struct.field("m").map.len().to_list() == [2, None]
    read = Pipeline("batches").read(iterables.Source([Looked({}, "a"), Looked({}, "b")]))
    made = read.map_batches(twice, returns=Looked).select(a=col("m").map.get("a"), n=col("m").map.len())
    assert made.collect().rows() == [(2, 2), (None, None)]


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Maps in which a key is there twice."""
    return pa.record_batch({"m": TWICE, "k": batch.column("k")})


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl"])
def test_files_hold_maps(form: Any, tmp_path) -> None:
    """Written by a sink and read again by a source."""
    made = Pipeline("write")
    made.read(iterables.Source(ROWS)).write(files.Sink(str(tmp_path / "out"), format=form))
    assert made.run().state == "FINISHED"
    read = Pipeline("read").read(files.Source(str(tmp_path / "out" / "*"), format=form, schema=Event)).collect()
    assert sorted(map(repr, read.rows())) == sorted(map(repr, FRAME.rows()))
    if form == "parquet":
        [part] = (tmp_path / "out").glob("part-*")
        assert pa.types.is_map(pq.read_schema(part).field("labels").type)


# -- expressions --------------------------------------------------------------------------------------------------------

MAPS = st.none() | st.dictionaries(st.text("ab", max_size=2), st.none() | st.integers(-9, 9), max_size=4)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(MAPS, st.text("ab", max_size=2)), max_size=6))
def test_expressions_look_into_maps(rows: list[tuple[dict[str, int | None] | None, str]]) -> None:
    """As into dicts."""
    schema = schema_of(Looked)
    frame = pl.DataFrame(
        [
            pl.Series("m", [found for found, _ in rows], polars_type(MapType(INT64))),
            pl.Series("k", [key for _, key in rows], pl.String),
        ]
    )

    def values(expr: Any) -> list[Any]:
        return frame.select(to_polars(expr, schema).alias("x"))["x"].to_list()

    maps = [found for found, _ in rows]
    assert values(col("m").map.get("a")) == [None if found is None else found.get("a") for found in maps]
    assert values(col("m").map.get(col("k"))) == [None if found is None else found.get(key) for found, key in rows]
    assert values(col("m").map.contains("a")) == [None if found is None else "a" in found for found in maps]
    assert values(col("m").map.contains(col("k"))) == [None if found is None else key in found for found, key in rows]
    assert values(col("m").map.keys()) == [None if found is None else list(found) for found in maps]
    assert values(col("m").map.values()) == [None if found is None else list(found.values()) for found in maps]
    assert values(col("m").map.len()) == [None if found is None else len(found) for found in maps]


@dataclass
class Looked:
    """A map and a key."""

    m: dict[str, int] | None
    k: str


@dataclass
class Deep:
    """Maps within lists of structs."""

    m: dict[str, int] | None
    q: list[Within] | None


@dataclass
class Within:
    """A map."""

    m: dict[str, int]


READ: Any = iterables.Source(ROWS)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda p: p.filter(col("labels") == col("labels")),
            r"cannot compare map\[string, string\]; compare its parts",
        ),
        (lambda p: p.filter(col("labels") > col("labels")), "cannot compare"),
        (lambda p: p.key_by("labels"), r"a map cannot be a key, take a value: \.map\.get"),
        (lambda p: p.distinct(), "a map cannot be a key"),
        (lambda p: p.select(x=col("labels").hash()), "needs a column without parts that could be a key"),
        (lambda p: p.key_by("key").agg(x=col("labels").n_unique()), "needs a column without parts"),
        (lambda p: p.key_by("key").agg(x=col("labels").max()), r"got map\[string, string\]"),
        (lambda p: p.select(x=col("labels").cast(str)), r"cannot cast map\[string, string\] to string"),
        (lambda p: p.select(x=col("key").map.get("a")), "needs a map, got string"),
        (lambda p: p.select(x=col("labels").map.get(lit_one())), "needs a key that is text, got int64"),
        (lambda p: p.explode("labels"), "not a list"),
    ],
)
def test_what_maps_cannot_be_is_refused(make: Any, reason: str) -> None:
    """When the pipeline is built."""
    with pytest.raises(PipelineError, match=reason):
        make(Pipeline("maps").read(READ))


def lit_one() -> Any:
    """A number where a text belongs."""
    return col("counts").map.get("n")


# -- pipelines ----------------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What was seen of a key up to a row."""

    key: str
    seen: dict[str, int]
    at: datetime


class Merge(KeyedProcess[Seen, Seen]):
    """All that was ever seen of a key."""

    seen = ValueState(dict[str, int])

    def on_row(self, row: Seen, ctx: KeyedContext[Seen]) -> None:
        self.seen.set({**self.seen.get({}), **row.seen})
        ctx.emit(Seen(row.key, self.seen.get({}), row.at))


SEEN = [Seen("ab"[n % 2], {str(n % 5): n}, AT + timedelta(seconds=n)) for n in range(20)]


def test_pipelines_carry_maps() -> None:
    """Through functions, exchanges and windows."""
    made = Pipeline("maps")
    read = made.read(iterables.Source([], schema=Seen, event_time="at")).map(grown)
    found = {
        "last": col("seen").last(),
        "all": col("seen").collect(),
        "n": count(),
        "most": col("seen").map.len().max(),
    }
    read.key_by("key").window(tumbling("10s")).agg(**found).write(collecting.Sink())
    got = run_pipeline(made, SEEN)
    assert len(got) == 4
    for row in got:
        mine = [{**seen.seen, "x": 1} for seen in SEEN if seen.key == row["key"] and row["window_start"] <= seen.at]
        mine = mine[:5]
        assert (row["last"], row["all"], row["n"], row["most"]) == (mine[-1], mine, 5, 2)


def grown(row: Seen) -> Seen:
    """With one entry more."""
    return Seen(row.key, {**row.seen, "x": 1}, row.at)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_state_of_dicts_is_restored(before: int, after: int) -> None:
    """At another parallelism."""
    first = OperatorHarness.of_process(Merge(), Seen, keys=["key"], parallelism=before)
    first.rows(*SEEN[:9])
    second = OperatorHarness.of_process(Merge(), Seen, keys=["key"], parallelism=after, restored=first.snapshot())
    second.rows(*SEEN[9:])
    last = {row["key"]: row["seen"] for row in (*first.output(), *second.output())}
    for key, seen in last.items():
        assert seen == {name: value for row in SEEN if row.key == key for name, value in row.seen.items()}
