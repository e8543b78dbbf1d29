"""One Spark session for all tests of a process, and the pipelines of the integration tests."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parent.parent / "integration"))
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def local(monkeypatch) -> Any:
    """A session without Spark: tasks run in this process."""
    from local_lowering import SESSION, LocalLowering

    monkeypatch.setattr("penstock.spark.lowering.Lowering", LocalLowering)
    return SESSION


@pytest.fixture(scope="session")
def spark() -> Generator[SparkSession]:
    """Two tasks at a time, three attempts for each."""
    from spark_runs import QUICK

    from penstock.spark.session import SparkSettings, open_session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = open_session("tests", SparkSettings(master="local[2,3]", conf={"spark.ui.enabled": "false", **QUICK}))
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def jvm() -> Generator[None]:
    """Says how Spark's JVM has ended, if it has: all that its session's tests tell of it is a refused connection."""
    yield
    pyspark = sys.modules.get("pyspark")
    process = getattr(pyspark.SparkContext._gateway, "proc", None) if pyspark is not None else None
    code = process.poll() if process is not None else None
    assert code is None, f"Spark's JVM, process {process.pid}, has ended with {code}, in this test or before it"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """A test that is cut off while it waits for Java leaves an answer that the next call would take for its own."""
    try:
        return (yield)
    except BaseException:
        pyspark = sys.modules.get("pyspark")
        gateway = pyspark.SparkContext._gateway if pyspark is not None else None
        connection = gateway._gateway_client.get_thread_connection() if gateway is not None else None
        if connection is not None:
            connection.close()
        raise


@pytest.fixture
def minio(platform: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder of a bucket, which the environment of this process says how to reach."""
    from minio_folder import MinioFolder

    folder = MinioFolder(platform)
    for name, value in folder.environment.items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The address of a cluster of Spark's own, with two workers of one core each."""
    from standalone import cluster

    with cluster(tmp_path_factory.mktemp("standalone")) as master:
        yield master
