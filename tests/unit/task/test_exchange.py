"""The exchange: what goes in comes out once, in order, in the partition of its key group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_cases import window_node

from penstock.adapters.memory import MemoryLog
from penstock.core.batches import EVENT_TIME, ROWS, WATERMARK
from penstock.core.times import MAX_WATERMARK
from penstock.expressions import col, count
from penstock.functions.windows.definitions import TumblingWindow
from penstock.graph.executiongraph import exchange_topic
from penstock.graph.jobgraph import JobEdge, Link, Ship
from penstock.plan.traits import Mode
from penstock.ports import NewRecord
from penstock.protocol.frames import MAX_ROWS, Channel, Frame, FrameKind
from penstock.protocol.keygroups import subtask_of
from penstock.protocol.messages import Deploy, SubtaskId
from penstock.protocol.outputs import OutputId, OutputLedger
from penstock.state.hashing import key_groups
from penstock.task.combining import Combiner
from penstock.task.exchange import (
    COALESCE_ROWS,
    Coalescer,
    ExchangeWriter,
    decode_payload,
    encode_payload,
    frame_schema,
)
from penstock.task.exchange_io import FrameSender
from penstock.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DURATION,
    FLOAT64,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    Field,
    ListType,
    Schema,
    StructType,
    schema_to_json,
)

SCHEMA = Schema((Field("key", INT64), Field("n", INT64)))
MAX_PARALLELISM = 240
ATTEMPT = "ab" * 16


def edge(
    schema: Schema = SCHEMA, keys: tuple[str, ...] = ("key",), event_time: bool = True, mode: Mode = "append"
) -> JobEdge:
    ship: Ship = "hash" if keys else "rebalance"
    return JobEdge("v0", Link("n0", None, keys, mode), ship, schema_to_json(schema), event_time)


class Sent:
    """A writer whose frames are kept."""

    def __init__(
        self, partitions: int, the_edge: JobEdge | None = None, combiner: Combiner | None = None, producer: int = 0,
        largest_bytes: int = 1 << 30,
    ) -> None:  # fmt: skip
        self.large: list[pl.DataFrame] = []
        self.edge = the_edge or edge()
        self.frames: list[tuple[OutputId, Frame, bytes]] = []
        outputs = [OutputId("v1", 0, partition) for partition in range(partitions)]
        self.ledger = OutputLedger("a" * 32, producer, outputs, 1 << 20)
        self.writer = ExchangeWriter(
            outputs, self.edge, MAX_PARALLELISM, self.ledger, self.keep, combiner, largest_bytes=largest_bytes,
            too_large=self.left_out,
        )  # fmt: skip

    def left_out(self, row: pl.DataFrame, size: int, limit: int, *, combined: bool) -> None:
        assert size > limit
        self.large.append(row)

    def keep(self, output: OutputId, frame: Frame, payload: bytes) -> None:
        self.frames.append((output, frame, payload))

    def rows(self, partition: int) -> pl.DataFrame:
        schema = frame_schema(self.edge)
        parts = [
            decode_payload(memoryview(payload), schema)
            for output, frame, payload in self.frames
            if output.partition == partition and frame.kind is FrameKind.DATA
        ]
        return pl.concat(parts) if parts else pl.DataFrame(schema={"key": pl.Int64, "n": pl.Int64})


def frame_of(keys: list[int], first: int = 0) -> pl.DataFrame:
    count = len(keys)
    numbers = list(range(first, first + count))
    return pl.DataFrame(
        {"key": keys, "n": numbers, EVENT_TIME: numbers},
        schema={"key": pl.Int64, "n": pl.Int64, EVENT_TIME: pl.Int64},
    )


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([0, 10, 3_000, 9_000, 20_000]), max_size=60), st.integers(1, 3))
def test_no_frame_is_larger_than_a_record_of_the_log(lengths, partitions):
    """However sizes are spread among rows: frames are divided, and a row that is alone too large is handed out."""
    schema = Schema((Field("key", INT64), Field("n", BINARY)))
    sent = Sent(partitions, edge(schema, event_time=False), largest_bytes=10_000)
    values = [bytes([n]) * length for n, length in enumerate(lengths)]
    sent.writer.rows(pl.DataFrame({"key": range(len(values)), "n": values}, schema={"key": pl.Int64, "n": pl.Binary}))
    sent.writer.flush()
    assert all(len(frame.encode(payload)) <= 10_000 for _, frame, payload in sent.frames)
    arrived = [row for number in range(partitions) for row in sent.rows(number).select("key", "n").iter_rows()]
    assert sorted(arrived) == [(n, value) for n, value in enumerate(values) if len(value) < 20_000]
    assert sorted(row["key"].item() for row in sent.large) == [
        n for n, value in enumerate(values) if len(value) == 20_000
    ]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(-5, 5), max_size=20), max_size=8), st.integers(1, 5))
def test_every_row_arrives_once_in_the_partition_of_its_key_group(batches, partitions):
    """Splitting loses nothing, doubles nothing, and keeps the order of a key."""
    sent = Sent(partitions)
    total = 0
    for keys in batches:
        sent.writer.rows(frame_of(keys, total))
        total += len(keys)
    sent.writer.flush()
    arrived = [row for partition in range(partitions) for row in sent.rows(partition)["n"].to_list()]
    assert sorted(arrived) == list(range(total))
    for partition in range(partitions):
        rows = sent.rows(partition)
        for key, of_key in rows.group_by("key"):
            assert of_key["n"].is_sorted(), key
        groups = key_groups(rows, ["key"], MAX_PARALLELISM).to_list()
        assert {subtask_of(group, partitions, MAX_PARALLELISM) for group in groups} <= {partition}


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 2 * MAX_ROWS), max_size=4), st.integers(1, 5))
def test_every_frame_of_a_broadcast_edge_goes_to_every_partition(batches, partitions):
    """The same frames in the same order, encoded once, numbered per channel; barriers and watermarks behind them."""
    sent = Sent(partitions, msgspec.structs.replace(edge(keys=()), ship="broadcast"))
    total = 0
    for number, rows in enumerate(batches):
        sent.writer.rows(frame_of([7] * rows, total))
        total += rows
        sent.writer.watermark(total)
        sent.writer.flush()
        sent.writer.barrier(number, "nonce", "aligned")
    sent.writer.idle()
    assert not sent.writer.waiting
    channels = [[each for each in sent.frames if each[0].partition == partition] for partition in range(partitions)]
    for partition, channel in enumerate(channels):
        assert sent.rows(partition)["n"].to_list() == list(range(total))
        assert [frame.seq for _, frame, _ in channel] == list(range(len(channel)))
        assert [frame.kind for _, frame, _ in channel] == [frame.kind for _, frame, _ in channels[0]]
        assert all(payload is first for (_, _, payload), (_, _, first) in zip(channel, channels[0], strict=True))


def combining(keys: int, rows: int, batches: int = 1) -> tuple[Sent, Combiner]:
    """Rows of so many keys, in front of a window aggregate."""
    node = window_node(TumblingWindow(1_000_000), aggregates=[("n", count()), ("total", col("n").sum())], schema=SCHEMA)
    combiner = Combiner(node)
    sent = Sent(2, msgspec.structs.replace(edge(), combined=True), combiner)
    for batch in range(batches):
        sent.writer.rows(frame_of([number % keys for number in range(rows)], batch * rows))
    assert sent.frames == []
    sent.writer.flush()
    return sent, combiner


def test_rows_of_few_keys_cross_combined():
    """A row per key and pane, in the partition of the key, that says how many rows it is made of."""
    sent, combiner = combining(keys=10, rows=1_000, batches=3)
    assert all(frame.combined for _, frame, _ in sent.frames)
    parts = [decode_payload(memoryview(payload), combiner.arrow_schema) for _, _, payload in sent.frames]
    rows = pl.concat(parts)
    assert rows.height == 10
    assert rows[ROWS].to_list() == [300] * 10
    for (output, frame, _), part in zip(sent.frames, parts, strict=True):
        assert frame.rows == part.height
        groups = key_groups(part, ["key"], MAX_PARALLELISM).to_list()
        assert {subtask_of(group, 2, MAX_PARALLELISM) for group in groups} == {output.partition}


def test_rows_that_are_hardly_fewer_combined_cross_as_they_are():
    """And what comes next is not even tried, for a while."""
    sent, _ = combining(keys=1_000, rows=1_000)
    assert not any(frame.combined for _, frame, _ in sent.frames)
    assert sum(frame.rows for _, frame, _ in sent.frames) == 1_000
    same = frame_of([1] * 1_000)
    for _ in range(4 * 1024 * 1024 // 1_000 + 1):
        sent.writer.rows(same)
    sent.writer.flush()
    assert not any(frame.combined for _, frame, _ in sent.frames)
    sent.writer.rows(same)
    sent.writer.flush()
    assert sent.frames[-1][1].combined


def test_combined_rows_follow_plain_ones_in_order():
    """A buffer holds one sort only."""
    sent, combiner = combining(keys=1_000, rows=1_000)
    combiner._resting_rows = 0
    sent.writer.rows(frame_of([1] * 500))
    sent.writer.flush()
    assert [frame.combined for _, frame, _ in sent.frames] == [False, False, True]
    found: list[int] = []
    coalescer = Coalescer(lambda _, frame: found.append(frame.height))
    for _, frame, payload in sent.frames:
        coalescer.add(
            0, decode_payload(memoryview(payload), combiner.arrow_schema if frame.combined else frame_schema(sent.edge))
        )
    coalescer.flush()
    assert found == [1_000, 1]


def test_a_watermark_never_overtakes_rows():
    """Rows that wait are cut before the watermark; of several watermarks only the newest is sent."""
    sent = Sent(1)
    sent.writer.rows(frame_of([1, 2]))
    sent.writer.watermark(5)
    sent.writer.watermark(7)
    assert sent.frames == []
    sent.writer.flush()
    assert [frame.kind for _, frame, _ in sent.frames] == [FrameKind.DATA, FrameKind.WATERMARK]
    assert sent.frames[1][1].watermark == 7
    assert not sent.writer.waiting


def test_a_watermark_may_be_left_to_a_later_flush_but_for_the_last_one_of_all():
    """Then only the newest is sent; rows are not held up by it."""
    sent = Sent(2)
    sent.writer.rows(frame_of([1, 2, 3, 4]))
    sent.writer.watermark(5)
    assert not sent.writer.flush(watermark=False)
    assert {frame.kind for _, frame, _ in sent.frames} == {FrameKind.DATA}
    assert sent.writer.waiting
    sent.writer.watermark(7)
    assert sent.writer.flush()
    assert [frame.watermark for _, frame, _ in sent.frames if frame.kind is FrameKind.WATERMARK] == [7, 7]
    assert not sent.writer.flush()
    sent.writer.watermark(MAX_WATERMARK)
    assert sent.writer.flush(watermark=False)
    sent.writer.watermark(MAX_WATERMARK)
    sent.writer.idle()
    assert [frame.kind for _, frame, _ in sent.frames][-2:] == [FrameKind.IDLE] * 2


def test_full_buffers_are_cut_into_bounded_frames():
    """A frame has at most 64k rows and carries on the sequence and the row ordinals."""
    sent = Sent(1)
    sent.writer.rows(frame_of(list(range(MAX_ROWS * 2 + 10))))
    sent.writer.flush()
    frames = [frame for _, frame, _ in sent.frames]
    assert sum(frame.rows for frame in frames) == MAX_ROWS * 2 + 10
    assert max(frame.rows for frame in frames) <= MAX_ROWS
    assert [frame.seq for frame in frames] == list(range(len(frames)))
    ordinals = [sum(earlier.rows for earlier in frames[:index]) for index in range(len(frames))]
    assert [frame.ordinal for frame in frames] == ordinals


def test_without_keys_batches_take_turns():
    """Rebalancing hands whole batches out round robin."""
    sent = Sent(2, edge(keys=()))
    for start in range(4):
        sent.writer.rows(frame_of([1, 1, 1], start * 3))
    sent.writer.flush()
    assert sent.rows(0).height == sent.rows(1).height == 6


@pytest.mark.parametrize("mode", ["upsert", "retract"])
@pytest.mark.parametrize(("producer", "partition"), [(0, 0), (1, 1), (2, 0)])
def test_updates_without_keys_of_a_subtask_stay_together(mode, producer, partition):
    """Those of a key come from one subtask; of two consumers the slower one would write the older row last."""
    sent = Sent(2, edge(keys=(), mode=mode), producer=producer)
    for start in range(4):
        sent.writer.rows(frame_of([1, 1, 1], start * 3))
    sent.writer.flush()
    assert sent.rows(partition)["n"].to_list() == list(range(12))


def test_idleness_is_sent_once_and_ends_with_rows():
    """An idle writer says so once; rows end it."""
    sent = Sent(1)
    sent.writer.idle()
    sent.writer.idle()
    assert [frame.kind for _, frame, _ in sent.frames] == [FrameKind.IDLE]
    sent.writer.rows(frame_of([1]))
    sent.writer.idle()
    assert [frame.kind for _, frame, _ in sent.frames] == [FrameKind.IDLE, FrameKind.DATA, FrameKind.IDLE]


def test_every_column_type_survives_a_frame():
    """Payloads carry all types, nulls and nesting exactly."""
    schema = Schema(
        (
            Field("i", INT32, True),
            Field("f", FLOAT64, True),
            Field("s", STRING, True),
            Field("b", BINARY, True),
            Field("o", BOOLEAN, True),
            Field("d", DATE, True),
            Field("t", TIMESTAMP, True),
            Field("u", DURATION, True),
            Field("l", ListType(STRING), True),
            Field("r", StructType((Field("x", INT64, True),)), True),
        )
    )
    rows = {
        "i": [1, None],
        "f": [float("inf"), None],
        "s": ["ä", None],
        "b": [b"\x00", None],
        "o": [True, None],
        "d": [date(2001, 1, 1), None],
        "t": [datetime(2001, 1, 1, tzinfo=UTC), None],
        "u": [timedelta(seconds=1), None],
        "l": [["a", None], None],
        "r": [{"x": 1}, None],
    }
    frame = pl.DataFrame(rows, schema=schema.polars())
    arrow = frame_schema(edge(schema, (), event_time=False))
    back = decode_payload(memoryview(encode_payload(frame)), arrow)
    assert back.schema == frame.schema
    assert back.equals(frame)


def test_small_frames_are_joined_before_an_operator_is_called():
    """The coalescer keeps order and calls once."""
    called: list[tuple[int, list[int]]] = []
    coalescer = Coalescer(lambda number, frame: called.append((number, frame["n"].to_list())))
    for start in range(5):
        coalescer.add(0, frame_of([start], start))
    assert called == []
    coalescer.flush()
    coalescer.flush()
    assert called == [(0, [0, 1, 2, 3, 4])]


def test_frames_of_several_inputs_are_joined_by_input():
    """However they alternate, and what is gathered of all is bounded."""
    called: list[tuple[int, list[int]]] = []
    coalescer = Coalescer(lambda number, frame: called.append((number, frame["n"].to_list())))
    for start in range(6):
        coalescer.add(start % 2, frame_of([start], start))
    coalescer.flush()
    assert called == [(0, [0, 2, 4]), (1, [1, 3, 5])]
    for start in range(4):
        coalescer.add(start % 2, frame_of([start] * (COALESCE_ROWS // 4), start))
    assert len(called) == 4


def test_no_frame_comes_behind_one_of_another_input_that_moves_event_time():
    """Its rows were not late when they came."""
    called: list[tuple[int, list[int]]] = []
    coalescer = Coalescer(lambda number, frame: called.append((number, frame["n"].to_list())))
    marked = [frame_of([start], start).with_columns(pl.lit(start).alias(WATERMARK)) for start in range(4)]
    plain = [frame_of([start], start) for start in range(4, 8)]
    for number, frame in ((0, plain[0]), (1, plain[1]), (0, marked[0]), (0, marked[1]), (1, plain[2]), (0, plain[3])):
        coalescer.add(number, frame)
    coalescer.flush()
    assert called == [(0, [4]), (1, [5]), (0, [0, 1]), (1, [6]), (0, [7])]


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_barrier_goes_to_every_partition(partitions):
    """Every consumer sees every barrier."""
    sent = Sent(partitions)
    sent.writer.barrier(7, "ab" * 8, "aligned")
    assert [(output.partition, frame.checkpoint) for output, frame, _ in sent.frames] == [
        (partition, 7) for partition in range(partitions)
    ]


class HeldLog(MemoryLog):
    """A log that confirms an append only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[int, asyncio.Event]] = []

    async def append(self, topic: str, partition: int, records: Sequence[NewRecord]) -> int:
        end, confirm = await super().append(topic, partition, records), asyncio.Event()
        self.held.append((partition, confirm))
        await confirm.wait()
        return end


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail after a deadline."""
    async with asyncio.timeout(30):
        while True:
            if condition():
                return
            await asyncio.sleep(0)


async def test_a_frame_is_confirmed_only_when_its_append_returns():
    """What stands in the log is not confirmed yet, and each partition is confirmed by its own append."""
    log, confirmed = HeldLog(), list[tuple[int, int]]()
    await log.create_topic(exchange_topic("j", "k", 0), 2)
    deploy = Deploy(
        epoch=1, job="j", attempt=ATTEMPT, attempt_number=1, subtask=SubtaskId("s", 0), worker="w", generation=0,
        restore=None, start_offset=0,
    )  # fmt: skip
    sender = FrameSender(deploy, log, lambda event: confirmed.append((event.output.partition, event.seq)))
    for seq in (0, 1):
        sender.enqueue(OutputId("k", 0, 0), Frame(FrameKind.DATA, ATTEMPT, Channel(0, 0), seq), b"rows")
    sender.enqueue(OutputId("k", 0, 1), Frame(FrameKind.DATA, ATTEMPT, Channel(0, 0), 0), b"rows")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(sender.run())
        await until(lambda: len(log.held) == 2)
        assert confirmed == []
        dict(log.held)[0].set()
        await until(lambda: bool(confirmed))
        assert confirmed == [(0, 0), (0, 1)]
        dict(log.held)[1].set()
        await until(lambda: len(confirmed) == 3)
        running.cancel()
    assert confirmed[2:] == [(1, 0)]
