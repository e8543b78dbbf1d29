"""A query as rows of a plan: what `Pipeline.sql` and statements call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.expressions import col
from penstock.plan.building.changes import final, has_end
from penstock.plan.building.columns import project
from penstock.plan.building.sorting import begins_with_event_time, sort
from penstock.sql.binding.context import Context
from penstock.sql.binding.projections import Ordered
from penstock.sql.binding.queries import Binder
from penstock.sql.binding.ranks import settled
from penstock.sql.binding.relations import changes_of
from penstock.sql.catalogue import Catalogue
from penstock.sql.parsing import query
from penstock.sql.python_functions import python_function
from penstock.sql.text import SqlText

if TYPE_CHECKING:
    from penstock.expressions.accumulators import Accumulator
    from penstock.plan.building.rows import Rows
    from penstock.plan.logical import LogicalPlan
    from penstock.sql.binding.relations import Relation


def rows_of_query(
    plan: LogicalPlan,
    text: SqlText,
    tables: Mapping[str, Rows],
    functions: Mapping[str, Callable[..., Any] | Accumulator[Any, Any]],
) -> Rows:
    """The rows of the query that a text is, over streams and with functions by name.

    Raises:
        SqlError: the text is wrong, or cannot be computed of streams.
    """
    catalogue = Catalogue(tables)
    catalogue.functions.update({name.upper(): python_function(name, each) for name, each in functions.items()})
    context = Context(text, plan, catalogue)
    return finished(context, Binder(context).ordered(query(text)))


def finished(context: Context, found: Ordered) -> Rows:
    """The columns that a query shows, under the names that it gives them, in its order.

    Raises:
        SqlError: there is no end at which the rows could be sorted, and the order is not that of event time.
    """
    relation = settled(context, found.relation)
    if found.order:
        relation = relation.with_rows(_sorted(context, relation, found))
    return _named(relation)


def _sorted(context: Context, relation: Relation, found: Ordered) -> Rows:
    """Final rows in their order. The first rows of an endless input change as it grows, so they are changes, unsorted."""
    ends, rows, span = has_end(relation.rows.node), relation.rows, found.span
    if found.limited and not ends:
        return rows
    if rows.node.updates and ends:
        rows = final(changes_of(relation).rows)
    assert span is not None, "an order stands in the text"
    by_event_time = found.by_event_time or begins_with_event_time(rows.node, found.order)
    if not ends and (rows.node.updates or not by_event_time):
        raise context.error(
            span,
            "rows of tables without an end are emitted as they come; ORDER BY can begin with their event time, "
            "ascending, or stand with LIMIT; else leave it out",
        )
    with context.at(span):
        return sort(rows, found.order, by_event_time=by_event_time)


def _named(relation: Relation) -> Rows:
    columns = relation.named()
    if [*columns] == [*columns.values()] == list(relation.rows.node.row_schema.names):
        return relation.rows
    return project(relation.rows, "select", tuple((name, col(own)) for name, own in columns.items()))
