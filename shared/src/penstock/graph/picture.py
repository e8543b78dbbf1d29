"""The job graph as a picture: SVG, for a notebook, from left to right along the rows. Nothing has to be installed."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Final

from penstock.graph.explain import ship_text
from penstock.graph.jobgraph import JobGraph, JobVertex
from penstock.types import Schema

_LETTER: Final = 6.6
"""Width of a letter, in pixels."""
_LINE: Final = 16
_PAD: Final = 8
_BETWEEN: Final = 18
"""Between boxes of one column."""
_MOST_LETTERS: Final = 34
_GREY: Final = "#8a8f98"


@dataclass(frozen=True)
class _Box:
    """A vertex, and where it stands."""

    lines: tuple[str, ...]
    x: float
    y: float
    width: float

    @property
    def height(self) -> float:
        return _LINE * len(self.lines) + 2 * _PAD

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def svg_of(graph: JobGraph) -> str:
    """A box for each vertex with its chained operators, an arrow for each exchange with how rows are shipped."""
    boxes = _placed(graph)
    arrows = [
        _arrow(boxes[edge.vertex], boxes[vertex.id], ship_text(edge))
        for vertex in graph.vertices
        for edge in vertex.inputs
    ]
    width = max(box.x + box.width for box in boxes.values()) + 2
    height = max(box.y + box.height for box in boxes.values()) + 2
    style = "font-family:ui-monospace,monospace;font-size:11px;max-width:100%"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(graph.name)}" style="{style}">'
        f"{''.join(arrows)}{''.join(map(_drawn, boxes.values()))}</svg>"
    )


def columns_of(schema: Schema) -> str:
    """A table of the names and types of columns."""
    rows = "".join(
        f"<tr><td>{escape(field.name)}</td><td>{escape(str(field.type))}{' or null' if field.nullable else ''}</td></tr>"
        for field in schema
    )
    return f"<table><tr><th>column</th><th>type</th></tr>{rows}</table>"


def _lines(vertex: JobVertex) -> tuple[str, ...]:
    head = f"{vertex.id} \N{MULTIPLICATION SIGN} {vertex.parallelism}"
    return (head, *(_cut(f"{operator.verb} ({operator.id})") for operator in vertex.operators))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"


def _columns(graph: JobGraph) -> list[list[JobVertex]]:
    """Vertices by how many exchanges are before them at most; a vertex stands behind those that it reads in the graph."""
    depth = dict[str, int]()
    for vertex in graph.vertices:
        depth[vertex.id] = max((depth[edge.vertex] + 1 for edge in vertex.inputs), default=0)
    columns: list[list[JobVertex]] = [[] for _ in range(max(depth.values()) + 1)]
    for vertex in graph.vertices:
        columns[depth[vertex.id]].append(vertex)
    return columns


def _placed(graph: JobGraph) -> dict[str, _Box]:
    boxes = dict[str, _Box]()
    x = 1.0
    for vertices in _columns(graph):
        labels = [ship_text(edge) for vertex in vertices for edge in vertex.inputs]
        x += max((_LETTER * len(_cut(label)) + 4 * _PAD for label in labels), default=0)
        width = max(_LETTER * len(line) for vertex in vertices for line in _lines(vertex)) + 2 * _PAD
        y = 1.0
        for vertex in vertices:
            boxes[vertex.id] = _Box(_lines(vertex), x, y, width)
            y += boxes[vertex.id].height + _BETWEEN
        x += width
    return boxes


def _drawn(box: _Box) -> str:
    texts = "".join(
        f'<text x="{box.x + _PAD:.0f}" y="{box.y + _PAD + _LINE * (number + 0.75):.0f}" '
        f'fill="{_GREY if not number else "currentColor"}">{escape(line)}</text>'
        for number, line in enumerate(box.lines)
    )
    return (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="6" fill="none" '
        f'stroke="currentColor"/>{texts}'
    )


def _arrow(start: _Box, end: _Box, label: str) -> str:
    x1, x2 = start.x + start.width, end.x - 6
    bend = (x1 + x2) / 2
    middle = (start.middle + end.middle) / 2
    return (
        f'<path d="M{x1:.0f} {start.middle:.0f}C{bend:.0f} {start.middle:.0f} {bend:.0f} {end.middle:.0f} '
        f'{x2:.0f} {end.middle:.0f}" fill="none" stroke="{_GREY}"/>'
        f'<path d="M{x2 + 6:.0f} {end.middle:.0f}l-7 -4v8z" fill="{_GREY}"/>'
        f'<text x="{bend:.0f}" y="{middle - 4:.0f}" text-anchor="middle" fill="{_GREY}">{escape(_cut(label))}</text>'
    )
