"""SIGKILL of a job that appends to a table of Iceberg, then --resume: the table of an uninterrupted run."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from sqlalchemy.exc import OperationalError

from .conftest import EXAMPLES, Command, kill

pytestmark = [pytest.mark.e2e, pytest.mark.acceptance]

EXAMPLE = EXAMPLES / "departures_iceberg.py"
SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))
KILLS = 3


def departures(folder: Path) -> list[str]:
    """The rows of the table, sorted; none if it is not there yet."""
    lake = folder / "out/lake"
    if not (lake / "catalog.db").exists():
        return []
    settings = {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": lake.as_uri()}
    # The job is to make the catalog's own tables: with them made here, at the same moment, its attempt would fail.
    catalog = load_catalog("default", **settings, init_catalog_tables="false")
    try:
        there = catalog.table_exists("flights.departures")
    except OperationalError:
        return []
    if not there:
        return []
    return sorted(map(str, catalog.load_table("flights.departures").scan().to_arrow().to_pylist()))


@pytest.mark.timeout(200)
def test_kills_change_nothing(tmp_path: Path) -> None:
    """At random moments of which most lie behind the first commit."""
    print(f"seed {SEED}: repeat with PENSTOCK_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    (tmp_path / "whole").mkdir()
    Command(tmp_path / "whole").run("run", EXAMPLE)
    expected = departures(tmp_path / "whole")
    assert expected
    (tmp_path / "killed").mkdir()
    penstock, seen = Command(tmp_path / "killed"), list[int]()
    current = tmp_path / "killed/.penstock/departures-iceberg/blobs/current-job"
    for _ in range(KILLS):
        how = "--resume" if current.exists() else "--fresh"
        process = penstock.start("run", EXAMPLE, how, "--checkpoint-interval", "60ms", "--param", "rate=6000")
        wanted, end = len(departures(tmp_path / "killed")), time.monotonic() + 30
        while process.poll() is None and time.monotonic() < end and len(departures(tmp_path / "killed")) <= wanted:
            time.sleep(rng.uniform(0.0, 0.05))
        time.sleep(rng.uniform(0.0, 0.1))
        kill(process)
        seen.append(len(departures(tmp_path / "killed")))
    penstock.run("run", EXAMPLE, "--resume", code=0)
    print("rows at the kills:", seen)
    assert departures(tmp_path / "killed") == expected
