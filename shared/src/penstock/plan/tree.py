"""A plan as a tree for people: the sink first, below each operation what it reads, as databases explain queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.plan.building.changes import known_keys
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.as_ import As
from penstock.plan.operations.key_by import KeyBy
from penstock.plan.operations.read import Read
from penstock.plan.operations.write import Write
from penstock.plan.passes.reading import said_of_reading
from penstock.plan.signatures import describe_node

_ELSEWHERE = ("keys", "rows are", "ttl")
"""Settings that a tree shows in other words."""


def plan_tree(plan: LogicalPlan) -> str:
    """Every operation with its settings, the mode of its rows, and what it keeps as state and until when.

    The mode is `append` where no row is ever replaced, `upsert` where a row replaces the one of the same key, and
    `retract` where rows are added and retracted.
    """
    shown: set[Node] = set()
    sinks = [node for node in plan if isinstance(node.operation, Write)]
    return "\n".join(line for sink in sinks for line in _lines(plan, sink, shown))


def _lines(plan: LogicalPlan, root: Node, shown: set[Node]) -> Iterator[str]:
    waiting: list[tuple[Node, str, str]] = [(root, "", "")]
    while waiting:  # a loop, since plans may be deeper than Python's stack
        node, first, further = waiting.pop()
        if node in shown:
            yield f"{first}{node.operator_id}, which is above"
            continue
        shown.add(node)
        inputs = [_shown(each) for each in node.inputs]
        yield f"{first}{_head(node)}"
        stem = f"{further}│     " if inputs else f"{further}      "
        yield from (f"{stem}{line}" for line in _details(plan, node))
        below = [
            (each, further + ("└─ " if last else "├─ "), further + ("   " if last else "│  "))
            for each, last in zip(inputs, (number == len(inputs) - 1 for number in range(len(inputs))), strict=True)
        ]
        waiting += reversed(below)


def _shown(node: Node) -> Node:
    """What is shown of an input: not that rows are sent by a key, which the operation behind it says."""
    while isinstance(node.operation, KeyBy | As):
        (node,) = node.inputs
    return node


def _head(node: Node) -> str:
    by = list(dict.fromkeys(key for each in node.inputs if isinstance(each.operation, KeyBy) for key in each.keys))
    keys = f" by {', '.join(by)}" if by else ""
    return f"{node.operator_id}{keys}{'' if isinstance(node.operation, Write) else f'  [{_mode(node)}]'}"


def _mode(node: Node) -> str:
    keys = known_keys(node) if node.updates else None
    return f"{node.mode} by {', '.join(keys)}" if keys else node.mode


def _details(plan: LogicalPlan, node: Node) -> Iterator[str]:
    said = said_of_reading(plan, node) if isinstance(node.operation, Read) else {}
    for name, value in {**describe_node(node), **said}.items():
        if name not in _ELSEWHERE and value not in ([], {}, None):
            yield f"{name}: {_value(value)}"
    if drawing := node.operation.drawing():
        yield "positions:"
        yield from (f"  {line}" for line in drawing)
    if node.traits.kept:
        yield f"state: {node.traits.kept}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        named = ((name, str(expr)) for name, expr in value.items())  # pyright: ignore[reportUnknownVariableType] # JSON
        return ", ".join(name if expr == f'col("{name}")' else f"{name} = {expr}" for name, expr in named)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType] # JSON
    return str(value)
