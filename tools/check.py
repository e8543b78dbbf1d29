"""Checks what was changed, in a minute: `python -m tools.check`, or `make check`.

Format, style, types and import rules are checked beside the unit tests that are near the change (`tools.near`). When the
seconds for tests are used up no further one begins. Whatever was left out is said; `make lint test` leaves nothing out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tools.near import Code, code_of_tree, nearest_tests
from tools.rooms import ROOT
from tools.time_budget import NO_TIME, UNTIL

TESTS_S: Final = 40
"""Seconds after which no further test begins."""
FIRST_FILES: Final = 4
"""Test files that pytest runs first; then it runs twice as many, and so on."""
MOST_IMPORTERS: Final = 12
"""Modules that import a changed one are checked for types unless they are more: nine modules of ten have no more."""
MOST_NAMED: Final = 10
"""Files whose names are said when they were left out, before a number stands for the others."""
MOST_SHOWN: Final = 4_000
"""Characters at the end of what a failed check printed."""
OPTIONS: Final = (
    "--lane=python",
    "-n2",
    "--no-loadscope-reorder",
    "-q",
    "-rfE",
    "-pno:randomly",
    "-ptools.time_budget",
)
"""Of pytest: two processes take file after file in the order given, which is that of nearness."""
NO_TESTS: Final = 5
"""The exit code of pytest when all tests are of other lanes."""


@dataclass(frozen=True)
class Outcome:
    """What a check came to."""

    what: str
    failed: bool
    output: str
    seconds: float
    left_out: str = ""
    began: bool = True
    """False where no test was run, which is not called `ok`."""


@dataclass(frozen=True)
class Tested:
    """What a run of pytest came to."""

    failed: bool
    output: str
    cases: Sequence[tuple[str, bool]]
    """The file of each test, as a module, and whether the test began."""


def changed_files(since: str) -> set[Path]:
    """The files that differ from a revision, deleted ones too, and those that git does not know yet.

    Raises:
        SystemExit: git does not know the revision; its message is shown.
    """
    found: set[str] = set()
    for command in (
        ["git", "diff", "-z", "--name-only", "--no-renames", since, "--"],
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"cannot tell what was changed since {since}: {done.stderr.strip()}")
        found.update(filter(None, done.stdout.split("\0")))
    return {ROOT / name for name in found}


def run(what: str, command: Sequence[str | Path], left_out: str = "") -> Outcome:
    """A check in a process of its own."""
    began = time.monotonic()
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    return Outcome(what, done.returncode != 0, done.stdout + done.stderr, time.monotonic() - began, left_out)


def check_style(changed: Set[str], code: Code) -> Iterator[Outcome]:
    """Format and style of all files, the rules of imports, and the types near the change."""
    tools = Path(sys.executable).parent
    yield run("format", [tools / "ruff", "format", "--check"])
    yield run("style", [tools / "ruff", "check"])
    yield run("rules of imports", [tools / "lint-imports"])
    files, left_out = typed(changed, code)
    if files:
        yield run(f"types of {_count(files, 'file')}", [tools / "basedpyright", *files], left_out)


def typed(changed: Set[str], code: Code) -> tuple[list[Path], str]:
    """The files to check for types, and which ones that import them are left out."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    homes = [ROOT / home for home in config["tool"]["basedpyright"]["include"]]
    inside = {module for module, file in code.files.items() if any(map(file.is_relative_to, homes))}
    importers = code.importers(changed) & inside
    chosen = (changed & inside) | (importers if len(importers) <= MOST_IMPORTERS else set[str]())
    left_out = f"types of {_count(importers, 'module')} that import what was changed"
    return sorted(code.files[module] for module in chosen), "" if importers <= chosen else left_out


def check_tests(tests: Sequence[str], code: Code, seconds: float) -> Outcome:
    """The nearest of these tests that start nothing but Python, until the time is over."""
    began, until = time.monotonic(), time.time() + seconds
    chosen = ([code.files[test] for test in files] for files in batches(tests))
    runs = [run_tests(files, until) for files in chosen if time.time() < until]
    cases = [case for run in runs for case in run.cases]
    names = [test for test, begun in cases if begun]
    what = f"{_count(names, 'test')} of {_count(set(names), 'file')}"
    output = "\n".join(run.output for run in runs if run.failed)
    further = [test for files in batches(tests)[len(runs) :] for test in files]
    left_out = _left_out(cases, tests, further)
    return Outcome(what, any(run.failed for run in runs), output, time.monotonic() - began, left_out, bool(names))


def batches(tests: Sequence[str]) -> list[Sequence[str]]:
    """The tests in batches that double: to collect all files at once would take the time of the nearest."""
    found: list[Sequence[str]] = []
    begin, size = 0, FIRST_FILES
    while begin < len(tests):
        found.append(tests[begin : begin + size])
        begin, size = begin + size, 2 * size
    return found


def run_tests(files: Sequence[Path], until: float) -> Tested:
    """Tests of files by pytest in two processes; none begins after a time, in seconds since 1970."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = [*OPTIONS, f"--junitxml={report}"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *map(str, files)],
            cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, UNTIL: str(until)},
        )  # fmt: skip
        return Tested(done.returncode not in (0, NO_TESTS), done.stdout + done.stderr, _cases(report))


def _cases(report: Path) -> list[tuple[str, bool]]:
    if not report.exists():
        return []
    return [
        (case.get("classname", ""), all(skipped.get("message") != NO_TIME for skipped in case.iter("skipped")))
        for case in ElementTree.parse(report).getroot().iter("testcase")
    ]


def _left_out(cases: Sequence[tuple[str, bool]], tests: Sequence[str], further: Sequence[str]) -> str:
    """What there was no time for, nearest first: tests that did not begin, and files that were not collected."""
    waiting = [test for test, begun in cases if not begun]
    files = [test for test in tests if test in waiting or test in further]
    parts = [f"{_count(waiting, 'test')} of {_count(set(waiting), 'file')}"] if waiting else []
    parts += [f"all of {_count(further, 'further file')}"] if further else []
    named = ", ".join(files[:MOST_NAMED]) + (f" and {len(files) - MOST_NAMED} more" if files[MOST_NAMED:] else "")
    return f"{' and '.join(parts)}: {named}" if files else ""


def _count(things: Sequence[object] | Set[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def check(files: Set[Path], seconds: float) -> list[Outcome]:
    """All checks of changed files: those of style beside the tests."""
    code = code_of_tree()
    changed = code.modules_in(files)
    tests = nearest_tests(changed, code)
    with ThreadPoolExecutor(1) as beside:
        style = beside.submit(lambda: list(check_style(changed, code)))
        tested = [check_tests(tests, code, seconds)] if tests else []
        return [*style.result(), *tested]


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A line per check, with the output of those that failed, and what was left out."""
    for outcome in outcomes:
        word = "FAILED" if outcome.failed else "ok" if outcome.began else "NONE"
        yield f"{word:7}{outcome.seconds:5.1f} s  {outcome.what}"
        if outcome.failed:
            yield outcome.output[-MOST_SHOWN:]
    yield from (f"left out: {outcome.left_out}" for outcome in outcomes if outcome.left_out)


def unchecked(files: Set[Path]) -> Iterator[str]:
    """What a change holds that no check here sees."""
    if others := sorted(str(file.relative_to(ROOT)) for file in files if file.suffix != ".py"):
        yield f"left out: {_count(others, 'file')} of other languages than Python: {', '.join(others[:MOST_NAMED])}"
    if gone := sorted(str(file.relative_to(ROOT)) for file in files if file.suffix == ".py" and not file.exists()):
        yield f"left out: types and tests of what imports {', '.join(gone[:MOST_NAMED])}, which is gone"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check what was changed; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.check", description="Check what was changed, in a minute.")
    parser.add_argument("--since", default="HEAD", help="the revision to compare with; HEAD unless given")
    parser.add_argument("--tests-s", type=float, default=TESTS_S, help="seconds after which no further test begins")
    given = parser.parse_args(arguments)
    files = changed_files(given.since)
    if not files:
        print(f"nothing was changed since {given.since}")
        return 0
    outcomes = check(files, given.tests_s) if any(file.suffix == ".py" for file in files) else []
    print(*summary(outcomes), *unchecked(files), sep="\n")
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
