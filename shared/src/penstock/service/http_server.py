"""What all services have in common: options, health, signals.

`/healthz` answers while the event loop runs; `/readyz` when everything that the service needs answers; `/metrics` shows
the service's metrics in Prometheus' text format, or in OpenMetrics if the request accepts it. SIGTERM and SIGINT drain:
the service gets a deadline to hand back what it holds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import structlog
import uvicorn
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from penstock import __version__
from penstock.coordination.control_topics import COMMANDS
from penstock.errors import ExternalError, PenstockError, UsageError
from penstock.observability.logs import LogFormat, configure_logging
from penstock.observability.metrics import Sample, Snapshot
from penstock.ports import Blobs, Clock, Log
from penstock.protocol.messages import LeaderTick, decode_command
from penstock.service import http_limits
from penstock.service.access import Access, Gate
from penstock.service.http_limits import MAX_HEAD_BYTES, BoundedConnection, Guarded
from penstock.service.option_types import add_log_options
from penstock.service.typed_options import typed_options
from penstock.settings import ClusterSettings, load_settings

DRAIN_S: Final = 20.0
CHECK_S: Final = 1.0
ANSWER_S: Final = 5.0
MAX_PORT: Final = 65_535
TELL_AFTER_MS: Final = 3_000
"""So long a service may wait for what it needs without a word; at its start it often waits for a leader."""
REPEAT_MS: Final = 60_000
NOT_YET: Final = "no answer yet"
NO_LEADER: Final = "no coordinator leads, or the one that does cannot reach Kafka"
LEADER_SEEN_MS: Final = 5_000
"""A leader that was heard of so recently is known."""

NOBODY_ASKS: Final = Access()

_log = structlog.get_logger("penstock.service")


def service_parser(name: str, summary: str, default_http: str) -> argparse.ArgumentParser:
    """A parser with the options that every service has."""
    parser = argparse.ArgumentParser(prog=f"penstock {name}", description=summary, allow_abbrev=False)
    parser.set_defaults(service=name)
    parser.add_argument(
        "--cluster", metavar="FILE", help="the cluster's settings (PENSTOCK_CLUSTER, or .penstock/cluster.toml)"
    )
    parser.add_argument(
        "--http",
        default=default_http,
        metavar="HOST:PORT",
        help=f"where health and metrics are served ({default_http})",
    )
    add_log_options(parser, "info")
    return parser


@dataclass(frozen=True)
class ServiceOptions:
    """The options that every service has."""

    service: str
    cluster: str | None
    http: str
    log_format: LogFormat
    log_level: str


Options = TypeVar("Options", bound=ServiceOptions)


@dataclass
class Readiness:
    """What a service needs, and whether it answers now."""

    problems: dict[str, str] = field(default_factory=lambda: {"start": "not checked yet"})

    @property
    def ready(self) -> bool:
        """Whether nothing is missing."""
        return not self.problems

    def note(self, part: str, problem: str) -> None:
        """Something that is needed: how it is wrong, or, empty, that it is not."""
        if problem:
            self.problems[part] = problem
        else:
            self.problems.pop(part, None)


async def watch_readiness(readiness: Readiness, log: Log, blobs: Blobs, clock: Clock, *, leader: bool = True) -> None:
    """Look at broker, store and, if a `leader` is needed, for that every second, and say so; ends by cancellation."""
    readiness.problems = {"kafka": NOT_YET, "store": NOT_YET}
    if leader:
        readiness.problems["leader"] = NO_LEADER
    async with asyncio.TaskGroup() as group:
        group.create_task(_check_kafka(readiness, log, clock, leader=leader))
        group.create_task(_check_store(readiness, blobs, clock))
        group.create_task(_tell(readiness, clock))


async def _check_kafka(readiness: Readiness, log: Log, clock: Clock, *, leader: bool) -> None:
    leader_seen_ms: int | None = None
    position: int | None = None
    while True:
        try:
            async with asyncio.timeout(ANSWER_S):
                start, end = await log.offsets(COMMANDS, 0)
                position = max(position if position is not None else end, start)
                for record in await log.read(COMMANDS, 0, position):
                    position = record.next_offset
                    if isinstance(decode_command(record.value), LeaderTick):
                        leader_seen_ms = clock.monotonic_ms()
            silent = leader_seen_ms is None or clock.monotonic_ms() - leader_seen_ms > LEADER_SEEN_MS
            readiness.note("kafka", "")
            readiness.note("leader", NO_LEADER if leader and silent else "")
        except (ExternalError, TimeoutError) as error:
            readiness.note("kafka", str(error) or "no answer in time")
            readiness.note("leader", "")  # no leader can be heard through brokers that are away
        await asyncio.sleep(CHECK_S)


async def _check_store(readiness: Readiness, blobs: Blobs, clock: Clock) -> None:
    while True:
        try:
            async with asyncio.timeout(ANSWER_S):
                await blobs.list("leaders/")
            readiness.note("store", "")
        except (ExternalError, TimeoutError) as error:
            readiness.note("store", str(error) or "no answer in time")
        await asyncio.sleep(CHECK_S)


async def _tell(readiness: Readiness, clock: Clock) -> None:
    """Log what is waited for once it has been for a moment, then now and then; and that nothing is, once."""
    was_ready, since_ms = False, clock.monotonic_ms()
    due_ms = since_ms + TELL_AFTER_MS
    while True:
        now_ms = clock.monotonic_ms()
        if readiness.ready:
            if not was_ready:
                _log.info("ready")
            was_ready, since_ms, due_ms = True, now_ms, now_ms + TELL_AFTER_MS
        elif now_ms >= due_ms:
            _log.warning("waiting", seconds=(now_ms - since_ms) // 1_000, **readiness.problems)
            was_ready, due_ms = False, now_ms + REPEAT_MS
        await asyncio.sleep(CHECK_S)


def health_routes(readiness: Readiness, samples: Callable[[], list[Sample]]) -> list[Route]:
    """`/healthz`, `/readyz`, `/metrics`."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(_: Request) -> Response:
        if readiness.ready:
            return PlainTextResponse("ready\n")
        return JSONResponse({"errors": [f"{part}: {text}" for part, text in readiness.problems.items()]}, 503)

    async def metrics(request: Request) -> Response:
        encoder, media_type = _encoder(request)
        found = Snapshot(samples())
        # A snapshot of thousands of subtasks takes longer to write than the event loop should stand still.
        return Response(await asyncio.to_thread(encoder, found), media_type=media_type)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]


def _encoder(request: Request) -> tuple[Callable[[Collector], bytes], str]:
    """What writes metrics in the format that a request accepts, and its media type."""
    try:
        return choose_encoder(",".join(request.headers.getlist("accept")))
    except TypeError:  # the header asks for a version that is no number
        return choose_encoder("")


class _Server(uvicorn.Server):
    """Signals belong to the service, not to its web server; and whoever begins TLS and says no more is not waited for."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if not self.config.is_ssl:
            await super().startup(sockets)
            return
        # As uvicorn does, which knows no limit for this: asyncio's own is a minute.
        self.servers = [
            await asyncio.get_running_loop().create_server(
                self._connection, sock=bound, ssl=self.config.ssl, ssl_handshake_timeout=http_limits.HEAD_S,
                ssl_shutdown_timeout=http_limits.HEAD_S, backlog=self.config.backlog,
            )
            for bound in sockets or ()
        ]  # fmt: skip
        self.started = True

    def _connection(self) -> asyncio.Protocol:
        return BoundedConnection(self.config, self.server_state, self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@asynccontextmanager
async def http_server(
    app: Any, address: str, access: Access = NOBODY_ASKS, tls: ssl.SSLContext | None = None, *, option: str = "--http"
) -> AsyncGenerator[str]:
    """Serve an ASGI application; gives the address that it listens on (a port of 0 is any free one).

    Args:
        app: the application.
        address: HOST:PORT.
        access: who may ask for more than health and metrics; by default there is nothing more to ask for.
        tls: the certificate to show; None: plain HTTP.
        option: what an error about the address names.

    Raises:
        UsageError: the address is taken, or is none.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise UsageError(f"{option} {address}: write HOST:PORT, for example 127.0.0.1:8081")
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), int(port)))
        bound.listen()  # from here on nobody who is told the address is turned away
    except OSError as error:
        bound.close()
        raise UsageError(f"{option} {address}: cannot listen there: {error.strerror}") from error
    config = uvicorn.Config(
        Guarded(Gate(app, access)), http=BoundedConnection, ws="none", h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=5, server_header=False,
        ssl_context_factory=(lambda *_: tls) if tls is not None else None,
    )  # fmt: skip
    server = _Server(config)
    serving = asyncio.create_task(server.serve([bound]))
    listens = f"{host}:{bound.getsockname()[1]}"
    _log.info("listening", address=listens)
    try:
        yield listens
    finally:
        server.should_exit = True
        await serving
        bound.close()


def health_app(readiness: Readiness, samples: Callable[[], list[Sample]], others: Sequence[Route] = ()) -> Starlette:
    """The pages of a service that has no, or hardly any, others."""
    return Starlette(routes=[*health_routes(readiness, samples), *others])


def run_service(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    kind: type[Options],
    serve: Callable[[ClusterSettings, Options], Coroutine[Any, Any, None]],
) -> int:
    """Run a service, with the options that its parser finds in `argv`, until it is told to end; the exit code."""
    options = typed_options(parser.parse_args(argv), kind)
    configure_logging(options.log_format, options.log_level)
    try:
        settings = load_settings(options.cluster)
        _say_start(options, settings)
        return asyncio.run(_until_told(serve(settings, options)))
    except UsageError as error:
        _log.error("cannot start", error=str(error))
        return 2
    except PenstockError as error:
        _log.error("ended", error=str(error))
        return 1


def _say_start(options: ServiceOptions, settings: ClusterSettings) -> None:
    _log.info(
        "starting", service=options.service, version=__version__, cluster=settings.name, kafka=settings.kafka.brokers,
        redis=settings.redis.address, store=f"{settings.store.endpoint}/{settings.store.bucket}",
    )  # fmt: skip


def reachable(address: str) -> str:
    """An address that others can use, for a service that listens on HOST:PORT: who listens everywhere is found by one
    of its machine's addresses."""
    host, _, port = address.rpartition(":")
    if host.strip("[]") not in ("0.0.0.0", "::"):
        return address
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:  # a name that no name server knows may still be known to others
        found = socket.gethostname()
    return f"{found}:{port}"


async def _until_told(service: Coroutine[Any, Any, None]) -> int:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    running = asyncio.create_task(service)
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not running.done():
        _log.info("draining")
        running.cancel()
        _, late = await asyncio.wait([running], timeout=DRAIN_S)
        if late:
            _log.error("not drained in time", seconds=DRAIN_S)
            return 1
    if running.cancelled():
        return 0
    error = running.exception()
    if error is None:
        return 0
    first = error
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, PenstockError):
        raise first
    raise error
