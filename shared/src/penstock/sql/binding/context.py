"""What all clauses of a text share while it is bound."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.errors import PipelineError
from penstock.sql.text import Span, SqlError, SqlText

if TYPE_CHECKING:
    from penstock.plan.logical import LogicalPlan
    from penstock.sql.catalogue import Catalogue
    from penstock.sql.syntax import Part


Wanted = frozenset[str] | None
"""Names of columns that a query mentions, in lower case; None for all."""


_BEFORE_TABLES: Final = ((), ("default_database",), ("default_catalog", "default_database"))


@dataclass(frozen=True)
class Context:
    """A text, the plan that it becomes part of, and the tables that it may name."""

    text: SqlText
    plan: LogicalPlan
    catalogue: Catalogue

    @contextlib.contextmanager
    def at(self, span: Span) -> Generator[None]:
        """Gives errors of the plan the place of a part of the text.

        Raises:
            SqlError: the body raised a `PipelineError` without a place.
        """
        try:
            yield
        except SqlError:
            raise
        except PipelineError as error:
            raise self.text.error(span, str(error)) from error

    def table_name(self, parts: tuple[str, ...], place: Part) -> str:
        """The name of a table alone: catalog and database may stand before it, of which there is one each.

        Raises:
            SqlError: others stand there.
        """
        *before, name = parts
        if tuple(each.casefold() for each in before) not in _BEFORE_TABLES:
            raise self.error(
                place,
                f"there is no catalog or database {'.'.join(before)!r}: the only ones are "
                f"default_catalog.default_database, so write {name}",
            )
        return name

    def error(self, part: Part | Span, message: str) -> SqlError:
        """An error at a part."""
        return self.text.error(part if isinstance(part, Span) else part.span, message)
