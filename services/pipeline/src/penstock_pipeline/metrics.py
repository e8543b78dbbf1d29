"""What a pipeline service shows at /metrics."""

from __future__ import annotations

from penstock.observability.metrics import (
    RUN_ATTEMPTS_LOST,
    RUN_SECONDS,
    RUN_STAGES,
    RUN_TASKS,
    RUNS,
    RUNS_ENDED,
    SCHEDULE_BEHIND,
    SCHEDULE_DUE,
    SCHEDULE_FAILURES,
    SCHEDULE_STOPPED,
    SCHEDULES,
    Sample,
)
from penstock.runs.run_log import RUN_ENDED
from penstock.runs.schedule import current_period, periods_behind
from penstock_pipeline.schedules import Schedules
from penstock_pipeline.service import PipelineService


def pipeline_samples(service: PipelineService, now_us: int) -> list[Sample]:
    """All samples as they are now."""
    found = [Sample(RUNS, {"state": state}, count) for state, count in service.states().items()]
    ended = service.numbers.ended
    found += [Sample(RUNS_ENDED, {"state": state}, ended.get(state, 0)) for state in sorted(RUN_ENDED)]
    found.append(Sample(RUN_ATTEMPTS_LOST, {}, service.numbers.lost))
    for history, view in service.running():
        labels = {"run": history.submitted.run, "pipeline": history.submitted.name}
        attempt = history.attempt
        assert attempt is not None
        found += [
            Sample(RUN_SECONDS, labels, max(0, now_us - attempt.at_us) / 1e6),
            Sample(RUN_STAGES, labels, view.progress.stages_done),
            Sample(RUN_TASKS, labels, view.progress.tasks - view.progress.tasks_done),
        ]
    return [*found, *_schedule_samples(service.schedules, now_us)]


def _schedule_samples(schedules: Schedules, now_us: int) -> list[Sample]:
    there = [schedule for schedule in schedules.known.values() if schedule.state != "REMOVED"]
    states = [schedule.state for schedule in there]
    found = [Sample(SCHEDULES, {"state": state}, states.count(state)) for state in ("ACTIVE", "PAUSED", "STOPPED")]
    for schedule in there:
        labels = {"schedule": schedule.name}
        period = current_period(schedule)
        if period is not None and schedule.state != "PAUSED":
            found += [
                Sample(SCHEDULE_DUE, labels, period.end_us / 1e6),
                Sample(SCHEDULE_BEHIND, labels, periods_behind(schedule, now_us)),
            ]
        found += [
            Sample(SCHEDULE_STOPPED, labels, int(schedule.state == "STOPPED")),
            Sample(SCHEDULE_FAILURES, labels, schedules.failures[schedule.name]),
        ]
    return found
