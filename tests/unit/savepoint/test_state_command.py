"""`penstock state` on a folder: the same code as `penstock.savepoint`, printed for people and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from stored import UID, export

from penstock import Accumulator, AggregatingState, KeyedContext, KeyedProcess, MapState, ValueState
from penstock.cli.main import main
from penstock.testing.harness import OperatorHarness, process_node


@dataclass
class Payment:
    account: str
    amount: int


class Mean(Accumulator[tuple[int, int], float]):
    accumulator_type = tuple[int, int]

    def create(self) -> tuple[int, int]:
        return 0, 0

    def add(self, accumulator: tuple[int, int], value: int) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def merge(self, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        return left[0] + right[0], left[1] + right[1]

    def result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


class Totals(KeyedProcess[Payment, Payment]):
    total = ValueState(int)
    seen = MapState(int, str)
    mean = AggregatingState(Mean())

    def on_row(self, row: Payment, ctx: KeyedContext[Payment]) -> None:
        self.total.set(self.total.get(0) + row.amount)
        self.seen.set(row.amount, "x")
        self.mean.add(row.amount)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A savepoint of three payments."""
    harness = OperatorHarness.of_process(Totals(), Payment, keys=["account"], parallelism=2)
    harness.rows(Payment("a", 1), Payment("b", 5), Payment("a", 2))
    return export(harness, process_node(Totals(), Payment, keys=["account"]), tmp_path / "kept")


def test_operators_are_listed(kept, capsys):
    """uid, verb, keys and sizes."""
    assert main(["state", str(kept)]) == 0
    out = capsys.readouterr().out
    assert "savepoint 3 of job j, parallelism 2" in out
    assert all(part in out for part in (UID, "process", "account: string"))
    assert main(["state", str(kept), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["checkpoint"], shown["max_parallelism"]) == (3, 16)
    (operator,) = shown["operators"]
    assert set(operator) == {"uid", "verb", "schema", "subtasks", "key_groups", "keyed_bytes", "entries"}


def test_the_rows_of_a_key_are_shown(kept, tmp_path, capsys):
    """A row per value and map entry; all rows as Parquet."""
    assert main(["state", str(kept), "--uid", UID, "--key", "a", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert sorted((row["state"], row["entry"], row["value"]) for row in rows if row["state"] == "seen") == [
        ("seen", "1", '"x"'),
        ("seen", "2", '"x"'),
    ]
    assert [(row["account"], row["value"]) for row in rows if row["state"] == "total"] == [("a", "3")]
    assert [row["value"] for row in rows if row["state"] == "mean"] == ["[3,2]"], "the accumulator"
    target = tmp_path / "rows.parquet"
    assert main(["state", str(kept), "--uid", UID, "--to", str(target)]) == 0
    assert pl.read_parquet(target).columns == ["account", "state", "entry", "value", "time_us"]
    assert main(["state", str(kept), "--uid", "testd"]) != 0
    assert "did you mean 'tested'" in capsys.readouterr().err
