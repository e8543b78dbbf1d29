"""A plugin of pytest for `make check`: when the time is over, each further test is skipped with a reason of its own."""

from __future__ import annotations

import os
import time
from typing import Final

import pytest

UNTIL: Final = "PENSTOCK_CHECK_UNTIL_S"
"""The variable that says when the time is over, in seconds since 1970."""
NO_TIME: Final = "no time was left for this test"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before the fixtures of a test are set up."""
    if time.time() > float(os.environ[UNTIL]):
        pytest.skip(NO_TIME)
