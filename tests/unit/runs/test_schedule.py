"""Which run of a schedule is next."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from run_records import PLACE
from schedule_documents import ZONE, at, definition

from penstock.errors import UsageError
from penstock.protocol.requests import RunOptions
from penstock.runs.periods import filled
from penstock.runs.run_log import AttemptBegan, AttemptLost, CancelAsked, RunEnded, RunHistory, Submitted
from penstock.runs.schedule import (
    REMEMBERED,
    Definition,
    EndPeriod,
    Period,
    Schedule,
    StopSchedule,
    SubmitPeriod,
    Timetable,
    added,
    after_step,
    coming_periods,
    due_period,
    next_step,
    paused,
    periods_behind,
    removed,
    request_of,
    resumed,
    submission_of,
)

HOUR_US = 3_600_000_000
NOW = at("2026-11-04T10:00")
UNKNOWN = RunHistory()


def schedule(name: str = "orders", **changes: Any) -> Schedule:
    return added(None, name, definition(**changes), NOW, replaces=False)


def due(one: Schedule, now_us: int = NOW) -> Period:
    period = due_period(one, now_us)
    assert period is not None
    return period


def asked(one: Schedule, history: RunHistory = UNKNOWN, now_us: int = NOW) -> RunHistory:
    """The log of the run once what is to be asked now is asked."""
    step = next_step(one, due(one, now_us), history, now_us, PLACE)
    assert isinstance(step, SubmitPeriod)
    request = submission_of(one, step, now_us)
    record = Submitted(
        run=request.job, request=request.request, name=request.name, graph=request.graph, artifact=request.artifact,
        options=request.options, at_us=now_us,
    )  # fmt: skip
    return history.after(record)


def ended(history: RunHistory, state: Any, now_us: int = NOW, reason: str = "") -> RunHistory:
    """The log of the run once its attempt has ended so."""
    attempt = sum(isinstance(record, AttemptBegan) for record in history.records) + 1
    history = history.after(AttemptBegan(attempt=attempt, place=PLACE, host="one", at_us=now_us))
    return history.after(RunEnded(state=state, reason=reason, at_us=now_us))


# -- periods ------------------------------------------------------------------------------------------------------------


def test_a_run_is_due_at_the_end_of_its_period() -> None:
    """Its id, its placeholders: of where the period begins, by the clock of the zone."""
    one = schedule(parameters={"day": "{day}", "rest": "{start}/{end} {{kept}}"})
    assert due_period(one, at("2026-11-02T01:59:59")) is None
    assert due(one, at("2026-11-02T02:00")).run == "orders-2026-11-01"
    step = next_step(one, due(one), RunHistory(), NOW, PLACE)
    assert isinstance(step, SubmitPeriod)
    request = submission_of(one, step, NOW)
    assert (request.job, request.name) == ("orders-2026-11-01", "orders")
    assert request.artifact.parameters == {
        "day": "2026-11-01",
        "rest": "2026-11-01T02:00:00+01:00/2026-11-02T02:00:00+01:00 {kept}",
    }


def test_without_a_start_the_first_period_is_the_one_at_the_time_of_adding() -> None:
    """So the next night has a run."""
    one = schedule(start="")
    assert one.next_us == at("2026-11-04T02:00")
    assert due(one, at("2026-11-05T02:00")).run == "orders-2026-11-04"


def test_runs_of_shorter_periods_have_the_time_in_their_ids() -> None:
    """In UTC: so the two hours of one name, when clocks are turned back, have two."""
    hours = Timetable("clicks", definition(cron="0 * * * *", start="2026-10-25T01:00"))
    assert [period.run for period in hours.due(hours.first(NOW), 3)] == [
        "clicks-2026-10-24T2300Z", "clicks-2026-10-25T0000Z", "clicks-2026-10-25T0100Z",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cron", "zone", "start"),
    [
        ("30 2 * * *", ZONE, "2026-10-20"), ("30 2 * * *", ZONE, "2026-03-25"), ("0 * * * *", ZONE, "2026-10-24"),
        ("0 2 * * *", "Pacific/Apia", "2011-12-27"), ("*/30 1-3 * * *", "Australia/Lord_Howe", "2026-10-03"),
    ],
)  # fmt: skip
def test_no_two_periods_have_the_same_run_and_none_is_between(cron: str, zone: str, start: str) -> None:
    """Also where clocks change, and where a zone leaves out a whole day."""
    table = Timetable("orders", definition(cron=cron, timezone=zone, start=start))
    periods = table.due(table.first(NOW), 60)
    assert len({period.run for period in periods}) == 60
    for one, following in pairwise(periods):
        assert one.begin_us < one.end_us == following.begin_us


def test_no_period_begins_at_the_end_or_later() -> None:
    """November ends before December."""
    one = schedule(start="2026-11-29", end="2026-12-01")
    table = Timetable("orders", one.definition)
    assert [period.run for period in table.due(one.next_us, 9)] == ["orders-2026-11-29", "orders-2026-11-30"]
    assert due_period(replace(one, next_us=at("2026-12-01T02:00")), at("2027-01-01T00:00")) is None
    assert table.behind(one.next_us, at("2026-11-30T02:00")) == 1
    assert table.behind(one.next_us, at("2027-01-01T00:00")) == 2


# -- adding -------------------------------------------------------------------------------------------------------------


def test_added_again_it_is_the_same_or_refused() -> None:
    """What differs is named, and only `replaces` accepts it. A graph follows from the rest."""
    one = schedule()
    assert added(one, "orders", definition(graph={"other": "paths"}), NOW, replaces=False) is one
    other = definition(cron="0 3 * * *", retry_pause_ms=1, parameters={"day": "x"}, options=RunOptions(parallelism=3))
    with pytest.raises(UsageError, match="--param day, --cron, --retry-pause, --parallelism; --replace puts"):
        added(one, "orders", other, NOW, replaces=False)
    later = replace(
        one, next_us=at("2026-11-03T02:00"), ended=after_step(one, EndPeriod(due(one), "FINISHED", "")).ended
    )
    replaced = added(later, "orders", other, NOW, replaces=True)
    assert (replaced.definition, replaced.next_us, replaced.ended) == (other, later.next_us, later.ended)
    assert replaced.round == 0


@pytest.mark.parametrize(
    ("changes", "runs", "first_end"),
    [
        ({"cron": "0 1 * * *"}, ["2026-11-03", "2026-11-04"], "2026-11-04T01:00"),
        ({"cron": "0 3 * * *"}, ["2026-11-03", "2026-11-04"], "2026-11-04T03:00"),
        ({"timezone": "Asia/Tokyo"}, ["2026-11-03", "2026-11-04"], "2026-11-03T18:00"),
        ({"cron": "0 2 * * 1"}, ["2026-11-03", "2026-11-09"], "2026-11-09T02:00"),
        ({"cron": "0 */8 * * *"}, ["2026-11-03T0100Z", "2026-11-03T0700Z"], "2026-11-03T08:00"),
    ],
)
def test_at_other_times_it_goes_on_where_it_is(changes: Any, runs: list[str], first_end: str) -> None:
    """No moment lies between its periods, and no day has two of those that come once a day."""
    later = replace(schedule(), next_us=at("2026-11-03T02:00"))
    replaced = added(later, "orders", definition(**changes), NOW, replaces=True)
    periods = Timetable("orders", replaced.definition).due(replaced.next_us, 2)
    assert [period.run for period in periods] == [f"orders-{run}" for run in runs]
    assert (periods[0].begin_us, periods[0].end_us) == (later.next_us, at(first_end))


@pytest.mark.parametrize("cron", ["0 1 * * *", "0 4 * * *", "0 * * * *", "0 2 * * 1"])
@pytest.mark.parametrize("state", ["FINISHED", "CANCELED"])
def test_what_was_due_before_another_timetable_stays_what_it_was(cron: str, state: Any) -> None:
    """Its run may be at work: none of its time is read twice or left out, however it ends."""
    one = schedule()
    before = due(one)
    history = asked(one)
    replaced = added(one, "orders", definition(cron=cron), NOW, replaces=True)
    again = added(replaced, "orders", definition(cron="30 5 * * *"), NOW, replaces=True)
    for changed in (replaced, again):
        assert due(changed) == before
        assert coming_periods(changed, 3)[1].begin_us == before.end_us
        assert periods_behind(changed, NOW) == 1 + Timetable("orders", changed.definition).behind(before.end_us, NOW)
        step = next_step(changed, before, ended(history, state), NOW, PLACE)
        assert isinstance(step, EndPeriod)
        done = after_step(changed, step)
        following = coming_periods(done, 1)[0]
        assert (done.due, following.begin_us) == (None, before.end_us)
        assert following == coming_periods(changed, 2)[1]
    assert added(replaced, "orders", definition(cron=cron, end="2026-11-01"), NOW, replaces=True).due is None
    assert added(replaced, "orders", definition(cron=cron, start="2026-10-01"), NOW, replaces=True).due is None
    early = at("2026-11-02T01:30")
    assert added(one, "orders", definition(cron=cron), early, replaces=True).due is None, "nothing was due"


def test_a_day_that_begins_twice_has_two_runs() -> None:
    """In the zone that comes it may be the same day still; a run that is done does not stand for it."""
    one = added(None, "n", definition(timezone="UTC", start="2026-11-09"), NOW, replaces=False)
    later = at("2026-11-12T00:00")
    done = after_step(one, EndPeriod(due(one, later), "FINISHED", ""))
    moved = added(
        done, "n", definition(timezone="America/New_York", start="2026-11-09"), at("2026-11-10T03:01"), replaces=True
    )
    runs = [period.run for period in coming_periods(moved, 2)]
    assert runs == ["n-2026-11-10T0200Z", "n-2026-11-10"]
    assert due(moved, later) == coming_periods(moved, 1)[0]
    assert asked(moved, now_us=later).submitted.run == runs[0]


def test_another_start_begins_anew() -> None:
    """With fresh attempts; and so does one that is added after it was removed."""
    later = replace(schedule(), next_us=at("2026-11-03T02:00"))
    again = added(later, "orders", definition(start="2026-10-01"), NOW, replaces=True)
    assert (again.next_us, again.round) == (at("2026-10-01T02:00"), 1)
    back = added(removed(later), "orders", later.definition, NOW, replaces=False)
    assert (back.state, back.next_us, back.round) == ("ACTIVE", at("2026-11-01T02:00"), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cron": "0 25 * * *"}, "hour '25'"),
        ({"timezone": "Berlin"}, "there is no time zone 'Berlin'"),
        ({"start": "yesterday"}, "--start yesterday: write a day"),
        ({"start": "0001-01-01"}, "--start 0001-01-01: write a day"),
        ({"end": "9999-99-99"}, "--end 9999-99-99"),
        ({"end": "2026-11-01"}, "no period lies between --start and --end"),
        ({"parameters": {"day": "{dya}"}}, "--param day: {dya} is no placeholder; there are {day}, {start}, {end}"),
        ({"parameters": {"day": "{day.year}"}}, "is no placeholder"),
        ({"parameters": {"day": "{day:%Y}"}}, "is no placeholder"),
        ({"parameters": {"day": "{}"}}, "is no placeholder"),
        ({"parameters": {"day": "{"}}, "--param day: .*; a brace is written {{ or }}"),
        ({"options": RunOptions(every_us=1)}, "--every: what goes on for ever has no timetable"),
        ({"options": RunOptions(to_savepoint="/srv/kept")}, "every run leaves a savepoint of its own"),
        ({"options": RunOptions(to_savepoint="/srv/{{day}}")}, "every run leaves a savepoint of its own"),
        ({"options": RunOptions(to_savepoint="/srv/{night}")}, "--to-savepoint: {night} is no placeholder"),
        ({"retries": -1}, "--retries -1: from 0"),
        ({"retry_pause_ms": -1}, "--retry-pause"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    """When it is added, naming the option."""
    with pytest.raises(UsageError, match=message):
        schedule(**changes)


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".", "-a", "a b", "ä", "a" * 81, "a\n", "{day}"])
def test_names_are_those_of_runs(name: str) -> None:
    """The ids of runs begin with them, and keys in the store are made of them."""
    with pytest.raises(UsageError, match="names no schedule"):
        schedule(name)
    assert schedule("a" * 80).name == "a" * 80


def test_a_folder_for_every_savepoint() -> None:
    """Placeholders stand in it as in parameters."""
    one = schedule(options=RunOptions(to_savepoint="/srv/{day}"))
    assert asked(one).submitted.options.to_savepoint == "/srv/2026-11-01"
    assert filled("x", "{{}}", {}) == "{}"


# -- runs of a period ---------------------------------------------------------------------------------------------------


def test_missed_periods_are_caught_up_oldest_first_one_at_a_time() -> None:
    """While a run waits or is at work nothing is to be done; when it has finished, the next one is."""
    one = schedule()
    runs: list[str] = []
    while due_period(one, NOW) is not None:
        history = asked(one)
        assert next_step(one, due(one), history, NOW, PLACE) is None
        history = ended(history, "FINISHED")
        step = next_step(one, due(one), history, NOW, PLACE)
        assert step == EndPeriod(due(one), "FINISHED", "")
        assert isinstance(step, EndPeriod)
        runs.append(due(one).run)
        one = after_step(one, step)
    assert runs == ["orders-2026-11-01", "orders-2026-11-02", "orders-2026-11-03"]
    assert [period.run for period in one.ended] == runs


def test_a_run_that_failed_is_repeated_after_a_pause_and_then_the_schedule_stops() -> None:
    """Whoever resumes it gives the run fresh attempts; the period is not passed over."""
    one = schedule(retries=1)
    history = ended(asked(one), "FAILED", NOW)
    assert next_step(one, due(one), history, NOW + 299_999_999, PLACE) is None
    again = next_step(one, due(one), history, NOW + 300_000_000, PLACE)
    assert again == SubmitPeriod(due(one), request_of(one, due(one), 1), 1)
    history = ended(asked(one, history, NOW + 300_000_000), "FAILED", NOW, "no such column")
    step = next_step(one, due(one), history, NOW + HOUR_US, PLACE)
    assert isinstance(step, StopSchedule)
    assert "orders-2026-11-01 has failed 2 times" in step.reason
    assert "resume orders. The last one: no such column" in step.reason
    stopped = after_step(one, step)
    assert (stopped.state, stopped.next_us) == ("STOPPED", one.next_us)
    assert due_period(stopped, NOW) is None
    assert paused(stopped) is stopped
    fresh = resumed(stopped)
    assert (fresh.state, fresh.reason) == ("ACTIVE", "")
    history = ended(asked(fresh, history), "FAILED", NOW)
    assert next_step(fresh, due(fresh), history, NOW, PLACE) is None
    history = ended(asked(fresh, history, NOW + HOUR_US), "FINISHED", NOW)
    assert next_step(fresh, due(fresh), history, NOW, PLACE) == EndPeriod(due(fresh), "FINISHED", "")


def test_a_schedule_may_skip_what_fails() -> None:
    """It remembers that it did, and why."""
    one = schedule(retries=0, on_failure="skip")
    step = next_step(one, due(one), ended(asked(one), "FAILED", reason="boom"), NOW, PLACE)
    assert step == EndPeriod(due(one), "FAILED", "boom")


@pytest.mark.parametrize("failing", ["stop", "skip"])
def test_what_failed_in_another_work_folder_is_not_repeated(failing: Any) -> None:
    """It may be decided there. People may: when they resume the schedule, it is asked for again."""
    one = schedule(on_failure=failing)
    lost = ended(asked(one), "FAILED", reason="a work folder that is gone")
    step = next_step(one, due(one), lost, NOW + HOUR_US, "another")
    if failing == "skip":
        assert step == EndPeriod(due(one), "FAILED", "a work folder that is gone")
        return
    assert isinstance(step, StopSchedule)
    assert "has failed once" in step.reason
    again = resumed(after_step(one, step))
    assert isinstance(next_step(again, due(again), lost, NOW, "another"), SubmitPeriod)


def test_a_cancelled_run_is_skipped() -> None:
    """A person did not want it, whether it was the first attempt or a later one."""
    one = schedule()
    waiting = asked(one).after(CancelAsked(request="x")).after(RunEnded(state="CANCELED", reason="asked", at_us=NOW))
    assert next_step(one, due(one), waiting, NOW, PLACE) == EndPeriod(due(one), "CANCELED", "asked")
    later = ended(asked(one, ended(asked(one), "FAILED", NOW), NOW + HOUR_US), "CANCELED", NOW)
    assert next_step(one, due(one), later, NOW, PLACE) == EndPeriod(due(one), "CANCELED", "")


def test_what_a_person_ran_by_that_id_counts() -> None:
    """What finished is not repeated, what is at work is waited for; what failed or was cancelled before is asked for."""
    one = schedule()
    by_hand = RunHistory().after(replace(asked(one).submitted, request="by hand"))
    assert next_step(one, due(one), by_hand, NOW, PLACE) is None
    assert next_step(one, due(one), ended(by_hand, "FINISHED"), NOW, PLACE) == EndPeriod(due(one), "FINISHED", "")
    for state in ("FAILED", "CANCELED"):
        assert isinstance(next_step(one, due(one), ended(by_hand, state), NOW, PLACE), SubmitPeriod)


def test_a_paused_schedule_begins_nothing() -> None:
    """What is at work comes to its end and counts; when it is resumed, what was missed is caught up."""
    one = paused(schedule(retries=0))
    assert one.state == "PAUSED"
    assert next_step(one, due(one), RunHistory(), NOW, PLACE) is None
    history = asked(resumed(one))
    assert next_step(one, due(one), ended(history, "FINISHED"), NOW, PLACE) == EndPeriod(due(one), "FINISHED", "")
    assert isinstance(next_step(one, due(one), ended(history, "FAILED"), NOW, PLACE), StopSchedule)
    assert resumed(one) == schedule(retries=0)
    assert resumed(resumed(one)) == resumed(one)
    assert due_period(removed(one), NOW) is None
    assert removed(removed(one)) == removed(one)


def test_a_schedule_remembers_the_newest_periods() -> None:
    """Not all of them: it would grow for ever."""
    one = schedule(start="2026-01-01")
    for _ in range(REMEMBERED + 5):
        one = after_step(one, EndPeriod(due(one), "FINISHED", ""))
    assert len(one.ended) == REMEMBERED
    assert one.ended[0].run == "orders-2026-01-06"


# -- histories ----------------------------------------------------------------------------------------------------------


class Model:
    """A schedule, the logs of its runs, and everything that may happen to them.

    Several services decide, each from what it read some time ago; what they write counts only if nobody was quicker, as
    in the store.
    """

    def __init__(self, seed: int, given: Definition, begin_us: int) -> None:
        self.random = random.Random(seed)
        self.now_us = begin_us
        self.schedule = added(None, "orders", given, begin_us, replaces=False)
        self.first_us = self.schedule.next_us
        self.runs: dict[str, RunHistory] = {}
        self.order: list[str] = []
        """Runs in the order in which they were first submitted."""
        self.read: list[tuple[Schedule, dict[str, RunHistory]]] = [(self.schedule, {})] * 2
        """What two services have read last."""

    def step(self) -> None:
        """Something happens."""
        happen = self.random.choice(
            [self.time, self.time, self.look, self.look, self.decide, self.decide, self.run, self.run, self.person]
        )
        happen()
        self.check()

    def time(self) -> None:
        """It passes: minutes, or a weekend; or a clock is set back."""
        self.now_us += int(self.random.choice([0.1, 1, 7, 24, 80, -3]) * HOUR_US)

    def look(self) -> None:
        """A service reads how things are; one that was just started does nothing else first."""
        self.read[self.random.randrange(2)] = (self.schedule, dict(self.runs))

    def decide(self) -> None:
        """A service does what follows from what it has read, however long ago."""
        seen, runs = self.read[self.random.randrange(2)]
        period = due_period(seen, self.now_us)
        if period is None:
            return
        step = next_step(seen, period, runs.get(period.run, RunHistory()), self.now_us, PLACE)
        match step:
            case SubmitPeriod():
                self.submit(seen, step, runs.get(period.run, RunHistory()))
            case EndPeriod() | StopSchedule():
                if seen.version == self.schedule.version:
                    self.write(after_step(seen, step))
            case None:
                pass

    def submit(self, seen: Schedule, step: SubmitPeriod, known: RunHistory) -> None:
        """Append to the log of a run, unless somebody else did since it was read."""
        if seen.version != self.schedule.version:
            return  # it is read again right before
        run = step.period.run
        history = self.runs.get(run, RunHistory())
        if len(history.records) != len(known.records):
            return
        assert seen.state == "ACTIVE"
        assert step.period.end_us <= self.now_us
        if run not in self.runs:
            self.order.append(run)
        self.runs[run] = asked(seen, history, self.now_us)

    def run(self) -> None:
        """Something happens to a run that is there."""
        going = [run for run, history in self.runs.items() if history.ended is None]
        for run in going:
            history = self.runs[run]
            if history.attempt is None:
                number = sum(isinstance(record, AttemptBegan) for record in history.records) + 1
                self.runs[run] = history.after(AttemptBegan(attempt=number, place=PLACE, host="one", at_us=self.now_us))
                continue
            state = self.random.choice(["FINISHED", "FINISHED", "FAILED", "CANCELED", "lost"])
            self.runs[run] = history.after(
                AttemptLost(attempt=history.attempt.attempt, reason="killed", at_us=self.now_us)
                if state == "lost"
                else RunEnded(state=state, at_us=self.now_us)  # pyright: ignore[reportArgumentType]
            )

    def person(self) -> None:
        """Somebody pauses or resumes it."""
        self.write(self.random.choice([paused, resumed, resumed])(self.schedule))

    def write(self, after: Schedule) -> None:
        """The newest version."""
        if after is not self.schedule:
            self.schedule = replace(after, version=self.schedule.version + 1)

    def check(self) -> None:
        """What holds at any moment."""
        going = [run for run, history in self.runs.items() if history.ended is None]
        assert len(going) <= 1, going
        for one, following in pairwise(self.schedule.ended):
            assert one.end_us == following.begin_us
        for period in self.schedule.ended:
            state = self.runs[period.run].state
            assert state == period.state
            assert state != "FAILED" or self.schedule.definition.on_failure == "skip"

    def settle(self) -> None:
        """Everything works from now on, and somebody resumes what has stopped."""
        for _ in range(5_000):
            period = due_period(resumed(self.schedule), self.now_us)
            if period is None:
                return
            self.write(resumed(self.schedule))
            history = self.runs.get(period.run, RunHistory())
            if history.records and history.ended is None:
                self.runs[period.run] = ended(history, "FINISHED", self.now_us) if history.attempt is None else (
                    history.after(RunEnded(state="FINISHED", at_us=self.now_us))
                )  # fmt: skip
                continue
            self.read = [(self.schedule, dict(self.runs))] * 2
            self.decide()
            self.now_us += HOUR_US
            self.check()
        pytest.fail("it does not come to an end")


@given(
    st.integers(0, 1 << 32),
    st.sampled_from(["2026-03-26T12:00", "2026-10-22T12:00", "2026-06-01T12:00"]),
    st.sampled_from(["30 2 * * *", "0 */6 * * *", "0 1 * * 1-5"]),
    st.sampled_from(["stop", "skip"]),
    st.integers(0, 2),
)
def test_no_run_is_made_twice_and_none_is_left_out(
    seed: int, begin: str, cron: str, failing: Any, retries: int
) -> None:
    """Whatever happens in between: outages, pauses, changes of clocks, services that decide from what is long over."""
    given_definition = definition(cron=cron, start=begin, retries=retries, on_failure=failing)
    model = Model(seed, given_definition, at(begin))
    for _ in range(150):
        model.step()
    model.settle()
    table = Timetable("orders", given_definition)
    count = table.behind(model.first_us, model.now_us)
    expected = [period.run for period in table.due(model.first_us, count)]
    assert model.order == expected
    assert [period.run for period in model.schedule.ended] == expected[-REMEMBERED:]
    if failing == "stop":
        assert {model.runs[run].state for run in expected} <= {"FINISHED", "CANCELED"}
    for history in model.runs.values():
        requests = [record.request for record in history.records if isinstance(record, Submitted)]
        assert len(set(requests)) == len(requests)
