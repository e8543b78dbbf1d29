"""Patterns in the rows of every key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.times import format_duration
from penstock.expressions import Expr
from penstock.functions.patterns.definitions import Forbidden, Predicate, Variable, every_body, variables
from penstock.functions.patterns.describing import regular_text_of, text_of
from penstock.functions.patterns.drawing import drawn
from penstock.functions.patterns.planning import MatchPlan, automaton_of
from penstock.plan.operation import (
    Columns,
    Named,
    Operation,
    Settings,
    UpsertKey,
    described,
    joined,
    key_columns,
    undetermined,
)
from penstock.plan.traits import LateBehindWatermark, Traits, keyed
from penstock.types import schema_to_json

if TYPE_CHECKING:
    from penstock.functions.patterns.definitions import Group, Regular, Skip
    from penstock.functions.process_functions import OutputTag
    from penstock.plan.logical import Node
    from penstock.types import Schema


@dataclass(frozen=True, eq=False)
class MatchRows(Operation):
    """What is measured of every match of a pattern in the rows of a key, in order of event time."""

    pattern: Group
    measures: Named
    skip: Skip
    within_us: int | None = None
    late: OutputTag[Any] | None = None
    timed_out: OutputTag[Any] | None = None
    """The side output of partial matches whose time is over."""
    regular: Regular | None = None
    """What SQL says besides; None: the pattern is one of Flink's CEP library."""

    def plan(self, schema: Schema) -> MatchPlan:
        """The pattern over rows of `schema`.

        Raises:
            PipelineError: it cannot be searched for, or an expression does not fit.
        """
        return MatchPlan.of(self.pattern, self.skip, self.within_us, self.measures, schema, self.regular)

    @property
    def verb(self) -> str:
        return "match"

    def traits(self, node: Node) -> Traits:
        within = (
            "for ever" if self.within_us is None else f"until event time is {format_duration(self.within_us)} past them"
        )
        return keyed(
            undetermined=self._undetermined(),
            arrival="which of a key's rows with equal event times is before which",
            state="scanned",
            kept=f"rows until event time has passed them, and those of partial matches, {within}",
            watermark_lag_us=0,
            late=LateBehindWatermark(),
            late_tag=None if self.late is None else self.late.name,
        )

    def _undetermined(self) -> str:
        parts = [part for part in every_body(self.pattern) if isinstance(part, Variable | Forbidden)]
        expressions = [part.condition for part in parts if isinstance(part.condition, Expr)]
        python = any(isinstance(part.condition, Predicate) for part in parts)
        written = undetermined([*expressions, *(expr for _, expr in self.measures)])
        return joined(["which rows the functions of its conditions accept" if python else "", written])

    def describe(self, node: Node) -> Settings:
        settings: Settings = {"keys": list(node.inputs[0].keys), "pattern": self._text(conditions=True)}
        if self.regular is not None:
            settings |= self._described(self.regular)
        if self.within_us is not None:
            settings["within"] = format_duration(self.within_us)
        settings["after_match"] = str(self.skip)
        settings["measures"] = described(self.measures)
        if self.timed_out is not None:
            settings["timed_out_to"] = self.timed_out.name
        if self.late is not None:
            settings["late_to"] = self.late.name
        return settings

    def _text(self, *, conditions: bool) -> str:
        if self.regular is None:
            return text_of(self.pattern, conditions=conditions)
        return regular_text_of(self.pattern)

    def _described(self, regular: Regular) -> Settings:
        every = {variable.name: variable.condition for variable in variables(self.pattern)}
        settings: Settings = {"define": {name: str(expr) for name, expr in every.items() if expr is not None}}
        if regular.subsets:
            settings["subset"] = {name: list(of) for name, of in regular.subsets}
        settings["rows_per_match"] = "all" if regular.all_rows else "one"
        return settings

    def drawing(self) -> list[str]:
        """How the pattern is searched for: see `drawn`."""
        return list(drawn(automaton_of(self.pattern, self.regular)))

    def state_signature(self, node: Node) -> Settings | None:
        """With the pattern, of which partial matches have positions; its conditions and the measures may change."""
        return {
            "verb": self.verb,
            "keys": key_columns(node),
            "pattern": self._text(conditions=False),
            "row": schema_to_json(node.inputs[0].schema),
        }

    def columns_needed(self, node: Node, wanted: Columns) -> Columns:
        """All: rows that wait for event time are kept whole."""
        return None

    def upsert_key(self, node: Node, verb: str) -> UpsertKey:
        return node.keys, None
