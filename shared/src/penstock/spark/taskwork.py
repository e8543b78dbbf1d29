"""What the chains of one task share: its outputs, its sinks, its counts; and that there is one chain at a time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa

from penstock.errors import PipelineError, ProtocolError
from penstock.graph.jobgraph import JobVertex
from penstock.plan.logical import LogicalPlan, Node
from penstock.protocol.keygroups import KeyGroupRange, key_group_range
from penstock.protocol.messages import OperatorCounter
from penstock.runs.run_log import LATE_ROWS_KEPT
from penstock.savepoint.places import place_of
from penstock.spark.native import NativeWindow
from penstock.spark.outputs import StageOutputs
from penstock.spark.partials import MergedWindows, PartialOutput
from penstock.spark.sinks import TaskSinks
from penstock.spark.state import NO_STATE, Keeping, Restoring, StageState, kept_runs
from penstock.spark.state_passthrough import LEAST_BYTES, ActiveKeys, Segments, StatePassthrough, is_by_key_alone
from penstock.spark.wire import StageEdge
from penstock.task.chain import Chain, build_chain
from penstock.task.operator import Operator, RestoredState
from penstock.task.operators import build_operator

if TYPE_CHECKING:
    import polars as pl


class TaskWork:
    """The chains of one task with what they share: outputs, sinks, counts."""

    def __init__(
        self,
        vertex: JobVertex,
        plan: LogicalPlan,
        edges: tuple[StageEdge, ...],
        subtask: int,
        attempt: str,
        attempt_number: int,
        staging: str,
        state: StageState = NO_STATE,
        native: NativeWindow | None = None,
        by_arrival: bool = False,
        watermarks: bool = False,
        part: int = 0,
    ) -> None:
        """`native` is the window at the head of the vertex if Spark computes it; `watermarks`: rows carry theirs across
        the exchange; `by_arrival`: they come in the order of these; `part`: see `TaskSinks`."""
        self.by_arrival = by_arrival
        self.watermarks = watermarks
        self.vertex = vertex
        self.subtask = subtask
        self.plan = plan
        self.outputs = StageOutputs(edges, subtask, plan)
        self._native = native
        self._sinks = TaskSinks(vertex, plan, subtask, attempt, attempt_number, staging, self.outputs.report, part)
        self._counts: dict[str, dict[str, int]] = {}
        self._last = state.watermark
        self._checkpoint = state.checkpoint
        self.restoring = Restoring(state.saved, subtask, vertex.parallelism) if state.saved is not None else None
        """What operators begin with, if not with nothing."""
        prefix = f"{attempt}-{vertex.id}-{subtask}"
        self._keeping = Keeping(state.folder, prefix) if state.folder and not vertex.is_source else None
        self._named = self._build_on(state)
        """How many runs of its head's state what is left is a delta upon."""
        self.chain: Chain | None = None
        """The chain at work; never more than one."""
        self._passthrough: StatePassthrough | None = None
        """The state of inactive keys, which its head is not given."""
        self._active_keys: ActiveKeys | None = None

    def open_chain(self, groups: KeyGroupRange, rows: Sequence[pl.DataFrame] | None = None) -> Chain:
        """A fresh chain for these key groups; the one before must be closed. `rows` are all that will come, if known."""
        if self.chain is not None:
            raise ProtocolError(f"{self.vertex.id}: a chain was opened while another one is at work")
        self._choose_keys(groups, rows)
        self.chain = build_chain(
            self.vertex,
            self.plan,
            self.subtask,
            groups,
            now_us,
            self._restored(groups),
            self._sinks.open,
            {},
            [(output.edge.edge.link.source, output.edge.edge.link.tag, output) for output in self.outputs.edges],
            self._build,
        )
        return self.chain

    def _build(self, node: Node) -> Operator:
        native = self._native
        return MergedWindows(native, self.plan) if native and node.id == native.node else build_operator(node)

    @property
    def key_groups(self) -> KeyGroupRange:
        """All that are this task's."""
        return key_group_range(self.subtask, self.vertex.parallelism, self.vertex.max_parallelism)

    def _restored(self, groups: KeyGroupRange) -> Callable[[str], RestoredState | None]:
        return functools.partial(self._state_of, groups)

    def _state_of(self, groups: KeyGroupRange, operator: str) -> RestoredState | None:
        restoring, passthrough = self.restoring, self._passthrough
        if restoring is None:
            return None
        if passthrough is None or passthrough.operator != operator:
            return restoring.operator(operator, groups)
        beside = restoring.beside_keys(operator, groups)
        assert beside is not None
        return replace(beside, keyed=passthrough.take_active(restoring.stored(operator, groups), self._active_keys))

    def _has_state_by_key_alone(self, groups: KeyGroupRange) -> bool:
        """Whether the head restores much state of these key groups, and may be given that of active keys alone."""
        restoring, head = self.restoring, self.vertex.operators[0]
        if restoring is None or self._keeping is None or head.id not in restoring.unchanged:
            return False
        assert self._last is not None
        node = self.plan.node(head.node)
        return is_by_key_alone(node, self._last) and sum(restoring.sizes(groups).values()) >= LEAST_BYTES

    def _build_on(self, state: StageState) -> int:
        """Decide whether the head leaves a delta, and upon how many runs of the savepoint that it starts from."""
        if not state.incremental or not self._has_state_by_key_alone(self.key_groups):
            return 0
        assert self.restoring is not None
        assert self._keeping is not None
        assert state.saved is not None
        head = self.vertex.operators[0].id
        runs = self.restoring.runs(head, self.key_groups)
        count = kept_runs(runs, state.checkpoint)
        if count and isinstance(state.saved.place, str):
            self._keeping.build_on(head, runs[:count], place_of(state.saved.place))
            return count
        return 0

    def _choose_keys(self, groups: KeyGroupRange, rows: Sequence[pl.DataFrame] | None) -> None:
        """Decide whether the head of the next chain is given only the state of active keys."""
        self._passthrough = self._active_keys = None
        if not self._named and (rows is None or not self._has_state_by_key_alone(groups)):
            return
        head = self.vertex.operators[0]
        self._passthrough = StatePassthrough(head.id, self._named)
        if rows is not None:
            assert self._last is not None
            names = self.plan.node(self.plan.node(head.node).inputs[0].id).keys
            self._active_keys = ActiveKeys.by(rows, list(names), self._last, now_us())

    def _again(self, segments: Segments) -> Segments:
        """What the head makes of state that it is given and keeps."""
        chain = self.chain
        assert chain is not None
        link = chain.operators[self.vertex.operators[0].id]
        fresh = self._build(self.plan.node(self.vertex.operators[0].node))
        fresh.open(link.context, RestoredState(keyed=list(segments)))
        snapshot = fresh.snapshot()
        return snapshot.keyed.segments() if snapshot is not None and snapshot.keyed is not None else ()

    def reached(self, watermarks: pl.Series) -> pl.Series:
        """These watermarks as far as event time comes in this run: it may stop because a stream goes on from there."""
        return watermarks if self._last is None else watermarks.clip(upper_bound=self._last)

    def advance(self, watermark: int) -> None:
        """Event time has reached `watermark`, as far as it comes in this run."""
        assert self.chain is not None
        self.chain.watermark(watermark if self._last is None else min(watermark, self._last))

    def end_chain(self) -> Iterator[pa.RecordBatch]:
        """The end of the input for the chain at work: event time comes as far as it does, and state is kept."""
        chain = self.chain
        if chain is None:
            return
        for _ in chain.run_background_slices():
            pass
        if self._last is not None:
            chain.watermark(self._last)
        if chain.next_timer_us() is not None:
            raise PipelineError(
                f"{self.vertex.name}: a processing-time timer was set; there is no wall clock in a batch run. Use "
                "event_timer, or run the pipeline without --engine spark"
            )
        yield from self.outputs.drain()
        if self._keeping is not None:
            self._keeping.keep(chain, self._passthrough, self._again)
        self._count(chain)
        self.chain = None
        chain.close()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Stage what sinks were given and report."""
        self._sinks.prepare(self._checkpoint)
        if self._keeping is not None:
            self._report_state(self._keeping)
        self.outputs.report({"kind": "counts", **self._where, "counts": self._all_counts()})
        yield from self.outputs.drain(everything=True)

    def _all_counts(self) -> dict[str, dict[str, int]]:
        """What the operators counted, and what was counted on the way to others."""
        total = {operator: dict(counts) for operator, counts in self._counts.items()}
        for output in self.outputs.edges:
            if isinstance(output, PartialOutput):
                known = total.setdefault(output.consumer, {})
                known["rows_in"] = known.get("rows_in", 0) + output.rows_taken
        for late in self.outputs.late:
            if late.rows:
                known = total.setdefault(late.operator, {})
                known[LATE_ROWS_KEPT] = known.get(LATE_ROWS_KEPT, 0) + late.rows
        for operator, rows in self._sinks.refused.items():
            known = total.setdefault(operator, {})
            known["bad_rows"] = known.get("bad_rows", 0) + rows
        return total

    @property
    def _where(self) -> dict[str, Any]:
        return {"vertex": self.vertex.id, "subtask": self.subtask}

    def _report_state(self, keeping: Keeping) -> None:
        assert self._last is not None
        restored = {
            operator.id: self.restoring.beside_keys(operator.id, self.key_groups) if self.restoring else None
            for operator in self.vertex.operators
        }
        snapshot = keeping.snapshot(self._last, restored)
        self.outputs.report({"kind": "state", **self._where, "snapshot": snapshot})

    def close(self) -> None:
        """Give back everything; what was not staged is removed."""
        try:
            if self.chain is not None:
                self.chain.close()
        finally:
            self._sinks.close()

    def _count(self, chain: Chain) -> None:
        for operator, metrics in chain.metrics.items():
            counts = self._counts.setdefault(operator, {})
            for name in get_args(OperatorCounter):
                counts[name] = counts.get(name, 0) + getattr(metrics, name)


def now_us() -> int:
    """The wall clock, as operators see it."""
    return time.time_ns() // 1_000


def counts_of(reports: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Operator to counter to value, over all tasks."""
    total: dict[str, dict[str, int]] = {}
    for report in reports:
        if report["kind"] == "counts":
            for operator, counts in report["counts"].items():
                known = total.setdefault(operator, {})
                for name, value in counts.items():
                    known[name] = known.get(name, 0) + value
    return total
