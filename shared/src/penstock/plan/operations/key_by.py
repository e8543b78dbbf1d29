"""Rows of a key in one subtask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.plan.operation import Columns, Structure, UpsertKey

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class KeyBy(Structure):
    """Rows with equal values of `Node.keys` go to the same subtask."""

    @property
    def verb(self) -> str:
        return "key_by"

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        return None if wanted is None else wanted | {*node.keys}

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        """That of its input: which rows are current does not depend on where they go."""
        return node.inputs[0].upsert_key(verb)
