"""The queries of Structured Streaming that one would write in place of `steps_pipelines`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import functions
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Counting(StatefulProcessor):
    """Numbers the rows of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """The state."""
        self._seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        """Those of one key in a batch."""
        before = self._seen.get()
        n = 0 if before is None else before[0]
        for frame in rows:
            yield pd.DataFrame({"key": key[0], "n": range(n + 1, n + len(frame) + 1), "at": frame["at"]})
            n += len(frame)
        self._seen.update((n,))

    def close(self) -> None:
        """Nothing is open."""


def query(spark: SparkSession, case: str, brokers: str, events: str, results: str, checkpoints: str, every: str) -> Any:
    """Started."""
    options = {"kafka.bootstrap.servers": brokers, "subscribe": events, "startingOffsets": "earliest"}
    raw = spark.readStream.format("kafka").options(**options).load()
    text = functions.from_json(functions.col("value").cast("string"), "key bigint, value bigint, at timestamp")
    rows = raw.select(text.alias("e")).select("e.*").withWatermark("at", "1 second")
    made = _windows(rows) if case == "window" else _counted(rows)
    written = made.select(functions.to_json(functions.struct("key", "n", "at")).alias("value")).writeStream
    sink = {"kafka.bootstrap.servers": brokers, "topic": results, "checkpointLocation": checkpoints}
    mode = "append"
    return written.format("kafka").options(**sink).outputMode(mode).trigger(processingTime=every).start()


def _windows(rows: DataFrame) -> DataFrame:
    grouped = rows.groupBy("key", functions.window("at", "5 seconds"))
    made = grouped.agg(functions.count("*").alias("n"), functions.sum("value").alias("total"))
    return made.select("key", "n", functions.col("window.end").alias("at"))


def _counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").transformWithStateInPandas(
        Counting(), "key bigint, n bigint, at timestamp", outputMode="append", timeMode="None"
    )
