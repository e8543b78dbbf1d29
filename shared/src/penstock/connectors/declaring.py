"""What all sources have in common when they are declared: schema, event time, watermarks, the policy for bad rows.

Connectors pass on what the user wrote and get back checked values; errors name the connector.
"""

from __future__ import annotations

import typing
import zoneinfo
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.connectors.base import EventTime, Policy, WatermarkStrategy
from penstock.connectors.watermarks import bounded_out_of_orderness, for_rows
from penstock.errors import PipelineError, nearest
from penstock.times import Duration, duration_us
from penstock.types import TIMESTAMP, Schema, is_row_class, row_class, schema_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Declared:
    """The checked common attributes of a source."""

    schema: Schema
    row_type: type[Any] | None
    event_time: EventTime | None
    bad_rows: Policy


def declare(
    what: str,
    schema: object,
    *,
    event_time: str | None = None,
    max_out_of_orderness: Duration | None = None,
    watermarks: WatermarkStrategy | None = None,
    idle_after: Duration | None = None,
    bad_rows: str = "fail",
    timezone: str | None = None,
) -> Declared:
    """Check the common parameters of a source.

    Args:
        what: the connector, which leads error messages, such as `files.Source`.
        schema: dataclass, msgspec.Struct, pyarrow.Schema or Schema.
        event_time: name of a timestamp column. Rows without it are bad rows, so it counts as not nullable.
        max_out_of_orderness: how much later than the newest row before it a row may come; `"0s"` if not given.
        watermarks: another strategy instead.
        idle_after: how long a silent split holds the watermark back; None: for ever.
        bad_rows: `fail`, `skip` or `dead_letter`.
        timezone: zone of naive timestamps in the data (and in a pyarrow.Schema).

    Raises:
        PipelineError: one of them does not fit.
    """
    zone(timezone, what)
    columns = schema_of(_with_zone(schema) if timezone is not None else schema, f"{what}: schema")
    if bad_rows not in typing.get_args(Policy):
        raise PipelineError(f"{what}: there is no bad_rows={bad_rows!r}; {nearest(bad_rows, typing.get_args(Policy))}")
    row_type = schema if isinstance(schema, type) and is_row_class(schema) else None
    if event_time is None:
        given = {"max_out_of_orderness": max_out_of_orderness, "watermarks": watermarks, "idle_after": idle_after}
        for name, value in given.items():
            if value is not None:
                raise PipelineError(f"{what}: {name}= needs event_time=, the column that it is about")
        return Declared(columns, row_type, None, typing.cast("Policy", bad_rows))
    columns = _with_event_time(columns, event_time, what)
    strategy = _strategy(what, max_out_of_orderness, watermarks)
    strategy = for_rows(strategy, row_type or row_class(columns))
    idle_after_us = None if idle_after is None else duration_us(idle_after, f"{what}: idle_after", positive=True)
    time = EventTime(event_time, strategy, idle_after_us)
    return Declared(columns, row_type, time, typing.cast("Policy", bad_rows))


def zone(timezone: str | None, what: str) -> zoneinfo.ZoneInfo | None:
    """The zone of that name.

    Raises:
        PipelineError: there is none.
    """
    if timezone is None:
        return None
    try:
        return zoneinfo.ZoneInfo(timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise PipelineError(
            f"{what}: there is no time zone {timezone!r}; write for example 'UTC' or 'Europe/Berlin'"
        ) from error


def freeze(target: object, **attributes: Any) -> None:
    """Set attributes of a frozen dataclass whose constructor takes other parameters than it has attributes."""
    for name, value in attributes.items():
        object.__setattr__(target, name, value)


def _with_event_time(columns: Schema, name: str, what: str) -> Schema:
    field = columns.field(name, f"{what}: event_time")
    if field.type != TIMESTAMP:
        times = [other.name for other in columns if other.type == TIMESTAMP]
        raise PipelineError(
            f"{what}: event_time={name!r} is a column of {field.type}; it must be a timestamp (datetime); "
            + ("there are: " + ", ".join(times) if times else "there is none, declare one in the schema")
        )
    return Schema(tuple(replace(other, nullable=False) if other.name == name else other for other in columns))


def _strategy(
    what: str, max_out_of_orderness: Duration | None, watermarks: WatermarkStrategy | None
) -> WatermarkStrategy:
    if watermarks is None:
        bound = "0s" if max_out_of_orderness is None else max_out_of_orderness
        return bounded_out_of_orderness(duration_us(bound, f"{what}: max_out_of_orderness"))
    if max_out_of_orderness is not None:
        raise PipelineError(f"{what}: give either max_out_of_orderness= or watermarks=, not both")
    if not isinstance(watermarks, WatermarkStrategy):
        raise PipelineError(f"{what}: watermarks= is periodic(...) or punctuated(...), got {watermarks!r}")
    return watermarks


def _with_zone(schema: object) -> object:
    """A pyarrow schema whose naive timestamps are UTC, since they will be converted; anything else unchanged."""
    if type(schema).__module__.split(".")[0] != "pyarrow" or type(schema).__name__ != "Schema":
        return schema
    import pyarrow as pa

    fields: list[Any] = []
    for field in typing.cast("pa.Schema", schema):
        naive = pa.types.is_timestamp(field.type) and field.type.tz is None
        fields.append(field.with_type(pa.timestamp("us", "UTC")) if naive else field)
    return pa.schema(fields)
