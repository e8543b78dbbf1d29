"""Where a service listens, and what it answers about itself."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx2
import prometheus_client.openmetrics.parser as openmetrics_parser
import prometheus_client.parser as text_parser
import pytest

from penstock.errors import UsageError
from penstock.observability.metrics import BUSY, WORKERS, Sample
from penstock.service import http_server as server_module
from penstock.service.http_server import Readiness, health_app, http_server


@pytest.mark.parametrize("address", ["8081", ":8081", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1:-1"])
async def test_addresses_that_are_none(address: str) -> None:
    """They are refused with the option's name."""

    def samples() -> list[Sample]:
        return []

    with pytest.raises(UsageError, match="--http"):
        async with http_server(health_app(Readiness(), samples), address):
            pass


TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping="
PLACE = {"job_name": "größer", "job_id": "1", "vertex": "v0", "subtask": "0"}
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "content_type", "parser"),
    [
        ([], TEXT, text_parser),
        (["*/*"], TEXT, text_parser),
        (["text/plain;version=0.0.4"], TEXT, text_parser),
        (["application/openmetrics-text; version=1.0.0"], OPENMETRICS + "underscores", openmetrics_parser),
        ([PROMETHEUS_2], OPENMETRICS + "underscores", openmetrics_parser),
        ([PROMETHEUS_3], OPENMETRICS + "allow-utf-8", openmetrics_parser),
        (["*/*;q=0.1", "application/openmetrics-text;version=1.0.0"], OPENMETRICS + "underscores", openmetrics_parser),
        (["application/openmetrics-text; version=none"], TEXT, text_parser),
    ],
    ids=["nothing", "anything", "text", "OpenMetrics", "Prometheus 2", "Prometheus 3", "several headers", "no version"],
)
async def test_metrics_are_shown_in_the_format_that_is_accepted(
    accept: list[str], content_type: str, parser: Any
) -> None:
    """Prometheus' text or OpenMetrics, under the same names; a header that nobody can read gets text."""

    def samples() -> list[Sample]:
        return [Sample(BUSY, PLACE, 1.5), Sample(WORKERS, {}, 3)]

    transport = httpx2.ASGITransport(health_app(Readiness(), samples))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        del client.headers["accept"]
        answer = await client.get("/metrics", headers=[("accept", one) for one in accept])
    assert (answer.status_code, answer.headers["content-type"]) == (200, content_type)
    families = list(parser.text_string_to_metric_families(answer.content.decode()))
    assert [
        (family.type, sample.name, sample.labels, sample.value) for family in families for sample in family.samples
    ] == [
        ("counter", BUSY.name, PLACE, 1.5),
        ("gauge", WORKERS.name, {}, 3),
    ]


async def test_the_event_loop_goes_on_while_metrics_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a large job take long enough to delay heartbeats."""
    begun, loop_goes_on = threading.Event(), threading.Event()

    def encoder(_: object) -> bytes:
        begun.set()
        return b"written" if loop_goes_on.wait(5) else b"the loop stood still"

    monkeypatch.setattr(server_module, "choose_encoder", lambda _: (encoder, TEXT))
    transport = httpx2.ASGITransport(health_app(Readiness(), list))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        asked = asyncio.create_task(client.get("/metrics"))
        assert await asyncio.to_thread(begun.wait, 5)
        loop_goes_on.set()
        assert (await asked).text == "written"
