"""Makes the helpers beside the tests importable: pytest's importlib mode leaves `sys.path` alone."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres_server import PostgresServer, running_postgres

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this session's interruptions: PENSTOCK_TEST_SEED, or a fresh one."""
    return int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A Postgres of the module's own."""
    with running_postgres() as found:
        yield found
