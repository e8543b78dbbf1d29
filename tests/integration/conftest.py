"""Makes the helpers beside the tests importable: pytest's importlib mode leaves `sys.path` alone."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
from tests.postgres_server import PostgresServer

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this session's interruptions: PENSTOCK_TEST_SEED, or a fresh one."""
    return int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """The Postgres of the run."""
    return postgres
