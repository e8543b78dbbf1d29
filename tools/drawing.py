"""Draws a graph as a picture (SVG), with nothing but Python: boxes on floors, arrows from higher ones to lower ones.

Each box stands one floor above the highest that it leads to. The order on a floor is that of the mean place of what boxes
are joined with, taken down and up a few times (Sugiyama's way); long arrows have a place on every floor that they pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

_EDGE: Final = re.compile(r"(\w+)\[([^\]]+)\] --> (\w+)\[([^\]]+)\]")
_CHAR, _PAD, _GAP, _HEIGHT, _FLOOR, _PASSAGE, _MARGIN = 7.2, 12, 18, 30, 74, 10, 16
_SWEEPS: Final = 24
INK, LINE, FILL, GROUND = "#142226", "#0a6f7d", "#dff1f3", "#ffffff"
FONT: Final = 'font-family="system-ui, sans-serif" font-size="13"'

Edges = list[tuple[str, str]]


def drawn(mermaid: str) -> str:
    """The picture of a flow chart that has only lines of `a[b] --> c[d]`."""
    return picture([(one, other) for _, one, _, other in _EDGE.findall(mermaid)])


def picture(edges: Edges) -> str:
    """The picture of a graph without circles."""
    height = heights(edges)
    steps, passages = _steps(edges, height)
    floors = ordered(_floors(height | passages), steps)
    places = _places(floors, passages)
    width = max(x + w / 2 for x, _, w in places.values()) + _MARGIN
    total = _MARGIN * 2 + _HEIGHT + (len(floors) - 1) * _FLOOR
    lines = [_arrow(places[one], places[other], other not in passages) for one, other in steps]
    boxes = [_box(name, *place) for name, place in places.items() if name not in passages]
    return svg(width, total, [*lines, *boxes])


def svg(width: float, height: float, parts: Iterable[str]) -> str:
    """A whole picture, with a ground of its own so that it can be read in dark pages."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {FONT} fill="{INK}">'
    tip = f'<path d="M0 0 L8 4 L0 8 z" fill="{LINE}"/>'
    size = 'markerWidth="8" markerHeight="8" refX="7" refY="4"'
    marker = f'<marker id="tip" {size} orient="auto-start-reverse">{tip}</marker>'
    ground = f'<rect width="{width:.0f}" height="{height:.0f}" rx="12" fill="{GROUND}"/>'
    return "\n".join([head, f"<defs>{marker}</defs>", ground, *parts, "</svg>", ""])


def heights(edges: Edges) -> dict[str, int]:
    """On which floor each box stands: the lowest is 0."""
    below: dict[str, set[str]] = {}
    for one, other in edges:
        below.setdefault(one, set()).add(other)
        below.setdefault(other, set())
    found: dict[str, int] = {}
    while len(found) < len(below):
        free = [name for name, others in below.items() if name not in found and others <= found.keys()]
        if not free:
            raise ValueError("this graph has a circle, and cannot stand on floors")
        found |= {name: 1 + max((found[other] for other in below[name]), default=-1) for name in free}
    return found


def ordered(floors: Sequence[list[str]], steps: Edges) -> list[list[str]]:
    """Each floor, from the top, in an order in which few arrows cross."""
    kept = [sorted(floor) for floor in floors]
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        joined: dict[str, list[str]] = {}
        for one, other in steps:
            joined.setdefault(other if down else one, []).append(one if down else other)
        for number in range(1, len(kept)) if down else range(len(kept) - 2, -1, -1):
            near = kept[number - 1 if down else number + 1]
            kept[number] = _by_neighbours(kept[number], near, joined)
    return kept


def _by_neighbours(floor: list[str], near: list[str], joined: dict[str, list[str]]) -> list[str]:
    place = {name: number / max(1, len(near) - 1) for number, name in enumerate(near)}
    own = {name: number / max(1, len(floor) - 1) for number, name in enumerate(floor)}

    def mean(name: str) -> float:
        found = [place[other] for other in joined.get(name, []) if other in place]
        return sum(found) / len(found) if found else own[name]

    return sorted(floor, key=mean)


def _steps(edges: Edges, height: dict[str, int]) -> tuple[Edges, dict[str, int]]:
    """The arrows cut at every floor, and the passages that this makes."""
    steps: Edges = []
    passages: dict[str, int] = {}
    for one, other in edges:
        before = one
        for floor in range(height[one] - 1, height[other], -1):
            passages[f"{one}>{other}>{floor}"] = floor
            steps.append((before, f"{one}>{other}>{floor}"))
            before = f"{one}>{other}>{floor}"
        steps.append((before, other))
    return steps, passages


def _floors(height: dict[str, int]) -> list[list[str]]:
    return [[name for name, floor in height.items() if floor == each] for each in range(max(height.values()), -1, -1)]


def _places(floors: list[list[str]], passages: dict[str, int]) -> dict[str, tuple[float, float, float]]:
    """Middle, top and width of every box and passage; floors are centred."""
    wide = {name: _PASSAGE if name in passages else len(name) * _CHAR + 2 * _PAD for floor in floors for name in floor}
    whole = max(sum(wide[name] + _GAP for name in floor) for floor in floors)
    found: dict[str, tuple[float, float, float]] = {}
    for number, floor in enumerate(floors):
        gap = (whole - sum(wide[name] for name in floor)) / (len(floor) + 1)
        x = _MARGIN + gap
        for name in floor:
            found[name] = (x + wide[name] / 2, _MARGIN + number * _FLOOR, wide[name])
            x += wide[name] + gap
    return found


def _arrow(start: tuple[float, float, float], end: tuple[float, float, float], tipped: bool) -> str:
    (x, y, _), (to_x, to_y, _) = start, end
    y, to_y = y + _HEIGHT, to_y if tipped else to_y + _HEIGHT
    bent = f"M{x:.0f} {y:.0f} C{x:.0f} {(y + to_y) / 2:.0f} {to_x:.0f} {(y + to_y) / 2:.0f} {to_x:.0f} {to_y:.0f}"
    tip = ' marker-end="url(#tip)"' if tipped else ""
    return f'<path d="{bent}" fill="none" stroke="{LINE}" stroke-opacity="0.55"{tip}/>'


def _box(name: str, x: float, y: float, width: float) -> str:
    place = f'x="{x - width / 2:.0f}" y="{y:.0f}" width="{width:.0f}" height="{_HEIGHT}"'
    return (
        f'<rect {place} rx="6" fill="{FILL}" stroke="{LINE}"/>'
        + f'<text x="{x:.0f}" y="{y + 20:.0f}" text-anchor="middle">{escape(name)}</text>'
    )
