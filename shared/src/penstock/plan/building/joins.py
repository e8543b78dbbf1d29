"""`join`: rows that meet in time, current rows that have the same key, and rows of another system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.core.times import Duration, duration_us, signed_duration_us
from penstock.errors import ExternalError, PipelineError
from penstock.expressions import Expr, check_predicate, col, columns_of
from penstock.expressions.catalogue import free_function
from penstock.functions.windows.definitions import (
    RETRACTED,
    AsOf,
    CumulativeWindow,
    FixedWindow,
    JoinTime,
    SlidingWindow,
    TumblingWindow,
    Within,
    window_bounds,
)
from penstock.plan.building.changes import current_rows, known_keys
from penstock.plan.building.columns import select
from penstock.plan.building.keys import check_keys, key_by
from penstock.plan.building.rows import Rows
from penstock.plan.operations.calls import CallSettings
from penstock.plan.operations.join import Join, JoinKind
from penstock.plan.operations.lookup_join import LookupJoin
from penstock.plan.operations.regular_join import RegularJoin
from penstock.types import BOOLEAN, Field, Schema, row_class

if TYPE_CHECKING:
    from penstock.connectors.lookups import Lookup

On = str | Sequence[str] | Mapping[str, str]
"""Key columns: those of these names on both sides, or left name to right name."""
JoinTtl = Duration | tuple[Duration | None, Duration | None] | None
"""How long rows of a join are kept: of both sides, or of the left and of the right one; None: as the pipeline says."""

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


def join_in_time(
    left: Rows, right: Rows, on: On, how: JoinKind, time: JoinTime, suffix: str,
    where: Expr | None = None, *, nulls_equal: bool = False,
) -> Rows:  # fmt: skip
    """The join of two streams."""
    _check_streams(left, right)
    if where is not None and isinstance(time, AsOf):
        raise PipelineError(
            "join: as_of=True takes the newest right row of a key, and where= would pass over it for an older one, which "
            "is not kept; filter the right stream before, or the results behind"
        )
    keys = _keys(left.schema, right.schema, on)
    pairs = how not in ("semi", "anti")
    names = _taken(left.schema, right.schema, keys, suffix, where, pairs=pairs)
    if names != {name: name for name in right.schema.names}:
        right = select(right, (), {name: col(own) for name, own in names.items()})
    inputs = (key_by(left, tuple(keys)).node, key_by(right, tuple(keys)).node)
    schema = _results(left.schema, right.schema, keys, how, time) if pairs else left.schema
    row_type = row_class(schema) if pairs else left.node.row_type
    operation = Join(how, time, where, nulls_equal)
    return left.of(left.plan.add(operation, inputs, schema, row_type, event_time=True))


def join_current_rows(
    left: Rows,
    right: Rows,
    on: On,
    how: JoinKind,
    ttl: JoinTtl,
    suffix: str,
    where: Expr | None = None,
    *,
    nulls_equal: bool = False,
) -> Rows:
    """The join of two streams of facts or updates by key alone.

    Args:
        left, right: the streams.
        on: the key columns.
        how: which rows are sent.
        ttl: how long rows are kept: of both streams, or a pair of durations of the left and of the right one.
        suffix: what is put behind the name of a right column that the left stream has too.
        where: what must be true of a pair as well, over the columns of both under their names in the results, whatever
            `how` is; null counts as false.
        nulls_equal: whether null is a key like others.
    """
    _check_pipelines(left, right)
    pair = ttl if isinstance(ttl, tuple) else (ttl, ttl)
    if len(pair) != 2:
        raise PipelineError(f"join: ttl={ttl!r}: it is one duration, or a pair of the left and of the right rows")
    left_ttl, right_ttl = pair
    ttls_us = (left.ttl_us(left_ttl, "join"), left.ttl_us(right_ttl, "join"))
    left, right = current_rows(left, "changes"), current_rows(right, "changes")
    own, other = left.node.row_schema, right.node.row_schema
    keys = _keys(own, other, on)
    pairs = how not in ("semi", "anti")
    names = _taken(own, other, keys, suffix, where, pairs=pairs)
    if names != {name: name for name in other.names}:
        right = select(right, (), {name: col(named) for name, named in names.items()})
    inputs = (key_by(left, tuple(keys)).node, key_by(right, tuple(keys)).node)
    schema = _results(own, right.node.row_schema, keys, how, None) if pairs else own
    facts = how in ("inner", "semi") and not any(node.updates for node in inputs)
    row_type = left.node.row_type if not pairs and facts else None
    if not facts:
        if RETRACTED in schema:
            raise PipelineError(f"join: there is a column {RETRACTED!r} already; rename it before")
        schema = Schema((*schema, Field(RETRACTED, BOOLEAN)))
    joined = left.plan.add(
        RegularJoin(how, ttls_us, where, nulls_equal), inputs, schema, row_type or row_class(schema),
        event_time=all(node.event_time for node in inputs),
        keys=() if facts else _result_keys(keys, left, right if pairs else None, _same_alone(how, where, nulls_equal)),
        mode="append" if facts else "retract",
    )  # fmt: skip
    return left.of(joined)


def _same_alone(how: JoinKind, where: Expr | None, nulls_equal: bool) -> Literal["any", "null", "never"]:
    """Of which key of the join a left and a right row may both be alone."""
    if how != "full":
        return "never"
    if where is not None:
        return "any"
    return "never" if nulls_equal else "null"


def _result_keys(
    on: Iterable[str], left: Rows, right: Rows | None, same_alone: Literal["any", "null", "never"]
) -> tuple[str, ...]:
    """By which a row replaces another: the key of the join and those of both inputs; none if one has none."""
    on, keys = set(on), dict.fromkeys(on)
    nodes = [rows.node for rows in ((left, right) if right is not None else (left,))]
    for node in nodes:
        known = known_keys(node) if node.updates else None
        if known is None:
            return ()
        keys.update(dict.fromkeys(known))
    schemas = [node.schema for node in nodes]
    alike = same_alone == "any" or (same_alone == "null" and _may_be_null(on, schemas))
    return () if alike and not _tell_apart(set(keys) - on, schemas) else tuple(keys)


def _may_be_null(on: set[str], schemas: Sequence[Schema]) -> bool:
    """Whether a left and a right row may have the same key of a join with null in it."""
    return any(all(schema.field(name).nullable for schema in schemas) for name in on)


def _tell_apart(others: set[str], schemas: Sequence[Schema]) -> bool:
    """Whether the rest of the key tells a left row that is alone from a right one: of the other it is null."""
    return any(name in schema and not schema.field(name).nullable for name in others for schema in schemas)


def join_lookup(
    left: Rows, lookup: Lookup[Any], on: On, how: JoinKind, suffix: str = "_right", *, says_more: bool = False,
    named: Mapping[str, str] | None = None,
) -> Rows:  # fmt: skip
    """The join of a stream with what another system has for its keys.

    Args:
        left: the stream.
        lookup: the other system.
        on: the key columns.
        how: `"inner"` or `"left"`.
        suffix: what is put behind the name of a column of the lookup that the stream has too.
        says_more: whether anything is said of time.
        named: the columns that are asked for, by what they are called in the results. None: all but those of the key,
            which are there under the stream's names.
    """
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
    if named is None:
        names = _right_names(left.schema, lookup.schema, keys, suffix, "the lookup")
        named = {name: own for name, own in names.items() if own not in keys.values()}
    columns = tuple(named.items())
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
    return left.derive(operation, schema)


def _named(schema: Schema, columns: Iterable[tuple[str, str]]) -> Iterator[Field]:
    for name, own in columns:
        yield replace(schema.field(own), name=name)


def check_of_lookup(where: Expr | None, *, nulls_equal: bool) -> None:
    """Raise `PipelineError` if a join with a lookup is given a condition or null-safe keys."""
    if where is not None:
        raise PipelineError(
            "join: where= is for joins of two streams; filter what a join with a lookup gives, .join(lookup, on=...)"
            ".filter(...), and with how='left' set its columns to null there, with when(...).then(...)"
        )
    if nulls_equal:
        raise PipelineError("join: nulls_equal= is for joins of two streams; a lookup is not asked for a null key")


def check_in_time(other: Rows, ttl: JoinTtl) -> None:
    """Raise `PipelineError` if the right rows of a join in time are no facts, or a time to live is given."""
    if ttl is not None:
        raise PipelineError(
            "join: ttl= is for joins without within=, window= or as_of=, whose rows are kept as long as these ask for"
        )
    if other.node.mode != "append":
        raise PipelineError(
            "join: the other stream is one of updates, whose rows may be replaced after they have met others in time; "
            "leave within=, window= and as_of= out, or join what it is made of"
        )


def _check_pipelines(left: Rows, right: Rows) -> None:
    if left.plan is not right.plan:
        raise PipelineError("join: the other stream is of another pipeline; read both in one")


def _check_streams(left: Rows, right: Rows) -> None:
    _check_pipelines(left, right)
    for rows, which in ((left, "this stream"), (right, "the other stream")):
        if not rows.node.event_time:
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


def _taken(
    left: Schema, right: Schema, keys: Mapping[str, str], suffix: str, where: Expr | None, *, pairs: bool
) -> dict[str, str]:
    """What is taken of the right input for results, if there are pairs, and for the condition, as `_right_names`.

    Raises:
        PipelineError: the condition is not one on the columns of both, or not the same whenever it is computed.
    """
    names = _right_names(left, right, keys, suffix if pairs or where is not None else None)
    if where is None:
        return names
    others = tuple((name, own) for name, own in names.items() if name not in keys)
    check_predicate(where, Schema((*left, *_named(right, others))), "join: where")
    if (free := free_function(where.node)) is not None:
        raise PipelineError(
            f"join: {free} gives another value whenever it is computed, and a pair has to be retracted as it was added; "
            "compute it of the rows of one side before"
        )
    read = columns_of(where)
    return {name: own for name, own in names.items() if pairs or name in keys or name in read}


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
