"""Random plain SQL beside DuckDB; `python -m tests.unit.sql.plain_sql` compares any number of seeds."""

from __future__ import annotations

import pytest
from tests.unit.sql.plain_sql import compared


@pytest.mark.parametrize("first", range(0, 30, 6))
def test_plain_sql_gives_the_rows_of_duckdb(first: int) -> None:
    for seed in range(first, first + 6):
        query, tables, expected, found = compared(seed)
        assert found == expected, f"seed {seed}: {query} of {tables}"
