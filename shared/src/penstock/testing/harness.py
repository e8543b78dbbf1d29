"""One operator in a test: feed it rows and watermarks, take snapshots, go on at another parallelism, look at the output.

The harness plays what surrounds an operator in a job: it sends rows to the subtask that owns their key group, gives all
subtasks the watermark, and redistributes the state of a snapshot by key group. No log, no clock, no threads: processing
time stands still until `processing_time` moves it.

    harness = OperatorHarness.of_process(Fraud(), Payment, keys=["account"])
    harness.rows(Payment("a", 0.5, at), Payment("a", 900.0, at))
    harness.watermark(at + timedelta(minutes=2))
    assert harness.output() == [{"account": "a", "amount": 900.0}]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from penstock.core.batches import EVENT_TIME
from penstock.core.times import MIN_WATERMARK, to_micros
from penstock.errors import UsageError
from penstock.functions.process_functions import KeyedProcess, OutputTag, Process, process_types
from penstock.plan.logical import Node
from penstock.plan.operations.process_rows import ProcessRows
from penstock.plan.operations.read import Read
from penstock.protocol.keygroups import key_group_range, subtask_of
from penstock.protocol.messages import OperatorMetrics
from penstock.task.operator import OperatorContext, RestoredState
from penstock.types import Schema, schema_of

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from penstock.task.operator import Operator


@dataclass(frozen=True)
class HarnessSnapshot:
    """What all subtasks held: segments by key group, the watermark each key group had reached, operator state."""

    keyed: Sequence[tuple[int, bytes]]
    watermarks: dict[int, int]
    lists: dict[str, list[bytes]]
    unions: dict[str, list[bytes]]
    broadcast: dict[str, bytes] = field(default_factory=dict[str, bytes])


@dataclass
class Collector:
    """An `Output` that keeps everything in order of arrival."""

    frames: list[pl.DataFrame] = field(default_factory=list["pl.DataFrame"])
    sides: dict[str, list[pl.DataFrame]] = field(default_factory=dict[str, "list[pl.DataFrame]"])
    watermarks: list[int] = field(default_factory=list[int])

    def rows(self, frame: pl.DataFrame) -> None:
        if frame.height:
            self.frames.append(frame)

    def side(self, tag: str, frame: pl.DataFrame) -> None:
        if frame.height:
            self.sides.setdefault(tag, []).append(frame)

    def watermark(self, watermark: int) -> None:
        self.watermarks.append(watermark)


class OperatorHarness:
    """Runs the subtasks of one operator.

    Args:
        operator: a node of a plan, or a function that makes a fresh operator per subtask.
        keys: the key columns of the input, if `operator` is a function.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        restored: a snapshot of an earlier harness, perhaps of another parallelism.
        now_us: processing time at the start.
        local_state: a folder for state on the local disk, as the backend `rocksdb` has it; None: in memory.
    """

    def __init__(
        self,
        operator: Node | Callable[[], Operator],
        *,
        keys: Sequence[str] = (),
        parallelism: int = 1,
        max_parallelism: int = 16,
        restored: HarnessSnapshot | None = None,
        now_us: int = 0,
        local_state: Path | None = None,
    ) -> None:
        from penstock.task.operators import build_operator

        self.now_us = now_us
        self._local_state = local_state
        self.collected = Collector()
        self.metrics: list[OperatorMetrics] = []
        self._node = operator if isinstance(operator, Node) else None
        self._keys = [each.keys for each in self._node.inputs] if self._node else [tuple(keys)]
        """Of each input."""
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._next_subtask = 0
        self._watermarks = [MIN_WATERMARK] * parallelism
        self._reached = dict(restored.watermarks) if restored else {}
        make = operator if not isinstance(operator, Node) else lambda: build_operator(operator)
        self.operators = [make() for _ in range(parallelism)]
        for subtask, made in enumerate(self.operators):
            self._open(subtask, made, restored)

    @staticmethod
    def of_process(
        process: Process[Any, Any] | KeyedProcess[Any, Any],
        row_type: object,
        *,
        keys: Sequence[str] = (),
        event_time: str | None = None,
        sides: Sequence[OutputTag[Any]] = (),
        **options: Any,
    ) -> OperatorHarness:
        """A harness for a process function.

        Args:
            process: the function.
            row_type: class (or schema) of its input rows.
            keys: key columns, for a `KeyedProcess`.
            event_time: the column that is the event time of the rows; the only timestamp column if not given.
            sides: the side outputs to collect.
            **options: as for the constructor.
        """
        node = process_node(process, row_type, keys=keys, sides=sides)
        harness = OperatorHarness(node, **options)
        harness._event_time_column = event_time or _only_timestamp(node.inputs[0].schema)
        return harness

    _event_time_column: str | None = None

    def _open(self, subtask: int, operator: Operator, restored: HarnessSnapshot | None) -> None:
        metrics = OperatorMetrics()
        self.metrics.append(metrics)
        context = OperatorContext(
            operator=self._node.operator_id if self._node else "tested",
            subtask=subtask,
            parallelism=self._parallelism,
            max_parallelism=self._max_parallelism,
            key_groups=key_group_range(subtask, self._parallelism, self._max_parallelism),
            now_us=lambda: self.now_us,
            metrics=metrics,
            local_state=self._local_state,
        )
        operator.open(context, self._share(subtask, restored) if restored else None)

    def _share(self, subtask: int, snapshot: HarnessSnapshot) -> RestoredState:
        owned = key_group_range(subtask, self._parallelism, self._max_parallelism)
        return RestoredState(
            keyed=[(group, data) for group, data in snapshot.keyed if group in owned],
            lists={name: values[subtask :: self._parallelism] for name, values in snapshot.lists.items()},
            unions=snapshot.unions,
            broadcast=snapshot.broadcast,
            watermarks={group: mark for group, mark in snapshot.watermarks.items() if group in owned},
        )

    # -- input --------------------------------------------------------------------------------------------------------

    def rows(self, *rows: Any) -> None:
        """Feed row objects as one batch; event time is taken from the harness's event-time column."""
        from penstock.task.rows import RowWriter

        if self._node is None:
            raise UsageError("OperatorHarness.rows: needs a harness made from a node or by of_process; use frame()")
        source = self._node.inputs[0]
        column = self._event_time_column
        times = None if column is None else [to_micros(getattr(row, column)) for row in rows]
        self.frame(RowWriter(source.schema, source.row_type, "OperatorHarness.rows").frame(rows, times))

    def frame(self, frame: pl.DataFrame, number: int = 0) -> None:
        """Feed a batch of an input: every row goes to the subtask of its key, without keys the subtasks take turns.

        All subtasks get the rows of a broadcast input.
        """
        everywhere = self._node is not None and number in self._node.traits.broadcast_inputs
        whole = [(subtask, frame) for subtask in range(self._parallelism)]
        for subtask, part in whole if everywhere else self._parts(frame, self._keys[number]):
            if part.height:
                self.operators[subtask].process_input(number, part, self.collected)
                while self.operators[subtask].run_background_slice():
                    pass

    def _parts(self, frame: pl.DataFrame, keys: Sequence[str]) -> list[tuple[int, pl.DataFrame]]:
        if self._parallelism == 1:
            return [(0, frame)]
        if not keys:
            subtask = self._next_subtask
            self._next_subtask = (subtask + 1) % self._parallelism
            return [(subtask, frame)]
        import polars as pl

        from penstock.state.hashing import key_groups

        groups = key_groups(frame, keys, self._max_parallelism).to_list()
        owners = pl.Series([subtask_of(group, self._parallelism, self._max_parallelism) for group in groups])
        return [(subtask, frame.filter(owners == subtask)) for subtask in range(self._parallelism)]

    def watermark(self, watermark: int | datetime, subtask: int | None = None) -> None:
        """Advance event time of one subtask or all; one that is there already is left alone."""
        micros = watermark if isinstance(watermark, int) else to_micros(watermark)
        for index in range(self._parallelism) if subtask is None else [subtask]:
            if micros > self._watermarks[index]:
                self._watermarks[index] = micros
                self.operators[index].advance(micros, self.collected)

    def processing_time(self, now: int | datetime) -> None:
        """Move the clock and fire the processing timers that are due."""
        self.now_us = now if isinstance(now, int) else to_micros(now)
        for operator in self.operators:
            due = operator.next_timer_us()
            if due is not None and due <= self.now_us:
                operator.on_processing_time(self.now_us, self.collected)
                while operator.run_background_slice():
                    pass

    # -- snapshots ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> HarnessSnapshot:
        """Freeze all subtasks and write their state."""
        return self.freeze()()

    def freeze(self) -> Callable[[], HarnessSnapshot]:
        """Freeze all subtasks; the returned function writes the state, which may be done after further rows."""
        frozen = [operator.snapshot() for operator in self.operators]
        marks = {group: self._watermark_of(group) for group in range(self._max_parallelism)}

        def write() -> HarnessSnapshot:
            keyed: list[tuple[int, bytes]] = []
            lists: dict[str, list[bytes]] = {}
            unions: dict[str, list[bytes]] = {}
            broadcast: dict[str, bytes] = {}
            for part in frozen:
                if part is None:
                    continue
                keyed.extend(part.keyed.segments() if part.keyed else ())
                for name, values in part.lists.items():
                    lists.setdefault(name, []).extend(values)
                for name, values in part.unions.items():
                    unions.setdefault(name, []).extend(values)
                broadcast = {**part.broadcast, **broadcast}  # that of the first subtask, as a restore has it
            return HarnessSnapshot(keyed, marks, lists, unions, broadcast)

        return write

    def _watermark_of(self, group: int) -> int:
        """What a key group has seen: here, or before the restore."""
        own = self._watermarks[subtask_of(group, self._parallelism, self._max_parallelism)]
        return max(own, self._reached.get(group, MIN_WATERMARK))

    def restored(self, snapshot: HarnessSnapshot, parallelism: int | None = None) -> OperatorHarness:
        """A new harness of the same node that begins with `snapshot`; what was collected is carried over."""
        if self._node is None:
            raise UsageError("OperatorHarness.restored: needs a harness made from a node; pass restored= instead")
        successor = OperatorHarness(
            self._node,
            parallelism=parallelism or self._parallelism,
            max_parallelism=self._max_parallelism,
            restored=snapshot,
            now_us=self.now_us,
            local_state=self._local_state,
        )
        successor.collected = self.collected
        successor._event_time_column = self._event_time_column
        return successor

    def close(self) -> None:
        """Close all subtasks."""
        for operator in self.operators:
            operator.close()

    # -- output ---------------------------------------------------------------------------------------------------------

    def output(self) -> list[dict[str, Any]]:
        """All rows so far, in order, without event time."""
        return [row for frame in self.collected.frames for row in frame.drop(EVENT_TIME, strict=False).to_dicts()]

    def side(self, tag: OutputTag[Any] | str) -> list[dict[str, Any]]:
        """All rows of a side output so far."""
        name = tag if isinstance(tag, str) else tag.name
        frames = self.collected.sides.get(name, [])
        return [row for frame in frames for row in frame.drop(EVENT_TIME, strict=False).to_dicts()]


def process_node(
    process: Process[Any, Any] | KeyedProcess[Any, Any],
    row_type: object,
    *,
    keys: Sequence[str] = (),
    sides: Sequence[OutputTag[Any]] = (),
) -> Node:
    """A plan node that runs `process` on rows of `row_type`."""
    types = process_types(process)
    if len(types) != 2:
        raise UsageError(
            f"OperatorHarness.of_process: {type(process).__name__} takes rows of two streams; run it in a pipeline "
            "that reads iterables, with .collect()"
        )
    declared_in, declared_out = types
    schema = schema_of(row_type, "row_type")
    source = input_node(schema, declared_in, keys)
    return Node(
        id="n1",
        operation=ProcessRows(process),
        inputs=(source,),
        schema=schema_of(declared_out, "process"),
        row_type=declared_out,
        event_time=source.event_time,
        sides={tag.name: schema_of(tag.row_type, f"OutputTag {tag.name}") for tag in sides},
    )


def input_node(
    schema: Schema, row_type: type[Any], keys: Sequence[str] = (), *, event_time: bool | None = None
) -> Node:
    """A plan node that stands for whatever rows a test feeds; it has event time if it has one timestamp column."""
    has_time = _only_timestamp(schema) is not None if event_time is None else event_time
    nothing = cast("Any", None)  # the harness feeds rows itself: there is no source to read
    return Node(
        id="n0",
        operation=Read(nothing),
        inputs=(),
        schema=schema,
        row_type=row_type,
        event_time=has_time,
        keys=tuple(keys),
    )


def _only_timestamp(schema: Schema) -> str | None:
    names = [column.name for column in schema if str(column.type) == "timestamp"]
    return names[0] if len(names) == 1 else None
