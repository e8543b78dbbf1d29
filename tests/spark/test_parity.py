"""One program, two engines: over bounded input they give the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from embedded_runs import assert_same, counted, finish, rows, settings
from pipelines import CASES, Case, write_files
from spark_runs import CASES_FILE, SPARK_CASES_FILE, rounded, run

from penstock.runtime.loading import load_pipeline

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_verb_gives_the_same_rows(case: Case, spark, tmp_path):
    """Embedded at parallelism 1 and 3, and Spark; running results are compared by the last row of each key."""
    write_files(tmp_path / "in")
    results = {}
    for parallelism in (1, 3):
        out = tmp_path / f"embedded-{parallelism}"
        finish(case.declare(out, None), tmp_path / f"state-{parallelism}", settings(parallelism))
        results[out.name] = rounded(case.result(out))
    run(spark, CASES_FILE, tmp_path, {"case": case.name, "out": str(tmp_path / "spark")})
    results["spark"] = rounded(case.result(tmp_path / "spark"))
    assert results["embedded-1"], "nothing was compared"
    assert results["spark"] == results["embedded-1"] == results["embedded-3"]


def test_sorted_input_has_no_late_rows(spark, tmp_path):
    """The impatient example sets rows aside when it streams; on Spark it comes to what the patient one does."""
    patient = load_pipeline(str(EXAMPLES / "departures.py"), {"out": str(tmp_path / "patient")})
    finish(patient, tmp_path / "state")
    parameters = {"out": str(tmp_path / "spark"), "late": str(tmp_path / "late")}
    run(spark, EXAMPLES / "departures_late.py", tmp_path, parameters)
    assert rows(tmp_path / "late") == []
    assert_same(rounded(counted(rows(tmp_path / "spark"))), rounded(counted(rows(tmp_path / "patient"))), "late")


def test_every_type_crosses_an_exchange(spark, tmp_path):
    """Unsigned, nested and null values come out as they went in."""
    parameters = {"case": "types", "out": str(tmp_path / "embedded")}
    finish(load_pipeline(str(SPARK_CASES_FILE), parameters), tmp_path / "state")
    run(spark, SPARK_CASES_FILE, tmp_path, {**parameters, "out": str(tmp_path / "spark")})
    got = {row["key"]: row for row in rows(tmp_path / "spark")}
    assert got == {row["key"]: row for row in rows(tmp_path / "embedded")}
    assert len(got) == 21


def test_timers_fire_between_the_rows_they_lie_between(spark, tmp_path):
    """A gap of a key is seen though the rows around it are fed together: what streams slowly enough would see."""
    run(spark, SPARK_CASES_FILE, tmp_path, {"case": "many-keys", "rows": "4000", "out": str(tmp_path / "out")})
    numbers = sorted(row["number"] for row in rows(tmp_path / "out"))
    # Twenty rows of a key follow each other by a second; each sets a timer that sees the row five seconds later.
    assert numbers == sorted(min(number + 5, number // 20 * 20 + 19) for number in range(4_000))
