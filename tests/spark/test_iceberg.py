"""Tables of Iceberg on Spark, by pyiceberg in its tasks: the rows of the embedded run, by one commit of each run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pipelines import source
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from spark_runs import run
from state_runs import run_part

from penstock import Pipeline
from penstock.connectors import iceberg
from penstock.connectors.iceberg import appending
from penstock.errors import ExternalError
from penstock.loading import load_pipeline

FILE = Path(__file__).parent / "iceberg_pipeline.py"
STREAM = Path(__file__).parent / "iceberg_stream_pipeline.py"


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    """With a table of events in several files."""
    settings = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": (tmp_path / "warehouse").as_uri(),
    }
    archive = Pipeline("archive")
    archive.read(source(None)).write(iceberg.Sink("shop.events", catalog=settings))
    assert archive.run(parallelism=2, directory=tmp_path / "archive").state == "FINISHED"
    return settings


def table(catalog: dict[str, str], name: str) -> Table:
    return load_catalog("default", **catalog).load_table(name)


def found(catalog: dict[str, str], name: str) -> list[str]:
    return sorted(map(str, table(catalog, name).scan().to_arrow().to_pylist()))


def expected(catalog: dict[str, str], tmp_path: Path) -> list[str]:
    """What the embedded run writes."""
    embedded = load_pipeline(str(FILE), catalog | {"out": "shop.embedded"})
    assert embedded.run(parallelism=2, directory=tmp_path / "embedded").state == "FINISHED"
    return found(catalog, "shop.embedded")


def test_one_commit_of_a_run(
    spark: Any, catalog: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver dies behind the commit, before that is on record; given again, as often as one likes, it is once."""
    rows = expected(catalog, tmp_path)
    assert rows
    original = appending._append_now

    def dies(*given: Any) -> Any:
        original(*given)
        raise ExternalError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(appending, "_append_now", dies)
        with pytest.raises(ExternalError, match="killed"):
            run(spark, FILE, tmp_path / "spark", catalog, "once")
    for _ in range(2):
        run(spark, FILE, tmp_path / "spark", catalog, "once")
        assert found(catalog, "shop.minutes") == rows
    assert len(table(catalog, "shop.minutes").history()) == 1
    assert table(catalog, "shop.minutes").inspect.files().num_rows > 1, "of several tasks and days"


def test_a_stream_goes_on_from_run_to_run(local: Any, catalog: dict[str, str], tmp_path: Path) -> None:
    """Each reads what was appended since the one before, whose savepoint it starts with; nothing else."""
    events = table(catalog, "shop.events").scan().to_arrow()
    read: list[int] = []
    for number in range(3):
        before = tmp_path / f"kept-{number - 1}" if number else None
        given = catalog | {"out": f"shop.out{number}"}
        result = run_part(local, tmp_path, given, file=STREAM, start=before, target=tmp_path / f"kept-{number}")
        read.append(result.total("events", "rows_in"))
        table(catalog, "shop.events").append(events.slice(0, 10 * (number + 1)))
    assert read == [events.num_rows, 10, 20]
