"""Patterns over rows of certain columns: everything that can be said before rows come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from penstock.errors import PipelineError, nearest
from penstock.expressions import Expr, aggregate_field, check_predicate, columns_of, output_field
from penstock.expressions.nodes import Aggregate
from penstock.functions.patterns.automaton import Automaton, compiled
from penstock.functions.patterns.definitions import Forbidden, Group, Regular, Skip, Variable, every_body, variables
from penstock.functions.patterns.looking_back import check_remembered, schema_of
from penstock.functions.patterns.references import NUMBER, SEEN, VARIABLE, Asked, Condition, References
from penstock.functions.patterns.regular import RegularAutomaton, compiled_regular
from penstock.types import BOOLEAN, INT64, STRING, DataType, Field, Schema

if TYPE_CHECKING:
    from penstock.expressions import AggregatePlan

_VERB: Final = "match"
_MOST_CONDITIONS: Final = 61


@dataclass(frozen=True)
class MatchPlan:
    """A pattern over rows of certain columns, as it is searched for and measured."""

    automaton: Automaton | RegularAutomaton
    conditions: tuple[Condition | None, ...]
    """Those of the automaton, by number."""
    asked: dict[Asked, DataType]
    """What conditions ask of the rows before."""
    fields: tuple[Field, ...]
    """The columns of results."""
    measured: tuple[str, ...]
    """The columns that measures read."""
    of_row: dict[str, str]
    """Measures that are a column of the row that is measured, with the column."""
    of_rows: AggregatePlan | None
    """All others, over the rows of a match with `VARIABLE`, `NUMBER` and `SEEN`."""
    reads_numbers: bool
    """Whether measures read the numbers of matches."""

    @classmethod
    def of(
        cls,
        pattern: Group,
        skip: Skip,
        within_us: int | None,
        measures: Sequence[tuple[str, Expr]],
        schema: Schema,
        regular: Regular | None = None,
    ) -> Self:
        """The plan for rows of `schema`.

        Raises:
            PipelineError: the pattern cannot be searched for, or an expression does not fit.
        """
        from penstock.expressions.aggregates import AggregatePlan  # loads Polars

        if regular is None:
            _check_names(pattern)
        automaton = automaton_of(pattern, regular)
        if len(automaton.conditions) - 1 > _MOST_CONDITIONS:
            what = "conditions" if regular is None else "variables"
            raise PipelineError(f"{_VERB}: the pattern has more than {_MOST_CONDITIONS} {what}; write fewer parts")
        if isinstance(automaton, Automaton) and automaton.waits and within_us is None:
            raise PipelineError(f"{_VERB}: a pattern that ends with not_followed_by needs a time; give within=")
        names = [variable.name for variable in variables(pattern)]
        if regular is not None:
            check_skip(automaton, skip, dict(regular.subsets))
        elif skip.variable and skip.variable not in names:
            raise PipelineError(f"{_VERB}: after_match names {skip.variable!r}; {nearest(skip.variable, names)}")
        references = References(schema, names, regular)
        asked: dict[Asked, DataType] = {}
        conditions = tuple(
            None if each is None else check_condition(references.condition(each), schema, asked)
            for each in automaton.conditions
        )
        measured = tuple((name, references.measure(expr)) for name, expr in measures)
        read = frozenset[str]().union(*(columns_of(expr) for _, expr in measured))
        rows = Schema((*schema, Field(VARIABLE, STRING), Field(NUMBER, INT64), Field(SEEN, BOOLEAN)))
        fields = tuple(aggregate_field(expr, rows, _VERB, name, constants=True) for name, expr in measured)
        columns = tuple(name for name in schema.names if name in read)
        of_row = {name: column for name, expr in measures if (column := references.column_of_row(expr)) is not None}
        others = [(name, expr) for name, expr in measured if name not in of_row]
        of_rows = None
        if others or not measured:
            of_rows = AggregatePlan.build(others, rows, _VERB, event_time=False, constants=True)
        return cls(automaton, conditions, asked, fields, columns, of_row, of_rows, reads_numbers=NUMBER in read)


def automaton_of(pattern: Group, regular: Regular | None) -> Automaton | RegularAutomaton:
    """How a pattern is searched for.

    Raises:
        PipelineError: it cannot be.
    """
    return compiled(pattern) if regular is None else compiled_regular(pattern)


def check_skip(automaton: Automaton | RegularAutomaton, skip: Skip, subsets: Mapping[str, Sequence[str]]) -> None:
    """Raise `PipelineError` if the search would go on at the first row of every match, and find it again."""
    if skip.to != "first" or not isinstance(automaton, RegularAutomaton):
        return
    if automaton.first_names <= {*subsets.get(skip.variable, (skip.variable,))}:
        raise PipelineError(
            f"every match begins with {skip.variable}, so that SKIP TO FIRST {skip.variable} would find it for ever; "
            "write SKIP TO NEXT ROW"
        )


def _check_names(pattern: Group) -> None:
    names: list[str] = []
    for body in every_body(pattern):
        if not isinstance(body, Variable | Forbidden):
            continue
        if not body.name.isidentifier():
            raise PipelineError(
                f"{_VERB}: {body.name!r} cannot be the name of a part; write a name such as 'first_try'"
            )
        if body.name in names:
            raise PipelineError(f"{_VERB}: two parts are called {body.name!r}; give each a name of its own")
        names.append(body.name)


def check_condition(condition: Condition, schema: Schema, asked: dict[Asked, DataType]) -> Condition:
    """The condition, if it can be asked of rows of `schema`; adds to `asked` what it asks of the rows before.

    Raises:
        PipelineError: it is not boolean, or asks for what cannot be remembered.
    """
    if condition.alone is not None:
        check_predicate(condition.alone, schema, _VERB)
    if condition.predicate is not None:
        asked.update((each, BOOLEAN) for _, each in condition.asked)
        return condition
    kinds: dict[str, DataType] = {}
    for text, each in condition.asked:
        argument = INT64 if each.argument is None else output_field(Expr(each.argument), schema, _VERB, "it").type
        check_remembered(each, argument, text)
        if each.argument is None:
            kinds[text] = asked[each] = INT64
            continue
        aggregate = Expr(Aggregate(each.function, (each.argument,)))
        kinds[text] = asked[each] = output_field(aggregate, schema, _VERB, "it").type
    if condition.looking_back is not None:
        check_predicate(condition.looking_back, schema_of(condition.looking_back, schema, kinds), _VERB)
    return condition
