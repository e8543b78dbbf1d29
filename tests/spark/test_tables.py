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
from penstock.errors import UsageError


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


# -- writing ------------------------------------------------------------------------------------------------------------

COUNTS = {"uid": "minutes", "state": "counts"}


def table_of(kept: Path, options: dict[str, str]) -> pl.DataFrame:
    """What a reader with these options gives, in the types of Spark."""
    from penstock.spark.tables import SavepointSource

    reader = SavepointSource({"path": str(kept), **options}).reader(StructType())
    found = pl.concat(pl.from_arrow(batch) for part in reader.partitions() for batch in reader.read(part))
    assert isinstance(found, pl.DataFrame)
    return found


def write(frame: pl.DataFrame, kept: Path, target: Path, options: dict[str, str]) -> None:
    """As Spark does it, in three tasks of two batches."""
    from penstock.spark.tables import SavepointSource

    given = {"path": str(target), "from": str(kept), **options}
    writer = SavepointSource({name: value for name, value in given.items() if value}).writer(
        StructType(), overwrite=False
    )
    parts = [frame[number::3] for number in range(3)]
    try:
        said = [
            writer.write(iter(part.to_arrow().to_batches(max_chunksize=max(1, part.height // 2)))) for part in parts
        ]
    except Exception:
        writer.abort([])
        raise
    writer.commit(list(said))


@pytest.mark.parametrize(
    "options",
    [
        {"uid": "windows"},
        {"uid": "sessions"},
        {"uid": "totals"},
        COUNTS,
        {"uid": "minutes", "state": "pending"},
        {"uid": "minutes", "table": "timers"},
        {"uid": "events", "table": "splits"},
    ],
)
def test_a_table_that_is_read_can_be_written(kept, tmp_path, options):
    """The new savepoint holds what the old one did, out of several tasks; nothing is left beside it."""
    write(table_of(kept, options), kept, tmp_path / "new", options)
    old, new = savepoint.read(kept), savepoint.read(tmp_path / "new")
    for uid, state in [("windows", None), ("totals", None), ("minutes", None), ("sessions", None), ("held", "held")]:
        assert rows(new.table(uid, state).rows()) == rows(old.table(uid, state).rows()), uid
    assert rows(new.timers("minutes").rows()) == rows(old.timers("minutes").rows())
    assert rows(new.splits().rows()) == rows(old.splits().rows())
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_what_spark_computed_is_what_the_job_goes_on_with(spark, kept, tmp_path):
    """By a real session: keys that are gone have no state, everything else is as it was."""
    from penstock.spark.tables import register

    register(spark)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        counts = spark.read.format("penstock").options(**COUNTS).load(str(kept)).where("key <> '3'").repartition(3)
        made = counts.write.format("penstock").options(**{"from": str(kept)}, **COUNTS)
        made.mode("append").save(str(tmp_path / "less"))
        with pytest.raises(Exception, match=r'write mode\("append"\)'):
            made.mode("overwrite").save(str(tmp_path / "other"))
    old, less = savepoint.read(kept), savepoint.read(tmp_path / "less")
    expected = old.table("minutes", "counts").filter(pl.col("key") != "3")
    assert 0 < expected.height < old.table("minutes", "counts").height
    assert rows(less.table("minutes", "counts").rows()) == rows(expected.rows())
    assert rows(less.table("minutes", "pending").rows()) == rows(old.table("minutes", "pending").rows())


def test_a_table_without_rows_empties_the_state(kept, tmp_path):
    """Though no task says anything of it."""
    write(table_of(kept, COUNTS).clear(), kept, tmp_path / "none", COUNTS)
    old, new = savepoint.read(kept), savepoint.read(tmp_path / "none")
    assert new.table("minutes", "counts").height == 0
    assert new.table("minutes", "pending").height == old.table("minutes", "pending").height


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        (COUNTS, lambda f: pl.concat([f, f]), "has the same entry twice"),
        ({"uid": "windows"}, lambda f: pl.concat([f, f]), "has the same entry twice"),
        ({"uid": "minutes", "table": "timers"}, lambda f: pl.concat([f, f]), "has the same entry twice"),
        (COUNTS, lambda f: f.drop("value"), "column 'value' is missing"),
        (COUNTS, lambda f: f.rename({"key": "kee"}), "did you mean 'key'"),
        ({"uid": "minutes", "state": "pending"}, lambda f: f.drop("index"), "rows of a DataFrame have no order"),
    ],
)
def test_rows_that_cannot_be_state_are_refused(kept, tmp_path, options, change, message):
    """Wherever they come from; and there is no savepoint then."""
    with pytest.raises(UsageError, match=message):
        write(change(table_of(kept, options)), kept, tmp_path / "new", options)
    assert not (tmp_path / "new" / "savepoint.json").exists()
    assert not [path for path in tmp_path.iterdir() if path.name != "new"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uid": "minutes", "state": "count"}, "did you mean 'counts'"),
        ({"uid": "held", "state": "held"}, "its state has no key"),
        ({"uid": "minutes", "table": "keys"}, "there is no table 'keys' to write"),
        ({"state": "counts"}, "whose state"),
        ({**COUNTS, "from": ""}, "the savepoint to edit"),
        ({**COUNTS, "path": "."}, "there is something already"),
        ({**COUNTS, "form": "x"}, "there is no option 'form'; did you mean 'from'"),
    ],
)
def test_a_writer_that_is_asked_wrongly_says_so(kept, tmp_path, options, message, monkeypatch):
    """Before a task runs."""
    monkeypatch.chdir(kept)
    with pytest.raises(UsageError, match=message):
        write(pl.DataFrame(), kept, tmp_path / "new", options)
