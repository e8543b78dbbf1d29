"""From an object store to an object store: windows of a minute in a folder per day."""

from dataclasses import dataclass
from datetime import datetime

from penstock import Pipeline, col, count, param, tumbling
from penstock.connectors import files


@dataclass
class Event:
    number: int
    key: str
    value: int
    at: datetime


options = (
    {name: param(name, "") for name in ("endpoint_url", "access_key_id", "secret_access_key")}
    if param("s3", "")
    else None
)

p = Pipeline("stored")
minutes = (
    p.read(
        files.Source(
            param("source", "in"), schema=Event, event_time="at", max_out_of_orderness="1h", storage_options=options
        )
    )
    .key_by("key")
    .window(tumbling("1m"))
    .agg(n=count(), total=col("value").sum())
    .with_columns(day=col("window_start").dt.date())
)
minutes.write(
    files.Sink(param("out", "out"), format="parquet", partition_by=["day"], existing="replace", storage_options=options)
)
