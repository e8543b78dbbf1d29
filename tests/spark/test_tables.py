"""Savepoints as tables of Spark: what `penstock.savepoint` gives, read by tasks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from local_lowering import SESSION, LocalLowering
from pyspark.sql.types import StructType
from spark_runs import HERE
from state_runs import run_part, write_part

from penstock import savepoint


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A savepoint with windows, sessions, every kind of state, timers, and a list without key."""
    root = tmp_path_factory.mktemp("tables")
    write_part(root / "in", "a-", 0, 1_493)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.spark.lowering.Lowering", LocalLowering)
        given = {"in": str(root / "in"), "out": str(root / "out")}
        run_part(SESSION, root, given, target=root / "kept", file=HERE / "tables_pipeline.py")
    return root / "kept"


def rows(frame: Any) -> list[tuple[Any, ...]]:
    """As text, in order: Spark gives no order and its own types."""
    return sorted(tuple(map(str, row)) for row in frame)


@pytest.fixture
def load(spark, kept):
    """Reads a table with options."""
    from penstock.spark.tables import register

    register(spark)

    def table(**options: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PySpark's own
            return spark.read.format("penstock").options(**options).load(str(kept)).toArrow()

    return table


def test_every_table_is_that_of_the_library(load, kept):
    """Columns and rows, whatever a table holds."""
    sp = savepoint.read(kept)
    wanted: list[tuple[dict[str, str], pl.DataFrame]] = [
        ({"uid": uid}, sp.table(uid)) for uid in ("windows", "sessions", "totals", "minutes")
    ]
    wanted += [({"uid": "minutes", "state": name}, sp.table("minutes", name)) for name in ("counts", "pending")]
    wanted += [({"uid": "held", "state": "held"}, sp.table("held", "held"))]
    wanted += [({"uid": "minutes", "table": "timers"}, sp.timers("minutes"))]
    wanted += [({"uid": "totals", "table": "keys"}, sp.keys("totals"))]
    wanted += [({"table": "splits"}, sp.splits()), ({"table": "watermarks"}, sp.watermarks())]
    for options, expected in wanted:
        assert expected.height, options
        got = pl.from_arrow(load(**options))
        assert isinstance(got, pl.DataFrame)
        assert got.columns == expected.columns
        assert rows(got.cast({n: k for n, k in expected.schema.items() if got.schema[n] != k}).rows()) == rows(
            expected.rows()
        ), options
    assert load().column("uid").to_pylist() == [operator.uid for operator in sp.operators]


def test_large_state_is_read_in_parts(kept, monkeypatch):
    """Ranges of key groups that hold every row once."""
    from penstock.spark import tables

    monkeypatch.setattr(tables, "_PARTITION_BYTES", 500)
    reader = tables.SavepointSource({"path": str(kept), "uid": "minutes"}).reader(StructType())
    parts = reader.partitions()
    assert len(parts) > 3
    found = [pl.from_arrow(batch) for part in parts for batch in reader.read(part)]
    assert rows(pl.concat(found).rows()) == rows(savepoint.read(kept).table("minutes").rows())


def test_a_filter_of_one_query_is_not_in_the_next(spark, load, kept):
    """Nothing is pushed down."""
    load()
    totals = spark.read.format("penstock").option("uid", "totals").load(str(kept))
    everything = totals.count()
    assert 0 < totals.where("key = '3'").count() < everything
    assert totals.count() == everything


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uid": "total"}, "no operator with state is called so there; did you mean 'totals'"),
        ({"table": "timer"}, "there is no table 'timer'; did you mean 'timers'"),
        ({"table": "timers"}, "whose timers"),
        ({"udi": "totals"}, "there is no option 'udi'; did you mean 'uid'"),
    ],
)
def test_what_is_wrong_is_said(options, message, load):
    """By name, with what was probably meant."""
    with pytest.raises(Exception, match=message):
        load(**options)
