"""What sinks that gather rows in memory hold on a cluster: their committed parts, as objects of the job.

In one process such a sink's `commit` appends to a list that the user's program reads. Workers of a cluster are other
processes, so a part is put into the store instead, and whoever follows the job commits it to the sink of his own
program. The name of an object follows from its content: committed twice, it is there once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from penstock.errors import UsageError
from penstock.graph.jobgraph import JobVertex
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.write import Write
from penstock.ports import Blobs
from penstock.protocol.committing import StagedPart

LIMIT_BYTES: Final = 64 << 20
"""How much one subtask of a sink gathers."""


class CollectedPart(msgspec.Struct, frozen=True):
    """A committed part of a sink operator; `commit` of the same sink takes `committable`."""

    operator: str
    checkpoint: int
    committable: Any


@dataclass
class CollectedParts:
    """Puts the parts of one subtask's sinks into the store."""

    job: str
    blobs: Blobs
    _gathered: dict[str, int] = field(default_factory=dict[str, int])

    async def put(self, part: StagedPart) -> None:
        """Make a part readable.

        Raises:
            UsageError: the sink gathers more than memory is for.
        """
        data = msgspec.json.encode(CollectedPart(part.operator, part.checkpoint, part.committable))
        gathered = self._gathered[part.operator] = self._gathered.get(part.operator, 0) + len(data)
        if gathered > LIMIT_BYTES:
            raise UsageError(
                f"sink {part.operator!r} gathers rows in memory, and has more than {LIMIT_BYTES >> 20} MB of them; write "
                "to files or Kafka"
            )
        digest = hashlib.sha256(data).hexdigest()[:32]
        name = f"{quote(part.operator, safe='')}/{part.checkpoint:010}-{digest}"
        await self.blobs.put(collected_prefix(self.job) + name, data)


def collecting_sinks(
    vertex: JobVertex, plan: LogicalPlan, job: str, blobs: Blobs
) -> dict[str, Callable[[StagedPart], Awaitable[None]]]:
    """The sink operators of a vertex whose rows another process wants, and how it gets them."""
    parts = CollectedParts(job, blobs)
    writes = [(o.id, plan.by_operator(o.id)) for o in vertex.operators if o.verb == "write"]
    return {
        operator: parts.put
        for operator, node in writes
        if node is not None and isinstance(node.operation, Write) and node.operation.sink.in_process
    }


def collected_prefix(job: str) -> str:
    """Where the parts of a job stand."""
    return f"jobs/{job}/collected/"


async def collected_names(blobs: Blobs, job: str) -> list[str]:
    """The names of a job's parts, by operator and checkpoint."""
    prefix = collected_prefix(job)
    return sorted(key.removeprefix(prefix) for key in await blobs.list(prefix))


def operator_of(name: str) -> str:
    """The sink operator of a part."""
    return unquote(name.rpartition("/")[0])
