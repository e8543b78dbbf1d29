"""What a local platform keeps over restarts, and how the user's wishes change it."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.platform import free_ports
from penstock.platform import plan as plan_module
from penstock.platform.errors import PlatformError
from penstock.platform.free_ports import HOST, free_port, is_free
from penstock.platform.plan import PlatformPlan, RestTls, Wishes, read_plan, settle, write_plan
from penstock.platform.servers import plan_servers


def ports(plan: PlatformPlan) -> list[int]:
    """All ports of a plan."""
    broker = plan.servers.brokers[0]
    servers = [broker.port, broker.controller_port, plan.servers.minio_port, plan.servers.redis_port]
    return [*servers, plan.rest_port, plan.taskmanager_port, *plan.coordinator_ports]


def test_a_first_plan_has_a_free_port_for_each() -> None:
    """No port twice; two slots and one coordinator unless more are wished."""
    plan = settle(None, Wishes(coordinators=3), set())
    assert len(set(ports(plan))) == len(ports(plan)) == 9
    assert plan.slots == 2
    assert list(plan.coordinators) == ["coordinator-1", "coordinator-2", "coordinator-3"]


@pytest.mark.parametrize("wishes", [Wishes(), Wishes(rest_port=15_003)])
def test_no_port_is_given_out_twice(monkeypatch: pytest.MonkeyPatch, wishes: Wishes) -> None:
    """There are as many as are needed, so that each would be drawn again and again."""
    monkeypatch.setattr(free_ports, "_RANGE", range(15_000, 15_008))
    for module in (free_ports, plan_module):
        monkeypatch.setattr(module, "is_free", lambda port: True)
    wishes = replace(wishes, coordinators=2)
    for _ in range(20):
        plan = settle(None, wishes, set())
        assert sorted(ports(plan)) == list(range(15_000, 15_008))


def test_a_port_that_is_wished_is_taken_from_what_had_it() -> None:
    """What stands still gets another one."""
    plan = settle(None, Wishes(), set())
    changed = settle(plan, Wishes(rest_port=plan.servers.minio_port), set())
    assert changed.rest_port == plan.servers.minio_port
    assert len(set(ports(changed))) == len(ports(changed)) == 7


def test_a_plan_is_kept_over_restarts() -> None:
    """Ports, passwords and numbers are the same the next time."""
    plan = settle(None, Wishes(slots=3), set())
    assert settle(plan, Wishes(), set()) == plan


def test_a_pipeline_service_is_there_once_it_was_asked_for() -> None:
    """Not before; it keeps its port, which is nobody else's."""
    plan = settle(None, Wishes(), set())
    assert plan.pipeline_port is None
    asked = settle(plan, Wishes(pipeline=True), set())
    assert asked.pipeline_port is not None
    assert asked.pipeline_port not in ports(plan)
    assert settle(asked, Wishes(), {"pipeline"}).pipeline_port == asked.pipeline_port


def test_a_certificate_is_kept_and_not_changed_under_a_dispatcher_that_runs() -> None:
    """By whole paths: whoever starts it the next time may stand in another folder."""
    assert settle(None, Wishes(), set()).tls is None
    plan = settle(None, Wishes(tls_certificate=Path("a.pem"), tls_key=Path("/a.key")), set())
    assert plan.tls == RestTls(str(Path.cwd() / "a.pem"), "/a.key", "")
    assert settle(plan, Wishes(), {"dispatcher"}).tls == plan.tls
    assert settle(plan, Wishes(tls_certificate=Path("a.pem"), tls_key=Path("/a.key")), {"dispatcher"}).tls == plan.tls
    other = Wishes(tls_certificate=Path("b.pem"))
    assert settle(plan, other, set()).tls == RestTls(str(Path.cwd() / "b.pem"), "", "")
    with pytest.raises(UsageError, match="runs with another"):
        settle(plan, other, {"dispatcher"})
    with pytest.raises(UsageError, match="name the certificate too"):
        settle(None, Wishes(tls_ca=Path("ca.pem")), set())


def test_a_port_that_others_took_meanwhile_is_replaced() -> None:
    """Only that one; the rest stays."""
    plan = settle(None, Wishes(), set())
    with socket.socket() as other:
        other.bind((HOST, plan.servers.redis_port))
        other.listen()
        again = settle(plan, Wishes(), set())
    assert again.servers.redis_port != plan.servers.redis_port
    assert again.servers.minio_port == plan.servers.minio_port
    assert again.servers.redis_password == plan.servers.redis_password


def test_what_runs_keeps_its_port_although_it_is_taken() -> None:
    """It is taken by the server itself."""
    plan = settle(None, Wishes(), set())
    with socket.socket() as redis:
        redis.bind((HOST, plan.servers.redis_port))
        redis.listen()
        assert settle(plan, Wishes(), {"redis"}) == plan


def test_a_wish_is_fulfilled() -> None:
    """Named ports are used, those named before too."""
    port = free_port()
    plan = settle(None, Wishes(kafka_port=port), set())
    assert plan.servers.brokers[0].port == port
    assert settle(plan, Wishes(redis_port=free_port({port})), set()).servers.brokers[0].port == port


@pytest.mark.parametrize(
    ("wishes", "running", "message"),
    [
        (Wishes(kafka_port=1), {"kafka-1"}, "--kafka-port 1: it runs already on port"),
        (Wishes(minio_port=1), {"minio"}, "--minio-port 1: it runs already on port"),
        (Wishes(redis_port=1), {"redis"}, "--redis-port 1: it runs already on port"),
        (Wishes(rest_port=1), {"dispatcher"}, "--rest-port 1: it runs already on port"),
        (Wishes(slots=5), {"taskmanager"}, "--slots 5: the task manager runs with 2"),
        (Wishes(coordinators=5), {"coordinator-1"}, "--coordinators 5: 1 run; penstock down"),
        (Wishes(kafka_port=77, redis_port=77), set(), "port 77 is named twice"),
    ],
)
def test_a_wish_that_contradicts_is_refused(wishes: Wishes, running: set[str], message: str) -> None:
    """With what runs, or with another wish."""
    with pytest.raises(UsageError, match=message):
        settle(settle(None, Wishes(), set()), wishes, running)


def test_a_named_port_that_is_taken_is_refused() -> None:
    """Rather than replaced: somebody wants exactly this one."""
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(UsageError, match=f"--minio-port {port}: something listens there"):
            settle(None, Wishes(minio_port=port), set())


def test_a_plan_is_written_for_its_owner_only(tmp_path: Path) -> None:
    """It comes back as it was, and nobody else may read the passwords in it."""
    path, plan = tmp_path / "plan.json", settle(None, Wishes(), set())
    assert read_plan(path) is None
    write_plan(path, plan)
    assert read_plan(path) == plan
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("{")
    with pytest.raises(PlatformError, match="cannot read the plan"):
        read_plan(path)


def test_no_password_is_in_a_repr() -> None:
    """A plan that is logged or shown in a failure gives nothing away."""
    plan = plan_servers()
    assert plan.secret_key not in repr(plan)
    assert plan.redis_password not in repr(plan)


def test_three_brokers_or_one() -> None:
    """Two would stop when one is lost."""
    assert len({n.port for n in plan_servers(brokers=3).brokers}) == 3
    with pytest.raises(PlatformError, match="2 brokers"):
        plan_servers(brokers=2)
