"""Runs what subtasks did once more: the same batches in the same order, in another process.

A pipeline runs embedded, and what every subtask is given is recorded: batches, watermarks, the moments of timers. Then
the recorded subtasks are run again, each from its own record alone, by processes that differ in all that must not count:
hash seed, number of threads, state backend, and how often the subtask is restored from a snapshot in between. What a
batch makes of them has to be the same rows.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

import pipelines
import polars as pl
from embedded_runs import finish, settings

from penstock import KeyedContext, KeyedProcess, Pipeline, count
from penstock.connectors import files, sqlite
from penstock.connectors.base import PublishedSink, SinkEncoder
from penstock.core.times import MIN_WATERMARK
from penstock.graph.jobgraph import ENCODE, JobGraph, JobVertex, build_job_graph
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.lookup_join import LookupJoin
from penstock.plan.operations.map_async import MapAsync
from penstock.plan.operations.write import Write
from penstock.protocol.keygroups import KeyGroupRange
from penstock.task import exchange, opening
from penstock.task.chain import Chain, Fanout, build_chain
from penstock.task.operator import OperatorSnapshot, RestoredState

PARALLELISM: Final = 1
"""Every subtask is looked at by itself: more of them show nothing more."""
_NONE: Final = pl.DataFrame()

ANSWERED = (MapAsync, LookupJoin)
"""What waits for answers from outside gives rows when these are there: it is not run again."""


@dataclass(frozen=True)
class Given:
    """What a subtask was given: one batch, or what stands between two."""

    kind: str
    """`rows`, `read`, `side`, `watermark`, `timers`, `idle` or `end`."""
    now_us: int
    frame: pl.DataFrame = field(default_factory=pl.DataFrame)
    number: int = 0
    """Of the input, or the watermark."""
    tag: str = ""


@dataclass
class Record:
    """One subtask: where it stands, and what it was given."""

    case: str
    vertex: str
    subtask: int
    key_groups: KeyGroupRange
    given: list[Given] = field(default_factory=list[Given])


# -- pipelines ----------------------------------------------------------------------------------------------------------


def materialized(p: Pipeline, out: Path, rate: float | None) -> None:
    latest = p.read(pipelines.source(rate)).key_by("number").deduplicate("last")
    per_value = latest.key_by("value").agg(rows=count())
    out.mkdir(parents=True)
    per_value.write(sqlite.Sink(out / "counts.db", "counts", key="rows", create=True))


def by_hash(p: Pipeline, out: Path, rate: float | None) -> None:
    def hashed(event: pipelines.Event) -> pipelines.Event:
        return replace(event, value=hash(event.key))

    p.read(pipelines.source(rate)).map(hashed).write(files.Sink(out))


def by_chance(p: Pipeline, out: Path, rate: float | None) -> None:
    def drawn(event: pipelines.Event) -> pipelines.Event:
        return replace(event, value=random.randrange(1_000))

    p.read(pipelines.source(rate)).map(drawn).write(files.Sink(out))


class Unsaved(KeyedProcess[pipelines.Event, pipelines.Event]):
    """Counts in an attribute, which no snapshot has."""

    def __init__(self) -> None:
        self._seen = 0

    def on_row(self, row: pipelines.Event, ctx: KeyedContext[pipelines.Event]) -> None:
        self._seen += 1
        ctx.emit(replace(row, value=self._seen))


def unsaved(p: Pipeline, out: Path, rate: float | None) -> None:
    p.read(pipelines.source(rate)).key_by("key").process(Unsaved()).write(files.Sink(out))


def no_result(out: Path) -> pipelines.Result:
    """What these come to in a file is not looked at."""
    return {}


UNDETERMINED = tuple(pipelines.Case(add.__name__, add, no_result) for add in (by_hash, by_chance, unsaved))
"""What is not the same when it is run again."""
CASES = (pipelines.Case("materialized", materialized, no_result), *UNDETERMINED)


# -- recording ----------------------------------------------------------------------------------------------------------


def record(case: pipelines.Case, folder: Path, batch_rows: int = 32) -> list[Record]:
    """Run a pipeline and record what its subtasks are given, but for those that wait for answers.

    Subtasks behind an exchange get batches of about `batch_rows`, however fast this machine is.
    """
    records: list[Record] = []

    def recorded(
        vertex: JobVertex, plan: LogicalPlan, subtask: int, key_groups: KeyGroupRange, now_us: Callable[[], int],
        *rest: Any, **more: Any,
    ) -> Chain:  # fmt: skip
        moment = [now_us()]
        chain = build_chain(vertex, plan, subtask, key_groups, lambda: moment[0], *rest, **more)
        if not any(isinstance(plan.node(each.node).operation, ANSWERED) for each in vertex.operators):
            records.append(Record(case.name, vertex.id, subtask, key_groups))
            _record(chain, records[-1], now_us, moment)
        return chain

    small = mock.patch.multiple(exchange, MAX_ROWS=batch_rows, COALESCE_ROWS=batch_rows)
    with mock.patch.object(opening, "build_chain", recorded), small:
        finish(case.declare(folder / "out", None), folder / "state", settings(PARALLELISM))
    return records


def _record(chain: Chain, into: Record, now_us: Callable[[], int], moment: list[int]) -> None:
    """Put what is given to a chain into a record. Time stands still within a batch, as it does where it is logged."""

    def note(kind: str, frame: pl.DataFrame = _NONE, number: int = 0, tag: str = "") -> None:
        moment[0] = max(moment[0], now_us())
        into.given.append(Given(kind, moment[0], frame, number, tag))

    def noted(kind: str, function: Callable[..., Any], told: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            note(kind, **told(*arguments))
            return function(*arguments)

        return call

    chain.rows = noted("rows", chain.rows, lambda number, frame: {"number": number, "frame": frame})
    chain.fire_due = noted("watermark", chain.fire_due, lambda watermark: {"number": watermark})
    chain.fire_timers = noted("timers", chain.fire_timers, lambda now: {})
    chain.on_idle = noted("idle", chain.on_idle, dict)
    chain.end = noted("end", chain.end, dict)
    output = chain.source_output
    if output is not None:
        output.rows = noted("read", output.rows, lambda frame: {"frame": frame})
        output.side = noted("side", output.side, lambda tag, frame: {"tag": tag, "frame": frame})


# -- running again ------------------------------------------------------------------------------------------------------


@dataclass
class Emitted:
    """What a chain emits into one output: rows as a multiset, and how far event time is there."""

    rows: Counter[str] = field(default_factory=Counter[str])
    watermark: int | None = None


class Outlet:
    """An exchange, or the writer of a sink, that keeps what it is given."""

    def __init__(self, emitted: Callable[[], Emitted]) -> None:
        self._emitted = emitted
        self._watermark = MIN_WATERMARK

    def rows(self, frame: pl.DataFrame) -> None:
        """Keep them."""
        self._emitted().rows.update(map(repr, frame.rows()))

    write = rows

    def watermark(self, watermark: int) -> None:
        """Keep it, unless it is known: after a restore it is sent again."""
        if watermark > self._watermark:
            self._watermark = self._emitted().watermark = watermark

    def close(self) -> None:
        """Nothing is open."""


class Again:
    """A recorded subtask that is run again."""

    def __init__(self, record: Record, graph: JobGraph, plan: LogicalPlan, backend: str, folder: Path) -> None:
        self._record = record
        self._plan = plan
        self._vertex = graph.vertex(record.vertex)
        self._edges = {
            (edge.link.source, edge.link.tag)
            for vertex in graph.vertices
            for edge in vertex.inputs
            if edge.vertex == record.vertex
        }
        self._backend = backend
        self._folder = folder
        self._opened = 0
        self._now_us = record.given[0].now_us if record.given else 0
        self._watermark: int | None = None
        self._results: dict[str, Emitted] = {}
        self._outlets: dict[str, Outlet] = {}
        self._chain = self._open({})

    def _open(self, restored: dict[str, RestoredState]) -> Chain:
        self._opened += 1
        folder = self._folder / str(self._opened)
        folder.mkdir(parents=True)
        return build_chain(
            self._vertex,
            self._plan,
            self._record.subtask,
            self._record.key_groups,
            lambda: self._now_us,
            restored.get,
            lambda operator, write: self._outlet(operator),
            self._encoders(),
            [(node, tag, self._outlet(f"{node} {tag}")) for node, tag in sorted(self._edges, key=str)],
            local_state=folder if self._backend == "rocksdb" else None,
        )

    def _encoders(self) -> dict[str, SinkEncoder]:
        encoders: dict[str, SinkEncoder] = {}
        for each in self._vertex.operators:
            node = self._plan.node(each.node)
            if each.verb == ENCODE and isinstance(node.operation, Write):
                encoders[each.id] = asyncio.run(
                    cast("PublishedSink", node.operation.sink).encoder(node.schema, each.id)
                )
        return encoders

    def _outlet(self, name: str) -> Any:
        made = Outlet(lambda: self._results.setdefault(name, Emitted()))
        return self._outlets.setdefault(name, made)

    def run(self, restores: int) -> list[dict[str, Emitted]]:
        """What it emits of each thing that it was given, by output; it is restored from its own snapshots in between."""
        emitted: list[dict[str, Emitted]] = []
        given = self._record.given
        places = {len(given) * (place + 1) // (restores + 1) for place in range(restores)}
        for place, each in enumerate(given):
            if place in places and not any(one.kind == "end" for one in given[:place]):
                self._restore()
            self._results = {}
            self._now_us = each.now_us
            self._give(each)
            for _ in self._chain.run_background_slices():
                pass
            emitted.append(self._results)
        self._chain.close()
        return emitted

    def _give(self, given: Given) -> None:
        chain = self._chain
        match given.kind:
            case "rows":
                chain.rows(given.number, given.frame)
            case "read":
                cast("Fanout", chain.source_output).rows(given.frame)
            case "side":
                cast("Fanout", chain.source_output).side(given.tag, given.frame)
            case "watermark":
                self._watermark = given.number
                for _ in chain.fire_due(given.number):
                    pass
                chain.watermark(given.number)
            case "timers":
                chain.fire_timers(given.now_us)
            case "idle":
                chain.on_idle()
            case "end":
                asyncio.run(chain.end())
            case other:
                raise AssertionError(other)

    def _restore(self) -> None:
        """Go on as somebody else would who has the snapshot alone."""
        snapshots = {name: link.operator.snapshot() for name, link in self._chain.operators.items()}
        restored = {name: self._restored(each) for name, each in snapshots.items() if each is not None}
        self._chain.close()
        self._chain = self._open(restored)
        if self._watermark is not None:  # what has come through the channels is part of a snapshot
            self._chain.watermark(self._watermark)

    def _restored(self, snapshot: OperatorSnapshot) -> RestoredState:
        groups = range(self._record.key_groups.start, self._record.key_groups.end)
        return RestoredState(
            [*snapshot.keyed.segments()] if snapshot.keyed is not None else [],
            snapshot.lists,
            snapshot.unions,
            snapshot.broadcast,
            {} if self._watermark is None else dict.fromkeys(groups, self._watermark),
        )


def run_again(records: Iterable[Record], backend: str, restores: int) -> Iterator[list[dict[str, Emitted]]]:
    """Run recorded subtasks again, one after the other."""
    cases = {case.name: case for case in (*pipelines.CASES, *CASES)}
    declared: dict[str, tuple[JobGraph, LogicalPlan]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, each in enumerate(records):
            if each.case not in declared:
                pipelines.write_files(Path(folder, each.case, "in"))
                plan = cases[each.case].declare(Path(folder, each.case, "out"), None).plan
                declared[each.case] = build_job_graph(plan, PARALLELISM), plan
            graph, plan = declared[each.case]
            yield Again(each, graph, plan, backend, Path(folder, str(number))).run(restores)


@dataclass(frozen=True)
class Setting:
    """In what one process differs from another."""

    hash_seed: int
    threads: int
    backend: str
    restores: int

    def run(self, records: Path) -> list[list[dict[str, Emitted]]]:
        """Run the recorded subtasks in such a process."""
        results = records.with_suffix(f".{self.hash_seed}")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        environment |= {"PYTHONHASHSEED": str(self.hash_seed), "POLARS_MAX_THREADS": str(self.threads)}
        command = [
            sys.executable,
            "-c",
            "import double_run; double_run.main()",
            records,
            results,
            self.backend,
            str(self.restores),
        ]
        subprocess.run(command, env=environment, check=True)
        return pickle.loads(results.read_bytes())


SETTINGS = (Setting(1, 1, "memory", 0), Setting(2, 6, "rocksdb", 4))


def differences(records: Sequence[Record], runs: Sequence[Sequence[list[dict[str, Emitted]]]]) -> list[str]:
    """Where the run in the first of `SETTINGS` and another one differ: of every subtask the first place."""
    found: list[str] = []
    for record, first, *others in zip(records, *runs, strict=True):
        for setting, other in zip(SETTINGS[1:], others, strict=True):
            for given, one, another in zip(record.given, first, other, strict=True):
                if one != another:
                    where = f"{record.case}, {record.vertex} {record.subtask}, {setting}"
                    found.append(f"{where}: {_told(given, one, another)}")
                    break
    return found


def _told(given: Given, one: dict[str, Emitted], another: dict[str, Emitted]) -> str:
    lines = [f"behind {given.kind} {given.number}"]
    for output in sorted({*one, *another}):
        a, b = one.get(output, Emitted()), another.get(output, Emitted())
        if a != b:
            lost, new = list((a.rows - b.rows).items())[:3], list((b.rows - a.rows).items())[:3]
            lines.append(f"{output}: {lost} became {new}, watermark {a.watermark} became {b.watermark}")
    return "; ".join(lines)


def main() -> None:
    """Run again what was recorded: the program of such a process."""
    records, results, backend, restores = sys.argv[1:]
    emitted = [*run_again(pickle.loads(Path(records).read_bytes()), backend, int(restores))]
    Path(results).write_bytes(pickle.dumps(emitted))
