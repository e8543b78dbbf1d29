"""What of a source a pipeline looks at: the columns that matter, and which rows it drops at once.

One rule for all engines, taken from the logical plan. A source may use it to read less (`Source.narrowed`); what it hands
out must be as if it had not, so the operators stay, and columns that nobody looks at are null.

Rows that a filter drops move event time all the same. So rows are only left out where nobody can see that: nothing behind
the source looks at event time. A batch engine that has the event time of each split for itself may leave out whole
splits even then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.connectors.base import Source, Wanted
from penstock.connectors.watermarks import BoundedOutOfOrderness
from penstock.expressions import Expr, columns_of, conditions_of
from penstock.expressions.nodes import Column, without_alias
from penstock.graph.logical import (
    As,
    AssignEventTime,
    AssignProcessingTime,
    DeadLetters,
    Explode,
    Filter,
    KeyBy,
    LogicalPlan,
    LookupJoin,
    MapAsync,
    MapBatches,
    MapRows,
    Node,
    Project,
    Read,
    RunningAggregate,
    SessionWindow,
    Union,
    WindowAggregate,
    Write,
    ancestors,
)

_TIMELESS: Final = (
    Project
    | Filter
    | Explode
    | MapRows
    | MapBatches
    | MapAsync
    | LookupJoin
    | As
    | Union
    | KeyBy
    | RunningAggregate
    | DeadLetters
    | Write
)
"""Verbs that give the same rows whatever event time is."""


def wanted_of(plan: LogicalPlan, read: Node, *, time_per_split: bool = False) -> Wanted:
    """What of the source of `read` is looked at.

    Args:
        plan: the pipeline.
        read: a node of it with a `Read`.
        time_per_split: whether no split's event time has to do with another split, now or in a run after this one.
    """
    assert isinstance(read.operation, Read)
    consumers = _Consumers(plan)
    predicate, whole_splits = consumers.predicate(read), False
    if predicate is not None and consumers.sees_event_time(read):
        whole_splits = True
        predicate = predicate if time_per_split else None
    return Wanted(_read_columns(consumers, read), predicate, whole_splits, plan.window_reach_us)


def narrowed(plan: LogicalPlan, read: Node, *, time_per_split: bool = False) -> Source:
    """The source of `read`, reading no more than the pipeline looks at (see `wanted_of`)."""
    assert isinstance(read.operation, Read)
    return read.operation.source.narrowed(wanted_of(plan, read, time_per_split=time_per_split))


def said_of_reading(plan: LogicalPlan, read: Node, *, time_per_split: bool = False) -> dict[str, str]:
    """For `penstock plan`: what is read less than everything."""
    assert isinstance(read.operation, Read)
    source = read.operation.source
    wanted = wanted_of(plan, read, time_per_split=time_per_split)
    return dict(source.narrowed(wanted).describe_narrowing()) | _not_skipped(plan, read, wanted)


def _not_skipped(plan: LogicalPlan, read: Node, wanted: Wanted) -> dict[str, str]:
    predicate = _Consumers(plan).predicate(read)
    if predicate is None or wanted.predicate is not None:
        return {}
    assert isinstance(read.operation, Read)
    if not read.operation.source.narrowed(Wanted(predicate=predicate)).describe_narrowing():
        return {}
    return {"reads": "rows that the filter drops, too: they move event time, which operators behind it look at"}


def _read_columns(consumers: _Consumers, read: Node) -> frozenset[str] | None:
    assert isinstance(read.operation, Read)
    event_time = read.operation.source.event_time
    if event_time is not None and not isinstance(event_time.watermarks, BoundedOutOfOrderness):
        return None  # a user's function looks at rows
    needed = consumers.needed(read)
    if needed is not None and event_time is not None:
        needed |= columns_of(event_time.form.expression)
    return needed if needed is None or not needed >= set(read.schema.names) else None


class _Consumers:
    """The part of a plan that is written somewhere, from its producers on."""

    def __init__(self, plan: LogicalPlan) -> None:
        writes = [node for node in plan if isinstance(node.operation, Write)]
        self._behind: dict[Node, list[Node]] = {}
        for node in dict.fromkeys(each for write in writes for each in (write, *ancestors(write))):
            for producer in node.inputs:
                self._behind.setdefault(producer, []).append(node)

    def needed(self, node: Node) -> frozenset[str] | None:
        """The columns of a node's rows that matter behind it; None for all."""
        found = frozenset[str]()
        for consumer in self._behind.get(node, ()):
            columns = self._needed_by(consumer)
            if columns is None:
                return None
            found |= columns
        return found & set(node.schema.names)

    def _needed_by(self, node: Node) -> frozenset[str] | None:
        match node.operation:
            case DeadLetters():
                return frozenset()
            case WindowAggregate(late=None, aggregates=named) | RunningAggregate(aggregates=named):
                return frozenset(node.inputs[0].keys) | _columns([expr for _, expr in named]) | _of_gap(node)
            case _:
                behind = self.needed(node)
                if behind is None and isinstance(node.operation, Project):
                    behind = frozenset(node.schema.names)
                return None if behind is None else self._passed(node, behind)

    def _passed(self, node: Node, behind: frozenset[str]) -> frozenset[str] | None:
        """What an operator looks at whose rows are those that it got; None for all."""
        match node.operation:
            case Filter(predicate=predicate):
                return behind | columns_of(predicate)
            case Project(columns=named):
                # A value that nobody needs is computed all the same, and may fail; a column is only handed on.
                return _columns([expr for name, expr in named if name in behind or not _is_column(expr)])
            case Explode(columns=columns):
                return behind | set(columns)
            case KeyBy():
                return behind | set(node.keys)
            case AssignEventTime(event_time=event_time) if isinstance(event_time.watermarks, BoundedOutOfOrderness):
                return behind | columns_of(event_time.form.expression)
            case As() | Union() | AssignProcessingTime():
                return behind
            case _:
                return None

    def predicate(self, read: Node) -> Expr | None:
        """What every row fulfils that anything becomes of; None if that is not known."""
        found: list[Expr] = []
        node = read
        while True:
            behind = [each for each in self._behind.get(node, ()) if not isinstance(each.operation, DeadLetters)]
            if len(behind) != 1:
                break
            node = behind[0]
            match node.operation:
                case Filter(predicate=predicate):
                    found += conditions_of(predicate)
                case As():
                    pass
                case _:
                    break
        return _all_of(found)

    def sees_event_time(self, read: Node) -> bool:
        """Whether what becomes of rows may depend on how far event time has come."""
        assert isinstance(read.operation, Read)
        event_time = read.operation.source.event_time
        if event_time is None:
            return False
        return event_time.alignment is not None or any(
            not isinstance(node.operation, _TIMELESS) for node in self._all_behind(read)
        )

    def _all_behind(self, node: Node) -> Iterator[Node]:
        for consumer in self._behind.get(node, ()):
            yield consumer
            yield from self._all_behind(consumer)


def _of_gap(node: Node) -> frozenset[str]:
    match node.operation:
        case WindowAggregate(window=SessionWindow(gap=gap)) if gap is not None:
            return columns_of(gap)
        case _:
            return frozenset()


def _columns(expressions: Iterable[Expr]) -> frozenset[str]:
    return frozenset[str]().union(*map(columns_of, expressions))


def _is_column(expr: Expr) -> bool:
    return isinstance(without_alias(expr.node), Column)


def _all_of(conditions: list[Expr]) -> Expr | None:
    found: Expr | None = None
    for condition in conditions:
        found = condition if found is None else found & condition
    return found
