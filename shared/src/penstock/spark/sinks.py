"""The sinks of one task: opened once, shared by the chains of all its key groups, staged at the end.

What is staged is reported to the driver, which makes it visible. Rows of a console sink are themselves reports, because
they belong on the driver's terminal.
"""

from __future__ import annotations

import asyncio
import base64
import io
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.connectors import console
from penstock.connectors.base import Prepared, SinkWriter, WriteContext
from penstock.graph.jobgraph import JobVertex
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.write import Write
from penstock.spark.staging import RecordStager, publishes, staging_folder

if TYPE_CHECKING:
    import polars as pl

Report = Callable[[dict[str, Any]], None]


class TaskSinks:
    """The writers of a task."""

    def __init__(
        self,
        vertex: JobVertex,
        plan: LogicalPlan,
        subtask: int,
        attempt: str,
        attempt_number: int,
        staging: str,
        report: Report,
        part: int = 0,
    ) -> None:
        """`part`: which one of a split the subtask reads, if it reads one: one publisher has all of them, in order."""
        self._schemas = {o.id: plan.node(o.node).schema for o in vertex.operators if o.verb == "write"}
        self._subtask = subtask
        self._attempt = attempt
        self._attempt_number = attempt_number
        self._partition = (subtask - part) % vertex.parallelism
        self._staging = staging
        self._report = report
        self._writers: dict[str, SinkWriter] = {}
        self.refused: dict[str, int] = {}
        """Rows that destinations refused when they were sent, and that were left out."""

    def open(self, operator: str, write: Write) -> SinkWriter:
        """The writer of a sink, for one chain."""
        if operator not in self._writers:
            self._writers[operator] = self._open(operator, write)
        return _Shared(self._writers[operator])

    def _open(self, operator: str, write: Write) -> SinkWriter:
        if isinstance(write.sink, console.Sink):
            return _RowReporter(operator, self._subtask, self._report)
        context = WriteContext(operator, self._subtask, self._attempt, self._attempt_number, _now_us)
        schema = self._schemas[operator]
        if not publishes(write.sink):
            return write.sink.open(schema, context)
        encoder = asyncio.run(write.sink.encoder(schema, operator))
        encoded, partition = write.sink.encoded_schema(schema), self._partition
        return RecordStager(staging_folder(self._staging), encoder, encoded, context, partition)

    def prepare(self, checkpoint: int) -> None:
        """Stage everything, durably, and report it."""
        for operator, writer in self._writers.items():
            skipped = getattr(writer, "skipped", 0)
            prepared = writer.prepare(checkpoint)
            if prepared.persist is not None:
                prepared.persist()
            self.refused[operator] = getattr(writer, "skipped", 0) - skipped
            if prepared.committables:
                staged = {"kind": "staged", "operator": operator, "subtask": self._subtask}
                self._report(staged | {"parts": list(prepared.committables)})

    def close(self) -> None:
        """Close all writers, all of them even if one raises."""
        writers, self._writers = list(self._writers.values()), {}
        errors: list[Exception] = []
        for writer in writers:
            try:
                writer.close()
            except Exception as error:  # whatever a writer raises: the others are closed first
                errors.append(error)
        if errors:
            raise errors[0]


class _Shared:
    """A writer that outlives the chain it is handed to."""

    def __init__(self, writer: SinkWriter) -> None:
        self._writer = writer
        self.write = writer.write
        self.prepare = writer.prepare
        self.commit = writer.commit
        self.discard = writer.discard
        self._skipped_before: int = getattr(writer, "skipped", 0)

    @property
    def skipped(self) -> int:
        """Bad rows that the writer left out for this chain."""
        return getattr(self._writer, "skipped", 0) - self._skipped_before

    def close(self) -> None:
        """Nothing: the task closes the writer."""


class _RowReporter:
    """Sends rows to the driver."""

    def __init__(self, operator: str, subtask: int, report: Report) -> None:
        self._operator = operator
        self._subtask = subtask
        self._report = report
        self._number = 0

    def write(self, frame: pl.DataFrame) -> None:
        data = io.BytesIO()
        frame.write_ipc(data)
        self._number += 1
        rows = base64.b64encode(data.getvalue()).decode()
        where = {"operator": self._operator, "subtask": self._subtask, "number": self._number}
        self._report({"kind": "rows", **where, "rows": rows})

    def prepare(self, checkpoint: int) -> Prepared:
        return Prepared()

    def commit(self, committable: Any) -> None:
        """Nothing is staged."""

    def discard(self, committable: Any) -> None:
        """Nothing is staged."""

    def close(self) -> None:
        """Nothing is held."""


def _now_us() -> int:
    return time.time_ns() // 1_000
