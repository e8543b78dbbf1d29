"""`Pipeline`: what a pipeline file declares, and the ways to run it from Python."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, overload

from penstock.api.parameters import given_parameters
from penstock.api.pipeline import DeclaredPipeline, importing
from penstock.api.stream import Stream
from penstock.api.update_streams import UpsertStream
from penstock.api.verbs import NoSuchVerbError
from penstock.connectors.base import Row
from penstock.core.arguments import checked
from penstock.core.extras import naming_extras
from penstock.core.times import Duration, duration_us
from penstock.errors import PipelineError, UsageError, nearest
from penstock.expressions.accumulators import Accumulator
from penstock.observability import user_frames as user_frames  # tells IPython how errors are shown
from penstock.plan.logical import Node, sources_of
from penstock.plan.operations.write import Write
from penstock.protocol.checkpoints import TOLERABLE_FAILED

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

    from penstock.client.cluster import Job
    from penstock.coordination.job_progress import JobResult
    from penstock.settings import ClusterSettings
    from penstock.spark.result import SparkResult


_OF_SOURCES: Final = (
    "source", "from_source", "add_source", "stream", "dataframe", "from_collection", "read_csv", "read_json",
    "read_parquet", "scan_csv", "scan_parquet", "read_stream", "readStream", "from_path", "input", "topic",
)  # fmt: skip
"""What reads elsewhere."""
_OF_STREAMS: Final = ("collect", "to_pandas", "write", "filter", "schema", "columns", "head")
_INSTEAD: Final = {
    **dict.fromkeys(("execute", "start", "launch", "main"), "p.run() runs it here, and p.submit() on a cluster"),
    **dict.fromkeys(("explain", "show", "describe", "print"), "penstock plan FILE shows what it becomes"),
    **dict.fromkeys(
        _OF_SOURCES,
        "p.read(source) gives a stream, of files.Source(...), kafka.Source(...) and others in penstock.connectors",
    ),
    **dict.fromkeys(("table", "execute_sql", "sql_query"), 'p.sql("SELECT ... FROM bids", bids=stream) gives a stream'),
    **dict.fromkeys(
        ("parallelism", "set_parallelism"),
        "write p.run(parallelism=4), penstock run --parallelism 4, or .parallelism(4) of a verb",
    ),
    **dict.fromkeys(_OF_STREAMS, "that is a verb of streams, which p.read(...) gives"),
}
"""What is written for what others call otherwise."""


@checked
class Pipeline(DeclaredPipeline):
    """A named pipeline: sources, verbs, sinks. Building it checks it; nothing runs until it is asked to.

    Args:
        name: shown everywhere, and part of what identifies the job's state.
        max_parallelism: the number of key groups, and so the largest parallelism that state can ever be spread over; it
            cannot be changed for state that there is.
        watermark_interval: how much time a subtask leaves at least between two watermarks that it sends to its consumers
            while rows flow; by default it sends one whenever it sends rows. With hundreds of subtasks fewer are less
            work, and windows that wait for rows of nobody are sent so much later. What comes out stays the same.
        state_ttl: how long after it was last written the state of a key lives, in processing time, of every verb that
            has `ttl=` and says nothing itself: `agg` and `reduce` without windows, `top`, `deduplicate`, `distinct`,
            joins by key alone, and what keeps rows in order to take them back: `changes` and the verbs that make changes,
            sources of changes, sinks with another key than the updates. `ttl="0s"` at a verb is for ever. Windows, joins
            in time, `over` and the state of process functions are not touched by it. For ever if not given; what it makes
            of results stands in `docs/changes.md` (Flink: `table.exec.state.ttl`).
        engine: `"spark"` for a pipeline over bounded input that is at home there: `penstock run` and `penstock submit`
            use Spark for it unless `--engine` says otherwise. `run()` is told by its own argument.

    Example:
        >>> p = Pipeline("hot-auctions")
        >>> bids = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at"))
    """

    _was_asked = False
    """Whether it was asked to run, here or elsewhere."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            known = [each for each in dir(self) if not each.startswith("_")]
            raise NoSuchVerbError(
                f"{name}: a pipeline has no such method; {_INSTEAD.get(name) or nearest(name, known)}"
            )

    def sql(
        self, text: str, /, **named: Stream[Any] | UpsertStream | Callable[..., Any] | Accumulator[Any, Any]
    ) -> Stream[Row] | UpsertStream:
        """The rows of a query in Flink's SQL over streams of this pipeline.

        Args:
            text: one query: `SELECT`, `VALUES`, or several with `UNION`, `INTERSECT` or `EXCEPT`.
            **named: the streams that the query reads, and Python functions that it calls, by the names in the text. A
                function is given values of a row, its annotations say the types, and it gives the same for the same
                values; one that returns a list or an iterator may stand in `FROM`. An `Accumulator` is an aggregate.

        Returns:
            A stream of rows where no row is ever replaced; else updates or changes, whose last rows `final()` gives.

        Raises:
            SqlError: the text is wrong, or cannot be computed of streams; the message shows the place.

        Example:
            >>> dear = p.sql("SELECT auction, MAX(price) AS most FROM bids GROUP BY auction", bids=bids)
            >>> sorted(dear.final().collect().rows())
            [(1, 120.0), (2, 250.0)]
            >>> def taxed(price: float) -> float:
            ...     return price * 1.19
            >>> p.sql("SELECT auction, taxed(price) AS gross FROM bids", bids=bids, taxed=taxed).collect().height
            4
        """
        from penstock.sql.text import SqlText
        from penstock.sql.writing import rows_of_query

        streams = {name: each._rows for name, each in named.items() if isinstance(each, Stream | UpsertStream)}
        functions = {name: each for name, each in named.items() if not isinstance(each, Stream | UpsertStream)}
        rows = rows_of_query(self.plan, SqlText(text), streams, functions)
        return UpsertStream(self, rows.node) if rows.node.updates else Stream(self, rows.node)

    @overload
    def run(
        self,
        *,
        engine: Literal["embedded"] = "embedded",
        parallelism: int = 1,
        directory: str | Path | None = None,
        resume: bool = False,
        checkpoint_interval: Duration = "10s",
        at_least_once: bool = False,
        restart: str = "none",
        state_backend: Literal["fs", "memory", "rocksdb"] = "fs",
        incremental_checkpoints: bool = False,
        durable: bool = True,
        from_savepoint: str | Path | None = None,
    ) -> JobResult: ...
    @overload
    def run(
        self,
        *,
        engine: Literal["spark"],
        spark: SparkSession | None = None,
        parallelism: int | None = None,
        directory: str | Path | None = None,
        run_id: str | None = None,
        native: bool = True,
        from_savepoint: str | Path | None = None,
        to_savepoint: str | Path | None = None,
        staging: str | None = None,
    ) -> SparkResult: ...
    @naming_extras()
    def run(
        self,
        *,
        engine: Literal["embedded", "spark"] = "embedded",
        parallelism: int | None = None,
        directory: str | Path | None = None,
        **options: Any,
    ) -> JobResult | SparkResult:
        """Run the pipeline until its input ends, from a script or a notebook: in this process, or on Spark.

        Args:
            engine: `"spark"` runs a pipeline whose input has an end there; see `docs/spark.md`.
            spark: the session (Spark); nothing is set in it, and it stays open. If not given, the one that is active,
                else one that is made for this run: by `spark-submit` as that says, elsewhere `local[*]`.
            run_id: a run that is given again by the same id (Spark) is not computed twice; a fresh one by default.
            native: whether Spark's own plan computes what is proven equal to streaming.
            parallelism: subtasks per operator that says nothing else; 1 by default, on Spark what it runs at a time.
            directory: where log, snapshots and job log stand, a temporary folder by default; on Spark where the runs of
                the pipeline are put down, by default `.penstock/<name>/spark`.
            resume: continue what an earlier run left in `directory`.
            checkpoint_interval: from the start of one checkpoint to the next.
            at_least_once: do not align barriers; all sinks become at-least-once.
            restart: what follows a failure, such as `"fixed-delay:3:1s"`; none by default: the error is raised here.
            state_backend: where keyed state is. `fs`: in memory, its snapshots in files of `directory`. `memory`: so too,
                with the snapshots in the checkpoint's metadata (small state only). `rocksdb`: that of process
                functions and of rows by key of aggregates on the local disk behind a cache (needs
                `penstock-streaming[rocksdb]`).
            incremental_checkpoints: a checkpoint stores what has changed since an earlier one: of state in columns, and
                with `rocksdb` of process functions; not with `memory`.
            durable: survive a power loss; without it only the death of the process.
            from_savepoint: a savepoint with whose state and positions the run begins: a folder or a URL
                (`s3://bucket/folder`), on Spark also the key of a manifest in the store of the default cluster.
            to_savepoint: where the run leaves its state (Spark), a new folder or URL; topics without an end are read up
                to now.
            staging: where executors leave rows of exactly-once sinks for the driver (Spark), if they share no folder with
                it: `s3://bucket/folder`.

        Returns:
            What became of it. While Penstock itself imports the file (`penstock run FILE`, a task manager), this call
            runs nothing, and the result's state is `NOT_RUN`.

        Raises:
            PenstockError: the job failed; the error is what its code or the engine raised.

        Example:
            >>> written = bids.write(files.Sink("out"))
            >>> p.run(directory="state", checkpoint_interval="1s").state
            'FINISHED'
        """
        self._was_asked = True
        if engine == "spark":
            return self._run_on_spark(parallelism, directory, options)
        from penstock.coordination.job_progress import JobProgress, JobResult

        if importing():
            return JobResult("", "NOT_RUN", "Penstock imports the file", JobProgress(""))
        from penstock.embedded import run

        return run(self, parallelism=1 if parallelism is None else parallelism, directory=directory, **options)

    def _run_on_spark(
        self, parallelism: int | None, directory: str | Path | None, options: Mapping[str, Any]
    ) -> SparkResult:
        from penstock.spark.result import SparkResult

        if importing():
            return SparkResult("", {}, computed=False, state="NOT_RUN")
        from penstock.spark.local_run import run

        return run(self, parallelism=parallelism, directory=directory, **options)

    @naming_extras()
    def submit(
        self,
        cluster: ClusterSettings | str | Path | None = None,
        *,
        parallelism: int = 1,
        from_savepoint: str | None = None,
        checkpoint_interval: Duration = "10s",
        tolerable_failed_checkpoints: int = TOLERABLE_FAILED,
        at_least_once: bool = False,
        restart: str = "exponential",
        state_backend: Literal["fs", "memory", "rocksdb"] = "fs",
        incremental_checkpoints: bool = False,
        per_job: bool = False,
        allow_non_restored: bool = False,
        allow_unpublished: bool = False,
        timeout: Duration = "60s",
    ) -> Job:
        """Run the pipeline on a cluster; returns once its leader has accepted the job.

        The file that declares the pipeline goes to the cluster with the local modules it imports, and is imported again
        there, so the pipeline must have a name in it, outside functions, and this call stands below
        `if __name__ == "__main__":`.

        Args:
            cluster: its settings or their file; `$PENSTOCK_CLUSTER`, else `.penstock/cluster.toml`, if not given.
            parallelism: subtasks per operator that says nothing else.
            from_savepoint: what the job starts from: a job, a savepoint, or a folder that holds one.
            checkpoint_interval: from the start of one checkpoint to the next.
            tolerable_failed_checkpoints: so many in a row may fail before the attempt does.
            at_least_once: do not align barriers; all sinks become at-least-once.
            restart: a strategy and its parts, such as `"fixed-delay:3:1s"`.
            state_backend: where keyed state is: see `run`; snapshots go to the store.
            incremental_checkpoints: a checkpoint stores what has changed since an earlier one: of state in columns, and
                with `rocksdb` of process functions; not with `memory`.
            per_job: have task managers started for this job alone.
            allow_non_restored: state of operators that the pipeline does not have may be dropped.
            allow_unpublished: rows that the checkpoint covers and that its job never published may be lost.
            timeout: how long a leader is waited for.

        Raises:
            UsageError: the pipeline is not declared in a file, or one of the options is none.
            PipelineError: it cannot run on a cluster as it is written.
            PenstockError: the cluster refuses it.

        Example:
            >>> job = p.submit("production.toml", parallelism=4)  # doctest: +SKIP
            >>> job.wait().state  # doctest: +SKIP
            'FINISHED'
        """
        self._was_asked = True
        from penstock.client.cluster import Cluster, Job
        from penstock.submission.application import ApplicationSpec, prepare_loaded, restored
        from penstock.submission.options import JobOptions, job_settings
        from penstock.submission.remote import find_restore, submit

        if importing():
            raise UsageError(
                f"{self.name}: submit() stands where a cluster imports the file again; put it below "
                'if __name__ == "__main__":'
            )
        settings = job_settings(
            checkpoint_interval=checkpoint_interval, tolerable_failed_checkpoints=tolerable_failed_checkpoints,
            at_least_once=at_least_once, restart=restart, state_backend=state_backend,
            incremental_checkpoints=incremental_checkpoints, per_job=per_job,
        )  # fmt: skip
        options = JobOptions(
            parallelism=parallelism, settings=settings, allow_non_restored=allow_non_restored,
            allow_unpublished=allow_unpublished,
        )  # fmt: skip
        prepared = prepare_loaded(self, ApplicationSpec(_target_of(self), given_parameters(), options))
        target = Cluster(cluster)
        if from_savepoint is not None:
            name = from_savepoint
            prepared = restored(prepared, target.ask(lambda client: find_restore(client, target.settings, name)))
        deadline_s = duration_us(timeout, "submit: timeout", positive=True) / 1_000_000
        return Job(target, target.ask(lambda client: submit(client, prepared, deadline_s)).job)

    @naming_extras()
    def rows_of(self, node: Node, limit: int | None = None) -> pl.DataFrame:
        """See `Stream.collect`."""
        self._was_asked = True
        import polars as pl

        if limit is not None and limit < 0:
            raise PipelineError(f"collect: limit={limit}: take 0 or more rows")
        if importing() or limit == 0:
            return pl.DataFrame(schema=node.schema.polars())
        from penstock.connectors import collecting
        from penstock.embedded import EmbeddedSettings, first_rows, run_pipeline

        part = DeclaredPipeline(self.name)
        if limit is not None:
            first = collecting.FirstRows(limit)
            part.plan = self.plan.ending_in(node, Write(first))
            first_rows(part, first)
            return pl.concat(first.frames) if first.frames else pl.DataFrame(schema=node.schema.polars())
        endless = [read.operator_id for read, source in sources_of(node) if not source.bounded]
        if endless:
            raise PipelineError(
                f"collect: the source {endless[0]} has no end; .head(5) or .collect(limit=1_000) take the first rows"
            )
        sink = collecting.Sink()
        part.plan = self.plan.ending_in(node, Write(sink))
        run_pipeline(part, EmbeddedSettings(durable=False), directory=None, resume=False)
        return pl.DataFrame(sink.rows, schema=node.schema.polars(), orient="row")


def _target_of(pipeline: Pipeline) -> str:
    """`file.py:name` of a pipeline.

    Raises:
        UsageError: no imported file has it under a name.
    """
    for module, name in _named(pipeline):
        file = getattr(module, "__file__", None)
        if file is not None:
            return f"{file}:{name}"
    raise UsageError(
        f"{pipeline.name}: submit() sends the file that declares a pipeline, and no imported file has this one under a "
        "name, outside functions; write it into a file (from a notebook: %%writefile) and import it from there"
    )


def _named(pipeline: Pipeline) -> Iterator[tuple[Any, str]]:
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is pipeline:
                yield module, name


def _tell_of_idle_pipelines(file: str) -> None:
    """At the end of `python file.py`: say which of its pipelines with sinks nobody asked to run, which looks like a run
    without rows. A script that failed has said something else."""
    if getattr(sys, "last_value", None) is not None:
        return
    for name, value in vars(sys.modules["__main__"]).items():
        if not isinstance(value, Pipeline) or value._was_asked:
            continue
        if any(isinstance(node.operation, Write) for node in value.plan):
            sys.stderr.write(
                f"{file}: the pipeline {value.name!r} was declared and never run, so nothing was written; end the file "
                f"with {name}.run(), or give it to the command: penstock run {file}\n"
            )


_script: str | None = getattr(sys.modules.get("__main__"), "__file__", None)
if _script is not None and not sys.flags.inspect:  # in an interactive session it may be meant so
    atexit.register(_tell_of_idle_pipelines, _script)
