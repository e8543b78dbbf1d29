"""Traces of checkpoints and deployments: which spans there are, and that nothing is loaded or done when it is off."""

from __future__ import annotations

import asyncio
import gzip
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from penstock import Pipeline, col, count, tumbling
from penstock.connectors import collecting, iterables
from penstock.errors import UsageError
from penstock.observability.tracing import is_on, new_provider, traced_by, tracing
from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.joblog import JobSettings
from penstock.protocol.restarts import FixedDelay
from penstock.settings import TracingSettings
from penstock.testing.memory_cluster import MemoryCluster, until

AT = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 3_000


@dataclass
class Event:
    key: int
    at: datetime


def events() -> Iterable[Event]:
    return (Event(n % 7, AT + timedelta(seconds=n)) for n in range(ROWS))


def pipeline(rate: float | None = None) -> Pipeline:
    """Windows over two vertices."""
    p = Pipeline("counts")
    source = p.read(iterables.Source(events, schema=Event, event_time="at", rate=rate))
    source.key_by("key").window(tumbling("100s")).agg(n=count(), last=col("at").max()).write(collecting.Sink())
    return p


SETTINGS = JobSettings(CheckpointSettings(interval_ms=50), FixedDelay(attempts=20, delay_ms=10))


class Traced:
    """A cluster whose coordinator keeps its spans."""

    def __init__(self) -> None:
        self.spans = InMemorySpanExporter()
        provider = new_provider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.observe = traced_by(provider)
        self.cluster = MemoryCluster()

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of that name that have ended, in the order of their ends."""
        return [span for span in self.spans.get_finished_spans() if span.name == name]

    def below(self, root: ReadableSpan, name: str) -> list[ReadableSpan]:
        """Those of one trace, all directly below its root."""
        assert root.context is not None
        assert root.parent is None
        found = [span for span in self.named(name) if _trace(span) == root.context.trace_id]
        assert all(span.parent is not None and span.parent.span_id == root.context.span_id for span in found)
        assert all(root.start_time <= span.start_time <= span.end_time <= root.end_time for span in found)
        return found


def _trace(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def attribute(span: ReadableSpan, name: str) -> object:
    assert span.attributes is not None
    return span.attributes[name]


async def test_a_job_leaves_one_trace_per_deployment_and_checkpoint() -> None:
    """Every subtask is in each of them, with what it acknowledged; what was complete is no error."""
    traced = Traced()
    cluster = traced.cluster
    try:
        ended = cluster.coordinator(observe=traced.observe)
        job = await cluster.submit(pipeline(rate=6_000).plan, SETTINGS, parallelism=2)
        cluster.worker(slots=2)
        assert (await asyncio.wait_for(ended.job_ended(job), 30)).state == "FINISHED"
    finally:
        await cluster.stop()

    [deployment] = traced.named("deployment")
    assert deployment.status.status_code is StatusCode.UNSET
    assert attribute(deployment, "penstock.job.id") == job
    assert attribute(deployment, "penstock.job.name") == "counts"
    assert attribute(deployment, "penstock.attempt.number") == 1
    assert attribute(deployment, "penstock.slots") == 2
    [slots] = traced.below(deployment, "deployment slots")
    starts = traced.below(deployment, "deployment subtask")
    assert len(starts) == len({_subtask(span) for span in starts}) == 4
    assert all(slots.end_time <= span.start_time for span in starts)

    checkpoints = traced.named("checkpoint")
    numbers = sorted(int(str(attribute(span, "penstock.checkpoint.id"))) for span in checkpoints)
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 2
    # The final checkpoint does not wait for one that is under way, which is aborted once the later one is complete.
    complete = [span for span in checkpoints if span.status.status_code is StatusCode.UNSET]
    assert numbers[-1] in {attribute(span, "penstock.checkpoint.id") for span in complete}
    assert len(complete) >= len(numbers) - 1
    for checkpoint in complete:
        acks = traced.below(checkpoint, "checkpoint acknowledgement")
        assert {_subtask(span) for span in acks} == {_subtask(span) for span in starts}
        sizes = [attribute(span, "penstock.snapshot.size") for span in acks]
        assert sum(size for size in sizes if isinstance(size, int)) == attribute(checkpoint, "penstock.checkpoint.size")
        [manifest] = traced.below(checkpoint, "checkpoint manifest")
        [record] = traced.below(checkpoint, "checkpoint record")
        assert max(span.end_time for span in acks) <= manifest.start_time <= record.start_time
        assert record.end_time == checkpoint.end_time


def _subtask(span: ReadableSpan) -> tuple[object, object]:
    return attribute(span, "penstock.vertex.id"), attribute(span, "penstock.subtask.index")


async def test_what_a_dead_worker_interrupts_is_an_error_and_the_next_attempt_a_trace_of_its_own() -> None:
    """With the attempt's number and what it was restored from."""
    traced = Traced()
    cluster = traced.cluster
    try:
        ended = cluster.coordinator(observe=traced.observe)
        job = await cluster.submit(pipeline(rate=2_000).plan, SETTINGS, parallelism=2)
        first = cluster.worker(slots=2)

        async def checkpointed() -> bool:
            return bool(traced.named("checkpoint"))

        await until(checkpointed, "a checkpoint is complete")
        await cluster.kill_worker(first.name)
        cluster.worker(slots=2)
        assert (await asyncio.wait_for(ended.job_ended(job), 30)).state == "FINISHED"
    finally:
        await cluster.stop()
    one, two = traced.named("deployment")
    assert [attribute(span, "penstock.attempt.number") for span in (one, two)] == [1, 2]
    assert attribute(one, "penstock.restored.checkpoint.id") == 0
    restored = attribute(two, "penstock.restored.checkpoint.id")
    assert isinstance(restored, int)
    assert restored >= 1
    assert len(traced.below(two, "deployment subtask")) == 4
    for checkpoint in traced.named("checkpoint"):
        failed = checkpoint.status.status_code is StatusCode.ERROR
        assert failed == (not traced.below(checkpoint, "checkpoint record"))


async def test_a_deployment_that_waits_ends_with_the_leader() -> None:
    """As an error that says why: another leader traces its own."""
    traced = Traced()
    cluster = traced.cluster
    leader = cluster.coordinator(observe=traced.observe)
    await cluster.submit(pipeline().plan, SETTINGS, parallelism=2)

    async def waits() -> bool:
        return any(shell.progress.missing_slots for shell in leader.shells)

    await until(waits, "the job waits for slots")
    assert traced.named("deployment") == []
    await cluster.stop()
    [deployment] = traced.named("deployment")
    assert deployment.status.description == "this coordinator is not the job's master any more"
    [slots] = traced.below(deployment, "deployment slots")
    assert slots.status.status_code is StatusCode.ERROR


# -- over the wire ------------------------------------------------------------------------------------------------------


class Receiver:
    """An OTLP/HTTP receiver."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def receiver() -> Generator[Receiver]:
    """One on a free port."""
    found = Receiver()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


async def test_spans_reach_a_receiver(receiver: Receiver) -> None:
    """By OTLP/HTTP at its usual path; those that wait are sent before the coordinator ends."""
    cluster = MemoryCluster()
    async with tracing(TracingSettings(receiver.endpoint), {}) as observe:
        try:
            leader = cluster.coordinator(observe=observe)
            job = await cluster.submit(pipeline().plan, SETTINGS)
            cluster.worker()
            assert (await asyncio.wait_for(leader.job_ended(job), 30)).state == "FINISHED"
        finally:
            await cluster.stop()
    assert {path for path, _ in receiver.requests} == {"/v1/traces"}
    resources = [one for _, request in receiver.requests for one in request.resource_spans]
    services = {
        pair.value.string_value for one in resources for pair in one.resource.attributes if pair.key == "service.name"
    }
    assert services == {"penstock-coordinator"}
    names = {span.name for one in resources for scope in one.scope_spans for span in scope.spans}
    assert {"deployment", "deployment subtask", "checkpoint", "checkpoint acknowledgement"} <= names


# -- off ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "environment", "on"),
    [
        ("", {}, False),
        ("http://collector:4318", {}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ("http://collector:4318", {"OTEL_SDK_DISABLED": "true"}, False),
        ("http://collector:4318", {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_it_is_on_where_spans_have_somewhere_to_go(endpoint: str, environment: dict[str, str], on: bool) -> None:
    """By our setting or OpenTelemetry's variables; these switch it off, too."""
    assert is_on(TracingSettings(endpoint), environment) == on


async def test_off_is_nothing() -> None:
    """Nobody looks on."""
    async with tracing(TracingSettings(), {}) as observe:
        assert observe is None


def test_off_loads_nothing() -> None:
    """A coordinator that does not trace needs no OpenTelemetry. (The client of Redis loads it where it is installed.)"""
    program = """
import asyncio, sys
import penstock.jobmanager.coordinator
from penstock.observability.tracing import tracing
from penstock.settings import TracingSettings

async def main():
    async with tracing(TracingSettings(), {}):
        pass

asyncio.run(main())
print(sorted(name for name in sys.modules if name.startswith(("opentelemetry", "google.protobuf"))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """When tracing is on; nothing else starts."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UsageError, match=r"pip install 'penstock-streaming\[tracing\]'"):
        async with tracing(TracingSettings("http://127.0.0.1:1"), {}):
            pass
