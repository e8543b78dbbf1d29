"""Whether and when a failed attempt is followed by another."""

from __future__ import annotations

from penstock.protocol.restarts import ExponentialDelay, FailureRate, FixedDelay, NoRestart, restart_decider


def test_none_gives_up_at_once():
    """The first failure fails the job."""
    assert restart_decider(NoRestart()).delay_ms(0) is None


def test_fixed_delay_counts_its_attempts():
    """After so many restarts the job fails."""
    decider = restart_decider(FixedDelay(attempts=2, delay_ms=7))
    assert [decider.delay_ms(t) for t in (0, 10, 20)] == [7, 7, None]


def test_exponential_delay_doubles_and_starts_over_after_a_quiet_time():
    """It never gives up."""
    decider = restart_decider(ExponentialDelay(initial_ms=10, max_ms=35, reset_after_ms=1_000))
    assert [decider.delay_ms(t) for t in (0, 20, 50, 90)] == [10, 20, 35, 35]
    assert decider.delay_ms(5_000) == 10


def test_failure_rate_looks_at_a_window():
    """Old failures are forgotten."""
    decider = restart_decider(FailureRate(failures=2, interval_ms=100, delay_ms=3))
    assert [decider.delay_ms(t) for t in (0, 10, 20)] == [3, 3, None]
    assert decider.delay_ms(500) == 3
