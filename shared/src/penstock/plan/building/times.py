"""Another event time for rows."""

from __future__ import annotations

from penstock.connectors.base import EventTime, WatermarkStrategy
from penstock.connectors.declaring import watermark_strategy, zone
from penstock.connectors.event_times import TimeUnit, event_time_form
from penstock.connectors.watermarks import for_rows
from penstock.core.times import Duration, duration_us
from penstock.expressions import Expr
from penstock.plan.building.rows import Rows
from penstock.plan.operations.event_time import AssignEventTime, AssignProcessingTime


def with_event_time(
    rows: Rows,
    event_time: str | Expr,
    time_unit: TimeUnit | None,
    time_format: str | None,
    timezone: str | None,
    max_out_of_orderness: Duration | None,
    watermarks: WatermarkStrategy | None,
) -> Rows:
    """A column or an expression as event time, with watermarks of its own.

    Raises:
        PipelineError: event time cannot be read from such values.
    """
    what, node = "with_event_time", rows.node
    zone(timezone, what)
    form = event_time_form(what, event_time, node.schema, unit=time_unit, format=time_format, timezone=timezone)
    rows.check_unread(what, {str(form.expression): form.expression})
    strategy = for_rows(watermark_strategy(what, max_out_of_orderness, watermarks), node.row_type)
    operation = AssignEventTime(EventTime(form, strategy))
    return rows.derive(operation, node.schema, node.row_type, event_time=True, mode=node.mode)


def with_processing_time(rows: Rows, every: Duration) -> Rows:
    """The moment at which a row passes as event time."""
    operation = AssignProcessingTime(duration_us(every, "with_processing_time: every", positive=True))
    return rows.derive(operation, rows.schema, rows.node.row_type, event_time=True)
