"""Plan nodes of windows whose rows are kept: functions over them, and aggregates when a trigger fires."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError
from penstock.expressions import Expr, keeps_values
from penstock.functions.process_functions import type_arguments
from penstock.functions.windows.definitions import GlobalWindow, RowWindow, SessionWindow, window_bounds
from penstock.functions.windows.partials import of_partials, schema_of_partials
from penstock.functions.windows.process import WindowProcess
from penstock.functions.windows.results import AggregateProcess, Fired, FunctionProcess, PlainFunction, typed
from penstock.functions.windows.triggers import PurgingTrigger, Trigger, at_watermark, every_rows, purging
from penstock.functions.windows.window_functions import TimeWindow, WindowFunction
from penstock.plan.building.aggregates import planned_aggregates
from penstock.plan.building.functions import check_row_type, returned_class
from penstock.plan.building.rows import Rows
from penstock.plan.building.schemas import aggregates_schema
from penstock.plan.logical import Node
from penstock.plan.operations.window_rows import WindowRows
from penstock.plan.traits import Mode
from penstock.types import Field, Schema, is_row_class, row_class, schema_of

if TYPE_CHECKING:
    from penstock.expressions import AggregatePlan
    from penstock.functions.process_functions import OutputTag

Applied = WindowFunction[Any, Any] | Callable[[Any, TimeWindow, list[Any]], Iterable[Any]]


@dataclass(frozen=True)
class RowWindows:
    """What was said of windows whose rows are kept."""

    window: RowWindow
    trigger: Trigger
    lateness_us: int = 0
    late: OutputTag[Any] | None = None
    count: tuple[int, int] | None = None

    @property
    def purges(self) -> bool:
        """Whether every result is of what came since the last one."""
        return isinstance(self.trigger, PurgingTrigger)

    @property
    def updates(self) -> bool:
        """Whether a result may replace an earlier one."""
        fires_once = type(self.trigger) is type(at_watermark()) and not self.lateness_us
        return not self.purges and not fires_once

    @property
    def window_fields(self) -> tuple[Field, ...]:
        """What a result of aggregates says of its window."""
        if isinstance(self.window, GlobalWindow):
            return ()
        return window_bounds(retracts=self.retracts)

    @property
    def retracts(self) -> bool:
        """Whether a window that was sent may be no more."""
        return isinstance(self.window, SessionWindow) and self.updates

    def arguments(self) -> dict[str, Any]:
        """What the process is made with."""
        last = None if self.count is None or self.count[0] == self.count[1] else self.count[0]
        said = {"window": self.window, "trigger": self.trigger, "lateness_us": self.lateness_us, "late": self.late}
        return {**said, "last": last}


def count_windows(size: int, every: int) -> RowWindows:
    """Flink's countWindow: a global window that fires by count and then forgets what no later result needs."""
    trigger = purging(every_rows(size)) if size == every else every_rows(every)
    return RowWindows(GlobalWindow(), trigger, count=(size, every))


def apply_to_windows(keyed: Rows, said: RowWindows, function: Applied, returns: type[Any] | None) -> Rows:
    """A function over the rows of windows."""
    _check(keyed, said, "apply")
    given = _returned(keyed, function, returns)
    name = getattr(function, "__qualname__", type(function).__name__)
    wrapped = function if isinstance(function, WindowFunction) else PlainFunction(function)
    made = typed(FunctionProcess, name, keyed.node.row_type, given)
    return _derived(keyed, said, made(wrapped, **said.arguments()), schema_of(given, "apply"), given)


def aggregate_fired_windows(keyed: Rows, said: RowWindows, aggregates: dict[str, Expr]) -> Rows:
    """Aggregates of the rows of windows."""
    _check(keyed, said, "agg")
    source = keyed.node
    plan = planned_aggregates(source, aggregates)
    schema = aggregates_schema(source.schema.select(source.keys), said.window_fields, plan.output_fields)
    process = _aggregating(said, source, plan, tuple(aggregates.values()))
    return _derived(keyed, said, process, schema, row_class(schema), tuple(aggregates.items()))


def _aggregating(said: RowWindows, source: Node, plan: AggregatePlan, aggregates: Iterable[Expr]) -> Any:
    """The process that holds partials, or rows where no partial is less than they are."""
    made: Any = of_partials(source.row_type, row_class(schema_of_partials(plan)))
    if said.arguments()["last"] is not None or any(map(keeps_values, aggregates)):
        made = typed(AggregateProcess, "agg", source.row_type, Fired)
    return made(retracts=said.retracts, **said.arguments())


def _derived(
    keyed: Rows,
    said: RowWindows,
    process: WindowProcess,
    schema: Schema,
    row_type: type[Any],
    aggregates: tuple[tuple[str, Expr], ...] = (),
) -> Rows:
    operation = WindowRows(
        process, said.window, said.trigger, said.lateness_us, said.late, aggregates, said.window_fields, said.count
    )
    source = keyed.node
    timed = source.event_time and (said.count is not None or not isinstance(said.window, GlobalWindow))
    keys = source.keys if aggregates else ()
    mode: Mode = "upsert" if aggregates and said.updates else "append"
    return keyed.derive(operation, schema, row_type, event_time=timed, keys=keys, mode=mode, late=said.late)


def _check(keyed: Rows, said: RowWindows, verb: str) -> None:
    if said.trigger.timers == "event" and not keyed.node.event_time:
        raise PipelineError(
            f"{verb}: {said.trigger.describe()} goes by event time, and the stream has none; say event_time='column' at "
            "the source, or every(..., time='processing')"
        )


def _returned(keyed: Rows, function: Applied, returns: type[Any] | None) -> type[Any]:
    if isinstance(function, type):
        raise PipelineError(f"apply: give an object, not the class: .apply({function.__name__}())")
    if not isinstance(function, WindowFunction):
        return returned_class(function, returns, "apply", many=True)
    name = type(function).__name__
    found = type_arguments(type(function), WindowFunction)
    if found is None or not all(isinstance(each, type) and is_row_class(each) for each in found):
        raise PipelineError(
            f"apply: class {name} does not say what rows it takes and gives; write for example "
            f"'class {name}(WindowFunction[Payment, Total])'"
        )
    check_row_type(keyed.node, found[0], f"apply: {name}")
    return found[1]
