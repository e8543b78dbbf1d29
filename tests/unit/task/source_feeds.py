"""A source whose rows tests give by hand, and the driver of one subtask that reads it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from penstock.connectors import iterables
from penstock.connectors.base import EndOfSplit, Fetched, ReadContext, Split
from penstock.core.times import to_micros
from penstock.protocol.messages import OperatorMetrics
from penstock.task.alignment import SourceAlignment
from penstock.task.sources import SourceDriver

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Event:
    at: datetime


class Feed:
    """The reader of a split whose rows are the seconds of their event times; `open` while more may come."""

    def __init__(self, seconds: list[int], batch: int = 1, at: int = 0, *, is_all: bool = True) -> None:
        self.seconds, self.batch, self.at, self.open, self.is_all = seconds, batch, at, False, is_all

    async def read(self, max_rows):
        found = self.seconds[self.at : self.at + self.batch]
        if not found and not self.open:
            raise EndOfSplit
        self.at += len(found)
        frame = pl.DataFrame({"at": [START + timedelta(seconds=s) for s in found]})
        return Fetched(frame, is_all=self.is_all) if found else None

    def position(self):
        return self.at

    async def close(self):
        pass


class Feeds(iterables.Source):
    """A split per feed."""

    def __init__(self, feeds: dict[str, Feed], **options: Any) -> None:
        super().__init__([], schema=Event, event_time="at", **options)
        self.feeds = feeds

    def discover(self):
        return [Split(name) for name in sorted(self.feeds)]

    def open(self, split, position, context):
        feed = self.feeds[split.id]
        feed.at = position or 0
        return feed


class Time:
    """A monotonic clock that is set by hand."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


async def driver(
    source: Feeds, alignment: SourceAlignment | None = None, time: Time | None = None, entries=()
) -> SourceDriver:
    async def remember(split, position):
        return position

    context = ReadContext(lambda: to_micros(START), time or Time(), 1)
    found = SourceDriver(source, 0, 1, context, OperatorMetrics(), remember, alignment=alignment)
    await found.open(entries)
    return found
