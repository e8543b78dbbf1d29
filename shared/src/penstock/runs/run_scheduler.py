"""Decides what becomes of runs: which begins, which is taken up again, which ends and how. No I/O, no clock.

Runs are repeatable by their id (see `penstock.spark.committing`): an attempt whose process is gone may be followed by
another one, which computes again, or only carries commits to the end where the run was decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.protocol.restarts import RestartDecider, restart_decider
from penstock.runs.run_log import AttemptBegan, EndState, RunHistory, RunOutcome

MAX_ATTEMPTS: Final = 3
GRACE_MS: Final = 15_000
"""How long a process may take to end after SIGTERM."""
STEP_GRACE_MS: Final = 300_000
"""How long the step at work of a job in steps may take to end; what is killed then is repeated by the next attempt."""
LEAVE_MS: Final = 30_000
"""How long a process may live on after it has said how the run ended."""


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run that has not ended."""

    history: RunHistory
    alive: bool = False
    """Whether the process of the attempt at work is there."""
    outcome: RunOutcome | None = None
    """What that process left."""
    decided: bool = False
    """Whether the manifest of the run exists: from then on all its results become visible, and none is computed again."""
    last_lines: str = ""
    """Of what the process printed."""
    step: int = 0
    """The newest step that the attempt has done, of a job in steps."""
    stands: str = ""
    """Where a job in steps is that no process carries out now, with its newest savepoint; empty if that is not known."""

    @property
    def run(self) -> str:
        """Its id."""
        return self.history.submitted.run

    @property
    def in_steps(self) -> bool:
        """Whether it goes on for ever, step by step."""
        return self.history.submitted.options.in_steps


@dataclass(frozen=True)
class BeginAttempt:
    """Write the record, then start the process."""

    run: str
    attempt: int


@dataclass(frozen=True)
class LoseAttempt:
    """Let the run wait for another attempt."""

    run: str
    attempt: int
    reason: str


@dataclass(frozen=True)
class EndRun:
    """Write the end."""

    run: str
    state: EndState
    reason: str = ""
    outcome: RunOutcome | None = None


@dataclass(frozen=True)
class StopProcess:
    """Send a signal to the processes of the attempt at work: SIGTERM, or `forced` SIGKILL."""

    run: str
    forced: bool


_AGAIN: Final = "submitted again by its id it goes on with the step at which it was"

_STEPS_ELSEWHERE: Final = (
    "its steps lie in a work folder that this pipeline service does not have: begun here it would do everything again; "
    "submit it as a new run with --from-savepoint of its last step"
)

RunCommand = BeginAttempt | LoseAttempt | EndRun | StopProcess


class RunDecider:
    """The decisions of one pipeline service."""

    def __init__(self, place: str, concurrent: int) -> None:
        """`place` is the id of the service's work folder; `concurrent` how many runs are at work at a time."""
        self._place = place
        self._concurrent = concurrent
        self._stopped_ms: dict[str, int] = {}
        """When a process was first told to end."""
        self._left_ms: dict[str, int] = {}
        """When a living process was first seen to have left its outcome."""
        self._restarts: dict[str, tuple[int, RestartDecider]] = {}
        """Of jobs in steps that lost an attempt: the newest step by then, and what decides about the next attempts."""
        self._next_ms: dict[str, int] = {}
        """Not before then the next attempt begins."""

    def decide(self, runs: Sequence[RunFacts], now_ms: int) -> list[RunCommand]:
        """What is to be done now. `now_ms` is monotonic."""
        known = {facts.run for facts in runs if facts.history.attempt is not None}
        for remembered in (self._stopped_ms, self._left_ms):
            for run in remembered.keys() - known:
                del remembered[run]
        there = {facts.run for facts in runs}
        for remembered in (self._restarts, self._next_ms):
            for run in remembered.keys() - there:
                del remembered[run]
        commands: list[RunCommand] = []
        for facts in runs:
            attempt = facts.history.attempt
            if attempt is not None:
                commands += self._watch(facts, attempt, now_ms)
        return [*commands, *self._begin(runs, now_ms)]

    # -- waiting --------------------------------------------------------------------------------------------------------

    def _begin(self, runs: Sequence[RunFacts], now_ms: int) -> Iterator[RunCommand]:
        """Runs begin in the order in which they were submitted, of one pipeline one at a time."""
        working = [facts for facts in runs if facts.history.attempt is not None]
        names = {facts.history.submitted.name for facts in working}
        yield from self._begin_steps(runs, names, now_ms)
        free = self._concurrent - sum(not facts.in_steps for facts in working)
        for facts in queue_of(runs):
            name = facts.history.submitted.name
            if facts.history.cancel_asked and not facts.decided:
                yield EndRun(facts.run, "CANCELED", "asked by a client before it began")
            elif endless := _endless(_before(facts, runs)):
                yield EndRun(facts.run, "FAILED", _never_its_turn(endless))
            elif free > 0 and name not in names:
                free -= 1
                names.add(name)
                yield BeginAttempt(facts.run, _began(facts.history) + 1)

    def _begin_steps(self, runs: Sequence[RunFacts], names: set[str], now_ms: int) -> Iterator[RunCommand]:
        """Jobs in steps have no place among the runs, which they would have for ever; those of their own pipeline that
        were there before go first. Adds their `names`."""
        for facts in runs:
            if not facts.in_steps or facts.history.state != "QUEUED":
                continue
            name = facts.history.submitted.name
            if facts.history.cancel_asked:
                reason = f"asked by a client before an attempt began; {facts.stands or _AGAIN}"
                yield EndRun(facts.run, "CANCELED", reason)
            elif _newest_place(facts.history) not in (None, self._place):
                yield EndRun(facts.run, "FAILED", _STEPS_ELSEWHERE)
            elif endless := _endless(before := _before(facts, runs)):
                yield EndRun(facts.run, "FAILED", _never_its_turn(endless))
            elif not before and name not in names and now_ms >= self._next_ms.get(facts.run, now_ms):
                names.add(name)
                yield BeginAttempt(facts.run, _began(facts.history) + 1)

    # -- at work --------------------------------------------------------------------------------------------------------

    def _watch(self, facts: RunFacts, attempt: AttemptBegan, now_ms: int) -> Iterator[RunCommand]:
        if attempt.place != self._place:
            yield EndRun(facts.run, "FAILED", _elsewhere(attempt))
        elif facts.alive:
            yield from self._watch_living(facts, now_ms)
        else:
            yield self._judge_steps(facts, attempt, now_ms) if facts.in_steps else self._judge(facts, attempt)

    def _watch_living(self, facts: RunFacts, now_ms: int) -> Iterator[RunCommand]:
        # What is decided becomes visible: to kill the process that is about to do that would only delay it.
        stops = facts.history.cancel_asked and not facts.decided
        if facts.outcome is not None:
            stops = now_ms - self._left_ms.setdefault(facts.run, now_ms) >= LEAVE_MS
        if not stops:
            return
        grace_ms = STEP_GRACE_MS if facts.in_steps and facts.outcome is None else GRACE_MS
        if facts.run not in self._stopped_ms:
            self._stopped_ms[facts.run] = now_ms
            yield StopProcess(facts.run, forced=False)
        elif now_ms - self._stopped_ms[facts.run] >= grace_ms:
            yield StopProcess(facts.run, forced=True)

    def _judge_steps(self, facts: RunFacts, attempt: AttemptBegan, now_ms: int) -> RunCommand:
        """The process of a job in steps is gone. What failed in it was repeated there: it has ended with the cause."""
        outcome = facts.outcome
        if facts.history.cancel_asked:
            said = outcome.reason if outcome is not None else f"killed; {facts.stands or _AGAIN}"
            return EndRun(facts.run, "CANCELED", said, outcome)
        if outcome is not None and outcome.state == "FAILED":
            return EndRun(facts.run, "FAILED", outcome.reason, outcome)
        reason = "a signal told its process to end" if outcome is not None else _silent(facts)
        delay_ms = self._delay_ms(facts, now_ms)
        if delay_ms is None:
            said = f"given up by its restart strategy: {reason}; {facts.stands or _AGAIN}"
            return EndRun(facts.run, "FAILED", said, outcome)
        self._next_ms[facts.run] = now_ms + delay_ms
        return LoseAttempt(facts.run, attempt.attempt, reason)

    def _delay_ms(self, facts: RunFacts, now_ms: int) -> int | None:
        """How long the next attempt waits; None: there is none. A step that is done makes the strategy start anew."""
        step, decider = self._restarts.get(facts.run, (-1, None))
        if decider is None or facts.step > step:
            decider = restart_decider(facts.history.submitted.options.restart)
        self._restarts[facts.run] = (max(step, facts.step), decider)
        return decider.delay_ms(now_ms)

    def _judge(self, facts: RunFacts, attempt: AttemptBegan) -> RunCommand:
        """The process is gone: what does that mean?"""
        history, outcome = facts.history, facts.outcome
        if outcome is not None and outcome.state == "FINISHED":
            late = "the cancellation came when its results were decided already" if history.cancel_asked else ""
            return EndRun(facts.run, "FINISHED", late, outcome)
        if history.cancel_asked and not facts.decided:
            return EndRun(facts.run, "CANCELED", "asked by a client; nothing of it is visible")
        if outcome is not None and not facts.decided:
            return EndRun(facts.run, "FAILED", outcome.reason, outcome)
        reason = outcome.reason if outcome is not None else _silent(facts)
        if len(history.attempts) < MAX_ATTEMPTS:
            return LoseAttempt(facts.run, attempt.attempt, reason)
        if facts.decided:
            reason = (
                f"its results are decided, but {MAX_ATTEMPTS} attempts could not make all of them visible; submitted "
                f"again with --run-id {facts.run} it is only carried to its end. The last one: {reason}"
            )
        else:
            reason = f"given up after {MAX_ATTEMPTS} attempts; nothing of it is visible. The last one: {reason}"
        return EndRun(facts.run, "FAILED", reason, outcome)


def queue_of(runs: Sequence[RunFacts]) -> list[RunFacts]:
    """The waiting runs, in the order in which they begin. Jobs in steps stand in no line."""
    waiting = [facts for facts in runs if facts.history.state == "QUEUED" and not facts.in_steps]
    return sorted(waiting, key=lambda facts: (facts.history.submitted.at_us, facts.run))


def places_in_line(runs: Sequence[RunFacts]) -> dict[str, int]:
    """The place in its line of each run that waits, from 1. A job in steps waits for the runs of its pipeline
    that go first, or for nobody: then it has no place."""
    places = {facts.run: place for place, facts in enumerate(queue_of(runs), 1)}
    for facts in runs:
        if facts.in_steps and facts.history.state == "QUEUED" and (before := _before(facts, runs)):
            places[facts.run] = 1 + sum(other.history.state == "QUEUED" for other in before)
    return places


def _before(facts: RunFacts, runs: Sequence[RunFacts]) -> list[RunFacts]:
    """The runs of the same pipeline whose turn comes first."""
    name = facts.history.submitted.name
    return [other for other in runs if other.history.submitted.name == name and _turn(other) < _turn(facts)]


def _turn(facts: RunFacts) -> tuple[bool, int, str]:
    """Where a run stands among those of its pipeline: what has begun may be half done, so nothing comes before it."""
    return not facts.history.attempts, facts.history.submitted.at_us, facts.run


def _endless(runs: Sequence[RunFacts]) -> RunFacts | None:
    """A job in steps among these that nobody has told to end."""
    return next((facts for facts in runs if facts.in_steps and not facts.history.cancel_asked), None)


def _never_its_turn(endless: RunFacts) -> str:
    return (
        f"{endless.history.submitted.name} goes on for ever as {endless.run}, in steps, and of one pipeline one run is "
        f"at work at a time; end that first: penstock cancel {endless.run}"
    )


def _began(history: RunHistory) -> int:
    return sum(isinstance(record, AttemptBegan) for record in history.records)


def _newest_place(history: RunHistory) -> str | None:
    """The work folder of the newest attempt, also of those before it was submitted again."""
    places = [record.place for record in history.records if isinstance(record, AttemptBegan)]
    return places[-1] if places else None


def _silent(facts: RunFacts) -> str:
    printed = f"; it printed last: {facts.last_lines}" if facts.last_lines else ""
    return f"its process ended without a word (killed, or Spark did not start){printed}"


def _elsewhere(attempt: AttemptBegan) -> str:
    return (
        f"attempt {attempt.attempt} began on {attempt.host}, in a work folder that this pipeline service does not have; "
        "whether it goes on and what it decided cannot be told from here. Nothing was begun again, because that could "
        "double its rows: look there whether its results are visible, and submit it as a new run if not"
    )
