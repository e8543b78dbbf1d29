"""DataFrames in and out, on a session as users have them: ANSI mode, adaptive execution and a time zone of its own."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from embedded_runs import rows

from penstock import KeyedProcess, OutputTag, Pipeline, ValueState, col, count, every, session, tumbling
from penstock.connectors import collecting, files, iterables
from penstock.connectors import spark as spark_connector
from penstock.errors import BadRecordError, PipelineError, UsageError
from penstock.spark import to_dataframe
from penstock.submission.application import ApplicationSpec, prepare
from penstock.types import UINT32, UINT64

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(300), pytest.mark.servers]
START = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
OWN = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "700",
    "spark.sql.shuffle.partitions": "3",
}


@dataclass
class Bid:
    auction: int
    price: float
    at: datetime
    bidder: str | None


class Gap(msgspec.Struct):
    auction: int
    at: datetime
    seconds: float


class Gaps(KeyedProcess[Bid, Gap]):
    """The time since the row before of the same key."""

    last = ValueState(datetime)

    def on_row(self, row: Bid, ctx: Any) -> None:
        before = self.last.get()
        if before is not None:
            ctx.emit(Gap(row.auction, row.at, (row.at - before).total_seconds()))
        self.last.set(row.at)


BIDS = [Bid(n % 7, n / 4, START + timedelta(seconds=n * 3), None if n % 5 == 0 else f"b{n % 11}") for n in range(4_000)]


@pytest.fixture
def own(spark: SparkSession) -> Generator[SparkSession]:
    """A session of the user's, in which nothing may change.

    What is run by it makes it the active one, by which Spark looks for data sources. The tests' own becomes active again.
    """
    mine = spark.newSession()
    for name, value in OWN.items():
        mine.conf.set(name, value)
    before = dict(mine.conf.getAll)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        yield mine
    spark.createDataFrame([], "n int")  # which makes it the active one
    assert dict(mine.conf.getAll) == before


def frame(spark: SparkSession, partitions: int = 3) -> Any:
    """The bids, in the order of their times, as so many partitions."""
    kinds = "auction bigint, price double, at timestamp, bidder string"
    values = [(bid.auction, bid.price, bid.at, bid.bidder) for bid in BIDS]
    return spark.createDataFrame(values, kinds).repartitionByRange(partitions, "at").sortWithinPartitions("at")


def described(p: Pipeline, bids: Any, out: Path) -> None:
    """Windows that Spark computes, sessions, a process function, and what it gives to another stage."""
    bids.key_by("auction").window(tumbling("1m")).agg(n=count(), most=col("price").max()).write(
        files.Sink(str(out / "w"))
    )
    bursts = bids.filter(col("price") > 3).key_by("bidder").window(session("10s")).agg(names=col("bidder").count())
    bursts.write(files.Sink(str(out / "s")))
    gaps = bids.key_by("auction").process(Gaps())
    gaps.key_by("seconds").window(tumbling("1h")).agg(n=count()).write(files.Sink(str(out / "g")))


def test_a_dataframe_gives_what_its_rows_give_embedded(own, tmp_path):
    """Every operator, with the settings of a session that somebody else made."""
    p = Pipeline("frames")
    described(p, p.read(spark_connector.Source(frame(own), schema=Bid, event_time="at")), tmp_path / "spark")
    result = p.run(engine="spark", spark=own, parallelism=2, directory=tmp_path / "runs")
    assert (result.state, result.total("n0-read", "rows_in")) == ("FINISHED", len(BIDS))
    p = Pipeline("rows")
    described(p, p.read(iterables.Source(BIDS, event_time="at")), tmp_path / "embedded")
    p.run(directory=tmp_path / "state")
    for sink in "wsg":
        got, expected = (Counter(map(str, rows(tmp_path / engine / sink))) for engine in ("spark", "embedded"))
        assert got == expected, sink
        assert got


def test_columns_of_a_dataframe_are_a_schema(own):
    """Without a class, and with one that has fewer of them."""
    p = Pipeline("columns")
    assert p.read(spark_connector.Source(frame(own))).schema.names == ("auction", "price", "at", "bidder")
    made = own.sql("select 1 as `odd name`, 2.5D as `a.b`")
    stream = p.read(spark_connector.Source(made))
    assert [tuple(row) for row in to_dataframe(stream, own).collect()] == [(1, 2.5)]


@pytest.mark.parametrize("given", ["a name", "a function"])
def test_a_table_is_looked_at_when_the_pipeline_runs(given, own, tmp_path):
    """By its name, or by a function of the session."""
    frame(own).createOrReplaceTempView("bids_of_the_test")
    source: Any = "bids_of_the_test" if given == "a name" else lambda spark: spark.table("bids_of_the_test").limit(9)
    sink = collecting.Sink()
    p = Pipeline("tables")
    p.read(spark_connector.Source(source, schema=Bid)).select("auction").write(sink)
    p.run(engine="spark", spark=own, directory=tmp_path)
    assert len(sink.rows) == (9 if given == "a function" else len(BIDS))


def test_a_stream_is_a_dataframe(own):
    """Lazy, computed again each time, and to be joined with others by Spark."""
    p = Pipeline("out")
    bids = p.read(spark_connector.Source(frame(own), schema=Bid, event_time="at"))
    totals = bids.key_by("auction").window(tumbling("1h")).agg(n=count(), revenue=col("price").sum())
    made = to_dataframe(totals, own, parallelism=2)
    assert made.columns == ["auction", "window_start", "window_end", "n", "revenue"]
    expected = iterables_of(
        lambda b: b.key_by("auction").window(tumbling("1h")).agg(n=count(), revenue=col("price").sum())
    )
    assert made.count() == len(expected) == made.count()
    sums = made.groupBy("auction").sum("n").collect()
    assert sum(row[1] for row in sums) == len(BIDS)
    got = {(row.auction, row.window_start.timestamp(), row.n, row.revenue) for row in made.collect()}
    assert got == {(r["auction"], r["window_start"].timestamp(), r["n"], r["revenue"]) for r in expected}


def iterables_of(shaped: Any) -> list[dict[str, Any]]:
    """The rows of a stream of the bids, embedded."""
    p = Pipeline("rows")
    return shaped(p.read(iterables.Source(BIDS, event_time="at"))).collect().to_dicts()


def test_a_stream_of_python_functions_is_a_dataframe(own):
    """Classes and functions that only the driver has; several stages; one that two others read."""
    p = Pipeline("python")
    bids = p.read(spark_connector.Source(frame(own), schema=Bid, event_time="at"))
    half = timedelta(seconds=0.5)

    def later(bid: Bid) -> Iterator[Gap]:
        yield Gap(bid.auction, bid.at + half, bid.price)

    gaps = bids.key_by("auction").process(Gaps()).union(bids.flat_map(later))
    made = to_dataframe(gaps, own, parallelism=2).collect()
    assert len(made) == 2 * len(BIDS) - 7
    assert sum(row.seconds for row in made if row["at"].microsecond) == sum(bid.price for bid in BIDS)


class Newest(KeyedProcess[Bid, Bid]):
    """The row before, which is state."""

    before = ValueState(Bid)

    def on_row(self, row: Bid, ctx: Any) -> None:
        last = self.before.get()
        if last is not None:
            ctx.emit(last)
        self.before.set(row)


def test_rows_of_the_users_class_are_state_in_tasks(own):
    """In a process function, in windows over rows and under a trigger."""
    p = Pipeline("state")
    keyed = p.read(spark_connector.Source(frame(own), schema=Bid, event_time="at")).key_by("auction")
    assert to_dataframe(keyed.process(Newest()), own, parallelism=2).count() == len(BIDS) - 7
    early = keyed.window(tumbling("1h")).trigger(every("20m")).agg(n=count(), names=col("bidder").collect()).final()
    assert sum(row.n for row in to_dataframe(early, own, parallelism=2).collect()) == len(BIDS)
    per_ten = keyed.count_window(10).apply(lambda key, window, rows: [rows[0]], returns=Bid)
    rows_of_keys = Counter(bid.auction for bid in BIDS).values()
    assert to_dataframe(per_ten, own, parallelism=2).count() == sum(number // 10 for number in rows_of_keys)


def test_types_that_spark_has_not_are_wider_ones(own):
    """Unsigned integers, durations, lists and structs."""
    made = own.sql("select 5 as n, array(1L, 2L) as l, named_struct('x', 'y') as s")
    p = Pipeline("types")
    stream = p.read(spark_connector.Source(made)).with_columns(u=col("n").cast(UINT32), big=col("n").cast(UINT64))
    out = to_dataframe(stream, own)
    assert [kind for _, kind in out.dtypes[-2:]] == ["bigint", "decimal(20,0)"]
    (row,) = out.collect()
    assert (row.l, row.s.x, row.u, int(row.big)) == ([1, 2], "y", 5, 5)


def test_rows_that_do_not_fit_meet_the_policy(own, tmp_path):
    """As those of every other source, with their place."""
    kinds = "auction bigint, price double, at timestamp, bidder string"
    made = own.createDataFrame([(1, 2.0, START, None), (None, 3.0, START, None)], kinds).coalesce(1)
    p = Pipeline("bad")
    p.read(spark_connector.Source(made, schema=Bid)).write(collecting.Sink())
    with pytest.raises(BadRecordError, match="partition 0, row 2: auction: missing"):
        p.run(engine="spark", spark=own, directory=tmp_path / "runs")
    good, dead = collecting.Sink(), collecting.Sink()
    p = Pipeline("dead")
    bids = p.read(spark_connector.Source(made, schema=Bid, bad_rows="dead_letter"))
    bids.write(good)
    bids.dead_letters().write(dead)
    p.run(engine="spark", spark=own, directory=tmp_path / "runs")
    assert (len(good.rows), [row["where"] for row in dead.rows]) == (1, ["partition 0, row 2"])


def test_a_run_is_made_once(own, tmp_path):
    """Under its id; with other sinks it is another run."""

    def made(out: str) -> Pipeline:
        p = Pipeline("once")
        p.read(spark_connector.Source(frame(own), schema=Bid)).write(files.Sink(str(tmp_path / out)))
        return p

    first, again = (
        made("a").run(engine="spark", spark=own, run_id="day-1", directory=tmp_path / "r") for _ in range(2)
    )
    assert (first.computed, again.computed) == (True, False)
    assert len(rows(tmp_path / "a")) == len(BIDS)
    with pytest.raises(UsageError, match="Give a new run another id"):
        made("b").run(engine="spark", spark=own, run_id="day-1", directory=tmp_path / "r")


def test_an_empty_dataframe_has_no_rows(own, tmp_path):
    """And a run over it an end."""
    p, sink = Pipeline("empty"), collecting.Sink()
    bids = p.read(spark_connector.Source(frame(own).where("false"), schema=Bid, event_time="at"))
    bids.key_by("auction").window(tumbling("1m")).agg(n=count()).write(sink)
    assert p.run(engine="spark", spark=own, directory=tmp_path).state == "FINISHED"
    assert sink.rows == []


# -- what is wrong is said ----------------------------------------------------------------------------------------------


def test_other_engines_say_that_spark_reads_it(own, tmp_path):
    """Embedded, collected and on a cluster."""
    p = Pipeline("elsewhere")
    bids = p.read(spark_connector.Source(frame(own), schema=Bid))
    with pytest.raises(PipelineError, match=r"n0-read: Spark alone reads a DataFrame; .*to_dataframe"):
        bids.collect()
    bids.write(collecting.Sink())
    with pytest.raises(PipelineError, match="n0-read: Spark alone"):
        p.run()
    file = tmp_path / "table.py"
    file.write_text(
        "from penstock import Pipeline\nfrom penstock.connectors import collecting, spark\nimport pyarrow as pa\n"
        "p = Pipeline('t')\np.read(spark.Source('db.t', schema=pa.schema({'n': pa.int64()}))).write(collecting.Sink())\n"
    )
    with pytest.raises(PipelineError, match="n0-read: Spark alone"):
        prepare(ApplicationSpec(str(file)))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"resume": True}, "there is no argument resume="),
        ({"checkpoint_interval": "1s"}, "there is no argument checkpoint_interval="),
        ({"run_id": 7}, "run_id"),
        ({"spark": "local"}, "spark"),
    ],
)
def test_options_of_the_other_engine_are_refused(options, why, own):
    """By their names."""
    p = Pipeline("options")
    p.read(spark_connector.Source(frame(own), schema=Bid)).write(collecting.Sink())
    with pytest.raises(PipelineError, match=why):
        p.run(engine="spark", **options)  # type: ignore[call-overload]


def test_a_dataframe_of_other_columns_is_refused_where_it_is_given(own):
    """A missing column, one of another type, and a table without a schema."""
    made = own.sql("select 1L as auction, '2.5' as price, current_timestamp() as at, 'x' as bidder")
    with pytest.raises(PipelineError, match="column 'price' holds string, but the schema declares float64"):
        spark_connector.Source(made, schema=Bid)
    with pytest.raises(PipelineError, match="the DataFrame has no column 'at'"):
        spark_connector.Source(made.drop("at", "price").selectExpr("*", "1D price"), schema=Bid)
    with pytest.raises(PipelineError, match="give schema="):
        spark_connector.Source("db.bids")
    p = Pipeline("late")
    p.read(spark_connector.Source(lambda _: 5, schema=Bid)).write(collecting.Sink())
    with pytest.raises(PipelineError, match="gave 5, not a DataFrame"):
        p.run(engine="spark", spark=own)


def test_what_cannot_be_sent_to_tasks_is_said(own):
    """A lock in a function."""
    lock = threading.Lock()

    def held(bid: Bid) -> Bid:
        with lock:
            return bid

    p = Pipeline("lock")
    stream = p.read(spark_connector.Source(frame(own), schema=Bid)).map(held)
    with pytest.raises(PipelineError, match=r"lock: it cannot be sent to Spark's tasks: TypeError.*in open"):
        to_dataframe(stream, own)


def test_workers_of_another_python_are_named(own, monkeypatch, tmp_path):
    """Before a task fails with a message from within."""
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(own.sparkContext, "pythonExec", str(bare))
    p = Pipeline("python")
    stream = p.read(spark_connector.Source(frame(own), schema=Bid))
    with pytest.raises(UsageError, match=r"run .*/python, where Penstock is not installed.*PYSPARK_PYTHON"):
        to_dataframe(stream, own)


def test_late_rows_have_a_way_of_their_own(own):
    """A side output is a stream like any other: empty here, because the partitions of a DataFrame have no order."""
    late = OutputTag[Any]("late")
    p = Pipeline("late")
    bids = p.read(spark_connector.Source(frame(own), schema=Bid, event_time="at"))
    windows = bids.key_by("auction").window(tumbling("1m")).late_to(late).agg(n=count())
    assert to_dataframe(windows.side(late), own).count() == 0


# -- scripts ------------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from dataclasses import dataclass
from pyspark.sql import SparkSession
from penstock import Pipeline, col
from penstock.connectors import collecting, spark
from beside import doubled

@dataclass
class Number:
    id: int

sink = collecting.Sink()
p = Pipeline("script")
numbers = p.read(spark.Source(lambda spark: spark.range(5), schema=Number))
numbers.map(doubled, returns=Number).write(sink)
if __name__ == "__main__":
    result = p.run(engine="spark", parallelism=2)
    conf = SparkSession.getActiveSession()
    print(sorted(row["id"] for row in sink.rows), conf and conf.conf.get("spark.sql.adaptive.enabled"),
          conf and conf.sparkContext.master)
"""


def test_spark_submit_runs_a_script_as_it_says(tmp_path):
    """On its master, with its settings; a module beside the script comes along."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("def doubled(row):\n    return type(row)(row.id * 2)\n")
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]"]
    command += ["--conf", "spark.sql.adaptive.enabled=true", "--conf", "spark.ui.enabled=false", "script.py"]
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("[0, 2, 4, 6, 8]"), done.stdout


def test_a_file_names_a_function_of_the_session(tmp_path):
    """And is run by the command as any other."""
    (tmp_path / "script.py").write_text(
        SCRIPT.replace("sink = collecting.Sink()", "from penstock.connectors import files\nsink = files.Sink('out')")
    )
    (tmp_path / "beside.py").write_text("def doubled(row):\n    return type(row)(row.id * 2)\n")
    command = [sys.executable, "-m", "penstock.cli.main", "run", "script.py", "--engine", "spark", "--conf"]
    command += ["spark.ui.enabled=false"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(row["id"] for row in rows(tmp_path / "out")) == [0, 2, 4, 6, 8]


def test_the_example_of_the_page(own, tmp_path, monkeypatch, capsys):
    """The block of docs/spark.md, in a script of its own: what it shows and what it writes."""
    page = (Path(__file__).parents[2] / "docs/spark.md").read_text()
    code = page.partition("## DataFrames in and out")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "frames_of_the_docs.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("frames_of_the_docs")
    assert "berlin" in capsys.readouterr().out
    assert sorted(row["euros"] for row in rows(tmp_path / "out")) == [5.0, 20.0]
