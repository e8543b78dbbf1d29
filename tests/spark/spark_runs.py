"""Runs pipeline files on Spark: what the tests of this folder share."""

from __future__ import annotations

import json
import uuid
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.adapters.system_clock import SystemClock
from penstock.loading import load_pipeline
from penstock.spark.code import pack_code
from penstock.spark.engine import RunOptions, SparkRun
from penstock.spark.result import SparkResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
CASES_FILE = HERE / "case_pipelines.py"
SPARK_CASES_FILE = HERE / "spark_pipelines.py"
QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Tiny queries are over before compiled code would pay."""


def prepare(
    spark: SparkSession,
    file: Path,
    root: Path,
    parameters: Mapping[str, str],
    run: str | None = None,
    *,
    native: bool = True,
) -> SparkRun:
    """A run that keeps its manifests below `root`."""
    given = dict(parameters)
    pipeline = load_pipeline(str(file), given)
    options = RunOptions(native=native)
    return SparkRun(
        spark, pipeline, pack_code(str(file), given), parallelism=2, run=run or uuid.uuid4().hex, clock=SystemClock(),
        folder=root / "runs", options=options,
    )  # fmt: skip


def run(
    spark: SparkSession,
    file: Path,
    root: Path,
    parameters: Mapping[str, str],
    run_id: str | None = None,
    *,
    native: bool = True,
) -> SparkResult:
    """Run it to its end."""
    return execute(prepare(spark, file, root, parameters, run_id, native=native))


def execute(made: SparkRun) -> SparkResult:
    """Run what was prepared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        return made.execute()


def rounded(found: Iterable[Any]) -> Any:
    """Results with floats to nine significant digits: engines may add the parts of a sum in another order."""
    if isinstance(found, Counter):
        rows: Counter[str] = Counter()
        for text, count in found.items():
            rows[json.dumps(_rounded(json.loads(text)), sort_keys=True)] += count
        return rows
    return _rounded(found)


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.9g}")
        case dict():
            return {key: _rounded(inner) for key, inner in value.items()}
        case list():
            return [_rounded(inner) for inner in value]
        case _:
            return value
