"""Which columns may be null that former versions took for never null: what a snapshot of theirs has differs by that.

The key of a right or full join was typed as that of the left input, though it is that of the right one where there is no
left row.
"""

from __future__ import annotations

from penstock.expressions import columns_of
from penstock.plan.logical import Node
from penstock.plan.operations.join import Join
from penstock.plan.operations.project import Project
from penstock.plan.operations.regular_join import RegularJoin


def null_by_now(node: Node) -> frozenset[str]:
    """Those of a node's columns."""
    known: dict[Node, frozenset[str]] = {}
    waiting = [node]
    while waiting:
        if unknown := [each for each in waiting[-1].inputs if each not in known]:
            waiting += unknown
        else:
            last = waiting.pop()
            known[last] = _null_by_now(last, frozenset[str]().union(*(known[each] for each in last.inputs)))
    return known[node]


def _null_by_now(node: Node, found: frozenset[str]) -> frozenset[str]:
    match node.operation:
        case Join(how="right" | "full") | RegularJoin(how="right" | "full"):
            left, right = (each.row_schema for each in node.inputs)
            alone = (
                name for name in node.inputs[0].keys if right.field(name).nullable and not left.field(name).nullable
            )
            found = found.union(alone)
        case Project(columns=columns):
            found = frozenset(name for name, expr in columns if columns_of(expr) & found)
        case operation if aggregates := getattr(operation, "aggregates", ()):
            found = found.union(name for name, expr in aggregates if columns_of(expr) & found)
        case _:
            pass
    return frozenset(field.name for field in node.schema if field.nullable and field.name in found)
