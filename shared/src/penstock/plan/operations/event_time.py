"""Another event time for rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.connectors.watermarks import BoundedOutOfOrderness
from penstock.core.times import format_duration
from penstock.errors import PipelineError
from penstock.expressions import columns_of
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey
from penstock.plan.traits import Traits, per_row

if TYPE_CHECKING:
    from penstock.connectors.base import EventTime
    from penstock.plan.logical import Node


_RETIMED: Final = replace(per_row(undetermined=""), row_times="new", watermarks="own", time_dependent=True)
"""The traits of operations that give rows another event time."""


@dataclass(frozen=True, eq=False)
class AssignEventTime(Operation):
    """Gives rows another event time, and watermarks of its own: Flink's assignTimestampsAndWatermarks."""

    event_time: EventTime
    delays_input: bool = False
    """Whether watermarks are those of the input, held back by the lag of `event_time.watermarks`, instead of what these
    make of the rows."""

    @property
    def verb(self) -> str:
        return "with_event_time"

    def traits(self, node: Node) -> Traits:
        marks = self.event_time.watermarks
        retimed = replace(
            _RETIMED,
            watermark_lag_us=marks.lag_us,
            in_order=marks.in_order and not self.delays_input,
        )
        if self.delays_input:
            return replace(retimed, row_times="moved")
        return replace(retimed, arrival="what is late behind it", undetermined=marks.undetermined)

    def describe(self, node: Node) -> Settings:
        event_time = self.event_time
        marks = event_time.watermarks.describe()
        if self.delays_input:
            marks = f"those of the input, held back by {format_duration(event_time.watermarks.lag_us)}"
        return {"event_time": event_time.form.describe(), "watermarks": marks}

    def state_signature(self, node: Node) -> Settings | None:
        """None of what keeps nothing."""
        return None if self.delays_input else {"verb": "with_event_time"}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All if a function of the user's makes watermarks of whole rows."""
        if wanted is None or not isinstance(self.event_time.watermarks, BoundedOutOfOrderness):
            return None
        return wanted | columns_of(self.event_time.form.expression)

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        raise PipelineError(
            f"{verb}: the rows of changes with a time of their own replace no others by a key, because Spark sorts "
            f"by it, so that a row may come before the one that it replaces; write .{verb} before .{self.verb}"
        )


@dataclass(frozen=True, eq=False)
class AssignProcessingTime(Operation):
    """Makes the moment at which a row passes its event time; watermarks follow the clock."""

    every_us: int
    """How often event time advances when no row arrives."""

    @property
    def verb(self) -> str:
        return "with_processing_time"

    def traits(self, node: Node) -> Traits:
        return replace(
            _RETIMED,
            not_in_batch="the time of a row is when it passes, and a batch run, which reads all at once and runs a task "
            "again when it fails, has no such time; use the event time of the rows",
        )

    def describe(self, node: Node) -> Settings:
        return {"event_time": "processing time", "watermarks": f"every {format_duration(self.every_us)}"}

    def state_signature(self, node: Node) -> Settings | None:
        return {"verb": "with_processing_time"}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        return wanted

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
