"""What the two Kafka clients are told."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.protocol.metadata import MetadataRequest_v4

from penstock.errors import UsageError
from penstock.kafka.clients import aiokafka_options, broker_list, confluent_options, without_topic_creation
from penstock.settings import KafkaSettings, Secret


def test_plain_settings_name_brokers_and_client() -> None:
    """Without security both clients get the brokers and the client's name and no secrets."""
    settings = KafkaSettings(brokers="a:1, b:2,")
    assert aiokafka_options(settings, "me")["bootstrap_servers"] == ["a:1", "b:2"]
    confluent = confluent_options(settings, "me")
    assert confluent["bootstrap.servers"] == "a:1,b:2"
    assert confluent["client.id"] == aiokafka_options(settings, "me")["client_id"] == "me"
    assert not [name for name in confluent if name.startswith(("sasl", "ssl"))]


def test_sasl_over_tls_is_passed_to_both() -> None:
    """User and password reach the client as they are; what is printed shows stars."""
    settings = KafkaSettings(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="ann",
        sasl_password=Secret("pa55word"),
    )
    ours, theirs = aiokafka_options(settings, "me"), confluent_options(settings, "me")
    assert isinstance(ours["ssl_context"], ssl.SSLContext)
    assert ours["ssl_context"].check_hostname
    assert ours["sasl_plain_password"] == theirs["sasl.password"] == "pa55word"
    assert ours["sasl_mechanism"] == theirs["sasl.mechanism"] == "SCRAM-SHA-512"
    assert "pa55word" not in repr(ours) + repr(theirs)


def test_certificates_are_named_when_they_are_bad(tmp_path: Path) -> None:
    """A missing or unreadable certificate is an error of the settings, which it names."""
    for path in (tmp_path / "missing.pem", Path(__file__)):
        settings = KafkaSettings(security_protocol="SSL", ssl_cafile=str(path), ssl_keypassword=Secret("pa55word"))
        for options in (aiokafka_options, confluent_options):
            with pytest.raises(UsageError, match=r"kafka\.ssl_cafile") as caught:
                options(settings, "me")
            assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize("brokers", ["", " , ", "host", "host:", "a:1,b"])
def test_brokers_without_port_are_refused(brokers: str) -> None:
    """A broker list that no client could use is refused with the setting's name."""
    with pytest.raises(UsageError, match=r"kafka\.brokers"):
        broker_list(KafkaSettings(brokers=brokers))


def test_sasl_without_password_is_refused() -> None:
    """SASL needs its user and password."""
    settings = KafkaSettings(security_protocol="SASL_PLAINTEXT", sasl_username="ann")
    for options in (aiokafka_options, confluent_options):
        with pytest.raises(UsageError, match=r"kafka\.sasl_password"):
            options(settings, "me")


async def test_a_refresh_never_makes_a_topic() -> None:
    """A topic that was deleted is asked for until the client forgets it: no broker may create it for that."""
    client = AIOKafkaClient(bootstrap_servers="127.0.0.1:1")
    asked: list[Any] = []

    class Connection:
        async def send(self, request: Any) -> Any:
            asked.append(request.build(MetadataRequest_v4))
            return SimpleNamespace(brokers=[])

        def close(self, *_: object, **__: object) -> asyncio.Future[None]:
            closed = asyncio.get_running_loop().create_future()
            closed.set_result(None)
            return closed

    async def connection(_node: Any) -> Connection:
        return Connection()

    without_topic_creation(client)
    client._get_conn = connection  # type: ignore[method-assign]
    client._conns["bootstrap", ConnectionGroup.DEFAULT] = Connection()  # type: ignore[assignment]
    client._topics = {"gone"}
    await client._metadata_update(client.cluster, client._topics)
    assert [(list(request.topics), request.allow_auto_topic_creation) for request in asked] == [(["gone"], False)]
    await client.close()
