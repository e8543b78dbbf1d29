"""Finds the tests that are near a change: by the imports of the code, and by names, since tests mirror the tree.

A test is near when it imports a changed module itself or over modules of the same room, helpers of tests included, or
when it stands in the tests of the changed room (`tests/unit/task`) and reaches the changed module on any way: what an
operator does is tested through the harness, which no test of an operator needs to import it for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.rooms import ROOT, Arrows, modules, room_of, sources

HELPERS: Final = ("benchmarks", "tests", "tools")
"""Folders of Python beside Penstock's own packages."""
FAR: Final = 1_000
_HOLD_STATEMENTS: Final = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True)
class Code:
    """All Python of the repository."""

    files: Mapping[str, Path]
    """The file of each module; those of tests are called `tests.unit.task.test_chain`."""
    imports: Mapping[str, Set[str]]
    """Which module imports which."""

    def modules_in(self, files: Collection[Path]) -> set[str]:
        """The modules that these files are."""
        return {module for module, file in self.files.items() if file in files}

    def importers(self, changed: Set[str]) -> set[str]:
        """The modules that import a changed one directly."""
        return {module for module, imported in self.imports.items() if imported & changed} - changed


def code_of_tree(tests: str = "tests.unit.") -> Code:
    """The modules as they are in the working tree, with imports inside functions, and what these tests import."""
    files = dict(sources())
    for folder in HELPERS:
        files |= {dotted(file): file for file in (ROOT / folder).rglob("*.py")}
    return Code(files, {**modules(for_typing=True), **_imports_of_helpers(files, tests)})


def _imports_of_helpers(files: Mapping[str, Path], tests: str) -> Arrows:
    """What tests and tools import, and the helpers that they reach: to parse all files takes seconds."""
    found: Arrows = {}
    waiting = [module for module in files if module.startswith((tests, "tools"))]
    for module in waiting:
        if module not in found and module.partition(".")[0] in HELPERS:
            found[module] = imported_by(module, files[module], files.keys())
            waiting += found[module]
    return found


def dotted(file: Path) -> str:
    """The name of a file beside Penstock's own packages, as a module."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_by(module: str, file: Path, known: Collection[str]) -> set[str]:
    """The known modules that a file imports; helpers beside a test are imported by their bare names."""
    beside = module.rpartition(".")[0]
    names = [(name, f"{beside}.{name}") for name in _imported_names(ast.parse(file.read_bytes()))]
    return {candidate for candidates in names for candidate in candidates if candidate in known} - {module}


def _imported_names(tree: ast.AST) -> Iterator[str]:
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements and what holds others; `ast.walk` spends most of its time in expressions, which hold none."""
    waiting = [tree]
    for node in waiting:
        yield node
        for held in _HOLD_STATEMENTS:
            waiting += getattr(node, held, ())


def nearest_tests(changed: Set[str], code: Code) -> list[str]:
    """The test modules that are near changed modules, nearest first.

    Changed tests come first, then those that import a changed module directly or have its name, then those that share
    a word of its name, then the others by the length of the shortest chain of imports.
    """
    rooms = {_room(module) for module in changed if module.partition(".")[0] not in HELPERS} | {"benchmarks", "tools"}
    in_rooms, anywhere = distances(changed, code, rooms), distances(changed, code)
    near = {test: 0 for test in changed if _is_test(test, "tests.")}
    for test in filter(_is_test, code.files):
        if test in in_rooms or (test in anywhere and _mirrored(test) in {room.rpartition("/")[2] for room in rooms}):
            near[test] = min(in_rooms.get(test, FAR), anywhere.get(test, FAR))
        elif any(test.startswith(folder) for folder in _set_up(changed)):
            near[test] = FAR
    return sorted(near, key=lambda test: _rank(test, near[test], changed))


def distances(changed: Set[str], code: Code, rooms: Set[str] | None = None) -> dict[str, int]:
    """How many imports lead from each module to a changed one, over modules of these rooms and helpers of tests."""
    importers: Arrows = {}
    for module, imported in code.imports.items():
        for each in imported if _leads(module, rooms) else ():
            importers.setdefault(each, set()).add(module)
    found = dict.fromkeys(changed, 0)
    reached = list(changed)
    for module in reached:
        for importer in sorted(importers.get(module, set()) - found.keys()):
            found[importer] = found[module] + 1
            reached.append(importer)
    return found


def _leads(module: str, rooms: Set[str] | None) -> bool:
    """The root's conftest, which loads parts of Penstock for all tests, makes none of them near to those parts."""
    if module.endswith(".conftest"):
        return False
    return rooms is None or module.startswith("tests.") or _room(module) in rooms


def _set_up(changed: Set[str]) -> set[str]:
    """The folders of tests whose conftest was changed."""
    return {module.removesuffix("conftest") for module in changed if module.endswith(".conftest")}


def _rank(test: str, distance: int, changed: Set[str]) -> tuple[int, int, int, str]:
    shared = [(len(words), len(words & _words(test))) for words in map(_words, changed)]
    named = any(common == count for count, common in shared)
    first = 0 if distance == 0 else 1 if distance == 1 or named else 2
    return first, -max(common for _, common in shared), distance, test


def _words(module: str) -> set[str]:
    """Those of a module's own name, in the singular."""
    return {word.removesuffix("s") for word in re.split("[._]+", module.rpartition(".")[2])} - {"test", ""}


def _is_test(module: str, home: str = "tests.unit.") -> bool:
    return module.startswith(home) and module.rpartition(".")[2].startswith("test_")


def _mirrored(test: str) -> str:
    """The room that the folder of a test is called after."""
    return test.split(".")[2]


def _room(module: str) -> str:
    package = module.partition(".")[0]
    return package if package in HELPERS else room_of(module)
