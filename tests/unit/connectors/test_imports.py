"""Importing the connectors is cheap."""

from __future__ import annotations

import subprocess
import sys


def test_declaring_a_pipeline_loads_no_data_library() -> None:
    """Importing every connector and declaring sources and sinks loads neither Polars nor pyarrow nor numpy."""
    program = """
import sys
from dataclasses import dataclass
from datetime import datetime
from penstock.connectors import collecting, console, files, generate, http, iterables, kafka, nexmark, redis, sockets
from penstock.connectors import postgres, sqlite, watermarks

@dataclass
class Row:
    at: datetime

files.Source("x.jsonl", schema=Row, event_time="at", max_out_of_orderness="9h")
generate.Source(nexmark.bids(), rows=1)
sockets.Source("localhost", 1, schema=Row, event_time="at", watermarks=watermarks.periodic(lambda newest: newest))
iterables.Source([], schema=Row)
sqlite.Source("shop.db", "orders", schema=Row)
for lookup in (http.Lookup("http://h/{at}", schema=Row), redis.Lookup("{at}", schema=Row, url="redis://h"),
    postgres.Lookup("t", schema=Row, url="postgresql://h/d")):
    lookup.describe()
for sink in (files.Sink("out"), console.Sink(), collecting.Sink(), kafka.Sink("t", key="at"),
             postgres.Sink("t", url="postgresql://h/d"), redis.Sink("{at}", url="redis://h"),
             redis.StreamSink("s", url="redis://h"), sqlite.Sink("shop.db", "orders", key="at")):
    sink.describe()
heavy = {"polars", "pyarrow", "numpy", "aiokafka", "confluent_kafka", "psycopg", "redis", "httpx2"}
print(sorted(heavy & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
