"""Queries within expressions, as joins: EXISTS and IN as semi and anti joins, a value as a join with its one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.errors import PipelineError
from penstock.expressions import Expr, col, lit, when
from penstock.plan.building.changes import check_ends, check_stays, final, union_of_changes
from penstock.plan.building.columns import check_rows, filter_rows
from penstock.sql.binding.context import Context
from penstock.sql.binding.expressions import Expressions, has_aggregate, is_aggregate
from penstock.sql.binding.groups import Group, distinct_rows
from penstock.sql.binding.joins import Conditions, Join, renamed_apart, sorted_out
from penstock.sql.binding.names import (
    Bound,
    OuterColumn,
    Scope,
    all_of,
    columns_in,
    has_query,
    is_correlated,
    rewritten,
    within,
)
from penstock.sql.binding.ranks import settled
from penstock.sql.binding.relations import Column, Relation, changes_of, fresh, only, with_computed
from penstock.sql.binding.set_operations import as_changes
from penstock.sql.binding.tables import filtered
from penstock.sql.syntax import (
    Call,
    Constant,
    Exists,
    InQuery,
    Part,
    Quantified,
    Query,
    Select,
    SelectItem,
    Star,
    Subquery,
)

if TYPE_CHECKING:
    from penstock.plan.building.rows import Rows
    from penstock.plan.logical import Node
    from penstock.plan.operations.join import JoinKind
    from penstock.sql.binding.queries import Binder

_OPPOSITE: Final = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_SEVERAL: Final = "the subquery gives more than one row, and stands for one value; aggregate them, or add LIMIT 1"


class Subqueries:
    """The queries within the conditions and expressions of one SELECT.

    Args:
        context: the text.
        binder: binds them.
        scope: the columns that they may read of the query around.
    """

    def __init__(self, context: Context, binder: Binder, scope: Scope) -> None:
        self._context = context
        self._binder = binder
        self._scope = scope
        self.relation = settled(context, scope.relation)

    def condition(self, part: Part) -> None:
        """Keep the rows for which a condition with queries in it holds."""
        negated = isinstance(part, Call) and part.function == "NOT"
        inner = part.arguments[0] if negated and isinstance(part, Call) else part
        match inner:
            case Exists():
                self._exists(inner, negated=negated)
            case InQuery():
                self._in(inner, negated=negated)
            case _:
                rest = self.value(part)
                self.relation = filtered(self._context, self.relation, [rest])

    def value(self, part: Part) -> Part:
        """An expression with columns instead of the queries in it, which are joined."""

        def change(each: Part) -> Part | None:
            match each:
                case Subquery():
                    return self._scalar(each)
                case Exists():
                    return self._marked(each, each.query, ())
                case InQuery():
                    return self._marked(each, each.query, each.values)
                case Quantified():
                    return self._quantified(each)
                case _:
                    return None

        return rewritten(part, change)

    # -- EXISTS and IN --------------------------------------------------------------------------------------------------

    def _exists(self, part: Exists, *, negated: bool) -> None:
        inner, correlated = self._inner(part.query, ())
        self._join("anti" if negated else "semi", inner, correlated, part)

    def _in(self, part: InQuery, *, negated: bool) -> None:
        values = [self._without_queries(each) for each in part.values]
        if negated:
            self._not_in(part, values)
            return
        inner, correlated = self._inner(part.query, values)
        self._join("semi", inner, correlated, part)

    def _without_queries(self, part: Part) -> Part:
        return self.value(part) if has_query(part) else part

    def _as_column(self, value: Part) -> Part:
        """A value that reads no column of the rows as one: what a query has in common with rows is found by columns."""
        if columns_in(value) or is_correlated(value):
            return value
        name = fresh("compared", self.relation.rows.schema.names)
        expr = Expressions(self._context, self.relation.rows.node.row_schema).value(value)
        self.relation = with_computed(self.relation, {name: expr})
        return Bound(name, span=value.span)

    def _not_in(self, part: InQuery, values: Sequence[Part]) -> None:
        """NOT IN is true where no value is equal, and none is null: of a set with a null in it nothing is known.

        Where the set is the same for all rows, its rows, and those with a null in them, are counted beside the anti join.
        """
        inner, correlated = self._inner(part.query, values)
        if len(correlated) > 1:
            equal, rest = correlated[: len(values)], correlated[len(values) :]
            if not all(self._is_known(each, inner) for each in equal):
                equal = [_not_false(equal)]
            self._join("anti", inner, [*equal, *rest], part)
            return
        found, shown = self._bound_query(part.query)
        name = shown[0].column
        nullable = found.rows.schema.field(name).nullable
        value = values[0]
        left_nullable = Expressions(self._context, self.relation.rows.node.row_schema).bind(value).nullable
        if nullable or left_nullable:
            counts = self._counts(found, name)
            total, present = counts
            nothing = Call("=", (Bound(total), Constant(0)))
            known = Call("AND", (Call("IS NOT NULL", (value,)), Call("=", (Bound(total), Bound(present)))))
            self.relation = filtered(self._context, self.relation, [Call("OR", (nothing, known), span=part.span)])
        self._join("anti", inner, correlated, part)

    def _is_known(self, equal: Part, inner: Relation) -> bool:
        """Whether an equality of a value around with one of a query is never null."""
        assert isinstance(equal, Call)
        sides = ((_outward_in(equal.arguments[0]), self.relation), (equal.arguments[1], inner))
        return not any(
            is_correlated(each) or Expressions(self._context, of.rows.node.row_schema).bind(each).nullable
            for each, of in sides
        )

    def _counts(self, found: Relation, name: str) -> tuple[str, str]:
        """How many rows a set has, and how many that are not null, beside every row."""
        calls = (Call("COUNT", ()), Call("COUNT", (Bound(name),)))
        grouped = Group(self._context, found, (), calls, {calls[0]: "set_rows", calls[1]: "set_values"}, Part()).bind()
        columns = tuple(Column(each, each) for each in grouped.replaced.values())
        right = renamed_apart(self.relation, replace(grouped.relation, columns=columns))
        joined = Join(self._context, self.relation, right, Part()).of("inner", Conditions())
        kept = joined.columns
        own, other = kept[: -len(columns)], kept[-len(columns) :]
        self.relation = replace(joined, columns=own)
        return other[0].column, other[1].column

    def _join(self, kind: JoinKind, inner: Relation, correlated: Sequence[Part], part: Part) -> None:
        right = renamed_apart(self.relation, inner)
        names = _renamed(inner, right)
        conditions = sorted_out([_inside_out(each, names) for each in correlated], self.relation, right)
        columns = self.relation.columns
        time = self.relation.windows
        found = Join(self._context, self.relation, right, part).of(
            kind, conditions, frozenset(self.relation.rows.schema.names)
        )
        self.relation = replace(found, columns=columns, windows=time if found.rows.node.event_time else None)

    def _bound_query(self, query: Query) -> tuple[Relation, list[Column]]:
        found = settled(self._context, self._binder.query(query, None))
        return found, list(found.shown)

    def _inner(self, query: Query, values: Sequence[Part], operator: str = "=") -> tuple[Relation, list[Part]]:
        """The rows of a query, and the conditions that they share with those of the query around: `values` are equal to
        its columns, or are compared by another operator."""
        body = query.body
        plain = (
            isinstance(body, Select)
            and body.group is None
            and not any(has_aggregate(item.expression) for item in body.items)
        )
        if not plain or query.limit is not None or query.offset is not None or query.tables:
            return self._uncorrelated(query, values, operator)
        assert isinstance(body, Select)
        scope, relation, correlated = self._binder.source(body, self._scope)
        if not correlated:
            return self._uncorrelated(query, values, operator)
        relation = settled(self._context, relation)
        self._check_no_queries(correlated)
        equal: list[Part] = []
        if values:
            items = self._binder.items(body, Scope(self._context.text, relation, self._scope))
            self._check_width(query, values, len(items))
            equal = [
                Call(operator, (_outward(value), scope.resolve(item.expression)), span=value.span)
                for value, item in zip(values, items, strict=True)
            ]
        return relation, [*equal, *correlated]

    def _uncorrelated(self, query: Query, values: Sequence[Part], operator: str) -> tuple[Relation, list[Part]]:
        found, shown = self._bound_query(query)
        if values:
            self._check_width(query, values, len(shown))
        equal: list[Part] = [
            Call(operator, (_outward(value), Bound(column.column, span=value.span)), span=value.span)
            for value, column in zip(values, shown, strict=False)
        ]
        return found, equal

    def _check_width(self, query: Query, values: Sequence[Part], width: int) -> None:
        if width != len(values):
            raise self._context.error(query, f"the subquery has {width} columns, and {len(values)} are compared")

    def _check_no_queries(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if has_query(part):
                raise self._context.error(
                    part, "a condition that reads the query around and has a subquery in it is not supported; join them"
                )

    # -- values ---------------------------------------------------------------------------------------------------------

    def _scalar(self, part: Subquery) -> Part:
        """The value of a query with one row, in a column beside every row."""
        query = part.query
        body = query.body
        if isinstance(body, Select) and query.limit is None and query.offset is None and not query.tables:
            items = body.items
            if len(items) != 1 or isinstance(items[0].expression, Star):
                raise self._context.error(part, "a subquery that is a value has one column")
            if body.group is None and body.having is None and has_aggregate(items[0].expression):
                scope, relation, correlated = self._binder.source(body, self._scope)
                if correlated:
                    return self._correlated_value(part, items[0], scope, settled(self._context, relation), correlated)
                return self._joined_value(self._bound_query(query)[0], part, always=True)
        found, shown = self._bound_query(query)
        if len(shown) != 1:
            raise self._context.error(part, f"a subquery that is a value has one column, and this has {len(shown)}")
        limited = isinstance(query.limit, Constant) and query.limit.value == 1
        return self._joined_value(found if limited else self._only_row(found, part), part, always=not limited)

    def _only_row(self, found: Relation, part: Part) -> Relation:
        """The value of the one row; the row of no rows is null. If there are several, the job fails.

        Of rows that may be replaced there may be several for a moment, until one is retracted, and the value is null
        until then. If there are several at the end of the input, the job fails there.
        """
        name = next(iter(found.shown)).column
        value, rows = Call("MAX", (Bound(name),), span=part.span), Call("COUNT", ())
        grouped = Group(self._context, found, (), (value, rows), {value: name, rows: "rows_of_value"}, part).bind()
        held, count = col(grouped.replaced[value]), col(grouped.replaced[rows])
        relation = changes_of(grouped.relation)
        otherwise = str(self._context.error(part, _SEVERAL))
        if not found.rows.node.updates:
            relation = relation.with_rows(check_rows(relation.rows, count <= 1, otherwise))
        else:
            held = when(count == 1).then(held)
            if _has_final_rows(relation.rows.node):
                relation = relation.with_rows(_checked_at_the_end(relation.rows, count <= 1, otherwise))
        column = fresh("value", relation.rows.schema.names)
        relation = with_computed(relation, {column: held})
        return replace(relation, columns=(Column(name, column),))

    def _joined_value(self, found: Relation, part: Part, *, always: bool) -> Part:
        shown = list(found.shown)
        right = renamed_apart(self.relation, replace(found, columns=(shown[0],)))
        name = right.columns[0].column
        kind = "inner" if always else "left"
        joined = Join(self._context, self.relation, right, part).of(
            kind, Conditions(), frozenset({*self.relation.rows.schema.names, name})
        )
        self.relation = replace(joined, columns=joined.columns[:-1])
        return Bound(joined.columns[-1].column, span=part.span)

    def _correlated_value(
        self, part: Subquery, item: SelectItem, scope: Scope, relation: Relation, correlated: Sequence[Part]
    ) -> Part:
        """An aggregate of the rows that have something in common with the row around: grouped by that, and joined."""
        self._check_no_queries(correlated)
        resolved = scope.resolve(item.expression)
        if is_correlated(resolved):
            raise self._context.error(item, "a column of the query around can stand in WHERE of a subquery only")
        common = self._common(relation, correlated, part)
        calls = [each for each in within(resolved) if is_aggregate(each)]
        within_common = {each: rewritten(each, common.moved) for each in dict.fromkeys(calls)}
        found = self._beside(common, list(within_common.values()), part)
        values = {call: _of_none(call, name) for call, name in zip(within_common, found, strict=True)}
        return rewritten(resolved, values.get)

    def _marked(self, part: Part, query: Query, values: Sequence[Part], operator: str = "=") -> Part:
        """Whether a row meets any of a query's, as a column: EXISTS, IN or ANY among other conditions."""
        plain = [self._as_column(self._without_queries(each)) for each in values]
        inner, conditions = self._inner(query, plain, operator)
        if not conditions:
            return self._any_row(inner, part)
        found = self._mark(inner, conditions, part)
        equal, correlated = conditions[: len(values)], conditions[len(values) :]
        if not values or all(self._is_known(each, inner) for each in equal):
            return found
        if len(conditions) == 1 and operator == "=":
            return self._three_valued(found, part, query, plain)
        perhaps = self._mark(inner, [_not_false(equal), *correlated], part)
        return Call("CASE", (found, Constant(True), perhaps, Constant(None), Constant(False)), span=part.span)

    def _mark(self, inner: Relation, conditions: Sequence[Part], part: Part) -> Part:
        """Whether a row of a query meets all conditions that it shares with the row around."""
        mark = Call("COUNT", ())
        (name,) = self._beside(self._common(inner, conditions, part), [mark], part)
        return Call("IS NOT NULL", (Bound(name),), span=part.span)

    def _common(self, inner: Relation, conditions: Sequence[Part], part: Part) -> _Common:
        """What rows of a query have in common with rows around.

        These are their own columns where they shall be equal to columns around. Else the rows are there once for each
        of the rows around that they meet, of which there are the columns that the conditions read.
        """
        pairs = [_equal_to_outer(each) for each in conditions]
        equal = [pair for pair in pairs if pair is not None]
        if len(equal) == len(pairs):
            return _Common(inner, [(key, _outward_in(outer)) for key, outer in equal])
        read = sorted({each.column for one in conditions for each in within(one) if isinstance(each, OuterColumn)})
        around = changes_of(only(self.relation, read))
        with self._context.at(part.span):
            around = around.with_rows(distinct_rows(around.rows, read))
        around = replace(around, columns=tuple(Column(name, name) for name in read), windows=None)
        right = renamed_apart(around, inner)
        names = _renamed(inner, right)
        join = Join(self._context, around, right, part)
        met = join.of("inner", sorted_out([_inside_out(each, names) for each in conditions], around, right))
        names = {name: join.merged.get(new, new) for name, new in names.items()}
        own = zip(read, met.columns, strict=False)
        return _Common(met, [(Bound(column.column), Bound(name)) for name, column in own], names, nulls_equal=True)

    def _beside(self, common: _Common, calls: Sequence[Part], part: Part) -> list[str]:
        """Aggregates of the rows that have something in common with a row around, in columns beside it; null of none."""
        names: dict[Part, str] = {key: f"common_{number}" for number, (key, _) in enumerate(common.keys)}
        grouped = Group(self._context, common.relation, [key for key, _ in common.keys], calls, names, part).bind()
        shown = [*(grouped.replaced[key] for key, _ in common.keys), *(grouped.replaced[each] for each in calls)]
        inner = replace(grouped.relation, columns=tuple(Column(each, each) for each in shown))
        right = renamed_apart(self.relation, inner)
        equal = [
            Call("=", (outer, Bound(own.column)), span=part.span)
            for (_, outer), own in zip(common.keys, right.columns, strict=False)
        ]
        values = [each.column for each in right.columns[len(equal) :]]
        joined = Join(self._context, self.relation, right, part).of(
            "left",
            sorted_out(equal, self.relation, right),
            frozenset({*self.relation.rows.schema.names, *values}),
            nulls_equal=common.nulls_equal,
        )
        found = [each.column for each in joined.columns if each.column in values]
        self.relation = replace(joined, columns=joined.columns[: len(self.relation.columns)])
        return found

    def _three_valued(self, found: Part, part: Part, query: Query, values: Sequence[Part]) -> Part:
        """IN is unknown, not false, where nothing is equal and a null is on either side (of a set that is not empty)."""
        inner, shown = self._bound_query(query)
        total, present = self._counts(inner, shown[0].column)
        empty = Call("=", (Bound(total), Constant(0)))
        nulls = Call("OR", (Call("IS NULL", (values[0],)), Call("<>", (Bound(total), Bound(present)))))
        no = Call("CASE", (empty, Constant(False), nulls, Constant(None), Constant(False)))
        return Call("CASE", (found, Constant(True), no), span=part.span)

    def _any_row(self, inner: Relation, part: Part) -> Part:
        call = Call("COUNT", ())
        grouped = Group(self._context, inner, (), (call,), {call: "rows_there"}, part).bind()
        column = grouped.replaced[call]
        found = self._joined_value(replace(grouped.relation, columns=(Column(column, column),)), part, always=True)
        return Call(">", (found, Constant(0)), span=part.span)

    def _quantified(self, part: Quantified) -> Part:
        """A comparison with any row; one with all rows is that none compares the other way."""
        if part.quantifier == "ANY":
            return self._marked(part, part.query, (part.operand,), part.operator)
        other = self._marked(part, part.query, (part.operand,), _OPPOSITE[part.operator])
        return Call("NOT", (other,), span=part.span)


def _has_final_rows(node: Node) -> bool:
    """Whether its input has an end, and rows hold there."""
    try:
        check_ends(node)
        check_stays(node)
    except PipelineError:
        return False
    return True


def _checked_at_the_end(rows: Rows, predicate: Expr, otherwise: str) -> Rows:
    """The changes, of which what holds at the end of the input is looked at: none of these rows is sent once more."""
    last = check_rows(final(rows), predicate, otherwise)
    return union_of_changes([as_changes(rows), as_changes(filter_rows(last, (lit(False),)))])


@dataclass(frozen=True)
class _Common:
    """Rows of a query, and what they have in common with rows around."""

    relation: Relation
    keys: list[tuple[Part, Part]]
    """Parts of these rows and of the rows around, which are equal."""
    names: dict[str, str] = field(default_factory=dict[str, str])
    """What the query's columns are called in the rows, where it is not their name."""
    nulls_equal: bool = False

    def moved(self, part: Part) -> Part | None:
        """For `rewritten`: a column of the query as it is called in the rows."""
        return Bound(self.names[part.column], span=part.span) if isinstance(part, Bound) and self.names else None


def _renamed(before: Relation, after: Relation) -> dict[str, str]:
    """What `renamed_apart` calls the columns of rows."""
    return dict(zip(before.rows.node.row_schema.names, after.rows.node.row_schema.names, strict=True))


def _of_none(call: Part, name: str) -> Part:
    """An aggregate beside a row around; where it is of no rows, a count is 0."""
    value = Bound(name, span=call.span)
    if isinstance(call, Call) and call.function == "COUNT":
        return Call("COALESCE", (value, Constant(0)), span=call.span)
    return value


def _not_false(parts: Sequence[Part]) -> Part:
    """That conditions together are true or unknown."""
    whole = all_of(parts)
    assert whole is not None
    return Call("IS NOT FALSE", (whole,), span=whole.span)


def _equal_to_outer(part: Part) -> tuple[Part, Part] | None:
    """The inner and the outer side of an equality between both queries."""
    if not isinstance(part, Call) or part.function != "=":
        return None
    one, other = part.arguments
    for inner, outer in ((one, other), (other, one)):
        reads_outer_alone = is_correlated(outer) and not columns_in(outer)
        if reads_outer_alone and not is_correlated(inner) and columns_in(inner):
            return inner, outer
    return None


def _outward(part: Part) -> Part:
    """A part of the query around, seen from within."""

    def change(each: Part) -> Part | None:
        return OuterColumn(each.column, span=each.span) if isinstance(each, Bound) else None

    return rewritten(part, change)


def _outward_in(part: Part) -> Part:
    """A part within a query that reads columns around it alone, seen from around."""

    def change(each: Part) -> Part | None:
        return Bound(each.column, span=each.span) if isinstance(each, OuterColumn) else None

    return rewritten(part, change)


def _inside_out(part: Part, names: dict[str, str]) -> Part:
    """A condition between a query and the one around, over the columns of both."""

    def change(each: Part) -> Part | None:
        if isinstance(each, OuterColumn):
            return Bound(each.column, span=each.span)
        if isinstance(each, Bound) and each.column in names:
            return Bound(names[each.column], span=each.span)
        return None

    return rewritten(part, change)
