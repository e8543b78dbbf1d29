"""The pytest plugin: every pytest that finds Penstock installed loads it, so it imports nothing else of it.

Fixtures:

* `penstock_cluster`: a cluster in this process, for one test (`penstock.testing.cluster.PenstockCluster`).
* `penstock_containers`: Kafka, Redis and MinIO in containers, for the whole run, each started when it is first asked for
  (`penstock.testing.containers.PenstockContainers`).

Options in pytest's configuration (`[tool.pytest.ini_options]`): `penstock_workers` and `penstock_slots` of the cluster,
`penstock_kafka_image`, `penstock_redis_image` and `penstock_minio_image`; environment variables such as
`PENSTOCK_TEST_KAFKA_IMAGE` come before these.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.cluster import PenstockCluster
    from penstock.testing.containers import PenstockContainers


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of pytest's configuration."""
    parser.addini("penstock_workers", "workers of the fixture penstock_cluster (2)", default="2")
    parser.addini("penstock_slots", "slots of each of these workers (4)", default="4")
    for part in ("kafka", "redis", "minio"):
        parser.addini(f"penstock_{part}_image", f"image of the {part} of penstock_containers", default="")


@pytest.fixture
def penstock_cluster(pytestconfig: pytest.Config) -> Generator[PenstockCluster]:
    """A cluster in this process: coordinator and workers on ports in memory, gone with the test.

    Example:
        def test_totals(penstock_cluster):
            job = penstock_cluster.submit(totals(), [paid("a", 1.0), paid("a", 2.0)])
            job.wait()
            assert job.rows() == [{"account": "a", "total": 3.0}]
    """
    from penstock.testing.cluster import PenstockCluster

    workers, slots = (_positive(pytestconfig, name) for name in ("penstock_workers", "penstock_slots"))
    with PenstockCluster(workers=workers, slots=slots) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def penstock_containers(pytestconfig: pytest.Config) -> Generator[PenstockContainers]:
    """Kafka, Redis and MinIO in containers, each from the moment that a test asks for it until the run ends.

    Example:
        def test_orders(penstock_containers):
            source = kafka.Source("orders", schema=Order, brokers=penstock_containers.kafka)
    """
    from penstock.testing.containers import IMAGES, PenstockContainers

    images = {part: str(pytestconfig.getini(f"penstock_{part}_image")) for part in IMAGES}
    with PenstockContainers(images) as containers:
        yield containers


def _positive(config: pytest.Config, name: str) -> int:
    text = str(config.getini(name))
    if not text.isdecimal() or int(text) == 0:
        raise pytest.UsageError(f"{name} = {text} in pytest's configuration: give a number above zero")
    return int(text)
