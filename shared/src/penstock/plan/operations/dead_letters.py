"""The bad records of a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.plan.operation import Columns, Structure, UpsertKey

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class DeadLetters(Structure):
    """The bad records of a source whose policy is `dead_letter`: columns error, raw, where."""

    @property
    def verb(self) -> str:
        return "dead_letters"

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """None: bad records are no rows of the source."""
        return frozenset()

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
