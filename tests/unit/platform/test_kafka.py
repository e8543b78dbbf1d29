"""The configuration that brokers are started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.platform.kafka import KafkaNode, new_cluster_id, server_properties


def properties(count: int, **options: int) -> dict[str, str]:
    """Of the first of so many nodes."""
    nodes = [KafkaNode(number, 9000 + number, 9100 + number) for number in range(1, count + 1)]
    text = server_properties(nodes[0], nodes, Path("/data"), **options)
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(("brokers", "replication", "in_sync"), [(1, "1", "1"), (3, "3", "2")])
def test_what_must_survive_a_broker_is_replicated(brokers: int, replication: str, in_sync: str) -> None:
    """Three brokers: three copies, two of them acknowledged; also of offsets and transactions."""
    found = properties(brokers)
    for name in ("default", "offsets.topic", "transaction.state.log"):
        assert found[f"{name}.replication.factor"] == replication
    assert found["min.insync.replicas"] == found["transaction.state.log.min.isr"] == in_sync


def test_every_node_knows_all_voters() -> None:
    """And listens on the loopback interface only."""
    found = properties(3)
    assert found["controller.quorum.voters"] == "1@127.0.0.1:9101,2@127.0.0.1:9102,3@127.0.0.1:9103"
    assert found["listeners"] == "BROKER://127.0.0.1:9001,CONTROLLER://127.0.0.1:9101"


def test_nothing_is_created_or_lost_by_itself() -> None:
    """A mistyped topic is an error; a replica that lags never leads; a short session has heartbeats within it."""
    found = properties(1, session_ms=3_000)
    assert found["auto.create.topics.enable"] == "false"
    assert found["unclean.leader.election.enable"] == "false"
    assert (found["broker.session.timeout.ms"], found["broker.heartbeat.interval.ms"]) == ("3000", "1000")


def test_an_id_is_never_taken_for_an_option() -> None:
    """22 characters, none of which is a dash at the beginning."""
    ids = {new_cluster_id() for _ in range(500)}
    assert len(ids) == 500
    assert {len(made) for made in ids} == {22}
    assert not any(made.startswith("-") for made in ids)
