"""From a text to its tree: a recursive descent that says, where it fails, what could have stood there."""

from __future__ import annotations

from penstock.sql.parsing.statements import Parser
from penstock.sql.syntax import Part, Query
from penstock.sql.text import SqlText


def statements(text: SqlText) -> list[Part]:
    """All statements of a text, which semicolons part.

    Raises:
        SqlError: it is none.
    """
    return Parser(text).statements()


def query(text: SqlText) -> Query:
    """The one query that a text is.

    Raises:
        SqlError: it is another statement, or more than one.
    """
    return Parser(text).only_query()


__all__ = ["Parser", "query", "statements"]
