"""A run on Spark without Spark: the same tasks over the same partitions, one after the other in this process.

What Spark itself does (sending rows to partitions, sorting them) is done by Polars, so that many runs take seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from penstock.core.batches import EVENT_TIME
from penstock.graph.jobgraph import JobGraph, JobVertex
from penstock.spark.arrival_order import ArrivalOrderAnalysis
from penstock.spark.replay import is_keyed
from penstock.spark.stage import Attempt, StageTask, run_stage
from penstock.spark.wire import (
    FRAME,
    FRAMED_NAMES,
    FROM,
    GROUP,
    INPUT,
    OUTPUT,
    PARTITION,
    READ_TAGS,
    REPORT,
    REPORT_OUTPUT,
    SEQ,
    TICK_OUTPUT,
    StageEdge,
    column_name,
)

SESSION: Any = SimpleNamespace(
    conf=SimpleNamespace(set=lambda *_: None),
    sparkContext=SimpleNamespace(
        getLocalProperty=lambda _: None, setLocalProperty=lambda *_: None, setJobGroup=lambda *_: None
    ),
)
"""Stands in for a Spark session."""
CHUNK_ROWS = 7
"""Frames that are given to a task at a time."""


class LocalLowering:
    """See `penstock.spark.lowering.Lowering`."""

    def __init__(self, _session, graph, plan, code, beginning, state, execution, staging, entered, natives) -> None:
        assert not natives, "there is no Spark here to compute anything"
        self._graph: JobGraph = graph
        self._plan, self._arrival_order = plan, ArrivalOrderAnalysis(graph, plan)
        self._json = msgspec.json.encode(graph.to_json())
        self._code, self._beginning, self._state = code, beginning, state
        self._execution, self._staging = execution, staging
        self._attempts = iter(range(10**6))
        self._produced: dict[str, pa.Table] = {}

    def run(self) -> list[dict[str, Any]]:
        reports: list[dict[str, Any]] = []
        for vertex in self._graph.vertices:
            produced = self._produced[vertex.id] = pa.Table.from_batches(list(self._run(vertex)))
            found = [json.loads(value.as_py()) for value in produced.column(REPORT) if value.is_valid]
            if vertex.is_source and self._state.keeps:
                source = self._plan.node(vertex.operators[0].node).operation.source
                self._state.read(vertex, source, found, self._beginning.carried[vertex.operators[0].id])
            reports += found
        return reports

    def _run(self, vertex: JobVertex) -> Iterator[pa.RecordBatch]:
        edges = tuple(
            self._arrival_order.edge(vertex, consumer, edge, None, self._state.reached)
            for consumer, _, edge in self._graph.consumers(vertex.id)
        )
        splits = self._beginning.splits[vertex.operators[0].id] if vertex.is_source else ()
        state = self._state.stage(vertex)
        task = StageTask(self._code, self._json, vertex.id, edges, splits, self._execution, self._staging, state)
        if vertex.is_source:
            partitions = [[pa.RecordBatch.from_pydict({"id": [number]})] for number in range(len(splits))]
        else:
            partitions = [
                self._input(vertex, number, ticks=state.saved is not None) for number in range(vertex.parallelism)
            ]
        empty: list[pa.RecordBatch] = []
        for partition in partitions:
            empty += run_stage(task, iter(partition), Attempt(next(self._attempts)))
        return iter(empty or self._nothing(edges))

    def _nothing(self, edges: tuple[StageEdge, ...]) -> list[pa.RecordBatch]:
        from penstock.spark.wire import output_schema

        return [pa.RecordBatch.from_pylist([], output_schema(edges))]

    def _input(self, vertex: JobVertex, number: int, *, ticks: bool) -> list[pa.RecordBatch]:
        frames: list[pl.DataFrame] = []
        for index, edge in enumerate(vertex.inputs):
            place = next(
                n
                for n, (consumer, position, _) in enumerate(self._graph.consumers(edge.vertex))
                if (consumer.id, position) == (vertex.id, index)
            )
            frame = pl.from_arrow(self._produced[edge.vertex])
            assert isinstance(frame, pl.DataFrame)
            names = {column_name(place, 0): FRAME}
            wanted = (pl.col(OUTPUT) == place) & (pl.col(PARTITION) == number)
            chosen = frame.filter(wanted).select(*READ_TAGS, FROM, SEQ, *names).rename(names)
            frames.append(chosen.with_columns(pl.lit(index).alias(INPUT)))
        rows = pl.concat(frames)
        if ticks:
            tick = rows.clear(1).with_columns(
                pl.lit(TICK_OUTPUT, pl.Int32).alias(OUTPUT), pl.lit(number, pl.Int32).alias(PARTITION)
            )
            rows = pl.concat([rows, tick])
        by = [GROUP] if is_keyed(vertex) else []
        by += [EVENT_TIME] if vertex.inputs[0].event_time else []
        ordered = rows.sort([*by, INPUT, FROM, SEQ], nulls_last=False).select(FRAMED_NAMES)
        assert ordered.filter(pl.col(OUTPUT) == REPORT_OUTPUT).height == 0
        return ordered.to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches(max_chunksize=CHUNK_ROWS)
