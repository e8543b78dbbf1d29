"""Draws the rooms of the code and who imports whom, from the imports themselves, into docs/architecture.md.

`python -m tools.rooms` writes the drawing anew and says in figures what the house is; a test fails while the drawing is
not that of the code. Imports inside functions count, those for typing alone do not. An arrow that others imply is left
out, and so are the rooms that everybody uses.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "architecture.md"
BEGIN: Final = "<!-- drawn by `python -m tools.rooms` -->"
END: Final = "<!-- end of the drawing -->"
PACKAGES: Final = (
    "penstock",
    "penstock_coordinator",
    "penstock_dispatcher",
    "penstock_operator",
    "penstock_pipeline",
    "penstock_taskmanager",
)
EVERYWHERE: Final = frozenset({"core", "errors", "kafka", "observability", "ports", "service", "settings", "types"})
"""Used by nearly all others: drawn, they would hide the rest."""

Arrows = dict[str, set[str]]


def modules(*, for_typing: bool = False) -> Arrows:
    """Which module imports which; on request, imports for typing alone count too."""
    graph = grimp.build_graph(
        *PACKAGES,
        include_external_packages=False,
        exclude_type_checking_imports=not for_typing,
        cache_dir=None,  # it knows a file by its time of change, which a move within a checkout leaves as it was
    )
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def arrows() -> Arrows:
    """Which room imports which."""
    found: Arrows = {}
    for module, imports in modules().items():
        for imported in imports:
            one, other = room_of(module), room_of(imported)
            if one != other and "penstock" not in (one, other):
                found.setdefault(one, set()).add(other)
                found.setdefault(other, set())
    return found


def circles(found: Mapping[str, set[str]]) -> Arrows:
    """What is left when all that imports nothing is taken away, again and again: nothing, if there is no circle."""
    left = {one: set(others) for one, others in found.items()}
    while free := {one for one, others in left.items() if not others}:
        left = {one: others - free for one, others in left.items() if one not in free}
    return left


def floors(found: Mapping[str, set[str]]) -> int:
    """On how many floors the rooms stand, each right above the highest one that it imports; none of a circle."""
    left, count = {one: set(others) for one, others in found.items()}, 0
    while free := {one for one, others in left.items() if not others}:
        left = {one: others - free for one, others in left.items() if one not in free}
        count += 1
    return count


@functools.cache
def sources() -> dict[str, Path]:
    """The file of each module."""
    homes = [ROOT / "shared" / "src", *ROOT.glob("services/*/src")]
    return {_module(file.relative_to(home)): file for home in homes for file in home.rglob("*.py")}


def _module(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def lines() -> Counter[str]:
    """How many lines each room has."""
    found: Counter[str] = Counter()
    for module, file in sources().items():
        found[room_of(module)] += len(file.read_bytes().splitlines())
    return found


def figures() -> str:
    """The house in one line."""
    found, sizes = arrows(), lines()
    (largest, most), total = sizes.most_common(1)[0], sizes.total()
    house = f"{len(found)} rooms on {floors(found)} floors, {sum(map(len, found.values()))} arrows"
    circle = f"{len(circles(found))} rooms and {len(circles(modules()))} modules in circles"
    return f"{house}, {circle}; {len(modules())} modules, {total:,} lines, of which {largest} has {most / total:.1%}"


def room_of(module: str) -> str:
    """`penstock.task.chain` stands in `task`, `penstock_dispatcher.jobs` in `services/dispatcher`."""
    package, _, rest = module.partition(".")
    if package != "penstock":
        return "services/" + package.removeprefix("penstock_")
    return rest.partition(".")[0] or "penstock"


def reduced(found: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that no way over other rooms implies."""
    shown = {room: others - EVERYWHERE for room, others in found.items() if room not in EVERYWHERE}
    return sorted(
        (room, other)
        for room, others in shown.items()
        for other in others
        if not any(other in _reachable(shown, between) for between in others - {other})
    )


def _reachable(found: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for other in found[waiting.pop()] - seen:
            seen.add(other)
            waiting.append(other)
    return seen


def drawing(shown: Iterable[tuple[str, str]]) -> str:
    """As a Mermaid flow chart, which GitHub draws."""
    lines = [f"    {_node(room)} --> {_node(other)}" for room, other in shown]
    return "\n".join([BEGIN, "```mermaid", "flowchart TD", *lines, "```", END])


def _node(room: str) -> str:
    return f"r_{room.replace('/', '_')}[{room}]"  # a node cannot be called `graph`: that is a word of Mermaid's


def redrawn(page: str) -> str:
    """The page with the drawing of the code as it is."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + drawing(reduced(arrows())) + after


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        sys.exit(f"{PAGE.name}: the lines {BEGIN!r} and {END!r} are missing, between which the drawing stands")
    PAGE.write_text(redrawn(text), encoding="utf-8")
    print(figures())
