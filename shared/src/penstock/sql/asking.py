"""What a statement comes to where somebody waits for its answer: at the prompt, and over REST. Nothing is run here.

`Asking` decides what a statement is and makes the plan that answers it. How the plan is run, and how the answer is shown,
is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from penstock.connectors import console
from penstock.graph.jobgraph import JobGraph, build_job_graph
from penstock.plan.logical import LogicalPlan, Node, ancestors
from penstock.plan.operations.write import Write
from penstock.plan.tree import plan_tree
from penstock.sql.answers import Answer, answer_of, described, listed
from penstock.sql.binding.context import Context
from penstock.sql.binding.queries import Binder
from penstock.sql.programs import Session
from penstock.sql.syntax import CreateTable, Describe, Explain, Insert, Part, Query, SetOption, Show, StatementSet

if TYPE_CHECKING:
    from penstock.sql.text import SqlText

Listed = Literal["COLUMNS", "SETTINGS", "TABLES", "VIEWS", "FUNCTIONS"]


@dataclass(frozen=True)
class Listing:
    """A table of texts: what DESCRIBE, SET and SHOW answer."""

    what: Listed
    rows: Sequence[tuple[str, ...]]
    """Of columns name, type and what is said of them; of settings name and value; of all others names."""


@dataclass(frozen=True)
class Explanation:
    """What EXPLAIN answers."""

    plan: LogicalPlan
    graph: JobGraph
    as_json: bool
    """Whether the statement asks for the job graph as JSON."""

    def tree(self) -> str:
        """The plan as a tree of text."""
        return plan_tree(self.plan)


@dataclass
class Asking:
    """Statements over the tables of a session, and what each comes to."""

    session: Session
    parallelism: int = 1
    """Of the plans that EXPLAIN shows."""

    def answer(self, text: SqlText, part: Part) -> Answer | Listing | Explanation | None:
        """What a statement comes to; None if it changes the session, or writes into its plan, and shows nothing.

        Raises:
            SqlError: it is wrong.
        """
        session = self.session
        context = Context(text, session.plan, session.catalogue)
        match part:
            case Query():
                return answer_of(context, Binder(context).ordered(part))
            case Explain():
                return self._explained(context, part)
            case Describe():
                return Listing("COLUMNS", described(context, session.catalogue, part))
            case Show(what="TABLES" | "VIEWS" | "FUNCTIONS" as what):
                return Listing(what, [(name,) for name in listed(session.catalogue, part)])
            case Show():
                raise context.error(part, f"SHOW {part.what} is not supported; there are TABLES, VIEWS and FUNCTIONS")
            case SetOption(key=None):
                return Listing("SETTINGS", sorted(session.settings.values.items()))
            case _:
                session.execute(text, part, lambda rows: None)
                return None

    def _explained(self, context: Context, part: Explain) -> Explanation:
        statement, session = part.statement, self.session
        if isinstance(statement, Query):
            answer = answer_of(context, Binder(context).ordered(statement))
            plan = session.plan.ending_in(answer.rows.node, Write(console.Sink()))
        elif isinstance(statement, Insert | StatementSet) or (isinstance(statement, CreateTable) and statement.query):
            over = session.over(replace(session.plan, nodes=[]))
            over.execute(context.text, statement, lambda rows: None)
            if not over.writes:
                raise context.error(statement, "the table is there already, so this statement does nothing")
            plan = over.plan
        else:
            raise context.error(part, "EXPLAIN is for queries and INSERT INTO")
        graph = build_job_graph(plan, self.parallelism)
        if "ESTIMATED_COST" in part.details:
            raise context.error(part, "EXPLAIN ESTIMATED_COST is not supported: costs are not estimated")
        if "PLAN_ADVICE" in part.details:
            raise context.error(part, "EXPLAIN PLAN_ADVICE is not supported: plans show state; leave it out")
        return Explanation(plan, graph, as_json="JSON_EXECUTION_PLAN" in part.details)


def plan_of_writes(plan: LogicalPlan, writes: Sequence[Node]) -> LogicalPlan:
    """The part of a plan that some of its writes need."""
    wanted = {node for write in writes for node in (write, *ancestors(write))}
    return replace(plan, nodes=[node for node in plan if node in wanted])
