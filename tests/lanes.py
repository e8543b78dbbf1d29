"""Tests run in three lanes, and what a test starts decides which one is its own.

* ``python`` (``make test``) starts nothing but Python: logic, simulation, embedded runs, Spark's tasks without Spark.
* ``servers`` (``make servers``) uses Kafka, MinIO, Redis, Postgres, OpenSearch, Spark or Chromium. A test belongs to it
  when it asks for one of the fixtures in `SERVERS`, or when it is marked ``servers``.
* ``acceptance`` (``make acceptance``) is `tests/acceptance` and what is marked ``acceptance``: containers, Helm,
  Prometheus, the chaos run, and what takes the first lane too long, such as mutants of the protocol and the command as
  users run it.

A test of the first lane cannot start a server by mistake: `shadow_servers` puts programs in front of Java, Redis and
their like that refuse to start, and the tests' own starters call `demand_servers`.

Tests are handed to pytest's worker processes by group (`group_of`): a file, or all tests that share an expensive server,
so that one Spark session and one Postgres serve a whole run. The groups in `LONGEST` begin first, so that no worker is
left alone with a long one at the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

Lane = Literal["python", "servers", "acceptance"]
LANES: Final[tuple[Lane, ...]] = ("python", "servers", "acceptance")
VARIABLE: Final = "PENSTOCK_TEST_LANE"
"""Names the lane to every process of a run; without it, all tests run."""

SHARED: Final = {"standalone": "standalone", "spark": "spark", "postgres": "postgres"}
"""The fixtures that are made once per run, with the group of the tests that ask for one."""
SERVERS: Final = frozenset({*SHARED, "platform", "own_platform", "own_stores", "three_brokers", "browser"})
"""The fixtures that start more than Python."""
PROGRAMS: Final = ("java", "redis-server", "docker", "dockerd", "docker-compose", "mvn", "helm", "promtool")
"""What must not be started in the lane ``python``, not even by a process that a test starts."""

_WRITTEN: Final = "groups.json"
LONGEST: Final = (
    "containers",
    "incremental changes",
    "incremental joins",
    "incremental regular joins",
    "incremental windows",
    "tests/e2e/test_chaos.py",
    "tests/acceptance/test_helm.py",
    "tests/e2e/test_pipeline_service.py",
    "spark",
    "standalone",
    "postgres",
    "tests/e2e/test_readme.py",
    "tests/spark/test_event_logs.py",
    "tests/spark/test_steps_kafka.py",
    "tests/integration/test_opensearch_sink.py",
    "tests/spark/test_connect.py",
    "tests/e2e/test_catch_up.py",
    "tests/e2e/test_platform.py",
    "tests/simulation/shells/test_shells.py",
    "tests/integration/test_restarts.py",
    "tests/simulation/test_simulation.py",
    "tests/spark/test_steps.py",
    "tests/e2e/test_command.py",
    "tests/unit/testing/test_time_between_rows.py",
    "tests/unit/task/test_regular_joins.py",
    "tests/unit/task/test_top_changes.py",
    "tests/unit/task/test_changes.py",
)


def lane_of(item: pytest.Item) -> Lane:
    """The lane of a test."""
    if item.get_closest_marker("acceptance") or "acceptance" in item.path.relative_to(item.config.rootpath).parts:
        return "acceptance"
    fixtures: list[str] = getattr(item, "fixturenames", [])
    return "servers" if item.get_closest_marker("servers") or SERVERS.intersection(fixtures) else "python"


def group_of(item: pytest.Item) -> str:
    """The tests of a group run in one process, one after the other."""
    if mark := item.get_closest_marker("group"):
        return mark.args[0]
    fixtures: list[str] = getattr(item, "fixturenames", [])
    shared = next((group for fixture, group in SHARED.items() if fixture in fixtures), None)
    return shared or item.path.relative_to(item.config.rootpath).as_posix()


class Groups(LoadScopeScheduling):
    """Hands each group as a whole to the next worker that is free.

    pytest-xdist's own way (``--dist loadgroup``) writes groups into the ids of tests, which pytest 9.2 does not let it.
    The process that hands out tests knows only their ids, so one that has collected them writes the groups down.

    Args:
        config: of the run.
        log: where pytest-xdist says what it does.
        folder: where `arrange` has written the groups.
    """

    def __init__(self, config: pytest.Config, log: Producer, folder: Path) -> None:
        super().__init__(config, log)
        self._written = folder / _WRITTEN
        self._groups: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        self._groups = self._groups or json.loads(self._written.read_text())
        return self._groups[nodeid]


def arrange(config: pytest.Config, items: list[pytest.Item], folder: Path) -> None:
    """Leave the tests of the chosen lane, the longest groups first, and write down which group each belongs to."""
    if lane := os.environ.get(VARIABLE):
        left_out = [item for item in items if lane_of(item) != lane]
        items[:] = [item for item in items if lane_of(item) == lane]
        config.hook.pytest_deselected(items=left_out)
    ranks = {group: rank for rank, group in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(group_of(item), len(ranks)))
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / f"{_WRITTEN}.{os.getpid()}"
    written.write_text(json.dumps({item.nodeid: group_of(item) for item in items}))
    written.replace(folder / _WRITTEN)


def implementations(kinds: Iterable[str], *servers: str) -> list[Any]:
    """The implementations of a port as parameters of its contract suite; `servers` names those that need servers."""
    return [pytest.param(kind, marks=[pytest.mark.servers] if kind in servers else []) for kind in sorted(kinds)]


_REFUSAL: Final = "`make test` starts nothing but Python: mark this test with @pytest.mark.servers"


def demand_servers(what: str) -> None:
    """Say that the running test starts this.

    Raises:
        AssertionError: the run is that of `make test`.
    """
    assert os.environ.get(VARIABLE) != "python", f"this test starts {what}; {_REFUSAL}"


def shadow_servers(folder: Path) -> None:
    """Let this process and those that it starts find, in place of servers, programs that refuse."""
    folder.mkdir(parents=True)
    for name in PROGRAMS:
        program = folder / name
        program.write_text(f"#!/bin/sh\necho '{name}: {_REFUSAL}' >&2\nexit 97\n")
        program.chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    os.environ.pop("JAVA_HOME", None)
