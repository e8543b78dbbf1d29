"""Which column a name means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from penstock.errors import nearest
from penstock.sql.binding.relations import Column, Relation
from penstock.sql.syntax import Call, Exists, FieldOf, InQuery, Name, Part, Quantified, Query, Subquery
from penstock.sql.text import SqlText


@dataclass(frozen=True)
class Bound(Part):
    """A column of the rows: what a name has been found to mean."""

    column: str


@dataclass(frozen=True)
class OuterColumn(Part):
    """A column of the query around this one."""

    column: str


@dataclass(frozen=True)
class Scope:
    """The columns that names may mean, and those of the query around."""

    text: SqlText
    relation: Relation
    outer: Scope | None = None
    aliases: dict[str, Sequence[Part]] = field(default_factory=dict[str, Sequence[Part]])
    """What names of SELECT mean where no column has the name: one expression each, if they are to be used."""

    def resolve(self, part: Part) -> Part:
        """The part with columns instead of names. Queries within it stay: they have scopes of their own.

        Raises:
            SqlError: a name means no column, or several.
        """
        return rewritten(part, self._resolved)

    def _resolved(self, part: Part) -> Part | None:
        if not isinstance(part, Name):
            return None
        found = self.column(part)
        if found is not None:
            return found
        if (aliased := self.aliased(part)) is not None:
            return aliased
        above = self.outer
        if above is not None:
            outer = above.column(part)
            if isinstance(outer, Bound):
                return OuterColumn(outer.column, span=part.span)
            if above.outer is not None and above.outer.column(part) is not None:
                raise self.text.error(
                    part.span, f"{part} is a column two queries further out; join its table in the query between"
                )
        raise self.text.error(part.span, self._unknown(part))

    def aliased(self, name: Name) -> Part | None:
        """What a name of SELECT means; None if there is none.

        Raises:
            SqlError: it means several expressions.
        """
        meant = alike(name.parts[0], self.aliases) if len(name.parts) == 1 else None
        if meant is None:
            return None
        first, *others = self.aliases[meant]
        if others:
            raise self.text.error(name.span, f"SELECT has several columns {meant}; give them different names with AS")
        return first

    def column(self, name: Name) -> Part | None:
        """The column, or the field of one, that a name means; None if there is none."""
        parts = [*name.parts]
        if len(parts) > 1:
            found = self._find(name, parts[1], parts[0])
            if found is not None:
                return _fields(Bound(found.column, span=name.span), parts[2:], name)
        found = self._find(name, parts[0], None)
        if found is not None:
            return _fields(Bound(found.column, span=name.span), parts[1:], name)
        return None

    def _find(self, name: Name, column: str, table: str | None) -> Column | None:
        candidates = [each for each in self.relation.columns if table is not None or not each.hidden]
        if table is not None:
            tables = {each.table for each in candidates if each.table is not None}
            meant = alike(table, tables)
            candidates = [each for each in candidates if each.table == meant] if meant is not None else []
        spelled = alike(column, [each.name for each in candidates])
        found = [each for each in candidates if each.name == spelled]
        if len({each.column for each in found}) > 1:
            shown = " or ".join(f"{each.table}.{each.name}" if each.table else each.name for each in found)
            if len({(each.table, each.name) for each in found}) < len(found):
                raise self.text.error(name.span, self._twice(name, found))
            raise self.text.error(name.span, f"{name} is in several tables; write {shown}")
        return found[0] if found else None

    def _unknown(self, name: Name) -> str:
        tables = list(dict.fromkeys(each.table for each in self.relation.columns if each.table is not None))
        parts = [*name.parts]
        if len(parts) > 1:
            meant = alike(parts[0], tables)
            if meant is not None:
                columns = [each.name for each in self.relation.columns if each.table == meant]
                return f"{meant} has no column {parts[1]!r}; {nearest(parts[1], columns)}"
            if tables:
                return f"there is no table {parts[0]!r} in FROM; {nearest(parts[0], tables)}"
        columns = list(dict.fromkeys(each.name for each in self.relation.shown))
        if not columns:
            return f"there is no column {parts[0]!r}, because there is no FROM; a text is written in single quotes"
        quoted = f"; a text stands in single quotes: '{parts[0]}'" if self._is_quoted(name) else ""
        return f"there is no column {parts[0]!r}; {nearest(parts[0], columns)}{quoted}"

    def _is_quoted(self, name: Name) -> bool:
        return self.text.at(name.span).startswith('"')

    def _twice(self, name: Name, found: Sequence[Column]) -> str:
        of = found[0].table
        where = (
            f"there are several columns {name.parts[-1]}"
            if of is None
            else f"{of} has several columns {name.parts[-1]}"
        )
        return f"{where}; give the columns, or the tables, different names with AS"


def _fields(found: Part, names: Iterable[str], whole: Name) -> Part:
    for name in names:
        found = FieldOf(found, name, span=whole.span)
    return found


def alike(name: str, known: Iterable[str]) -> str | None:
    """The one of these names that is meant: as it is written, or the only one that differs in capitals alone."""
    names = {*known}
    if name in names:
        return name
    same = [each for each in names if each.casefold() == name.casefold()]
    return same[0] if len(same) == 1 else None


_QUERIES = (Subquery, Exists, InQuery, Quantified)


def rewritten(part: Part, change: Callable[[Part], Part | None], *, queries: bool = False) -> Part:
    """The part with parts within it exchanged for what `change` gives, where it gives something.

    What it gives is not looked into, and neither are queries, unless `queries` says so.
    """
    found = change(part)
    if found is not None:
        return found
    if isinstance(part, Query) and not queries:
        return part
    changed: dict[str, Any] = {}
    for each in fields(part):
        before = getattr(part, each.name)
        after = _rewritten(before, change, queries=queries)
        if after is not before:
            changed[each.name] = after
    return replace(part, **changed) if changed else part


def _rewritten(value: Any, change: Callable[[Part], Part | None], *, queries: bool) -> Any:
    if isinstance(value, Part):
        return rewritten(value, change, queries=queries)
    if isinstance(value, tuple):
        after = tuple(_rewritten(each, change, queries=queries) for each in value)  # pyright: ignore[reportUnknownVariableType]
        unchanged = all(a is b for a, b in zip(after, value, strict=True))  # pyright: ignore[reportUnknownArgumentType]
        return value if unchanged else after  # pyright: ignore[reportUnknownVariableType]
    return value


def computed(part: Part, columns: Mapping[Part, str]) -> Part:
    """The part with columns instead of what they hold already."""
    return rewritten(part, lambda each: Bound(columns[each], span=each.span) if each in columns else None)


def moved(part: Part, names: Mapping[str, str]) -> Part:
    """The part with other columns: `names` tells for each what stands there instead."""

    def change(each: Part) -> Part | None:
        return Bound(names[each.column], span=each.span) if isinstance(each, Bound) and each.column in names else None

    return rewritten(part, change) if names else part


def within(part: Part) -> Iterator[Part]:
    """The part and what is within it, queries left out (they are given, but not looked into)."""
    pending: list[Any] = [part]
    while pending:
        found = pending.pop()
        if isinstance(found, Query):
            continue
        if isinstance(found, Part):
            yield found
            pending += reversed([getattr(found, each.name) for each in fields(found)])
        elif isinstance(found, tuple):
            pending += reversed(found)  # pyright: ignore[reportUnknownArgumentType]


def columns_in(part: Part) -> set[str]:
    """The columns of the rows that a resolved part reads."""
    return {each.column for each in within(part) if isinstance(each, Bound)}


def has_query(part: Part) -> bool:
    """Whether a query stands within the part."""
    return any(isinstance(each, _QUERIES) for each in within(part))


def is_correlated(part: Part) -> bool:
    """Whether a resolved part reads a column of the query around."""
    return any(isinstance(each, OuterColumn) for each in within(part))


def conjuncts(part: Part | None) -> list[Part]:
    """The conditions that must all be true for a condition to be."""
    if part is None:
        return []
    if isinstance(part, Call) and part.function == "AND":
        return [each for argument in part.arguments for each in conjuncts(argument)]
    if isinstance(part, Call) and part.function == "BETWEEN":
        value, low, high = part.arguments
        return [Call(">=", (value, low), span=part.span), Call("<=", (value, high), span=part.span)]
    if isinstance(part, Call) and part.function == "OR":
        return _factored(part)
    return [part]


def _factored(part: Part) -> list[Part]:
    """What all branches of OR have in common, and the rest: (a AND b) OR (a AND c) is a AND (b OR c)."""
    assert isinstance(part, Call)
    branches = [conjuncts(each) for each in part.arguments]
    common = [each for each in branches[0] if all(each in branch for branch in branches[1:])]
    if not common:
        return [part]
    rests = [[each for each in branch if each not in common] for branch in branches]
    if not all(rests):
        return common
    remaining = tuple(rest[0] if len(rest) == 1 else Call("AND", tuple(rest), span=part.span) for rest in rests)
    return [*common, Call("OR", remaining, span=part.span)]


MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Comparisons, and what they are when their sides change places."""


def all_of(parts: Iterable[Part]) -> Part | None:
    """Conditions as one; None for none."""
    found = tuple(parts)
    if not found:
        return None
    return found[0] if len(found) == 1 else Call("AND", found, span=found[0].span.to(found[-1].span))
