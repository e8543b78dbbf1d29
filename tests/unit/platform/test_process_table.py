"""The list of processes survives the process that wrote it, and ends exactly what is on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_server import SmallServer

from penstock.platform.errors import PlatformError
from penstock.platform.free_ports import free_port
from penstock.platform.process_table import ProcessTable
from penstock.platform.processes import ProcessId


async def test_another_process_can_end_what_was_recorded(tmp_path: Path) -> None:
    """It reads the same file; what it ended is off the list."""
    path = tmp_path / "table.json"
    table = ProcessTable(path, "mark")
    server = SmallServer(tmp_path, free_port(), record=table.record, mark="mark")
    await server.start()
    other = ProcessTable.load(path)
    assert (tmp_path / "small.pid").read_text() == f"{server.pid}\n"
    assert other.running() == other.processes == {"small": server.process}
    await other.end(["small", "unknown"], 20)
    assert not server.is_running
    assert ProcessTable.load(path).processes == {}
    assert not (tmp_path / "small.pid").exists()


async def test_a_recycled_number_is_not_ended(tmp_path: Path) -> None:
    """The list has a process that is gone; its number belongs to another now."""
    server = SmallServer(tmp_path, free_port())
    await server.start()
    table = ProcessTable(tmp_path / "table.json", "mark")
    table.record("former", ProcessId(server.pid, "yesterday"))
    assert table.running() == {}
    await table.end(["former"], 1)
    assert server.is_running
    await server.kill()


def test_a_file_that_is_no_list_is_refused(tmp_path: Path) -> None:
    """Rather than taken for an empty one."""
    (tmp_path / "table.json").write_text("[]")
    with pytest.raises(PlatformError, match="this is not a list of processes"):
        ProcessTable.load(tmp_path / "table.json")
    with pytest.raises(PlatformError, match="cannot read which processes run"):
        ProcessTable.load(tmp_path / "missing.json")
