"""What all sources have in common when they are declared: schema, event time, watermarks, the policy for bad rows.

Connectors pass on what the user wrote and get back checked values; errors name the connector.
"""

from __future__ import annotations

import typing
import zoneinfo
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack

from penstock.connectors.base import EventTime, Policy, WatermarkAlignment, WatermarkStrategy
from penstock.connectors.event_times import EventTimeForm, TimeUnit, event_time_form
from penstock.connectors.watermarks import bounded_out_of_orderness, for_rows
from penstock.core.times import Duration, duration_us
from penstock.errors import PipelineError, nearest
from penstock.expressions import Expr, col
from penstock.types import TIMESTAMP, Schema, is_row_class, row_class, schema_of

if TYPE_CHECKING:
    import pyarrow as pa

_OF_EVENT_TIME: Final = (
    "time_unit",
    "time_format",
    "max_out_of_orderness",
    "watermarks",
    "idle_after",
    "max_drift",
    "drift_group",
    "max_ahead",
)


class SourceOptions(TypedDict, total=False):
    """What every source takes beside its own options."""

    event_time: str | Expr | None
    """What of a row is its event time: a column or an expression. A timestamp, a date (its midnight in UTC), text, or a
    number; see `time_unit` and `time_format`. Rows without it are bad rows."""
    time_unit: TimeUnit | None
    """What a number counts since 1970-01-01T00:00:00Z: `"s"`, `"ms"`, `"us"` or `"ns"`."""
    time_format: str | None
    """Format of text that is not RFC 3339, such as `"%d.%m.%Y %H:%M"`."""
    max_out_of_orderness: Duration | None
    """How much later than the newest row before it a row of a split may come: one exactly so much later is in time.
    `"0s"` if not given."""
    watermarks: WatermarkStrategy | None
    """Another strategy instead: `periodic(...)` or `punctuated(...)`."""
    idle_after: Duration | None
    """How long a silent split holds the watermark back; None: for ever."""
    max_drift: Duration | None
    """How far the watermark of a split may be ahead of the slowest split before it is not read until that has caught up:
    of this source and of all others in the pipeline that say `max_drift`. None: it does not wait."""
    drift_group: str | None
    """Only sources that give the same name wait for each other."""
    max_ahead: Duration | None
    """How far ahead of the wall clock the event time of a row may be: a row beyond it, such as of a device whose clock is
    wrong, is a bad row and moves no watermark. `"30d"` if not given, no limit of a source that ends or makes its rows
    itself; None: no limit."""
    bad_rows: Policy
    """What becomes of records that are no rows: `"fail"` (if not given), `"skip"` (counted) or `"dead_letter"`."""
    timezone: str | None
    """Zone of naive timestamps in the data, in a pyarrow.Schema, and of text without an offset. A time that its clocks
    show twice is the first one (of a `datetime` with `fold=1` the second); one that they skip makes a bad row."""


@dataclass(frozen=True)
class Declared:
    """The checked common attributes of a source."""

    schema: Schema
    row_type: type[Any] | None
    event_time: EventTime | None
    bad_rows: Policy
    timezone: str | None


def declare(what: str, schema: object, hidden: str | None = None, **options: Unpack[SourceOptions]) -> Declared:
    """Check the common options of a source.

    Args:
        what: the connector, which leads error messages, such as `files.Source`.
        schema: dataclass, msgspec.Struct, pyarrow.Schema or Schema.
        hidden: a timestamp that its frames have beside that, if `event_time` is it.
        **options: as the user gave them.

    Raises:
        PipelineError: one of them does not fit.
    """
    timezone, policy = options.get("timezone"), options.get("bad_rows", "fail")
    zone(timezone, what)
    columns = schema_of(_with_zone(schema) if timezone is not None else schema, f"{what}: schema")
    if policy not in typing.get_args(Policy):
        raise PipelineError(f"{what}: there is no bad_rows={policy!r}; {nearest(policy, typing.get_args(Policy))}")
    row_type = schema if isinstance(schema, type) and is_row_class(schema) else None
    named = options.get("event_time")
    if named is None:
        for name in _OF_EVENT_TIME:
            if options.get(name) is not None:
                raise PipelineError(f"{what}: {name}= needs event_time=, the column that it is about")
        return Declared(columns, row_type, None, policy, timezone)
    if hidden is not None:
        form = EventTimeForm(col(hidden), columns, TIMESTAMP, hidden=True)
    else:
        columns, form = _with_event_time(what, columns, named, options)
    strategy = watermark_strategy(what, options.get("max_out_of_orderness"), options.get("watermarks"))
    strategy = for_rows(strategy, row_type or row_class(columns))
    idle_after = options.get("idle_after")
    idle_after_us = None if idle_after is None else duration_us(idle_after, f"{what}: idle_after", positive=True)
    event_time = EventTime(form, strategy, idle_after_us, _alignment(what, options), _max_ahead(what, options))
    return Declared(columns, row_type, event_time, policy, timezone)


def _max_ahead(what: str, options: SourceOptions) -> int | Literal["default"] | None:
    if "max_ahead" not in options:
        return "default"
    given = options["max_ahead"]
    return None if given is None else duration_us(given, f"{what}: max_ahead", positive=True)


def _alignment(what: str, options: SourceOptions) -> WatermarkAlignment | None:
    max_drift, group = options.get("max_drift"), options.get("drift_group")
    if max_drift is None:
        if group is not None:
            raise PipelineError(f"{what}: drift_group= needs max_drift=, how far ahead its splits may be")
        return None
    return WatermarkAlignment(duration_us(max_drift, f"{what}: max_drift", positive=True), group or "")


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


def _with_event_time(
    what: str, columns: Schema, event_time: str | Expr, options: SourceOptions
) -> tuple[Schema, EventTimeForm]:
    """The schema, whose event time column is never null in a row, and how event time is read."""
    form = event_time_form(
        what,
        event_time,
        columns,
        unit=options.get("time_unit"),
        format=options.get("time_format"),
        timezone=options.get("timezone"),
    )
    if not isinstance(event_time, str):
        return columns, form
    given = tuple(replace(each, nullable=False) if each.name == event_time else each for each in columns)
    return Schema(given), form


def watermark_strategy(
    what: str, max_out_of_orderness: Duration | None, watermarks: WatermarkStrategy | None
) -> WatermarkStrategy:
    """The strategy of which one at most is given; that rows come in order if none is.

    Raises:
        PipelineError: both are given, or one is no such thing.
    """
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
