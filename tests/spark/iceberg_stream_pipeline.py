"""From a table that grows to another one."""

from dataclasses import dataclass

from penstock import Pipeline, param
from penstock.connectors import iceberg


@dataclass
class Event:
    key: str
    value: int


catalog = {name: param(name, "") for name in ("type", "uri", "warehouse")}

p = Pipeline("stream")
events = p.read(iceberg.Source("shop.events", catalog=catalog, schema=Event, follow=True, splits=3)).uid("events")
events.write(iceberg.Sink(param("out", "shop.totals"), catalog=catalog)).uid("out")
