"""`intersect` and `minus`: the rows of two streams are keys of one, and which of these hold is said by where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from penstock.api.joins import that_hold
from penstock.api.verbs import ColumnVerbs, check_alike, check_keys, keyed_node
from penstock.errors import PipelineError
from penstock.expressions import Expr, col, count, lit
from penstock.graph.logical import RETRACTED, AggregateChanges, Node, Project
from penstock.types import BOOLEAN, Field, Schema

if TYPE_CHECKING:
    from penstock.api.stream import Stream
    from penstock.api.update_streams import UpsertStream
    from penstock.times import Duration

Verb = Literal["intersect", "minus"]


def set_node(
    verb: Verb, left: Stream[Any] | UpsertStream, right: Stream[Any] | UpsertStream, ttl: Duration | None
) -> Node:
    """The distinct rows of the left stream that are in the right one too, or that are not."""
    streams = that_hold(left, verb), that_hold(right, verb)
    check_alike(verb, streams)
    rows = streams[0]._node.row_schema
    check_keys(rows, rows.names, verb)
    if RETRACTED in rows:
        raise PipelineError(f"{verb}: there is a column {RETRACTED!r} already; rename it before")
    side, event_time = _free_name(rows), all(stream._node.event_time for stream in streams)
    one, other = (
        _of_side(stream, rows.names, side, is_left=is_left, event_time=event_time)
        for stream, is_left in zip(streams, (True, False), strict=True)
    )
    both = ColumnVerbs(left._pipeline, one._union_node([other]))
    keyed = ColumnVerbs(left._pipeline, keyed_node(both, rows.names))
    operation = AggregateChanges((), verb, _holds(verb, col(side)), left._pipeline._ttl_us(ttl, verb))
    return keyed._derive(operation, Schema((*rows, Field(RETRACTED, BOOLEAN))), keys=rows.names, mode="retract")


def _free_name(rows: Schema) -> str:
    """That of a column which is not there."""
    name = "left"
    while name in rows:
        name += "_"
    return name


def _of_side(stream: ColumnVerbs, names: Sequence[str], side: str, *, is_left: bool, event_time: bool) -> ColumnVerbs:
    """The changes of a stream, whose facts are rows that are added, and whether they are those of the left one."""
    retracted = col(RETRACTED) if stream._node.updates else lit(False)
    columns = (*((name, col(name)) for name in names), (side, lit(is_left)), (RETRACTED, retracted))
    schema = Schema((*stream._node.row_schema.select(names), Field(side, BOOLEAN), Field(RETRACTED, BOOLEAN)))
    operation = Project("select", columns)
    return ColumnVerbs(stream._pipeline, stream._derive(operation, schema, event_time=event_time, mode="retract"))


def _holds(verb: Verb, is_left: Expr) -> Expr:
    others = count(filter=~is_left)
    return (count(filter=is_left) > 0) & (others > 0 if verb == "intersect" else others == 0)
