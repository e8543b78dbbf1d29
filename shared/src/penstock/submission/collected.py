"""What the workers of a job gathered in memory, brought to the sinks of this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.connectors import collecting
from penstock.connectors.base import WriteContext
from penstock.coordination.collected_rows import operator_of
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.write import Write
from penstock.types import Schema

if TYPE_CHECKING:
    from penstock.client import ClusterClient


async def fetch_collected(cluster: ClusterClient, job: str, plan: LogicalPlan) -> None:
    """Bring what the workers of a cluster gathered to the sinks of this process.

    Raises:
        PenstockError: it cannot be had.
    """
    writers = {
        name: sink.open(schema, WriteContext(name, 0, "", 0, lambda: 0)) for name, sink, schema in gathering_sinks(plan)
    }
    if not writers:
        return
    for name in (await cluster.collected(job)).parts:
        if operator_of(name) in writers:
            part = await cluster.collected_part(job, name)
            writers[part.operator].commit(part.committable)


def gathering_sinks(plan: LogicalPlan) -> Iterator[tuple[str, collecting.Sink, Schema]]:
    """(operator id, sink, schema) of every sink that gathers rows in memory."""
    for node in plan:
        if isinstance(node.operation, Write) and isinstance(node.operation.sink, collecting.Sink):
            yield node.operator_id, node.operation.sink, node.schema
