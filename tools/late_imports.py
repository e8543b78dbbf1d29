"""Finds imports inside functions that save nothing, so that they belong at the top: `python -m tools.late_imports`.

An import may wait for its function if that spares whoever imports the module something: a library that is not loaded
already (start-up time, or an optional dependency), or a good part of this one. What a function imports counts together.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.rooms import sources

SPARES: Final = 5
"""Modules of this library that are worth waiting with."""


@dataclass(frozen=True)
class Imports:
    """What a module imports."""

    first: Set[str]
    """At its top."""
    late: Sequence[tuple[str, int, Set[str]]]
    """Of each function that imports something: its name, a line, what."""


def needless(files: Mapping[str, Path]) -> Iterator[str]:
    """A line per function that imports what could stand at the top; `files` has the file of each module."""
    imports = {module: _imports(file, files.keys()) for module, file in files.items()}
    for module, file in files.items():
        for function, line, late in imports[module].late:
            more = _loaded(late, imports) - _loaded({module}, imports)
            ours = more & imports.keys()
            if not more - ours - sys.stdlib_module_names and len(ours) < SPARES:
                yield f"{file}:{line}: {function} imports {', '.join(sorted(late))}, which could stand at the top"


def _imports(file: Path, ours: Collection[str]) -> Imports:
    tree = ast.parse(file.read_bytes())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    late = [(each.name, each.lineno, _of_scope(each, ours)) for each in functions]
    return Imports(_of_scope(tree, ours), [each for each in late if each[2]])


def _of_scope(scope: ast.AST, ours: Collection[str]) -> set[str]:
    return {name for node in _statements(scope) for name in _names(node, ours)}


def _statements(scope: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports of a scope, but for typing alone and those of functions in it."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _statements(ast.Module(node.orelse, []))
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _statements(node)


def _names(node: ast.Import | ast.ImportFrom, ours: Collection[str]) -> Iterator[str]:
    """The modules that a statement loads; of other libraries the name alone."""
    if isinstance(node, ast.Import):
        named = [alias.name for alias in node.names]
    else:
        named = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    for name in named:
        if name in ours:
            yield name
        elif (library := name.partition(".")[0]) not in ours:
            yield library


def _loaded(modules: Set[str], imports: Mapping[str, Imports]) -> set[str]:
    """What is loaded when these are, packages above them included."""
    seen: set[str] = set()
    waiting = [*modules]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [above for above in (name.rpartition(".")[0],) if above in imports]
            waiting += imports[name].first if name in imports else ()
    return seen


if __name__ == "__main__":
    found = list(needless(sources()))
    print("\n".join(found) or "every import inside a function spares something")
    sys.exit(bool(found))
