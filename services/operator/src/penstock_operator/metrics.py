"""What an operator shows at /metrics."""

from __future__ import annotations

from collections import Counter

from penstock.observability.metrics import (
    OPERATOR_FAILURES,
    OPERATOR_LEADING,
    OPERATOR_PASSES,
    OPERATOR_RESOURCES,
    Sample,
)
from penstock_operator.definitions import KINDS


class Numbers:
    """What is counted."""

    def __init__(self) -> None:
        self.passes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.ready: dict[tuple[str, str, str], str] = {}
        """Kind, namespace and name of a resource to the status of its condition `Ready`."""


def operator_samples(numbers: Numbers, *, leading: bool) -> list[Sample]:
    """All samples as they are now."""
    found = [Sample(OPERATOR_LEADING, {}, float(leading))]
    for kind in KINDS:
        found.append(Sample(OPERATOR_PASSES, {"kind": kind.name}, numbers.passes[kind.name]))
        found.append(Sample(OPERATOR_FAILURES, {"kind": kind.name}, numbers.failures[kind.name]))
    counts = Counter((kind, ready) for (kind, _, _), ready in numbers.ready.items())
    found += [Sample(OPERATOR_RESOURCES, {"kind": kind, "ready": ready}, n) for (kind, ready), n in counts.items()]
    return found
