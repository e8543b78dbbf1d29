"""`Pipeline`: the object that a pipeline file declares."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.api.stream import SourceStream
from penstock.errors import PipelineError
from penstock.graph.logical import LogicalPlan, Node, Operation, Read
from penstock.types import Schema, row_class

if TYPE_CHECKING:
    from penstock.connectors.base import Source
    from penstock.embedded import JobResult

T = TypeVar("T")

_importing = False
"""Whether Penstock itself imports a pipeline file, so that `run()` in it must do nothing."""


class Pipeline:
    """A named pipeline: sources, verbs, sinks. Building it checks it; nothing runs until it is asked to.

    Args:
        name: shown everywhere, and part of what identifies the job's state.

    Example:
        >>> p = Pipeline("hot-auctions")
        >>> bids = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at"))
    """

    def __init__(self, name: str) -> None:
        if not name or not all(character.isalnum() or character in "-_." for character in name):
            raise PipelineError(f"Pipeline: {name!r} is no name; use letters, digits, '-', '_' and '.'")
        self.name = name
        self.plan = LogicalPlan(name)

    def read(self, source: Source[T]) -> SourceStream[T]:
        """The rows of `source` as a stream."""
        row_type: type[Any] = source.row_type or row_class(source.schema)
        node = self._add(Read(source), (), source.schema, row_type, event_time=source.event_time is not None)
        return SourceStream(self, node)

    def run(
        self, *, parallelism: int = 1, directory: str | Path | None = None, resume: bool = False
    ) -> JobResult | None:
        """Run the pipeline in this process until its input ends, from a script or a notebook.

        Args:
            parallelism: subtasks per operator that says nothing else.
            directory: where log, snapshots and job log stand; a temporary folder by default.
            resume: continue what an earlier run left in `directory`.

        Returns:
            What became of the job; None while Penstock itself imports the file (`penstock run FILE`), where this
            call does nothing.
        """
        if _importing:
            return None
        from penstock.embedded import run_pipeline

        return run_pipeline(self, parallelism=parallelism, directory=directory, resume=resume)

    def _add(
        self,
        operation: Operation,
        inputs: tuple[Node, ...],
        schema: Schema,
        row_type: type[Any],
        *,
        event_time: bool,
        keys: tuple[str, ...] = (),
        updates: bool = False,
    ) -> Node:
        node = Node(
            id=f"n{len(self.plan.nodes)}",
            operation=operation,
            inputs=inputs,
            schema=schema,
            row_type=row_type,
            event_time=event_time,
            keys=keys,
            updates=updates,
        )
        self.plan.nodes.append(node)
        return node


def set_importing(importing: bool) -> bool:
    """Say that a pipeline file is being imported; returns what was said before."""
    global _importing
    before, _importing = _importing, importing
    return before
