"""Every operator of every pipeline that a test runs in this process keeps what its schema says of nulls."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import polars as pl

    from penstock.plan.logical import Node


class NeverNull:
    """Takes the rows of an operator beside its receivers: a column that never holds null has none."""

    def __init__(self, node: Node, needed: Set[str] | None) -> None:
        """`needed` are the columns that matter behind the operator: others are null where their source is not read."""
        self._node = node
        names = [field.name for field in node.schema if not field.nullable]
        self._names = [name for name in names if needed is None or name in needed]

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
    from penstock.plan.passes.reading import Consumers
    from penstock.task import chain as chains

    built = chains.build_chain

    def build_chain(vertex: Any, plan: Any, *arguments: Any, **options: Any) -> Any:
        chain = built(vertex, plan, *arguments, **options)
        consumers = Consumers(plan)
        for operator in vertex.operators:
            link, node = chain.operators.get(operator.id), plan.node(operator.node)
            output = chain.source_output if operator.verb == "read" else link and link.output
            if output is not None and operator.verb != "encode":
                output.connect(NeverNull(node, consumers.needed(node)), None)
        return chain

    pytest.MonkeyPatch().setattr(chains, "build_chain", build_chain)
