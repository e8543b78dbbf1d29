"""Requests made from the OpenAPI document: each is answered, never by a failure of the dispatcher.

Schemathesis makes them; they go to a dispatcher on a cluster in memory that nobody leads, so nothing of them is carried
out. They are the same in every run. What the document forbids is enumerated, rule by rule; to draw it takes a second of
CPU per operation. Clients that break off or are slow: `tests/e2e/test_bad_clients.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Final

import httpx2
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.config import GenerationConfig
from small_cluster import ADDRESS, SmallCluster

from penstock_dispatcher.describing import openapi_of

FEW: Final = settings(max_examples=4, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
"""Requests of each operation; one that fails is printed as it is, not made smaller."""
FORBIDDEN: Final = [GenerationMode.NEGATIVE]
NOT_NOW: Final = (501, 503)
"""What a cluster cannot do, and what needs a leader."""


@pytest.fixture(scope="module")
def runner() -> Generator[asyncio.Runner]:
    """One event loop for all requests, because what the cluster waits with belongs to it."""
    with asyncio.Runner() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(runner: asyncio.Runner) -> Generator[SmallCluster]:
    """A dispatcher and its ports."""

    async def made() -> SmallCluster:
        return SmallCluster()

    found = runner.run(made())
    yield found
    runner.run(found.stop())


def test_whatever_is_asked_is_answered(cluster: SmallCluster, runner: asyncio.Runner) -> None:
    """Every operation, with values of the types that it says."""
    asked: set[str] = set()

    def ask(case: Any) -> None:
        asked.add(case.operation.label)
        answer = runner.run(send(cluster.http, case))
        assert answer.status_code < 500 or answer.status_code in NOT_NOW, (case.as_curl_command(), answer.text)

    for found in schemathesis.openapi.from_dict(openapi_of(cluster.app)).get_all_operations():
        seed(17)(FEW(given(case=found.ok().as_strategy())(ask)))()
    assert len(asked) > 90


def test_what_the_document_forbids_is_refused(cluster: SmallCluster, runner: asyncio.Runner) -> None:
    """Other methods, types and headers, values out of range, fields that are missing: each by a status of the client's
    fault and a body that says so."""
    refused = 0
    for found in schemathesis.openapi.from_dict(openapi_of(cluster.app)).get_all_operations():
        operation = found.ok()
        only = {"generation_modes": FORBIDDEN, "generation_config": GenerationConfig(modes=FORBIDDEN)}
        for case in operation.schema.iter_coverage_cases(operation, **only):
            answer = runner.run(send(cluster.http, case))
            if case.method == "GET" and answer.request.content == b"" and is_said(case):
                continue  # the header is of a body that is not there: nothing forbidden has come
            said = case.as_curl_command(), answer.status_code, answer.text
            assert 400 <= answer.status_code < 500, said
            assert case.method == "HEAD" or answer.json().keys() <= {"errors", "error"}, said
            refused += 1
    assert refused > 1_000


def is_said(case: Any) -> bool:
    """Whether the type of a body is said."""
    return "content-type" in {name.lower() for name in case.headers or {}}


async def send(http: httpx2.AsyncClient, case: Any) -> httpx2.Response:
    """As Schemathesis would send it, by the client that asks the application without a network."""
    made = requests.Request(**case.as_transport_kwargs(base_url=ADDRESS)).prepare()
    return await http.request(str(made.method), str(made.url), headers=dict(made.headers), content=made.body or b"")
