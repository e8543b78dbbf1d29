"""State in and out on Spark: a run ends where another one begins, on either engine, as if there had been one."""

from __future__ import annotations

import os
import random

import pytest
from embedded_runs import finish, settings
from pipelines import CASES, ROWS, Case, every_row
from spark_runs import rounded
from state_runs import STATE_FILE, continue_embedded, interrupt_embedded, merged, run_part, write_part

from penstock import Pipeline, savepoint
from penstock.loading import load_pipeline

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))
STATEFUL = [
    case
    for case in CASES
    if case.name
    in ("tumbling", "sliding", "sessions", "two-stages", "running", "reduced", "keyed-process", "operator-state")
]


@pytest.mark.acceptance
@pytest.mark.parametrize("case", STATEFUL, ids=lambda case: case.name)
def test_two_parts_are_one_run(case: Case, local, tmp_path):
    """The first part on Spark leaves a savepoint; Spark and the embedded engine, wider, go on from it."""
    cut = random.Random(f"{SEED} {case.name}").randrange(ROWS // 5, 4 * ROWS // 5)
    print(f"cut {cut}: repeat with PENSTOCK_TEST_SEED={SEED}")
    given = {"case": case.name, "in": str(tmp_path / "in")}
    write_part(tmp_path / "in", "first-", 0, cut)
    run_part(local, tmp_path, {**given, "out": str(tmp_path / "first")}, target=tmp_path / "kept")
    sp = savepoint.read(tmp_path / "kept")
    assert sum(operator.keyed_bytes + sum(operator.entries.values()) for operator in sp.operators) > 0
    open_windows = [op for op in sp.operators if op.verb == "window" and sp.table(op.uid).height]
    assert open_windows or case.name in ("running", "reduced", "keyed-process", "operator-state"), "nothing was open"
    write_part(tmp_path / "in", "second-", cut, ROWS)
    run_part(local, tmp_path, {**given, "out": str(tmp_path / "spark")}, start=tmp_path / "kept", parallelism=3)
    on_embedded = load_pipeline(str(STATE_FILE), {**given, "out": str(tmp_path / "embedded")})
    continue_embedded(on_embedded, tmp_path / "kept", tmp_path / "job", 3)
    whole = load_pipeline(str(STATE_FILE), {**given, "out": str(tmp_path / "whole")})
    finish(whole, tmp_path / "state", settings(1))
    expected = rounded(case.result(tmp_path / "whole"))
    assert expected, "nothing was compared"
    for engine in ("spark", "embedded"):
        both = merged([tmp_path / "first", tmp_path / engine], tmp_path / f"first-and-{engine}")
        assert rounded(case.result(both)) == expected, engine


@pytest.mark.acceptance
@pytest.mark.parametrize("case", STATEFUL, ids=lambda case: case.name)
def test_a_job_is_continued_on_spark_and_goes_on_from_there(case: Case, local, tmp_path):
    """Stopped amid its files; Spark reads the rest of them and newer ones; the job goes on at another parallelism."""
    rng = random.Random(f"{SEED} {case.name} job")
    cuts = sorted(rng.sample(range(ROWS // 4, ROWS), 2))
    before, between, after = (rng.randrange(1, 4) for _ in range(3))
    print(f"cuts {cuts}, parallelism {before}, {between}, {after}: repeat with PENSTOCK_TEST_SEED={SEED}")

    def declared(out: str, **more: str) -> Pipeline:
        return load_pipeline(str(STATE_FILE), {**given, "out": str(tmp_path / out), **more})

    given = {"case": case.name, "in": str(tmp_path / "in")}
    write_part(tmp_path / "in", "a-", 0, cuts[0])
    after_rows = rng.randrange(1, cuts[0] // 3)
    interrupt_embedded(declared("0", rate="400"), tmp_path / "job-0", before, after_rows, tmp_path / "kept-0")
    stopped = savepoint.read(tmp_path / "kept-0")
    write_part(tmp_path / "in", "b-", *cuts)
    on_spark = {**given, "out": str(tmp_path / "1")}
    run_part(local, tmp_path, on_spark, start=tmp_path / "kept-0", target=tmp_path / "kept-1", parallelism=between)
    left = savepoint.read(tmp_path / "kept-1")
    assert left.checkpoint == stopped.checkpoint + 1
    assert left.splits()["finished"].to_list() == [True] * 6
    write_part(tmp_path / "in", "c-", cuts[1], ROWS)
    continue_embedded(declared("2"), tmp_path / "kept-1", tmp_path / "job-2", after)
    finish(declared("whole"), tmp_path / "state", settings(1))
    got = case.result(merged([tmp_path / "0", tmp_path / "1", tmp_path / "2"], tmp_path / "all"))
    assert rounded(got) == rounded(case.result(tmp_path / "whole"))


def test_spark_itself_gives_every_task_its_state(spark, tmp_path):
    """Few rows follow: tasks that get none let time pass for their keys all the same. A job after it finds all there is.

    An attempt at a task fails after it has written state; of that nothing is left.
    """
    given = {"case": "fails-once", "in": str(tmp_path / "in"), "marker": str(tmp_path / "marker")}
    write_part(tmp_path / "in", "a-", 0, 1_500)
    run_part(spark, tmp_path, {**given, "out": str(tmp_path / "0")}, target=tmp_path / "kept-0")
    assert (tmp_path / "marker").exists(), "no attempt failed"
    first = savepoint.read(tmp_path / "kept-0")
    named = {handle.key for parts in first.manifest.subtasks.values() for part in parts.values()
             for operator in part.operators.values() if (handle := operator.keyed)}  # fmt: skip
    assert named == {f"objects/{path.name}" for path in (tmp_path / "kept-0/objects").iterdir()}
    write_part(tmp_path / "in", "b-", 1_500, 1_501)
    on_spark = {**given, "out": str(tmp_path / "1")}
    run_part(spark, tmp_path, on_spark, start=tmp_path / "kept-0", target=tmp_path / "kept-1", parallelism=3)
    assert savepoint.read(tmp_path / "kept-1").table("minutes").height == first.table("minutes").height
    write_part(tmp_path / "in", "c-", 1_501, ROWS)
    last = load_pipeline(str(STATE_FILE), {**given, "out": str(tmp_path / "2")})
    continue_embedded(last, tmp_path / "kept-1", tmp_path / "job", 2)
    finish(load_pipeline(str(STATE_FILE), {**given, "out": str(tmp_path / "whole")}), tmp_path / "state", settings(1))
    got = merged([tmp_path / "0", tmp_path / "1", tmp_path / "2"], tmp_path / "all")
    assert every_row(got) == every_row(tmp_path / "whole")
