"""Files that are large for a session whose tasks are to read little."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = os.environ.get("PENSTOCK_TEST_SEED", "2026")
ROWS = 3_000
MOST, OPEN = "spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes"


@contextmanager
def parts_of(spark: SparkSession, most_bytes: int) -> Generator[None]:
    """While this is open files are read in parts of so many bytes."""
    spark.conf.set(MOST, str(most_bytes))
    spark.conf.set(OPEN, "1b")
    try:
        yield
    finally:
        spark.conf.unset(MOST)
        spark.conf.unset(OPEN)


def events(folder: Path, kind: str) -> Path:
    """A file of rows out of order, of which several have one event time, some are late and two bad; and a small one."""
    print(f"PENSTOCK_TEST_SEED={SEED}")
    rng, start = random.Random(SEED), datetime(2026, 3, 1, tzinfo=UTC)
    folder.mkdir()
    for name, first, end in (("a", 0, ROWS), ("b", ROWS, ROWS + 20)):
        given = [
            {
                "number": number,
                "key": f"k{rng.randrange(5)}",
                "at": start + timedelta(milliseconds=100 * (number // 4 * 4) - 1_000 * rng.randrange(40) // 20 * 20),
                "text": "é" * rng.randrange(9) if number not in (1_000, 2_000) else None,
            }
            for number in range(first, end)
        ]
        frame = pl.DataFrame(given, schema_overrides={"at": pl.Datetime("us", "UTC")})
        match kind:
            case "parquet":
                frame.write_parquet(folder / f"{name}.parquet", row_group_size=200)
            case "arrow":
                frame.write_ipc(folder / f"{name}.arrow", record_batch_size=200)
            case "csv":
                number = pl.col("number").cast(pl.String)
                number = pl.when(pl.col("text").is_null()).then(pl.lit("bad")).otherwise(number).alias("number")
                text = pl.col("text") + "\n"
                timed = frame.with_columns(number, pl.col("at").dt.to_string("iso"), text, more=pl.lit("\n"))
                timed.write_csv(folder / f"{name}.csv")
            case _:
                lines = [json.dumps({**row, "at": row["at"].isoformat()}, ensure_ascii=False) for row in given]
                (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder / f"a.{kind}"
