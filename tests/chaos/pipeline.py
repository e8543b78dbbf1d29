"""The job that is tormented: one topic of events, seven exactly-once sinks whose right content is known."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from datetime import datetime

from penstock import KeyedContext, KeyedProcess, MapState, Pipeline, ReducingState, ValueState, col, count, tumbling
from penstock.connectors import kafka


@dataclass
class Event:
    """What the harness writes."""

    id: int
    key: str
    part: int
    value: int
    at: datetime


@dataclass
class Tagged:
    """An event with what differs in every attempt: rows of two attempts can never pass for one another."""

    id: int
    key: str
    part: int
    tag: str
    process: int


@dataclass
class Numbered:
    """An event with what its key had before it: all of that is state."""

    id: int
    key: str
    number: int
    total: int
    former: int


class Numbering(KeyedProcess[Event, Numbered]):
    """Its state grows with every event; a value is read that was written long ago."""

    number = ValueState(int)
    total = ReducingState(lambda old, new: old + new, int)
    values = MapState(int, int)

    def on_row(self, row: Event, ctx: KeyedContext[Numbered]) -> None:
        number = (self.number.get() or 0) + 1
        self.number.set(number)
        self.total.add(row.value)
        self.values.set(number, row.value)
        former = self.values.get((number + 1) // 2)
        ctx.emit(Numbered(row.id, row.key, number, self.total.get() or 0, -1 if former is None else former))


def tag(event: Event) -> Tagged:
    """Not deterministic, on purpose."""
    return Tagged(event.id, event.key, event.part, secrets.token_hex(secrets.randbelow(24) + 1), os.getpid())


p = Pipeline("chaos")
events = p.read(kafka.Source("events", schema=Event, event_time="at", max_out_of_orderness="2s")).uid("events")

events.map(tag).uid("tag").write(kafka.Sink("tagged", key="key")).uid("tagged")

# What waits for no checkpoint has a source of its own: a transaction has rows and where a partition goes on.
straight = p.read(kafka.Source("events", schema=Event)).uid("events-again")
straight.map(tag).uid("tag-again").write(kafka.Sink("straight", key="key", publish="direct")).uid("straight")

(
    events.key_by("key")
    .window(tumbling("1s"))
    .agg(rows=count(), total=col("value").sum(), first=col("id").min(), last=col("id").max())
    .uid("per-second")
    .write(kafka.Sink("windows", key="key"))
    .uid("windows")
)

events.key_by("key").process(Numbering()).uid("number").write(kafka.Sink("numbered", key="key")).uid("numbered")

(
    events.filter(col("value") % 3 == 0)
    .select("id", "key", "part", doubled=col("value") * 2)
    .uid("filter")
    .write(kafka.Sink("filtered", key="key"))
    .uid("filtered")
)

blocks = events.with_columns(block=col("id") // 10_000)
counts = blocks.key_by("key", "block").agg(rows=count()).uid("count")
joined = (
    blocks.filter(col("value") % 50 == 0)
    .select("id", "key", "block")
    .join(counts.select("key", "block", fifties=col("rows") // 50), on=["key", "block"])
    .uid("join")
)
joined.write(kafka.Sink("joined", key="key")).uid("joined")
joined.write(kafka.Sink("newest", key="id", delivery="upsert")).uid("newest")
