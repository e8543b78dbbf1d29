"""Files of tests of SQL, run: what each test finds wrong.

Every test is a run of its own, of the plan that `penstock run` would run: given rows take the place of what connectors
read, in the order of the text and in virtual time, and nothing is written. A query sees the rows that are given above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.loading import make_importable
from penstock.sql.syntax import Insert
from penstock.sql.testing.comparing import difference, expected_rows
from penstock.sql.testing.files import (
    Check,
    ExpectedError,
    ExpectedRows,
    SqlTest,
    SqlTestFile,
    read_tests,
    with_answers,
)
from penstock.sql.testing.tables import table_of
from penstock.sql.text import SqlError, SqlText, read_sql
from penstock.testing.sql_programs import ProgramUnderTest

SUFFIX: Final = ".test.sql"


@dataclass(frozen=True)
class Failure:
    """What is wrong with a test."""

    message: str
    """With its place."""
    check: Check | None = None
    """The query, if another answer in the file would make it right."""
    answer: str = ""
    """That answer, as it stands in the file."""


@dataclass(frozen=True)
class SqlTests:
    """A file of tests, and the program that it tests."""

    file: SqlTestFile
    program: SqlText | None

    def uses(self, parameter: str) -> bool:
        """Whether a text of the program or of the tests has the parameter."""
        texts = [self.file.text, *([] if self.program is None else [self.program])]
        return any(each.uses(parameter) for each in texts)


def read_sql_tests(path: Path, parameters: Mapping[str, str]) -> SqlTests:
    """The tests of a file.

    Raises:
        SqlError: it is wrong, or the program is not there.
        UsageError: it cannot be read.
    """
    make_importable(path.resolve().parent)
    file = read_tests(read_sql(path, parameters), path.name.removesuffix(SUFFIX))
    tests = SqlTests(file, _program_of(path, file))
    for test in file.tests:
        for parameter, span in test.parameters.items():
            if not tests.uses(parameter):
                where = "this file" if tests.program is None else f"{tests.program.name} or of this file"
                raise file.text.error(span, f"no text of {where} has ${{{parameter}}}, so this says nothing")
    return tests


def _program_of(path: Path, file: SqlTestFile) -> SqlText | None:
    """The program that a file names, or else the one that has its name."""
    if file.program is not None:
        program = path.parent / file.program.value
        if not program.is_file():
            raise file.text.error(file.program.span, f"there is no file {program}")
        if program.suffix != ".sql":
            reason = "tests are of files of SQL (.sql); those of a pipeline in Python are written with penstock.testing"
            raise file.text.error(file.program.span, reason)
    else:
        program = path.with_name(path.name.removesuffix(SUFFIX) + ".sql")
        if not path.name.endswith(SUFFIX) or not program.is_file():
            return None
    make_importable(program.resolve().parent)
    return read_sql(program)


def write_answers(path: Path, file: SqlTestFile, answers: Mapping[Check, str]) -> None:
    """Write other answers into a file of tests; all else of it stays as it is."""
    with path.open(encoding="utf-8", newline="") as raw:
        changed = with_answers(raw.read(), file.text.text, answers)
    path.write_text(changed, encoding="utf-8", newline="")


def run_sql_test(tests: SqlTests, test: SqlTest) -> list[Failure]:
    """Run one test: what is wrong, nothing if it passes."""
    failures: list[Failure] = []
    try:
        program = ProgramUnderTest(test, tests.program)
        for step in test.steps:
            if isinstance(step, Check):
                failures += _check(program, test.text, step)
            elif isinstance(step, Insert):
                program.give(step)
            else:
                program.declare(step)
    except PenstockError as error:
        failures.append(Failure(str(error)))
    return failures


def _check(program: ProgramUnderTest, text: SqlText, check: Check) -> Iterator[Failure]:
    """Ask one query, and compare."""
    expected = check.expected
    try:
        table = table_of(text, expected.lines) if isinstance(expected, ExpectedRows) else None
        found = program.answer(check, table)
    except PenstockError as error:
        yield from _failed(text, check, error)
        return
    answer = "\n".join(f"-- {line}" for line in found.table())
    if isinstance(expected, ExpectedError):
        rows = "1 row" if len(found.rows) == 1 else f"{len(found.rows)} rows"
        yield Failure(str(text.error(check.span, f"this was to fail, and it has an answer of {rows}")))
    elif table is None:
        reason = "nothing is expected of this query; write its answer behind it, or let --update write it"
        yield Failure(str(text.error(check.span, reason)), check, answer)
    else:
        try:
            rows = expected_rows(text, table, found.columns)
        except SqlError as error:
            yield Failure(str(error), check, answer)
            return
        if not found.same_as(rows):
            yield Failure(difference(text, check.span, found, rows), check, answer)


def _failed(text: SqlText, check: Check, error: PenstockError) -> Iterator[Failure]:
    """A query that cannot be answered, which may be what is expected of it."""
    if isinstance(check.expected, ExpectedError):
        said = error.message if isinstance(error, SqlError) else str(error)  # without the line that is wrong
        if check.expected.text not in said:
            reason = text.error(check.expected.span, "the error is another one:")
            first, *_ = said.strip().splitlines()
            yield Failure(f"{reason}\n{error}", check, f"-- error: {first.rstrip()}")
    elif isinstance(error, SqlError) and error.text.name == text.name:
        yield Failure(str(error))
    else:
        yield Failure(f"{text.error(check.span, 'this cannot be answered:')}\n{error}")
