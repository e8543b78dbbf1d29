"""The real servers that the suites run on, and a cluster of its own for every test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

import pytest

from penstock.settings import FILE_VARIABLE, ClusterSettings, load_settings


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Callable[[], ClusterSettings]:
    """A fresh cluster on the real servers, which start with the first test that asks for one.

    Where `PENSTOCK_CLUSTER` names a file of settings, the suites run on those servers instead.
    """
    name = f"contract-{uuid.uuid4().hex[:12]}"

    def settings() -> ClusterSettings:
        if FILE_VARIABLE in os.environ:
            return load_settings(environ={**os.environ, "PENSTOCK_NAME": name})
        return request.getfixturevalue("platform").settings(name)

    return settings
