"""Patterns over rows of certain columns: everything that can be said before rows come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from penstock.errors import PipelineError, nearest
from penstock.expressions import Expr, check_predicate, columns_of, output_field
from penstock.expressions.nodes import Aggregate
from penstock.functions.patterns.automaton import Automaton, compiled
from penstock.functions.patterns.definitions import Forbidden, Group, Skip, Variable, every_body, variables
from penstock.functions.patterns.looking_back import check_remembered, schema_of
from penstock.functions.patterns.references import VARIABLE, Asked, Condition, References
from penstock.types import INT64, STRING, DataType, Field, Schema

if TYPE_CHECKING:
    from penstock.expressions import AggregatePlan

_VERB: Final = "match"
_MOST_CONDITIONS: Final = 62


@dataclass(frozen=True)
class MatchPlan:
    """A pattern over rows of certain columns, as it is searched for and measured."""

    automaton: Automaton
    conditions: tuple[Condition | None, ...]
    """Those of the automaton, by number."""
    asked: dict[Asked, DataType]
    """What conditions ask of the rows before."""
    measures: AggregatePlan
    """Over the rows of a match, with `VARIABLE`."""
    measured: tuple[str, ...]
    """The columns that measures read."""

    @classmethod
    def of(
        cls, pattern: Group, skip: Skip, within_us: int | None, measures: Sequence[tuple[str, Expr]], schema: Schema
    ) -> Self:
        """The plan for rows of `schema`.

        Raises:
            PipelineError: the pattern cannot be searched for, or an expression does not fit.
        """
        from penstock.expressions.aggregates import AggregatePlan  # loads Polars

        _check_names(pattern)
        automaton = compiled(pattern)
        if len(automaton.conditions) > _MOST_CONDITIONS:
            raise PipelineError(f"{_VERB}: the pattern has more than {_MOST_CONDITIONS} conditions")
        if automaton.waits and within_us is None:
            raise PipelineError(f"{_VERB}: a pattern that ends with not_followed_by needs a time; give within=")
        names = [variable.name for variable in variables(pattern)]
        if skip.variable and skip.variable not in names:
            raise PipelineError(f"{_VERB}: after_match names {skip.variable!r}; {nearest(skip.variable, names)}")
        references = References(schema, names)
        asked: dict[Asked, DataType] = {}
        conditions = tuple(
            None if each is None else _checked(references.condition(each), schema, asked)
            for each in automaton.conditions
        )
        measured = tuple((name, references.measure(expr)) for name, expr in measures)
        read = frozenset[str]().union(*(columns_of(expr) for _, expr in measured))
        plan = AggregatePlan.build(measured, Schema((*schema, Field(VARIABLE, STRING))), _VERB, event_time=False)
        return cls(automaton, conditions, asked, plan, tuple(name for name in schema.names if name in read))


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


def _checked(condition: Condition, schema: Schema, asked: dict[Asked, DataType]) -> Condition:
    if condition.alone is not None:
        check_predicate(condition.alone, schema, _VERB)
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
