"""How a subtask opens: its operators with their restored state, its sinks, and its source."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.connectors.base import PublishedSink, ReadContext, SinkEncoder, SinkWriter
from penstock.coordination.job_store import JobReader
from penstock.coordination.start_positions import StartPositionStore
from penstock.graph.jobgraph import ENCODE
from penstock.plan.operations.write import Write
from penstock.plan.passes.reading import narrowed
from penstock.protocol.committing import StagedPart
from penstock.task.alignment import SourceAlignment
from penstock.task.chain import Chain, Receiver, build_chain
from penstock.task.committer import STAGED, decode_staged
from penstock.task.environment import TaskEnvironment
from penstock.task.operator import RestoredState
from penstock.task.sinks import are_visible, prepare_sink
from penstock.task.sources import Begin, SourceDriver

SPLITS = "splits"
"""Name of the union list state that holds a source's splits."""

Restored = Mapping[str, RestoredState | None]
"""Operator id to what the restored checkpoint has of it."""


@dataclass
class OpenedOperators:
    """What a subtask works with."""

    chain: Chain
    restored: Restored
    staged: Sequence[StagedPart]
    """What the restored checkpoint had staged and is perhaps not visible."""
    writers: dict[str, SinkWriter] = field(default_factory=dict[str, SinkWriter])
    """Per sink operator."""


async def open_operators(
    environment: TaskEnvironment,
    exchanges: Sequence[tuple[str, str | None, Receiver]],
    published: Receiver | None = None,
) -> OpenedOperators:
    """Restore and open the operators and sinks of a subtask; `exchanges` and `published` as `build_chain` takes them."""
    with environment.restore_folder() as folder:
        operators = environment.vertex.operators
        restored = {operator.id: await environment.restored(operator.id, folder) for operator in operators}
        return await _opened(environment, exchanges, published, restored)


async def _opened(
    environment: TaskEnvironment,
    exchanges: Sequence[tuple[str, str | None, Receiver]],
    published: Receiver | None,
    restored: Restored,
) -> OpenedOperators:
    vertex, plan, manifest = environment.vertex, environment.plan, environment.manifest
    writers: dict[str, SinkWriter] = {}
    nodes = {operator.id: operator.node for operator in vertex.operators}

    def open_sink(operator: str, write: Write) -> SinkWriter:
        schema = plan.node(nodes[operator]).schema
        writers[operator] = write.sink.open(schema, environment.write_context(operator))
        return writers[operator]

    store = JobReader(environment.services.blobs)
    for operator in vertex.operators:
        await prepare_sink(operator.id, operator.node, plan, environment.deploy, manifest, store)
    chain = build_chain(
        vertex,
        plan,
        environment.deploy.subtask.index,
        environment.key_groups,
        environment.services.clock.now_us,
        restored.get,
        open_sink,
        await _encoders(environment),
        exchanges,
        wake=environment.inbox.wake,
        local_state=environment.local_state,
        incremental=environment.services.settings.incremental,
        published=published,
    )
    staged = [part for state in restored.values() if state for part in decode_staged(state.lists.get(STAGED, ()))]
    if staged and manifest is not None and await are_visible(manifest, environment.deploy, store):
        staged = []
    return OpenedOperators(chain, restored, staged, writers)


async def _encoders(environment: TaskEnvironment) -> dict[str, SinkEncoder]:
    encoders: dict[str, SinkEncoder] = {}
    for operator in environment.vertex.operators:
        node = environment.plan.node(operator.node)
        if operator.verb == ENCODE and isinstance(node.operation, Write):
            assert isinstance(node.operation.sink, PublishedSink)
            encoders[operator.id] = await node.operation.sink.encoder(node.schema, operator.id)
    return encoders


async def open_source(
    environment: TaskEnvironment,
    opened: OpenedOperators,
    alignment: SourceAlignment | None,
    other_work: Callable[[], Awaitable[None]],
    begin: Begin | None = None,
) -> SourceDriver:
    """Open the source of a subtask whose vertex has one, where the restored checkpoint left it; `other_work` as in
    `ReadContext`, `begin` of splits that somebody publishes."""
    operator = environment.vertex.operators[0]
    node = environment.plan.node(operator.node)
    clock, parallelism = environment.services.clock, environment.vertex.parallelism
    driver = SourceDriver(
        narrowed(environment.plan, node),
        environment.deploy.subtask.index,
        parallelism,
        ReadContext(
            clock.now_us,
            clock.monotonic_ms,
            parallelism,
            next_timer_us=opened.chain.next_timer_us,
            other_work=other_work,
        ),
        opened.chain.metrics[operator.id],
        StartPositionStore(environment.services.blobs, environment.deploy.job, operator.id).remember,
        carries_watermarks=environment.plan.carries_watermarks(node),
        window_reach_us=environment.plan.window_reach_us,
        alignment=alignment,
        begin=begin,
    )
    state = opened.restored.get(operator.id)
    await driver.open(state.unions.get(SPLITS, ()) if state else ())
    return driver


def ahead_of(environment: TaskEnvironment, restored: Restored) -> dict[str, dict[int, int]]:
    """Per operator: key groups whose former owner had come further than this subtask has."""
    verbs = {operator.id: operator.verb for operator in environment.vertex.operators}
    return {
        operator: dict(state.watermarks)
        for operator, state in restored.items()
        if state is not None and verbs[operator] not in ("read", "write")
    }
