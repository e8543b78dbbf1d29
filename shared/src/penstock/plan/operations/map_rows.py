"""A Python function per row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import function_name
from penstock.plan.operation import Columns, Operation, Settings, UpsertKey
from penstock.plan.traits import Traits, per_row

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class MapRows(Operation):
    """A Python function per row: one row out, or with `flat` any number of rows."""

    function: Callable[[Any], Any]
    flat: bool

    @property
    def verb(self) -> str:
        return "flat_map" if self.flat else "map"

    def traits(self, node: Node) -> Traits:
        return per_row(undetermined="what its function returns")

    def describe(self, node: Node) -> Settings:
        return {"function": function_name(self.function)}

    def state_signature(self, node: Node) -> Settings | None:
        return None

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: Python code sees whole rows."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
