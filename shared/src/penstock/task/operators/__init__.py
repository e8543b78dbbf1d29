"""Operators: what the verbs of a pipeline do to batches. One module per kind; `build_operator` finds the class."""

from __future__ import annotations

from penstock.errors import ProtocolError
from penstock.graph import logical
from penstock.process_functions import BROADCAST, BroadcastProcess, Process, takes_batches
from penstock.task.operator import Operator
from penstock.window_accounts import PartialProcess

__all__ = ["build_operator"]


def build_operator(node: logical.Node) -> Operator:
    """A new operator for one subtask of a node.

    Imports are made here: a job that maps rows does not load the window operators.

    Raises:
        PipelineError: the node cannot be run as it is written.
        ProtocolError: the node is structure (source, sink, key_by, union, ...), which has no operator.
    """
    match node.operation:
        case logical.Project():
            from penstock.task.operators.columnar import ProjectOperator

            return ProjectOperator(node)
        case logical.AssignEventTime():
            from penstock.task.operators.event_time import EventTimeOperator

            return EventTimeOperator(node)
        case logical.AssignProcessingTime():
            from penstock.task.operators.processing_time import ProcessingTimeOperator

            return ProcessingTimeOperator(node)
        case logical.Filter():
            from penstock.task.operators.columnar import FilterOperator

            return FilterOperator(node)
        case logical.Explode():
            from penstock.task.operators.columnar import ExplodeOperator

            return ExplodeOperator(node)
        case logical.MapRows(flat=flat):
            from penstock.task.operators.rowwise import FlatMapOperator, MapOperator

            return FlatMapOperator(node) if flat else MapOperator(node)
        case logical.MapBatches():
            from penstock.task.operators.rowwise import MapBatchesOperator

            return MapBatchesOperator(node)
        case logical.MapAsync():
            from penstock.task.operators.map_async import MapAsyncOperator

            return MapAsyncOperator(node)
        case logical.LookupJoin():
            from penstock.task.operators.lookup_join import LookupJoinOperator

            return LookupJoinOperator(node)
        case logical.WindowRows(process=PartialProcess()):
            from penstock.task.operators.window_partials import WindowPartialsOperator

            return WindowPartialsOperator(node)
        case logical.WindowRows():
            from penstock.task.operators.window_rows import WindowRowsOperator

            return WindowRowsOperator(node)
        case logical.ProcessRows(process=process) if isinstance(process, BROADCAST):
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
        case logical.ProcessRows(process=process):
            from penstock.task.operators.batch_process import BatchProcessOperator, KeyedBatchProcessOperator
            from penstock.task.operators.process import KeyedProcessOperator, ProcessOperator

            if takes_batches(process):
                return BatchProcessOperator(node) if isinstance(process, Process) else KeyedBatchProcessOperator(node)
            return ProcessOperator(node) if isinstance(process, Process) else KeyedProcessOperator(node)
        case logical.WindowAggregate(window=logical.SessionWindow()):
            from penstock.task.operators.session_window import SessionWindowOperator

            return SessionWindowOperator(node)
        case logical.WindowAggregate():
            from penstock.task.operators.window_aggregate import WindowAggregateOperator

            return WindowAggregateOperator(node)
        case logical.RunningAggregate():
            from penstock.task.operators.running import RunningAggregateOperator

            return RunningAggregateOperator(node)
        case logical.Over():
            from penstock.task.operators.over import OverOperator

            return OverOperator(node)
        case logical.Deduplicate():
            from penstock.task.operators.deduplicate import DeduplicateOperator

            return DeduplicateOperator(node)
        case logical.Top() if node.mode == "retract":
            from penstock.task.operators.top_changes import TopOfChangesOperator

            return TopOfChangesOperator(node)
        case logical.Top():
            from penstock.task.operators.top import TopOperator

            return TopOperator(node)
        case logical.Join(time=logical.AsOf()):
            from penstock.task.operators.as_of_join import AsOfJoinOperator

            return AsOfJoinOperator(node)
        case logical.Join():
            from penstock.task.operators.join import JoinOperator

            return JoinOperator(node)
        case logical.RegularJoin():
            from penstock.task.operators.regular_join import RegularJoinOperator

            return RegularJoinOperator(node)
        case logical.Materialize():
            from penstock.task.operators.materialize import MaterializeOperator

            return MaterializeOperator(node)
        case logical.LastRows(all_that_hold=True):
            from penstock.task.operators.final import RowsThatHoldOperator

            return RowsThatHoldOperator(node)
        case logical.LastRows():
            from penstock.task.operators.final import FinalOperator

            return FinalOperator(node)
        case logical.ToChanges():
            from penstock.task.operators.changes import ChangesOperator

            return ChangesOperator(node)
        case logical.AggregateChanges():
            from penstock.task.operators.aggregate_changes import AggregateChangesOperator

            return AggregateChangesOperator(node)
        case logical.AssignWindows():
            from penstock.task.operators.assign_windows import AssignWindowsOperator

            return AssignWindowsOperator(node)
        case logical.WindowChanges():
            from penstock.task.operators.window_changes import WindowChangesOperator

            return WindowChangesOperator(node)
        case logical.RunningReduce():
            from penstock.task.operators.running import RunningReduceOperator

            return RunningReduceOperator(node)
        case (
            logical.Read()
            | logical.As()
            | logical.Union()
            | logical.KeyBy()
            | logical.Side()
            | logical.DeadLetters()
            | logical.Write()
        ):
            raise ProtocolError(f"node {node.id} ({node.verb}) is structure: no operator runs it")
