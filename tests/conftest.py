"""The real parts for tests: Kafka, MinIO and Redis, started when the first test asks for them, ended with the run.

* `platform`: one set for the whole run, shared by all its processes; every test takes a cluster name of its own.
* `own_platform`: a set for one test, which may kill, pause and restart its servers; `own_stores`: without Kafka;
  `three_brokers`: with three brokers.
* `postgres`: one for the whole run.

What is missing on the machine is a failure that says what to type, never a skip.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import shutil
import tempfile
import traceback
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import structlog
from hypothesis import settings
from structlog.dev import plain_traceback
from tests.class_archives import SPARK, quick_java
from tests.lanes import LANES, VARIABLE, Groups, arrange, demand_servers, shadow_servers
from tests.never_null import watch_chains
from tests.postgres_server import PostgresServer, running_postgres
from tests.properties import Recorder, deal_examples, digests_of
from tools.near import code_of_tree

from penstock.connectors.kafka import default_cluster as kafka_platform
from penstock.settings import FILE_VARIABLE, ClusterSettings

_FOLDER = "PENSTOCK_TEST_FOLDER"
_OWNER = "PENSTOCK_TEST_OWNER"

T = TypeVar("T")

# Machines of CI are shared: an example that waits for its turn there is not slow. `make test` plays the same histories
# for the same code, so that what fails is what was changed, and a part of them (tests/properties.py); `make properties`
# searches with fresh ones, and all that a test asks for.
settings.register_profile("penstock", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("penstock")


class SharedPlatform:
    """The servers of this test run."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings

    def settings(self, name: str = "test") -> ClusterSettings:
        """A fresh cluster on them: the name is made unique, so nothing of another test is in the way."""
        return replace(self._settings, name=f"{name}-{secrets.token_hex(4)}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", choices=LANES, help="run only the tests of this lane (tests/lanes.py)")


def pytest_configure(config: pytest.Config) -> None:
    """Tell the workers of this run which folder its servers use and whose end is theirs; import Penstock as users do."""
    # Python 3.11.7 counts nested syntax trees in one place (SystemError: AST constructor recursion depth mismatch). A
    # tree must not be made while another is: not by two threads whose modules pytest rewrites, as it does with a package
    # that has a plugin for it, and not for the carets in the traceback of what the garbage collector finds.
    config.pluginmanager.rewrite_hook._must_rewrite.discard("penstock")
    pytest.MonkeyPatch().setattr(traceback, "_extract_caret_anchors_from_line_segment", lambda segment: None)
    # A traceback with all locals takes seconds to write on a busy machine: a leader's lease is over meanwhile.
    cast(
        "structlog.dev.ConsoleRenderer", structlog.get_config()["processors"][-1]
    ).exception_formatter = plain_traceback
    watch_chains()
    if hasattr(config, "workerinput"):
        return
    from penstock.platform.processes import identify

    me = identify(os.getpid())
    assert me is not None
    os.environ[_FOLDER] = str(Path(tempfile.gettempdir()) / f"penstock-tests-{os.getpid()}-{secrets.token_hex(4)}")
    os.environ[_OWNER] = f"{me.pid} {me.started}"
    if lane := config.getoption("--lane"):
        os.environ[VARIABLE] = lane
        if lane == "python":
            shadow_servers(Path(os.environ[_FOLDER]) / "no-servers")
            config.pluginmanager.register(Recorder(Path(os.environ[_FOLDER]), digests_of(code_of_tree("tests."))))
    os.environ.setdefault("SPARK_SUBMIT_OPTS", quick_java(SPARK))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """Tests of a group run in one process."""
    return Groups(config, log, Path(os.environ[_FOLDER]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect garbage neither while tests are collected nor later among them: thousands of modules and tests stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests of a lane, and the number of examples of its property tests."""
    arrange(config, items, Path(os.environ[_FOLDER]))
    deal_examples(items, Path(os.environ[_FOLDER]))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End the run's servers. After a failure their logs stay, for whoever looks for the cause."""
    folder = Path(os.environ[_FOLDER])
    if hasattr(session.config, "workerinput") or not folder.exists():
        return
    _run(_guard().end())
    if exitstatus == 0:
        shutil.rmtree(folder)
    elif any(folder.glob("*.processes.json")):
        print(f"\nthe logs of Kafka, MinIO and Redis: {folder}")


@pytest.fixture(scope="session")
def platform() -> SharedPlatform:
    """Kafka, MinIO and Redis, shared by the whole run."""
    from penstock.platform.parts import cached_parts

    demand_servers("Kafka, MinIO and Redis")
    return SharedPlatform(_run(_guard().shared(cached_parts())))


@pytest.fixture
def own_platform() -> Generator[Any]:
    """Kafka, MinIO and Redis of one test (a `penstock.platform.servers.Servers`), to be killed and restarted at will."""
    yield from _own_servers(brokers=1, broker_session_ms=4_000)  # a killed broker is back after 6 s instead of 14


@pytest.fixture
def own_stores() -> Generator[Any]:
    """The same without Kafka, for a test that kills only MinIO or Redis."""
    yield from _own_servers(kafka=False)


@pytest.fixture
def three_brokers() -> Generator[Any]:
    """The same with three brokers: topics are replicated three times, and one broker may be lost."""
    yield from _own_servers(brokers=3)


@pytest.fixture(scope="session")
def postgres() -> Generator[PostgresServer]:
    """A Postgres for the whole run, whose tests are one group; each has tables of its own."""
    with running_postgres() as server:
        yield server


@pytest.fixture(autouse=True, scope="module")
def _module_as_in_a_new_process() -> Generator[None]:
    """Nor does a module find what the fixtures of another one chose."""
    with _process_as_it_was():
        yield


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Generator[None]:
    """No test finds the cluster that another one chose for this process, or its logging."""
    with _process_as_it_was():
        yield


@contextmanager
def _process_as_it_was() -> Generator[None]:
    cluster = kafka_platform._platform
    chosen, file, level = vars(cluster).copy(), os.environ.get(FILE_VARIABLE), logging.getLogger("aiokafka").level
    yield
    vars(cluster).update(chosen)
    os.environ.pop(FILE_VARIABLE, None)
    if file is not None:
        os.environ[FILE_VARIABLE] = file
    logging.getLogger("aiokafka").setLevel(level)
    structlog.reset_defaults()


def _own_servers(*, kafka: bool = True, **plan: int) -> Generator[Any]:
    from penstock.platform.parts import cached_parts
    from penstock.platform.servers import plan_servers

    demand_servers("MinIO and Redis")
    name = f"own-{secrets.token_hex(4)}"
    servers = _run(_guard().own(cached_parts(), name, plan_servers(heap_mb=256, **plan), kafka=kafka))
    yield servers
    _run(servers.kill())


def _guard() -> Any:
    from tests.guard import Guard

    from penstock.platform.processes import ProcessId

    pid, _, started = os.environ[_OWNER].partition(" ")
    return Guard(Path(os.environ[_FOLDER]), ProcessId(int(pid), started))


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end in a thread, so that no event loop of pytest is touched."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is, in this process, the object store `s3://bucket`."""
    from obstore.store import LocalStore

    folder = tmp_path / "bucket"
    store = LocalStore(folder, mkdir=True)
    monkeypatch.setattr("penstock.connectors.files.store_clients._client", lambda root, _: {"s3://bucket": store}[root])
    return folder
