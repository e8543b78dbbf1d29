"""Single decisions; what follows from many of them is in `tests/simulation/lifecycle`."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from penstock_operator.decision import decide, problems_of
from penstock_operator.definitions import KINDS, definition
from penstock_operator.describing import MEASURED_US
from penstock_operator.resources import (
    Autoscaler,
    AutoscalerStatus,
    JobSpec,
    JobStatus,
    PeriodicSavepoints,
    Source,
    Stable,
    StartPoint,
)
from penstock_operator.terms import Answered, Ask, JobSeen, Observed, Submit

SPEC = JobSpec(cluster="demo", source=Source(file="orders.py"))
LEFT = StartPoint(manifest="jobs/1/5", checkpoint=5, savepoint=False)


def status_of() -> JobStatus:
    """Of a job that runs since long."""
    starting = decide(SPEC, JobStatus(), Observed(), 0, uid="u", generation=1).status.starting
    assert starting is not None
    return JobStatus(deployed=msgspec.structs.replace(starting, stable=True), nonce=0, counter=1, job_state="RUNNING")


@pytest.mark.parametrize("state", ["FINISHED", "FAILED"])
def test_a_job_that_has_ended_and_was_forgotten_has_ended(state: str) -> None:
    """It is neither run again nor taken for lost: the cluster keeps a number of ended jobs."""
    left = LEFT if state == "FAILED" else None
    seen = Observed(job=JobSeen(state, last_checkpoint=5, left=left, reason="why"))
    first = decide(SPEC, status_of(), seen, 1, uid="u", generation=1)
    assert not first.actions
    again = decide(SPEC, first.status, Observed(), 2, uid="u", generation=1)
    assert (again.status, again.actions) == (first.status, ())


def test_what_a_failed_job_has_left_needs_a_word_where_only_savepoints_are_wanted() -> None:
    """`upgradeMode: savepoint` does not fall back by itself; `last-checkpoint` does."""
    seen = Observed(job=JobSeen("FAILED", last_checkpoint=5, left=LEFT))
    for mode, starts in (("savepoint", False), ("last-checkpoint", True)):
        spec = msgspec.structs.replace(SPEC, parameters={"day": "2"}, upgrade_mode=mode)
        decision = decide(spec, status_of(), seen, 1, uid="u", generation=2)
        submitted = [action.deployed.start for action in decision.actions if isinstance(action, Submit)]
        assert submitted == ([LEFT] if starts else [])
        assert decision.status.problem_reason == ("JobFailed" if starts else "StateUnknown")


def test_going_back_to_the_version_that_was_rolled_back_to_ends_the_trouble() -> None:
    """The job that runs is that of the spec again: it goes on, and nothing is wrong any more."""
    seen = Observed(job=JobSeen("RUNNING", all_running=True, last_checkpoint=5))
    runs = decide(SPEC, status_of(), seen, 1, uid="u", generation=1).status
    assert runs.deployed is not None
    stable = Stable(version=runs.deployed.version, parallelism=1)
    broken = msgspec.structs.replace(SPEC, parameters={"day": "0"})
    attempt = decide(broken, JobStatus(), Observed(), 0, uid="u", generation=2).status.starting
    assert attempt is not None
    rolled_back = msgspec.structs.replace(
        runs, last_stable=stable, failed=(attempt.attempt,), problem="raised", problem_reason="StartFailed"
    )
    still = decide(broken, rolled_back, seen, 2, uid="u", generation=2)
    assert (still.actions, still.status.failed, still.status.problem_reason) == ((), rolled_back.failed, "StartFailed")
    back = decide(SPEC, rolled_back, seen, 3, uid="u", generation=3)
    assert (back.actions, back.status.failed, back.status.problem_reason) == ((), (), "")
    assert back.status.job == rolled_back.job


def test_a_stop_that_takes_too_long_may_be_given_up() -> None:
    """The job of a deleted resource never gets as far as a savepoint: `onDelete: cancel` lets it go."""
    seen = Observed(job=JobSeen("RESTARTING", last_checkpoint=5), answer=Answered("pending"))
    first = decide(SPEC, status_of(), seen, 1, uid="u", generation=1, deleting=True)
    assert [(one.kind, one.job) for one in first.actions if isinstance(one, Ask)] == [("stop", first.status.job)]
    patient = decide(SPEC, first.status, seen, 10**12, uid="u", generation=1, deleting=True)
    assert (patient.actions, patient.released) == ((), False)
    spec = msgspec.structs.replace(SPEC, on_delete="cancel")
    second = decide(spec, patient.status, seen, 10**12, uid="u", generation=2, deleting=True)
    assert [(one.kind, one.job) for one in second.actions if isinstance(one, Ask)] == [("cancel", first.status.job)]


def test_a_job_that_restarts_says_why() -> None:
    """In both conditions, and once as an event; its end is not decided by that."""
    ready = Observed(job=JobSeen("RUNNING", all_running=True, last_checkpoint=5))
    seen = Observed(job=JobSeen("RESTARTING", last_checkpoint=5, reason="there is no topic 'orders'"))
    runs = decide(SPEC, status_of(), ready, 1, uid="u", generation=1)
    first = decide(SPEC, runs.status, seen, 2, uid="u", generation=1)
    said = {one.type: (one.status, one.reason, one.message) for one in first.status.conditions}
    assert said["Degraded"] == ("True", "Restarting", "there is no topic 'orders'")
    assert said["Ready"] == ("False", "Restarting", "there is no topic 'orders'")
    assert [(one.reason, one.warning) for one in first.events] == [("Restarting", True)]
    again = decide(SPEC, first.status, seen, 3, uid="u", generation=1)
    assert (again.status, again.actions, again.events) == (first.status, (), ())
    well = decide(SPEC, first.status, ready, 4, uid="u", generation=1)
    assert [one.status for one in well.status.conditions] == ["True", "False", "False"]


def test_what_the_autoscaler_has_chosen_goes_from_job_to_job() -> None:
    """To another version, and to the one that is run in its place; not where somebody has said another parallelism."""
    spec = msgspec.structs.replace(SPEC, autoscaler=Autoscaler(max_parallelism=8), parameters={"day": "2"})
    before = status_of()
    assert before.deployed is not None
    stable = Stable(version=before.deployed.version, parallelism=1)
    scaled = AutoscalerStatus(parallelism=6, instead_of=1)
    status = msgspec.structs.replace(before, deployed=None, keeps=LEFT, autoscaler=scaled, last_stable=stable)

    def started(spec: JobSpec, status: JobStatus) -> tuple[bool, int, int]:
        (action,) = decide(spec, status, Observed(), 1, uid="u", generation=2).actions
        assert isinstance(action, Submit)
        return action.deployed.version == stable.version, action.deployed.parallelism, action.deployed.autoscaled

    assert started(spec, status) == (False, 1, 6)
    attempt = decide(spec, status, Observed(), 1, uid="u", generation=2).status.starting
    assert attempt is not None
    assert started(spec, msgspec.structs.replace(status, failed=(attempt.attempt,))) == (True, 1, 6)
    assert started(msgspec.structs.replace(spec, parallelism=2), status) == (False, 2, 0)
    fewer = msgspec.structs.replace(spec, autoscaler=Autoscaler(max_parallelism=4))
    assert started(fewer, status) == (False, 1, 4), "limits of today count"
    assert started(msgspec.structs.replace(spec, autoscaler=None), status) == (False, 1, 0)


def test_a_rescale_that_waits_for_slots_is_withdrawn() -> None:
    """When somebody says what the job has, and, if it was the autoscaler's, when slots do not come in time."""
    scaled = AutoscalerStatus(parallelism=6, instead_of=1)
    waits = Observed(job=JobSeen("RUNNING", 1, all_running=True, last_checkpoint=5), answer=Answered("pending"))
    wide = msgspec.structs.replace(SPEC, parallelism=4)
    said = decide(wide, status_of(), waits, 1, uid="u", generation=2).status
    assert decide(wide, said, waits, 10**12, uid="u", generation=2).status.step == said.step, "people have time"
    (back,) = decide(SPEC, said, waits, 2, uid="u", generation=3).actions
    assert isinstance(back, Ask)
    assert (back.kind, back.parallelism) == ("rescale", 1)

    spec = msgspec.structs.replace(SPEC, autoscaler=Autoscaler(max_parallelism=8))
    status = msgspec.structs.replace(status_of(), autoscaler=scaled)
    asked = decide(spec, status, waits, 1, uid="u", generation=1).status
    assert asked.step is not None
    assert (asked.step.why, asked.step.parallelism) == ("autoscaler", 6)
    assert decide(spec, asked, waits, 300 * 10**6, uid="u", generation=1).status.step == asked.step
    busy = replace(waits, job=JobSeen("RUNNING", 1, all_running=True, last_checkpoint=5, is_ending=True))
    assert decide(spec, asked, busy, 10**12, uid="u", generation=1).status.step == asked.step
    late = decide(spec, asked, waits, 10**12, uid="u", generation=1)
    assert [(one.kind, one.parallelism) for one in late.actions if isinstance(one, Ask)] == [("rescale", 1)]
    assert [event.reason for event in late.events] == ["RescaleRefused"]
    done = replace(waits, answer=Answered("completed"))
    stays = decide(spec, late.status, done, 10**12 + 1, uid="u", generation=1)
    assert (stays.status.step, stays.actions) == (None, ())
    assert stays.status.autoscaler is not None
    assert (stays.status.autoscaler.parallelism, stays.status.problem) == (1, "")


def test_nothing_is_done_for_a_cluster_that_is_not_seen() -> None:
    """But a resource whose cluster is gone may go."""
    unseen = Observed(problem="no answer")
    assert not decide(SPEC, status_of(), unseen, 1, uid="u", generation=1, deleting=True).released
    gone = Observed(problem="no such cluster", cluster_missing=True)
    decision = decide(SPEC, status_of(), gone, 1, uid="u", generation=1, deleting=True)
    assert decision.released
    assert decision.events[0].warning


def test_numbers_that_change_all_the_time_are_written_twice_a_minute() -> None:
    """Those of another job at once."""
    seen = [
        Observed(
            job=JobSeen("RUNNING", 1, all_running=True, last_checkpoint=n, checkpointed_us=n * 10**6, behind=7 * n)
        )
        for n in range(4)
    ]
    status = decide(SPEC, status_of(), seen[1], 10**9, uid="u", generation=1).status
    assert (status.records_behind, status.last_checkpoint, status.last_checkpoint_time) == (
        7,
        1,
        "1970-01-01T00:00:01Z",
    )
    assert decide(SPEC, status, seen[2], 10**9 + MEASURED_US - 1, uid="u", generation=1).status == status
    later = decide(SPEC, status, seen[3], 10**9 + MEASURED_US, uid="u", generation=1).status
    assert (later.records_behind, later.last_checkpoint) == (21, 3)
    ended = Observed(job=JobSeen("STOPPED", 1, last_checkpoint=4, checkpointed_us=10**6, behind=1, left=LEFT))
    renewed = msgspec.structs.replace(SPEC, parameters={"day": "2"})
    stopping = decide(renewed, later, seen[3], 10**9 + MEASURED_US, uid="u", generation=2).status
    another = decide(renewed, stopping, ended, 10**9 + MEASURED_US, uid="u", generation=2).status
    assert (another.job != status.job, another.records_behind, another.last_checkpoint_time) == (True, None, "")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"stable_within": "5"}, "stableWithin"),
        ({"checkpoint_interval": "10m"}, "stableWithin (5m) must be longer than checkpointInterval (10m)"),
        ({"restart": "never"}, "there is no strategy 'never'"),
        ({"savepoints": PeriodicSavepoints(every="often")}, "savepoints.every"),
        ({"autoscaler": Autoscaler(max_parallelism=4, metrics_window="long")}, "autoscaler.metricsWindow"),
        ({"autoscaler": Autoscaler(max_parallelism=4, min_parallelism=2)}, "parallelism (1) must lie between"),
        (
            {"autoscaler": Autoscaler(max_parallelism=4, utilization_max=0.7)},
            "utilizationTarget (0.7) and utilizationMax",
        ),
    ],
)
def test_what_no_schema_checks_is_named(changes: dict[str, object], problem: str) -> None:
    """In words of the resource."""
    assert problem in problems_of(msgspec.structs.replace(SPEC, **changes))


def test_definitions_are_structural() -> None:
    """Every node has a type, and what is required is there, as Kubernetes wants it."""

    def check(schema: dict[str, object], where: str) -> None:
        assert "type" in schema, where
        properties = schema.get("properties", {})
        assert isinstance(properties, dict)
        assert set(schema.get("required", ())) <= properties.keys(), where  # type: ignore[call-overload]
        for name, inner in properties.items():
            check(inner, f"{where}.{name}")
        for key in ("items", "additionalProperties"):
            if key in schema:
                check(schema[key], f"{where}[]")  # type: ignore[arg-type]

    for kind in KINDS:
        check(definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"], kind.name)
