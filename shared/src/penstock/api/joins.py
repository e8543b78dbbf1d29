"""`join`: what is checked of two streams, and the nodes that it makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.api.updates import known_keys
from penstock.api.verbs import check_keys
from penstock.errors import ExternalError, PipelineError
from penstock.expressions import col
from penstock.graph.logical import (
    RETRACTED,
    AsOf,
    CallSettings,
    CumulativeWindow,
    FixedWindow,
    Join,
    JoinKind,
    JoinTime,
    LookupJoin,
    Node,
    RegularJoin,
    SlidingWindow,
    TumblingWindow,
    Within,
    window_bounds,
)
from penstock.times import Duration, duration_us, signed_duration_us
from penstock.types import BOOLEAN, Field, Schema, row_class

if TYPE_CHECKING:
    from penstock.api.stream import Stream
    from penstock.api.update_streams import UpsertStream
    from penstock.api.verbs import StreamBase
    from penstock.connectors.lookups import Lookup

On = str | Sequence[str] | Mapping[str, str]
"""Key columns: those of these names on both sides, or left name to right name."""

_MAY_MISS: Final[dict[JoinKind, tuple[bool, bool]]] = {
    "inner": (False, False), "left": (False, True), "right": (True, False), "full": (True, True),
}  # fmt: skip
"""Of the kinds that send pairs: whether the columns of the left and of the right input may be null for want of a row."""


def join_time(
    within: Duration | tuple[Duration, Duration] | None, window: FixedWindow | None, as_of: bool, how: JoinKind
) -> JoinTime | None:
    """Which rows of a key meet; None for all."""
    if as_of and how not in ("inner", "left"):
        raise PipelineError(
            f"join: as_of=True asks what held for a left row; how is 'inner' or 'left' then, not {how!r}"
        )
    match within, window, as_of:
        case None, None, True:
            return AsOf()
        case str() | timedelta() as tolerance, None, True:
            return AsOf(duration_us(tolerance, "join: within"))
        case str() | timedelta() as reach, None, False:
            reach_us = duration_us(reach, "join: within")
            return Within(-reach_us, reach_us)
        case (lower, upper), None, False:
            return _between(lower, upper)
        case None, TumblingWindow() | SlidingWindow() | CumulativeWindow() as shared, False:
            return shared
        case None, None, False:
            return None
        case _:
            raise PipelineError(
                "join: give within=, window= or as_of=True; of these only as_of goes with within, which is then how old "
                "the right row may be"
            )


def _between(lower: Duration, upper: Duration) -> Within:
    lower_us, upper_us = (signed_duration_us(each, "join: within") for each in (lower, upper))
    if lower_us > upper_us:
        raise PipelineError(f"join: within=({lower!r}, {upper!r}) is empty; the first must not be more than the second")
    return Within(lower_us, upper_us)


def join_node(left: Stream[Any], right: Stream[Any], on: On, how: JoinKind, time: JoinTime, suffix: str) -> Node:
    """The join of two streams."""
    _check_streams(left, right)
    keys = _keys(left.schema, right.schema, on)
    pairs = how not in ("semi", "anti")
    names = _right_names(left.schema, right.schema, keys, suffix if pairs else None)
    if names != {name: name for name in right.schema.names}:
        right = right.select(**{name: col(own) for name, own in names.items()})
    inputs = (left.key_by(*keys)._node, right.key_by(*keys)._node)
    schema = _results(left.schema, right.schema, keys, how, time) if pairs else left.schema
    row_type = row_class(schema) if pairs else left._node.row_type
    return left._pipeline._add(Join(how, time), inputs, schema, row_type, event_time=True)


def regular_join_node(
    left: Stream[Any] | UpsertStream,
    right: Stream[Any] | UpsertStream,
    on: On,
    how: JoinKind,
    ttl: Duration | None,
    suffix: str,
) -> Node:
    """The join of two streams of facts or updates by key alone."""
    _check_pipelines(left, right)
    ttl_us = left._pipeline._ttl_us(ttl, "join")
    left, right = that_hold(left, "changes"), that_hold(right, "changes")
    own, other = left._node.row_schema, right._node.row_schema
    keys = _keys(own, other, on)
    pairs = how not in ("semi", "anti")
    names = _right_names(own, other, keys, suffix if pairs else None)
    if names != {name: name for name in other.names}:
        right = right.select(**{name: col(named) for name, named in names.items()})
    inputs = (left.key_by(*keys)._node, right.key_by(*keys)._node)
    schema = _results(own, right._node.row_schema, keys, how, None) if pairs else own
    facts = how in ("inner", "semi") and not any(node.updates for node in inputs)
    row_type = left._node.row_type if not pairs and facts else None
    if not facts:
        if RETRACTED in schema:
            raise PipelineError(f"join: there is a column {RETRACTED!r} already; rename it before")
        schema = Schema((*schema, Field(RETRACTED, BOOLEAN)))
    return left._pipeline._add(
        RegularJoin(how, ttl_us), inputs, schema, row_type or row_class(schema),
        event_time=all(node.event_time for node in inputs),
        keys=() if facts else _result_keys(keys, left, right if pairs else None, how),
        mode="append" if facts else "retract",
    )  # fmt: skip


def that_hold(stream: Stream[Any] | UpsertStream, verb: str) -> Stream[Any] | UpsertStream:
    """Facts as they are, and updates as changes; `verb` wants them, and says so where that cannot be."""
    if not stream._node.updates:
        return stream
    updates = cast("UpsertStream", stream)
    return type(updates)(updates._pipeline, updates._changes_node(verb))


def _result_keys(
    on: Iterable[str], left: Stream[Any] | UpsertStream, right: Stream[Any] | UpsertStream | None, how: JoinKind
) -> tuple[str, ...]:
    """By which a row replaces another: the key of the join and those of both inputs; none if one has none."""
    on, keys = set(on), dict.fromkeys(on)
    nodes = [stream._node for stream in ((left, right) if right is not None else (left,))]
    for node in nodes:
        known = known_keys(node) if node.updates else None
        if known is None:
            return ()
        keys.update(dict.fromkeys(known))
    return () if how == "full" and _look_alike(on, set(keys) - on, [node.schema for node in nodes]) else tuple(keys)


def _look_alike(on: set[str], others: set[str], schemas: Sequence[Schema]) -> bool:
    """Whether a left and a right row that are both alone may have the same key.

    Null is equal to nothing in a join, and the rest of the key may be null too, as it is of the row that is not there.
    """
    never_null = any(name in schema and not schema.field(name).nullable for name in others for schema in schemas)
    return not never_null and any(all(schema.field(name).nullable for schema in schemas) for name in on)


def lookup_join_node(
    left: Stream[Any], lookup: Lookup[Any], on: On, how: JoinKind, suffix: str, *, says_more: bool
) -> Node:
    """The join of a stream with what another system has for its keys."""
    if how not in ("inner", "left"):
        raise PipelineError(
            f"join: of a lookup only rows are known that are asked for; how is 'inner' or 'left' then, not {how!r}"
        )
    if says_more:
        raise PipelineError(
            "join: within=, window=, as_of= and ttl= say which rows of two streams meet; a lookup gives what it has when "
            "it is asked: leave them out (cache_ttl= at the lookup says how long answers are remembered)"
        )
    keys = _keys(left.schema, lookup.schema, on, "the lookup")
    names = _right_names(left.schema, lookup.schema, keys, suffix, "the lookup")
    columns = tuple((name, own) for name, own in names.items() if own not in keys.values())
    if not columns:
        raise PipelineError("join: the lookup has no columns beside its keys, so there is nothing to ask for; add one")
    schema = _results(left.schema, Schema(tuple(_named(lookup.schema, columns))), {}, how, None)
    asked = [lookup.schema.select(each, "join") for each in ([own for _, own in columns], list(keys.values()))]
    lookup.client(*asked)
    calls = lookup.calls
    settings = CallSettings(
        calls.capacity, calls.timeout_us, calls.retries, calls.retry_delay_us, (ExternalError,), calls.ordered
    )
    operation = LookupJoin(lookup, how, tuple(keys.items()), columns, settings)
    inputs, event_time = (left._node,), left._node.event_time
    return left._pipeline._add(operation, inputs, schema, row_class(schema), event_time=event_time)


def _named(schema: Schema, columns: Iterable[tuple[str, str]]) -> Iterator[Field]:
    for name, own in columns:
        yield replace(schema.field(own), name=name)


def in_time(other: Stream[Any] | UpsertStream, ttl: Duration | None) -> Stream[Any]:
    """The right stream of a join that says something of time."""
    if ttl is not None:
        raise PipelineError(
            "join: ttl= is for joins without within=, window= or as_of=, whose rows are kept as long as these ask for"
        )
    if other._node.mode != "append":
        raise PipelineError(
            "join: the other stream is one of updates, whose rows may be replaced after they have met others in time; "
            "leave within=, window= and as_of= out, or join what it is made of"
        )
    return cast("Stream[Any]", other)


def _check_pipelines(left: StreamBase, right: StreamBase) -> None:
    if left._pipeline is not right._pipeline:
        raise PipelineError("join: the other stream is of another pipeline; read both in one")


def _check_streams(left: Stream[Any], right: Stream[Any]) -> None:
    _check_pipelines(left, right)
    for stream, which in ((left, "this stream"), (right, "the other stream")):
        if not stream._node.event_time:
            raise PipelineError(
                f"join: {which} has no event time, by which rows meet; say event_time='column' at its source, or write "
                ".with_event_time(...) before"
            )


def _keys(left: Schema, right: Schema, on: On, other_side: str = "the other stream") -> dict[str, str]:
    """Key columns of the left input and what they are called in the right one."""
    match on:
        case str():
            keys = {on: on}
        case Mapping():
            keys = dict(on)
        case _:
            keys = {name: name for name in on}
    if not keys:
        raise PipelineError("join: on= names no column; name those that are equal, such as on='id'")
    check_keys(left, keys, "join: on")
    for own, other in keys.items():
        have, met = left.field(own, "join: on"), right.field(other, f"join: on, in {other_side}")
        if have.type != met.type:
            raise PipelineError(
                f"join: {own} is {have.type}, {other} of {other_side} is {met.type}, and would never be equal; "
                "cast one of them before"
            )
    if len(set(keys.values())) < len(keys):
        raise PipelineError(f"join: on={keys} names a column of {other_side} twice")
    return keys


def _right_names(
    left: Schema, right: Schema, keys: Mapping[str, str], suffix: str | None, other_side: str = "the other stream"
) -> dict[str, str]:
    """What is taken of the right input: name in the join to its own name. Without a suffix the keys are enough."""
    names = dict(keys)
    others = [name for name in right.names if name not in keys.values()]
    for own in others if suffix is not None else ():
        name = f"{own}{suffix}" if own in left or own in keys else own
        if name in left or name in names:
            raise PipelineError(
                f"join: both sides have a column {own!r}, and {name!r} is there as well; give another suffix=, or "
                "rename one of them before"
            )
        names[name] = own
    return {name: names[name] for name in _in_order(right, names)}


def _in_order(right: Schema, names: Mapping[str, str]) -> list[str]:
    return sorted(names, key=lambda name: right.names.index(names[name]))


def _results(left: Schema, right: Schema, keys: Mapping[str, str], how: JoinKind, time: JoinTime | None) -> Schema:
    """The left columns, the right ones but the keys, and the bounds of windows.

    Where there is no left row, keys are those of the right one, which may be null where the left ones never are.
    """
    left_may_miss, right_may_miss = _MAY_MISS[how]
    fields = [
        replace(
            field,
            nullable=field.nullable or (left_may_miss and (field.name not in keys or right.field(field.name).nullable)),
        )
        for field in left
    ]
    fields += [
        Field(field.name, field.type, nullable=field.nullable or right_may_miss)
        for field in right
        if field.name not in keys
    ]
    for bound in window_bounds(retracts=False) if isinstance(time, FixedWindow) else ():
        if any(field.name == bound.name for field in fields):
            raise PipelineError(
                f"join: there is a column {bound.name!r} already, which the join in windows makes; to join results of "
                "windows, name it in on= and write within='0s'"
            )
        fields.append(bound)
    return Schema(tuple(fields))
