"""What a coordinator shows at /metrics: itself, and every job while it leads."""

from __future__ import annotations

from penstock.coordination.cluster_view import ScalingView
from penstock.jobmanager.coordinator import CoordinatorService
from penstock.observability.metrics import (
    FREE_SLOTS,
    LEADING,
    MISSING_SLOTS,
    SCALING_FAILS,
    SHORT_SLOTS,
    SLOTS,
    TASK_MANAGERS,
    TASK_MANAGERS_WANTED,
    WORKERS,
    Sample,
    labels_of_job,
    samples,
)


def coordinator_samples(service: CoordinatorService, now_us: int) -> list[Sample]:
    """All samples as they are now."""
    view = service.view()
    found = [
        Sample(LEADING, {}, 1.0 if view.epoch else 0.0),
    ]
    if not view.epoch:
        return found
    found += [
        Sample(WORKERS, {}, len(view.workers)),
        Sample(SLOTS, {}, view.slots),
        Sample(FREE_SLOTS, {}, view.free_slots),
        *(Sample(MISSING_SLOTS, labels_of_job(job.name, job.job), job.missing_slots) for job in view.jobs),
    ]
    if view.scaling is not None:
        found += _scaling_samples(view.scaling)
    for shell in service.shells:
        found += samples(shell.graph, shell.progress, now_us)
    return found


def _scaling_samples(view: ScalingView) -> list[Sample]:
    wanted = [Sample(TASK_MANAGERS_WANTED, {}, view.wanted)] if view.wanted is not None else []
    return [
        *wanted,
        Sample(TASK_MANAGERS, {}, view.standing),
        Sample(SHORT_SLOTS, {}, view.short),
        Sample(SCALING_FAILS, {}, 1.0 if view.problem else 0.0),
    ]
