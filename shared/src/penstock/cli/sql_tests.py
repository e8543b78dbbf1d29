"""`penstock test`: files of tests of SQL are run, and what is wrong is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from penstock.errors import UsageError
from penstock.loading import parse_parameters
from penstock.sql.testing.files import Check, SqlTest
from penstock.sql.text import SqlError
from penstock.testing.sql import SUFFIX, Failure, SqlTests, read_sql_tests, run_sql_test, write_answers


@dataclass(frozen=True)
class RunSqlTests:
    """`penstock test`."""

    paths: list[str]
    keyword: str | None
    update: bool
    param: list[str]


def sql_tests_command(command: RunSqlTests) -> int:
    """Run tests; 1 if one fails, or a file of tests is wrong."""
    parameters = parse_parameters(command.param)
    report = _Report(Console(soft_wrap=True), command.keyword or "", update=command.update)
    used = set[str]()
    for path in _files(command.paths):
        try:
            tests = read_sql_tests(path, parameters)
        except SqlError as error:
            report.wrong_file(path, error)
            used.update(parameters)
            continue
        used.update(name for name in parameters if tests.uses(name))
        report.run(path, tests)
    for name in parameters.keys() - used:
        raise UsageError(f"no text of these tests and their programs has ${{{name}}}, so --param {name} says nothing")
    return report.end()


def _files(paths: Sequence[str]) -> Iterator[Path]:
    seen = set[Path]()
    for given in paths:
        path = Path(given)
        if not path.exists():
            raise UsageError(f"{given}: there is no such file or folder")
        found = sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not found:
            raise UsageError(f"{given}: there are no tests in this folder; files of tests are called *{SUFFIX}")
        for each in found:
            if each.resolve() not in seen:
                seen.add(each.resolve())
                yield each


class _Report:
    """Runs tests, says how each ended, and counts."""

    def __init__(self, output: Console, keyword: str, *, update: bool) -> None:
        self._output = output
        self._keyword = keyword.casefold()
        self._update = update
        self._tests = self._failed = self._wrong_files = self._written = 0

    def run(self, path: Path, tests: SqlTests) -> None:
        """The tests of a file that are asked for."""
        chosen = [each for each in tests.file.tests if self._keyword in f"{path} {each.name}".casefold()]
        if chosen:
            self._print(str(path), style="bold")
        answers: dict[Check, str] = {}
        for test in chosen:
            answers |= self._run_one(tests, test)
        if answers:
            self._written += len(answers)
            write_answers(path, tests.file, answers)

    def _run_one(self, tests: SqlTests, test: SqlTest) -> dict[Check, str]:
        """Run one; the answers that are to be written."""
        failures = run_sql_test(tests, test)
        answers = {each.check: each.answer for each in failures if self._update and each.check is not None}
        left = [each for each in failures if each.check not in answers]
        self._tests += 1
        self._failed += bool(left)
        if left:
            self._print(f"  FAILED   {test.name}", style="red")
        elif answers:
            self._print(f"  updated  {test.name}", style="yellow")
        else:
            self._print(f"  passed   {test.name}", style="green")
        for each in left:
            self._show(each)
        return answers

    def _show(self, failure: Failure) -> None:
        self._print(f"{failure.message}\n")

    def wrong_file(self, path: Path, error: SqlError) -> None:
        """A file that cannot be read as tests."""
        self._wrong_files += 1
        self._print(str(path), style="bold")
        self._print(f"  WRONG    {error}\n", style="red")

    def end(self) -> int:
        """Say how many; the exit code."""
        if not self._tests and not self._wrong_files:
            raise UsageError(f"no test has {self._keyword!r} in its name, or in that of its file")
        counts = [f"{self._tests} {'test' if self._tests == 1 else 'tests'}"]
        counts += [f"{self._failed} failed"] if self._failed else []
        if self._wrong_files:
            counts.append(f"{self._wrong_files} wrong {'file' if self._wrong_files == 1 else 'files'}")
        if self._written:
            counts.append(f"{self._written} {'answer' if self._written == 1 else 'answers'} written")
        self._print(", ".join(counts), style="bold")
        return 1 if self._failed or self._wrong_files else 0

    def _print(self, text: str, style: str | None = None) -> None:
        self._output.print(text, style=style, markup=False, highlight=False)
