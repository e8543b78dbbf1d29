"""`Pipeline` from Python: its options, rows of a stream, submitting."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from penstock import Pipeline, UpsertStream, col
from penstock.connectors import collecting, generate, iterables
from penstock.errors import PipelineError, UsageError, UserCodeError


@dataclass
class Sale:
    item: str
    price: int


SALES = [Sale("tea", 3), Sale("cake", 5), Sale("tea", 4)]


def sales() -> tuple[Pipeline, collecting.Sink]:
    p = Pipeline("sales")
    sink = collecting.Sink()
    p.read(iterables.Source(SALES, schema=Sale)).filter(col("price") > 3).write(sink)
    return p, sink


def test_a_run_takes_the_options_of_the_command(tmp_path: Path) -> None:
    """And says what is wrong with one."""
    p, sink = sales()
    result = p.run(
        directory=tmp_path, checkpoint_interval="100ms", at_least_once=True, restart="fixed-delay:2:10ms",
        state_backend="memory", durable=False,
    )  # fmt: skip
    assert result.state == "FINISHED"
    assert [row["item"] for row in sink.rows] == ["cake", "tea"]
    with pytest.raises(UsageError, match="there is no strategy 'never'"):
        p.run(restart="never")
    with pytest.raises(PipelineError, match="checkpoint_interval"):
        p.run(checkpoint_interval="0s")


def test_rows_of_a_stream_are_a_table() -> None:
    """Sinks get nothing, and the pipeline stays as it was."""
    p = Pipeline("sales")
    sink = collecting.Sink()
    read = p.read(iterables.Source(SALES, schema=Sale))
    read.write(sink)
    nodes = len(p.plan.nodes)
    dear = read.filter(col("price") > 3).collect()
    assert dear.to_dicts() == [{"item": "cake", "price": 5}, {"item": "tea", "price": 4}]
    assert dear.schema == pl.Schema({"item": pl.String, "price": pl.Int64})
    totals = read.key_by("item").agg(total=col("price").sum())
    assert isinstance(totals, UpsertStream)
    assert dict(totals.collect().rows()) == {"cake": 5, "tea": 7}
    assert sink.rows == []
    assert len(p.plan.nodes) == nodes + 3  # the filter, the key, the totals
    assert read.filter(col("price") > 99).collect().height == 0


async def test_a_notebook_has_a_loop_of_its_own() -> None:
    """A loop that runs is no obstacle."""
    assert asyncio.get_running_loop().is_running()
    p, sink = sales()
    assert p.run().state == "FINISHED"
    assert len(sink.rows) == 2


def test_what_has_no_end_is_not_collected() -> None:
    p = Pipeline("endless")
    numbers = p.read(generate.Source(lambda n: pl.DataFrame({"item": "x", "price": n}), schema=Sale))
    with pytest.raises(PipelineError, match=r"collect: the source .* has no end"):
        numbers.collect()


def test_an_error_of_the_users_code_comes_out_of_collect() -> None:
    p = Pipeline("broken")

    def broken(sale: Sale) -> Sale:
        raise ValueError(f"no {sale.item} left")

    with pytest.raises(UserCodeError, match="no tea left"):
        p.read(iterables.Source(SALES, schema=Sale)).map(broken).collect()


def test_only_what_a_file_names_can_be_submitted(tmp_path: Path) -> None:
    """A pipeline made in a function travels nowhere."""
    p = Pipeline("hidden")
    p.read(generate.Source(lambda n: pl.DataFrame({"item": "x", "price": n}), schema=Sale)).write(collecting.Sink())
    with pytest.raises(UsageError, match="no imported file has this one under a name"):
        p.submit()
