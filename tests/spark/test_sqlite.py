"""Tables of SQLite on Spark: by the same readers and publishers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from spark_runs import run
from tests.integration.sink_rows import sales, sales_by_shop

FILE = Path(__file__).parent / "sqlite_pipeline.py"


def rows(file: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


def test_a_run_writes_every_row_once(local: Any, tmp_path: Path) -> None:
    """Also when it is given again under its id."""
    source, out = tmp_path / "shop.db", tmp_path / "out.db"
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.execute("create table sales (id integer primary key, shop text not null, amount integer not null)")
        connection.executemany("insert into sales values (?, ?, ?)", [(s.id, s.shop, s.amount) for s in sales()])
    for _ in range(2):
        run(local, FILE, tmp_path / "root", {"file": str(source), "out": str(out)}, "once")
        found = rows(out, "select id, shop, amount from large order by id")
        assert found == [(s.id, s.shop, s.amount) for s in sales() if s.amount > 5]
        assert dict(rows(out, "select shop, total from totals")) == sales_by_shop()
        assert sum(n for (n,) in rows(out, "select sales from totals")) == len(sales())
