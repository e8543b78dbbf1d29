"""Rows that a stream would find late: of which operators a pipeline reads them, and how many of the others there were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from penstock.core.batches import EVENT_TIME, WATERMARK
from penstock.core.times import MIN_WATERMARK
from penstock.graph.jobgraph import JobGraph
from penstock.plan.logical import LogicalPlan, Node
from penstock.state.hashing import key_groups
from penstock.task.operators.lateness import lateness_of


def late_rows_read(graph: JobGraph, plan: LogicalPlan) -> Iterator[str]:
    """The nodes whose late rows somebody reads."""
    links = [link for operator in graph.operators() for link in operator.inputs]
    links += [edge.link for vertex in graph.vertices for edge in vertex.inputs]
    for node in plan:
        tag = node.traits.late_tag
        if tag is not None and any((link.source, link.tag) == (node.id, tag) for link in links):
            yield node.id


class LateRowsKept:
    """Counts the rows that would have been late for an operator, while they are in the order of their split."""

    def __init__(self, node: Node, max_parallelism: int, restored: Mapping[int, int]) -> None:
        """`restored`: how far event time had come for the key groups in the state that the operator begins with. What
        is late for that is late here too, and counted by the operator."""
        self.operator = node.operator_id
        self.rows = 0
        lateness = lateness_of(node)
        assert lateness is not None
        self._lateness = lateness
        self._keys = list(node.inputs[0].keys)
        self._max_parallelism = max_parallelism
        self._restored = np.full(max_parallelism, MIN_WATERMARK, np.int64) if restored else None
        for group, reached in restored.items():
            assert self._restored is not None
            self._restored[group] = reached

    def look_at(self, frame: pl.DataFrame) -> None:
        """Rows leave for the operator."""
        if WATERMARK not in frame.columns:
            return
        behind = frame.filter(pl.col(EVENT_TIME) <= pl.col(WATERMARK))
        if not behind.height:
            return
        late = self._lateness(behind, behind[WATERMARK].to_numpy())
        if self._restored is not None:
            reached = self._restored[key_groups(behind, self._keys, self._max_parallelism).to_numpy()]
            late &= ~self._lateness(behind, reached)
        self.rows += int(late.sum())
