"""A stream as a DataFrame, so that whatever Spark can do with one can be done with what Penstock computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.connectors import collecting
from penstock.core.arguments import checked
from penstock.plan.operations.write import Write
from penstock.spark.engine import spark_graph
from penstock.spark.native import native_windows, ways
from penstock.spark.savepoints import RunState
from penstock.spark.session import check_workers, default_parallelism
from penstock.spark.splits import Asked, find_beginning

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.api.verbs import StreamBase


@checked
def to_dataframe(
    stream: StreamBase, spark: SparkSession, *, parallelism: int | None = None, native: bool = True
) -> DataFrame:
    """The rows of a stream as a DataFrame of a session, on classic Spark or by Spark Connect.

    It is as lazy as any other: what the sources hold is looked up now, and computed when Spark wants the rows, again
    each time, so `cache()` it if it is used twice. Its columns have Spark's names of their types; unsigned integers are
    the next wider signed ones (`uint64` a decimal), times of day are nanoseconds.

    Args:
        stream: of a pipeline whose sources have an end. Of a stream of updates, every update; see `UpsertStream.final`.
        spark: the session; nothing is set in it.
        parallelism: tasks of an exchange; by default as many as Spark runs at a time.
        native: whether Spark's own plan computes what is proven equal to streaming.

    Raises:
        PipelineError: the pipeline cannot run on Spark, or cannot be sent to its tasks.
        UsageError: the workers of the session are of a Python that has no Penstock.

    Example:
        >>> totals = bids.key_by("auction").window(tumbling("1m")).agg(revenue=col("price").sum())
        >>> to_dataframe(totals, spark).orderBy("window_start").show()  # doctest: +SKIP
    """
    from penstock.spark.lowering import Lowering
    from penstock.spark.pickling import pickle_plan

    check_workers(spark)
    plan = stream._pipeline.plan.ending_in(stream._node, Write(collecting.Sink()), chainable=False)
    graph = spark_graph(plan, parallelism or default_parallelism(spark))
    lowering = Lowering(
        spark, graph, plan, pickle_plan(plan), find_beginning(graph, plan, Asked(), {}),
        RunState(graph, None, None, _nothing), execution="dataframe", staging="", entered=_nothing,
        natives=native_windows(ways(graph, plan, native=native)),
    )  # fmt: skip
    return lowering.frame().toDF(*stream._node.schema.names)


def _nothing(_: Any) -> None:
    """Nobody is told."""
