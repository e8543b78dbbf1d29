"""The side output of an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.plan.operation import Columns, Structure, UpsertKey
from penstock.plan.traits import Traits, structure

if TYPE_CHECKING:
    from penstock.functions.process_functions import OutputTag
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class Side(Structure):
    """The side output `tag` of its input: late rows, or what a process emitted to it."""

    tag: OutputTag[Any]

    @property
    def verb(self) -> str:
        return "side"

    def traits(self, node: Node) -> Traits:
        """Which rows are late depends on how far event time has advanced."""
        return structure(time_dependent=True)

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: side outputs have columns of their own."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
