"""Files of tests: what stands in them, and where.

A file of tests is SQL: what only a test says stands in comments, so that editors, formatters and prompts take it.

    -- test: departures are counted per day
    INSERT INTO flights VALUES ('2026-01-01 10:00', 'FRA'), ('2026-01-01 11:00', 'FRA');
    SELECT origin, flights FROM departures;
    -- | origin | flights |
    -- |--------|---------|
    -- | FRA    |       2 |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.sql.parsing import Parser
from penstock.sql.syntax import CreateFunction, CreateTable, CreateView, Insert, Part, Query
from penstock.sql.testing.tables import has_bars, is_line_of_table
from penstock.sql.text import Span, SqlText
from penstock.sql.tokens import line_comments_of

_DIRECTIVE: Final = re.compile(r"--\s*(test|program|param|error)\s*:\s*(.*?)\s*$", re.IGNORECASE)
_PARAMETER: Final = re.compile(r"(\w+)\s*=\s*(.*)")
_REST_OF_A_LINE: Final = re.compile(r"[ \t]*(?:/\*(?:(?!\*/)[^\n])*\*/[ \t]*)*(?:--[^\n]*)?(?=\n|$)", re.DOTALL)
"""Blanks and comments that end on the line."""
_OF_THE_PROGRAM: Final = "a file of tests has CREATE, INSERT INTO and queries; write this into the program"


@dataclass(frozen=True)
class ExpectedRows:
    """A table in the comments behind a query; a line of it begins at the `--`."""

    lines: tuple[Span, ...]

    @property
    def span(self) -> Span:
        """All of it."""
        return self.lines[0].to(self.lines[-1])


@dataclass(frozen=True)
class ExpectedError:
    """`-- error: TEXT` behind a query: it fails, with a message that has this text."""

    text: str
    span: Span


@dataclass(frozen=True)
class Check:
    """A query, and what is expected of it."""

    query: Query
    span: Span
    expected: ExpectedRows | ExpectedError | None
    end: int
    """Where an answer may be written: the end of the line on which the statement ends, if nothing follows on it."""


Step = CreateTable | CreateView | CreateFunction | Insert | Check


@dataclass(frozen=True)
class SqlTest:
    """One test: its steps, those of the head of the file before its own."""

    name: str
    text: SqlText
    """The text of the file, of which the other tests are left blank, with the parameters of this one."""
    steps: tuple[Step, ...]
    parameters: Mapping[str, Span]
    """What `-- param:` gives to it, with its place."""


@dataclass(frozen=True)
class SqlTestFile:
    """A file of tests."""

    text: SqlText
    program: Directive | None
    """`-- program:`, relative to the folder of the file."""
    tests: tuple[SqlTest, ...]


@dataclass(frozen=True)
class Directive:
    """A comment such as `-- test: NAME`."""

    kind: str
    value: str
    span: Span


@dataclass(frozen=True)
class _Table:
    rows: ExpectedRows

    @property
    def span(self) -> Span:
        return self.rows.span


@dataclass
class _Section:
    """The head of a file, or a test."""

    span: Span
    remarks: list[Directive | _Table] = field(default_factory=list["Directive | _Table"])

    def parameters(self, text: SqlText) -> Iterator[tuple[str, str, Span]]:
        """Name, value and place of each."""
        found = set[str]()
        for each in self.remarks:
            if isinstance(each, Directive) and each.kind == "param":
                match = _PARAMETER.fullmatch(each.value)
                if match is None:
                    raise text.error(each.span, "a parameter is written -- param: name=value")
                if match.group(1) in found:
                    raise text.error(each.span, f"{match.group(1)} has a value already, above; leave one of them out")
                found.add(match.group(1))
                yield match.group(1), match.group(2), each.span


def read_tests(text: SqlText, name: str) -> SqlTestFile:
    """The tests of a file.

    Args:
        text: the file, with the parameters that the command gives: they replace those of the file.
        name: what the one test of a file is called that does not name its tests.

    Raises:
        SqlError: a statement is wrong, or no statement of a file of tests; or a test asks nothing.
    """
    head, *sections = _sections(text)
    program = _program(text, head)
    if not sections:
        return SqlTestFile(text, program, (_test(text, name, head, None),))
    named: dict[str, Directive] = {}
    for section in sections:
        title = section.remarks[0]
        assert isinstance(title, Directive)
        if not title.value:
            raise text.error(title.span, "the test has no name; write for example -- test: flights are counted per day")
        if title.value in named:
            line, _ = text.place(named[title.value].span.start)
            raise text.error(title.span, f"there is a test of this name in line {line}; give this another name")
        named[title.value] = title
    return SqlTestFile(
        text,
        program,
        tuple(_test(text, title, head, section) for title, section in zip(named, sections, strict=True)),
    )


def _sections(text: SqlText) -> list[_Section]:
    sections = [_Section(Span(0, len(text.text)))]
    for remark in _remarks(text):
        if isinstance(remark, Directive) and remark.kind == "test":
            if text.text[: remark.span.start].rpartition("\n")[2].strip():
                raise text.error(
                    remark.span, "a test begins behind this statement; put -- test: into a line of its own"
                )
            last = sections[-1]
            last.span = Span(last.span.start, remark.span.start)
            sections.append(_Section(Span(remark.span.start, len(text.text))))
        sections[-1].remarks.append(remark)
    return sections


def _remarks(text: SqlText) -> Iterator[Directive | _Table]:
    """What comments say to this module: lines of a table that follow each other are one table."""
    lines: list[Span] = []
    for comment in line_comments_of(text):
        shown = text.at(comment)
        if lines and (not is_line_of_table(shown) or text.text[lines[-1].end : comment.start].strip(" \t") != "\n"):
            yield from _tables(text, lines)
            lines = []
        if is_line_of_table(shown):
            lines.append(comment)
        elif match := _DIRECTIVE.match(shown):
            yield Directive(match.group(1).lower(), match.group(2), comment)
    yield from _tables(text, lines)


def _tables(text: SqlText, lines: Sequence[Span]) -> Iterator[_Table]:
    if has_bars(text, lines):
        yield _Table(ExpectedRows(tuple(lines)))


def _program(text: SqlText, head: _Section) -> Directive | None:
    found = [each for each in head.remarks if isinstance(each, Directive) and each.kind == "program"]
    if len(found) > 1:
        raise text.error(found[1].span, "a file tests one program; put the tests of another one into a file of theirs")
    if found and not found[0].value:
        raise text.error(found[0].span, "this names no file; write for example -- program: departures.sql")
    return found[0] if found else None


def _test(text: SqlText, name: str, head: _Section, section: _Section | None) -> SqlTest:
    parts = [head] if section is None else [head, section]
    parameters = [each for part in parts for each in part.parameters(text)]
    values = {**{name: value for name, value, _ in parameters}, **text.parameters}
    own = SqlText(_only(text.text, parts), text.name, values)
    remarks = [each for part in parts for each in part.remarks]
    steps = tuple(_steps(own, remarks, head if section is not None else None))
    if not any(isinstance(each, Check) for each in steps):
        where = section.remarks[0].span if section is not None else Span(0, 1)
        raise text.error(
            where, "nothing is checked here; write a query, and behind it what it is to answer: -- | origin | flights |"
        )
    return SqlTest(name, own, steps, {name: span for name, _, span in parameters})


def _only(text: str, parts: Sequence[_Section]) -> str:
    """The text with blanks instead of all that is in none of the parts, so that places stay what they are."""
    kept = list(re.sub(r"[^\n]", " ", text))
    for part in parts:
        kept[part.span.start : part.span.end] = text[part.span.start : part.span.end]
    return "".join(kept)


def _steps(text: SqlText, remarks: Sequence[Directive | _Table], head: _Section | None) -> Iterator[Step]:
    """The statements, and behind queries what is expected of them."""
    statements = [*_statements(text)]
    answers = _answers(text, [span for _, span in statements], remarks)
    for number, (part, span) in enumerate(statements):
        answer = answers.pop(number, None)
        if not isinstance(part, Query):
            if answer is not None:
                raise text.error(answer.span, "this stands behind no query; an answer stands behind the query it is of")
            if not isinstance(part, CreateTable | CreateView | CreateFunction | Insert):
                raise text.error(span, _OF_THE_PROGRAM)
            yield part
            continue
        if head is not None and span.start < head.span.end:
            raise text.error(span, "a query stands before the first test; put it behind -- test: NAME")
        rest = _REST_OF_A_LINE.match(text.text, span.end)
        yield Check(part, span, answer, span.end if rest is None else rest.end())


def _statements(text: SqlText) -> Iterator[tuple[Part, Span]]:
    """With their places, semicolons included."""
    parser = Parser(text)
    while not parser.at_end:
        if parser.accept(";"):
            continue
        start = parser.next
        part = parser.statement()
        if not parser.at_end and not parser.accept(";"):
            raise parser.unexpected()
        yield part, parser.since(start)


def _answers(
    text: SqlText, spans: Sequence[Span], remarks: Sequence[Directive | _Table]
) -> dict[int, ExpectedRows | ExpectedError]:
    """By the number of the statement that they stand behind."""
    found: dict[int, ExpectedRows | ExpectedError] = {}
    for each in remarks:
        if isinstance(each, Directive) and each.kind != "error":
            if each.kind == "program" and spans and spans[0].start < each.span.start:
                raise text.error(
                    each.span, "-- program: stands at the head of the file, before all statements and tests"
                )
            continue
        before = [number for number, span in enumerate(spans) if span.end <= each.span.start]
        if not before:
            raise text.error(each.span, "this stands behind no query; an answer stands behind the query it is of")
        if before[-1] in found:
            raise text.error(each.span, "the query has an answer already; a query has one table, or one error")
        if isinstance(each, _Table):
            found[before[-1]] = each.rows
        elif each.value:
            found[before[-1]] = ExpectedError(each.value, each.span)
        else:
            raise text.error(each.span, "this says no error; write a part of the message behind it")
    return found


def with_answers(raw: str, text: str, answers: Mapping[Check, str]) -> str:
    """A file with other answers; all else of it stays as it is.

    Args:
        raw: what stands in the file, with its own ends of lines and a byte order mark.
        text: the same as it was read, with line feeds.
        answers: of the text.
    """
    edits = [_edit(text, check, answer) for check, answer in answers.items()]
    places = [*_places(raw), len(raw)]
    end_of_line = "\r\n" if "\r\n" in raw else "\n"
    for span, answer in sorted(edits, reverse=True):
        raw = raw[: places[span.start]] + answer.replace("\n", end_of_line) + raw[places[span.end] :]
    return raw


def _places(raw: str) -> Iterator[int]:
    """Where each character of the text that was read stands in the file."""
    return (match.start() for match in re.finditer(r"\r\n|[^\ufeff]|(?<!^)\ufeff", raw, re.DOTALL))


def _edit(text: str, check: Check, answer: str) -> tuple[Span, str]:
    """What is replaced, and by what."""
    if check.expected is not None:
        span = check.expected.span
        indent = text[text.rfind("\n", 0, span.start) + 1 : span.start]
        return span, answer.replace("\n", f"\n{indent}") if not indent.strip() else answer
    rest = text[check.end :]
    blanks = len(rest) - len(rest.lstrip(" \t"))
    if not rest or rest.startswith("\n"):
        return Span(check.end, check.end), f"\n{answer}"
    return Span(check.end, check.end + blanks), f"\n{answer}\n"
