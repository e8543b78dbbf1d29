"""One program, two engines: over bounded input they give the same rows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from embedded_runs import assert_same, counted, finish, newest, rows, settings
from pipelines import CASES, Case, write_files
from spark_runs import CASES_FILE, SPARK_CASES_FILE, execute, prepare, rounded, run

from penstock.loading import load_pipeline
from penstock.spark import replay
from penstock.spark.native import native_windows

EXAMPLES = Path(__file__).parents[2] / "examples"


NATIVE = {
    "tumbling": {"w"},
    "retimed": {"retimed"},
    "sliding": {"n2-window"},
    "subtotals": {"cube"},
    "two-stages": {"n2-window", "n5-window"},
    "files": {"n2-window"},
    "decimals": {"prices"},
    "waiting": {"n3-window"},
    "joins": {"own", "pairs", "of-at", "of-at_met"},
    "process-batches": {"again"},
}
"""The windows that Spark's own plan must compute, by case; in all others there is none."""


ON_SPARK = [case for case in CASES if case.on_spark]
DEALT = 4
"""How many of the cases without such windows a run plays on a real Spark, chosen by its seed."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All cases run on Spark's tasks without Spark; on Spark itself those whose windows it computes, and some others."""
    if "case" in metafunc.fixturenames:
        cases = ON_SPARK if "local" in metafunc.fixturenames else dealt(metafunc.config.getoption("randomly_seed", 0))
        metafunc.parametrize("case", cases, ids=lambda case: case.name)


def dealt(seed: int) -> list[Case]:
    """The cases that are played on a real Spark."""
    others = [case for case in ON_SPARK if case.name not in NATIVE]
    return [case for case in ON_SPARK if case.name in NATIVE] + random.Random(seed).sample(others, DEALT)


def embedded(case: Case, parallelism: int, folder: Path) -> Any:
    """What the case comes to on one machine."""
    out = folder / f"embedded-{parallelism}"
    finish(case.declare(out, None), folder / f"state-{parallelism}", settings(parallelism))
    return rounded(case.result(out))


def on_spark(case: Case, session: Any, folder: Path, *, native: bool) -> tuple[Any, str]:
    """What it comes to on Spark, and what its operators have counted."""
    out = folder / f"spark-{native}"
    made = prepare(session, CASES_FILE, folder / f"root-{native}", {"case": case.name, "out": str(out)}, native=native)
    computed = {way.operator for way in native_windows(made.ways).values()}
    assert computed == (NATIVE.get(case.name, set()) if native else set())
    counts = execute(made).counts
    return rounded(case.result(out)), json.dumps(counts, sort_keys=True)


def test_every_verb_gives_the_same_rows(case: Case, local, tmp_path):
    """Embedded at parallelism 1 and 3, and by Spark's tasks, which replay the rows.

    Running results are compared by the last row of each key.
    """
    write_files(tmp_path / "in")
    expected = embedded(case, 1, tmp_path)
    assert expected, "nothing was compared"
    assert embedded(case, 3, tmp_path) == expected
    assert on_spark(case, local, tmp_path, native=False)[0] == expected


def test_spark_gives_the_same_rows(case: Case, spark, tmp_path):
    """As its own plan where it may, and replayed. What an operator counts is the same, too."""
    write_files(tmp_path / "in")
    natives = (True, False) if case.name in NATIVE else (True,)
    ways = [on_spark(case, spark, tmp_path, native=native) for native in natives]
    expected = embedded(case, 1, tmp_path)
    assert [rows for rows, _ in ways] == [expected] * len(ways)
    assert len({counts for _, counts in ways}) == 1


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
