"""A run of a pipeline on Spark, from the plan to the last commit."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from penstock.adapters.directory.claim import claimed
from penstock.connectors.base import Source, WriteContext
from penstock.coordination.job_summary import misspelt_lines
from penstock.errors import ExternalError, PenstockError, UsageError, nearest
from penstock.graph.jobgraph import JobGraph, JobVertex, build_job_graph
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.event_time import AssignEventTime
from penstock.plan.operations.read import Read
from penstock.ports import Clock
from penstock.savepoint.folder import SavepointPlace
from penstock.spark.archives import archive_of
from penstock.spark.arrival_order import ArrivalOrderAnalysis
from penstock.spark.binding import Binding, binding_of, check_same, described
from penstock.spark.code import TaskCode
from penstock.spark.committing import (
    RunManifest,
    RunManifests,
    check_staged,
    checked_run_id,
    commit,
    execution_name,
    prepare_sinks,
    reach_sinks,
    sinks_of,
    staged_parts,
)
from penstock.spark.failures import unwrapped
from penstock.spark.labels import RunLabels
from penstock.spark.lineage import Lineage
from penstock.spark.native import native_windows, ways
from penstock.spark.progress import misspelt_fields
from penstock.spark.refusing import check_runnable
from penstock.spark.result import SparkResult
from penstock.spark.savepoints import KeptState, RunState, check_free, check_written, seal
from penstock.spark.session import default_parallelism
from penstock.spark.splits import Asked, RunBeginning, RunBeginnings, find_beginning, sources_of
from penstock.spark.starting import StartingPoint, check_start
from penstock.spark.taskwork import counts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.api.pipeline import DeclaredPipeline


def batch_graph(plan: LogicalPlan, parallelism: int) -> JobGraph:
    """The job graph in the form that Spark runs, whether or not it can run."""
    return build_job_graph(plan, parallelism, chain_state=False, publish=False, combine=False)


def spark_graph(plan: LogicalPlan, parallelism: int, *, until_now: bool = False) -> JobGraph:
    """The job graph as Spark runs it; `until_now`: sources that allow it are read up to what is there.

    Raises:
        PipelineError: it cannot be built, or something in it cannot run on Spark.
    """
    graph = batch_graph(plan, parallelism)
    check_runnable(graph, plan, until_now=until_now)
    return graph


@dataclass(frozen=True)
class RunOptions:
    """State in and out of a run, and what Spark may do itself.

    A run that leaves a savepoint reads what has no end up to what is there now.
    """

    start: StartingPoint | None = None
    """The savepoint that it starts from."""
    target: SavepointPlace | None = None
    """Where it leaves a savepoint."""
    archives: Mapping[str, str] = field(default_factory=dict[str, str])
    """Source operator to the files that are read before it."""
    warn: Callable[[str], None] = lambda _: None
    """Is told what the user should know."""
    native: bool = True
    """Whether Spark's own plan computes what is proven equal to streaming; if not, every stage replays."""
    job: str = ""
    """The job of which the run is a step; empty if it is a run by itself."""
    incremental: bool = False
    """Whether its savepoint may be a delta upon objects of the one it starts from, which it makes its own."""

    @property
    def stateful(self) -> bool:
        """Whether it starts from a savepoint or leaves one."""
        return self.start is not None or self.target is not None


def check_options(graph: JobGraph, plan: LogicalPlan, options: RunOptions) -> None:
    """Whether a pipeline can be run so.

    Raises:
        UsageError: a source is named that there is not, or state is to go in or out where a DataFrame is read or event
            time is another one than the source's.
        IncompatibleStateError: the state of the savepoint to start from does not fit; names every operator.
    """
    if options.start is not None:
        check_start(graph, options.start)
    sources = sources_of(graph, plan)
    if options.stateful:
        _check_positions(plan, sources)
        _check_event_time(graph, plan)
    for operator, path in options.archives.items():
        if operator not in sources:
            raise UsageError(f"--source {operator}=...: there is no such source; {nearest(operator, sources)}")
        archive_of(sources[operator], path).discover()


def _check_positions(plan: LogicalPlan, sources: Mapping[str, Source[Any]]) -> None:
    reads = [node.operator_id for node in plan if isinstance(node.operation, Read)]
    without = [operator for operator in reads if operator not in sources]
    if without:
        raise UsageError(
            f"{', '.join(without)}: a DataFrame has no position that a savepoint could hold; leave --from-savepoint and "
            "--to-savepoint out, or read files or a topic"
        )


def _check_event_time(graph: JobGraph, plan: LogicalPlan) -> None:
    """A savepoint would say that event time behind these is as far as that of the source, which is another one."""
    used = {operator.node for operator in graph.operators()}
    timed = [node for node in plan if isinstance(node.operation, AssignEventTime) and node.id in used]
    if timed:
        raise UsageError(
            f"{', '.join(node.operator_id for node in timed)}: how far event time has come behind with_event_time is in "
            "no savepoint of a run on Spark; say event_time= at the source, or run without a savepoint or without Spark"
        )


class SparkRun:
    """One run of a pipeline, which tasks have by its code."""

    def __init__(
        self,
        session: SparkSession,
        pipeline: DeclaredPipeline,
        code: TaskCode,
        *,
        run: str,
        clock: Clock,
        parallelism: int | None = None,
        folder: Path | None = None,
        staging: str | None = None,
        entered: Callable[[JobVertex], None] = lambda _: None,
        options: RunOptions | None = None,
    ) -> None:
        """`folder` holds the manifests of the pipeline's runs; `.penstock/<name>/spark` if not given. `staging` is as in
        `SparkSettings`.

        Raises:
            PipelineError: the pipeline cannot run on Spark.
            UsageError: the run id, or the place for staged rows, cannot be used.
            IncompatibleStateError: the state of the savepoint to start from does not fit.
        """
        self.options = options or RunOptions()
        self.graph = spark_graph(
            pipeline.plan,
            parallelism or default_parallelism(session),
            until_now=self.options.target is not None,
        )
        check_options(self.graph, pipeline.plan, self.options)
        self.ways = ways(self.graph, pipeline.plan, native=self.options.native, stateful=self.options.stateful)
        self.arrival_order = ArrivalOrderAnalysis(self.graph, pipeline.plan)
        """What there is to say of the order of rows."""
        self.run_id = checked_run_id(run)
        self.labels = RunLabels(session, self.graph, self.run_id)
        self._lineage = Lineage(pipeline.plan, self.run_id, clock, self.options.warn)
        self._clock = clock
        self._session = session
        self._plan = pipeline.plan
        self._code = code
        self._folder = folder or Path(".penstock") / pipeline.name / "spark"
        self._manifests = RunManifests(self._folder, staging)
        self._beginnings = RunBeginnings(self._folder)
        self._entered = entered

    def find_beginning(self) -> RunBeginning | None:
        """What the run reads, as an execution before this one has fixed it; None if there was none.

        Raises:
            UsageError: that was a run of something else; names what differs.
        """
        return self._beginnings.find(self.run_id, self._asked())

    def look(self) -> RunBeginning:
        """What the run would read if it began now."""
        former = self.options.start.splits() if self.options.start is not None else {}
        return find_beginning(self.graph, self._plan, self._asked(), former)

    def execute(self, beginning: RunBeginning | None = None) -> SparkResult:
        """Compute, commit; or only commit if the run was computed before.

        Args:
            beginning: what it reads, unless that is fixed already; as it is now if not given.

        Raises:
            UsageError: the run id is that of a run of something else; names what differs.
            PenstockError: what the pipeline or the user's code raised in a task, that Spark failed, or that another run
                of the pipeline is at work in this folder, whose staged parts must not be taken for leftovers.
        """
        with claimed(self._folder), self._lineage.told(lambda: self.labels.cancelled):
            result = self._execute(beginning)
            self._lineage.finished(result.counts)
            return result

    def _execute(self, beginning: RunBeginning | None) -> SparkResult:
        binding = binding_of(self.run_id, self._code, self._plan)
        manifest = self._manifests.find(self.run_id)
        computed = manifest is None
        if manifest is not None and manifest.binding is not None:
            check_same(self.run_id, manifest.binding, binding)
        asked = self._asked()
        self._beginnings.find(self.run_id, asked)
        if manifest is None:
            manifest = self._compute(binding, asked, beginning)
        commit(manifest, self._plan, self._manifests, self._clock)
        if manifest.kept is not None:
            seal(manifest.kept, execution_name(self.run_id))
        return SparkResult(self.run_id, manifest.counts, computed)

    def _compute(self, binding: Binding, asked: Asked, beginning: RunBeginning | None) -> RunManifest:
        from penstock.spark.lowering import Lowering

        options, execution = self.options, execution_name(self.run_id)
        if options.target is not None:
            check_free(options.target, execution)
        beginning = self._begin(asked, beginning)
        reach_sinks(self._plan)
        prepare_sinks(sinks_of(self._plan), self._manifests, anew=options.start is None)
        state = RunState(self.graph, options.start, options.target, options.warn, incremental=options.incremental)
        natives = native_windows(self.ways)
        lowering = Lowering(
            self._session,
            self.graph,
            self._plan,
            self._code,
            beginning,
            state,
            execution,
            self._manifests.staging,
            self._enter,
            natives,
        )
        try:
            with self.labels.applied():
                reports = lowering.run()
        except PenstockError:  # of the driver's own
            raise
        except Exception as error:  # Spark has a class of errors per way to reach it
            known = unwrapped(error)
            if known is None:
                raise ExternalError(f"Spark failed: {_first_lines(error)}") from error
            raise known from None
        self._print_rows(reports)
        self._warn_of_misspelt(reports)
        staged, counts, kept = staged_parts(reports), counts_of(reports), self._kept(state, reports)
        mark = self._manifests.staging_mark
        manifest = RunManifest(self.run_id, self._plan.name, staged, counts, kept, binding, options.job, mark)
        check_staged(manifest, self._plan, self._manifests)
        if manifest.kept is not None:
            check_written(manifest.kept)
        return self._manifests.create(manifest)

    def _enter(self, vertex: JobVertex) -> None:
        self.labels.computes(vertex)
        self._entered(vertex)

    def _kept(self, state: RunState, reports: list[dict[str, Any]]) -> KeptState | None:
        target = self.options.target
        return KeptState(target.address, state.manifest(self.run_id, reports)) if target is not None else None

    def _asked(self) -> Asked:
        options = self.options
        return Asked(
            restored=options.start.name if options.start is not None else "",
            target=options.target.address if options.target is not None else "",
            archives=options.archives,
            until_now=options.target is not None,
            sources=described(self._plan, Read, self._code.folder),
        )

    def _begin(self, asked: Asked, beginning: RunBeginning | None) -> RunBeginning:
        """What the run reads: as an execution before this one has fixed it, else as given, else as it is now."""
        if self._beginnings.find(self.run_id, asked) is None:
            self._beginnings.fix(self.run_id, beginning or self.look())
        found = self._beginnings.find(self.run_id, asked)
        assert found is not None
        return found

    def _warn_of_misspelt(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Say which optional fields the records seem to spell otherwise."""
        found = misspelt_fields(reports)
        for line in misspelt_lines(self.graph, lambda operator: found.get(operator, {})):
            self.options.warn(line)

    def _print_rows(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Hand the rows of console sinks to them, in the order of subtask and number."""
        printed = [report for report in reports if report["kind"] == "rows"]
        printed.sort(key=lambda report: (report["operator"], report["subtask"], report["number"]))
        nodes = {node.operator_id: node for node in self._plan}
        sinks = sinks_of(self._plan)
        for report in printed:
            operator = report["operator"]
            writer = sinks[operator].sink.open(
                nodes[operator].schema, WriteContext(operator, 0, self.run_id, 0, self._clock.now_us)
            )
            writer.write(pl.read_ipc(base64.b64decode(report["rows"])))
            writer.close()


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).strip().splitlines()[:3])[:1_000] or type(error).__name__
