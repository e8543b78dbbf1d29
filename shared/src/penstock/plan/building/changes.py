"""Updates and changes: what a row replaces, updates as changes, and what is left of them at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from graphlib import TopologicalSorter

from penstock.core.times import Duration
from penstock.errors import PipelineError
from penstock.expressions import columns_of
from penstock.functions.windows.definitions import RETRACTED
from penstock.plan.building.columns import drop, union
from penstock.plan.building.keys import check_keys, key_by
from penstock.plan.building.rows import Rows
from penstock.plan.logical import Node, ancestors, sources_of
from penstock.plan.operations.aggregate_changes import AggregateChanges
from penstock.plan.operations.key_by import KeyBy
from penstock.plan.operations.last_rows import LastRows
from penstock.plan.operations.project import Project
from penstock.plan.operations.regular_join import RegularJoin
from penstock.plan.operations.temporal_filter import TemporalFilter
from penstock.plan.operations.to_changes import ToChanges
from penstock.types import BOOLEAN, Field, Schema, can_be_key


def to_changes(rows: Rows, verb: str, ttl: Duration | None = None) -> Rows:
    """Updates as changes, by which the former row of a key is retracted; changes as they are.

    Args:
        rows: updates or changes.
        verb: what needs changes, for messages.
        ttl: how long the row of a key is kept after its last update.

    Raises:
        PipelineError: the key of the updates is not there any more, or `retracted` is the name of a column; or `ttl` is
            given and these are changes already.
    """
    node = rows.node
    if node.mode == "retract":
        if ttl is not None:
            raise PipelineError(
                f"{verb}: these are changes already, so no rows are kept here, and ttl= says nothing; give it to "
                f"{node.verb}, or to what is before it"
            )
        return rows
    keys, retracted = node.upsert_key(verb)
    if retracted != RETRACTED and RETRACTED in node.schema:
        raise PipelineError(f"{verb}: there is a column {RETRACTED!r} already; rename it before")
    fields = tuple(field for field in node.schema if field.name != retracted)
    return changes_by(rows, keys, retracted, Schema((*fields, Field(RETRACTED, BOOLEAN))), ttl)


def changes_by(
    rows: Rows, keys: tuple[str, ...], retracted: str | None, schema: Schema, ttl: Duration | None = None
) -> Rows:
    """The changes of updates by these keys."""
    by_key = rows.derive(KeyBy(), rows.schema, keys=keys, mode="upsert")
    operation = ToChanges(retracted, rows.ttl_us(ttl, "changes"))
    return by_key.derive(operation, schema, keys=keys, mode="retract")


def current_rows(rows: Rows, verb: str) -> Rows:
    """Facts as they are, and updates as changes; `verb` wants them, and says so where that cannot be."""
    return to_changes(rows, verb) if rows.node.updates else rows


def distinct(rows: Rows, columns: Sequence[str], ttl: Duration | None) -> Rows:
    """The values of these columns, of all if none is named, that any current row has, once each.

    Raises:
        PipelineError: a column is not there, or cannot be a key.
    """
    changes = to_changes(rows, "distinct")
    names = columns or changes.node.row_schema.names
    check_keys(changes.node.row_schema, names, "distinct")
    operation = AggregateChanges((), "distinct", ttl_us=rows.ttl_us(ttl, "distinct"))
    return aggregated_changes(key_by(changes, names), operation)


def aggregated_changes(keyed: Rows, operation: AggregateChanges, results: Sequence[Field] = ()) -> Rows:
    """What a key comes to, behind the key."""
    node = keyed.node
    schema = Schema((*node.schema.select(node.keys), *results, Field(RETRACTED, BOOLEAN)))
    return keyed.derive(operation, schema, keys=node.keys, mode="retract")


def union_of_changes(all_rows: Sequence[Rows]) -> Rows:
    """The current rows of several streams of updates; rows that are in two of them are there twice."""
    return union([each if each.node.mode == "append" else to_changes(each, "changes") for each in all_rows])


def final(rows: Rows) -> Rows:
    """Only the last row of every key, at the end of the input.

    Raises:
        PipelineError: a source has no end, or a column of the key is not there any more.
    """
    node = rows.node
    check_ends(node)
    check_stays(node)
    if node.mode == "retract" and known_keys(node) is None:
        return drop(_all_current_rows(rows), (RETRACTED,))
    keys, retracted = node.upsert_key("final")
    by_key = rows.derive(KeyBy(), node.schema, keys=keys, mode="upsert")
    last = by_key.derive(LastRows(retracted), node.schema)
    return drop(last, (RETRACTED,)) if node.mode == "retract" else last


def _all_current_rows(rows: Rows) -> Rows:
    """Rows without a key are kept where any columns send them, which are those that can be keys."""
    schema = rows.schema
    keys = tuple(field.name for field in schema if field.name != RETRACTED and can_be_key(field.type))
    if not keys:
        raise PipelineError("final: no column can be a key, so rows cannot be told apart; add one that can")
    by_key = rows.derive(KeyBy(), schema, keys=keys, mode="retract")
    return by_key.derive(LastRows(RETRACTED, all_that_hold=True), schema)


def check_ends(node: Node) -> None:
    """Raise `PipelineError` if a source has no end: no row is the last one then."""
    for read, source in sources_of(node):
        if not source.bounded:
            raise PipelineError(
                f"final: the {source.kind} source {read.operator_id} has no end, so no row is the last one; write the "
                "updates, or aggregate in windows, whose results are final"
            )


def check_stays(node: Node) -> None:
    """Raise `PipelineError` if no row is left at the end of the input, because event time reaches the end of all."""
    emptied: dict[Node, Node | None] = {}
    for each in TopologicalSorter({made: made.inputs for made in (node, *ancestors(node))}).static_order():
        emptied[each] = _emptied(each, [emptied[source] for source in each.inputs])
    found = emptied[node]
    if found is not None:
        assert isinstance(found.operation, TemporalFilter)
        raise PipelineError(
            f"final: {found.operator_id} retracts every row when event time reaches valid_until = "
            f"{found.operation.bounds['valid_until'].expr}, so none is left at the end of the input; write the "
            "changes to a sink, or compare with a constant time"
        )


def _emptied(node: Node, inputs: Sequence[Node | None]) -> Node | None:
    """The temporal filter that leaves no row of a node at the end of the input; None if some may be left.

    Args:
        node: of a plan.
        inputs: the same of its inputs.
    """
    if isinstance(node.operation, TemporalFilter) and node.operation.retracts_all(node):
        return node
    if node.mode == "append":  # facts stay, also those that windows make of changes
        return None
    how = node.operation.how if isinstance(node.operation, RegularJoin) else "full"
    match how:
        case "inner" | "semi":
            return next((each for each in inputs if each is not None), None)
        case "left" | "anti":
            return inputs[0]
        case "right":
            return inputs[1]
        case _:
            return None if any(each is None for each in inputs) else next(iter(inputs), None)


def has_end(node: Node) -> bool:
    """Whether all sources of its rows come to an end, so that there is a last row of every key."""
    return all(source.bounded for _, source in sources_of(node))


def known_keys(node: Node) -> tuple[str, ...] | None:
    """The columns by which its rows replace earlier ones, or None where no columns tell that."""
    try:
        return node.upsert_key("")[0]
    except PipelineError:
        return None


def moves(node: Node, key: Iterable[str]) -> bool:
    """Whether an update may have another value of these columns than the row that it replaces.

    A sink with that key would keep the replaced row then, unless it is retracted.
    """
    updates, parts = _made_of(node)
    return not parts(key) <= {*updates.upsert_key("write")[0]}


def takes_back(node: Node, key: Iterable[str]) -> bool:
    """Whether rows with `retracted` true say of a key of these columns that it has none.

    So they do where the key says which window it is: the newest row of another one may be that of another window.

    Raises:
        PipelineError: they do, and `retracted`, or the key of the updates, is not there any more.
    """
    updates, parts = _made_of(node)
    retracted = updates.upsert_key("write")[1]
    if retracted is None or parts(key) <= {*updates.keys}:
        return False
    name = node.upsert_key("write")[1]
    if name != RETRACTED:
        raise PipelineError(
            f"write: {name!r} says which sessions are no more, which sinks look for under the name {RETRACTED!r}; leave "
            "it that name"
        )
    return True


def _made_of(node: Node) -> tuple[Node, Callable[[Iterable[str]], set[str]]]:
    """What sends the updates that a node shapes, and of which of its columns some of the node's are made."""
    if not isinstance(node.operation, Project):
        return node, set
    updates, parts = _made_of(node.inputs[0])
    read = {name: columns_of(expr) for name, expr in node.operation.columns}
    return updates, lambda names: parts({each for name in names for each in read[name]})
