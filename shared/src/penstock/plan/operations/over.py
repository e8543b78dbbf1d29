"""Every row with columns computed from its key's rows: SQL's OVER."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.times import format_duration
from penstock.expressions import decided_by_arrival
from penstock.plan.operation import Columns, Named, Operation, Settings, UpsertKey, described, key_columns, undetermined
from penstock.plan.traits import LateBehindWatermark, Traits, keyed
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.functions.process_functions import OutputTag
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class Over(Operation):
    """Every row with columns computed from its key's rows by event time: SQL's OVER.

    A frame is the rows up to this one: all, the last `rows`, or those at most `within_us` older.
    """

    columns: Named
    within_us: int | None = None
    rows: int | None = None
    late: OutputTag[Any] | None = None

    @property
    def verb(self) -> str:
        return "over"

    @property
    def frame(self) -> str:
        """Which rows an aggregate sees, as the user wrote it."""
        if self.rows is not None:
            return f"rows={self.rows}"
        return "all" if self.within_us is None else f"within={format_duration(self.within_us)!r}"

    def traits(self, node: Node) -> Traits:
        by_place = self.rows is not None or any(decided_by_arrival(expr) for _, expr in self.columns)
        return keyed(
            undetermined=undetermined(expr for _, expr in self.columns),
            arrival="which of a key's rows with equal event times is before which" if by_place else "",
            state="scanned",
            kept=self._kept(),
            watermark_lag_us=0,
            late=LateBehindWatermark(),
            late_tag=None if self.late is None else self.late.name,
        )

    def _kept(self) -> str:
        if self.rows is not None:
            return f"the last {self.rows} rows of a key, for ever"
        if self.within_us is None:
            return "aggregates per key, for ever"
        return f"a row until event time is {format_duration(self.within_us)} past it"

    def describe(self, node: Node) -> Settings:
        settings: Settings = {"keys": list(node.keys or node.inputs[0].keys), "frame": self.frame}
        settings["columns"] = described(self.columns)
        if self.late is not None:
            settings["late_to"] = self.late.name
        return settings

    def state_signature(self, node: Node) -> Settings | None:
        row = schema_to_json(node.inputs[0].schema)
        said = {"frame": self.frame, "columns": described(self.columns), "row": row}
        return {"verb": "over", "keys": key_columns(node), **said}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: rows that wait for event time are kept whole."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
