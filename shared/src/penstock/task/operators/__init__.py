"""Operators: what the verbs of a pipeline do to batches. One module per kind; `build_operator` finds the class."""

from __future__ import annotations

from penstock.errors import ProtocolError
from penstock.functions.process_functions import BROADCAST, BroadcastProcess, Process, takes_batches
from penstock.functions.windows.definitions import AsOf, SessionWindow
from penstock.functions.windows.partials import PartialProcess
from penstock.plan.logical import Node
from penstock.plan.operations.aggregate_changes import AggregateChanges
from penstock.plan.operations.assign_windows import AssignWindows
from penstock.plan.operations.call_function import CallFunction
from penstock.plan.operations.check import Check
from penstock.plan.operations.deduplicate import Deduplicate
from penstock.plan.operations.event_time import AssignEventTime, AssignProcessingTime
from penstock.plan.operations.expand import Expand
from penstock.plan.operations.explode import Explode
from penstock.plan.operations.filter import Filter
from penstock.plan.operations.join import Join
from penstock.plan.operations.last_rows import LastRows
from penstock.plan.operations.lookup_join import LookupJoin
from penstock.plan.operations.map_async import MapAsync
from penstock.plan.operations.map_batches import MapBatches
from penstock.plan.operations.map_rows import MapRows
from penstock.plan.operations.match_rows import MatchRows
from penstock.plan.operations.materialize import Materialize
from penstock.plan.operations.over import Over
from penstock.plan.operations.over_current import OverCurrent
from penstock.plan.operations.process_rows import ProcessRows
from penstock.plan.operations.project import Project
from penstock.plan.operations.regular_join import RegularJoin
from penstock.plan.operations.running_aggregate import RunningAggregate
from penstock.plan.operations.running_reduce import RunningReduce
from penstock.plan.operations.sort import Sort
from penstock.plan.operations.temporal_filter import TemporalFilter
from penstock.plan.operations.to_changes import ToChanges
from penstock.plan.operations.top import Top
from penstock.plan.operations.window_aggregate import WindowAggregate
from penstock.plan.operations.window_changes import WindowChanges
from penstock.plan.operations.window_rows import WindowRows
from penstock.task.operator import Operator

__all__ = ["build_operator"]


def build_operator(node: Node) -> Operator:
    """A new operator for one subtask of a node.

    Imports are made here: a job that maps rows does not load the window operators.

    Raises:
        PipelineError: the node cannot be run as it is written.
        ProtocolError: the operation has no operator: it is a source, a sink or structure (key_by, union, ...).
    """
    match node.operation:
        case Project():
            from penstock.task.operators.columnar import ProjectOperator

            return ProjectOperator(node)
        case AssignEventTime(delays_input=True):
            from penstock.task.operators.event_time import DelayingEventTimeOperator

            return DelayingEventTimeOperator(node)
        case AssignEventTime():
            from penstock.task.operators.event_time import EventTimeOperator

            return EventTimeOperator(node)
        case AssignProcessingTime():
            from penstock.task.operators.processing_time import ProcessingTimeOperator

            return ProcessingTimeOperator(node)
        case Filter():
            from penstock.task.operators.columnar import FilterOperator

            return FilterOperator(node)
        case Check():
            from penstock.task.operators.columnar import CheckOperator

            return CheckOperator(node)
        case Expand():
            from penstock.task.operators.columnar import ExpandOperator

            return ExpandOperator(node)
        case Explode():
            from penstock.task.operators.columnar import ExplodeOperator

            return ExplodeOperator(node)
        case MapRows(flat=flat):
            from penstock.task.operators.rowwise import FlatMapOperator, MapOperator

            return FlatMapOperator(node) if flat else MapOperator(node)
        case CallFunction():
            from penstock.task.operators.call_function import CallFunctionOperator

            return CallFunctionOperator(node)
        case MapBatches():
            from penstock.task.operators.rowwise import MapBatchesOperator

            return MapBatchesOperator(node)
        case MapAsync():
            from penstock.task.operators.map_async import MapAsyncOperator

            return MapAsyncOperator(node)
        case LookupJoin():
            from penstock.task.operators.lookup_join import LookupJoinOperator

            return LookupJoinOperator(node)
        case WindowRows(process=PartialProcess()):
            from penstock.task.operators.window_partials import WindowPartialsOperator

            return WindowPartialsOperator(node)
        case WindowRows():
            from penstock.task.operators.window_rows import WindowRowsOperator

            return WindowRowsOperator(node)
        case ProcessRows(process=process) if isinstance(process, BROADCAST):
            from penstock.task.operators.broadcast_process import (
                BatchBroadcastProcessOperator,
                BroadcastProcessOperator,
                KeyedBatchBroadcastProcessOperator,
                KeyedBroadcastProcessOperator,
            )

            keyed, batches = not isinstance(process, BroadcastProcess), takes_batches(process)
            if batches:
                return KeyedBatchBroadcastProcessOperator(node) if keyed else BatchBroadcastProcessOperator(node)
            return KeyedBroadcastProcessOperator(node) if keyed else BroadcastProcessOperator(node)
        case ProcessRows(process=process):
            from penstock.task.operators.batch_process import BatchProcessOperator, KeyedBatchProcessOperator
            from penstock.task.operators.process import KeyedProcessOperator, ProcessOperator

            if takes_batches(process):
                return BatchProcessOperator(node) if isinstance(process, Process) else KeyedBatchProcessOperator(node)
            return ProcessOperator(node) if isinstance(process, Process) else KeyedProcessOperator(node)
        case WindowAggregate(window=SessionWindow()):
            from penstock.task.operators.session_window import SessionWindowOperator

            return SessionWindowOperator(node)
        case WindowAggregate():
            from penstock.task.operators.window_aggregate import WindowAggregateOperator

            return WindowAggregateOperator(node)
        case RunningAggregate():
            from penstock.task.operators.running import RunningAggregateOperator

            return RunningAggregateOperator(node)
        case Over():
            from penstock.task.operators.over import OverOperator

            return OverOperator(node)
        case MatchRows():
            from penstock.task.operators.match import MatchOperator

            return MatchOperator(node)
        case OverCurrent():
            from penstock.task.operators.over_current import OverCurrentOperator

            return OverCurrentOperator(node)
        case Deduplicate():
            from penstock.task.operators.deduplicate import DeduplicateOperator

            return DeduplicateOperator(node)
        case Top() as top if top.keeps_all(node.inputs[0]):
            from penstock.task.operators.top_changes import TopOfChangesOperator

            return TopOfChangesOperator(node)
        case Top():
            from penstock.task.operators.top import TopOperator

            return TopOperator(node)
        case Join(time=AsOf()):
            from penstock.task.operators.as_of_join import AsOfJoinOperator

            return AsOfJoinOperator(node)
        case Join():
            from penstock.task.operators.join import JoinOperator

            return JoinOperator(node)
        case RegularJoin():
            from penstock.task.operators.regular_join import RegularJoinOperator

            return RegularJoinOperator(node)
        case Materialize():
            from penstock.task.operators.materialize import MaterializeOperator

            return MaterializeOperator(node)
        case LastRows(all_that_hold=True):
            from penstock.task.operators.final import RowsThatHoldOperator

            return RowsThatHoldOperator(node)
        case LastRows():
            from penstock.task.operators.final import FinalOperator

            return FinalOperator(node)
        case ToChanges():
            from penstock.task.operators.changes import ChangesOperator

            return ChangesOperator(node)
        case TemporalFilter():
            from penstock.task.operators.temporal_filter import TemporalFilterOperator

            return TemporalFilterOperator(node)
        case Sort():
            from penstock.task.operators.sort import SortOperator

            return SortOperator(node)
        case AggregateChanges(copies=copies):
            from penstock.task.operators.aggregate_changes import AggregateChangesOperator, CopiesOperator

            return AggregateChangesOperator(node) if copies is None else CopiesOperator(node)
        case AssignWindows():
            from penstock.task.operators.assign_windows import AssignWindowsOperator

            return AssignWindowsOperator(node)
        case WindowChanges():
            from penstock.task.operators.window_changes import WindowChangesOperator

            return WindowChangesOperator(node)
        case RunningReduce():
            from penstock.task.operators.running import RunningReduceOperator

            return RunningReduceOperator(node)
        case operation:
            kind = type(operation).__name__
            raise ProtocolError(f"node {node.id} ({node.verb}) is {node.traits.role}: no operator runs {kind}")
