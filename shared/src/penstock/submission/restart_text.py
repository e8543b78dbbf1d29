"""The restart strategies in the words of the command line: `--restart`, and `restart=` in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.core.times import DURATION_PATTERN, duration_us
from penstock.errors import PipelineError, UsageError, nearest
from penstock.protocol.restarts import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy

RESTART_USAGE: Final = (
    "none, fixed-delay:ATTEMPTS:DELAY, exponential:FIRST:LONGEST:FACTOR:RESET, failure-rate:FAILURES:INTERVAL:DELAY"
)

_Part = tuple[str, Callable[[str], Any]]


def _milliseconds(text: str) -> int:
    return duration_us(text, "--restart") // 1_000


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _factor(text: str) -> float:
    value = float(text)
    if not 1 <= value < 1_000:
        raise ValueError(f"{text!r} is not a factor from 1 on")
    return value


_PATTERNS: Final[dict[Callable[[str], Any], str]] = {
    _milliseconds: DURATION_PATTERN,
    _count: "[0-9]+",
    _factor: "[1-9][0-9]{0,2}(?:[.][0-9]+)?",
}

_STRATEGIES: Final[dict[str, tuple[type[Any], tuple[_Part, ...]]]] = {
    "none": (NoRestart, ()),
    "fixed-delay": (FixedDelay, (("attempts", _count), ("delay_ms", _milliseconds))),
    "exponential": (
        ExponentialDelay,
        (
            ("initial_ms", _milliseconds),
            ("max_ms", _milliseconds),
            ("multiplier", _factor),
            ("reset_after_ms", _milliseconds),
        ),
    ),
    "failure-rate": (FailureRate, (("failures", _count), ("interval_ms", _milliseconds), ("delay_ms", _milliseconds))),
}


def _pattern() -> str:
    ways: list[str] = []
    for name, (_, parts) in _STRATEGIES.items():
        behind = ""
        for _, read in reversed(parts):
            behind = f"(?::{_PATTERNS[read]}{behind})?"
        ways.append(name + behind)
    return "|".join(ways)


RESTART_PATTERN: Final = _pattern()
"""The regular expression of what `parse_restart` reads, for those who check it elsewhere."""


def restart_text(strategy: RestartStrategy) -> str:
    """The inverse of `parse_restart`."""
    name, parts = next((name, parts) for name, (kind, parts) in _STRATEGIES.items() if type(strategy) is kind)
    values = (f"{getattr(strategy, field)}{'ms' if read is _milliseconds else ''}" for field, read in parts)
    return ":".join([name, *values])


def parse_restart(text: str) -> RestartStrategy:
    """`fixed-delay:3:1s` as the strategy; what is left out has its default.

    Raises:
        UsageError: it is none, or a part of it is not what stands in that place.
    """
    name, *values = text.split(":")
    if name not in _STRATEGIES:
        raise UsageError(f"--restart {text}: there is no strategy {name!r}; {nearest(name, _STRATEGIES)}")
    strategy, parts = _STRATEGIES[name]
    if len(values) > len(parts):
        raise UsageError(f"--restart {text}: too many parts; write {RESTART_USAGE}")
    try:
        given = {field: read(value) for (field, read), value in zip(parts, values, strict=False)}
    except (ValueError, PipelineError) as error:
        raise UsageError(f"--restart {text}: {error}; write {RESTART_USAGE}") from error
    return strategy(**given)
