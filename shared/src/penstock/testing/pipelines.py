"""A whole pipeline in a test: rows in, rows out, on the embedded engine.

    def test_totals():
        rows = run_pipeline(totals, [Payment("a", 1.0, at), Payment("a", 2.0, at + minute)])
        assert rows == [{"account": "a", "total": 3.0}]

The pipeline's own sources and sinks are not touched: in a copy of its plan rows take the place of the sources and lists
that of the sinks. Everything between them, state, exchange and checkpoints included, is what runs in production. Timers
of processing time are tested with `penstock.testing.harness`, where time stands still until it is moved.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.api.pipeline import Pipeline
from penstock.connectors import base, collecting, iterables
from penstock.connectors.base import Fetched, Position, ReadContext, Split, SplitReader
from penstock.connectors.declaring import freeze
from penstock.errors import PenstockError, UsageError, UserCodeError, nearest
from penstock.graph.logical import LogicalPlan, Node, Read, Write

Rows = Sequence[Any]
"""Objects of the source's class, or dicts."""


def run_pipeline(
    pipeline: Pipeline, rows: Rows | Mapping[str, Rows], *, parallelism: int = 1, batch: int = 1
) -> list[dict[str, Any]]:
    """What the only sink of a pipeline gets for these rows.

    Args:
        pipeline: as declared.
        rows: what the source reads, in this order; if there are several sources, by the id (`uid`) of each.
        parallelism: subtasks per operator that says nothing else. Above 1 the result's order is any.
        batch: rows that are read at a time: event time comes on behind each batch, so with 1 a row is late if the one
            before it was too far ahead.

    Raises:
        UsageError: rows are for another source than there is, or there are several sinks: use `run_sinks`.
        PenstockError: what the pipeline or its code raised.
    """
    found = run_sinks(pipeline, rows, parallelism=parallelism, batch=batch)
    if len(found) != 1:
        raise UsageError(f"run_pipeline: {pipeline.name} has {len(found)} sinks; use run_sinks, which tells them apart")
    return next(iter(found.values()))


def run_sinks(
    pipeline: Pipeline, rows: Rows | Mapping[str, Rows], *, parallelism: int = 1, batch: int = 1
) -> dict[str, list[dict[str, Any]]]:
    """What every sink of a pipeline gets, by the id of the sink; see `run_pipeline`."""
    from penstock.runtime.embedded import EmbeddedJob, EmbeddedSettings

    if batch < 1:
        raise UsageError(f"batch={batch}: at least one row is read at a time")
    sinks: dict[str, list[dict[str, Any]]] = {}
    copy = Pipeline(pipeline.name)
    copy.plan = _rewired(pipeline.plan, _by_source(pipeline.plan, rows), sinks, batch)
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as folder:
        settings = EmbeddedSettings(parallelism=parallelism, durable=False)
        result = asyncio.run(EmbeddedJob(copy, Path(folder), settings).run(resume=False))
    if result.state == "FAILED":
        error = result.error if isinstance(result.error, PenstockError) else UserCodeError(result.reason)
        raise error from result.error
    return sinks


def _by_source(plan: LogicalPlan, rows: Rows | Mapping[str, Rows]) -> dict[str, Rows]:
    sources = [node.operator_id for node in plan if isinstance(node.operation, Read)]
    if not isinstance(rows, Mapping):
        if len(sources) != 1:
            raise UsageError(f"{plan.name} has the sources {', '.join(sources)}: say which rows are whose, as a dict")
        return {sources[0]: rows}
    for name in rows:
        if name not in sources:
            raise UsageError(f"{plan.name} has no source {name!r}; {nearest(name, sources)}")
    return {name: rows.get(name, ()) for name in sources}


def _rewired(
    plan: LogicalPlan, rows: Mapping[str, Rows], sinks: dict[str, list[dict[str, Any]]], batch: int
) -> LogicalPlan:
    """A copy of a plan that reads `rows` and writes into `sinks`."""
    copies: dict[str, Node] = {}
    for node in plan:
        operation = node.operation
        if isinstance(operation, Read):
            operation = replace(operation, source=_GivenRows(operation.source, rows[node.operator_id], batch))
        elif isinstance(operation, Write):
            into = sinks.setdefault(node.operator_id, [])
            operation = replace(operation, sink=collecting.Sink(into))
        copies[node.id] = replace(node, operation=operation, inputs=tuple(copies[n.id] for n in node.inputs))
    return LogicalPlan(plan.name, list(copies.values()))


class _GivenRows(iterables.Source[Any]):
    """Rows in place of a source, judged as that one judges them."""

    def __init__(self, source: base.Source[Any], rows: Iterable[Any], batch: int) -> None:
        super().__init__(list(rows), schema=source.schema, timezone=getattr(source, "timezone", None))
        freeze(self, row_type=source.row_type, event_time=source.event_time, bad_rows=source.bad_rows, batch=batch)

    batch: int

    def open(self, split: Split, position: Position, context: ReadContext) -> SplitReader:
        return _InBatches(super().open(split, position, context), self.batch)


class _InBatches:
    """A reader that hands out so many rows at a time."""

    def __init__(self, reader: SplitReader, batch: int) -> None:
        self._reader = reader
        self._batch = batch
        self.position = reader.position
        self.close = reader.close

    async def read(self, max_rows: int) -> Fetched | None:
        """See `SplitReader.read`."""
        return await self._reader.read(min(max_rows, self._batch))
