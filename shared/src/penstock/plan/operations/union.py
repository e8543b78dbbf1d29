"""The rows of several inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import PipelineError
from penstock.plan.operation import Columns, Structure, UpsertKey

if TYPE_CHECKING:
    from penstock.plan.logical import Node


@dataclass(frozen=True, eq=False)
class Union(Structure):
    """The rows of all inputs, which have the same schema."""

    @property
    def verb(self) -> str:
        return "union"

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        return wanted

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        raise PipelineError(
            f"{verb}: the rows of a union replace no others by a key, because two of its streams may have the same one"
        )
