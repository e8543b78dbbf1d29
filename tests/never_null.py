"""Every operator of every pipeline that a test runs in this process keeps what its schema says of nulls."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import polars as pl

    from penstock.graph.logical import LogicalPlan, Node


class NeverNull:
    """Takes the rows of an operator beside its receivers: a column that never holds null has none."""

    def __init__(self, node: Node, unread: Collection[str]) -> None:
        self._node = node
        self._names = [field.name for field in node.schema if not field.nullable and field.name not in unread]

    def rows(self, frame: pl.DataFrame) -> None:
        """Look at a batch."""
        for name in self._names:
            if name in frame.columns:
                nulls = frame[name].null_count()
                assert not nulls, f"{self._node.operator_id}: {nulls} nulls in {name!r}, which the schema says has none"

    def watermark(self, watermark: int) -> None:
        """Event time says nothing of nulls."""


def watch_chains() -> None:
    """From now on, in all chains of this process. Chains are built by whoever imports `build_chain` later."""
    from penstock.task import chain as chains

    built = chains.build_chain

    def build_chain(vertex: Any, plan: Any, *arguments: Any, **options: Any) -> Any:
        chain = built(vertex, plan, *arguments, **options)
        unread = _unread(plan)
        for operator in vertex.operators:
            link, node = chain.operators.get(operator.id), plan.node(operator.node)
            output = chain.source_output if operator.verb == "read" else link and link.output
            if output is not None and operator.verb != "encode":
                output.connect(NeverNull(node, unread), None)
        return chain

    pytest.MonkeyPatch().setattr(chains, "build_chain", build_chain)


def _unread(plan: LogicalPlan) -> frozenset[str]:
    """Columns that some source need not read, because nobody looks at them: they are null."""
    from penstock.graph.logical import Read
    from penstock.graph.pushdown import wanted_of

    reads = [node for node in plan if isinstance(node.operation, Read)]
    wanted = [(node, wanted_of(plan, node).columns) for node in reads]
    return frozenset(
        name for node, names in wanted if names is not None for name in node.schema.names if name not in names
    )
