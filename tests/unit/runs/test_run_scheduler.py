"""What a pipeline service decides about its runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_records import PLACE, began, submitted

from penstock.protocol.restarts import FixedDelay
from penstock.runs.run_log import AttemptBegan, AttemptLost, CancelAsked, RunEnded, RunOutcome, history_of
from penstock.runs.run_scheduler import (
    GRACE_MS,
    LEAVE_MS,
    MAX_ATTEMPTS,
    STEP_GRACE_MS,
    BeginAttempt,
    EndRun,
    LoseAttempt,
    RunCommand,
    RunDecider,
    RunFacts,
    StopProcess,
    places_in_line,
    queue_of,
)

CANCEL = CancelAsked(request="r2")
TWICE = FixedDelay(attempts=2, delay_ms=50)
DONE = RunOutcome("FINISHED")
BROKEN = RunOutcome("FAILED", "division by zero", "  File ...")


def facts(*records: Any, **seen: Any) -> RunFacts:
    return RunFacts(history_of(records), **seen)


def decide(*runs: RunFacts, concurrent: int = 1) -> list[RunCommand]:
    return RunDecider(PLACE, concurrent).decide(runs, 0)


def lost(times: int) -> list[Any]:
    """So many attempts are over without an end; another one is at work."""
    records: list[Any] = [submitted()]
    for attempt in range(1, times + 1):
        records += [began(attempt), AttemptLost(attempt=attempt, reason="killed")]
    return [*records, began(times + 1)]


def test_runs_begin_in_order_a_bounded_number_at_a_time() -> None:
    """First come, first served; of one pipeline one run, so that the next in line goes first."""
    one, two = facts(submitted("one", at_us=2)), facts(submitted("two", at_us=1))
    other = facts(submitted("other", name="ships", at_us=3))
    runs = [one, two, other]
    assert [waiting.run for waiting in queue_of(runs)] == ["two", "one", "other"]
    assert decide(*runs) == [BeginAttempt("two", 1)]
    assert decide(*runs, concurrent=2) == [BeginAttempt("two", 1), BeginAttempt("other", 1)]
    busy = facts(submitted("busy"), began(), alive=True)
    assert decide(busy, *runs) == []
    assert decide(busy, *runs, concurrent=3) == [BeginAttempt("other", 1)]


def test_a_living_process_is_left_alone() -> None:
    """Also after a restart of the service: what was begun in its work folder is its own."""
    assert decide(facts(submitted(), began(), alive=True)) == []


@pytest.mark.parametrize(
    ("records", "seen", "state", "said"),
    [
        ([submitted(), began()], {"outcome": DONE}, "FINISHED", ""),
        ([submitted(), began()], {"outcome": BROKEN}, "FAILED", "division by zero"),
        ([submitted(), began(), CANCEL], {"outcome": DONE, "decided": True}, "FINISHED", "decided already"),
        ([submitted(), began(), CANCEL], {"outcome": BROKEN}, "CANCELED", "nothing of it is visible"),
        ([submitted(), began(), CANCEL], {}, "CANCELED", "nothing of it is visible"),
        ([submitted(), CANCEL], {}, "CANCELED", "before it began"),
        ([submitted(), began(place="there")], {}, "FAILED", "began on one, in a work folder that"),
        (lost(2), {"last_lines": "Killed"}, "FAILED", "given up after 3 attempts"),
        (lost(2), {"decided": True}, "FAILED", "submitted again with --run-id nightly"),
    ],
)
def test_how_a_run_ends(records: list[Any], seen: dict[str, Any], state: str, said: str) -> None:
    """What is decided becomes visible, what is not is not: the end says which."""
    [command] = decide(facts(*records, **seen))
    assert isinstance(command, EndRun)
    assert command.state == state
    assert said in command.reason
    assert command.outcome == seen.get("outcome") or state == "CANCELED"


@pytest.mark.parametrize(
    "seen",
    [{"last_lines": "Killed"}, {"decided": True}, {"decided": True, "outcome": BROKEN}],
)
def test_a_lost_attempt_is_followed_by_another(seen: dict[str, Any]) -> None:
    """A process that is gone without a word, and one that failed between decision and visibility."""
    [command] = decide(facts(*lost(1), **seen))
    assert isinstance(command, LoseAttempt)
    assert command.attempt == 2
    assert "killed" in command.reason or command.reason == "division by zero"


def test_a_cancelled_run_that_is_decided_is_carried_to_its_end() -> None:
    """Its process is not killed; if it died anyway, another attempt makes the rest visible."""
    assert decide(facts(submitted(), began(), CANCEL, alive=True, decided=True)) == []
    gone = facts(submitted(), began(), CANCEL, decided=True)
    assert isinstance(decide(gone)[0], LoseAttempt)
    waiting = facts(*gone.history.records, AttemptLost(attempt=1, reason="killed"), decided=True)
    assert decide(waiting) == [BeginAttempt("nightly", 2)]


def test_a_cancelled_process_is_asked_to_end_and_then_made_to() -> None:
    """SIGTERM once; SIGKILL when the time for it is over."""
    decider = RunDecider(PLACE, 1)
    runs = [facts(submitted(), began(), CANCEL, alive=True)]
    assert decider.decide(runs, 100) == [StopProcess("nightly", forced=False)]
    assert decider.decide(runs, 99 + GRACE_MS) == []
    assert decider.decide(runs, 100 + GRACE_MS) == [StopProcess("nightly", forced=True)]
    ended = [replace(runs[0], alive=False)]
    assert decider.decide(ended, 101 + GRACE_MS) == [
        EndRun("nightly", "CANCELED", "asked by a client; nothing of it is visible")
    ]


def test_a_process_that_has_said_how_it_ended_is_not_waited_for_for_ever() -> None:
    """A Spark that does not stop must not hold up the others."""
    decider = RunDecider(PLACE, 1)
    runs = [facts(submitted(), began(), alive=True, outcome=DONE)]
    assert decider.decide(runs, 0) == decider.decide(runs, LEAVE_MS - 1) == []
    assert decider.decide(runs, LEAVE_MS) == [StopProcess("nightly", forced=False)]


def test_submitted_again_it_has_all_its_attempts_anew() -> None:
    """Attempts are counted on, but only those since then are held against it."""
    records = [*lost(2), RunEnded(state="FAILED"), submitted(request="r3")]
    assert decide(facts(*records)) == [BeginAttempt("nightly", 4)]
    assert isinstance(decide(facts(*records, began(4)))[0], LoseAttempt)


# -- jobs in steps -------------------------------------------------------------------------------------------------------


def steps(
    *records: Any, run: str = "live", name: str = "live", restart: Any = TWICE, at_us: int = 1, **seen: Any
) -> RunFacts:
    """Of a job in steps."""
    return facts(submitted(run, name=name, every_us=1_000_000, restart=restart, at_us=at_us), *records, **seen)


def test_a_job_in_steps_has_no_place_among_the_runs() -> None:
    """It begins at once and keeps nobody waiting; but of one pipeline one run is at work."""
    busy = facts(submitted("busy"), began(), alive=True)
    assert decide(busy, steps()) == [BeginAttempt("live", 1)]
    assert decide(steps(began(), alive=True), facts(submitted("one"))) == [BeginAttempt("one", 1)]
    assert queue_of([steps()]) == []
    assert decide(busy, steps(name="flights")) == []


def test_runs_of_its_pipeline_that_waited_go_before_a_job_in_steps() -> None:
    """Else they would wait for ever. One that lost an attempt, and may be half visible, goes first whenever it came."""
    waiting = facts(submitted("one", name="live", at_us=1))
    late = steps(at_us=2)
    assert decide(waiting, late) == [BeginAttempt("one", 1)]
    busy = facts(submitted("busy"), began(), alive=True)
    assert decide(busy, waiting, late) == []
    assert places_in_line([busy, waiting, late]) == {"one": 1, "live": 2}
    assert places_in_line([facts(submitted("one", name="live"), began()), late]) == {"live": 1}
    assert places_in_line([busy, late]) == {}, "it is begun again after its delay, behind nobody"
    half = [submitted("half", name="live", at_us=3), began(), AttemptLost(attempt=1, reason="killed")]
    assert decide(late, facts(*half, decided=True)) == [BeginAttempt("half", 2)]
    assert decide(late) == [BeginAttempt("live", 1)]


@pytest.mark.parametrize("endless", [steps(at_us=1), steps(began(), alive=True, at_us=3), steps(began(), at_us=1)])
def test_a_run_that_would_wait_for_ever_is_refused(endless: RunFacts) -> None:
    """Behind a job in steps, which is named, whether that is at work or about to be; another one in steps, too."""
    for waiting in (facts(submitted("one", name="live", at_us=2)), steps(run="more", at_us=2)):
        ends = [command for command in decide(endless, waiting) if isinstance(command, EndRun)]
        assert [(end.run, end.state) for end in ends] == [(waiting.run, "FAILED")]
        assert "live goes on for ever as live, in steps" in ends[0].reason
        assert "penstock cancel live" in ends[0].reason


def test_a_job_in_steps_is_begun_again_as_its_strategy_says() -> None:
    """After its delay; so often without a step that is done in between, not in all."""
    decider = RunDecider(PLACE, 1)
    records: list[Any] = []
    now_ms, step = 0, 0
    for attempt in range(1, 8):
        records.append(began(attempt))
        step += attempt < 6
        commands = decider.decide([steps(*records, step=step, last_lines="Killed")], now_ms)
        if attempt == 7:
            break
        assert isinstance(commands[0], LoseAttempt), commands
        records.append(AttemptLost(attempt=attempt, reason="killed"))
        assert decider.decide([steps(*records)], now_ms + 49) == []
        now_ms += 50
        assert decider.decide([steps(*records)], now_ms) == [BeginAttempt("live", attempt + 1)]
    [command] = commands
    assert isinstance(command, EndRun)
    assert command.state == "FAILED"
    assert "given up by its restart strategy: its process ended without a word" in command.reason
    assert "submitted again by its id it goes on" in command.reason
    [command] = decider.decide([steps(*records, step=step, stands="savepoint of step 5: there")], now_ms)
    assert isinstance(command, EndRun)
    assert command.reason.endswith("without a word (killed, or Spark did not start); savepoint of step 5: there")


@pytest.mark.parametrize(
    ("records", "seen", "state", "said"),
    [
        ([began(), CANCEL], {"outcome": RunOutcome("FINISHED", "ended behind step 4")}, "CANCELED", "behind step 4"),
        ([began(), CANCEL], {"outcome": BROKEN}, "CANCELED", "division by zero"),
        ([began(), CANCEL], {}, "CANCELED", "killed; submitted again"),
        ([began(), CANCEL], {"stands": "savepoint: here"}, "CANCELED", "killed; savepoint: here"),
        ([CANCEL], {}, "CANCELED", "before an attempt began"),
        ([CANCEL], {"stands": "savepoint: here"}, "CANCELED", "before an attempt began; savepoint: here"),
        ([began(), AttemptLost(attempt=1, reason="x"), CANCEL], {}, "CANCELED", "submitted again by its id"),
        ([began()], {"outcome": BROKEN}, "FAILED", "division by zero"),
        ([began(place="there")], {}, "FAILED", "began on one, in a work folder that"),
    ],
)
def test_how_a_job_in_steps_ends(records: list[Any], seen: dict[str, Any], state: str, said: str) -> None:
    """When it is cancelled, or a step has failed for good; the end says where it stands."""
    [command] = decide(steps(*records, **seen))
    assert isinstance(command, EndRun)
    assert command.state == state
    assert said in command.reason


def test_a_job_whose_steps_are_elsewhere_is_not_begun_from_nothing() -> None:
    """Submitted again, or between two attempts: it would write all its rows once more."""
    over = [began(place="there"), AttemptLost(attempt=1, reason="killed")]
    [command] = decide(steps(*over))
    assert isinstance(command, EndRun)
    assert command.state == "FAILED"
    assert "--from-savepoint of its last step" in command.reason
    again = submitted("live", name="live", request="r3", every_us=1_000_000, restart=TWICE)
    [command] = decide(steps(began(place="there"), RunEnded(state="CANCELED"), again))
    assert isinstance(command, EndRun)
    assert decide(steps(began(), RunEnded(state="CANCELED"), again)) == [BeginAttempt("live", 2)]


def test_a_job_in_steps_that_somebody_else_told_to_end_is_begun_again() -> None:
    """Nobody asked the service for its end."""
    [command] = decide(steps(began(), outcome=RunOutcome("FINISHED", "ended behind step 4")))
    assert isinstance(command, LoseAttempt)
    assert "a signal" in command.reason


def test_the_step_at_work_may_end_before_a_job_is_killed() -> None:
    """It is waited for longer than for a run, of which nothing would be kept."""
    decider = RunDecider(PLACE, 1)
    runs = [steps(began(), CANCEL, alive=True)]
    assert decider.decide(runs, 0) == [StopProcess("live", forced=False)]
    assert decider.decide(runs, STEP_GRACE_MS - 1) == []
    assert decider.decide(runs, STEP_GRACE_MS) == [StopProcess("live", forced=True)]


# -- histories -----------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """Runs whose processes do what a test draws, and the service that obeys its decider."""

    runs: dict[str, RunFacts]
    decider: RunDecider
    now_ms: int = 0

    def tick(self) -> None:
        """The service acts once."""
        self.now_ms += 1_000
        open_runs = [run for run in self.runs.values() if run.history.ended is None]
        for command in self.decider.decide(open_runs, self.now_ms):
            self._obey(command)

    def _obey(self, command: RunCommand) -> None:
        known = self.runs[command.run]
        match command:
            case BeginAttempt(attempt=attempt):
                record: Any = AttemptBegan(attempt=attempt, place=PLACE, host="one")
                known = replace(known, alive=True, outcome=None)
            case LoseAttempt(attempt=attempt, reason=reason):
                record = AttemptLost(attempt=attempt, reason=reason)
            case EndRun(state=state):
                assert not known.alive, "ended while its process lives"
                record = RunEnded(state=state)
            case StopProcess(forced=forced):
                self.runs[command.run] = replace(known, alive=known.alive and not forced)
                return
        self.runs[command.run] = replace(known, history=known.history.after(record))


PROCESS = st.sampled_from(["works", "works", "decides", "finishes", "fails", "dies", "ends", "cancelled"])


@given(st.data(), st.integers(1, 3))
def test_whatever_happens_every_run_ends_as_its_results_are(data: st.DataObject, concurrent: int) -> None:
    """FINISHED is said of decided runs only, CANCELED of undecided ones only; never are too many at work; none waits for
    ever, whenever a job in steps of its pipeline came."""
    names = ["flights", "ships", "flights", "trains"]
    runs = {
        f"run-{index}": RunFacts(history_of([submitted(f"run-{index}", name=name, at_us=index)]))
        for index, name in enumerate(names)
    }
    runs["live"] = steps(name="flights", at_us=data.draw(st.integers(0, 3), "came"))
    world = World(runs, RunDecider(PLACE, concurrent))
    for _ in range(data.draw(st.integers(0, 40), "ticks")):
        run = data.draw(st.sampled_from(sorted(runs)), "run")
        event = data.draw(PROCESS, "event")
        if run != "live" or event in ("dies", "ends", "cancelled"):
            _happen(world, run, event)
        world.tick()
        working = [facts for facts in runs.values() if facts.history.attempt is not None]
        assert sum(not facts.in_steps for facts in working) <= concurrent
        assert len({facts.history.submitted.name for facts in working}) == len(working)
        if data.draw(st.booleans(), "the service is started again"):
            world.decider = RunDecider(PLACE, concurrent)
    for _ in range(60 * MAX_ATTEMPTS * len(runs)):
        for name, facts in runs.items():
            if facts.alive:
                _happen(world, name, "dies")
        world.tick()
    for facts in runs.values():
        ended = facts.history.ended
        assert ended is not None
        assert len(facts.history.attempts) <= MAX_ATTEMPTS or facts.in_steps
        assert ended.state != "CANCELED" or not facts.decided
        assert ended.state != "FINISHED" or facts.decided


def _happen(world: World, run: str, event: str) -> None:
    """Something about one run that is no decision of the service."""
    known = world.runs[run]
    if known.history.ended is not None:
        return
    if event == "cancelled" and not known.history.cancel_asked:
        known = replace(known, history=known.history.after(CANCEL))
    elif known.alive and known.outcome is None:
        match event:
            case "decides":
                known = replace(known, decided=True)
            case "finishes":
                known = replace(known, decided=True, outcome=DONE)
            case "fails":
                known = replace(known, outcome=BROKEN)
            case "dies":
                known = replace(known, alive=False)
            case _:
                pass
    if event in ("ends", "dies") and known.outcome is not None:
        known = replace(known, alive=False)
    world.runs[run] = known
