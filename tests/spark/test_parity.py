"""One program, two engines: over bounded input they give the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from embedded_runs import assert_same, counted, finish, newest, rows, settings
from pipelines import CASES, Case, write_files
from spark_runs import CASES_FILE, SPARK_CASES_FILE, execute, prepare, rounded, run

from penstock.api.loading import load_pipeline
from penstock.spark import replay
from penstock.spark.native import native_windows

EXAMPLES = Path(__file__).parents[2] / "examples"


NATIVE = {
    "tumbling": {"w"},
    "retimed": {"retimed"},
    "sliding": {"n2-window"},
    "two-stages": {"n2-window", "n5-window"},
    "files": {"n2-window"},
    "decimals": {"prices"},
    "waiting": {"n3-window"},
    "joins": {"own", "pairs"},
    "process-batches": {"again"},
}
"""The windows that Spark's own plan must compute, by case; in all others there is none."""


@pytest.mark.parametrize("case", [case for case in CASES if case.on_spark], ids=lambda case: case.name)
def test_every_verb_gives_the_same_rows(case: Case, spark, tmp_path):
    """Embedded at parallelism 1 and 3, and Spark, as its own plan where it may, and replayed.

    Running results are compared by the last row of each key. What an operator counts is the same too.
    """
    write_files(tmp_path / "in")
    results = {}
    for parallelism in (1, 3):
        out = tmp_path / f"embedded-{parallelism}"
        finish(case.declare(out, None), tmp_path / f"state-{parallelism}", settings(parallelism))
        results[out.name] = rounded(case.result(out))
    assert results["embedded-1"], "nothing was compared"
    assert results["embedded-1"] == results["embedded-3"]
    counts = {}
    for native in (True, False) if case.name in NATIVE else (True,):
        out = tmp_path / f"spark-{native}"
        parameters = {"case": case.name, "out": str(out)}
        root = tmp_path / f"root-{native}"
        made = prepare(spark, CASES_FILE, root, parameters, native=native)
        computed = {way.operator for way in native_windows(made.ways).values()}
        assert computed == (NATIVE.get(case.name, set()) if native else set())
        counts[native] = execute(made).counts
        assert rounded(case.result(out)) == results["embedded-1"]
    assert len({json.dumps(found, sort_keys=True) for found in counts.values()}) == 1


def test_what_is_set_aside_as_too_late_is_set_aside_on_spark(spark, tmp_path):
    """The impatient example comes to the same windows and the same rows that are too late for them."""
    parameters = {"out": str(tmp_path / "embedded"), "late": str(tmp_path / "embedded-late")}
    finish(load_pipeline(str(EXAMPLES / "departures_late.py"), parameters), tmp_path / "state")
    parameters = {"out": str(tmp_path / "spark"), "late": str(tmp_path / "spark-late")}
    run(spark, EXAMPLES / "departures_late.py", tmp_path, parameters)
    late = counted(rows(tmp_path / "spark-late"))
    assert late.total() == 1
    assert_same(late, counted(rows(tmp_path / "embedded-late")), "late")
    corrected = newest(rows(tmp_path / "spark"), "origin", "window_start")
    assert rounded(corrected) == rounded(newest(rows(tmp_path / "embedded"), "origin", "window_start"))


def test_every_type_crosses_an_exchange(spark, tmp_path):
    """Unsigned, nested and null values come out as they went in."""
    parameters = {"case": "types", "out": str(tmp_path / "embedded")}
    finish(load_pipeline(str(SPARK_CASES_FILE), parameters), tmp_path / "state")
    run(spark, SPARK_CASES_FILE, tmp_path, {**parameters, "out": str(tmp_path / "spark")})
    got = {row["key"]: row for row in rows(tmp_path / "spark")}
    assert got == {row["key"]: row for row in rows(tmp_path / "embedded")}
    assert len(got) == 21


def test_a_row_whose_time_goes_back_is_the_last_one_all_the_same(local, tmp_path, monkeypatch):
    """Spark sorts changes by the time that they were given: a row is taken back behind the one that replaces it."""
    monkeypatch.setattr(replay, "SLICE_ROWS", 1)  # of the rows of a key that come together the last one counts
    run(local, SPARK_CASES_FILE, tmp_path, {"case": "moved-back", "out": str(tmp_path / "out")}, native=False)
    assert sorted((row["key"], row["number"]) for row in rows(tmp_path / "out")) == [("k0", 9), ("k1", 10), ("k2", 11)]


@pytest.mark.parametrize("flavour", ["rows", "batches"])
@pytest.mark.parametrize("bound", [0, 1])
def test_timers_fire_between_the_rows_they_lie_between(spark, tmp_path, bound, flavour):
    """On ordered input they fire at the same row on every engine, whatever is fed together: at the one that a loop finds.

    Where rows are waited for, a timer of either engine sees those that come within the bound.
    """
    parameters = {"case": "many-keys", "rows": "4000", "bound": f"{bound}s", "splits": "1", "flavour": flavour}
    run(spark, SPARK_CASES_FILE, tmp_path, {**parameters, "out": str(tmp_path / "spark")})
    for parallelism in (1, 3):
        parameters["out"] = str(tmp_path / f"embedded-{parallelism}")
        finish(
            load_pipeline(str(SPARK_CASES_FILE), parameters), tmp_path / f"state-{parallelism}", settings(parallelism)
        )
    # Twenty rows of a key follow each other by a second; each sets a timer that sees the row five seconds later.
    expected = sorted(min(number + 5 + bound, number // 20 * 20 + 19) for number in range(4_000))
    for engine in ("spark", "embedded-1", "embedded-3"):
        assert sorted(row["number"] for row in rows(tmp_path / engine)) == expected, engine
