"""A row class for columns that are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.plan.operation import Columns, Structure, UpsertKey

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class As(Structure):
    """Gives the columns a row class again; nothing happens at run time."""

    @property
    def verb(self) -> str:
        return "as"

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        return wanted

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
