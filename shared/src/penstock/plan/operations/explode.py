"""One row per element of list columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.plan.operation import Columns, Operation, Settings, UpsertKey
from penstock.plan.traits import Traits, per_row

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class Explode(Operation):
    """One row per element of the list columns (of equal lengths within a row)."""

    columns: tuple[str, ...]
    position: str | None = None
    """The column that says which element of the list it is, from 1; None for none."""
    keep_empty: bool = True
    """Whether an empty list or null gives one row with null; else it gives none."""

    @property
    def verb(self) -> str:
        return "explode"

    def traits(self, node: Node) -> Traits:
        return per_row(undetermined="")

    def describe(self, node: Node) -> Settings:
        position = {} if self.position is None else {"position": self.position}
        return {"columns": list(self.columns)} | position | ({} if self.keep_empty else {"empty": "no row"})

    def state_signature(self, node: Node) -> Settings | None:
        return None

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        return None if wanted is None else (wanted | {*self.columns}) - {self.position}

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
