"""Settings of Kafka as the two clients want them: aiokafka (frames, control) and confluent-kafka (users' topics).

The only place that knows how each client spells security, and what a broker says that refuses it. In a printed dict
passwords are stars.
Neither an adapter nor a connector, because both need it: connectors do not import adapters.
"""

from __future__ import annotations

import asyncio
import functools
import random
import ssl
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.metadata import MetadataRequest

from penstock.errors import ExternalError, UsageError
from penstock.settings import KafkaSettings

REQUEST_TIMEOUT_MS: Final = 30_000
"""How long a client waits for one answer of a broker."""
METADATA_MAX_AGE_MS: Final = 60_000
"""How old a client's picture of leaders may become while nothing fails."""
START_GRACE_S: Final = 2.0
"""How long whoever gives up the start of an aiokafka client waits for it."""

PROBE_S: Final = 5.0
"""How long a broker has to take or refuse a client that asks only for that."""
UNREACHED: Final = (
    "check that the brokers run, the setting kafka.brokers, and that kafka.security_protocol (with ssl_certfile, where "
    "clients need one) is that of the listener at these ports"
)
"""What to do where no broker answers, or each closes the connection without a word: as all do whom one talks to in the
wrong protocol."""
_LOGIN_REFUSED: Final = (
    UnsupportedSaslMechanismError,
    SaslAuthenticationFailed,
    IllegalSaslStateError,
    AuthenticationFailedError,
)
_DROPPED: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


def durable_topic(copies: int) -> dict[str, str]:
    """Settings of a topic that must not lose a confirmed record to the loss of one broker, or the last of two copies.

    A record is confirmed by all copies but one at least, and only one that has it can become the leader. Defaults of the
    brokers may be others.
    """
    return {"min.insync.replicas": str(max(1, copies - 1)), "unclean.leader.election.enable": "false"}


class _Password(str):
    """The string that the clients want, which a printed dict of options does not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def aiokafka_options(settings: KafkaSettings, client_id: str) -> dict[str, Any]:
    """Keyword arguments for aiokafka's producers, consumers, admin and plain clients.

    Raises:
        UsageError: a file of certificates cannot be used, or SASL lacks its user; names the setting.
    """
    options: dict[str, Any] = {
        "bootstrap_servers": broker_list(settings),
        "client_id": client_id,
        "request_timeout_ms": REQUEST_TIMEOUT_MS,
        "metadata_max_age_ms": METADATA_MAX_AGE_MS,
        "security_protocol": settings.security_protocol,
    }
    if settings.security_protocol in ("SSL", "SASL_SSL"):
        options["ssl_context"] = _ssl_context(settings)
    if settings.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
        _check_sasl(settings)
        options["sasl_mechanism"] = settings.sasl_mechanism
        options["sasl_plain_username"] = settings.sasl_username
        options["sasl_plain_password"] = _Password(settings.sasl_password.reveal())
    return options


async def started(start: Coroutine[Any, Any, None]) -> None:
    """Await the start of an aiokafka client; the caller stops the client afterwards, whatever happens here.

    A start that is cancelled while the first broker is asked for metadata leaves its connection open (aiokafka 0.14),
    so a cancellation lets it go on for a moment first.
    """
    task = asyncio.ensure_future(start)
    try:
        await asyncio.shield(task)
    finally:
        if not task.done():
            await asyncio.wait([task], timeout=START_GRACE_S)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def check_brokers(client: AIOKafkaClient) -> None:
    """After `client.bootstrap()`: it knows a broker.

    A broker that was away for a while answers before it counts among the living again, and then names none. aiokafka
    (0.14) takes that for an answer: who asks on meets an assertion, or finds that no broker knows a topic.

    Raises:
        KafkaConnectionError: it knows none.
    """
    if not client.cluster.brokers():
        raise KafkaConnectionError("the brokers that answer are not registered with their controller (yet)")


def without_topic_creation(client: AIOKafkaClient) -> None:
    """Let the client's refreshes never make a topic: asked for one that was deleted, brokers that create topics by
    themselves would do so, and aiokafka (0.14) forgets no topic and has no option for it."""
    client._metadata_update = functools.partial(_metadata_update, client)  # pyright: ignore[reportAttributeAccessIssue] # no other way in


async def _metadata_update(client: AIOKafkaClient, cluster_metadata: ClusterMetadata, topics: Iterable[str]) -> bool:
    """`AIOKafkaClient._metadata_update` with a request that creates nothing."""
    request = MetadataRequest(list(topics) or None, allow_auto_topic_creation=False)
    bootstrap = ("bootstrap", ConnectionGroup.DEFAULT)
    nodes: list[Any] = [broker.nodeId for broker in client.cluster.brokers()]
    random.shuffle(nodes)
    for node in [*nodes, *(["bootstrap"] if bootstrap in client._conns else [])]:
        connection = await client._get_conn(node)
        if connection is None:
            continue
        try:
            metadata: Any = await connection.send(request)
        except (KafkaError, TimeoutError):
            continue
        if not metadata.brokers:
            return False
        cluster_metadata.update_metadata(metadata)
        if bootstrap in client._conns and len(client.cluster.brokers()):
            client._conns.pop(bootstrap).close()
        return True
    cluster_metadata.failed_update(None)
    return False


def confluent_options(settings: KafkaSettings, client_id: str) -> dict[str, Any]:
    """Configuration for confluent-kafka's producers, consumers and admin clients.

    Raises:
        UsageError: a file of certificates cannot be used, or SASL lacks its user; names the setting.
    """
    options: dict[str, Any] = {
        "bootstrap.servers": ",".join(broker_list(settings)),
        "client.id": client_id,
        "security.protocol": settings.security_protocol,
        "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
    }
    if settings.security_protocol in ("SSL", "SASL_SSL"):
        _ssl_context(settings)  # else librdkafka finds out what is wrong with the files, in words of its own
        files = {
            "ssl.ca.location": settings.ssl_cafile,
            "ssl.certificate.location": settings.ssl_certfile,
            "ssl.key.location": settings.ssl_keyfile,
            "ssl.key.password": _Password(settings.ssl_keypassword.reveal()),
        }
        options |= {name: value for name, value in files.items() if value}
    if settings.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
        _check_sasl(settings)
        options["sasl.mechanism"] = settings.sasl_mechanism
        options["sasl.username"] = settings.sasl_username
        options["sasl.password"] = _Password(settings.sasl_password.reveal())
    return options


def refusal(error: BaseException) -> str | None:
    """The setting to check, for an error of aiokafka by which a broker (or its certificate) is sure to refuse us, or we
    it: no retry helps. None for anything else, a broker that is away or going down among it."""
    causes = [error, error.__cause__]
    if any(isinstance(cause, _LOGIN_REFUSED) for cause in causes):
        return "check the settings kafka.security_protocol, sasl_mechanism, sasl_username and sasl_password"
    if any(isinstance(cause, ssl.SSLError) and not isinstance(cause, _DROPPED) for cause in causes):
        return (
            "check the settings kafka.security_protocol, ssl_cafile (who signed the broker's certificate), ssl_certfile "
            "and ssl_keyfile (ours), and the name in the broker's certificate"
        )
    return None


async def why_not(settings: KafkaSettings) -> Exception | None:
    """What is wrong with connecting to the brokers; None if one of them takes this client.

    The clients' own starts do not tell: aiokafka's only logs it, librdkafka's tries on and on.
    """
    options = aiokafka_options(settings, "penstock-probe")
    kept = {name: value for name, value in options.items() if name not in ("bootstrap_servers", "metadata_max_age_ms")}
    seen: Exception | None = None
    for broker in options["bootstrap_servers"]:
        host, _, port = broker.rpartition(":")
        try:
            async with asyncio.timeout(PROBE_S):
                connection = await create_conn(host.strip("[]"), int(port), **kept)
        except (KafkaError, OSError, TimeoutError) as error:
            if refusal(error):
                return error
            seen = error
            continue
        connection.close()
        return None
    return seen


async def raise_refusal(settings: KafkaSettings) -> None:
    """Do nothing unless the brokers refuse this client.

    Raises:
        ExternalError: they do; says why, and which setting to check.
    """
    error = await why_not(settings)
    if error is not None and (advice := refusal(error)):
        cause = error.__cause__ or error
        raise ExternalError(f"Kafka at {settings.brokers}: {type(cause).__name__}: {cause}; {advice}") from error


def broker_list(settings: KafkaSettings) -> list[str]:
    """The brokers' `host:port`, one each.

    Raises:
        UsageError: there is none, or one has no port.
    """
    brokers = [broker.strip() for broker in settings.brokers.split(",") if broker.strip()]
    for broker in brokers:
        if not broker.rpartition(":")[2].isdigit():
            raise UsageError(f"setting kafka.brokers: {broker!r} has no port; write host:port, several with commas")
    if not brokers:
        raise UsageError("setting kafka.brokers is empty; write host:port, several separated by commas")
    return brokers


def _check_sasl(settings: KafkaSettings) -> None:
    if not settings.sasl_username or not settings.sasl_password:
        raise UsageError(
            f"security_protocol {settings.security_protocol} needs the settings kafka.sasl_username and "
            "kafka.sasl_password (environment: PENSTOCK_KAFKA_SASL_PASSWORD)"
        )


def _ssl_context(settings: KafkaSettings) -> ssl.SSLContext:
    try:
        return create_ssl_context(
            cafile=settings.ssl_cafile or None,
            certfile=settings.ssl_certfile or None,
            keyfile=settings.ssl_keyfile or None,
            password=settings.ssl_keypassword.reveal(),  # None would make OpenSSL ask for it at the terminal
        )
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(
            "the settings kafka.ssl_cafile, ssl_certfile, ssl_keyfile, ssl_keypassword cannot be used together "
            f"({settings.ssl_cafile!r}, {settings.ssl_certfile!r}, {settings.ssl_keyfile!r}): {error}"
        ) from error
