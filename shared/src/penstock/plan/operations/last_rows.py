"""The final rows of updates or changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.plan.operation import Columns, Operation, Settings, UpsertKey, key_columns
from penstock.plan.traits import Traits, keyed
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class LastRows(Operation):
    """The last row of every key of a stream of updates, at the end of the input; none where `retracted` is true."""

    retracted: str | None = None
    all_that_hold: bool = False
    """Of changes: every current row, as often as it is there; the keys say where it is kept, not what it replaces."""

    @property
    def verb(self) -> str:
        return "final"

    def traits(self, node: Node) -> Traits:
        """Watermarks wait for the end as the rows do."""
        rows = "all current rows" if self.all_that_hold else "the last row of a key"
        return keyed(
            undetermined="", arrival="", state="by_key", kept=f"{rows}, until the input ends", watermarks="own"
        )

    def describe(self, node: Node) -> Settings:
        return {"keys": list(node.inputs[0].keys)}

    def state_signature(self, node: Node) -> Settings | None:
        verb = "rows that hold" if self.all_that_hold else "final"
        return {"verb": verb, "keys": key_columns(node), "row": schema_to_json(node.schema)}

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: rows are kept whole."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
