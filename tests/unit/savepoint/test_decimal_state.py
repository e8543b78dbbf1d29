"""Savepoints of state beneath keys of decimals: as tables, edited, restored at another parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated

import polars as pl
import pytest
from stored import UID, export, restored

from penstock import DecimalType, KeyedContext, KeyedProcess, ListState, ValueState, savepoint
from penstock.errors import UsageError
from penstock.testing.harness import OperatorHarness, process_node

D = Decimal
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Paid:
    """What was paid for something."""

    price: Annotated[Decimal, DecimalType(12, 2)]
    amount: Annotated[Decimal, DecimalType(38, 10)]
    at: datetime


class Sum(KeyedProcess[Paid, Paid]):
    """The sum per price."""

    total = ValueState(Decimal)
    amounts = ListState(Decimal)

    def on_row(self, row: Paid, ctx: KeyedContext[Paid]) -> None:
        self.total.set(self.total.get(D(0)) + row.amount)
        self.amounts.add(row.amount)
        ctx.emit(Paid(row.price, self.total.get(D(0)), row.at))


NODE = process_node(Sum(), Paid, keys=["price"])
ROWS = [Paid(D(n % 5) / 4, D(n) / 1024, START + timedelta(seconds=n)) for n in range(20)]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_state_is_read_edited_and_restored(before: int, after: int, tmp_path) -> None:
    """Keys are decimals of the column, values texts with all their digits."""
    first = OperatorHarness.of_process(Sum(), Paid, keys=["price"], parallelism=before)
    first.rows(*ROWS)
    sp = savepoint.read(export(first, NODE, tmp_path / "one"))
    table = sp.table(UID, "total")
    assert table.schema == {"price": pl.Decimal(12, 2), "value": pl.String()}
    expected = {price / 4: sum(row.amount for row in ROWS if row.price == price / 4) for price in map(D, range(5))}
    assert {price: D(value) for price, value in table.iter_rows()} == expected
    changed = table.with_columns(pl.when(pl.col("price") == 0).then(pl.lit("7.5")).otherwise("value").alias("value"))
    sp.edit().replace(UID, "total", changed).write(tmp_path / "two")
    second = restored(tmp_path / "two", NODE, after)
    second.rows(Paid(D("0.00"), D("0.25"), START), Paid(D("0.250"), D(1), START))
    got = {row["price"]: row["amount"] for row in second.output()}
    assert got == {D(0): D("7.75"), D("0.25"): expected[D("0.25")] + 1}


def test_keys_of_other_digits_are_refused(tmp_path) -> None:
    """As of any other type."""
    first = OperatorHarness.of_process(Sum(), Paid, keys=["price"])
    first.rows(*ROWS)
    sp = savepoint.read(export(first, NODE, tmp_path / "one"))
    other = sp.table(UID, "total").with_columns(pl.col("price").cast(pl.Decimal(14, 4)))
    with pytest.raises(UsageError, match=r"column 'price' is Decimal\(.*14.*, need Decimal\(.*12.*; cast it"):
        sp.edit().replace(UID, "total", other)
