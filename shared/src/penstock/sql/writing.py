"""A query as rows of a plan: what `Pipeline.sql` and statements call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.expressions import col
from penstock.plan.building.columns import project
from penstock.sql.binding.context import Context
from penstock.sql.binding.projections import Ordered
from penstock.sql.binding.queries import Binder
from penstock.sql.binding.ranks import settled
from penstock.sql.catalogue import Catalogue
from penstock.sql.parsing import query
from penstock.sql.python_functions import python_function
from penstock.sql.text import SqlText

if TYPE_CHECKING:
    from penstock.plan.building.rows import Rows
    from penstock.plan.logical import LogicalPlan
    from penstock.sql.binding.relations import Relation


def rows_of_query(
    plan: LogicalPlan, text: SqlText, tables: Mapping[str, Rows], functions: Mapping[str, Callable[..., Any]]
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
    """The columns that a query shows, under the names that it gives them."""
    return _named(settled(context, found.relation))


def _named(relation: Relation) -> Rows:
    columns = relation.named()
    if [*columns] == [*columns.values()] == list(relation.rows.node.row_schema.names):
        return relation.rows
    return project(relation.rows, "select", tuple((name, col(own)) for name, own in columns.items()))
