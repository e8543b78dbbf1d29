"""What a pipeline file declares: a name and a plan of sources, verbs and sinks. `penstock.Pipeline` can also be run."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from penstock.api.keyed_streams import KeyedStream
from penstock.api.stream import SourceStream, Stream
from penstock.api.update_streams import SourceUpdates
from penstock.connectors.base import ChangeSource
from penstock.core.arguments import checked
from penstock.core.names import is_pipeline_name
from penstock.core.times import Duration, duration_us
from penstock.errors import PipelineError
from penstock.plan.building.sources import read
from penstock.plan.logical import LogicalPlan, Node
from penstock.plan.operations.read import Read
from penstock.plan.operations.write import Write
from penstock.protocol.keygroups import DEFAULT_MAX_PARALLELISM, LARGEST_MAX_PARALLELISM

if TYPE_CHECKING:
    import polars as pl

    from penstock.connectors.base import Source

T = TypeVar("T")

_importing = False


class DeclaredPipeline:
    """A named plan, built and checked verb by verb. Users make a `penstock.Pipeline`, which adds the ways to run it."""

    @checked
    def __init__(
        self,
        name: str,
        *,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        watermark_interval: Duration = "0s",
        state_ttl: Duration | None = None,
        engine: Literal["embedded", "spark"] | None = None,
    ) -> None:
        if not is_pipeline_name(name):
            raise PipelineError(f"Pipeline: {name!r} is no name; use letters, digits, '-', '_' and '.', not dots alone")
        self.name = name
        self.engine = engine
        if not 1 <= max_parallelism <= LARGEST_MAX_PARALLELISM:
            raise PipelineError(
                f"Pipeline: max_parallelism must be between 1 and {LARGEST_MAX_PARALLELISM}, got {max_parallelism}"
            )
        self.plan = LogicalPlan(
            name,
            max_parallelism=max_parallelism,
            watermark_interval_us=duration_us(watermark_interval, "Pipeline: watermark_interval"),
            state_ttl_us=None if state_ttl is None else duration_us(state_ttl, "Pipeline: state_ttl", positive=True),
        )

    @overload
    def read(self, source: ChangeSource[Any]) -> SourceUpdates: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def read(self, source: Source[T]) -> SourceStream[T]: ...
    @checked
    def read(self, source: Source[Any]) -> SourceStream[Any] | SourceUpdates:
        """The rows of `source` as a stream; of a source of changes, what `UpsertStream.changes` gives.

        Example:
            >>> bids = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at"))
            >>> bids.schema.names
            ('auction', 'price', 'at', 'tags')
        """
        if isinstance(source, ChangeSource):
            return SourceUpdates.of(self, source)
        return SourceStream(self, read(self.plan, source).node)

    def _stream_of(self, node: Node) -> Stream[Any]:
        """The rows of a node as a stream; for verbs of other kinds of streams that give one."""
        return Stream(self, node)

    def _has_verb_of_rows(self, name: str) -> bool:
        """Whether streams of rows without a key have such a verb."""
        return hasattr(Stream, name)

    def _has_verb(self, name: str) -> bool:
        """Whether streams of rows have such a verb, with a key or without."""
        return self._has_verb_of_rows(name) or hasattr(KeyedStream, name)

    def _repr_html_(self) -> str:
        """The picture of it in a notebook: its graph, and its plan in words."""
        from penstock.graph.explain import explain_text
        from penstock.graph.jobgraph import build_job_graph
        from penstock.graph.picture import svg_of

        if not self.plan.nodes:
            return f"<p>{escape(repr(self))}</p>"
        if not any(isinstance(node.operation, Write) for node in self.plan):
            return f"<p>{escape(repr(self))}; it has no sink yet: <code>.write(...)</code></p>"
        graph = build_job_graph(self.plan, 1)
        words = escape(explain_text(graph, self.plan))
        return f"<p>{escape(repr(self))}</p>{svg_of(graph)}<details><summary>plan</summary><pre>{words}</pre></details>"

    def __repr__(self) -> str:
        sinks = sum(isinstance(node.operation, Write) for node in self.plan)
        sources = sum(isinstance(node.operation, Read) for node in self.plan)
        ends = f"{_counted(sources, 'source')}, {_counted(sinks, 'sink')}"
        return f"Pipeline {self.name!r}: {_counted(len(self.plan.nodes), 'operator')} ({ends})"

    def rows_of(self, node: Node, limit: int | None = None) -> pl.DataFrame:
        """The rows of a stream; a pipeline that can be run knows how to get them."""
        raise PipelineError(f"collect: {self.name} is declared and cannot be run; make a penstock.Pipeline")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def importing() -> bool:
    """Whether Penstock itself imports a pipeline file, so that running in it must do nothing."""
    return _importing


def set_importing(importing: bool) -> bool:
    """Say that a pipeline file is being imported; returns what was said before."""
    global _importing
    before, _importing = _importing, importing
    return before
