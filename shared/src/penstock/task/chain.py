"""A chain: the operators of one vertex in one subtask, wired so that each hands its batches straight to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from penstock.connectors.base import SinkEncoder, SinkWriter
from penstock.core.batches import visible
from penstock.graph.jobgraph import PUBLISH, JobVertex
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.write import Write
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.messages import OperatorMetrics
from penstock.task.operator import Operator, OperatorContext, RestoredState
from penstock.task.operators import build_operator
from penstock.task.operators.encode import EncodeOperator

if TYPE_CHECKING:
    import polars as pl


_ROWS_AT_ONCE: Final = 65_536
"""Of what becomes due at once, so many are handed on before others run: consumers take some 10 ms for them."""
_MOST_ROWS: Final = 8 * _ROWS_AT_ONCE
"""Kept of what an operator emits in one call; what it emits beyond that waits for no turn."""


class Receiver(Protocol):
    """Whatever takes batches: an operator, an exchange, a sink."""

    def rows(self, frame: pl.DataFrame) -> None:
        """Take a batch."""
        ...

    def watermark(self, watermark: int) -> None:
        """Take a watermark."""
        ...


class Fanout:
    """The outputs of one operator: receivers of its rows, receivers per side output. Implements `operator.Output`."""

    def __init__(self, metrics: OperatorMetrics, late: str | None = None) -> None:
        """`late` is the side output of late rows."""
        self._metrics = metrics
        self._late = late
        self._main: list[Receiver] = []
        self._sides: dict[str, list[Receiver]] = {}

    def connect(self, receiver: Receiver, tag: str | None) -> None:
        """Add a receiver of the rows, or of the side output `tag`."""
        if tag is None:
            self._main.append(receiver)
        else:
            self._sides.setdefault(tag, []).append(receiver)

    def rows(self, frame: pl.DataFrame) -> None:
        """Hand rows to every receiver."""
        if not frame.height:
            return
        self._metrics.rows_out += frame.height
        for receiver in self._main:
            receiver.rows(frame)

    def side(self, tag: str, frame: pl.DataFrame) -> None:
        """Hand rows to the receivers of a side output; without any they are dropped, as in Flink, late ones counted."""
        if not frame.height:
            return
        for receiver in self._sides.get(tag, ()):
            receiver.rows(frame)
        if tag == self._late and tag not in self._sides:
            self._metrics.late_rows += frame.height

    def watermark(self, watermark: int) -> None:
        """Hand the watermark to everybody: side outputs have the event time of their operator."""
        for receiver in self._main:
            receiver.watermark(watermark)
        for receivers in self._sides.values():
            for receiver in receivers:
                receiver.watermark(watermark)


class DueOutput:
    """What an operator emits when event time comes on, handed to its output in slices. Implements `operator.Output`."""

    def __init__(self, output: Fanout) -> None:
        self._output = output
        self._emitted: deque[tuple[str | None, pl.DataFrame]] = deque()
        self._kept = 0

    def rows(self, frame: pl.DataFrame) -> None:
        """Keep rows until they are handed on."""
        self._keep(None, frame)

    def side(self, tag: str, frame: pl.DataFrame) -> None:
        """Keep rows of a side output, in their place between the others."""
        self._keep(tag, frame)

    def _keep(self, tag: str | None, frame: pl.DataFrame) -> None:
        if self._emitted and self._kept + frame.height > _MOST_ROWS:
            for _ in self.hand_on():
                pass
        self._emitted.append((tag, frame))
        self._kept += frame.height

    def watermark(self, watermark: int) -> None:
        """Hand it on; nothing waits before it, because what is due has been handed on by then."""
        assert not self._emitted
        self._output.watermark(watermark)

    def hand_on(self) -> Iterator[None]:
        """Hand on what was emitted, in order, and let others run after as many rows as are handed on at once."""
        handed_on = 0
        while self._emitted:
            tag, frame = self._emitted.popleft()
            self._kept -= frame.height
            for part in frame.iter_slices(_ROWS_AT_ONCE):
                if handed_on and handed_on + part.height > _ROWS_AT_ONCE:
                    yield
                    handed_on = 0
                handed_on += part.height
                if tag is None:
                    self._output.rows(part)
                else:
                    self._output.side(tag, part)


class OperatorLink:
    """An operator in its place."""

    def __init__(self, operator: Operator, context: OperatorContext, late: str | None = None) -> None:
        self.operator = operator
        self.context = context
        self.output = Fanout(context.metrics, late)
        self.due = DueOutput(self.output)

    def rows(self, frame: pl.DataFrame) -> None:
        """Process a batch."""
        self.context.metrics.rows_in += frame.height
        self.operator.process(frame, self.output)

    def rows_of(self, number: int, frame: pl.DataFrame) -> None:
        """Process a batch of one of several inputs."""
        self.context.metrics.rows_in += frame.height
        self.operator.process_input(number, frame, self.output)

    def watermark(self, watermark: int) -> None:
        """Advance event time."""
        self.operator.advance(watermark, self.output)


class SinkLink:
    """A sink at the end of a chain."""

    def __init__(self, operator_id: str, writer: SinkWriter, metrics: OperatorMetrics) -> None:
        self.operator_id = operator_id
        self.writer = writer
        self.metrics = metrics

    def rows(self, frame: pl.DataFrame) -> None:
        """Write a batch."""
        self.metrics.rows_in += frame.height
        self.metrics.rows_out += frame.height
        self.writer.write(visible(frame))

    def count_bad_rows(self) -> None:
        """Of writers whose sink has a policy for them; some only learn of them when they send what was written."""
        self.metrics.bad_rows = getattr(self.writer, "skipped", 0)

    def watermark(self, watermark: int) -> None:
        """Nothing waits behind a sink."""


class PublishLink:
    """Where encoded rows leave a chain to be published by whoever knows what became of them before."""

    def __init__(self, receiver: Receiver, metrics: OperatorMetrics) -> None:
        self._receiver = receiver
        self._metrics = metrics

    def rows(self, frame: pl.DataFrame) -> None:
        """Hand a batch on."""
        self._metrics.rows_in += frame.height
        self._receiver.rows(frame)

    def watermark(self, watermark: int) -> None:
        """Nothing waits behind a sink."""


class Chain:
    """The operators and sinks of a subtask.

    `head` takes what comes from the exchanges; a source hands its rows to `source_output` instead.
    """

    def __init__(self, head: Receiver | None, source_output: Fanout | None) -> None:
        self.head = head
        self.source_output = source_output
        self.operators: dict[str, OperatorLink] = {}
        self.sinks: dict[str, SinkLink] = {}
        self._metrics: dict[str, OperatorMetrics] = {}

    @property
    def metrics(self) -> dict[str, OperatorMetrics]:
        """What each operator has counted so far."""
        for sink in self.sinks.values():
            sink.count_bad_rows()
        return self._metrics

    def rows(self, number: int, frame: pl.DataFrame) -> None:
        """Hand rows of an input to the head."""
        match self.head:
            case OperatorLink() as link:
                link.rows_of(number, frame)
            case head:
                assert head is not None
                head.rows(frame)

    def watermark(self, watermark: int) -> None:
        """Advance event time at the head."""
        if self.source_output is not None:
            self.source_output.watermark(watermark)
        elif self.head is not None:
            self.head.watermark(watermark)

    def run_background_slices(self) -> Iterator[None]:
        """Run the work that rows have left over, slice by slice (see `Operator.run_background_slice`).

        Consumers run before their producers, so that no rows pile up between two operators.
        """
        yield from self._run_slices(list(reversed(self.operators.values())))

    @staticmethod
    def _run_slices(links: Sequence[OperatorLink]) -> Iterator[None]:
        while any(link.operator.run_background_slice() for link in links):
            yield

    def fire_due(self, watermark: int) -> Iterator[None]:
        """Do what is due, in parts where that is much, each operator's before those of its consumers."""
        links = list(self.operators.values())
        for place, link in enumerate(links):
            consumers, more = links[:place:-1], True
            while more:
                more = link.operator.fire_due(watermark, link.due)
                for _ in link.due.hand_on():
                    yield
                    yield from self._run_slices(consumers)
                if more:
                    yield
                    yield from self._run_slices(consumers)

    def next_timer_us(self) -> int | None:
        """The earliest wall time at which an operator wants to be called."""
        timers = [timer for link in self.operators.values() if (timer := link.operator.next_timer_us()) is not None]
        return min(timers, default=None)

    def fire_timers(self, now_us: int) -> None:
        """Call the operators whose time has come."""
        for link in self.operators.values():
            timer = link.operator.next_timer_us()
            if timer is not None and timer <= now_us:
                link.operator.on_processing_time(now_us, link.output)

    def is_full(self, *, before_barrier: bool) -> bool:
        """Whether an operator takes no rows for now: see `Operator.is_full`."""
        return any(link.operator.is_full(before_barrier=before_barrier) for link in self.operators.values())

    def holds_rows(self) -> bool:
        """Whether rows wait in an operator for something that will come."""
        return any(link.operator.holds_rows() for link in self.operators.values())

    def on_idle(self) -> None:
        """Tell all operators that the subtask becomes idle: see `Operator.on_idle`."""
        for link in self.operators.values():
            link.operator.on_idle()

    async def end(self) -> None:
        """The input has ended, and no row waits: see `Operator.end`."""
        for link in self.operators.values():
            ending = link.operator.end()
            if ending is not None:
                await ending

    async def closed(self) -> None:
        """Wait for what `close` has begun."""
        for link in self.operators.values():
            closing = link.operator.closing()
            if closing is not None:
                await closing

    def close(self) -> None:
        """Close everything, all of it even if something raises."""
        errors: list[Exception] = []
        for close in self._closers():
            try:
                close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _closers(self) -> Iterable[Callable[[], None]]:
        for link in self.operators.values():
            yield link.operator.close
        for sink in self.sinks.values():
            yield sink.writer.close


def build_chain(
    vertex: JobVertex,
    plan: LogicalPlan,
    subtask: int,
    key_groups: KeyGroupRange,
    now_us: Callable[[], int],
    restored: Callable[[str], RestoredState | None],
    open_sink: Callable[[str, Write], SinkWriter],
    encoders: Mapping[str, SinkEncoder],
    exchanges: Iterable[tuple[str, str | None, Receiver]],
    make: Callable[[Node], Operator] = build_operator,
    wake: Callable[[], None] = lambda: None,
    local_state: Path | None = None,
    *,
    incremental: bool = False,
    published: Receiver | None = None,
) -> Chain:
    """Build and open the operators of a vertex, last ones first.

    Args:
        vertex: which operators, and how they are linked.
        plan: where their code stands.
        subtask: index of the subtask.
        key_groups: the subtask's range.
        now_us: the wall clock.
        restored: the state of an operator by its id.
        open_sink: opens the writer of a sink operator.
        encoders: the encoder of each operator that encodes for an exactly-once sink.
        exchanges: (node id of the producing operator, side output or None, writer) of every edge out of the vertex.
        make: makes the operator of a node.
        wake: wakes the subtask.
        local_state: as in `OperatorContext`.
        incremental: as in `OperatorContext`.
        published: takes the encoded rows of a vertex that publishes the splits of its source.
    """
    outputs: dict[str, Fanout] = {}
    receivers: dict[str, Receiver] = {}
    chain = Chain(None, None)
    for operator in vertex.operators:
        node = plan.node(operator.node)
        metrics = chain.metrics[operator.id] = OperatorMetrics()
        if operator.verb == "read":
            chain.source_output = outputs[operator.node] = Fanout(metrics)
        elif operator.verb == "write":
            assert isinstance(node.operation, Write)
            sink = SinkLink(operator.id, open_sink(operator.id, node.operation), metrics)
            chain.sinks[operator.id] = receivers[operator.node] = sink
        elif operator.verb == PUBLISH:
            assert published is not None
            receivers[operator.node] = PublishLink(published, metrics)
        else:
            context = OperatorContext(
                operator=operator.id,
                subtask=subtask,
                parallelism=vertex.parallelism,
                max_parallelism=vertex.max_parallelism,
                key_groups=key_groups,
                now_us=now_us,
                metrics=metrics,
                carries_watermarks=plan.carries_watermarks(node),
                window_reach_us=plan.window_reach_us,
                wake=wake,
                local_state=local_state,
                incremental=incremental,
            )
            encoder = encoders.get(operator.id)
            made = EncodeOperator(encoder) if encoder is not None else make(node)
            link = OperatorLink(made, context, node.traits.late_tag)
            link.operator.open(context, restored(operator.id))
            chain.operators[operator.id] = receivers[operator.node] = link
            outputs[operator.node] = link.output
        for upstream in operator.inputs:
            outputs[upstream.source].connect(receivers[operator.node], upstream.tag)
    for node_id, tag, receiver in exchanges:
        outputs[node_id].connect(receiver, tag)
    chain.head = receivers.get(vertex.operators[0].node)
    return chain
