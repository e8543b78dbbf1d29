"""SIGKILL of jobs that write to tables of Postgres, then --resume: the tables of an uninterrupted run."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from tests.postgres_server import PostgresServer

from .conftest import EXAMPLES, Command, kill

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))
KILLS = 3
ADDED = """
from datetime import timedelta
from penstock import Pipeline, count, col, param, tumbling
from penstock.connectors import files, postgres
from departures_postgres import DATA, Flight

p = Pipeline("added")
rate = param("rate", 0) or None
flights = files.Source(DATA, schema=Flight, event_time="scheduled", max_out_of_orderness="9h", rate=rate)
per_day = p.read(flights).key_by("origin").window(tumbling("1d")).agg(flights=count(), most=col("delay_min").max())
per_day.write(postgres.Sink("departures", url=param("database", ""), create=True))
"""


class Database:
    """One for each run."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self._server = server
        self.name = name
        server.execute(SQL("create database {}").format(Identifier(name)))

    @property
    def parameter(self) -> str:
        return f"database={self._server.url_of(self.name)}"

    def rows(self) -> Counter[Any]:
        try:
            return Counter(self._server.execute("select * from departures", database=self.name))
        except psycopg.errors.UndefinedTable:
            return Counter()


@pytest.mark.parametrize("kind", ["by_key", "added"])
def test_kills_change_nothing(tmp_path: Path, postgres: PostgresServer, kind: str) -> None:
    """At random moments of which most lie behind the first commit."""
    print(f"seed {SEED}: repeat with PENSTOCK_TEST_SEED={SEED}")
    rng = random.Random(SEED)
    file = EXAMPLES / "departures_postgres.py"
    name = "departures-postgres"
    if kind == "added":
        (tmp_path / "departures_postgres.py").write_text(file.read_text().replace("__file__", repr(str(file))))
        file, name = tmp_path / "added.py", "added"
        file.write_text(ADDED)
    whole, killed = Database(postgres, f"{kind}_whole"), Database(postgres, f"{kind}_killed")
    (tmp_path / "whole").mkdir()
    Command(tmp_path / "whole").run("run", file, "--param", whole.parameter)
    expected = whole.rows()
    assert expected
    (tmp_path / "killed").mkdir()
    penstock, seen = Command(tmp_path / "killed"), list[int]()
    current = tmp_path / f"killed/.penstock/{name}/blobs/current-job"
    for _ in range(KILLS):
        how = "--resume" if current.exists() else "--fresh"
        options = ("--checkpoint-interval", "60ms", "--param", "rate=2000", "--param", killed.parameter)
        process = penstock.start("run", file, how, *options)
        wanted, end = killed.rows(), time.monotonic() + 30
        while process.poll() is None and time.monotonic() < end and killed.rows() == wanted:
            time.sleep(rng.uniform(0.0, 0.05))
        time.sleep(rng.uniform(0.0, 0.2))
        kill(process)
        seen.append(killed.rows().total())
        if process.returncode == 0:  # it had come to its end before: a machine that is busy elsewhere
            break
    else:
        penstock.run("run", file, "--resume", "--param", killed.parameter, code=0)
    print("rows at the kills:", seen)
    assert len(seen) > 1
    assert killed.rows() == expected
