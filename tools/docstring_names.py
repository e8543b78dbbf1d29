"""Finds names in backticks, in docstrings, that nothing bears any more: `python -m tools.docstring_names`.

A name counts as borne if some file of the project defines, imports, accepts or spells it as a whole string: a class, an
attribute, a parameter, a module, an option of a command, a key of a document. Code and shell lines in backticks are not
names and are left alone.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CHECKED: Final = ("shared/src", "services", "tests", "benchmarks", "tools", "infra", "examples")
NAME: Final = re.compile(r"`([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)(?:\(\))?`")
LIBRARIES: Final = frozenset(sys.stdlib_module_names)
OF_OTHERS: Final = frozenset({"OTEL_SERVICE_NAME", "Origin", "PF", "dateTime", "itemName", "spark.redaction.regex"})
"""Headers, variables and fields that others have named."""
COMPOSED: Final = re.compile(r"penstock_\w+_image|k\d|finally")
"""Spelled out of parts in the code, or a word of the language."""


def borne(files: Iterable[Path]) -> set[str]:
    """Every name that the files bear."""
    names: set[str] = set()
    for file in files:
        names.update(file.relative_to(ROOT).with_suffix("").parts)
        waiting: list[ast.AST] = [ast.parse(file.read_bytes(), str(file))]
        while waiting:
            node = waiting.pop()
            names.update(_names_of(node))
            waiting.extend(child for child in ast.iter_child_nodes(node) if not _is_docstring(child))
    return names


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _names_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            yield node.name
        case ast.Name():
            yield node.id
        case ast.Attribute():
            yield node.attr
        case ast.arg():
            yield node.arg
        case ast.keyword() if node.arg:
            yield node.arg
        case ast.alias():
            yield from node.name.split(".")
        case ast.Constant(value=str() as text):
            yield from re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text)
        case _:
            pass


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of a file, those behind attributes too, with the line they begin in."""
    for node in ast.walk(ast.parse(file.read_bytes(), str(file))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def unknown_names(file: Path, known: set[str]) -> Iterator[str]:
    """A line for every name of the file's docstrings that nothing bears."""
    for line, text in docstrings(file):
        for found in NAME.finditer(text):
            parts = found.group(1).split(".")
            if found.group(1) in OF_OTHERS or COMPOSED.fullmatch(found.group(1)) or parts[0] in LIBRARIES:
                continue
            if not set(parts) <= known:
                at = line + text.count("\n", 0, found.start())
                yield f"{file.relative_to(ROOT)}:{at}: nothing is called `{found.group(1)}`"


def main() -> int:
    """Look at every file under version control."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split() if name.startswith(CHECKED) and (ROOT / name).is_file()]
    known = borne(files)
    problems = [problem for file in files for problem in unknown_names(file, known)]
    print("\n".join(problems) or "every name in a docstring exists")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
