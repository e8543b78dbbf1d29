"""`Pipeline` from Python: its options, rows of a stream, submitting."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest

from penstock import Pipeline, UpsertStream, col, count, tumbling
from penstock.connectors import collecting, generate, iterables, kafka
from penstock.errors import PipelineError, UsageError, UserCodeError
from penstock.pipeline import _tell_of_idle_pipelines
from penstock.plan.signatures import describe_node


@dataclass
class Sale:
    item: str
    price: int


@dataclass
class Visit:
    who: str
    page: int
    at: datetime


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


def keeping(p: Pipeline, ttl: str | None = None) -> dict[str, Any]:
    """The time to live in plans, by verb, of all verbs of a pipeline that have one, and of some that have none."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    read = p.read(iterables.Source([Visit("a", 1, at)], schema=Visit, event_time="at"))
    visits, own = read.key_by("who"), {} if ttl is None else {"ttl": ttl}
    newest = visits.deduplicate("last", **own)
    best = visits.top(1, by="page", **own)
    totals = visits.agg(n=count(), **own).changes(**own)
    visits.reduce(lambda one, _: one, **own).write(collecting.Sink())
    totals.key_by("n").agg(most=col("who").max(), **own).write(collecting.Sink())
    totals.key_by("n").top(1, by="who", **own).write(collecting.Sink())
    totals.key_by("n").over("who", **own).with_columns(k=count()).write(collecting.Sink())
    newest.join(best, on="who", **own).write(kafka.Sink("t", key="page", delivery="upsert", brokers="b:1"), **own)
    read.distinct("page", **own).write(collecting.Sink())
    visits.window(tumbling("1m")).agg(n=count()).write(collecting.Sink())
    visits.over().with_columns(n=count()).write(collecting.Sink())
    read.join(read.select("who", "at", other="page"), on="who", within="1m").write(collecting.Sink())
    return {
        f"{type(node.operation).__name__} {node.id}": said["ttl"]
        for node in p.plan
        if "ttl" in (said := describe_node(node))
    }


def test_the_time_to_live_of_a_pipeline_is_that_of_all_verbs_that_say_nothing() -> None:
    """Their own wins, and none at all is for ever; what goes by event time has none, whatever is said."""
    assert keeping(Pipeline("none")) == {}
    found = keeping(Pipeline("default", state_ttl="1d"))
    assert set(found.values()) == {"1d"}
    assert Counter(each.split()[0] for each in found) == {
        "RunningAggregate": 1, "RunningReduce": 1, "AggregateChanges": 1, "Top": 2, "Deduplicate": 2, "RegularJoin": 1,
        "ToChanges": 3, "Materialize": 1, "OverCurrent": 1,
    }  # fmt: skip
    own = keeping(Pipeline("own", state_ttl="1d"), "1h")
    assert own.keys() == found.keys()
    implied = {each for each in found if each.startswith("ToChanges")}  # the join makes them of its inputs
    assert Counter(own.values()) == {"1h": len(own) - 2, "1d": 2}
    assert {each for each, ttl in own.items() if ttl == "1d"} < implied
    assert set(keeping(Pipeline("for-ever", state_ttl="1d"), "0s")) < implied


def test_a_source_of_changes_keeps_its_rows_as_long_as_the_pipeline_says() -> None:
    """A topic without former rows, whose rows are kept by key."""
    source = kafka.ChangeSource("visits", key="who", schema=Visit, brokers="b:1")
    changes = [Pipeline("p", state_ttl=ttl).read(source)._node for ttl in (None, "7d")]
    assert [describe_node(node).get("ttl") for node in changes] == [None, "7d"]


def test_a_time_to_live_is_some_time() -> None:
    with pytest.raises(PipelineError, match="Pipeline: state_ttl: must be positive"):
        Pipeline("p", state_ttl="0s")
    keyed = Pipeline("p").read(iterables.Source(SALES, schema=Sale)).key_by("item")
    with pytest.raises(PipelineError, match="agg: ttl: 'never' is not a duration"):
        keyed.agg(n=count(), ttl="never")
    with pytest.raises(PipelineError, match="ttl"):
        keyed.agg(ttl=count())


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


def test_a_script_that_ends_without_having_run_its_pipeline_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One with sinks, which nobody asked to run; not where the script failed, which says enough."""
    script = ModuleType("__main__")
    (script.idle, _), (script.ran, _), script.empty = sales(), sales(), Pipeline("empty")
    script.ran.run()
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.delattr(sys, "last_value", raising=False)
    _tell_of_idle_pipelines("job.py")
    said = capsys.readouterr().err
    assert "job.py: the pipeline 'sales' was declared and never run" in said
    assert "idle.run(), or give it to the command: penstock run job.py" in said
    assert len(said.splitlines()) == 1
    monkeypatch.setattr(sys, "last_value", ValueError(), raising=False)
    _tell_of_idle_pipelines("job.py")
    assert not capsys.readouterr().err
