"""Windows whose rows are kept until a trigger fires."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.times import format_duration
from penstock.functions.process_functions import describe_states
from penstock.functions.windows.definitions import GlobalWindow, RowWindow, describe_window, reach_us
from penstock.functions.windows.triggers import AtWatermark, EveryEventTime, PurgingTrigger, is_users
from penstock.plan.operation import (
    Columns,
    Named,
    Operation,
    Settings,
    UpsertKey,
    described,
    joined,
    key_columns,
    undetermined,
)
from penstock.plan.operations.process_rows import sets_processing_timers
from penstock.plan.operations.window_aggregate import arrival_of_aggregates, key_with_window
from penstock.plan.traits import LateForWindows, Traits, with_lateness

if TYPE_CHECKING:
    from penstock.functions.process_functions import AnyProcess, OutputTag
    from penstock.functions.windows.triggers import Trigger
    from penstock.plan.logical import Node
    from penstock.types import Field


@dataclass(frozen=True, eq=False)
class WindowRows(Operation):
    """A function over the rows of a key and window, or aggregates, when the trigger fires."""

    process: AnyProcess
    window: RowWindow
    trigger: Trigger
    allowed_lateness_us: int = 0
    late: OutputTag[Any] | None = None
    aggregates: Named = ()
    """Empty if `process` calls a function."""
    window_fields: tuple[Field, ...] = ()
    """The columns in which a result of aggregates names its window, behind the keys."""
    count: tuple[int, int] | None = None
    """Of count windows: how many rows, and after how many each."""

    @property
    def verb(self) -> str:
        return "window"

    @property
    def written_window(self) -> str:
        """The window as the user wrote it."""
        if self.count is None:
            return describe_window(self.window)
        size, every = self.count
        return f"count_window({size}{f', every={every}' if every != size else ''})"

    def traits(self, node: Node) -> Traits:
        return Traits(
            role="operator", state="scanned", kept=self._kept(), ttl_us=None, row_times="new", watermarks="forwarded",
            watermark_lag_us=None, in_order=None, reads_watermarks=True, time_dependent=True,
            reach_us=reach_us(self.window),
            late=None if isinstance(self.window, GlobalWindow) else LateForWindows(self.window, self.allowed_lateness_us),
            late_tag=None if self.late is None else self.late.name, combinable=False, arrival=self._arrival(),
            undetermined=self._undetermined(),
            broadcast_inputs=frozenset(), not_in_batch=self._not_in_batch(),
        )  # fmt: skip

    def _kept(self) -> str:
        if isinstance(self.window, GlobalWindow):
            return "the rows of a key, until its trigger purges them"
        what = "aggregates per window" if self.aggregates else "the rows of a window"
        return with_lateness(f"{what}, until it ends", self.allowed_lateness_us)

    def _arrival(self) -> str:
        if self.count is not None:
            return "which rows are in a window"
        match self.trigger:
            case EveryEventTime():
                firings = "what windows give before their last result"
            case AtWatermark() | PurgingTrigger(within=AtWatermark()) if self.trigger.timers is None:
                firings = ""
            case _:
                firings = "which rows are in a window when its trigger fires"
        of_rows = arrival_of_aggregates(self.aggregates) if self.aggregates else "in which order its function gets rows"
        return joined([firings, of_rows])

    def _undetermined(self) -> str:
        of_rows = undetermined(expr for _, expr in self.aggregates) if self.aggregates else "what its function does"
        return joined(["when its trigger fires" if is_users(self.trigger) else "", of_rows])

    def _not_in_batch(self) -> str:
        if self.trigger.timers != "processing" and not sets_processing_timers(type(self.trigger)):
            return ""
        return (
            f"{self.trigger.describe()} sets processing-time timers, and a batch run has no wall clock to follow; use "
            "event time"
        )

    def describe(self, node: Node) -> Settings:
        settings: Settings = {"keys": list(node.inputs[0].keys), "window": self.written_window}
        if self.count is None:
            settings["trigger"] = self.trigger.describe()
        if self.aggregates:
            settings["aggregates"] = described(self.aggregates)
        else:
            settings["function"] = type(self.process).__name__
        if self.allowed_lateness_us:
            settings["allowed_lateness"] = format_duration(self.allowed_lateness_us)
        if self.late is not None:
            settings["late_to"] = self.late.name
        return settings

    def state_signature(self, node: Node) -> Settings | None:
        states = describe_states(self.process)
        signed = {"verb": "window", "keys": key_columns(node), "window": self.written_window, "states": states}
        return signed | {"aggregates": described(self.aggregates)} if "partials" in states else signed

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: Python code sees whole rows."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return key_with_window(node, self.window_fields)
