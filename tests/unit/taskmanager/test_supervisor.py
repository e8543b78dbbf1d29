"""What a supervisor does to the processes of its workers."""

from __future__ import annotations

import asyncio
import logging
import signal

import pytest

from penstock.taskmanager.supervisor import _signal


async def test_a_signal_takes_no_exit_code_away(caplog: pytest.LogCaptureFixture) -> None:
    """A process that ends while it is signalled again and again has ended as it did, and nothing is complained of."""
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            process = await asyncio.create_subprocess_exec("sleep", "60")
            for _ in range(2_000):
                _signal(process, signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 10) == -signal.SIGTERM
    assert "Unknown child process" not in caplog.text
    _signal(process, signal.SIGTERM)  # it is gone: nothing happens
