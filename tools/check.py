"""Checks what was changed, in a minute: `python -m tools.check`, or `make check`.

Format, style, types and import rules are checked beside the unit tests that are near the change by the imports of the
code: changed test files first, then those that import a changed module directly, then those that reach it over more
modules of its room. When the seconds for tests are used up no further one begins, and that is said: `make test` runs all.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tools.rooms import Arrows, modules, room_of, sources

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = ROOT / "tests" / "unit"
TESTS_S: Final = 40
"""Seconds after which no further test begins."""
MOST_SHOWN: Final = 4_000
"""Characters at the end of what a failed check printed."""


@dataclass(frozen=True)
class Outcome:
    """What a check came to."""

    what: str
    failed: bool
    output: str
    seconds: float


def changed_files(since: str) -> list[Path]:
    """The Python files that differ from a revision, and those that git does not know yet.

    Raises:
        SystemExit: git does not know the revision; its message is shown.
    """
    found: set[str] = set()
    for command in (
        ["git", "diff", "--name-only", "--diff-filter=d", since],
        ["git", "ls-files", "--others", "--exclude-standard"],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"cannot tell what was changed since {since}: {done.stderr.strip()}")
        found.update(done.stdout.split("\n"))
    return sorted(ROOT / name for name in found if name.endswith(".py"))


def nearest_tests(
    changed: Iterable[Path], modules_of: Mapping[str, Path], imports: Arrows, tests: Mapping[Path, Set[str]]
) -> list[Path]:
    """The test files that are near a change, nearest first.

    Args:
        changed: files that were changed.
        modules_of: the file of each module.
        imports: which module imports which.
        tests: each test file with the modules that it imports.
    """
    files = set(changed)
    distances = _distances({module for module, file in modules_of.items() if file in files}, imports)
    near = {test: 0 for test in tests if test in files}
    for test, imported in tests.items():
        steps = [distances[module] + 1 for module in imported if module in distances]
        if steps:
            near.setdefault(test, min(steps))
    return sorted(near, key=lambda test: (near[test], test))


def _distances(changed: Set[str], imports: Arrows) -> dict[str, int]:
    """How many imports of modules of the same rooms lead from each module to a changed one."""
    rooms = {room_of(module) for module in changed}
    importers: Arrows = {}
    for module, imported in imports.items():
        if room_of(module) in rooms:
            for each in imported:
                importers.setdefault(each, set()).add(module)
    found = dict.fromkeys(changed, 0)
    reached = list(changed)
    for module in reached:
        for importer in sorted(importers.get(module, set()) - found.keys()):
            found[importer] = found[module] + 1
            reached.append(importer)
    return found


def imported_by(test: Path, known: Set[str]) -> set[str]:
    """The modules of Penstock that a test file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(test.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found & known


def run(what: str, command: Sequence[str | Path]) -> Outcome:
    """A check in a process of its own."""
    began = time.monotonic()
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    return Outcome(what, done.returncode != 0, done.stdout + done.stderr, time.monotonic() - began)


def check_style(changed: Sequence[Path]) -> list[Outcome]:
    """Format, style, types of the changed files, and the rules of imports."""
    tools = Path(sys.executable).parent
    typed = [file for file in changed if not file.is_relative_to(ROOT / "tests")]
    commands = {"format": ["ruff", "format", "--check"], "style": ["ruff", "check"]}
    if typed:
        commands |= {"types": ["basedpyright", *map(str, typed)], "imports": ["lint-imports"]}
    return [run(what, [tools / program, *arguments]) for what, (program, *arguments) in commands.items()]


def check_tests(tests: Sequence[Path], seconds: float) -> list[Outcome]:
    """The tests of these files that start nothing but Python, until the time is over."""
    if not tests:
        return []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = [
            "--lane",
            "python",
            "-p",
            "no:randomly",
            "-q",
            f"--session-timeout={seconds}",
            f"--junitxml={report}",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *map(str, tests)],
            cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "120"},
        )  # fmt: skip
        if not report.exists():
            return [Outcome("tests", True, done.stdout + done.stderr, time.monotonic() - began)]
        return [_tested(report, len(tests), done.stdout, time.monotonic() - began)]


def _tested(report: Path, files: int, output: str, seconds: float) -> Outcome:
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    numbers = [{name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors")} for suite in suites]
    count, wrong = sum(n["tests"] for n in numbers), sum(n["failures"] + n["errors"] for n in numbers)
    over = ", then the time was over: `make test` runs all" if "session-timeout" in output else ""
    return Outcome(f"{count} tests of the {files} nearest files{over}", wrong > 0, output, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check what was changed; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.check", description="Check what was changed, in a minute.")
    parser.add_argument("--since", default="HEAD", help="the revision to compare with; HEAD unless given")
    parser.add_argument("--tests-s", type=float, default=TESTS_S, help="seconds after which no further test begins")
    given = parser.parse_args(arguments)
    changed = changed_files(given.since)
    if not changed:
        print(f"no Python file was changed since {given.since}")
        return 0
    known = sources()
    tests = {test: imported_by(test, known.keys()) for test in TESTS.rglob("test_*.py")}
    nearest = nearest_tests(changed, known, modules(), tests)
    with ThreadPoolExecutor(1) as beside:
        style = beside.submit(check_style, changed)
        outcomes = check_tests(nearest, given.tests_s)
        outcomes = [*style.result(), *outcomes]
    for outcome in outcomes:
        print(f"{'FAILED' if outcome.failed else 'ok':7}{outcome.seconds:5.1f} s  {outcome.what}")
        if outcome.failed:
            print(outcome.output[-MOST_SHOWN:])
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
