"""What may notice that a file is read in parts: `--param in=FOLDER --param out=FOLDER --param case=NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from penstock import KeyedContext, KeyedProcess, OutputTag, Pipeline, col, count, param, session, tumbling
from penstock.connectors import files


@dataclass
class Event:
    number: int
    key: str
    at: datetime
    text: str


@dataclass
class Seen:
    key: str
    number: int


class InOrder(KeyedProcess[Event, Seen]):
    """Passes on what comes, in the order in which it does."""

    def on_row(self, row: Event, ctx: KeyedContext[Seen]) -> None:
        ctx.emit(Seen(row.key, row.number))


LATE = OutputTag("late", Event)
_out = Path(param("out", "out"))


def _source(event_time: str | None) -> files.Source[Event]:
    return files.Source(
        param("in", "in"), schema=Event, event_time=event_time, max_out_of_orderness="1s" if event_time else None,
        bad_rows="dead_letter",
    )  # fmt: skip


p = Pipeline("large")
_read = p.read(_source("at"))
_keyed = _read.key_by("key")
if param("case", "plain") == "plain":
    _read.filter(col("number") % 3 == 0).write(files.Sink(_out / "filtered"))
    _read.dead_letters().select("raw", "where").write(files.Sink(_out / "dead"))
    _keyed.window(tumbling("10s")).agg(n=count(), total=col("number").sum()).uid("windows").write(
        files.Sink(_out / "windows")
    )
    _keyed.window(session("1s")).agg(n=count(), all=col("number").collect()).write(files.Sink(_out / "sessions"))
    _keyed.process(InOrder()).write(files.Sink(_out / "process"))
    _untimed = p.read(_source(None)).key_by("key")
    _untimed.agg(all=col("number").collect(), n=count()).write(files.Sink(_out / "untimed"))
else:
    _windows = _keyed.window(tumbling("10s")).late_to(LATE).agg(n=count())
    _windows.write(files.Sink(_out / "windows"))
    _windows.side(LATE).select("number").write(files.Sink(_out / "late"))
