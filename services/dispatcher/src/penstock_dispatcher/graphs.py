"""Whether a graph that a client sent can be run: what no program of ours would write is refused before it is kept."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.graph.jobgraph import FORMAT_VERSION, JobGraph, graph_from_json, wrong_names
from penstock_dispatcher.refusing import RestError

MAX_NAME: Final = 200


def checked_graph(name: str, value: dict[str, Any], where: str) -> JobGraph:
    """The graph of a submission; `where` is what it is called there.

    Raises:
        RestError: it is none, or nothing of the kind can be run here.
    """
    if not 0 < len(name) <= MAX_NAME:
        raise RestError(400, f"{where.partition('.')[0]}.name: a name has 1 to {MAX_NAME} characters")
    if value.get("version") != FORMAT_VERSION:
        raise RestError(
            400,
            f"{where}: it has format {value.get('version')!r}, this cluster reads {FORMAT_VERSION}; submit with the "
            "version of Penstock that the cluster runs",
        )
    try:
        graph = graph_from_json(value)
    except (msgspec.ValidationError, TypeError) as error:
        raise RestError(400, f"{where}: {error}") from error
    if wrong := wrong_names(name, graph):
        raise RestError(400, f"{where}: {wrong}")
    _check_shape(graph, where)
    return graph


def _check_shape(graph: JobGraph, where: str) -> None:
    """What no program of ours would write, and a coordinator would fail on."""
    names = [vertex.id for vertex in graph.vertices]
    if not names or len(set(names)) < len(names):
        raise RestError(400, f"{where}: it has no vertices, or two with the same id")
    for vertex in graph.vertices:
        if not vertex.operators:
            raise RestError(400, f"{where}: vertex {vertex.id!r} has no operators")
        if not 1 <= vertex.parallelism <= vertex.max_parallelism <= 1 << 15:
            raise RestError(
                400,
                f"{where}: vertex {vertex.name!r} has parallelism {vertex.parallelism} and {vertex.max_parallelism} "
                "key groups; parallelism is from 1 to the number of key groups",
            )
        lost = [edge.vertex for edge in vertex.inputs if edge.vertex not in names]
        if lost:
            raise RestError(400, f"{where}: vertex {vertex.id!r} reads from {lost[0]!r}, which does not exist")
