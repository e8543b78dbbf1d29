"""Rows in an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.plan.operation import Columns, Operation, Settings, UpsertKey, key_columns, undetermined
from penstock.plan.traits import LateBehindWatermark, Traits, keyed
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.functions.process_functions import OutputTag
    from penstock.plan.logical import Node
    from penstock.plan.order import Order


@dataclass(frozen=True, eq=False)
class Sort(Operation):
    """All rows in one order: SQL's ORDER BY. All of them have one key, so that one subtask emits them.

    They are emitted when the input ends, or, in order of event time, as the watermark passes them.
    """

    by: tuple[Order, ...]
    """In order of event time: what decides among rows of one time."""
    by_event_time: bool = False
    late: OutputTag[Any] | None = None

    @property
    def verb(self) -> str:
        return "sort"

    def traits(self, node: Node) -> Traits:
        """Where rows wait for the end of the input, event time does, too: some rows are old by then."""
        return keyed(
            undetermined=undetermined(order.expr for order in self.by),
            arrival="the order of rows that are equal in all that they are sorted by",
            state="scanned",
            kept="a row until event time has passed it" if self.by_event_time else "all rows, until the input ends",
            watermarks="forwarded" if self.by_event_time else "held_back",
            watermark_lag_us=0 if self.by_event_time else None,
            late=LateBehindWatermark() if self.by_event_time else None,
            late_tag=None if self.late is None else self.late.name,
        )

    def describe(self, node: Node) -> Settings:
        by = [*(["event time"] if self.by_event_time else []), *map(str, self.by)]
        return {"by": by, **({} if self.late is None else {"late_to": self.late.name})}

    def state_signature(self, node: Node) -> Settings | None:
        """Rows that wait do so in any order: what they are sorted by may change."""
        row = schema_to_json(node.schema)
        return {"verb": self.verb, "keys": key_columns(node), "by_event_time": self.by_event_time, "row": row}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: rows are kept whole."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
