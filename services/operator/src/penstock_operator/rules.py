"""What Kubernetes refuses beyond types and limits when a resource is applied: rules in CEL, with what `kubectl` prints.

The rules stand in the definitions of the custom resources, so nothing has to run for them. A webhook would need a
certificate, and while the operator is away either nothing could be applied or anything could.

The operator judges a spec by itself as well (`penstock_operator.decision.problems_of`): a resource may be older than a
rule, and CEL knows no days and weeks. Lengths are limited because Kubernetes limits what a rule may cost.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from penstock.core.times import DURATION_PATTERN
from penstock.submission.restart_text import RESTART_PATTERN, RESTART_USAGE

Schema = dict[str, Any]
Rule = tuple[str, str]
"""An expression that must be true, and what is said if it is not."""

_DURATION: Final = f"self.matches('^(?:{DURATION_PATTERN})$')"
_POSITIVE: Final = f"{_DURATION} && self.matches('[1-9]')"
_COMPARABLE: Final = "^(?:[0-9.]{1,6}(?:us|ms|s|m|h)){1,3}$"
_ADDRESSES: Final = "https?://[^/, ]+/?(?:, *https?://[^/, ]+/?)*"


def with_rules(*rules: Rule) -> Schema:
    """The part of a schema that has these rules."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


def _text(rule: str, message: str, longest: int, *, least: int = 1) -> msgspec.Meta:
    return msgspec.Meta(min_length=least, extra_json_schema={"maxLength": longest, **with_rules((rule, message))})


def _longer(one: str, other: str) -> str:
    """Whether one duration is longer than another, as far as CEL can tell."""
    readable = " && ".join(f"self.{name}.matches('{_COMPARABLE}')" for name in (one, other))
    return f"!({readable}) || duration(self.{one}) > duration(self.{other})"


Duration = Annotated[str, _text(_DURATION, "write a duration such as '250ms', '10s' or '1h30m'", 50)]
PositiveDuration = Annotated[
    str, _text(_POSITIVE, "write a duration longer than zero, such as '250ms', '10s' or '1h30m'", 50)
]
OptionalDuration = Annotated[
    str,
    _text(
        f"self == '' || ({_POSITIVE})", "write a duration longer than zero, such as '7d', or leave it out", 50, least=0
    ),
]
RestartText = Annotated[str, _text(f"self.matches('^(?:{RESTART_PATTERN})$')", f"write {RESTART_USAGE}", 100)]
Addresses = Annotated[
    str,
    _text(
        f"self.matches('^{_ADDRESSES}$')", "write http://HOST:PORT of a dispatcher, several separated by commas", 1_000
    ),
]

STABLE_AFTER_A_CHECKPOINT: Final[Rule] = (
    _longer("stableWithin", "checkpointInterval"),
    "stableWithin must be longer than checkpointInterval: a version is stable when it has completed a checkpoint",
)
STARTS_WITHIN_LIMITS: Final[Rule] = (
    "!has(self.autoscaler) || "
    "(self.autoscaler.minParallelism <= self.parallelism && self.parallelism <= self.autoscaler.maxParallelism)",
    "parallelism must lie between autoscaler.minParallelism and autoscaler.maxParallelism: the job starts with it",
)
UTILIZATIONS_RISE: Final[Rule] = (
    "0.0 < self.utilizationMin && self.utilizationMin < self.utilizationTarget && "
    "self.utilizationTarget < self.utilizationMax",
    "utilizationMin, utilizationTarget and utilizationMax must each be higher than the one before, the first than 0",
)


def unchanged(why: str) -> Rule:
    """What may not be changed."""
    return "self == oldSelf", why
