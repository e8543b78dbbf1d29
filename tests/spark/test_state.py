"""State in and out on Spark: a run ends where another one begins, on either engine, as if there had been one."""

from __future__ import annotations

import os
import random

import pytest
from embedded_runs import finish, settings
from pipelines import CASES, ROWS, Case
from spark_runs import rounded
from state_runs import STATE_FILE, continue_embedded, merged, run_part, write_part

from penstock import savepoint
from penstock.runtime.loading import load_pipeline

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))
STATEFUL = [
    case
    for case in CASES
    if case.name
    in ("tumbling", "sliding", "sessions", "two-stages", "running", "reduced", "keyed-process", "operator-state")
]


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
