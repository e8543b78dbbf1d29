"""A text of SQL, places in it, and the errors that show them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import PipelineError, UsageError

_PARAMETER: Final = re.compile(r"\$\{(\w+)(?::([^}]*))?\}")
_WIDEST: Final = 110
"""So many characters of a line are shown around a place."""


class Span(NamedTuple):
    """A part of a text: from the character `start` up to, and without, the character `end`."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """From the beginning of this part to the end of another one."""
        return Span(self.start, max(self.end, other.end))


@dataclass(frozen=True, slots=True)
class SqlText:
    """A text, and what it is called in messages: a file, or `<sql>`."""

    text: str
    name: str = "<sql>"
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    """What stands for `${name}` within constants in quotes; `${name:7}` says what does if it is not given."""

    def given(self, constant: str, span: Span) -> str:
        """A constant with its parameters.

        Raises:
            SqlError: one is not given, and the text does not say what stands for it.
        """

        def value(match: re.Match[str]) -> str:
            name, default = match.group(1), match.group(2)
            if name not in self.parameters and default is None:
                raise self.error(span, f"there is no --param {name}=...; give it, or write ${{{name}:value}}")
            return self.parameters.get(name, default or "")

        return _PARAMETER.sub(value, constant) if "${" in constant else constant

    def uses(self, parameter: str) -> bool:
        """Whether the text has a parameter."""
        return any(match.group(1) == parameter for match in _PARAMETER.finditer(self.text))

    @property
    def unused(self) -> list[str]:
        """The parameters that are given and do not stand in the text."""
        return [name for name in self.parameters if not self.uses(name)]

    def at(self, span: Span) -> str:
        """The text there."""
        return self.text[span.start : span.end]

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of a character, from 1."""
        before = self.text[:offset]
        return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1

    def error(self, span: Span, message: str) -> SqlError:
        """An error that names the place and shows it with carets."""
        return SqlError(message, self, span)


def read_sql(path: Path, parameters: Mapping[str, str] | None = None) -> SqlText:
    """The text of a file, in UTF-8, with or without a byte order mark.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as text in UTF-8: {error}") from error
    return SqlText(text, str(path), parameters or {})


class SqlError(PipelineError):
    """A text of SQL is wrong: which part, why, and what to write instead."""

    def __init__(self, message: str, text: SqlText, span: Span) -> None:
        self.message = message
        self.text = text
        self.span = span
        self.line, self.column = text.place(span.start)
        super().__init__(f"{text.name}:{self.line}:{self.column}: {message}\n{_shown(text, span)}")


def counted(columns: int) -> str:
    """`is 1 column`, `are 2 columns`."""
    return f"is {columns} column" if columns == 1 else f"are {columns} columns"


def _shown(text: SqlText, span: Span) -> str:
    line, column = text.place(span.start)
    whole = text.text.splitlines()[line - 1 : line]
    shown = (whole[0] if whole else "").replace("\t", " ")
    first = max(0, column - 1 - _WIDEST // 2) if len(shown) > _WIDEST else 0
    cut = shown[first : first + _WIDEST]
    width = max(1, min(span.end - span.start, len(shown) - column + 1, _WIDEST - (column - 1 - first)))
    margin = f"{line:>4} | "
    return f"{margin}{cut}\n{' ' * (len(margin) - 2)}| {' ' * (column - 1 - first)}{'^' * width}"
