"""What becomes of a row that no exchange of the cluster can carry, because a record of its log takes less.

A row that a source brought goes by the source's policy for bad rows. One that an operator has made fails the job, which
no other attempt could do better.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import BadRecordError, shown
from penstock.graph.jobgraph import DEAD_LETTERS_TAG, JobEdge, JobVertex
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.read import Read
from penstock.protocol.messages import OperatorMetrics

if TYPE_CHECKING:
    import polars as pl

KEPT_BYTES: Final = 64 << 10
"""As much of a row that is too large becomes its dead letter."""
_SHOWN: Final = 200
_COLUMNS_SHOWN: Final = 3
_AS_READ: Final = frozenset({"read", "filter", "select", "with_columns", "drop", "rename", "with_event_time", "key_by"})
"""Verbs behind which a row still is what the source brought."""


class RowTooLargeError(BadRecordError):
    """A row is larger than what an exchange carries; every other attempt would make it again."""

    terminal = True


class LargeRows:
    """Judges the rows of one edge that are too large for it."""

    def __init__(
        self,
        edge: JobEdge,
        vertex: JobVertex,
        consumer: str,
        plan: LogicalPlan,
        count: Callable[[], OperatorMetrics],
        dead: Callable[[pl.DataFrame], None],
    ) -> None:
        """The rows of an edge.

        Args:
            edge: out of the vertex.
            vertex: which makes them.
            consumer: what the vertex behind the edge is called.
            plan: has the source of the vertex.
            count: the counters of the vertex's first operator.
            dead: takes dead letters of its source.
        """
        operators = {operator.node: operator for operator in vertex.operators}
        maker = operators[edge.link.source]
        path = [maker]
        while path[-1].inputs:
            path.append(operators[path[-1].inputs[0].source])
        operation = plan.node(vertex.operators[0].node).operation
        as_read = edge.link.tag is None and all(operator.verb in _AS_READ for operator in path)
        self._policy = operation.source.bad_rows if as_read and isinstance(operation, Read) else None
        self._edge = edge
        self._maker, self._consumer = maker.id, consumer
        self._count = count
        self._dead = dead

    def __call__(self, row: pl.DataFrame, size: int, limit: int, *, combined: bool) -> pl.DataFrame | None:
        """The row that goes in place of one with so many bytes, None if there is none.

        Raises:
            RowTooLargeError: the job cannot do without it.
        """
        if self._edge.link.tag == DEAD_LETTERS_TAG:
            return row.with_columns(row["raw"].bin.head(KEPT_BYTES), row["error"].str.head(KEPT_BYTES))
        policy = None if combined else self._policy
        why = (
            f"{self._maker}: a row of {size:,} bytes is larger than what the exchange to {self._consumer} carries, "
            f"{limit:,} bytes: {self._shown(row)}"
        )
        if policy not in ("skip", "dead_letter"):
            choice = ", or choose bad_rows='skip' (counted) or 'dead_letter' at the source" if policy else ""
            raise RowTooLargeError(
                f"{why}; drop the large column before, make several rows of it, or keep large values in files or "
                f"objects and send where they are{choice}"
            )
        self._count().bad_rows += 1
        if policy == "dead_letter":
            self._dead(_letter(row, why, self._maker))
        return None

    def _shown(self, row: pl.DataFrame) -> str:
        """Its key; without one the beginnings of its first columns."""
        names = [name for name in self._edge.link.keys or row.columns[:_COLUMNS_SHOWN] if name in row.columns]
        values: dict[str, Any] = row.select(names).row(0, named=True)
        kind = "key" if self._edge.link.keys else "row"
        return f"{kind} " + ", ".join(f"{name}={shown(value)[:_SHOWN]}" for name, value in values.items())


def _letter(row: pl.DataFrame, why: str, where: str) -> pl.DataFrame:
    import polars as pl

    values = {name: str(value)[:KEPT_BYTES] for name, value in row.row(0, named=True).items()}
    raw = msgspec.json.encode(values)[:KEPT_BYTES]
    return pl.DataFrame(
        {"error": [why], "raw": [raw], "where": [where]},
        schema={"error": pl.String, "raw": pl.Binary, "where": pl.String},
    )
