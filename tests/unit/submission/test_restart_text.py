"""`--restart` as people write it."""

from __future__ import annotations

import pytest

from penstock.errors import UsageError
from penstock.protocol.restarts import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from penstock.submission.restart_text import parse_restart, restart_text


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("none", NoRestart()),
        ("fixed-delay:5:2s", FixedDelay(5, 2_000)),
        ("fixed-delay", FixedDelay()),
        ("exponential", ExponentialDelay()),
        ("exponential:50ms:10s:1.5:1h", ExponentialDelay(50, 10_000, 1.5, 3_600_000)),
        ("failure-rate:2:1m:10ms", FailureRate(2, 60_000, 10)),
    ],
)
def test_strategies(text: str, strategy: object) -> None:
    """What is left out has its default."""
    assert parse_restart(text) == strategy
    assert parse_restart(restart_text(strategy)) == strategy


@pytest.mark.parametrize("text", ["", "never", "none:3", "fixed-delay:x", "fixed-delay:1:fast", "exponential:1s:1s:0"])
def test_what_is_no_strategy(text: str) -> None:
    """The error shows how to write one."""
    with pytest.raises(UsageError, match="--restart"):
        parse_restart(text)
