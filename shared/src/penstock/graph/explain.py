"""The job graph for people: text, JSON and Graphviz."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.graph.jobgraph import PUBLISH, JobEdge, JobGraph, JobOperator, JobVertex, Link
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.passes.reading import said_of_reading
from penstock.types import schema_from_json


def explain_text(graph: JobGraph, plan: LogicalPlan | None = None) -> str:
    """Chains, exchanges, parallelism, key groups, schemas, state and guarantees, one block per vertex.

    With the plan that the graph was built from also what of its sources is not read.
    """
    lines = [f"{graph.name}: {len(graph.vertices)} vertices, parallelism {graph.parallelism}"]
    for vertex in graph.vertices:
        lines += ["", *_vertex_lines(graph, vertex, plan)]
    return "\n".join(lines)


def _vertex_lines(graph: JobGraph, vertex: JobVertex, plan: LogicalPlan | None) -> Iterator[str]:
    yield f"{vertex.id}  {vertex.name}"
    slot = f", slot group {vertex.slot_group}" if vertex.slot_group != "default" else ""
    yield f"  parallelism {vertex.parallelism}, {vertex.max_parallelism} key groups{slot}"
    for edge in vertex.inputs:
        yield f"  <- {edge.vertex} {ship_text(edge)} through the log, {graph.vertex(edge.vertex).parallelism} channels"
    for operator in vertex.operators:
        is_read = operator.verb == "read"
        said = said_of_reading(plan, plan.node(operator.node)) if plan is not None and is_read else {}
        node = None if plan is None else plan.node(operator.node)
        yield from _operator_lines(operator, said, node)


def ship_text(edge: JobEdge) -> str:
    """How rows of an exchange are spread over subtasks."""
    keys = f" by {', '.join(edge.link.keys)}" if edge.link.keys else ""
    return f"{edge.ship}{keys}{rows_of(edge.link)}"


def rows_of(link: Link) -> str:
    """The side output that the rows of a link are from, and their mode if they are no facts."""
    tag = f" [{link.tag}]" if link.tag else ""
    return tag if link.mode == "append" else f"{tag} ({link.mode})"


def _operator_lines(operator: JobOperator, said: Mapping[str, str], node: Node | None) -> Iterator[str]:
    yield f"  - {operator.verb} ({operator.id})"
    for name, value in {**operator.settings, **said}.items():
        yield f"      {name}: {_value(value)}"
    if drawing := node.operation.drawing() if node is not None else []:
        yield "      positions:"
        yield from (f"        {line}" for line in drawing)
    yield f"      columns: {schema_from_json(operator.schema)}"
    if operator.verb == PUBLISH:
        what = "splits of the source are" if operator.inputs else "its exchange is"
        yield f"      state: how far {what} published, committed together with the rows"
    elif operator.state:
        kept = node.traits.kept if node is not None else ""
        yield f"      state: {_state(operator.state)}{f': {kept}' if kept else ''}"
    if operator.guarantee:
        yield f"      guarantee: {operator.guarantee}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} = {expr}" for name, expr in value.items())  # pyright: ignore[reportUnknownVariableType] # JSON
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)  # pyright: ignore[reportUnknownVariableType] # JSON
    return str(value)


def _state(signature: str) -> str:
    described = json.loads(signature)
    match described:
        case {"verb": "read"}:
            return "split positions and watermarks"
        case {"verb": "write"}:
            return "staged parts"
        case {"keys": keys} if keys:
            names = ", ".join(key["name"] for key in keys)
            states = described.get("states")
            return f"keyed by {names}" + (f": {json.dumps(states)}" if states else "")
        case _:
            return json.dumps(described.get("states", {}))


def explain_dot(graph: JobGraph) -> str:
    """A Graphviz digraph: a cluster per vertex, a node per operator; dashed edges cross the log."""
    lines = ["digraph {", "  rankdir=LR; node [shape=box, fontname=Helvetica];"]
    for vertex in graph.vertices:
        lines.append(f"  subgraph cluster_{vertex.id} {{")
        lines.append(f"    label={json.dumps(f'{vertex.id} x {vertex.parallelism}')};")
        lines += [f"    {_dot(o)} [label={json.dumps(_label(o))}];" for o in vertex.operators]
        lines.append("  }")
    for vertex in graph.vertices:
        for edge in vertex.inputs:
            label = json.dumps(ship_text(edge))
            source, target = _made(graph.vertex(edge.vertex), edge.link.source), _dot(vertex.operators[0])
            lines.append(f"  {source} -> {target} [style=dashed, label={label}];")
        for operator in vertex.operators:
            for link in operator.inputs:
                rows = rows_of(link).strip()
                label = f" [label={json.dumps(rows)}]" if rows else ""
                lines.append(f"  {_made(vertex, link.source)} -> {_dot(operator)}{label};")
    return "\n".join([*lines, "}"])


def _dot(operator: JobOperator) -> str:
    """The name of an operator: a node may be encoded by one and published by another."""
    return f"{operator.node}_{PUBLISH}" if operator.verb == PUBLISH else operator.node


def _made(vertex: JobVertex, node: str) -> str:
    """The name of the operator whose rows are those of a node."""
    return _dot(next(operator for operator in vertex.operators if operator.node == node))


def _label(operator: JobOperator) -> str:
    return f"{operator.verb}\n{operator.id}"
