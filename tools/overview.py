"""Draws the services and what they share from the code, into docs/pictures/architecture.svg: `python -m tools.overview`.

Who writes and reads which control topic is found in calls of the log's `append` and `read`, who uses Redis and the store
in what a service opens when it starts, what a service is for in its pyproject file. Where things stand is said here.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

from penstock.coordination import control_topics
from tools.drawing import FILL, LINE, svg

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs/pictures/architecture.svg"
SERVICES: Final = {
    "dispatcher": ("services/dispatcher",),
    "coordinator": ("services/coordinator", "shared/src/penstock/jobmanager"),
    "taskmanager": ("services/taskmanager", "shared/src/penstock/taskmanager"),
    "pipeline": ("services/pipeline",),
}
"""The services in their order, and the folders whose code only they run."""
TOPICS: Final = {name: getattr(control_topics, name) for name in ("REQUESTS", "COMMANDS", "EVENTS")}
EXCHANGES: Final = "exchanges"
LANES: Final = {
    **dict.fromkeys(TOPICS.values(), "Kafka"),
    EXCHANGES: "Kafka: a partition per subtask",
    "Redis": "lease of the leader, what it sees",
    "S3 store": "snapshots, job logs, artifacts",
}
OUTSIDE: Final = {
    "dispatcher": ("commands, dashboard, Flink's client", "v"),
    "taskmanager": ("your Kafka, files, Iceberg, Postgres", "v^"),
    "pipeline": ("Spark", "^"),
}
"""Who is beyond each service, and which way it goes: to it (v), from it (^)."""
_OPENED: Final = {"cluster_metadata": "Redis", "cluster_store": "S3 store"}
_WAYS: Final = {"append": "v", "read": "^"}
_WIDE, _COLUMN, _LANE, _LEFT, _EDGE = 1110, 226, 40, 206, 10

Uses = dict[tuple[str, str], set[str]]


def uses() -> Uses:
    """How each service uses each lane: v (writes), ^ (reads), both."""
    found: Uses = {}
    for service, folders in SERVICES.items():
        for folder in folders:
            for file in sorted((ROOT / folder).rglob("*.py")):
                for lane, way in _used(ast.parse(file.read_bytes())):
                    found.setdefault((service, lane), set()).update(way)
    for call in _calls(ast.parse((ROOT / "shared/src/penstock/task/exchange_io.py").read_bytes())):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _WAYS:
            found.setdefault(("taskmanager", EXCHANGES), set()).add(_WAYS[call.func.attr])
    return found


def _used(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for call in _calls(tree):
        match call:
            case ast.Call(func=ast.Attribute(attr="append" | "read" as verb), args=[ast.Name(id=topic), *_]):
                if topic in TOPICS:
                    yield TOPICS[topic], _WAYS[verb]
            case ast.Call(func=ast.Name(id=name)) if name in _OPENED:
                yield _OPENED[name], "v^"
            case _:
                pass


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def picture() -> str:
    """The whole of it."""
    found = uses()
    top = 150
    parts = [_lane(lane, below, top + 40 + number * (_LANE + 12)) for number, (lane, below) in enumerate(LANES.items())]
    for column, service in enumerate(SERVICES):
        parts += [_service(service, column), *_outside(service, column)]
        lanes = [(number, lane) for number, lane in enumerate(LANES) if (service, lane) in found]
        for place, (number, lane) in enumerate(lanes):
            x = _LEFT + column * _COLUMN + 108 - (len(lanes) - 1) * 13 + place * 26
            parts.append(_line(x, top, top + 40 + number * (_LANE + 12), found[service, lane]))
    return svg(_WIDE, top + 40 + len(LANES) * (_LANE + 12), parts)


def _service(service: str, column: int) -> str:
    project = tomllib.loads((ROOT / f"services/{service}/pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = project["description"]
    name, _, purpose = text.removeprefix("Penstock, the ").partition(": ")
    x = _LEFT + column * _COLUMN
    first, second = _halves(purpose)
    return (
        f'<rect x="{x}" y="70" width="216" height="80" rx="8" fill="{FILL}" stroke="{LINE}" stroke-width="1.5"/>'
        f'<text x="{x + 108}" y="95" text-anchor="middle" font-weight="600" font-size="15">{escape(name)}</text>'
        f'<text x="{x + 108}" y="117" text-anchor="middle" font-size="11.5">{escape(first)}</text>'
        f'<text x="{x + 108}" y="134" text-anchor="middle" font-size="11.5">{escape(second)}</text>'
    )


def _halves(text: str) -> tuple[str, str]:
    words = text.split()
    cut = min(range(len(words) + 1), key=lambda n: abs(len(" ".join(words[:n])) - len(" ".join(words[n:]))))
    return " ".join(words[:cut]), " ".join(words[cut:])


def _outside(service: str, column: int) -> Iterator[str]:
    if service in OUTSIDE:
        text, way = OUTSIDE[service]
        x = _LEFT + column * _COLUMN + 108
        yield f'<text x="{x}" y="26" text-anchor="middle" font-style="italic">{escape(text)}</text>'
        yield _line(x, 36, 70, set(way))


def _lane(lane: str, below: str, y: int) -> str:
    return (
        f'<rect x="{_EDGE}" y="{y}" width="{_WIDE - 2 * _EDGE}" height="{_LANE}" rx="8" fill="#f4f6f7" stroke="#b9c5c9"/>'
        f'<text x="{_EDGE + 12}" y="{y + 18}" font-weight="600">{escape(lane)}</text>'
        f'<text x="{_EDGE + 12}" y="{y + 33}" font-size="10.5" fill="#4b5d63">{escape(below)}</text>'
    )


def _line(x: int, y: int, to_y: int, ways: set[str]) -> str:
    down = ' marker-end="url(#tip)"' if "v" in ways else ""
    up = ' marker-start="url(#tip)"' if "^" in ways else ""
    return f'<path d="M{x} {y + 1} L{x} {to_y - 1}" stroke="{LINE}" stroke-width="1.5" fill="none"{down}{up}/>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
