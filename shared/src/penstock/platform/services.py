"""Penstock's own services as processes of this machine."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib.util
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from penstock.platform.free_ports import HOST
from penstock.platform.server import Recorder, Server, no_recorder
from penstock.settings import ClusterSettings

GROUP: Final = "penstock.services"
SERVICES: Final = ("coordinator", "dispatcher", "taskmanager", "pipeline")

_ANSWER_S: Final = 2.0


def service_problem(name: str) -> str:
    """Why this installation cannot run a service; empty if it can."""
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        return f"no installed package has it; install it with: pip install penstock-{name}"
    return _entry_problem(found[0])


class ServiceProcess(Server):
    """One service, ready when its /readyz says so.

    Args:
        service: its command, such as `coordinator`.
        cluster: the file of the cluster's settings.
        options: what is added to its command line.
        variables: what is added to its environment.
        tls: whether its settings have a certificate, so that it speaks nothing else.
    """

    start_deadline_s = 60.0
    stop_grace_s = 30.0

    def __init__(
        self,
        name: str,
        service: str,
        folder: Path,
        port: int,
        *,
        cluster: Path,
        options: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        record: Recorder = no_recorder,
        mark: str = "",
        tls: bool = False,
    ) -> None:
        super().__init__(name, folder, port, record=record, mark=mark)
        self.service = service
        self._cluster = cluster.absolute()
        self._options = tuple(options)
        self._variables = dict(variables or {})
        self._tls = tls

    async def prepare(self) -> None:
        pass  # all it needs is on its command line

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "penstock.cli.main", self.service, "--cluster", str(self._cluster)]
        return [*command, "--http", self.address, *self._options]

    def environment(self) -> Mapping[str, str]:
        # Settings in this shell's environment would send it to another cluster than the one it is started for.
        overrides = tuple(f"PENSTOCK_{item.name.upper()}" for item in fields(ClusterSettings))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(overrides)}
        return {**inherited, **self._variables}

    async def is_ready(self) -> bool:
        return await _answers_ok(self.port, "/readyz", _itself() if self._tls else None)


def _itself() -> ssl.SSLContext:
    """What we started on this machine shows a certificate for others: whose it is does not matter here."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def _answers_ok(port: int, path: str, tls: ssl.SSLContext | None = None) -> bool:
    """Whether a GET of `path` is answered with 200 now."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(HOST, port, ssl=tls)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n".encode())
            return (await reader.readline()).split()[1:2] == [b"200"]
    except (OSError, TimeoutError):
        return False
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _entry_problem(point: EntryPoint) -> str:
    """Looks without importing: the services' imports take longer than starting Redis does."""
    try:
        spec = importlib.util.find_spec(point.module)
    except ImportError as error:
        return f"{point.module} cannot be imported: {error}"
    if spec is None or spec.origin is None:
        return f"its package has no module {point.module} yet"
    try:
        names = _defined(ast.parse(Path(spec.origin).read_bytes(), spec.origin))
    except (OSError, SyntaxError) as error:
        return f"{point.module} cannot be read: {error}"
    return "" if point.attr in names else f"{point.module} has no {point.attr}"


def _defined(module: ast.Module) -> set[str]:
    """The functions that a module defines or imports at its top level."""
    names: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return names
