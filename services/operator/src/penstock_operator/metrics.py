"""What an operator shows at /metrics."""

from __future__ import annotations

from collections import Counter

from penstock.observability.metrics import (
    OPERATOR_FAILURES,
    OPERATOR_LEADING,
    OPERATOR_PARALLELISM,
    OPERATOR_PASSES,
    OPERATOR_RECOMMENDED,
    OPERATOR_RESCALES,
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
        self.autoscaled: dict[tuple[str, str], tuple[int, int]] = {}
        """Namespace and name of a resource with an autoscaler to the parallelism of its job, and the recommended one."""
        self.rescales: Counter[str] = Counter({"ScaleUp": 0, "ScaleDown": 0})


def operator_samples(numbers: Numbers, *, leading: bool) -> list[Sample]:
    """All samples as they are now."""
    found = [Sample(OPERATOR_LEADING, {}, float(leading))]
    for kind in KINDS:
        found.append(Sample(OPERATOR_PASSES, {"kind": kind.name}, numbers.passes[kind.name]))
        found.append(Sample(OPERATOR_FAILURES, {"kind": kind.name}, numbers.failures[kind.name]))
    counts = Counter((kind, ready) for (kind, _, _), ready in numbers.ready.items())
    found += [Sample(OPERATOR_RESOURCES, {"kind": kind, "ready": ready}, n) for (kind, ready), n in counts.items()]
    found += [Sample(OPERATOR_RESCALES, {"direction": way}, n) for way, n in numbers.rescales.items()]
    for (namespace, name), (parallelism, recommended) in numbers.autoscaled.items():
        labels = {"namespace": namespace, "name": name}
        found.append(Sample(OPERATOR_PARALLELISM, labels, parallelism))
        found += [Sample(OPERATOR_RECOMMENDED, labels, recommended)] if recommended else []
    return found
