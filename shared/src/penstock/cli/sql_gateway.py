"""`penstock sql-gateway`: SQL over REST, as Flink's SQL Gateway serves it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from penstock.core.times import duration_us
from penstock.loading import make_importable
from penstock.settings import load_settings


@dataclass(frozen=True)
class SqlGateway:
    """`penstock sql-gateway`."""

    host: str
    port: int
    parallelism: int | None
    session_idle_timeout: str


def sql_gateway_command(command: SqlGateway) -> int:
    """Serve until Ctrl-C or SIGTERM; the exit code."""
    timeout_us = duration_us(command.session_idle_timeout, "--session-idle-timeout", positive=True)
    from penstock.gateway.serving import serve  # needs what the extra `cluster` installs

    make_importable(Path.cwd())
    settings, idle_ms = load_settings(), max(timeout_us // 1_000, 1)
    parallelism = command.parallelism or 1
    asyncio.run(
        serve(settings, command.host, command.port, parallelism=parallelism, idle_timeout_ms=idle_ms, listening=_say)
    )
    return 0


def _say(address: str) -> None:
    print(f"SQL Gateway on http://{address}; Flink's client: sql-client.sh gateway --endpoint {address}", flush=True)
