"""The event time of rows: another one, and which column holds it."""

from __future__ import annotations

from penstock.connectors.base import EventTime, WatermarkStrategy
from penstock.connectors.declaring import watermark_strategy, zone
from penstock.connectors.event_times import TimeUnit, event_time_form
from penstock.connectors.watermarks import bounded_out_of_orderness, for_rows
from penstock.core.times import Duration, duration_us
from penstock.errors import PipelineError
from penstock.expressions import Expr
from penstock.expressions.nodes import Column
from penstock.functions.patterns.definitions import Regular
from penstock.plan.building.rows import Rows
from penstock.plan.logical import Node
from penstock.plan.operations.event_time import AssignEventTime, AssignProcessingTime
from penstock.plan.operations.match_rows import MatchRows
from penstock.plan.operations.project import Project
from penstock.plan.operations.read import Read


def with_event_time(
    rows: Rows,
    event_time: str | Expr,
    time_unit: TimeUnit | None,
    time_format: str | None,
    timezone: str | None,
    max_out_of_orderness: Duration | None,
    watermarks: WatermarkStrategy | None,
    watermark_delay: Duration | None = None,
) -> Rows:
    """A column or an expression as event time, with watermarks of its own or, so much later, with those that there are.

    Raises:
        PipelineError: event time cannot be read from such values, or there are no watermarks to be held back.
    """
    what, node = "with_event_time", rows.node
    zone(timezone, what)
    form = event_time_form(what, event_time, node.schema, unit=time_unit, format=time_format, timezone=timezone)
    rows.check_unread(what, {str(form.expression): form.expression})
    if watermark_delay is None:
        strategy = for_rows(watermark_strategy(what, max_out_of_orderness, watermarks), node.row_type)
    else:
        check_in_event_time(node, f"{what}: watermark_delay")
        if max_out_of_orderness is not None or watermarks is not None:
            raise PipelineError(
                f"{what}: watermark_delay= holds back the watermarks that there are, and max_out_of_orderness= and "
                "watermarks= make others; give one of them"
            )
        strategy = bounded_out_of_orderness(duration_us(watermark_delay, f"{what}: watermark_delay"))
    operation = AssignEventTime(EventTime(form, strategy), delays_input=watermark_delay is not None)
    return rows.derive(operation, node.schema, node.row_type, event_time=True, mode=node.mode)


def with_processing_time(rows: Rows, every: Duration) -> Rows:
    """The moment at which a row passes as event time."""
    operation = AssignProcessingTime(duration_us(every, "with_processing_time: every", positive=True))
    return rows.derive(operation, rows.schema, rows.node.row_type, event_time=True)


def check_in_event_time(node: Node, verb: str) -> None:
    """Raise `PipelineError` if rows have no event time, by which `verb` puts them in order."""
    if not node.event_time:
        raise PipelineError(
            f"{verb}: the stream has no event time, by which its rows are ordered; say event_time='column' at the "
            "source, or with_event_time(...)"
        )


def event_time_column(node: Node) -> str | None:
    """The column that holds the event time of rows as it is; None if none does."""
    if not node.event_time:
        return None
    match node.operation:
        case Read(source=source):
            time = source.event_time
        case AssignEventTime(event_time=time):
            pass
        case Project(columns=columns):
            above = event_time_column(node.inputs[0])
            plain = ((name, expr.node) for name, expr in columns)
            return next((name for name, expr in plain if isinstance(expr, Column) and expr.name == above), None)
        case MatchRows(regular=Regular(rowtime=str() as name)):
            return name
        case _ if len(node.inputs) == 1 and node.traits.row_times == "kept" and node.schema == node.inputs[0].schema:
            return event_time_column(node.inputs[0])
        case _:
            return None
    if time is None or time.form.hidden or not isinstance(time.form.expression.node, Column):
        return None
    plain = time.form.unit is None and time.form.format is None
    name = time.form.expression.node.name
    return name if plain and name in node.schema else None
