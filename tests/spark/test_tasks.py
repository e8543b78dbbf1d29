"""What a task does, without Spark around it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_runs import SPARK_CASES_FILE

from penstock import PipelineError
from penstock.adapters.system_clock import SystemClock
from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.errors import UserCodeError
from penstock.graph.jobgraph import JobEdge, JobGraph, Link, build_job_graph
from penstock.loading import load_pipeline
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.plan.traits import Mode
from penstock.protocol.keygroups import subtask_of
from penstock.spark import key_group_batches, taskwork
from penstock.spark.code import pack_code
from penstock.spark.committing import RunManifest, RunManifests, commit, staged_parts
from penstock.spark.failures import TaskFailedError, unwrapped, wrapped
from penstock.spark.late_rows import LateRowsKept
from penstock.spark.outputs import StageOutputs
from penstock.spark.session import parse_conf
from penstock.spark.splits import RunSplit
from penstock.spark.stage import Attempt, StageTask, run_stage
from penstock.spark.taskwork import counts_of
from penstock.spark.wire import (
    FRAME,
    FRAMED_NAMES,
    GROUP,
    INPUT,
    OUTPUT,
    PARTITION,
    REPORT,
    SEQ,
    StageEdge,
    column_name,
    decode_frame,
    encode_columns,
    wire_type,
)
from penstock.state.hashing import key_groups
from penstock.types import Field, ListType, Scalar, Schema, StructType, schema_to_json

# -- the wire -----------------------------------------------------------------------------------------------------------

_VALUES = {
    "boolean": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 2**8 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float64": st.floats(allow_nan=False),
    "string": st.text(max_size=4),
    "binary": st.binary(max_size=4),
    "date": st.dates(),
    "duration": st.integers(-(10**15), 10**15).map(lambda us: timedelta(microseconds=us)),
    "null": st.none(),
}
_SCALARS = st.sampled_from(sorted(_VALUES)).map(Scalar)
_TYPES = st.recursive(
    _SCALARS,
    lambda inner: (
        inner.map(ListType) | inner.map(lambda kind: StructType((Field("f", kind, True), Field("F", kind, True))))
    ),
    max_leaves=4,
)


def values_of(kind: Scalar | ListType | StructType) -> st.SearchStrategy:
    match kind:
        case ListType(inner=inner):
            some = st.lists(values_of(inner), max_size=3)
        case StructType(fields=fields):
            some = st.fixed_dictionaries({field.name: values_of(field.type) for field in fields})
        case _:
            some = _VALUES[kind.name]
    return st.none() | some


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_value_of_every_type_survives_the_wire(data):
    """A column comes back as it went, through the type that Spark keeps."""
    kind = data.draw(_TYPES)
    values = data.draw(st.lists(values_of(kind), min_size=1, max_size=5))
    schema = Schema((Field("x", kind, True),))
    frame = pl.DataFrame({"x": values}, schema=schema.polars())
    (column,) = encode_columns(frame, schema)
    assert column.type == wire_type(kind)
    batch = pa.RecordBatch.from_arrays([column], names=["c0"])
    assert decode_frame(batch, 0, schema)["x"].to_list() == frame["x"].to_list()


# -- outputs ------------------------------------------------------------------------------------------------------------

KEYED = Schema((Field("key", Scalar("int64")),))


def edge(*keys: str, partitions: int = 3, mode: Mode = "append") -> StageEdge:
    return StageEdge(
        JobEdge("v0", Link("n0", None, keys, mode), "hash", schema_to_json(KEYED), event_time=False), partitions, 240
    )


def sent(outputs: StageOutputs, sizes: list[int]) -> pl.DataFrame:
    """What leaves when rows 0, 1, 2, ... come in batches of these sizes."""
    batches: list[pa.RecordBatch] = []
    begin = 0
    for size in sizes:
        outputs.edges[0].rows(pl.DataFrame({"key": range(begin, begin + size)}, schema=KEYED.polars()))
        begin += size
        batches += outputs.drain()
    batches += outputs.drain(everything=True)
    frame = pl.from_arrow(pa.Table.from_batches(batches))
    assert isinstance(frame, pl.DataFrame)
    return frame


def test_rows_go_to_the_subtask_that_owns_their_key_group():
    """The same owner as in the streaming exchange."""
    frame = sent(StageOutputs([edge("key")], 1), [500])
    groups = key_groups(frame.select(pl.col(column_name(0, 0)).alias("key")), ["key"], 240)
    assert frame[GROUP].to_list() == groups.to_list()
    assert frame[PARTITION].to_list() == [subtask_of(group, 3, 240) for group in groups]
    assert set(frame[PARTITION]) == {0, 1, 2}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 9_000), min_size=1, max_size=6))
def test_where_a_row_goes_does_not_depend_on_batches(sizes):
    """A task that is run again sends every row where it went before, also round robin."""
    columns = [SEQ, PARTITION, column_name(0, 0)]
    once = sent(StageOutputs([edge()], 2), sizes).select(columns)
    again = sent(StageOutputs([edge()], 2), [sum(sizes)]).select(columns)
    assert once.equals(again)


@pytest.mark.parametrize("mode", ["upsert", "retract"])
def test_updates_without_keys_of_a_subtask_stay_together(mode):
    """Of two tasks one would write the older row of a key last."""
    assert set(sent(StageOutputs([edge(mode=mode)], 4), [9_000, 9_000])[PARTITION]) == {1}


# -- late rows ----------------------------------------------------------------------------------------------------------


def judge_of(pipeline: str, restored: dict[int, int] | None = None) -> LateRowsKept:
    """Counts late rows for the window of tumbling seconds in a pipeline."""
    plan = load_pipeline(str(SPARK_CASES_FILE), {"case": pipeline}).plan
    node = next(node for node in plan if isinstance(node.operation, WindowAggregate))
    return LateRowsKept(node, 240, restored or {})


def behind(*rows: tuple[str, int, int | None]) -> pl.DataFrame:
    """Rows of key, event time and watermark in seconds."""
    columns = {"key": pl.String, EVENT_TIME: pl.Int64, WATERMARK: pl.Int64}
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    return frame.with_columns(pl.col(EVENT_TIME) * 1_000_000, pl.col(WATERMARK) * 1_000_000)


def test_rows_are_late_whose_window_was_over_when_they_came():
    """By the watermark at their turn: being behind it is not enough, and null says nothing."""
    late = judge_of("empty-window")
    late.look_at(behind(("a", 10, 59), ("a", 10, 60), ("b", 10, None), ("b", 59, 60), ("b", 61, 119)))
    assert late.rows == 2
    late.look_at(behind(("a", 10, 60)).drop(WATERMARK))
    assert late.rows == 2


def test_what_is_late_for_the_state_is_counted_by_the_operator_alone():
    """A run from a savepoint finds rows behind it late as a stream does: they are not kept."""
    groups = key_groups(behind(("a", 0, 0)), ["key"], 240)
    late = judge_of("empty-window", {int(groups[0]): 60_000_000})
    late.look_at(behind(("a", 10, 120), ("a", 61, 120), ("b", 10, 120)))
    assert late.rows == 2


# -- replay -------------------------------------------------------------------------------------------------------------


def task_of(graph: JobGraph, vertex: str, case: dict[str, str], splits: list[str]) -> StageTask:
    edges = tuple(StageEdge(e, c.parallelism, c.max_parallelism, framed=True) for c, _, e in graph.consumers(vertex))
    code = pack_code(str(SPARK_CASES_FILE), case)
    given_splits = tuple(RunSplit(split) for split in splits)
    return StageTask(code, msgspec.json.encode(graph.to_json()), vertex, edges, given_splits, "test", case["out"])


@pytest.mark.parametrize(("batch_bytes", "chains"), [(0, range(20, 241)), (8 << 20, range(2, 3))])
def test_a_task_has_one_chain_at_a_time(batch_bytes, chains, tmp_path, monkeypatch):
    """Large key groups have one of their own each, small ones share one; it is closed before the next begins."""
    monkeypatch.setattr(key_group_batches, "BATCH_BYTES", batch_bytes)
    case = {"case": "many-keys", "rows": "3000", "out": str(tmp_path / "out")}
    plan = load_pipeline(str(SPARK_CASES_FILE), case).plan
    graph = build_job_graph(plan, 2, chain_state=False)
    numbers = pa.RecordBatch.from_pydict({"id": pa.array(range(3), pa.int64())})
    splits = ["0", "1", "2"]
    produced = pa.Table.from_batches(run_stage(task_of(graph, "v0", case, splits), iter([numbers]), Attempt()))
    opened: list[range] = []
    closed: list[int] = []
    build = taskwork.build_chain

    def watched(vertex, plan, subtask, groups, *rest):
        assert len(closed) == len(opened), "two chains are alive"
        opened.append(range(groups.start, groups.end))
        chain = build(vertex, plan, subtask, groups, *rest)
        close = chain.close

        def counted() -> None:
            closed.append(1)
            close()

        chain.close = counted
        return chain

    monkeypatch.setattr(taskwork, "build_chain", watched)
    for subtask in range(2):
        partition = read_by(produced, subtask)
        list(run_stage(task_of(graph, "v1", case, []), partition, Attempt()))
    groups = [group for groups in opened for group in groups]
    assert len(groups) == len(set(groups)) > 20
    assert len(opened) == len(closed)
    assert len(opened) in chains


def test_of_two_attempts_at_a_task_one_counts(tmp_path):
    """As with speculation: both run to their end, the reports of one arrive, and what the other staged is removed."""
    out = tmp_path / "out"
    case = {"case": "many-keys", "rows": "600", "out": str(out)}
    plan = load_pipeline(str(SPARK_CASES_FILE), case).plan
    graph = build_job_graph(plan, 1, chain_state=False)
    numbers = pa.RecordBatch.from_pydict({"id": pa.array(range(3), pa.int64())})
    source = task_of(graph, "v0", case, ["0", "1", "2"])
    produced = pa.Table.from_batches(run_stage(source, iter([numbers]), Attempt()))
    task = task_of(graph, "v1", case, [])
    attempts = [list(run_stage(task, read_by(produced, 0), Attempt(number))) for number in (7, 8)]
    assert len(list((out / ".staging").iterdir())) == 2
    counting = [json.loads(report.as_py()) for batch in attempts[1] for report in batch.column(REPORT)]
    manifests = RunManifests(tmp_path / "runs")
    manifests.folder.mkdir()
    manifest = manifests.create(RunManifest("run", plan.name, staged_parts(counting), counts_of(counting)))
    commit(manifest, plan, manifests, SystemClock())
    assert len([line for part in out.glob("part-*") for line in part.read_text().splitlines()]) == 600
    assert list((out / ".staging").iterdir()) == []
    assert manifest.counts["n2-process"]["rows_in"] == 600


def test_the_first_manifest_of_a_run_counts(tmp_path):
    """Of two executions of a run that end together one wins, and the other gets to know what it staged."""
    manifests = RunManifests(tmp_path)
    first, second = (RunManifest("r", "p", {"w": [part]}, {}) for part in ("a", "b"))
    assert manifests.create(first) == first
    assert manifests.create(second) == first
    assert manifests.find("r") == first
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def read_by(produced: pa.Table, subtask: int) -> Iterator[pa.RecordBatch]:
    """What Spark hands to a subtask: its rows, sorted, in small batches."""
    frame = pl.from_arrow(produced)
    assert isinstance(frame, pl.DataFrame)
    mine = frame.filter((pl.col(PARTITION) == subtask) & (pl.col(OUTPUT) == 0)).sort(GROUP, EVENT_TIME, "__from", SEQ)
    table = mine.to_arrow(compat_level=pl.CompatLevel.oldest())
    table = table.append_column(INPUT, pa.array([0] * len(table), pa.int32()))
    wanted = [column_name(0, 0) if name == FRAME else name for name in FRAMED_NAMES]
    yield from table.select(wanted).rename_columns(list(FRAMED_NAMES)).to_batches(max_chunksize=10)


def test_reports_of_a_stage_before_are_passed_on(tmp_path):
    """They arrive at the driver with the rows of the attempt that wrote them."""
    case = {"case": "many-keys", "rows": "300", "out": str(tmp_path / "out")}
    plan = load_pipeline(str(SPARK_CASES_FILE), case).plan
    graph = build_job_graph(plan, 1, chain_state=False)
    report: dict[str, list[object]] = {name: [None] for name in FRAMED_NAMES} | {
        OUTPUT: [-1],
        PARTITION: [0],
        REPORT: [b'{"kind":"x"}'],
    }
    batch = pa.RecordBatch.from_pydict(report)
    (out,) = run_stage(task_of(graph, "v1", case, []), iter([batch]), Attempt())
    kinds = [json.loads(value.as_py())["kind"] for value in out.column(REPORT)]
    assert kinds == ["x", "counts"]


# -- errors and refusals ------------------------------------------------------------------------------------------------


def test_an_error_crosses_spark_as_it_was():
    """Kind, message and frames are found again in whatever text Spark makes of it."""
    inner = wrapped(UserCodeError("map raised KeyError", "  File 'mine.py', line 3\n"), "v0")
    assert isinstance(inner, TaskFailedError)
    found = unwrapped(RuntimeError(f"org.apache.spark.SparkException: Job aborted\n  {inner}\n\tat scala.Some"))
    assert isinstance(found, UserCodeError)
    assert (str(found), found.frames) == ("map raised KeyError", "  File 'mine.py', line 3\n")
    assert isinstance(unwrapped(wrapped(PipelineError("no"), "v0")), PipelineError)
    assert str(unwrapped(wrapped(ZeroDivisionError("x"), "v3"))) == "v3: ZeroDivisionError: x"
    assert unwrapped(RuntimeError("lost executor")) is None


def test_settings_of_spark_are_name_and_value():
    """A value may hold an equals sign."""
    assert parse_conf(["spark.a=b=c"]) == {"spark.a": "b=c"}
