"""The rows of a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.connectors.base import ChangeSource
from penstock.core.times import format_duration
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey
from penstock.plan.traits import Traits

if TYPE_CHECKING:
    from penstock.connectors.base import Source
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class Read(Operation):
    """The rows of a source."""

    source: Source[Any]

    @property
    def verb(self) -> str:
        return "read"

    def traits(self, node: Node) -> Traits:
        """Event time as the source's watermarks make it."""
        marks = None if self.source.event_time is None else self.source.event_time.watermarks
        return Traits(
            role="source", state="none", kept="", ttl_us=None, row_times="kept", watermarks="forwarded",
            watermark_lag_us=0 if marks is None else marks.lag_us, in_order=marks is not None and marks.in_order,
            reads_watermarks=False, time_dependent=True, reach_us=0, late=None, late_tag=None, combinable=False,
            arrival="", undetermined="" if marks is None else marks.undetermined,
            broadcast_inputs=frozenset(), not_in_batch="",
        )  # fmt: skip

    def describe(self, node: Node) -> Settings:
        source, event_time = self.source, self.source.event_time
        described: Settings = {"source": source.kind, **source.describe(), "bad_rows": source.bad_rows}
        if event_time is not None:
            described |= {"event_time": event_time.form.describe(), "watermarks": event_time.watermarks.describe()}
            if event_time.idle_after_us is not None:
                described["idle_after"] = format_duration(event_time.idle_after_us)
            if event_time.alignment is not None:
                described["max_drift"] = format_duration(event_time.alignment.max_drift_us)
            if source.max_ahead_us is not None:
                described["max_ahead"] = format_duration(source.max_ahead_us)
        return described

    def state_signature(self, node: Node) -> Settings | None:
        return {"verb": "read", "source": self.source.kind}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """It has no input."""
        return frozenset()

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        if isinstance(self.source, ChangeSource):
            return self.source.keys, RETRACTED
        return node.keys, None
