"""The services as commands, `penstock coordinator` and others: each is a package, found by its entry point."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, Final

from penstock.errors import UsageError

GROUP: Final = "penstock.services"
SERVICES: Final = {
    "coordinator": "Run a coordinator: JobManager and ResourceManager.",
    "taskmanager": "Run a task manager: slots for subtasks.",
    "dispatcher": "Run a dispatcher: the REST interface.",
    "operator": "Run an operator: jobs on Kubernetes, as their custom resources say.",
    "pipeline": "Run a pipeline service: runs on Spark.",
}


def add_service_commands(commands: Any) -> None:
    """List the services in the help; `run_service_command` runs them, with options of their own."""
    for name, summary in SERVICES.items():
        commands.add_parser(name, help=summary, add_help=False)


def run_service_command(name: str, argv: Sequence[str]) -> int:
    """Hand over to the service; its exit code.

    Raises:
        UsageError: its package is not installed.
    """
    return part_of_service(name, GROUP)(argv)


def part_of_service(name: str, group: str) -> Any:
    """What a service's package offers under a group of entry points.

    Raises:
        UsageError: its package is not installed.
    """
    for point in entry_points(group=group):
        if point.name == name:
            return point.load()
    raise UsageError(f"this installation has no {name}; install it with: pip install penstock-{name}")
