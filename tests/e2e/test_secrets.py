"""Marked secrets are planted in a real cluster, and looked for wherever it writes, answers, or shows something."""

from __future__ import annotations

import asyncio
import re
import urllib.parse
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import redis
from tests.services import Services, wait_for

from penstock.adapters.kafka.log import KafkaLog
from penstock.adapters.s3_blobs import S3Blobs
from penstock.coordination.control_topics import COMMANDS, EVENTS, REQUESTS
from penstock.service.credentials import digest_of
from penstock.settings import ClusterSettings, Secret
from penstock_dispatcher.route_roles import ROLES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]

VIEWER: Final = "marked-token-of-the-viewer"
PIPELINE: Final = """
from dataclasses import dataclass

import polars as pl

from penstock import Pipeline, param
from penstock.connectors import files, generate


@dataclass
class Row:
    n: int


def rows(numbers):
    return pl.DataFrame({"n": numbers})


def careful(row: Row) -> Row:
    connection = f"user:{password}@host"
    if row.n == 400:
        raise RuntimeError(f"no connection after {len(connection)} letters")
    return row


p = Pipeline("guarded")
password = param("password", "")
source = generate.Source(rows, schema=Row, rows=1_000_000, rate=200)
p.read(source).map(careful).write(files.Sink(param("out", ""), format="jsonl"))
"""


@dataclass(frozen=True)
class Planted:
    """What must be nowhere but where it was put."""

    settings: dict[str, str]
    parameter: str

    def found_in(self, text: bytes | str, *, parameters: bool = True) -> list[str]:
        """The names of those that stand in it, plainly or as parts of an address."""
        data = text.encode() if isinstance(text, str) else text
        secrets = self.settings | ({"parameter": self.parameter} if parameters else {})
        forms = {name: {secret, urllib.parse.quote(secret, safe="")} for name, secret in secrets.items()}
        return [name for name, ways in forms.items() if any(way.encode() in data for way in ways)]


def planted_in(settings: ClusterSettings) -> tuple[ClusterSettings, Planted]:
    """The same cluster with marked secrets, beside those of its real servers; and all of them."""
    marked = replace(
        settings,
        token=Secret("marked-token-of-the-cluster"),
        tokens=Secret(f"ann view sha256:{digest_of(VIEWER)}"),
        rest_ssl_keypassword=Secret("marked-password-of-the-key"),
        kafka=replace(
            settings.kafka, sasl_username="someone", sasl_password=Secret("marked-password-of-kafka"),
            ssl_keypassword=Secret("marked-key-password-of-kafka"),
        ),
    )  # fmt: skip
    secrets = {
        "token": marked.token.reveal(), "token of ann": VIEWER, "digest": digest_of(VIEWER),
        "rest_ssl_keypassword": "marked-password-of-the-key", "kafka.sasl_password": "marked-password-of-kafka",
        "kafka.ssl_keypassword": "marked-key-password-of-kafka", "store.secret_key": marked.store.secret_key.reveal(),
        "password of redis": urllib.parse.urlsplit(marked.redis.url.reveal()).password or "",
    }  # fmt: skip
    assert all(secrets.values())
    return marked, Planted(secrets, "marked-value-of-a-parameter")


class Guarded(Services):
    """All services, as chatty as they can be."""

    def __init__(self, folder: Path, settings: ClusterSettings) -> None:
        self.settings, self.planted = planted_in(settings)
        chatty = ("--log-level", "debug")
        kinds = {"dispatcher": chatty, "coordinator": chatty, "taskmanager": (*chatty, "--slots", "1")}
        super().__init__(folder, self.settings, kinds)
        self.pipeline = folder / "guarded.py"
        self.pipeline.write_text(PIPELINE)


@pytest.fixture
def cluster(platform: Any, tmp_path: Path) -> Generator[Guarded]:
    found = Guarded(tmp_path, platform.settings("secrets"))
    with asyncio.Runner() as runner:
        try:
            runner.run(found.start())
            yield found
        finally:
            runner.run(found.end())


def test_planted_secrets_are_nowhere(cluster: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no log, answer, page, output of a command, argument of a process, object, message or key of the cluster."""
    planted = cluster.planted
    monkeypatch.setenv("MARKED", planted.parameter)
    submitted = cluster.run(
        "submit", cluster.pipeline, "--param", "password=@env:MARKED", "--param", f"out={cluster.folder / 'out'}",
        "--checkpoint-interval", "1s", "--restart", "fixed-delay:1000:1s", "--detach",
    )  # fmt: skip
    job = submitted.stdout.strip()
    wait_for(lambda: "no connection after" in cluster.run("logs", job).stdout, "the user's code has failed")
    said = [
        cluster.run(*command).stdout
        for command in (
            ("jobs",),
            ("status", job),
            ("status", job, "--json"),
            ("logs", job),
            ("savepoint", job),
            ("doctor",),
        )
    ]
    said.append(cluster.run("cancel", "no-such-job", code=1).stderr)
    monkeypatch.setenv("PENSTOCK_TOKEN", "marked-token-that-is-wrong")
    said.append(cluster.run("jobs", code=1).stderr)
    assert planted.found_in("".join(said)) == []
    assert "marked-" not in "".join(said)

    for where, answer in answers(cluster, job):
        assert planted.found_in(answer) == [], where
    for where, arguments in processes(cluster.folder):
        assert planted.found_in(arguments) == [], where
    for service in cluster.services.values():
        log = service.log_file.read_bytes()
        assert planted.found_in(log) == [], service.name
        assert b"marked-" not in log, service.name
    assert "audit" in cluster.services["dispatcher"].log_file.read_text()

    # A parameter is part of the job: task managers read it from the store, to which the cluster alone has the key.
    kept = asyncio.run(stored(cluster.settings))
    assert len(kept) > 5
    for where, data in kept.items():
        assert planted.found_in(data, parameters="artifact" in where) == [], where


def answers(cluster: Guarded, job: str) -> Iterator[tuple[str, bytes]]:
    """Everything that can be asked for of this job and this cluster, headers included, and all files of the page."""
    headers = {"Authorization": f"Bearer {VIEWER}"}
    with httpx2.Client(base_url=cluster.rest, trust_env=False, headers=headers) as http:
        workers = http.get("/taskmanagers").json()["taskmanagers"]
        vertices = http.get(f"/jobs/{job}").json()["vertices"]
        values = {
            "worker_id": workers[0]["id"], "vertex_id": vertices[0]["id"], "index": "0", "attempt": "0",
            "request_id": job, "job": job, "job_id": job, "application_id": job, "name": "taskmanager.log",
        }  # fmt: skip
        paths = [route.removeprefix("GET ") for route in ROLES if route.startswith("GET ") and "yarn" not in route]
        good = 0
        for path in paths:
            answer = http.get(re.sub(r"\{(\w+)(:path)?\}", lambda part: values.get(part[1], "1"), path))
            good += answer.status_code == 200
            yield path, answer.content + repr(answer.headers).encode()
        assert good > 50
        page = http.get("/").text
        for file in set(re.findall(r"(?:href|src)=\"([^\"]+)\"", page)):
            yield file, http.get(file).content
        refused = http.post("/penstock/v1/jobs", content=b"x")
        assert refused.status_code == 403
        yield "a refusal", refused.content


def processes(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The arguments of this cluster's processes, which everybody on a machine may read.

    They are told by the cluster's folder, in their arguments or as their working directory: other tests, whose
    secrets are the same, run beside this one.
    """
    found = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes()
            if str(folder).encode() in arguments or (entry / "cwd").readlink().is_relative_to(folder):
                found += 1
                yield arguments.decode(errors="replace"), arguments
        except OSError:
            continue  # it has ended meanwhile
    assert found >= 3


async def stored(settings: ClusterSettings) -> dict[str, bytes]:
    """What the cluster has written to the store, to Kafka and to Redis."""
    found: dict[str, bytes] = {}
    blobs = S3Blobs(settings.store, settings.name)
    for key in await blobs.list(""):
        found[f"store: {key}"] = await blobs.get(key)
    await blobs.close()
    log = KafkaLog(settings.kafka, settings.name)
    for topic in (REQUESTS, COMMANDS, EVENTS):
        position, end = await log.offsets(topic, 0)
        while position < end:
            for record in await log.read(topic, 0, position, timeout_s=5):
                found[f"Kafka: {topic} {record.next_offset}"] = record.value
                position = record.next_offset
    await log.close()
    with redis.Redis.from_url(settings.redis.url.reveal()) as keys:
        for key in keys.scan_iter(f"penstock:{settings.name}:*"):
            found[f"Redis: {key!r}"] = bytes(keys.get(key) or b"")  # pyright: ignore -- it is the synchronous client
    assert {where.partition(":")[0] for where in found} == {"store", "Kafka", "Redis"}
    return found
