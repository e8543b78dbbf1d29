"""More bytes through an exchange than an executor has memory, and how much memory the task behind it came to."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from penstock import Pipeline, Row, col, count, param, tumbling
from penstock.connectors import files, generate

WIDTH = int(param("width", 1_000))
SPLITS = 32
"""A generator makes as many rows at a time as are asked for, however wide; a file is read in pieces of some MiB."""
START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


@dataclass
class Event:
    number: int
    key: int
    at: datetime
    text: str


@dataclass
class Counted:
    key: int
    n: int
    longest: int
    peak_mib: int


def events(numbers: Any) -> pl.DataFrame:
    """Texts that do not compress to nothing."""
    given = pl.Series("number", numbers)
    words = [pl.Series(generate.random_bits(numbers, seed)).cast(pl.String) for seed in range(8)]
    times = max(1, WIDTH // 160)
    text = pl.select(pl.concat_str(words).str.pad_end(160, "x")).to_series()
    at = (START_US + given * 10_000).cast(pl.Datetime("us", "UTC"))
    columns = {"number": given, "key": given % 1_000, "at": at}
    return pl.DataFrame(columns).with_columns(text=pl.concat_str([text] * times))


def measured(row: Row) -> Counted:
    """With the most memory that the task's process has had."""
    return Counted(row.key, row.n, row.longest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)


p = Pipeline("wide")
read = p.read(generate.Source(events, schema=Event, rows=int(param("rows", 1_000)), splits=SPLITS, event_time="at"))
windows = read.key_by("key").window(tumbling("1d")).agg(n=count(), longest=col("text").str.len_bytes().max())
windows.map(measured).write(files.Sink(Path(param("out", "out"))))
