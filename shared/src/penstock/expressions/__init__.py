"""Expressions: `col("price") * 0.908` as a small frozen tree, its types, its function catalogue and its lowerings.

Importing this package loads neither Polars nor Arrow: `AggregatePlan` does, when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.expressions.accumulators import Accumulator
from penstock.expressions.constructors import (
    aggregate,
    arctan2,
    coalesce,
    col,
    concat_list,
    concat_str,
    count,
    count_if,
    lag,
    lead,
    lit,
    max_horizontal,
    min_horizontal,
    row_number,
    struct,
    when,
)
from penstock.expressions.queries import (
    accumulators_in,
    accumulators_without_retract,
    aggregate_field,
    check_predicate,
    columns_of,
    conditions_of,
    contains_aggregate,
    decided_by_arrival,
    from_json,
    has_name,
    is_mergeable,
    is_of_distinct,
    is_subtractable,
    keeps_values,
    needs_over,
    output_field,
    output_name,
    over_field,
    row_field,
    to_json,
    to_polars,
)
from penstock.expressions.surface import Expr, Operand

if TYPE_CHECKING:
    from penstock.expressions.aggregates import AggregatePlan

__all__ = [
    "Accumulator",
    "AggregatePlan",
    "Expr",
    "Operand",
    "aggregate",
    "aggregate_field",
    "arctan2",
    "check_predicate",
    "coalesce",
    "col",
    "columns_of",
    "conditions_of",
    "concat_list",
    "concat_str",
    "contains_aggregate",
    "count",
    "count_if",
    "accumulators_in",
    "accumulators_without_retract",
    "decided_by_arrival",
    "is_of_distinct",
    "is_subtractable",
    "from_json",
    "has_name",
    "is_mergeable",
    "keeps_values",
    "lag",
    "lead",
    "lit",
    "max_horizontal",
    "min_horizontal",
    "needs_over",
    "output_field",
    "output_name",
    "over_field",
    "row_field",
    "row_number",
    "struct",
    "to_json",
    "to_polars",
    "when",
]


def __getattr__(name: str) -> Any:
    if name == "AggregatePlan":
        from penstock.expressions.aggregates import AggregatePlan

        return AggregatePlan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
