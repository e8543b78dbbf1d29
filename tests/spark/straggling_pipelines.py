"""Tasks that are slow or lose their executor, before and behind an exchange, with sinks at both places.

The first attempt that gets to a row waits for a minute, or until it is killed; attempts leave a note of who they are.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from penstock import KeyedContext, KeyedProcess, Pipeline, ValueState, param
from penstock.connectors import files, generate, kafka

OUT = Path(param("out", "out"))
NOTES = Path(param("notes", "notes"))
BROKERS = param("brokers", "localhost:9092")
SLOW_ROW = 777
WAIT_S = 60
START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


@dataclass
class Event:
    number: int
    key: str
    at: datetime


def events(numbers) -> pl.DataFrame:
    given = pl.Series("number", numbers)
    at = (START_US + given * 1_000_000).cast(pl.Datetime("us", "UTC"))
    return pl.DataFrame({"number": given, "key": "k" + (given % 7).cast(pl.String), "at": at})


def wait_if_first(place: str) -> None:
    """Note this attempt: its process and its executor's, which started the daemon that started this process."""
    daemon = os.getppid()
    executor = Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1]
    notes = NOTES / place
    notes.mkdir(parents=True, exist_ok=True)
    (notes / f"{time.time_ns()}-{executor}").touch()
    if len(list(notes.iterdir())) == 1:
        time.sleep(WAIT_S)


def before(event: Event) -> Event:
    if event.number == SLOW_ROW:
        wait_if_first("before")
    return event


class Numbered(KeyedProcess[Event, Event]):
    """Counts the rows of a key: wrong if a row came twice or an attempt began with the state of another one."""

    seen = ValueState(int)

    def on_row(self, row: Event, ctx: KeyedContext[Event]) -> None:
        if row.number == SLOW_ROW:
            wait_if_first("behind")
        ctx.emit(Event(self.seen.get(0), row.key, row.at))
        self.seen.set(self.seen.get(0) + 1)


def topic(name: str) -> kafka.Sink:
    return kafka.Sink(param(name, name), key="key", brokers=BROKERS, create_partitions=2)


p = Pipeline("straggling")
source = generate.Source(events, schema=Event, rows=int(param("rows", 2_000)), splits=4, event_time="at")
read = p.read(source).map(before)
read.write(files.Sink(OUT / "before"))
read.write(topic("before"))
behind = read.key_by("key").process(Numbered()).uid("numbered")
behind.write(files.Sink(OUT / "behind"))
behind.write(topic("behind"))
