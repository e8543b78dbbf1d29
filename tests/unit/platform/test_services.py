"""Penstock's services as processes: which an installation has, how they are started, when they are ready."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from small_server import SmallServer

from penstock.platform.free_ports import free_port
from penstock.platform.services import ServiceProcess, _answers_ok, _entry_problem, service_problem


def service(tmp_path: Path) -> ServiceProcess:
    """A task manager that is not started."""
    return ServiceProcess(
        "taskmanager", "taskmanager", tmp_path, 1234, cluster=tmp_path / "cluster.toml", options=["--slots", "3"]
    )


def test_the_command_line_is_what_the_services_understand(tmp_path: Path) -> None:
    """This very Python, the cluster's file, where to serve HTTP, and the service's own options."""
    assert service(tmp_path).command() == [
        *(sys.executable, "-m", "penstock.cli.main", "taskmanager"),
        *("--cluster", str(tmp_path / "cluster.toml"), "--http", "127.0.0.1:1234", "--slots", "3"),
    ]


def test_the_environment_cannot_lead_it_to_another_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of this shell are for its commands, not for the daemons of the local platform."""
    monkeypatch.setenv("PENSTOCK_KAFKA_BROKERS", "elsewhere:9092")
    monkeypatch.setenv("PENSTOCK_NAME", "production")
    monkeypatch.setenv("PENSTOCK_OTHER", "kept")
    environment = service(tmp_path).environment()
    assert not {"PENSTOCK_KAFKA_BROKERS", "PENSTOCK_NAME"} & set(environment)
    assert environment["PENSTOCK_OTHER"] == "kept"


def test_a_service_that_no_package_has_is_told() -> None:
    """With what would install it."""
    assert service_problem("juggler") == "no installed package has it; install it with: pip install penstock-juggler"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def main() -> int: ...", ""),
        ("from somewhere import main", ""),
        ("raise RuntimeError('imported')\ndef run(): ...", "service_under_test has no main"),
        (None, "its package has no module service_under_test yet"),
        ("def main(", "service_under_test cannot be read"),
    ],
)
def test_an_entry_point_is_judged_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, problem: str
) -> None:
    """Its module must be there and have the function; what it does when it is imported is for its own process."""
    if source is not None:
        (tmp_path / "service_under_test.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = _entry_problem(EntryPoint("under-test", "service_under_test:main", "penstock.services"))
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


async def test_ready_is_what_readyz_says(tmp_path: Path) -> None:
    """Only an answer with 200 counts: not a closed port, not a server that hangs up."""
    port = free_port()
    assert not await _answers_ok(port, "/readyz")
    server = SmallServer(tmp_path, port, "silent")
    await server.start()
    assert not await _answers_ok(port, "/readyz")
    server.behaviour = "serves"
    await server.restart(by_force=True)
    assert await _answers_ok(port, "/readyz")
    await server.kill()
