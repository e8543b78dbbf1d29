"""The order in which rows arrived, as far as Spark keeps it: the watermark that the split had reached at each row.

Spark sorts the rows of a stage by event time, so none is late there. But where a row is read, the order of its split is
known, and event time advances by it as in streaming (`reading`). By that watermark the rows that streaming would have
found late are counted on their way to an operator. They take part in its results all the same: a recomputation corrects
what was late.

Where a pipeline reads the late rows of an operator, this operator and the process functions in front of it are fed in
the order of that watermark instead of event time, and rows carry the watermark across exchanges. The rows of a split
then keep their order, splits are interleaved, and the streaming operator itself decides which rows are late. An operator
that gives rows new event times ends what is known of their order: behind it no row is late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.connectors.base import Sink
from penstock.connectors.watermarks import BoundedOutOfOrderness
from penstock.graph.jobgraph import JobEdge, JobGraph, JobOperator, JobVertex
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.event_time import AssignEventTime
from penstock.plan.operations.read import Read
from penstock.plan.operations.write import Write
from penstock.spark.late_rows import late_rows_read
from penstock.spark.native import NativeWindow
from penstock.spark.replay import is_timed
from penstock.spark.wire import StageEdge
from penstock.task.operators.lateness import lateness_of


def _sends(sink: Sink) -> bool:
    """Whether others see what a task writes while it runs."""
    return sink.guarantee == "at-least-once"


class ArrivalOrderAnalysis:
    """Which stages of a graph depend on the order of arrival, and what edges and tasks have to know for it."""

    def __init__(self, graph: JobGraph, plan: LogicalPlan) -> None:
        self._reads_late = frozenset(late_rows_read(graph, plan))
        self.plan = replace(plan, looking=self._reads_late)
        """The plan in which rows on the way to these operators tell their watermarks."""
        self._to_late = plan.leading_to(lambda node: node.id in self._reads_late)
        self._to_judges = plan.leading_to(lambda node: lateness_of(node) is not None)

    def is_fed_in_arrival_order(self, vertex: JobVertex) -> bool:
        """Whether the rows are sorted by the watermark that their split had reached, instead of by event time."""
        head = self._head(vertex)
        if head.id in self._reads_late:
            return True
        return not vertex.is_source and head.id in self._to_late and head.traits.row_times == "kept"

    def read_as_a_whole(self, vertex: JobVertex, *, keeps: bool) -> str:
        """Why no split of a source may be read in parts, side by side, as the end of a sentence; empty if it may.

        Parts keep the place of their rows in the split, but event time advances in each of them by itself.

        Args:
            vertex: that of the source.
            keeps: whether the run leaves a savepoint.
        """
        nodes = [self.plan.node(operator.node) for operator in vertex.operators]
        if any(node.id in self._to_late for node in nodes):
            return "rows are late by the order of their split, and the pipeline reads late rows"
        if any(node.traits.reads_watermarks for node in nodes):
            return "a function gets the rows of a split one after the other"
        if any(isinstance(node.operation, Write) and _sends(node.operation.sink) for node in nodes):
            return "tasks send the rows of a split one after the other to a sink"
        read = nodes[0].operation
        event_time = read.source.event_time if isinstance(read, Read) else None
        known = event_time is None or isinstance(event_time.watermarks, BoundedOutOfOrderness)
        if keeps and (not known or any(isinstance(node.operation, AssignEventTime) for node in nodes)):
            return "how far event time has come is kept, which a function of the user's says"
        return ""

    def carries_watermarks(self, consumer: JobVertex) -> bool:
        """Whether rows carry the watermark across the exchange to this vertex, which sorts by it or passes it on."""
        head = self._head(consumer)
        # Operators with state get their rows sorted: the order of a split says nothing behind them.
        forwards = head.traits.row_times == "kept" and not head.traits.knows_time
        passes_on = head.id in self._to_judges and forwards
        return passes_on or self.is_fed_in_arrival_order(consumer)

    def edge(
        self,
        producer: JobVertex,
        consumer: JobVertex,
        edge: JobEdge,
        native: NativeWindow | None,
        restored: Callable[[JobVertex], Mapping[int, int]],
        *,
        framed: bool = True,
    ) -> StageEdge:
        """An edge as the tasks of its producer see it.

        Args:
            producer, consumer, edge: which edge it is.
            native: the window at the head of the consumer, if Spark computes it.
            restored: tells how far event time had come for the key groups in the state that a vertex begins with.
            framed: whether rows cross in frames, unless they are partials; if not, Spark sees their columns.
        """
        head, known = self._head(consumer), self.is_known(producer)
        judged = (
            known and edge.event_time and lateness_of(head) is not None and not self.is_fed_in_arrival_order(consumer)
        )
        return StageEdge(
            edge,
            consumer.parallelism,
            consumer.max_parallelism,
            native,
            watermarks=self.carries_watermarks(consumer),
            known=known,
            framed=framed and native is None,
            by_arrival=self.is_fed_in_arrival_order(consumer),
            judging=head.id if judged else "",
            restored=restored(consumer) if judged else {},
        )

    def is_known(self, producer: JobVertex) -> bool:
        """Whether the watermarks that rows of this vertex have follow from the order of their split.

        Partitions of a DataFrame have no order, and a generator behind an exchange sees an order that no stream has.
        """
        operations = [self.plan.node(operator.node).operation for operator in producer.operators]
        match operations[0]:
            case Read(source=source):
                return not source.on_spark_alone
            case _:
                return not any(isinstance(operation, AssignEventTime) for operation in operations)

    def said_of_order(self, vertex: JobVertex, operator: JobOperator) -> str:
        """What the order of arrival decides of an operator's rows, and in which order they come; empty if nothing."""
        node = self.plan.node(operator.node)
        decided = node.traits.arrival
        if isinstance(node.operation, AssignEventTime):
            if node.id in self._to_judges and not self.is_known(vertex):
                return "no row is late behind it: the order in which rows come to it is that of an exchange"
            return ""
        return f"the order of arrival decides {decided}; {self._order(vertex)}" if decided else ""

    def said_of_late_rows(self, vertex: JobVertex, operator: JobOperator) -> str:
        """What becomes of rows that a stream would find late for this operator; empty if it finds none late."""
        if operator is not vertex.operators[0] or lateness_of(self._head(vertex)) is None:
            return ""
        return (
            "late rows go aside, as in a stream"
            if self.is_fed_in_arrival_order(vertex)
            else "late rows take part, counted"
        )

    def _order(self, vertex: JobVertex) -> str:
        if vertex.is_source or self.is_fed_in_arrival_order(vertex):
            return "rows come here as in their split"
        if not is_timed(vertex):
            return "rows come here split after split"
        ordered = all(self.plan.comes_in_order(self.plan.node(edge.link.source)) for edge in vertex.inputs)
        return "rows come here by event time" + (", as its sources say they do" if ordered else "")

    def _head(self, vertex: JobVertex) -> Node:
        return self.plan.node(vertex.operators[0].node)
