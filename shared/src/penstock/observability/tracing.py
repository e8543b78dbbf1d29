"""OpenTelemetry traces of checkpoints and deployments, made from the events and commands of the leader's job masters.

A checkpoint has a trace from the trigger of its barrier to COMPLETE, with a span for the acknowledgement of every
subtask, one for the manifest and one for the record in the job log. An attempt has a trace from the request for slots
until every subtask runs, with a span for the slots and one for every subtask. Spans that fail have the status ERROR and
the reason.

Tracing is off unless an endpoint is configured; OpenTelemetry is imported only then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.core.extras import install
from penstock.errors import UsageError
from penstock.protocol.job_observer import JobObserver
from penstock.protocol.jobevents import (
    AckReceived,
    Announce,
    Append,
    JobCommand,
    JobEnded,
    JobEvent,
    ManifestStored,
    RecordStored,
    StatusReported,
    StoreManifest,
)
from penstock.protocol.joblog import Begin, Complete
from penstock.protocol.jobmaster import JobMaster
from penstock.protocol.messages import (
    Acknowledged,
    BarrierMarker,
    CancelAttempt,
    CheckpointAborted,
    Declined,
    Deploy,
    SubtaskId,
)
from penstock.protocol.phases import Phase
from penstock.settings import TracingSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

_PATH: Final = "/v1/traces"
_EXPORT_S: Final = 5
_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

Attributes = Mapping[str, str | int | float | bool]


@contextlib.asynccontextmanager
async def tracing(
    settings: TracingSettings, environ: Mapping[str, str] | None = None
) -> AsyncGenerator[Callable[[str], JobObserver] | None]:
    """Yield a function that makes the observer of a job, or None if tracing is off. Pending spans are sent at the end.

    Raises:
        UsageError: tracing is on, and OpenTelemetry is not installed.
    """
    environment = os.environ if environ is None else environ
    if not is_on(settings, environment):
        yield None
        return
    provider = exporting_provider(settings)
    try:
        yield traced_by(provider)
    finally:
        await asyncio.to_thread(provider.shutdown)


def is_on(settings: TracingSettings, environ: Mapping[str, str]) -> bool:
    """Whether an endpoint is configured, by `tracing.endpoint` or by OpenTelemetry's own environment variables."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return bool(settings.endpoint) or any(environ.get(name) for name in _VARIABLES)


def exporting_provider(settings: TracingSettings) -> TracerProvider:
    """A provider that sends spans to the endpoint in batches, from a separate thread."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise UsageError(
            "tracing.endpoint (or OTEL_EXPORTER_OTLP_ENDPOINT) is set, but OpenTelemetry is not installed; "
            f"{install('tracing')}, or leave the setting out"
        ) from error
    endpoint = settings.endpoint.rstrip("/")
    url = None if not endpoint else endpoint if endpoint.endswith(_PATH) else endpoint + _PATH
    exporter: SpanExporter = OTLPSpanExporter(endpoint=url, timeout=_EXPORT_S)
    provider = new_provider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def new_provider() -> TracerProvider:
    """A provider without exporters whose service name is `penstock-coordinator`, unless `OTEL_SERVICE_NAME` is set."""
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider

    resource = Resource.create({SERVICE_NAME: "penstock-coordinator"}).merge(OTELResourceDetector().detect())
    return TracerProvider(resource=resource)


def traced_by(provider: TracerProvider) -> Callable[[str], JobObserver]:
    """A function that makes the observer of a job, which traces it with this provider."""
    tracer = provider.get_tracer("penstock", __version__)
    return lambda job: JobTraces(tracer, job)


@dataclass
class _Trace:
    """A root span and its open child spans. Times are microseconds of the leader's clock."""

    tracer: Tracer
    root: Span
    begun_us: int
    children: dict[object, Span] = field(default_factory=dict[object, "Span"])
    size_bytes: int = 0
    """The total size of the snapshots that have been acknowledged so far."""

    @staticmethod
    def begin(tracer: Tracer, name: str, now_us: int, attributes: Attributes) -> _Trace:
        """Begin a new trace, even where another span is active."""
        from opentelemetry.context import Context

        root = tracer.start_span(name, context=Context(), start_time=now_us * 1_000, attributes=dict(attributes))
        return _Trace(tracer, root, now_us)

    def child(self, key: object, name: str, since_us: int, attributes: Attributes | None = None) -> None:
        """Begin a child span of the root."""
        from opentelemetry.trace import set_span_in_context

        self.children[key] = self.tracer.start_span(
            name, context=set_span_in_context(self.root), start_time=since_us * 1_000, attributes=dict(attributes or {})
        )

    def close_child(self, key: object, now_us: int, error: str = "") -> None:
        """End a child span, if it is open."""
        span = self.children.pop(key, None)
        if span is not None:
            _end(span, now_us, error)

    def close(self, now_us: int, error: str = "") -> None:
        """End all open child spans, then the root."""
        for key in list(self.children):
            self.close_child(key, now_us, error)
        _end(self.root, now_us, error)


def _end(span: Span, now_us: int, error: str) -> None:
    if error:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, error))
    span.end(now_us * 1_000)


class JobTraces:
    """The traces of one job under one leader: a `JobObserver`."""

    def __init__(self, tracer: Tracer, job: str) -> None:
        self._tracer = tracer
        self._job: dict[str, str] = {"penstock.job.id": job}
        self._checkpoints: dict[int, _Trace] = {}
        self._deployment: _Trace | None = None
        self._deployed: str = ""
        """The attempt of the deployment, once it has begun."""

    def event(self, event: JobEvent, master: JobMaster, now_us: int) -> None:
        """See `JobObserver.event`."""
        if master.history.submit is not None:
            self._job["penstock.job.name"] = master.history.submit.name
        match event:
            case AckReceived(message=message):
                self._acknowledged(message, master, now_us)
            case ManifestStored() if event.checkpoint in self._checkpoints:
                self._checkpoints[event.checkpoint].close_child("manifest", now_us)
            case RecordStored(record=Complete() as record):
                self._completed(record, now_us)
            case _:
                pass
        self._follow_deployment(event, master, now_us)

    def command(self, command: JobCommand, now_us: int) -> None:
        """See `JobObserver.command`."""
        match command:
            case Announce(command=BarrierMarker() as marker):
                self._triggered(marker, now_us)
            case StoreManifest() if command.manifest.checkpoint in self._checkpoints:
                self._checkpoints[command.manifest.checkpoint].child("manifest", "checkpoint manifest", now_us)
            case Append(record=Complete(checkpoint=checkpoint)) if checkpoint in self._checkpoints:
                self._checkpoints[checkpoint].child("complete", "checkpoint record", now_us)
            case Announce(command=CheckpointAborted(checkpoint=checkpoint)) if checkpoint in self._checkpoints:
                self._checkpoints.pop(checkpoint).close(now_us, "aborted")
            case Announce(command=Deploy() as deploy) if self._deployment is not None:
                where = {"penstock.worker.name": deploy.worker, **_of_subtask(deploy.subtask)}
                self._deployment.child(deploy.subtask, "deployment subtask", now_us, where)
            case Announce(command=CancelAttempt(attempt=attempt, reason=reason)):
                self._canceled(attempt, reason, now_us)
            case JobEnded():
                self._close_all(now_us, f"the job has ended: {command.state} {command.reason}".rstrip())
            case _:
                pass

    def closed(self, now_us: int) -> None:
        """See `JobObserver.closed`."""
        self._close_all(now_us, "this coordinator is not the job's master any more")

    # -- checkpoints ----------------------------------------------------------------------------------------------------

    def _triggered(self, marker: BarrierMarker, now_us: int) -> None:
        attributes: dict[str, str | bool | int] = {
            **self._job,
            "penstock.attempt.id": marker.attempt,
            "penstock.checkpoint.id": marker.checkpoint,
            "penstock.checkpoint.flavour": marker.flavour,
            "penstock.checkpoint.drain": marker.drain,
        }
        if marker.checkpoint not in self._checkpoints:
            self._checkpoints[marker.checkpoint] = _Trace.begin(self._tracer, "checkpoint", now_us, attributes)

    def _acknowledged(self, message: Acknowledged | Declined, master: JobMaster, now_us: int) -> None:
        trace = self._checkpoints.get(message.checkpoint)
        if trace is None or message.attempt != master.attempt:
            return
        attributes: dict[str, str | int | float] = _of_subtask(message.subtask)
        if isinstance(message, Acknowledged):
            snapshot = message.snapshot
            trace.size_bytes += snapshot.size_bytes
            attributes |= {
                "penstock.snapshot.size": snapshot.size_bytes,
                "penstock.snapshot.alignment.duration": snapshot.alignment_us / 1e6,
                "penstock.snapshot.sync.duration": snapshot.sync_us / 1e6,
                "penstock.snapshot.async.duration": snapshot.async_us / 1e6,
            }
        trace.child(message.subtask, "checkpoint acknowledgement", trace.begun_us, attributes)
        trace.close_child(message.subtask, now_us, message.reason if isinstance(message, Declined) else "")

    def _completed(self, record: Complete, now_us: int) -> None:
        trace = self._checkpoints.pop(record.checkpoint, None)
        if trace is not None:
            trace.root.set_attribute("penstock.checkpoint.size", trace.size_bytes)
            trace.close(now_us)

    # -- deployments ----------------------------------------------------------------------------------------------------

    def _follow_deployment(self, event: JobEvent, master: JobMaster, now_us: int) -> None:
        deploying = master.phase in (Phase.WAITING, Phase.CAPTURING, Phase.BEGINNING)
        if self._deployment is None and deploying:
            wanted = {"penstock.slots": master.topology.slot_count}
            self._deployment = _Trace.begin(self._tracer, "deployment", now_us, {**self._job, **wanted})
            self._deployment.child("slots", "deployment slots", now_us, wanted)
        trace = self._deployment
        if trace is None:
            return
        if master.phase is not Phase.WAITING:
            trace.close_child("slots", now_us)
        match event:
            case RecordStored(record=Begin() as begin):
                self._deployed = begin.attempt
                trace.root.set_attributes(_of_attempt(begin))
            case StatusReported(status=status) if status.attempt == self._deployed:
                if status.state in ("running", "ended", "finished"):
                    trace.close_child(status.subtask, now_us)
                if status.state == "failed":
                    trace.close_child(status.subtask, now_us, status.error or "failed")
            case _:
                pass
        states = [status.state for status in master.statuses.values()]
        everybody = len(states) == len(master.topology.subtasks)
        if self._deployed == master.attempt and everybody and {*states} <= {"running", "ended", "finished"}:
            self._deployed, self._deployment = "", None
            trace.close(now_us)

    def _canceled(self, attempt: str, reason: str, now_us: int) -> None:
        """End the traces of a canceled attempt, but not the deployment of the next attempt, which may have begun."""
        for checkpoint in list(self._checkpoints):
            self._checkpoints.pop(checkpoint).close(now_us, f"the attempt was canceled: {reason}")
        if self._deployment is not None and self._deployed == attempt:
            self._deployment.close(now_us, reason or "canceled")
            self._deployed, self._deployment = "", None

    def _close_all(self, now_us: int, reason: str) -> None:
        for trace in self._checkpoints.values():
            trace.close(now_us, reason)
        self._checkpoints.clear()
        if self._deployment is not None:
            self._deployment.close(now_us, reason)
        self._deployed, self._deployment = "", None


def _of_subtask(subtask: SubtaskId) -> dict[str, str | int | float]:
    return {"penstock.vertex.id": subtask.vertex, "penstock.subtask.index": subtask.index}


def _of_attempt(begin: Begin) -> Attributes:
    return {
        "penstock.attempt.id": begin.attempt,
        "penstock.attempt.number": begin.attempt_number,
        "penstock.job.parallelism": begin.parallelism,
        "penstock.restored.checkpoint.id": begin.restore.checkpoint if begin.restore is not None else 0,
    }
