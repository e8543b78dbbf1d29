"""Kafka, Redis and MinIO in containers, as in users' tests: the contracts of the ports, and a cluster from end to end."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.services import Services, wait_for

from penstock.errors import ExternalError
from penstock.settings import FILE_VARIABLE, settings_to_toml
from penstock.testing.containers import PenstockContainers

from .committed import CommittedRows
from .docker import ROOT, STAND_INS, engine, run

pytestmark = [pytest.mark.timeout(600), pytest.mark.group("containers")]

ROWS = 12_000
RATE = 2_000
KEYS = 7
WINDOW = 100
"""Rows of a window, of all keys together."""
PIPELINE = f"""
from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from penstock import Pipeline, col, count, tumbling
from penstock.connectors import generate, kafka

START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)


@dataclass
class Event:
    key: int
    number: int
    at: datetime


def rows(numbers):
    at = pl.Series(START + numbers * 10_000).cast(pl.Datetime("us", "UTC"))
    return pl.DataFrame({{"key": numbers % {KEYS}, "number": numbers, "at": at}})


p = Pipeline("counts")
(
    p.read(generate.Source(rows, schema=Event, rows={ROWS}, event_time="at", rate={RATE}))
    .key_by("key")
    .window(tumbling("1s"))
    .agg(n=count(), total=col("number").sum())
    .write(kafka.Sink("counts", key="key", create_partitions=2))
)
"""


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Generator[PenstockContainers]:
    """The three, under the names of the official images, on whatever engine there is."""
    with engine(tmp_path_factory.mktemp("docker")):
        run(STAND_INS, timeout_s=900)
        with PenstockContainers() as found:
            yield found


def test_the_contracts_hold_in_containers(containers: PenstockContainers, tmp_path: Path) -> None:
    """The suites of Log, Blobs and Metadata, on Kafka, MinIO and Redis in containers instead of native ones."""
    file = tmp_path / "cluster.toml"
    file.write_text(settings_to_toml(containers.settings("contracts")))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "tests/contract",
            "--lane",
            "servers",
            "-q",
            "-k",
            "kafka or s3 or redis",
            "-p",
            "no:cacheprovider",
        ],
        cwd=ROOT,
        env={**os.environ, FILE_VARIABLE: str(file)},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 50, done.stdout


def test_the_fixture_gives_what_the_documentation_says(containers: PenstockContainers, tmp_path: Path) -> None:
    """The example of docs/testing.md, by a pytest of its own that starts its own containers."""
    text = (ROOT / "docs" / "testing.md").read_text()
    [example] = [
        found for found in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "penstock_containers" in found
    ]
    (tmp_path / "test_example.py").write_text(example)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    before = run("docker", "ps", "-aq").split()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(run("docker", "ps", "-aq").split()) <= set(before)


def test_an_image_that_is_not_to_be_had_is_named(containers: PenstockContainers) -> None:
    """With what to do: pull it, or name another one."""
    missing = PenstockContainers({"redis": "localhost:1/no-such-image:1"})
    with pytest.raises(
        ExternalError, match=r"redis: no container of localhost:1/no-such-image:1 .*PENSTOCK_TEST_REDIS_IMAGE"
    ):
        _ = missing.redis


def test_a_cluster_works_on_them(containers: PenstockContainers, tmp_path: Path) -> None:
    """A job from its submission to its end; a task manager is killed meanwhile; every window is in the topic, once."""
    (tmp_path / "counts.py").write_text(PIPELINE)
    task_manager = ("--slots", "2")
    wanted = {"coordinator": ("--worker-timeout", "3s"), "dispatcher": ()}
    wanted |= {"taskmanager-1": task_manager, "taskmanager-2": task_manager}
    services = Services(tmp_path, containers.settings("e2e"), wanted)
    counts = CommittedRows(containers.kafka, "counts", 2)
    with asyncio.Runner() as runner:
        try:
            runner.run(services.start())
            client = services.start_command(
                "submit", "counts.py", "--parallelism", "2", "--checkpoint-interval", "500ms"
            )
            read_until(counts, 3 * KEYS)
            runner.run(services.services["taskmanager-1"].kill())
            services.finish(client)
        finally:
            runner.run(services.end())
    read_until(counts, len(expected()))
    assert sorted(map(_row, counts.rows)) == expected()


def expected() -> list[tuple[int, str, int, int]]:
    """Key, beginning, rows and their sum, of every window."""
    found: dict[tuple[int, int], list[int]] = {}
    for number in range(ROWS):
        found.setdefault((number % KEYS, number // WINDOW), []).append(number)
    start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    return sorted(
        (key, datetime.fromtimestamp(start + second, UTC).isoformat(), len(numbers), sum(numbers))
        for (key, second), numbers in found.items()
    )


def read_until(topic: CommittedRows, rows: int) -> None:
    """Read until there are so many rows at least, and to the end of what is there."""

    def there() -> bool:
        topic.read()
        return len(topic.rows) >= rows

    wait_for(there, lambda: f"{rows} rows; there are {len(topic.rows)}")


def _row(row: dict[str, Any]) -> tuple[int, str, int, int]:
    begin = datetime.fromisoformat(row["window_start"]).isoformat()
    return row["key"], begin, row["n"], row["total"]
