"""What of a source a pipeline looks at: the columns that matter, and which rows it drops at once.

One rule for all engines, taken from the logical plan. A source may use it to read less (`Source.narrowed`); what it hands
out must be as if it had not, so the operators stay, and columns that nobody looks at are null.

Rows that a filter drops move event time all the same. So rows are only left out where nobody can see that: nothing behind
the source looks at event time. A batch engine that has the event time of each split for itself may leave out whole
splits even then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.connectors.base import ScanRequest, Source
from penstock.connectors.watermarks import BoundedOutOfOrderness
from penstock.expressions import Expr, columns_of, conditions_of
from penstock.expressions.nodes import renamed
from penstock.plan.logical import LogicalPlan, Node, ancestors, reached
from penstock.plan.operation import Columns
from penstock.plan.operations.as_ import As
from penstock.plan.operations.dead_letters import DeadLetters
from penstock.plan.operations.filter import Filter
from penstock.plan.operations.project import Project
from penstock.plan.operations.read import Read
from penstock.plan.operations.union import Union
from penstock.plan.operations.write import Write


def scan_request_of(plan: LogicalPlan, read: Node, *, time_per_split: bool = False) -> ScanRequest:
    """What of the source of `read` is looked at.

    Args:
        plan: the pipeline.
        read: a node of it with a `Read`.
        time_per_split: whether no split's event time has to do with another split, now or in a run after this one.
    """
    return _scan_request(Consumers(plan), plan, read, time_per_split=time_per_split)


def _scan_request(consumers: Consumers, plan: LogicalPlan, read: Node, *, time_per_split: bool) -> ScanRequest:
    predicate, whole_splits = consumers.predicate(read), False
    if predicate is not None and consumers.sees_event_time(read):
        whole_splits = True
        predicate = predicate if time_per_split else None
    return ScanRequest(_read_columns(consumers, read), predicate, whole_splits, plan.window_reach_us)


def narrowed(plan: LogicalPlan, read: Node, *, time_per_split: bool = False) -> Source:
    """The source of `read`, reading no more than the pipeline looks at (see `scan_request_of`)."""
    assert isinstance(read.operation, Read)
    return read.operation.source.narrowed(scan_request_of(plan, read, time_per_split=time_per_split))


def said_of_reading(plan: LogicalPlan, read: Node, *, time_per_split: bool = False) -> dict[str, str]:
    """For `penstock plan`: what is read less than everything."""
    assert isinstance(read.operation, Read)
    source, consumers = read.operation.source, Consumers(plan)
    request = _scan_request(consumers, plan, read, time_per_split=time_per_split)
    return dict(source.narrowed(request).describe_narrowing()) | _not_skipped(consumers, read, request)


def _not_skipped(consumers: Consumers, read: Node, request: ScanRequest) -> dict[str, str]:
    predicate = consumers.predicate(read)
    if predicate is None or request.predicate is not None:
        return {}
    assert isinstance(read.operation, Read)
    if not read.operation.source.narrowed(ScanRequest(predicate=predicate)).describe_narrowing():
        return {}
    return {"reads": "rows that the filter drops, too: they move event time, which operators behind it look at"}


def _read_columns(consumers: Consumers, read: Node) -> Columns:
    assert isinstance(read.operation, Read)
    event_time = read.operation.source.event_time
    if event_time is not None and not isinstance(event_time.watermarks, BoundedOutOfOrderness):
        return None  # a user's function looks at rows
    needed = consumers.needed(read)
    if needed is not None and event_time is not None:
        needed |= columns_of(event_time.form.expression)
    return needed if needed is None or not needed >= set(read.schema.names) else None


class Consumers:
    """The part of a plan that is written somewhere, from its producers on."""

    def __init__(self, plan: LogicalPlan) -> None:
        writes = [node for node in plan if isinstance(node.operation, Write)]
        self._behind: dict[Node, list[Node]] = {}
        for node in dict.fromkeys(each for write in writes for each in (write, *ancestors(write))):
            for producer in node.inputs:
                self._behind.setdefault(producer, []).append(node)
        self._needed: dict[Node, Columns] = {}
        for node in reversed(plan.nodes):  # consumers come behind their producers
            self._needed[node] = self._needed_behind(node)

    def needed(self, node: Node) -> Columns:
        """The columns of a node's rows that matter behind it; None for all."""
        return self._needed[node]

    def _needed_behind(self, node: Node) -> Columns:
        found = frozenset[str]()
        for consumer in self._behind.get(node, ()):
            columns = self.read_by(consumer)
            if columns is None:
                return None
            found |= columns
        return found & {*node.schema.names}

    def read_by(self, consumer: Node) -> Columns:
        """The columns of its inputs that a node needs: at least one, because a frame without columns has no rows.

        None for all.
        """
        columns = consumer.operation.columns_needed(consumer, self.needed(consumer))
        takes_rows = not isinstance(consumer.operation, DeadLetters)
        return frozenset(consumer.inputs[0].schema.names[:1]) if takes_rows and columns == frozenset() else columns

    def predicate(self, read: Node) -> Expr | None:
        """What every row fulfils that anything becomes of; None if that is not known.

        Filters count as long as all rows of the source come to them, and nothing else happens to rows on the way: columns
        may be left out and renamed, and rows united with others.
        """
        found: list[Expr] = []
        names = {name: name for name in read.schema.names}
        node = read
        while (behind := self._only_consumer(node)) is not None:
            node = behind
            match node.operation:
                case Filter(predicate=predicate):
                    found += _over_names(conditions_of(predicate), names)
                case Project() as project if not project.computes:
                    names = {name: names[former] for name, former in project.kept.items() if former in names}
                case As() | Union():
                    pass
                case _:
                    break
        return _all_of(found)

    def _only_consumer(self, node: Node) -> Node | None:
        behind = [each for each in self._behind.get(node, ()) if not isinstance(each.operation, DeadLetters)]
        return behind[0] if len(behind) == 1 else None

    def sees_event_time(self, read: Node) -> bool:
        """Whether what becomes of rows may depend on how far event time has come."""
        assert isinstance(read.operation, Read)
        event_time = read.operation.source.event_time
        if event_time is None:
            return False
        return event_time.alignment is not None or any(node.traits.time_dependent for node in self._all_behind(read))

    def _all_behind(self, node: Node) -> Iterator[Node]:
        return reached(self._behind.get(node, ()), lambda each: self._behind.get(each, ()))


def _over_names(conditions: list[Expr], names: Mapping[str, str]) -> Iterator[Expr]:
    """Those conditions that read nothing but columns of the source, over their names there."""
    for condition in conditions:
        if columns_of(condition) <= names.keys():
            yield Expr(renamed(condition.node, names))


def _all_of(conditions: list[Expr]) -> Expr | None:
    found: Expr | None = None
    for condition in conditions:
        found = condition if found is None else found & condition
    return found
