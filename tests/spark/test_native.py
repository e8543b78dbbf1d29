"""What Spark computes by its own plan is what streaming computes: the proof of every line of the allow-list.

A window goes through everything but Spark's transport of rows to and from Python: partials are made as tasks make them,
merged by Spark, and finished as tasks finish them; beside it the streaming operator gets the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import OutputTag, Pipeline, col, count, session, sliding, tumbling
from penstock.connectors import collecting, iterables
from penstock.core.batches import EVENT_TIME
from penstock.core.decimals import of_units
from penstock.core.times import MAX_WATERMARK
from penstock.errors import UserCodeError
from penstock.expressions.aggregate_rules import AGGREGATES
from penstock.functions.windows.definitions import SlidingWindow, TumblingWindow
from penstock.plan.logical import Node
from penstock.protocol.keygroups import KeyGroupRange
from penstock.spark.engine import batch_graph
from penstock.spark.native import KEYS, NativeWindow, Replayed, Way, ways
from penstock.spark.outputs import StageOutputs
from penstock.spark.partials import START, MergedWindows
from penstock.spark.wire import READ_TAGS, REPORT, StageEdge, column_name, decode_frame
from penstock.task.operator import OperatorContext
from penstock.task.operators.partials import Partials
from penstock.testing.harness import Collector, OperatorHarness
from penstock.types import DataType, DecimalType, arrow_type, family

_INT64 = st.integers(-(2**57), 2**57 - 1)
"""So that no sum is too large: what becomes of those is tested below."""
_DATES = st.dates(date(1, 1, 1), date(9999, 12, 31))
_TIMES = st.integers(-(62 * 10**15), 253 * 10**15)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.one_of(st.integers(-3, 3), _INT64),
    "uint8": st.integers(0, 2**8 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "float32": st.floats(-1e6, 1e6, width=32) | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0]),
    "float64": st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0]),
    "string": st.text(max_size=4)
    | st.sampled_from(["", " ", "a", "a ", "A", "é", "e\u0301", "\x00", "\U0001f600", "\uffff"]),
    "boolean": st.booleans(),
    "timestamp": _TIMES,
    "date": _DATES,
    "decimal(38, 0)": st.integers(-(10**31), 10**31).map(Decimal),
    "decimal(38, 10)": st.integers(-(10**36), 10**36).map(lambda units: of_units(units, 10)),
    "decimal(12, 2)": st.integers(-(10**11), 10**11).map(lambda units: of_units(units, 2)),
}
"""Of every type that is on the list somewhere."""
SUMMED = (
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
    "boolean",
    *(name for name in VALUES if name[:3] == "dec"),
)
WINDOWS = (
    tumbling("7us"),
    tumbling("1s", offset="300ms"),
    sliding("12us", every="5us"),
    sliding("6us", every="2us", offset="1us"),
    sliding("10us", every="10us"),
    sliding("1d", every="7h"),
)


def kinds() -> list[DataType]:
    """All types of partials that some aggregate has on its list."""
    return list(dict.fromkeys(kind for row in AGGREGATES for kind in row.spark))


def declared(key: str, window: TumblingWindow | SlidingWindow, lateness: str = "0s") -> Pipeline:
    """Every aggregate on the list, of a column of every type: `v_<type>`, and of one that is never null."""
    schema = pa.schema(
        [
            pa.field("key", arrow_type(_kind(key)), nullable=True),
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("whole", pa.int64(), nullable=False),
            *(pa.field(f"v_{name}", arrow_type(_kind(name)), nullable=True) for name in VALUES),
        ]
    )
    found = {"rows": count(), "whole_sum": col("whole").sum(), "doubled": (col("whole") * 2).max() + count()}
    for name in VALUES:
        value = col(f"v_{name}")
        found |= {f"n_{name}": value.count(), f"min_{name}": value.min(), f"max_{name}": value.max()}
        if name in SUMMED:
            found |= {f"sum_{name}": value.sum(), f"mean_{name}": value.mean()}
    made = Pipeline("native")
    read = made.read(iterables.Source([], schema=schema, event_time="at"))
    windows = read.key_by("key").window(window).allowed_lateness(lateness).late_to(OutputTag("unread"))
    windows.agg(**found).write(collecting.Sink())
    return made


def _kind(name: str) -> DataType:
    decimals = [DecimalType(38, 10), DecimalType(12, 2)]
    return next(kind for kind in (*kinds(), *decimals) if str(kind) == name)


def way_of(pipeline: Pipeline, **options: Any) -> tuple[Way, Node]:
    """How the window of a pipeline is computed, and its node."""
    graph = batch_graph(pipeline.plan, 2)
    vertex = next(vertex for vertex in graph.vertices if vertex.operators[0].verb == "window")
    found = ways(graph, pipeline.plan, **{"native": True, **options})
    return found[vertex.id], pipeline.plan.node(vertex.operators[0].node)


def streamed(node: Node, batches: list[pl.DataFrame]) -> pl.DataFrame:
    harness = OperatorHarness(node)
    for batch in batches:
        harness.frame(batch)
    harness.watermark(MAX_WATERMARK)
    return pl.concat(harness.collected.frames)


def computed(spark, pipeline: Pipeline, node: Node, native: NativeWindow, batches: list[pl.DataFrame]) -> pl.DataFrame:
    """By Spark, each batch made into partials by itself."""
    from pyspark.sql import functions

    from penstock.spark.merging import merged_partials

    graph = batch_graph(pipeline.plan, 2)
    vertex = next(vertex for vertex in graph.vertices if vertex.operators[0].node == node.id)
    outputs = StageOutputs([StageEdge(vertex.inputs[0], 2, vertex.max_parallelism, native)], 0, pipeline.plan)
    sent: list[pa.RecordBatch] = []
    for batch in batches:
        outputs.edges[0].rows(batch)
        sent += outputs.drain(everything=True)
    names = enumerate(native.schema.names)
    columns = [functions.col(column_name(0, number)).alias(name) for number, name in names]
    partials = spark.createDataFrame(pa.Table.from_batches(sent)).select(REPORT, *columns)
    collector = Collector()
    operator = MergedWindows(native, pipeline.plan)
    operator.open(OperatorContext("w", 0, 2, 240, KeyGroupRange(0, 240), lambda: 0), None)
    for batch in merged_partials(partials, native, 2).toArrow().to_batches():
        frame = decode_frame(batch, len(READ_TAGS), native.schema)
        made = Partials(node)
        frame.columns = [*made.keys.names, START, *made.names]
        operator.process(frame, collector)
    return pl.concat(collector.frames)


def ordered(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return frame.sort("window_start", "key", nulls_last=True).rows(named=True)


def assert_equal(got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Everything to the bit, but what floats are added up to: within 1e-6 of sums below 1e8."""
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            other = theirs[name]
            if isinstance(value, float) and isinstance(other, float):
                both_nan = math.isnan(value) and math.isnan(other)
                added = name.startswith(("sum_float", "mean_"))
                assert both_nan or value == other or (added and math.isclose(value, other, abs_tol=1e-6)), name
            else:
                assert value == other, name


@st.composite
def rows_of(draw: st.DrawFn, key: str, moments: st.SearchStrategy[int]) -> list[list[dict[str, Any]]]:
    """Batches of rows; few keys, so that groups have many rows and span batches."""
    keys = st.sampled_from(draw(st.lists(VALUES[key], min_size=1, max_size=4))) | st.none()
    others = {f"v_{name}": st.none() | values for name, values in VALUES.items()}
    row = st.fixed_dictionaries({"key": keys, "at": moments, "whole": _INT64, **others})
    return draw(st.lists(st.lists(row, min_size=1, max_size=6), min_size=1, max_size=4))


def frames_of(node: Node, batches: list[list[dict[str, Any]]]) -> Iterator[pl.DataFrame]:
    types = node.inputs[0].schema.polars()
    for batch in batches:
        columns = [
            pl.Series(name, [row[name] for row in batch], _plain(kind)).cast(kind) for name, kind in types.items()
        ]
        yield pl.DataFrame(columns).with_columns(pl.col("at").cast(pl.Int64).alias(EVENT_TIME))


def _plain(kind: pl.DataType) -> pl.DataType:
    return pl.Int64() if isinstance(kind, pl.Datetime) else kind


def test_the_tests_cover_the_list():
    """Every aggregate and type that the catalogue lets Spark merge, and every type of key, is in the tests below."""
    way, node = way_of(declared("string", WINDOWS[0]))
    assert isinstance(way, NativeWindow)
    plan = Partials(node).plan
    tested = {(name, family(field.type)) for name, field in zip(plan.partials_of, plan.partial_fields, strict=True)}
    assert tested == {(row.name, kind) for row in AGGREGATES for kind in row.spark}
    assert {str(kind) for kind in KEYS} <= set(VALUES)


@pytest.mark.parametrize("key", sorted(str(kind) for kind in KEYS))
def test_spark_computes_what_streams(key, spark):
    """Nulls, NaN, both zeros, large integers, times before 1970, null keys, any window, any batches, any lateness."""

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data(), st.sampled_from(WINDOWS), st.sampled_from(["0s", "9us", "1d"]))
    def check(data: st.DataObject, window: TumblingWindow | SlidingWindow, lateness: str) -> None:
        pipeline = declared(key, window, lateness)
        way, node = way_of(pipeline)
        assert isinstance(way, NativeWindow)
        moments = st.sampled_from([-1, 0, 1]) | st.integers(-30, 30) | st.sampled_from([-62 * 10**15, 253 * 10**15])
        batches = list(frames_of(node, data.draw(rows_of(key, moments))))
        assert_equal(ordered(computed(spark, pipeline, node, way, batches)), ordered(streamed(node, batches)))

    check()


@pytest.mark.parametrize(
    ("whole", "real"),
    [
        ([2**63 - 1, 0], [math.nan, 1.0]),
        ([-(2**63), 2**63 - 1], [math.nan, None]),
        ([5, -5], [None, None]),
        ([2**62, -(2**62)], [math.inf, -math.inf]),
    ],
)
def test_batches_of_one_window_are_merged_as_they_stream(whole, real, spark):
    """The largest integers add up, NaN is the greatest only where it is alone, nothing but nulls is null."""
    pipeline, node, way, frames = two_batches(whole, real)
    got = ordered(computed(spark, pipeline, node, way, frames))
    assert_equal(got, ordered(streamed(node, frames)))
    assert {row["key"] for row in got} == {"a", None}
    assert {row["sum_int64"] for row in got} == {sum(whole)}


@pytest.mark.parametrize("whole", [[2**63 - 1, 2**63 - 1], [-(2**63), -1], [2**62, 2**62]])
def test_sums_that_do_not_fit_fail_on_spark_as_they_do_in_a_stream(whole, spark):
    """A sum never wraps around in silence, though Spark adds partials modulo 2**64."""
    pipeline, node, way, frames = two_batches(whole, [1.0, 2.0])
    for compute in (lambda: streamed(node, frames), lambda: computed(spark, pipeline, node, way, frames)):
        with pytest.raises(UserCodeError, match=r"the sum of .* does not fit into int64"):
            compute()


def two_batches(whole: list[int], real: list[float]) -> tuple[Pipeline, Node, NativeWindow, list[pl.DataFrame]]:
    """A window of two batches with a row of each key."""
    pipeline = declared("string", WINDOWS[3])
    way, node = way_of(pipeline)
    assert isinstance(way, NativeWindow)
    empty = {f"v_{name}": None for name in VALUES}
    batches = [
        [
            {"key": key, "at": -1, "whole": n, **empty, "v_int64": n, "v_float32": x, "v_float64": x}
            for key in ("a", None)
        ]
        for n, x in zip(whole, real, strict=True)
    ]
    return pipeline, node, way, list(frames_of(node, batches))


def windows_over(value: Any, key: str = "key", window: Any = None, **more: Any) -> Pipeline:
    """A window of one aggregate over a table of every type."""
    schema = pa.schema(
        {
            "key": pa.string(), "real": pa.float64(), "at": pa.timestamp("us", "UTC"), "count": pa.uint64(),
            "took": pa.duration("us"), "n": pa.int64(),
        }
    )  # fmt: skip
    made = Pipeline("way")
    windowed = made.read(iterables.Source([], schema=schema, event_time="at")).key_by(key)
    stream = windowed.window(window or tumbling("1m"))
    if "late" in more:
        stream = stream.late_to(more["late"])
    if "lateness" in more:
        stream = stream.allowed_lateness(more["lateness"])
    results = stream.agg(value=value)
    results.write(collecting.Sink())
    if more.get("read"):
        results.side(more["late"]).write(collecting.Sink())
    return made


@pytest.mark.parametrize(
    ("pipeline", "options", "why"),
    [
        (windows_over(col("count").sum()), {}, "not proven equal on Spark: sum of uint64"),
        (windows_over(col("took").max()), {}, "not proven equal on Spark: max of duration"),
        (windows_over(col("n").quantile(0.5)), {}, "not proven equal on Spark: quantile"),
        (windows_over(col("n").approx_quantile(0.5)), {}, "not proven equal on Spark: approx_quantile"),
        (windows_over(col("n").approx_n_unique()), {}, "not proven equal on Spark: approx_n_unique"),
        (windows_over(col("n").mode("least")), {}, "not proven equal on Spark: mode"),
        (windows_over(col("n").last()), {}, "not proven equal on Spark: last"),
        (windows_over(count(), key="real"), {}, "not proven equal on Spark: the key real of float64"),
        (windows_over(count(), window=session("1m")), {}, "a session window is slower"),
        (windows_over(count(), late=OutputTag("late"), read=True), {}, "the pipeline reads its late rows"),
        (windows_over(count(), late=OutputTag("late"), lateness="1s", read=True), {}, "reads its late rows"),
        (windows_over(count()), {"stateful": True}, "savepoint"),
        (windows_over(count()), {"native": False}, "--native off"),
    ],
)
def test_what_is_not_proven_replays_and_says_why(pipeline, options, why):
    """Types and aggregates that are not on the list, late rows, state, and what the user says."""
    way, _ = way_of(pipeline, **options)
    assert isinstance(way, Replayed)
    assert why in way.reason


def test_a_chain_without_an_exchange_is_one_stage():
    """Its rows never come to Spark: the tasks that read them write them."""
    made = Pipeline("flat")
    read = made.read(iterables.Source([], schema=pa.schema({"n": pa.int64()})))
    read.filter(col("n") > 1).with_columns(m=col("n") * 2).select("m").write(collecting.Sink())
    graph = batch_graph(made.plan, 2)
    [vertex] = graph.vertices
    assert [operator.verb for operator in vertex.operators] == ["read", "filter", "with_columns", "select", "write"]
    way = ways(graph, made.plan, native=True)[vertex.id]
    assert isinstance(way, Replayed)
    assert "no row leaves its task" in way.reason


@pytest.mark.parametrize(("value", "native"), [("real", False), ("n", True)])
def test_what_another_stage_reads_is_the_same_when_a_task_is_run_again(value, native):
    """Sums of floats depend on the order in which partials come: they replay where an exchange is behind them."""
    schema = pa.schema({"key": pa.string(), "real": pa.float64(), "n": pa.int64(), "at": pa.timestamp("us", "UTC")})
    made = Pipeline("again")
    keyed = made.read(iterables.Source([], schema=schema, event_time="at")).key_by("key")
    sums = keyed.window(tumbling("1m")).agg(sum=col(value).sum())
    sums.key_by("sum").agg(n=count()).write(collecting.Sink())
    way, _ = way_of(made)
    assert isinstance(way, NativeWindow) == native
    if isinstance(way, Replayed):
        assert "last bit" in way.reason


def test_expressions_around_and_within_aggregates_are_any():
    """They are evaluated as in streaming: only what is merged must be on the list."""
    value = (col("real").sqrt() * 2).sum() / (count() + col("key").str.len_chars().max())
    way, _ = way_of(windows_over(value))
    assert isinstance(way, NativeWindow)
    assert set(way.merges) == {"sum({})", "max({})"}
