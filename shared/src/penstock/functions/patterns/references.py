"""What expressions of a pattern refer to: columns of a row, and `"variable.column"`, the rows that are matched.

A measure is made of aggregates over the rows of a match, of which each has the name of its variable beside it: of
`col("fails.at").min()` those that are called `fails`. A column alone is that of the last row, of a variable or of the
match.

A condition is taken apart: what looks at the row alone is computed for many rows at once; what is left looks back, at
what is asked of the rows before and remembered from row to row.

SQL adds names for the rows of several variables, rows that are counted from the first or last one (`navigation`), and
measures of a row that see the match up to it, or as a whole (`final`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from typing import Literal as OneOf

from penstock.errors import PipelineError, nearest
from penstock.expressions import Expr
from penstock.expressions.nodes import Aggregate, Call, Case, Column, Literal, Node, Option, walk, with_parts
from penstock.functions.patterns.definitions import Predicate
from penstock.types import Schema

if TYPE_CHECKING:
    from penstock.functions.patterns.definitions import Regular

VARIABLE: Final = "variable of the match"
"""The column of matched rows that says of which variable each is."""
NUMBER: Final = "number of the match"
"""The column of matched rows that says the number of the match among those of its key."""
SEEN: Final = "row is seen"
"""The column of matched rows that says whether each is up to the row that is measured."""
ROWS: Final = "rows"
"""What a predicate asks for: the rows of a variable, as objects."""
_NOT_IN_NAMES: Final = re.compile(r"[\"'\\^$]|[\x00-\x1f]")
_OF_ROWS: Final = frozenset({"first", "last", "collect"})
"""Aggregates to which null is a value, so that they are told which rows count."""
_BY_ORDER: Final = frozenset({"max_by", "min_by"})
_REMEMBERED: Final = frozenset({"first", "last", "count", "sum", "mean", "min", "max"})
_OFFSET: Final = "offset"
_FINAL: Final = "final"


def navigation(function: OneOf["first", "last"], value: Expr, offset: int) -> Expr:
    """The value of the row that is so many behind the first one, or before the last one, null if there is none."""
    return Expr(Aggregate(function, (value.node,), ((_OFFSET, offset),)))


def final(expr: Expr) -> Expr:
    """The expression over the match as a whole, whatever row is measured."""
    return Expr(_as_final(expr.node))


def _as_final(node: Node) -> Node:
    if isinstance(node, Aggregate):
        return replace(node, options=(*node.options, (_FINAL, True)))
    return with_parts(node, _as_final)


@dataclass(frozen=True)
class Asked:
    """What a condition asks of the rows before."""

    function: str
    variables: tuple[str, ...] | None
    """Whose rows they are; None: all rows of the match."""
    argument: Node | None
    """None: the rows are counted."""
    offset: int = 0
    """How many rows the one that is asked is behind the first one, or before the last one."""

    @property
    def is_right_before(self) -> bool:
        """Whether it is a value of the row right before the last one."""
        return self.function == "last" and self.variables is None and self.offset == 1


@dataclass(frozen=True)
class Condition:
    """A condition that was taken apart: it holds where both parts do."""

    alone: Expr | None
    """What looks at the row alone."""
    looking_back: Expr | None
    """What looks back, with columns in place of what is asked."""
    asked: tuple[tuple[str, Asked], ...]
    """What is asked, by the names of those columns; of a predicate that looks back, each variable's rows by its name."""
    predicate: Predicate | None = None
    """Instead of both parts."""


class References:
    """The columns and variables that expressions can name.

    Args:
        schema: of the rows.
        variables: the names in the pattern.
        regular: what SQL says besides. There a name stands for several variables, too, and the rows of one are
            `col("variable.*")`, since a column may be called as a variable is.

    Raises:
        PipelineError: a column is called as one of a variable would be.
    """

    def __init__(self, schema: Schema, variables: Collection[str], regular: Regular | None = None) -> None:
        self._variables: dict[str, tuple[str, ...]] = {name: (name,) for name in variables}
        self._rows = {name: name for name in variables}
        """The variables by the columns that stand for their rows."""
        self._besides: tuple[str, ...] = ()
        self._running = False
        if regular is not None:
            self._variables.update(regular.subsets)
            self._rows = {f"{name}.*": name for name in self._variables}
            self._besides = (VARIABLE, NUMBER)
            self._running = regular.all_rows
        self._schema = schema
        for name in schema.names:
            if self._split(name) is not None or name in self._rows:
                raise PipelineError(
                    f"match: {name!r} is a column, and what rows of the pattern are called; give these another name"
                )

    def _split(self, name: str) -> tuple[str, str] | None:
        variable, dot, column = name.partition(".")
        return (variable, column) if dot and variable in self._variables else None

    def _column(self, name: str) -> Column:
        """A column of the rows.

        Raises:
            PipelineError: there is no such one.
        """
        if name in self._schema or name in self._besides:
            return Column(name)
        variable, dot, _ = name.partition(".")
        if name in self._rows:
            raise PipelineError(
                f"match: {name!r} are rows; write col('{name}.column') for a column of the last one, or "
                f"col({name!r}).count()"
            )
        if dot and variable.isidentifier():
            known = nearest(variable, list(self._variables))
            raise PipelineError(f"match: no rows of the pattern are called {variable!r}; {known}")
        raise PipelineError(f"match: there is no column {name!r}; {nearest(name, self._schema.names)}")

    # -- measures -------------------------------------------------------------------------------------------------------

    def measure(self, expr: Expr) -> Expr:
        """The expression over the rows of a match, of which `VARIABLE` says what they are.

        Raises:
            PipelineError: it names what is not there, or an aggregate is of the rows of several variables.
        """
        return Expr(self._measured(expr.node))

    def column_of_row(self, expr: Expr) -> str | None:
        """The column of the row that is measured that a measure is; None if it is more."""
        match expr.node:
            case Column(name=name) if self._split(name) is None:
                return name
            case _:
                return None

    def _measured(self, node: Node) -> Node:
        match node:
            case Column():
                return self._aggregate(Aggregate("last", (node,)))
            case Aggregate():
                return self._aggregate(node)
            case _:
                return with_parts(node, self._measured)

    def _aggregate(self, node: Aggregate) -> Node:
        offset, is_final = _option(node, _OFFSET), _option(node, _FINAL)
        node = replace(node, options=tuple(each for each in node.options if each[0] not in (_OFFSET, _FINAL)))
        counted = self._rows_counted(node)
        counts = self._counts(self._variable_of(node) if counted is None else counted, is_final=bool(is_final))
        args = () if counted is not None else tuple(map(self._plain, node.args))
        if not args:
            return Aggregate("count", () if counts is None else (Case(((counts, Literal(True)),)),))
        found = replace(node, args=args) if counts is None else _of_rows(replace(node, args=args), counts)
        if offset is None:
            return found
        collected = replace(found, function="collect")
        return Call("list.get", (collected, Literal(offset if node.function == "first" else -1 - int(offset))))

    def _counts(self, variable: str | None, *, is_final: bool) -> Node | None:
        """Whether a row is one that an aggregate is of; None if it is of all."""
        found: list[Node] = [] if variable is None else [self._is_of(variable)]
        if self._running and not is_final:
            found.append(Column(SEEN))
        return None if not found else found[0] if len(found) == 1 else Call("and", tuple(found))

    def _is_of(self, variable: str) -> Node:
        first, *others = (Literal(name) for name in self._variables[variable])
        return Call("is_in" if others else "eq", (Column(VARIABLE), first, *others))

    def _variable_of(self, node: Node) -> str | None:
        """The variable whose rows an aggregate is of; None if it is of all."""
        names = (part.name for part in walk(node) if isinstance(part, Column))
        found = {split[0] for split in map(self._split, names) if split is not None}
        if len(found) > 1:
            raise PipelineError(
                f"match: {Expr(node)} is of the rows of {', '.join(sorted(found))}; an aggregate is of the rows of one"
            )
        return next(iter(found), None)

    def _rows_counted(self, node: Aggregate) -> str | None:
        """Of `col("variable").count()` the variable."""
        match node:
            case Aggregate(function="count", args=(Column(name=name),), options=()):
                return self._rows.get(name)
            case _:
                return None

    def _plain(self, node: Node) -> Node:
        """An argument of an aggregate over the columns of rows."""
        if not isinstance(node, Column):
            return with_parts(node, self._plain)
        split = self._split(node.name)
        return self._column(node.name if split is None else split[1])

    # -- conditions -----------------------------------------------------------------------------------------------------

    def condition(self, expr: Expr | Predicate) -> Condition:
        """A condition, taken apart.

        Raises:
            PipelineError: it names what is not there, or asks of rows what cannot be remembered from row to row.
        """
        if isinstance(expr, Predicate):
            names = self._variables if expr.looks_back else ()
            return Condition(None, None, tuple((name, Asked(ROWS, (name,), None)) for name in names), expr)
        alone: list[Node] = []
        looking_back: list[Node] = []
        asked: dict[str, Asked] = {}
        for part in _conjuncts(expr.node):
            before = len(asked)
            replaced = self._replaced(part, asked)
            looks_back = len(asked) > before or any(
                isinstance(each, Column) and each.name in asked for each in walk(replaced)
            )
            (looking_back if looks_back else alone).append(replaced)
        return Condition(_all(alone), _all(looking_back), tuple(asked.items()))

    def _replaced(self, node: Node, asked: dict[str, Asked]) -> Node:
        """The node with a column in place of all that looks back."""
        match node:
            case Column(name=name):
                split = self._split(name)
                if split is None:
                    return self._column(name)
                return self._asked(node, Asked("last", self._variables[split[0]], Column(split[1])), asked)
            case Aggregate():
                return self._asked_aggregate(node, asked)
            case _:
                return with_parts(node, lambda part: self._replaced(part, asked))

    def _asked_aggregate(self, node: Aggregate, asked: dict[str, Asked]) -> Node:
        counted = self._rows_counted(node)
        if counted is not None or node == Aggregate("count"):
            return self._asked(node, Asked("count", None if counted is None else self._variables[counted], None), asked)
        offset = _option(node, _OFFSET)
        if node.function not in _REMEMBERED or len(node.args) != 1 or len(node.options) > (offset is not None):
            raise PipelineError(
                f"match: a condition cannot ask for {Expr(node)} of the rows before; it can for "
                f"{', '.join(sorted(_REMEMBERED))} of an expression, without filter="
            )
        variable = self._variable_of(node)
        variables = None if variable is None else self._variables[variable]
        return self._asked(node, Asked(node.function, variables, self._plain(node.args[0]), int(offset or 0)), asked)

    def _asked(self, node: Node, what: Asked, asked: dict[str, Asked]) -> Column:
        name = _NOT_IN_NAMES.sub("", str(Expr(node)))
        while asked.get(name, what) != what or name in self._schema:
            name += " "
        asked[name] = what
        return Column(name)


def _option(node: Aggregate, name: str) -> Option:
    return dict(node.options).get(name)


def _of_rows(node: Aggregate, counts: Node) -> Aggregate:
    """The aggregate of the rows for which `counts` holds."""
    options = dict(node.options)
    if node.accumulator is not None or "k" in options:
        raise PipelineError(f"match: {Expr(node)} cannot be of the rows of one variable")
    if node.function in _OF_ROWS:
        both = node.args if options.get("filter") else (*node.args, Literal(True))
        return Aggregate(node.function, (both[0], Call("and", (counts, both[1]))), (("filter", True),))
    place = 1 if node.function in _BY_ORDER else 0
    filtered = Case(((counts, node.args[place]),))
    return replace(node, args=(*node.args[:place], filtered, *node.args[place + 1 :]))


def _conjuncts(node: Node) -> Iterable[Node]:
    if isinstance(node, Call) and node.function == "and":
        for arg in node.args:
            yield from _conjuncts(arg)
    else:
        yield node


def _all(nodes: Iterable[Node]) -> Expr | None:
    found: Node | None = None
    for node in nodes:
        found = node if found is None else Call("and", (found, node))
    return None if found is None else Expr(found)
