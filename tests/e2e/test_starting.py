"""A service says that it starts, for which cluster, where it listens, and, within five seconds, what it waits for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from penstock.platform.free_ports import HOST, free_port
from penstock.platform.services import ServiceProcess
from penstock.settings import ClusterSettings, KafkaSettings, RedisSettings, Secret, StoreSettings, settings_to_toml

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]


async def test_a_service_whose_cluster_is_not_there_says_so(tmp_path: Path) -> None:
    """Every one of them, by name and address; no password is in it, and nothing is repeated at once."""
    nobody = f"{HOST}:{free_port()}"
    settings = ClusterSettings(
        "elsewhere", kafka=KafkaSettings(nobody), redis=RedisSettings(Secret(f"redis://ann:hunter2@{nobody}/0")),
        store=StoreSettings(f"http://{nobody}"),
    )  # fmt: skip
    file = tmp_path / "cluster.toml"
    file.write_text(settings_to_toml(settings))
    taken: set[int] = set()
    services = [
        ServiceProcess(kind, kind, tmp_path / kind, free_port(taken), cluster=file)
        for kind in ("coordinator", "dispatcher", "taskmanager")
    ]
    try:
        for service in services:
            await service.spawn()
        for service in services:
            await _said(service, "starting", 30)
        for service in services:
            await _said(service, "waiting", 5)
        for service in services:
            text = service.new_log()
            assert "cluster=elsewhere" in text
            assert nobody in text
            assert "hunter2" not in text
            assert text.count("waiting") <= 3
        for service in services:
            assert f"address={service.address}" in service.new_log()
    finally:
        await asyncio.gather(*(service.kill() for service in services))


async def _said(service: ServiceProcess, word: str, deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while word not in service.new_log():
        assert service.is_running, service.new_log()
        assert time.monotonic() < end, f"{service.name} did not say {word!r} within {deadline_s} s: {service.new_log()}"
        await asyncio.sleep(0.1)
