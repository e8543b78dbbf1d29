"""A run on Spark commits once, whatever is tried again; its errors are the user's, not the JVM's."""

from __future__ import annotations

import warnings

import pytest
from embedded_runs import rows
from spark_runs import SPARK_CASES_FILE, execute, prepare, run

from penstock.adapters.directory.claim import claimed
from penstock.adapters.system_clock import SystemClock
from penstock.connectors import collecting
from penstock.connectors.base import ExistingRowsError
from penstock.errors import BadRecordError, PipelineError, UsageError, UserCodeError
from penstock.loading import load_pipeline
from penstock.plan.operations.write import Write
from penstock.spark import engine
from penstock.spark.code import pack_code
from penstock.spark.engine import SparkRun
from penstock.spark.native import native_windows


def parameters(case: str, tmp_path) -> dict[str, str]:
    return {"case": case, "out": str(tmp_path / "out"), "marker": str(tmp_path / "marker")}


@pytest.mark.parametrize("case", ["fails-once", "fails-behind-exchange"])
def test_an_attempt_that_failed_doubles_nothing(case, spark, tmp_path):
    """The task is tried again; of the first attempt nothing is visible and nothing is left."""
    run(spark, SPARK_CASES_FILE, tmp_path, parameters(case, tmp_path))
    assert (tmp_path / "marker").exists(), "no attempt failed"
    out = tmp_path / "out"
    assert sorted(row["number"] for row in rows(out / "rows")) == list(range(400))
    assert list(out.glob("*/.staging/*")) == []
    if case == "fails-once":
        assert sum(row["n"] for row in rows(out / "windows")) == 400
        assert sorted(row["number"] for row in rows(out / "totals")) == list(range(400))


@pytest.mark.parametrize("case", ["fails-before-window", "fails-behind-window"])
def test_an_attempt_that_failed_around_a_window_that_spark_computes_counts_nothing(case, spark, tmp_path):
    """What the first attempt sent, counted and staged is not there: rows, counts, and those of the stages around it."""
    made = prepare(spark, SPARK_CASES_FILE, tmp_path, parameters(case, tmp_path))
    assert [way.operator for way in native_windows(made.ways).values()] == ["windows"]
    result = execute(made)
    assert (tmp_path / "marker").exists(), "no attempt failed"
    written = rows(tmp_path / "out" / "rows")
    assert sorted(row["newest"] for row in written) == [
        newest for minute in range(60, 421, 60) for newest in range(min(minute, 400) - 7, min(minute, 400))
    ]
    assert sum(row["n"] for row in written) == 400
    assert result.total("n0-read", "rows_out") == result.total("windows", "rows_in") == 400
    assert result.total("windows", "rows_out") == 49
    assert list((tmp_path / "out").glob("*/.staging/*")) == []


def test_a_window_that_spark_computes_may_be_given_nothing(spark, tmp_path):
    """No row, no result, and the counts say so."""
    made = prepare(spark, SPARK_CASES_FILE, tmp_path, parameters("empty-window", tmp_path))
    assert len(native_windows(made.ways)) == 1
    result = execute(made)
    assert rows(tmp_path / "out" / "rows") == []
    assert result.total("n0-read", "rows_in") == 400
    assert result.total("windows", "rows_in") == result.total("windows", "rows_out") == 0


def test_a_run_given_again_is_carried_to_its_end_only(spark, tmp_path, monkeypatch):
    """Killed between computing and committing, a run commits when it is given again; a third time nothing happens."""
    chosen = parameters("fails-once", tmp_path)
    (tmp_path / "marker").touch()
    with monkeypatch.context() as patch:

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(engine, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            run(spark, SPARK_CASES_FILE, tmp_path, chosen, "nightly")
    assert rows(tmp_path / "out" / "rows") == []
    result = run(spark, SPARK_CASES_FILE, tmp_path, chosen, "nightly")
    assert not result.computed
    assert len(rows(tmp_path / "out" / "rows")) == 400
    consumed = next((tmp_path / "out" / "rows").glob("part-*"))
    consumed.unlink()
    run(spark, SPARK_CASES_FILE, tmp_path, chosen, "nightly")
    assert not consumed.exists()


def test_one_run_of_a_pipeline_at_a_time(spark, tmp_path):
    """What another run has staged must not be taken for leftovers: the second is refused before it begins."""
    (tmp_path / "marker").touch()
    with claimed(tmp_path / "runs"), pytest.raises(UsageError, match="in use by another run"):
        run(spark, SPARK_CASES_FILE, tmp_path, parameters("fails-once", tmp_path))
    assert not (tmp_path / "out").exists()


def test_another_run_id_is_another_run(spark, tmp_path):
    """Its rows would stand beside those of the first, so it is refused before it computes, unless the sink appends."""
    chosen = parameters("fails-once", tmp_path)
    (tmp_path / "marker").touch()
    assert run(spark, SPARK_CASES_FILE, tmp_path, chosen, "2026-11-20").computed
    with pytest.raises(ExistingRowsError, match="holds rows of an earlier run"):
        run(spark, SPARK_CASES_FILE, tmp_path, chosen, "2026-11-21")
    assert len(rows(tmp_path / "out" / "rows")) == 400
    assert run(spark, SPARK_CASES_FILE, tmp_path, {**chosen, "appends": "yes"}, "2026-11-22").computed
    assert len(rows(tmp_path / "out" / "rows")) == 800


def test_a_run_id_of_another_pipeline_is_refused(spark, tmp_path):
    """What that run staged is for sinks that this pipeline does not have."""
    (tmp_path / "marker").touch()
    run(spark, SPARK_CASES_FILE, tmp_path, parameters("fails-once", tmp_path), "one")
    with pytest.raises(UsageError, match=r"of the pipeline .failing., this is .keyed.*Give a new run another id"):
        run(spark, SPARK_CASES_FILE, tmp_path, parameters("gaps", tmp_path), "one")


def test_a_run_id_given_again_with_other_parameters_is_refused(spark, tmp_path):
    """Not even the folder that it names would have the results of that run. The first run can still be given again."""
    chosen = parameters("fails-once", tmp_path)
    (tmp_path / "marker").touch()
    run(spark, SPARK_CASES_FILE, tmp_path, chosen, "one")
    other = {**chosen, "out": str(tmp_path / "other")}
    with pytest.raises(
        UsageError, match=r"--run-id one: that run has its results.*--param out differs; .* had folder="
    ):
        run(spark, SPARK_CASES_FILE, tmp_path, other, "one")
    assert not (tmp_path / "other").exists()
    assert chosen["marker"] not in (tmp_path / "runs" / "one.json").read_text(), "values may be secrets"
    assert not run(spark, SPARK_CASES_FILE, tmp_path, chosen, "one").computed


MENDED = """
from dataclasses import dataclass
from penstock import Pipeline, param
from penstock.connectors import files

@dataclass
class Row:
    number: int

def same(row: Row) -> Row:
    return row

p = Pipeline("mended")
p.read(files.Source(param("rows", ""), schema=Row)).map(same).write(files.Sink(param("out", "")))
"""


def test_until_it_is_decided_a_run_may_have_its_code_mended_but_no_other_inputs(spark, tmp_path, monkeypatch):
    """Its splits were fixed when it began, those of other sources are others. Once decided, its code is fixed, too."""
    file, chosen = tmp_path / "mended.py", {"rows": "rows.jsonl", "out": str(tmp_path / "out")}
    monkeypatch.chdir(tmp_path)
    for name in ("rows.jsonl", "others.jsonl"):
        (tmp_path / name).write_text('{"number":1}\n')
    file.write_text(MENDED.replace("return row", "raise ValueError"))
    with pytest.raises(UserCodeError):
        run(spark, file, tmp_path, chosen, "one")
    file.write_text(MENDED)
    with pytest.raises(UsageError, match=r"had path='rows.jsonl', it has 'others.jsonl'"):
        run(spark, file, tmp_path, {**chosen, "rows": "others.jsonl"}, "one")
    assert run(spark, file, tmp_path, chosen, "one").computed
    file.write_text(MENDED + "\n")
    with pytest.raises(UsageError, match=r"mended\.py has changed\. Give a new run another id"):
        run(spark, file, tmp_path, chosen, "one")


def test_an_error_in_user_code_shows_the_users_frames(spark, tmp_path):
    """The function and the row are named; there is no trace of the JVM; nothing is visible."""
    with pytest.raises(UserCodeError, match="no such flight") as raised:
        run(spark, SPARK_CASES_FILE, tmp_path, parameters("fails-always", tmp_path))
    assert "spark_pipelines.py" in raised.value.frames
    assert "fail_always" in raised.value.frames
    assert "org.apache" not in str(raised.value) + raised.value.frames
    assert rows(tmp_path / "out" / "rows") == []


def test_a_bad_record_fails_the_run_as_it_does_in_streaming(spark, tmp_path):
    """The error names the file and the line."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"number": 1}\nbroken\n')
    file = tmp_path / "bad_records.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom penstock import Pipeline\nfrom penstock.connectors import files\n"
        "@dataclass\nclass Row:\n    number: int\n"
        f"p = Pipeline('bad')\np.read(files.Source({str(source)!r}, schema=Row)).write(files.Sink({str(tmp_path)!r}))\n"
    )
    with pytest.raises(BadRecordError, match=r"in\.jsonl, line 2"):
        run(spark, file, tmp_path, {})


def test_local_modules_travel_with_the_pipeline(spark, tmp_path):
    """A module beside the file is found in tasks, and after a change it is the changed one."""
    file = tmp_path / "with_module.py"
    file.write_text(
        "from dataclasses import dataclass\nimport beside\nfrom penstock import Pipeline\n"
        "from penstock.connectors import files, iterables\n@dataclass\nclass Row:\n    number: int\n"
        "p = Pipeline('beside')\n"
        "p.read(iterables.Source([Row(1)])).map(lambda row: Row(row.number + beside.MORE), returns=Row)"
        f".write(files.Sink({str(tmp_path / 'out')!r}, existing='replace'))\n"
    )
    import sys

    for more in (10, 200):
        (tmp_path / "beside.py").write_text(f"MORE = {more}\n")
        sys.modules.pop("beside", None)
        run(spark, file, tmp_path, {})
        assert rows(tmp_path / "out") == [{"number": 1 + more}]


def test_in_process_sinks_get_their_rows_on_the_driver(spark, tmp_path, capsys):
    """Printed rows come in order on the driver's standard output, collected ones into the declared list."""
    chosen = {"case": "in-process"}
    pipeline = load_pipeline(str(SPARK_CASES_FILE), chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = SparkRun(
            spark,
            pipeline,
            pack_code(str(SPARK_CASES_FILE), chosen),
            run="a",
            clock=SystemClock(),
            folder=tmp_path / "runs",
        )
        result = made.execute()
    assert capsys.readouterr().out.splitlines() == [f'row> {{"number":{number}}}' for number in range(5)]
    sinks = [node.operation.sink for node in pipeline.plan if isinstance(node.operation, Write)]
    every, counts = [sink.rows for sink in sinks if isinstance(sink, collecting.Sink)]
    assert sorted(row["number"] for row in every) == list(range(30))
    assert sum({row["key"]: row["n"] for row in counts}.values()) == 30
    assert result.total("n0-read", "rows_in") == 30


def test_a_hidden_processing_timer_fails_the_run(spark, tmp_path):
    """What the plan could not see is refused when it happens, with what to do."""
    with pytest.raises(PipelineError, match="event_timer"):
        run(spark, SPARK_CASES_FILE, tmp_path, parameters("wall-clock", tmp_path))


@pytest.mark.parametrize(
    ("case", "why"), [("unbounded", "socket.*cannot be read again"), ("open-wall-clock", "sets processing-time timers")]
)
def test_what_cannot_run_is_refused_when_planned(case, why, spark, tmp_path):
    """Before anything is computed, with the reason."""
    with pytest.raises(PipelineError, match=why):
        prepare(spark, SPARK_CASES_FILE, tmp_path, parameters(case, tmp_path))


def test_spark_shows_what_its_jobs_are(spark, tmp_path):
    """They are one group, told apart by what they compute; plans name the stages; the session is as it was."""
    context = spark.sparkContext
    context.setLocalProperty("spark.job.description", "mine")
    (tmp_path / "marker").touch()  # so that it does not fail
    made = prepare(spark, SPARK_CASES_FILE, tmp_path, parameters("fails-once", tmp_path))
    execute(made)
    assert context.getLocalProperty("spark.job.description") == "mine"
    context.setLocalProperty("spark.job.description", None)
    jobs = context.statusTracker().getJobIdsForGroup(f"penstock-{made.run_id}")
    store = context._jsc.sc().statusStore()
    shown = {store.job(number).description().get() for number in jobs}
    (last,) = made.graph.vertices[-1:]
    count = len(made.graph.vertices)
    assert f"{made.graph.name}: {last.name} ({count} of {count}), run {made.run_id}" in shown
    plans = spark._jsparkSession.sharedState().statusStore().executionsList()
    text = "".join(plans.apply(index).physicalPlanDescription() for index in range(plans.size()))
    assert all(vertex.name in text for vertex in made.graph.vertices)
