"""What a coordinator shows at /metrics: itself, and every job while it leads."""

from __future__ import annotations

from penstock.observability.metrics import FREE_SLOTS, LEADING, MISSING_SLOTS, SLOTS, WORKERS, Sample, samples
from penstock.runtime.coordinator import CoordinatorService


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
        *(Sample(MISSING_SLOTS, {"job_name": job.name}, job.missing_slots) for job in view.jobs),
    ]
    for shell in service.shells:
        found += samples(shell.graph, shell.progress, now_us)
    return found
