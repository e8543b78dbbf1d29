"""Twelve faults on the real parts, each named step of the protocol among them: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest
from tests.chaos.faults import BRIEF
from tests.chaos.harness import ChaosRun

from penstock.coordination import failpoints

pytestmark = pytest.mark.e2e

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))


@pytest.mark.timeout(600)
def test_no_fault_loses_or_doubles_a_row(own_platform: Any) -> None:
    """Processes, servers and named steps in turn; then every row of three sinks is compared, and nothing is left."""
    print(f"seed {SEED}: repeat with PENSTOCK_TEST_SEED={SEED}")
    report = asyncio.run(ChaosRun(own_platform, SEED).run(BRIEF))
    print(report.summary())
    assert len(report.cycles) == len(BRIEF)


def test_every_named_step_is_tried() -> None:
    """The fixed list leaves out no step."""
    named = {value for name, value in vars(failpoints).items() if name.startswith(("BEFORE_", "AFTER_"))}
    assert {fault.step for fault in BRIEF} - {""} == named
