"""Rows to which verbs are applied: a node of a plan, and the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.times import Duration, checked_ttl_us, duration_us
from penstock.errors import PipelineError
from penstock.expressions import Expr, columns_of
from penstock.expressions.catalogue import free_function
from penstock.functions.process_functions import OutputTag
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operation import Operation
from penstock.plan.traits import Mode
from penstock.types import Schema, row_class


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a node. Functions of this package take such rows and return those behind the verb."""

    plan: LogicalPlan
    node: Node

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.node.schema

    def of(self, node: Node) -> Rows:
        """The rows of another node of the plan."""
        return Rows(self.plan, node)

    def derive(
        self,
        operation: Operation,
        schema: Schema,
        row_type: type[Any] | None = None,
        *,
        event_time: bool | None = None,
        keys: tuple[str, ...] = (),
        mode: Mode = "append",
        late: OutputTag[Any] | None = None,
    ) -> Rows:
        """The rows of a new node behind this one. The event time is kept, the keys are not.

        `late` is the side output of late rows, which have the columns of the input.
        """
        node = self.plan.add(
            operation,
            (self.node,),
            schema,
            row_type or row_class(schema),
            event_time=self.node.event_time if event_time is None else event_time,
            keys=keys,
            mode=mode,
        )
        if late is not None:
            node.sides = {late.name: self.schema}
        return self.of(node)

    def ttl_us(self, ttl: Duration | None, verb: str) -> int | None:
        """How long the state of a verb with this `ttl` is kept: as the plan says, if the verb does not say it.

        None is for ever; a verb asks for that with no time at all, as in Flink.
        """
        if ttl is None:
            return self.plan.state_ttl_us
        return checked_ttl_us(duration_us(ttl, f"{verb}: ttl"), f"{verb}: ttl") or None

    def check_unread(self, verb: str, written: Mapping[str, Expr]) -> None:
        """Nobody reads what a change does: a row that is retracted is to be treated as when it was added.

        Raises:
            PipelineError: an expression does, or gives another value whenever it is computed.
        """
        if self.node.mode != "retract":
            return
        for text, expr in written.items():
            free = free_function(expr.node)
            if free is not None:
                raise PipelineError(
                    f"{verb}: {free} gives another value whenever it is computed, and a row has to be retracted as it "
                    "was added; compute it of rows that are never replaced, before the join or the grouping"
                )
            if RETRACTED in columns_of(expr):
                raise PipelineError(
                    f"{verb}: {text} reads {RETRACTED}, so a row that is taken back would not be treated as when it was "
                    "added; leave that column as it is"
                )
