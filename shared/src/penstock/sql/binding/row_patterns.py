"""MATCH_RECOGNIZE: a pattern of SQL as `match` of the plan.

What SQL says of the rows of a match is said as patterns in Python say it: `A.price` is `col("A.price")`, and an aggregate
of a variable's rows one of such columns. To be bound as any expression, each of these is a column while the expression
around it is bound, and put in its place afterwards.

A row of the partition further up (`PREV`) is a column that `over` has computed before; but for the row right before one
that is not the first of a match, which is the row before in the match.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING, Final, Literal

from penstock.errors import PipelineError, nearest
from penstock.expressions import Expr, aggregate_field, col, lag
from penstock.expressions.nodes import Column as ColumnNode
from penstock.expressions.nodes import Node, with_parts
from penstock.functions.patterns.definitions import (
    Alternatives,
    Body,
    Group,
    Regular,
    Skip,
    Times,
    Variable,
)
from penstock.functions.patterns.definitions import Part as PatternPart
from penstock.functions.patterns.planning import check_condition, check_skip
from penstock.functions.patterns.references import NUMBER, SEEN, VARIABLE, References, final, navigation
from penstock.functions.patterns.regular import RegularAutomaton, compiled_regular
from penstock.plan.building.aggregates import over
from penstock.plan.building.keys import keyed
from penstock.plan.building.matches import match_rows
from penstock.plan.operations.match_rows import MatchRows
from penstock.plan.operations.over import Over
from penstock.sql.binding.context import Context
from penstock.sql.binding.expressions import Expressions
from penstock.sql.binding.moments import micros_of
from penstock.sql.binding.names import Bound, Scope, alike, has_query, rewritten, within
from penstock.sql.binding.overs import in_time_of_order
from penstock.sql.binding.ranks import settled
from penstock.sql.binding.relations import Column, Relation, changes_of, fresh, together
from penstock.sql.functions.arguments import sql_name
from penstock.sql.functions.catalogue import AGGREGATES
from penstock.sql.syntax import (
    Call,
    Constant,
    MatchRecognize,
    Name,
    Part,
    PatternAlternatives,
    PatternPermutation,
    PatternRepetition,
    PatternSequence,
    PatternVariable,
    SelectItem,
    Star,
)
from penstock.types import INT64, STRING, Field, Schema, StructType, can_be_key

if TYPE_CHECKING:
    from penstock.plan.building.rows import Rows

_NAVIGATION: Final[dict[str, Literal["first", "last"]]] = {"FIRST": "first", "LAST": "last"}
_PHYSICAL: Final = ("PREV", "NEXT")
_OF_THE_MATCH: Final = {VARIABLE: "CLASSIFIER", NUMBER: "MATCH_NUMBER"}
"""Columns of matched rows that are no columns of the table, and the functions that give them."""
_SEEN: Final = ("RUNNING", "FINAL")
_MOST_PERMUTED: Final = 5
_FURTHEST: Final = 1_000_000
"""So many rows further navigations go at most."""
_ASKED: Final = ("COUNT", "SUM", "AVG", "MIN", "MAX")
"""Aggregates that are remembered from row to row."""


@dataclass(frozen=True)
class _OfVariable(Part):
    """A column of the rows of a variable, or of a subset; without a column the rows themselves."""

    variable: str
    column: str = ""


class RowPattern:
    """One MATCH_RECOGNIZE.

    Args:
        context: the text.
        part: its place in the text.
        table: the rows that are searched.
    """

    def __init__(self, context: Context, part: MatchRecognize, table: Relation) -> None:
        self._context = context
        self._part = part
        self._relation = self._facts(table)
        self._names = list(dict.fromkeys(map(self._name, _variables(part.pattern))))
        self._subsets = self._checked_subsets()
        self._members = {**{name: (name,) for name in self._names}, **self._subsets}
        """The variables that each name stands for."""
        self._regular = Regular(part.all_rows, tuple(self._subsets.items()))
        self._scope = Scope(context.text, self._relation)
        self._lags: dict[str, Expr] = {}

    def bound(self) -> Relation:
        """What is measured of the matches.

        Raises:
            SqlError: the pattern cannot be searched for in these rows.
        """
        part = self._part
        time = self._checked_order()
        keys = self._keys()
        measures = [(item, self._resolved(item.expression)) for item in part.measures]
        begins = self._automaton({name: Variable(name, None) for name in self._names}).first_names
        names = [self._variable(item) for item in part.define]
        define = [
            (name, self._resolved(item.expression, None if name in begins else name))
            for name, item in zip(names, part.define, strict=True)
        ]
        rows, keys = self._with_lags(keys)
        schema = rows.schema
        conditions = {name: self._condition(name, value, schema) for name, value in define}
        given = {name: Variable(name, conditions.get(name)) for name in self._names}
        pattern = self._group(given)
        skip = self._skip()
        with self._at(part.skip):
            check_skip(self._automaton(given), skip, self._subsets)
        before, behind = self._shown(keys, time)
        made = {**before, **self._measured(measures, schema, (*before, *behind)), **behind}
        rowtime = next((item.alias for item, value in measures if _is_rowtime(value)), None)
        regular = replace(self._regular, rowtime=rowtime)
        operation = MatchRows(pattern, tuple(made.items()), skip, self._within(), regular=regular)
        if not made:
            but = "" if rowtime is None else " but MATCH_ROWTIME()"
            raise self._context.error(part, f"the matches have no columns{but}; write MEASURES, or ALL ROWS PER MATCH")
        with self._at(part):
            found = match_rows(rows, operation)
        order = [*before, *(item.alias or "" for item in part.measures), *behind]
        return Relation(found, tuple(Column(name, name, is_time=name == rowtime) for name in order))

    # -- the rows -------------------------------------------------------------------------------------------------------

    def _facts(self, table: Relation) -> Relation:
        found = settled(self._context, changes_of(table))
        if found.rows.node.mode != "append":
            raise self._context.error(
                self._part.table,
                "MATCH_RECOGNIZE takes rows that are never replaced; match before grouping, or group by windows",
            )
        for name in (VARIABLE, NUMBER, SEEN):
            if name in found.rows.schema:
                raise self._context.error(
                    self._part.table,
                    f"MATCH_RECOGNIZE calls a column of its own {name!r}; give the one here another name",
                )
        return found

    def _checked_order(self) -> str:
        """The column of the rows that is their event time."""
        part = self._part
        times = [each.name for each in self._relation.times()]
        if not times:
            raise self._context.error(
                part.table,
                "MATCH_RECOGNIZE goes by event time, and these rows have none; give their table WATERMARK FOR a column",
            )
        if not part.order:
            raise self._context.error(part, f"MATCH_RECOGNIZE needs ORDER BY; write ORDER BY {times[0]}")
        first, *others = part.order
        order = self._scope.resolve(first.expression)
        self._relation = in_time_of_order(self._relation, order, first)
        time = self._relation.time_column()
        if time is None or order != Bound(time.column) or first.descending:
            raise self._context.error(
                first, f"the rows of a stream are searched in order of their event time; write ORDER BY {times[0]}"
            )
        if others:
            raise self._context.error(
                others[0], f"rows of equal {time.name} are searched in the order in which they arrive; leave this out"
            )
        return time.column

    def _keys(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for part in self._part.partition:
            resolved = self._scope.resolve(part)
            if not isinstance(resolved, Bound):
                raise self._context.error(part, "PARTITION BY takes columns; compute it in a subquery")
            kind = self._relation.rows.schema.field(resolved.column).type
            if not can_be_key(kind) or isinstance(kind, StructType):
                raise self._context.error(
                    part, f"rows cannot be partitioned by {sql_name(kind)}; compute a part of it in a subquery"
                )
            found[resolved.column] = None
        return tuple(found)

    def _with_lags(self, keys: tuple[str, ...]) -> tuple[Rows, tuple[str, ...]]:
        """The rows under their keys, with those further up that PREV asks for; and the keys that the text names."""
        rows = keyed(self._relation.rows, keys) if keys else together(self._relation).rows
        if not self._lags:
            return rows, keys
        by = rows.node.keys
        with self._context.at(self._part.span):
            return keyed(over(rows, Over(()), tuple(self._lags.items())), by), keys

    def _shown(self, keys: Sequence[str], time: str) -> tuple[dict[str, Expr], dict[str, Expr]]:
        """The columns of results that are columns of the rows: those before measures, and those behind them."""
        first = (*keys, time) if self._part.all_rows else keys
        known = {each.column: each.name for each in reversed([*self._relation.shown])}
        before = {known.get(name, name): col(name) for name in first}
        if not self._part.all_rows:
            return before, {}
        return before, {each.name: col(each.column) for each in self._relation.shown if each.column not in first}

    # -- names ----------------------------------------------------------------------------------------------------------

    def _name(self, variable: PatternVariable) -> str:
        if "." in variable.name:
            raise self._context.error(variable, "a variable's name has no dot, which stands in front of its columns")
        return variable.name

    def _checked_subsets(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for name, of in self._part.subsets:
            if alike(name.name, [*self._names, *found]) is not None:
                raise self._context.error(
                    name, f"there is a variable {name.name} already; give the subset another name"
                )
            found[self._name(name)] = tuple(dict.fromkeys(self._known(each.name, each, self._names) for each in of))
        return found

    def _known(self, name: str, place: Part, known: Collection[str]) -> str:
        """The variable, or also the subset, that a name means."""
        meant = alike(name, known)
        if meant is None:
            raise self._context.error(place, f"the pattern has no variable {name!r}; {nearest(name, [*known])}")
        return meant

    def _variable(self, item: SelectItem) -> str:
        assert item.alias is not None
        name = self._known(item.alias, item, self._names)
        if sum(alike(each.alias or "", [name]) is not None for each in self._part.define) > 1:
            raise self._context.error(item, f"DEFINE has {name} twice; join the conditions with AND")
        return name

    def _skip(self) -> Skip:
        skip = self._part.skip
        if not skip.variable:
            return Skip(skip.to)
        return Skip(skip.to, self._known(skip.variable, skip, self._members))

    def _within(self) -> int | None:
        if self._part.within is None:
            return None
        micros = micros_of(self._context, self._part.within)
        if micros is None or micros <= 0:
            raise self._context.error(
                self._part.within, "WITHIN takes a constant interval above zero: INTERVAL '1' HOUR"
            )
        return micros

    # -- expressions ----------------------------------------------------------------------------------------------------

    def _resolved(self, part: Part, follows: str | None = None) -> Part:
        """The part with columns instead of names, and instead of calls of PREV.

        Args:
            part: of a measure or a condition.
            follows: the variable whose condition it is, if its rows are never the first one of a match.
        """
        if has_query(part):
            raise self._context.error(part, "a subquery cannot stand in MATCH_RECOGNIZE; join its table before")
        return rewritten(rewritten(part, self._column), lambda each: self._row_before(each, follows))

    def _column(self, part: Part) -> Part | None:
        if isinstance(part, Star) and part.table:
            return _OfVariable(self._known(part.table[0], part, self._members), span=part.span)
        if isinstance(part, Call) and part.function in _OF_THE_MATCH.values():
            return self._of_the_match(part)
        if not isinstance(part, Name):
            return None
        variable = alike(part.parts[0], self._members) if len(part.parts) > 1 else None
        if variable is None:
            if len(part.parts) == 1 and alike(part.parts[0], self._members) and self._scope.column(part) is None:
                raise self._context.error(part, f"{part} are rows; write {part}.column, or COUNT({part}.*)")
            if len(part.parts) > 1 and self._scope.column(part) is None:
                self._known(part.parts[0], part, self._members)
            return self._scope.resolve(part)
        found = self._scope.resolve(Name(part.parts[1:], span=part.span))
        return rewritten(found, lambda each: _of(variable, each))

    def _of_the_match(self, call: Call) -> Part:
        """CLASSIFIER and MATCH_NUMBER as columns."""
        if call.function == "MATCH_NUMBER":
            if call.arguments:
                raise self._context.error(call, "MATCH_NUMBER takes no argument")
            return Bound(NUMBER, span=call.span)
        match call.arguments:
            case ():
                return Bound(VARIABLE, span=call.span)
            case (Name(parts=(name,)) as place,):
                return _OfVariable(self._known(name, place, self._members), VARIABLE, span=call.span)
            case _:
                raise self._context.error(call, "CLASSIFIER takes a variable or a subset, or nothing")

    def _row_before(self, part: Part, follows: str | None) -> Part | None:
        """`PREV(x)` as a column, or as a row of the match; see `_resolved`."""
        if not isinstance(part, Call) or part.function not in _PHYSICAL:
            return None
        if part.function == "NEXT":
            raise self._context.error(
                part, "NEXT is not supported: a row is searched when it has come, not the next one"
            )
        value, distance = _with_distance(self._context, part, 1)
        if isinstance(value, Call) and value.function in _SEEN:
            seen = _inner(self._context, value)
            return replace(
                value, arguments=(self._row_before(replace(part, arguments=(seen, *part.arguments[1:])), None),)
            )
        if distance == 0:
            return value
        inner = value if isinstance(value, Call) and value.function in _NAVIGATION else None
        where, offset = (value, 0) if inner is None else _with_distance(self._context, inner, 0)
        if any(isinstance(each, Call) and each.function in (*_NAVIGATION, *_PHYSICAL) for each in within(where)):
            raise self._context.error(part, "PREV takes a value, or FIRST or LAST of one, and these nothing else")
        variable, plain = _apart(self._context, where)
        self._check_of_rows(plain)
        if distance == 1 and inner is None and follows and self._members.get(variable or follows) == (follows,):
            return Call("LAST", (plain, Constant(1, span=part.span)), span=part.span)
        expr = Expressions(self._context, self._relation.rows.node.row_schema).value(plain)
        name = fresh(f"{distance} before", self._relation.rows.schema.names, self._lags)
        self._lags[name] = lag(expr, distance)
        column: Part = Bound(name, span=part.span) if variable is None else _OfVariable(variable, name, span=part.span)
        return column if inner is None else replace(inner, arguments=(column, Constant(offset, span=part.span)))

    def _check_of_rows(self, value: Part) -> None:
        """Raise `SqlError` if PREV is asked for what rows have by a match alone, perhaps others by the next one."""
        for each in within(value):
            if isinstance(each, Bound) and (function := _OF_THE_MATCH.get(each.column)):
                raise self._context.error(each, f"{function} is of a match, and PREV takes columns of rows")
            if isinstance(each, Call) and each.function == "MATCH_ROWTIME":
                raise self._context.error(each, "MATCH_ROWTIME is of a match, and PREV takes columns of rows")
            if isinstance(each, Call) and each.over is None and each.function in AGGREGATES:
                raise self._context.error(each, f"PREV takes columns of rows, and {each.function} is of several")

    def _condition(self, variable: str, part: Part, schema: Schema) -> Expr:
        """What rows of a variable fulfil."""
        found = _Conditions(self._context, schema, self._members, variable).condition(part)
        with self._at(part):
            check_condition(References(schema, self._names, self._regular).condition(found), schema, {})
        return found

    @contextlib.contextmanager
    def _at(self, part: Part) -> Generator[None]:
        """Gives errors of `match` a place in the text."""
        try:
            yield
        except PipelineError as error:
            raise self._context.error(part, str(error).removeprefix("match: ")) from error

    def _measured(
        self, measures: Sequence[tuple[SelectItem, Part]], schema: Schema, shown: Sequence[str]
    ) -> dict[str, Expr]:
        found: dict[str, Expr] = {}
        for item, value in measures:
            assert item.alias is not None
            if item.alias in found or item.alias in shown:
                raise self._context.error(item, f"there are two columns {item.alias}; give the measure another name")
            with self._at(item):
                Schema((Field(item.alias, INT64),))
            if _is_rowtime(value):
                if any(_is_rowtime(other) and other is not value for _, other in measures):
                    raise self._context.error(item, "MATCH_ROWTIME() is there twice; leave one out")
                continue
            found[item.alias] = _Measures(self._context, schema, self._members).value(value)
        return found

    # -- the pattern ----------------------------------------------------------------------------------------------------

    def _automaton(self, given: Mapping[str, Variable]) -> RegularAutomaton:
        group = self._group(given)
        with self._at(self._part.pattern):
            return compiled_regular(group)

    def _group(self, given: Mapping[str, Variable]) -> Group:
        return Group((self._pattern(self._part.pattern, given),))

    def _pattern(self, part: Part, given: Mapping[str, Variable]) -> PatternPart:
        match part:
            case PatternRepetition(part=inner, least=least, most=most, greedy=greedy):
                repeated = self._pattern(inner, given)
                if repeated.times != Times():
                    repeated = PatternPart(Group((repeated,)), "next")
                return replace(repeated, times=Times(least, most, "next", greedy))
            case _:
                return PatternPart(self._body(part, given), "next")

    def _body(self, part: Part, given: Mapping[str, Variable]) -> Body:
        match part:
            case PatternVariable(name=name):
                return given[name]
            case PatternSequence(parts=parts, shown=shown):
                return Group(tuple(self._pattern(each, given) for each in parts), shown)
            case PatternAlternatives(parts=parts):
                return Alternatives(tuple(Group((self._pattern(each, given),)) for each in parts))
            case PatternPermutation(parts=parts):
                if len(parts) > _MOST_PERMUTED:
                    raise self._context.error(part, f"PERMUTE takes {_MOST_PERMUTED} parts at most")
                every = permutations([self._pattern(each, given) for each in parts])
                return Alternatives(tuple(Group(each) for each in every))
            case _:
                raise AssertionError(f"{part} is no pattern")


def _variables(pattern: Part) -> Iterable[PatternVariable]:
    return (each for each in within(pattern) if isinstance(each, PatternVariable))


def _of(variable: str, part: Part) -> Part | None:
    return _OfVariable(variable, part.column, span=part.span) if isinstance(part, Bound) else None


def _is_rowtime(part: Part) -> bool:
    return isinstance(part, Call) and part.function == "MATCH_ROWTIME" and not part.arguments


def _apart(context: Context, part: Part) -> tuple[str | None, Part]:
    """The variable whose columns a part reads, None for all rows; and the part over the columns of a row.

    Raises:
        SqlError: it reads columns of several variables.
    """
    for each in within(part):
        if isinstance(each, Call) and each.function in (*_NAVIGATION, *_SEEN) and each.over is None:
            raise context.error(each, f"{each.function} cannot stand within an aggregate or another navigation")
    of = [each for each in within(part) if isinstance(each, (_OfVariable, Bound))]
    for each in of:
        if isinstance(each, _OfVariable):
            _check_column(context, each)
    found = {each.variable if isinstance(each, _OfVariable) else None for each in of}
    if len(found) > 1:
        raise context.error(
            part, "this reads rows of several variables; an aggregate or a navigation reads those of one"
        )

    def plain(each: Part) -> Part | None:
        return Bound(each.column, span=each.span) if isinstance(each, _OfVariable) else None

    return next(iter(found), None), rewritten(part, plain)


def _check_column(context: Context, part: _OfVariable) -> None:
    """Raise `SqlError` if it is the rows themselves."""
    if not part.column:
        raise context.error(part, f"{part.variable}.* stands in COUNT({part.variable}.*) alone")


def _inner(context: Context, call: Call) -> Part:
    """What stands behind RUNNING or FINAL."""
    if len(call.arguments) != 1:
        raise context.error(call, f"{call.function} stands in front of FIRST, LAST, or an aggregate")
    return call.arguments[0]


def _with_distance(context: Context, call: Call, default: int) -> tuple[Part, int]:
    """What a navigation is given: a value, and how many rows further."""
    if not 1 <= len(call.arguments) <= 2:
        raise context.error(call, f"{call.function} takes a value, and perhaps how many rows further it is")
    value, *others = call.arguments
    for each in others:
        if not isinstance(each, Constant) or not isinstance(each.value, int) or not 0 <= each.value <= _FURTHEST:
            raise context.error(
                each, f"{call.function} takes a constant number of rows: 0, 1, 2, ..., at most {_FURTHEST:,}"
            )
        return value, each.value
    return value, default


class _Matched:
    """Expressions over the rows of a match.

    Args:
        context: the text.
        schema: of the rows.
        members: the variables that each name stands for.
    """

    def __init__(self, context: Context, schema: Schema, members: Mapping[str, tuple[str, ...]]) -> None:
        self._context = context
        self._schema = Schema((*schema, Field(VARIABLE, STRING), Field(NUMBER, INT64)))
        self._members = members
        self._leaves: dict[str, Expr] = {}
        self._fields: list[Field] = []

    def _bound(self, part: Part) -> tuple[Part, Expressions]:
        """The part with columns in place of what is asked of rows, and what binds it."""
        replaced = rewritten(part, self._leaf)
        return replaced, Expressions(self._context, Schema((*self._schema, *self._fields)))

    def _filled(self, expr: Expr) -> Expr:
        """The expression with what is asked of rows in place of the columns."""

        def fill(node: Node) -> Node:
            if isinstance(node, ColumnNode) and node.name in self._leaves:
                return self._leaves[node.name].node
            return with_parts(node, fill)

        return Expr(fill(expr.node))

    def _leaf(self, part: Part) -> Part | None:
        match part:
            case _OfVariable():
                return self._column_of(part)
            case Call(function=function, over=None) if function in _NAVIGATION:
                return self._navigated(part)
            case Call(function=function) if function in _SEEN:
                return self._seen(part)
            case Call(function="MATCH_ROWTIME"):
                raise self._context.error(part, "MATCH_ROWTIME() stands alone in MEASURES: MATCH_ROWTIME() AS name")
            case Call(function=function, over=None) if function in AGGREGATES:
                return self._aggregated(part)
            case _:
                return None

    def _column_of(self, part: _OfVariable) -> Part:
        _check_column(self._context, part)
        return self._asked(part, col(f"{part.variable}.{part.column}"), self._schema.field(part.column))

    def _navigated(self, call: Call) -> Part:
        value, offset = _with_distance(self._context, call, 0)
        variable, plain = _apart(self._context, value)
        if not any(isinstance(each, Bound) for each in within(plain)):
            raise self._context.error(call, f"{call.function} takes a value of rows, and this reads none")
        bound = Expressions(self._context, self._schema).bind(plain)
        field = Field("value", bound.type)
        return self._asked(call, navigation(_NAVIGATION[call.function], _named(bound.expr, variable), offset), field)

    def _aggregated(self, call: Call) -> Part:
        if call.function == "COUNT" and len(call.arguments) == 1 and not call.distinct and call.filter is None:
            (counted,) = call.arguments
            if isinstance(counted, _OfVariable) and not counted.column:
                return self._asked(call, col(f"{counted.variable}.*").count(), Field("n", INT64))
        variable, plain = _apart(self._context, call)
        assert isinstance(plain, Call)
        # rows of a variable may be missing, so that all their columns may be null
        nullable = Schema(tuple(replace(field, nullable=True) for field in self._schema))
        expr = Expressions(self._context, nullable).aggregate(plain)
        with self._context.at(call.span):
            field = aggregate_field(expr, nullable, "MATCH_RECOGNIZE", "value")
        return self._asked(call, _named(expr, variable), field)

    def _seen(self, call: Call) -> Part:
        inner = _inner(self._context, call)
        found = self._leaf(inner)
        if not isinstance(found, Bound) or not isinstance(inner, Call) or inner.function in _SEEN:
            raise self._context.error(call, f"{call.function} stands in front of FIRST, LAST, or an aggregate")
        if call.function == "FINAL":
            self._leaves[found.column] = final(self._leaves[found.column])
        return found

    def _asked(self, part: Part, expr: Expr, field: Field) -> Bound:
        """A column that stands for what is asked of rows, which may be missing."""
        name = fresh(f"asked {len(self._leaves)}", self._schema.names, self._leaves)
        self._leaves[name] = expr
        self._fields.append(Field(name, field.type, nullable=True))
        return Bound(name, span=part.span)


def _named(expr: Expr, variable: str | None) -> Expr:
    """The expression over columns of a variable's rows."""

    def change(node: Node) -> Node:
        return ColumnNode(f"{variable}.{node.name}") if isinstance(node, ColumnNode) else with_parts(node, change)

    return expr if variable is None else Expr(change(expr.node))


class _Measures(_Matched):
    """MEASURES."""

    def value(self, part: Part) -> Expr:
        """A measure."""
        replaced, expressions = self._bound(part)
        return self._filled(expressions.value(replaced))


class _Conditions(_Matched):
    """DEFINE of one variable: the row itself is the last one of its rows."""

    def __init__(self, context: Context, schema: Schema, members: Mapping[str, tuple[str, ...]], variable: str) -> None:
        super().__init__(context, schema, members)
        self._variable = variable

    def condition(self, part: Part) -> Expr:
        """The condition."""
        for each in within(part):
            if isinstance(each, (Bound, _OfVariable)) and (function := _OF_THE_MATCH.get(each.column)):
                raise self._context.error(each, f"{function} is known of a match, and not yet in DEFINE; use MEASURES")
        replaced, expressions = self._bound(part)
        return self._filled(expressions.condition(replaced))

    def _column_of(self, part: _OfVariable) -> Part:
        if part.column and self._variable in self._members[part.variable]:
            return Bound(part.column, span=part.span)
        return super()._column_of(part)

    def _navigated(self, call: Call) -> Part:
        value, offset = _with_distance(self._context, call, 0)
        variable, plain = _apart(self._context, value)
        own = variable is None or self._variable in self._members[variable]
        if call.function == "LAST" and offset == 0 and own:
            return plain
        return super()._navigated(call)

    def _aggregated(self, call: Call) -> Part:
        if call.function not in _ASKED or call.distinct or call.filter is not None:
            raise self._context.error(
                call, f"DEFINE can ask for {', '.join(_ASKED)} of the rows so far, without DISTINCT and FILTER"
            )
        return super()._aggregated(call)

    def _seen(self, call: Call) -> Part:
        if call.function == "FINAL":
            raise self._context.error(call, "FINAL looks at the whole match, which is not known yet in DEFINE")
        return super()._seen(call)
