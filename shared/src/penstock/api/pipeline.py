"""What a pipeline file declares: a name and a plan of sources, verbs and sinks. `penstock.Pipeline` can also be run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from penstock.api.keyed_streams import KeyedStream
from penstock.api.stream import SourceStream, Stream
from penstock.api.update_streams import SourceUpdates
from penstock.arguments import checked
from penstock.connectors.base import ChangeSource
from penstock.errors import PipelineError
from penstock.graph.logical import LogicalPlan, Mode, Node, Operation, Read
from penstock.names import wrong_name
from penstock.protocol.keygroups import DEFAULT_MAX_PARALLELISM, LARGEST_MAX_PARALLELISM
from penstock.times import Duration, duration_us
from penstock.types import Schema, row_class

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
        if wrong_name(name) or not all(character.isalnum() or character in "-_." for character in name):
            raise PipelineError(f"Pipeline: {name!r} is no name; use letters, digits, '-', '_' and '.', not dots alone")
        self.name = name
        self.engine = engine
        if not 1 <= max_parallelism <= LARGEST_MAX_PARALLELISM:
            raise PipelineError(
                f"Pipeline: max_parallelism must be between 1 and {LARGEST_MAX_PARALLELISM}, got {max_parallelism}"
            )
        self._state_ttl_us = None if state_ttl is None else duration_us(state_ttl, "Pipeline: state_ttl", positive=True)
        interval_us = duration_us(watermark_interval, "Pipeline: watermark_interval")
        self.plan = LogicalPlan(name, max_parallelism=max_parallelism, watermark_interval_us=interval_us)

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
        row_type: type[Any] = source.row_type or row_class(source.schema)
        node = self._add(Read(source), (), source.schema, row_type, event_time=source.event_time is not None)
        return SourceStream(self, node)

    def _ttl_us(self, ttl: Duration | None, where: str) -> int | None:
        """How long the state of a verb with this `ttl` lives: as the pipeline says, if the verb says nothing.

        None is for ever; a verb asks for that with no time at all, as in Flink.
        """
        return self._state_ttl_us if ttl is None else duration_us(ttl, f"{where}: ttl") or None

    def _stream_of(self, node: Node) -> Stream[Any]:
        """The rows of a node as a stream; for verbs of other kinds of streams that give one."""
        return Stream(self, node)

    def _has_verb_of_rows(self, name: str) -> bool:
        """Whether streams of rows without a key have such a verb."""
        return hasattr(Stream, name)

    def _has_verb(self, name: str) -> bool:
        """Whether streams of rows have such a verb, with a key or without."""
        return self._has_verb_of_rows(name) or hasattr(KeyedStream, name)

    def rows_of(self, node: Node) -> pl.DataFrame:
        """The rows of a stream; a pipeline that can be run knows how to get them."""
        raise PipelineError(f"collect: {self.name} is declared and cannot be run; make a penstock.Pipeline")

    def _add(
        self,
        operation: Operation,
        inputs: tuple[Node, ...],
        schema: Schema,
        row_type: type[Any],
        *,
        event_time: bool,
        keys: tuple[str, ...] = (),
        mode: Mode = "append",
    ) -> Node:
        node = Node(
            id=f"n{len(self.plan.nodes)}",
            operation=operation,
            inputs=inputs,
            schema=schema,
            row_type=row_type,
            event_time=event_time,
            keys=keys,
            mode=mode,
        )
        self.plan.nodes.append(node)
        return node


def importing() -> bool:
    """Whether Penstock itself imports a pipeline file, so that running in it must do nothing."""
    return _importing


def set_importing(importing: bool) -> bool:
    """Say that a pipeline file is being imported; returns what was said before."""
    global _importing
    before, _importing = _importing, importing
    return before
