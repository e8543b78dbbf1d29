"""The job that is tormented: one topic of events, three exactly-once sinks whose right content is known."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from datetime import datetime

from penstock import Pipeline, col, count, tumbling
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


def tag(event: Event) -> Tagged:
    """Not deterministic, on purpose."""
    return Tagged(event.id, event.key, event.part, secrets.token_hex(secrets.randbelow(24) + 1), os.getpid())


p = Pipeline("chaos")
events = p.read(kafka.Source("events", schema=Event, event_time="at", max_out_of_orderness="2s")).uid("events")

events.map(tag).uid("tag").write(kafka.Sink("tagged", key="key")).uid("tagged")

(
    events.key_by("key")
    .window(tumbling("1s"))
    .agg(rows=count(), total=col("value").sum(), first=col("id").min(), last=col("id").max())
    .uid("per-second")
    .write(kafka.Sink("windows", key="key"))
    .uid("windows")
)

(
    events.filter(col("value") % 3 == 0)
    .select("id", "key", "part", doubled=col("value") * 2)
    .uid("filter")
    .write(kafka.Sink("filtered", key="key"))
    .uid("filtered")
)
