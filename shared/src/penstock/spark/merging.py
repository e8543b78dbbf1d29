"""Spark's part of a window aggregate: partials of rows, or of panes, to one partial per key and window.

Everything is told from columns' numbers (see `wire`). Reports go along as groups of their own, which no partial joins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions

from penstock.spark.wire import OUTPUT, PARTITION, READ_TAGS, REPORT, REPORT_OUTPUT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.functions.windows.shape import WindowShape
    from penstock.spark.native import NativeWindow


def merged_partials(partials: DataFrame, native: NativeWindow, partitions: int) -> DataFrame:
    """What the tasks behind a window are given: tags, keys, start of the window, partials; sorted by window.

    Args:
        partials: `REPORT` and the columns of `native`, in any order.
        native: how they are merged.
        partitions: subtasks of the window's vertex. A key has all its windows in one of them.
    """
    names = native.schema.names
    keys, start = names[: native.keys], names[native.keys]
    placed = partials.repartition(partitions, *keys)
    # A group-by finds the rows of a key together already: there is no exchange behind this one.
    merged = _grouped(placed, native)
    if native.shape.pane != native.shape.size:
        merged = _grouped(merged.withColumn(start, _windows_of(functions.col(start), native.shape)), native)
    known = {
        OUTPUT: functions.when(functions.col(REPORT).isNull(), 0).otherwise(REPORT_OUTPUT),
        PARTITION: functions.spark_partition_id(),
        REPORT: functions.col(REPORT),
    }
    tags = [known.get(name, functions.lit(None)).alias(name) for name in READ_TAGS]
    return merged.sortWithinPartitions(start, *keys).select(*tags, *names)


def _grouped(frame: DataFrame, native: NativeWindow) -> DataFrame:
    names = native.schema.names
    by, partials = names[: native.keys + 1], names[native.keys + 1 :]
    merges = zip(partials, native.merges, strict=True)
    return frame.groupBy(*by, REPORT).agg(*(functions.expr(how.format(name)).alias(name) for name, how in merges))


def _windows_of(pane: Column, shape: WindowShape) -> Column:
    """A row for the start of every window that a pane is part of (see `WindowShape.ends_of`); a report stays one."""

    def at_or_before(moment: Column) -> Column:
        return moment - functions.pmod(moment - functions.lit(shape.offset), functions.lit(shape.slide))

    oldest = at_or_before(pane + functions.lit(shape.pane - shape.size - 1)) + functions.lit(shape.slide)
    starts = functions.sequence(oldest, at_or_before(pane), functions.lit(shape.slide))
    return functions.explode_outer(starts)
