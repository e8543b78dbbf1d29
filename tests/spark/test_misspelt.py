"""Optional fields that records spell otherwise are told of by a run on Spark, too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.adapters.system_clock import SystemClock
from penstock.connectors import console, files
from penstock.pipeline import Pipeline
from penstock.spark.engine import RunOptions, SparkRun
from penstock.spark.pickling import pickle_plan


@dataclass
class Order:
    id: int
    amuont: float | None


def test_a_run_warns_once_however_many_splits_there_are(local: Any, tmp_path: Path) -> None:
    """Tasks look at the records; the driver says what they found."""
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.jsonl").write_text(json.dumps({"id": number, "amount": 2.5}) + "\n")
    p, said = Pipeline("misspelt"), list[str]()
    p.read(files.Source(tmp_path / "in", schema=Order)).write(console.Sink())
    SparkRun(
        local, p, pickle_plan(p.plan), run="run", clock=SystemClock(), folder=tmp_path / "runs", parallelism=2,
        options=RunOptions(warn=said.append),
    ).execute()  # fmt: skip
    [warning] = said
    assert "Order.amuont is in none of the first records" in warning
    assert "did you mean 'amount'" in warning
