"""One function, row by row and by batches, and histories that both are played: what tests of batches share."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import polars as pl
from window_cases import GROUPS, Batch, Mark, Restore, frame_of, group_of

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK, to_micros
from penstock.functions.process_functions import (
    KeyedProcess,
    ListState,
    OutputTag,
    ReducingState,
    ValueState,
    process_types,
)
from penstock.plan.logical import Node
from penstock.plan.operations.process_rows import ProcessRows
from penstock.protocol.keygroups import subtask_of
from penstock.state.keyed_backend import KIND
from penstock.state.segments import decode_segments
from penstock.testing.harness import OperatorHarness, input_node
from penstock.types import STRING, Field, Schema, schema_of

KEYS = ["a", "b", "c", "d", None]


@dataclasses.dataclass
class Row:
    key: str | None
    value: int


@dataclasses.dataclass
class Other:
    """A row of a second input, whose columns have names of their own."""

    number: int
    name: str | None


@dataclasses.dataclass
class Seen:
    key: str | None
    what: str
    number: int


THIRD = OutputTag("third", Seen)
BEFORE_ALL = -1_000


class Timers:
    """What both flavours have: timers read and change the state of their key, set others and emit to both outputs."""

    count = ValueState(int)
    last = ValueState(int, ttl="1h")
    values = ListState(int)
    total = ReducingState(lambda old, new: old + new, int)

    def on_timer(self, at, ctx):
        assert ctx.timestamp == at
        count = self.count.get(0)
        ruled = self.ruled()
        what = f"timer {self.last.get(-1)} {self.values.get()} {self.total.get(0)} {ctx.watermark}{ruled}"
        ctx.emit(Seen(ctx.key, what, count))
        self.count.set(count + 101)
        if count % 4 == 0:
            ctx.event_timer(at + timedelta(microseconds=3))
        if count % 16 == 1:
            ctx.event_timer(at - timedelta(microseconds=3))
        if count % 3 == 0:
            self.last.clear()
            ctx.emit_to(THIRD, Seen(ctx.key, "timer", count))

    def ruled(self):
        """What a broadcast stream has said."""
        return ""

    def take_row(self, value, ctx, what="row"):
        count = self.count.get(0) + 1
        self.count.set(count)
        before = self.last.get(-1)
        self.last.set(value)
        if value % 7 == 0:
            self.last.clear()
        self.values.update([value])
        self.total.add(value)
        ctx.event_timer(ctx.timestamp + timedelta(microseconds=value % 30 - 5))
        if value % 5 == 0:
            ctx.delete_event_timer(ctx.timestamp + timedelta(microseconds=5))
        made = Seen(ctx.key, f"{what} {before} {reached(ctx)}{self.ruled()}", count)
        if value % 3:
            ctx.emit(made)
        else:
            ctx.emit_to(THIRD, made)

    def take_batch(self, frame, ctx, what="row"):
        key, value = pl.col("key"), pl.col("value")
        kept = pl.when(value % 7 == 0).then(-1).otherwise(value)
        columns = frame.with_columns(
            earlier=self.count.get_many(ctx.keys, default=0),
            stored=self.last.get_many(ctx.keys, default=-1),
            watermark=ctx.watermarks.to_physical().fill_null(BEFORE_ALL),
            number=pl.int_range(1, pl.len() + 1).over(key),
            previous=kept.shift().over(key),
        ).with_columns(before=pl.when(pl.col("number") == 1).then("stored").otherwise("previous"))
        counts = columns.select(pl.col("earlier") + pl.col("number")).to_series()
        self.count.set_many(frame["key"], counts)
        self.last.set_many(ctx.keys, frame["value"])
        ends = frame.group_by("key", maintain_order=True).last()
        self.last.clear_many(ends.filter(value % 7 == 0)["key"])
        for each, number in frame.select("key", "value").rows():
            ctx.set_current_key(each)
            self.values.update([number])
            self.total.add(number)
        deleted = frame["value"] % 5 == 0
        # Row by row the next row of a key may set again what one deletes, so both go in the order of rows.
        timed = frame.with_columns(at=ctx.timestamps, deleted=deleted)
        for some in timed.iter_slices(frame.height if frame["key"].is_unique().all() else 1):
            ctx.event_timers(some["key"], _at(some))
            ctx.delete_event_timers(some.filter("deleted")["key"], some.filter("deleted")["at"].dt.offset_by("5us"))
        said = pl.format("{} {} {}{}", pl.lit(what), "before", "watermark", pl.lit(self.ruled()))
        made = columns.select("key", what=said, number=counts)
        third = frame["value"] % 3 == 0
        ctx.emit_to(THIRD, made.filter(third), rows=third)
        ctx.emit(made.filter(~third), rows=(~third).arg_true())


def _at(some):
    return some.select(pl.col("at") + pl.duration(microseconds=pl.col("value") % 30 - 5)).to_series()


def reached(ctx):
    """The watermark that a row sees, as a number."""
    return BEFORE_ALL if ctx.watermark is None else to_micros(ctx.watermark)


class ByRow(Timers, KeyedProcess[Row, Seen]):
    def on_row(self, row, ctx):
        self.take_row(row.value, ctx)


class ByBatch(Timers, KeyedProcess[Row, Seen]):
    def on_batch(self, frame, ctx):
        self.take_batch(frame, ctx)


def history(rng, inputs=1):
    """Batches, watermarks and restores: few keys, and event time moves on by so little that timers fall between rows."""
    steps = [batch_of, batch_of, batch_of, mark_of, restore_of, restore_of]
    return [rng.choice(steps)(rng, inputs) for _ in range(rng.randint(1, 4 + inputs))]


def batch_of(rng, inputs):
    now, moves = rng.randint(-15, 25), rng.random() < 0.9
    rows, times = [], []
    for _ in range(rng.randint(1, 9)):
        now += rng.choice([0, 0, 1, 2, 5, 9])
        rows.append((rng.choice(KEYS), now + rng.randint(-8, 20), rng.randint(0, 99)))
        times.append(now)
    return Batch(rows, times if moves else [], number=rng.randrange(inputs))


def mark_of(rng, inputs):
    return Mark(rng.randint(-60, 60), rng.choice([None, 0, 1]))


def restore_of(rng, inputs):
    return Restore(rng.randint(1, 3), [])


def node_of(process, keys=(("key",), ("name",)), sides=(THIRD,)):
    """A plan node of a process of one or two inputs, with event time."""
    *taken, given = process_types(process)
    inputs = tuple(
        input_node(schema_of(each, "input"), each, of, event_time=True)
        for each, of in zip(taken, keys, strict=False)
    )  # fmt: skip
    tags = {tag.name: schema_of(tag.row_type, "side") for tag in sides}
    return Node("n2", ProcessRows(process), inputs, schema_of(given, "out"), given, True, sides=tags)


def stored(snapshot):
    """The rows of a snapshot, in an order of their own."""
    keys = Schema((Field("key", STRING, nullable=True),))
    found = []
    for _, header, rows in decode_segments(snapshot.keyed, "tested", KIND, keys):
        states = [header["names"][index] for index in rows["__state"]]
        found += zip(states, rows.drop("__state").rows(), strict=True)
    return sorted(found, key=repr)


def results(frames, told=MIN_WATERMARK):
    """Each row with its event time, and whether whoever takes them in this order has been told that it is late.

    `told`: what everybody was told before a restore, which results need not repeat.
    """
    found = []
    for frame in frames:
        marks = (
            frame[WATERMARK].fill_null(MIN_WATERMARK) if WATERMARK in frame.columns else [MIN_WATERMARK] * len(frame)
        )
        for row, time, mark in zip(frame.select("key", "what", "number").rows(), frame[EVENT_TIME], marks, strict=True):
            told = max(told, mark)
            found.append((*row, time, time <= told))
    return found


def by_key(rows):
    return {key: [row for row in rows if row[0] == key] for key in KEYS}


class History:
    """Plays a history to one flavour after the other: at each restore the job goes on as the next one."""

    def __init__(self, parallelism, flavours, *, carries, keys=(("key",), ("name",))):
        self._flavours = flavours
        self._keys = keys
        self._carries = carries
        self._begin(parallelism, 0)
        self._outputs, self._states, self._frozen = [], [], []
        self._told = [MIN_WATERMARK]

    def _begin(self, parallelism, number, **options):
        self._number = number
        node = node_of(self._flavours[number % len(self._flavours)](), self._keys)
        self._harness = OperatorHarness(node, parallelism=parallelism, max_parallelism=GROUPS, **options)
        self._everywhere = [each in node.traits.broadcast_inputs for each in range(len(node.inputs))]
        self._reached = [MIN_WATERMARK] * parallelism

    def play(self, steps):
        """Results, side results and state."""
        for step in [*steps, Mark(MAX_WATERMARK, None)]:
            for operator in self._harness.operators:
                operator._carries = operator._run.carries = self._carries
            match step:
                case Batch():
                    self._batch(step)
                case Mark(watermark, subtask):
                    for each in self._subtasks() if subtask is None else [subtask % len(self._reached)]:
                        self._reached[each] = max(self._reached[each], watermark)
                        self._harness.watermark(self._reached[each], each)
                case Restore(count, _):
                    self._restore(count)
        self._end(self._harness.snapshot())
        outputs = list(zip(self._outputs, self._told, strict=True))
        main = [by_key(results(output.frames, told)) for output, told in outputs]
        sides = [by_key(results(output.sides.get("third", []), told)) for output, told in outputs]
        return main, sides, self._states

    def _subtasks(self):
        return range(len(self._reached))

    def _batch(self, batch):
        self._frozen.append(self._harness.freeze())  # written later: the state goes on in generations meanwhile
        if len(self._frozen) > len(batch.rows) % 3:
            self._keep(self._frozen.pop(0)())
        carried = []
        for index, row in enumerate(batch.rows):
            owner = subtask_of(group_of(row[0]), len(self._reached), GROUPS)
            owners = self._subtasks() if self._everywhere[batch.number] else [owner]
            for each in owners if index < len(batch.times) else ():
                self._reached[each] = max(self._reached[each], batch.times[index] or MIN_WATERMARK)
            carried.append(min(self._reached[each] for each in owners))
        frame = frame_of(batch.rows)
        if batch.number:
            frame = frame.select(pl.col("value").alias("number"), pl.col("key").alias("name"), EVENT_TIME)
        if batch.times:
            frame = frame.with_columns(pl.Series(WATERMARK, carried, pl.Int64))
        self._harness.frame(frame, batch.number)

    def _restore(self, parallelism):
        for each, watermark in enumerate(self._reached):
            self._harness.watermark(watermark, each)
        self._told.append(max(self._told[-1], *self._reached))
        snapshot, now_us = self._harness.snapshot(), self._harness.now_us
        self._end(snapshot)
        self._begin(parallelism, self._number + 1, restored=snapshot, now_us=now_us)

    def _keep(self, snapshot):
        self._states.append((stored(snapshot), snapshot.lists, snapshot.broadcast))

    def _end(self, snapshot):
        for each in (snapshot, *(write() for write in self._frozen)):
            self._keep(each)
        self._frozen.clear()
        self._outputs.append(self._harness.collected)
        self._harness.close()


def played(steps, parallelism, flavours, *, carries, keys=(("key",), ("name",))):
    """Results, side results and state of a history; at each restore the job goes on as the next flavour."""
    return History(parallelism, flavours, carries=carries, keys=keys).play(steps)
