"""Histories of a load, and what must be true of them; each raises `BrokenInvariantError` where it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from tests.simulation.autoscaling.world import MINUTE_S, SCALER, SPEC, Costs, LoadedJob

FEW, MANY = 900.0, 1_800.0
"""Rows a second, of which one slot can read 500."""
PHASE_S = 40 * MINUTE_S
SETTLES_S = 25 * MINUTE_S
"""So long after a change of the load the job runs at what it needs: measured twice, or scaled down after a delay."""
MEASURED_S = 3 * MINUTE_S
"""Stabilization and window."""


class BrokenInvariantError(Exception):
    """Something was decided that must not be."""


def _check(holds: bool, job: LoadedJob, what: str) -> None:
    if not holds:
        told = "\n".join(f"{at:6.0f} {reason}: {message}" for at, reason, message in job.decided)
        raise BrokenInvariantError(
            f"{what}; seed {job.seed}, at {job.at_s:.0f} s: {job.rescales}, late {job.late_s:.0f} s\n"
            f"{job.status.autoscaler}\n{told}"
        )


def _spec(**changes: Any) -> Any:
    return msgspec.structs.replace(SPEC, autoscaler=msgspec.structs.replace(SCALER, **changes))


def _alternating(at_s: float) -> float:
    return FEW if int(at_s // PHASE_S) % 2 == 0 else MANY


def _check_fits(job: LoadedJob) -> None:
    works = job.written(job.at_s) / job.capacity(job.parallelism)
    _check(works <= SCALER.utilization_max, job, f"it has to work {works:.0%} of its time")
    _check(works >= SCALER.utilization_min or job.parallelism == 1, job, f"it works only {works:.0%} of its time")


def doubles_and_halves(seed: int) -> None:
    """The lag stays bounded, and a change of the load costs few rescales."""
    job = LoadedJob(seed, _alternating, noise=0.12, missing=0.1, deaths=0.01, spec=SPEC)
    for phase in range(4):
        job.run(phase * PHASE_S + SETTLES_S)
        _check_fits(job)
        before = len(job.rescales)
        job.run((phase + 1) * PHASE_S)
        _check(len(job.rescales) == before, job, "it is rescaled although it runs at what it needs")
    _check(job.late_s <= 5 * MINUTE_S, job, "rows wait too long")
    _check(len(job.rescales) <= 8, job, "it flaps")
    _check(job.behind <= 60 * MANY, job, "it has not caught up")
    _check(len(job.rescales) == len({ask.request for ask in job.asked.values()}), job, "something was done twice")


def steady(seed: int) -> None:
    """However noisy the measurements of a steady load are, the job is brought to what fits, and left there."""
    job = LoadedJob(seed, lambda _: 0.0, noise=0.3, missing=0.2)
    rows = job.random.uniform(300, 4_000)
    job.written = lambda _: rows
    job.run(SETTLES_S)
    before = len(job.rescales)
    job.run(150 * MINUTE_S)
    _check(len(job.rescales) - before <= 1, job, "it flaps")
    _check_fits(job)


def within_the_band(seed: int) -> None:
    """What fits is left as it is, although another parallelism would be nearer to the target."""
    for share, parallelism in ((0.8, 3), (0.47, 5)):
        job = LoadedJob(seed, lambda _: 0.0, noise=0.02, spec=msgspec.structs.replace(SPEC, parallelism=parallelism))
        rows = share * job.capacity(parallelism)
        job.written = lambda _, rows=rows: rows
        job.run(PHASE_S)
        _check(not job.rescales, job, f"it is rescaled, and works {share:.0%} of its time")


def backlog(seed: int) -> None:
    """What waits is read within the time that it should take, and then the parallelism goes back."""
    job = LoadedJob(seed, lambda _: FEW, noise=0.05, behind=60 * MINUTE_S * FEW)
    job.spec = msgspec.structs.replace(SPEC, parallelism=3)
    job.parallelism = 3
    job.run(3 * MEASURED_S + 2 * 10 * MINUTE_S)
    _check(job.behind < MINUTE_S * FEW, job, "it has not caught up")
    job.run(60 * MINUTE_S)
    _check(job.parallelism <= 3, job, "it has caught up, and is not scaled down")


def jump(seed: int) -> None:
    """A load that becomes eight times as much is met in two steps, also where the lag itself does not count."""
    job = LoadedJob(
        seed, lambda at_s: 500.0 if at_s < 10 * MINUTE_S else 4_000.0, noise=0.05, spec=_spec(catch_up_duration="0s")
    ).run(20 * MINUTE_S)
    _check_fits(job)
    _check(len(job.rescales) <= 3, job, "it takes too many steps")


def long_batches(seed: int) -> None:
    """A job that counts what it does only once in a while has as much to do as any other."""
    job = LoadedJob(seed, lambda _: MANY, noise=0.05, batch_s=50).run(SETTLES_S)
    _check_fits(job)
    _check(all(after > before for _, before, after in job.rescales), job, "it looks idle while it works")


def uneven_splits(seed: int) -> None:
    """Three subtasks are no faster than two on four splits; four are, and it is tried."""
    spec = msgspec.structs.replace(SPEC, parallelism=2)
    job = LoadedJob(seed, lambda _: 960, Costs(splits=4), noise=0.02, spec=spec).run(SETTLES_S)
    _check_fits(job)
    _check(4 <= job.parallelism <= 5, job, "it should run at 4")


def shared_slots(seed: int) -> None:
    """Of three vertices in a slot each works little, and together they are what it can do: no lower parallelism fits."""
    costs = Costs(read_s=0.0008, window_s=0.001, last_s=0.01)
    job = LoadedJob(seed, lambda _: 600, costs, noise=0.05).run(SETTLES_S)
    _check_fits(job)
    before = len(job.rescales)
    job.run(200 * MINUTE_S)
    _check_fits(job)
    _check(len(job.rescales) - before <= 1, job, "it flaps")


def hot_key(seed: int) -> None:
    """A higher parallelism that does not help is noticed, and not tried again, also when the load has been low since."""
    costs = Costs(hottest=0.5)

    def written(at_s: float) -> float:
        return 300.0 if 60 * MINUTE_S < at_s < 140 * MINUTE_S else MANY

    _check_ineffective(LoadedJob(seed, written, costs, noise=0.05), tries=3)


def costlier_rows(seed: int) -> None:
    """A rescale that has helped is not blamed for what rows cost later."""
    job = LoadedJob(seed, lambda _: 470, noise=0.02).run(PHASE_S)
    _check([after for _, _, after in job.rescales] == [2], job, "it should run at 2")
    job.costs = Costs(read_s=0.0012, window_s=0.006)
    job.run(job.at_s + SETTLES_S)
    _check_fits(job)
    _check("IneffectiveScaling" not in [reason for _, reason, _ in job.decided], job, "it has helped")


def fixed_vertex(seed: int) -> None:
    """What is too slow has a parallelism of its own: that of the others does not grow with the lag."""
    job = LoadedJob(seed, lambda _: MANY, Costs(fixed_s=0.01), noise=0.05)
    _check_ineffective(job, tries=3)
    assert job.status.autoscaler is not None
    _check("'last' is busier" in job.status.autoscaler.reason, job, "nobody says what is too slow")


def _check_ineffective(job: LoadedJob, tries: int) -> None:
    job.run(50 * MINUTE_S)
    _check("IneffectiveScaling" in [reason for _, reason, _ in job.decided], job, "nobody has noticed")
    highest = max(after for _, _, after in job.rescales)
    _check(sum(after > before for _, before, after in job.rescales) <= tries, job, "it is tried again")
    tried = max(before for _, before, after in job.rescales if after == highest)
    before = len(job.rescales)
    job.run(200 * MINUTE_S)
    later = [after for _, before_, after in job.rescales[before:] if after > before_]
    _check(all(after <= tried for after in later), job, "it is tried again later")


def short_peaks(seed: int) -> None:
    """A peak that is shorter than the window is worked off, and a short dip is no reason to scale down."""

    def written(at_s: float) -> float:
        into = at_s % (15 * MINUTE_S)
        return 1_200 if into < 20 else 200 if 6 * MINUTE_S < into < 11 * MINUTE_S else 550

    job = LoadedJob(seed, written, noise=0.05, spec=msgspec.structs.replace(SPEC, parallelism=2)).run(90 * MINUTE_S)
    _check(not job.rescales, job, "it is rescaled")


def unmeasured(seed: int) -> None:
    """Without measurements, or with holes in them, nothing is decided."""
    job = LoadedJob(seed, lambda _: MANY, missing=1.0).run(20 * MINUTE_S)
    _check(not job.rescales, job, "it is rescaled without any measurement")
    assert job.status.autoscaler is not None
    _check(job.status.autoscaler.state == "Collecting", job, "nobody says that measurements are missing")
    holes = LoadedJob(seed, lambda _: MANY)
    while holes.at_s < 20 * MINUTE_S:
        holes.missing = 1.0 if holes.at_s % 120 < 60 else 0.0
        holes.run(holes.at_s + 10)
    _check(not holes.rescales, holes, "it is rescaled upon measurements with holes")


def somebody_says_otherwise(seed: int) -> None:
    """Another `parallelism` counts at once, and is measured before another is chosen; without autoscaler it stays."""
    job = LoadedJob(seed, lambda _: MANY, noise=0.05).run(PHASE_S)
    _check_fits(job)
    job.change(parallelism=2)
    said_s = job.at_s
    job.run(said_s + MEASURED_S)
    _check(job.parallelism == 2, job, "it does not run at what somebody has said")
    job.run(said_s + SETTLES_S)
    _check_fits(job)
    chosen = job.parallelism
    job.change(parallelism=chosen)
    said_s, before = job.at_s, len(job.rescales)
    job.written = lambda _: 4 * MANY
    job.run(said_s + MEASURED_S - MINUTE_S - 20)
    _check(len(job.rescales) == before, job, "what was said, and ran already, is not measured anew")
    job.change(autoscaler=None)
    job.run(job.at_s + PHASE_S)
    _check(job.parallelism == chosen and job.status.autoscaler is None, job, "there is no autoscaler any more")


def dry_run(seed: int) -> None:
    """It says what it would do, and does nothing."""
    job = LoadedJob(seed, lambda _: FEW, noise=0.05, spec=_spec(dry_run=True)).run(PHASE_S)
    status = job.status.autoscaler
    assert status is not None
    _check(not job.rescales, job, "it is rescaled in a dry run")
    _check(status.recommended_parallelism >= 2 and status.state == "ScaleUp", job, "nothing is recommended")
    _check("Recommended" in [reason for _, reason, _ in job.decided], job, "nobody is told")


def limits(seed: int) -> None:
    """No parallelism is beyond the limits, the key groups and the slots that there are."""
    for most, spec, slots in ((3, _spec(max_parallelism=3), None), (4, SPEC, 4)):
        job = LoadedJob(seed, lambda _: 3 * MANY, noise=0.05, spec=spec, slots=slots).run(PHASE_S)
        _check(job.parallelism == most, job, f"it should run at {most}")
        assert job.status.autoscaler is not None
        _check(job.status.autoscaler.state == "Limited", job, "nobody says that it is limited")
    least = msgspec.structs.replace(_spec(min_parallelism=2), parallelism=4)
    job = LoadedJob(seed, lambda _: 50.0, spec=least).run(PHASE_S)
    _check(job.parallelism == 2, job, "it should run at 2")


def refused(seed: int) -> None:
    """A job that cannot be rescaled runs on, and is asked once per window."""
    job = LoadedJob(seed, lambda _: MANY, refuses="it has no form that can be rescaled").run(PHASE_S)
    _check(job.parallelism == 1 and not job.status.problem, job, "a refusal is no trouble of the job")
    asked = len(job.asked)
    _check(1 < asked <= PHASE_S / MEASURED_S * 1.5, job, f"{asked} requests")


HISTORIES: dict[str, Callable[[int], None]] = {
    history.__name__: history
    for history in (
        doubles_and_halves, steady, hot_key, fixed_vertex, short_peaks, unmeasured, somebody_says_otherwise, dry_run,
        limits, refused, within_the_band, backlog, jump, long_batches, uneven_splits,
        shared_slots, costlier_rows,
    )
}  # fmt: skip
