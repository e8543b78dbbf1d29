"""From a table of Iceberg to another one: windows of a minute, and every row in two tables."""

from dataclasses import dataclass
from datetime import datetime

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import iceberg


@dataclass
class Event:
    number: int
    key: str
    value: int
    at: datetime


catalog = {name: param(name, "") for name in ("type", "uri", "warehouse")}
out = param("out", "shop.minutes")

p = Pipeline("tables")
read = p.read(iceberg.Source("shop.events", catalog=catalog, schema=Event, event_time="at", max_out_of_orderness="1h"))
minutes = read.key_by("key").window(tumbling("1m")).agg(n=count(), total=col("value").sum())
minutes.write(iceberg.Sink(out, catalog=catalog, partition_by=["day(window_start)"]))
