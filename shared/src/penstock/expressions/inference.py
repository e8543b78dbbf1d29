"""Types of expressions, found before a row flows, and the errors that name what does not fit.

Every question about an expression's type is answered here from a schema alone; nothing is computed. A `Scope` keeps the
answers of one expression, which the lowering then asks for the same nodes.
"""

from __future__ import annotations

from penstock.errors import PipelineError, nearest
from penstock.expressions.accumulators import result_type
from penstock.expressions.aggregate_rules import BY_NAME, OVER_ROWS, check_filter
from penstock.expressions.casts import check_cast
from penstock.expressions.nodes import (
    Aggregate,
    Alias,
    Call,
    Case,
    Cast,
    Column,
    Literal,
    Node,
    children,
    implied_name,
    node_columns,
    walk,
    without_alias,
)
from penstock.expressions.rendering import display_name, render
from penstock.expressions.typing_rules import Arguments, Operand, TypeMismatchError, Typing, common_type
from penstock.types import BOOLEAN, DataType, Field, Schema

OVER = frozenset(row.name for row in OVER_ROWS)
"""The names of what looks at single rows of a key."""


class Scope:
    """The types of one expression over one schema."""

    def __init__(self, root: Node, schema: Schema, where: str) -> None:
        self._root = root
        self._schema = schema
        self._where = where
        self._known: dict[int, Operand] = {}
        self._typings: dict[int, Typing] = {}

    def operand(self, node: Node) -> Operand:
        """Type and nullability of a node of the expression.

        Raises:
            PipelineError: it does not fit its operands, or names a column that there is not.
        """
        known = self._known.get(id(node))
        if known is None:
            try:
                known = self._infer(node)
            except TypeMismatchError as error:
                raise self._error(node, str(error)) from None
            self._known[id(node)] = known
        return known

    def typing(self, node: Call) -> Typing:
        """What the type rule of a call answered."""
        self.operand(node)
        return self._typings[id(node)]

    def _infer(self, node: Node) -> Operand:
        match node:
            case Column(name=name):
                return self._column(node, name)
            case Literal():
                return Operand(node.type, node.value is None, node)
            case Alias(operand=operand):
                return self.operand(operand)
            case Cast(operand=operand, to=to, strict=strict):
                origin = self.operand(operand)
                check_cast(origin.type, to, strict=strict)
                return Operand(to, origin.nullable or not strict, node)
            case Case():
                return self._case(node)
            case Call():
                # Imported here because the catalogue is also a command, which must not find itself imported already.
                from penstock.expressions.catalogue import function

                answer = function(node.function).rule(self._arguments(node))
                self._typings[id(node)] = answer
                return Operand(answer.type, answer.nullable, node)
            case Aggregate():
                kind, nullable = self._aggregate(node)
                return Operand(kind, nullable, node)

    def _column(self, node: Column, name: str) -> Operand:
        for field in self._schema:
            if field.name == name:
                return Operand(field.type, field.nullable, node)
        whole = without_alias(self._root)
        place = "" if whole == node else f"{render(whole)}: "
        known = nearest(name, self._schema.names)
        raise PipelineError(f"{self._lead()}{place}there is no column {name!r}; {known}")

    def _arguments(self, node: Call | Aggregate) -> Arguments:
        operands = tuple(self.operand(arg) for arg in node.args)
        return Arguments(display_name(node.function), operands, dict(node.options))

    def _case(self, node: Case) -> Operand:
        for condition, _ in node.branches:
            kind = self.operand(condition).type
            if kind != BOOLEAN:
                raise TypeMismatchError(f"when() needs boolean, got {kind}")
        values = self.case_values(node)
        common = common_type(values)
        if common is None:
            types = " and ".join(dict.fromkeys(str(value.type) for value in values))
            raise TypeMismatchError(f"the branches have the types {types}; cast them to one type")
        nullable = node.otherwise is None or any(value.nullable for value in values)
        return Operand(common, nullable, node)

    def case_values(self, node: Case) -> list[Operand]:
        """The operands of the branches' values and of `otherwise`."""
        values = [value for _, value in node.branches]
        return [self.operand(value) for value in (*values, *(() if node.otherwise is None else (node.otherwise,)))]

    def _aggregate(self, node: Aggregate) -> tuple[DataType, bool]:
        arguments = self._arguments(node)
        if node.function == "aggregate":
            check_filter(arguments)
            return result_type(node.accumulator)
        return BY_NAME[node.function].rule(arguments)

    def _lead(self) -> str:
        return f"{self._where}: " if self._where else ""

    def _error(self, node: Node, message: str) -> PipelineError:
        whole = without_alias(self._root)
        context = "" if whole == node else f" (in {render(whole)})"
        return PipelineError(f"{self._lead()}{render(node)}: {message}{context}")


def node_field(node: Node, schema: Schema, where: str, name: str | None = None) -> Field:
    """Name, type and nullability of an expression; aggregates and columns are checked to stand where they may.

    Raises:
        PipelineError: it does not fit the schema.
    """
    if any(isinstance(part, Aggregate) for part in walk(node)):
        check_aggregation(node, where)
    operand = Scope(node, schema, where).operand(node)
    return Field(name or implied_name(node) or render(node), operand.type, operand.nullable)


def node_name(node: Node, where: str = "") -> str:
    """The alias, or the leftmost column's name.

    Raises:
        PipelineError: there is neither.
    """
    name = implied_name(node)
    if name is None:
        lead = f"{where}: " if where else ""
        raise PipelineError(f'{lead}{render(node)} has no name; give it one: .alias("name") or name=...')
    return name


def check_row_level(node: Node, where: str) -> None:
    """Refuse aggregates where every row has a value of its own.

    Raises:
        PipelineError: there is one.
    """
    for part in walk(node):
        if isinstance(part, Aggregate):
            raise PipelineError(
                f"{where}: {render(part)} is an aggregate of many rows; use it in .agg() behind .window() or .key_by()"
            )


def check_aggregation(node: Node, where: str) -> None:
    """Every column stands within an aggregate, and no aggregate within another.

    Raises:
        PipelineError: that is not so.
    """
    match node:
        case Aggregate(function=function) if function in OVER:
            raise PipelineError(f"{where}: {render(node)} looks at single rows; write .over().with_columns(...)")
        case Column(name=name):
            raise PipelineError(
                f"{where}: column {name!r} stands outside an aggregate, where a group has many values of it; "
                f"write for example col({name!r}).last() or .max()"
            )
        case Aggregate(args=args):
            for arg in args:
                check_row_level_argument(node, arg, where)
        case _:
            for child in children(node):
                check_aggregation(child, where)


def check_over(node: Node, where: str) -> None:
    """What stands over rows: columns of the row beside aggregates, of which none is within another.

    Raises:
        PipelineError: that is not so.
    """
    for part in walk(node):
        if isinstance(part, Aggregate):
            for arg in part.args:
                if part.function not in OVER or not isinstance(arg, Literal):
                    check_row_level_argument(part, arg, where)


def check_row_level_argument(node: Aggregate, arg: Node, where: str) -> None:
    """The argument of an aggregate has a value per row.

    Raises:
        PipelineError: it holds another aggregate or no column at all.
    """
    if any(isinstance(part, Aggregate) for part in walk(arg)):
        raise PipelineError(f"{where}: {render(node)}: an aggregate cannot stand within another one")
    if not node_columns(arg):
        raise PipelineError(f"{where}: {render(node)} reads no column; use count() or lit() outside the aggregate")


def check_predicate(node: Node, schema: Schema, where: str) -> None:
    """A filter's condition is boolean and of one row.

    Raises:
        PipelineError: it is not.
    """
    check_row_level(node, where)
    kind = Scope(node, schema, where).operand(node).type
    if kind != BOOLEAN:
        raise PipelineError(f"{where}: {render(without_alias(node))} is {kind}, not boolean; compare it with something")
