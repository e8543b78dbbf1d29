"""The same program on Spark: a vertex of the job graph becomes a stage, an edge an exchange; operators stay the same.

Responsible for running a job graph over bounded input through PySpark. `lowering` makes data frames of the graph,
`stage` runs inside Spark's tasks and drives the chains that the streaming runtime drives, `wire` is what passes between
the two, `committing` makes the results visible once per run: rows of exactly-once sinks are staged by tasks (`staging`)
and published by the driver (`publishing`). `splits` fixes what a run reads, `state` and `savepoints` bring operators'
state in and out, `progress` says how far event time has come where a stream goes on. `local_run` is a run whose driver is
this process, `catching_up` one between two lives of a job; `run_submission` takes a run to a cluster, where `submitting`
and `submitted` are the two sides of a run that the pipeline service starts. `tracking` says what Spark is at. `tables`
shows savepoints to Spark, `dataframes` streams. PySpark is imported by what runs a pipeline there, and by nothing that
`import penstock` loads.

Users have from here `to_dataframe`, and `register` for savepoints as tables.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.dataframes import to_dataframe
    from penstock.spark.tables import register

_HOMES = {"register": "penstock.spark.tables", "to_dataframe": "penstock.spark.dataframes"}

__all__ = ["register", "to_dataframe"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
