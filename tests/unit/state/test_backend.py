"""The generational table and the timer queue against plain dictionaries and sets."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.state.backend import ABSENT, Table
from penstock.state.timers import TimerQueue

KEYS = st.integers(0, 5)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers()),
        st.tuples(st.just("append"), KEYS, st.integers()),
        st.tuples(st.just("remove"), KEYS),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("release")),
        st.tuples(st.just("maintain"), st.integers(1, 4)),
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(operations=OPERATIONS)
def test_a_table_is_a_dictionary_and_snapshots_never_change(operations):
    """Whatever is written, removed, changed in place, frozen, released and merged down, in any order."""
    table, model, snapshots = Table(list), {}, []
    for operation in operations:
        match operation:
            case ("put", key, value):
                table.put(key, [value])
                model[key] = [value]
            case ("append", key, value):
                found = table.get(key)
                assert (found is ABSENT) == (key not in model)
                if found is not ABSENT:
                    found.append(value)
                    model[key].append(value)
            case ("remove", key):
                table.remove(key)
                model.pop(key, None)
            case ("freeze",):
                snapshots.append((table.freeze(), {key: list(value) for key, value in model.items()}))
            case ("release",):
                for frozen, _ in snapshots:
                    frozen.release()
                snapshots.clear()
            case ("maintain", budget):
                table.maintain(budget)
        for key in range(6):
            assert table.get(key) == model.get(key, ABSENT)
        for frozen, expected in snapshots:
            assert dict(frozen) == expected


def test_generations_are_merged_back_within_the_budget():
    """After the lease is given back, each call moves at most its budget, and at the end one dictionary is left."""
    table = Table()
    for key in range(100):
        table.put(key, key)
    frozen = table.freeze()
    for key in range(50, 150):
        table.put(key, -key)
    table.maintain(10)
    assert len(table.live) == 100, "nothing moves while the snapshot is read"
    frozen.release()
    table.maintain(10)
    assert len(table.live) == 90
    while table.layers:
        table.maintain(10)
    assert len(table.live) == 150
    assert table.get(120) == -120


def test_a_snapshot_that_is_dropped_gives_its_lease_back():
    """An aborted checkpoint never writes its segments."""
    table = Table()
    table.put(1, 1)
    frozen = table.freeze()
    assert table.leased()
    del frozen
    assert not table.leased()


TIMER_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 20)),
        st.tuples(st.just("delete"), KEYS, st.integers(0, 20)),
        st.tuples(st.just("due"), st.integers(0, 20)),
        st.tuples(st.just("freeze")),
    ),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(operations=TIMER_OPERATIONS)
def test_timers_fire_once_each_in_order_of_time(operations):
    """Against a set of (time, key): setting twice is once, deleted timers never fire."""
    timers, model = TimerQueue(), set()
    for operation in operations:
        match operation:
            case ("set", key, time):
                timers.set(key, time)
                model.add((time, key))
            case ("delete", key, time):
                timers.delete(key, time)
                model.discard((time, key))
            case ("due", until):
                fired = [(time, key) for key, time in timers.due(until)]
                assert [time for time, _ in fired] == sorted(time for time, _ in fired)
                assert sorted(fired) == sorted(timer for timer in model if timer[0] <= until)
                model -= set(fired)
            case ("freeze",):
                timers.freeze().release()
        assert timers.next_time() == min((time for time, _ in model), default=None)


def test_deleted_timers_do_not_pile_up_in_the_heap():
    """The pattern 'delete the old timer, set a new one' keeps memory proportional to the timers that are set."""
    timers = TimerQueue()
    for time in range(100_000):
        timers.set("key", time)
        timers.delete("key", time)
    assert len(timers._heap) <= 10_001


def test_a_timer_set_while_others_fire_fires_in_the_same_turn():
    """Flink: a timer at or before the watermark, set by a timer, belongs to the same advance."""
    timers, fired = TimerQueue(), []
    timers.set("a", 1)
    for key, time in timers.due(5):
        fired.append((key, time))
        if time < 8:
            timers.set(key, time + 2)
    assert fired == [("a", 1), ("a", 3), ("a", 5)]
    assert timers.next_time() == 7


@settings(max_examples=200, deadline=None)
@given(operations=TIMER_OPERATIONS)
@example([("set", "a", 1), ("set", "b", 1), ("delete", "a", 1), ("set", "a", 1), ("freeze",), ("due", 1)])
def test_a_sweep_changes_nothing_that_fires(operations):
    """Neither which timers fire nor their order, though a deleted one that was set again is twice in the heap."""
    swept, kept = TimerQueue(), TimerQueue()
    for operation in operations:
        match operation:
            case ("set", key, time):
                swept.set(key, time)
                kept.set(key, time)
            case ("delete", key, time):
                swept.delete(key, time)
                kept.delete(key, time)
            case ("freeze",):
                swept._sweep()
                assert len(swept._heap) == len(swept.table.all_keys())
            case ("due", until):
                assert list(swept.due(until)) == list(kept.due(until))


def test_a_sweep_while_timers_fire_loses_none(monkeypatch):
    """A function that deletes timers as it is called replaces the heap that is being read."""
    monkeypatch.setattr("penstock.state.timers._SWEEP_ABOVE", 10)
    timers, fired = TimerQueue(), []
    for time in range(100):
        timers.set("key", time)
    for _, time in timers.due(200):
        fired.append(time)
        if time == 5:
            for deleted in range(10, 100):
                timers.delete("key", deleted)
            timers.set("key", 7_000)
            timers.set("other", 50)
    assert fired == [*range(10), 50]
    assert timers.next_time() == 7_000


def test_timers_are_swept_when_most_were_deleted_only(monkeypatch):
    """To sweep at each deletion would make deleting them all take time with the square of their number."""
    sweeps: list[int] = []
    sweep = TimerQueue._sweep
    monkeypatch.setattr(TimerQueue, "_sweep", lambda timers: (sweeps.append(len(timers._heap)), sweep(timers)))
    timers = TimerQueue()
    for time in range(40_000):
        timers.set("key", time)
    for time in range(40_000):
        timers.delete("key", time)
    assert 1 <= len(sweeps) <= 2
