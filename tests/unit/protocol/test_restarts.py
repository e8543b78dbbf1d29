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


def test_the_quiet_time_of_an_exponential_delay_begins_with_the_restart():
    """Not with the failure, whose delay may be long; a failure exactly at its end is not yet after a quiet time."""
    after = {}
    for end in (1_000, 1_010, 1_011):
        decider = restart_decider(ExponentialDelay(initial_ms=10, max_ms=1_000, reset_after_ms=1_000))
        assert decider.delay_ms(0) == 10
        after[end] = decider.delay_ms(end)
    assert after == {1_000: 20, 1_010: 20, 1_011: 10}


def test_a_failure_counts_for_a_whole_interval():
    """The one that happened exactly an interval ago is within it, as in Flink."""
    after = {}
    for end in (99, 100, 101):
        decider = restart_decider(FailureRate(failures=1, interval_ms=100, delay_ms=3))
        assert decider.delay_ms(0) == 3
        after[end] = decider.delay_ms(end)
    assert after == {99: None, 100: None, 101: 3}
