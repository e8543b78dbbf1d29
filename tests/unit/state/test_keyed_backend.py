"""Keyed object state: what get, set and time to live mean, and what survives a snapshot."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptDataError, IncompatibleStateError, UserCodeError
from penstock.expressions import Accumulator
from penstock.functions.process_functions import (
    AggregatingState,
    KeyedProcess,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from penstock.protocol.keygroups import KeyGroupRange
from penstock.state.declarations import declared_states, describe_states
from penstock.state.keyed_state import KeyCursor
from penstock.state.segments import decode_segment
from penstock.task.keyed_states import keyed_backend
from penstock.task.operator import OperatorContext
from penstock.types import INT64, STRING, TIMESTAMP, Field, Schema

KEYS = Schema((Field("key", STRING, nullable=True),))


@dataclasses.dataclass
class Item:
    name: str
    tags: list[str]


@dataclasses.dataclass
class Sums:
    count: int
    values: list[int]


class Median(Accumulator[Sums, int]):
    """Changes what it is given in place, in `result`, too."""

    accumulator_type = Sums

    def create(self):
        return Sums(0, [])

    def add(self, accumulator, value, times=1):
        accumulator.count += times
        accumulator.values += [value] * times
        return accumulator

    def merge(self, left, right):
        raise AssertionError("there is nothing to merge")

    def result(self, accumulator):
        accumulator.values.sort()
        middle = accumulator.values[accumulator.count // 2]
        accumulator.values.clear()
        return middle


class States(KeyedProcess[Item, Item]):
    value = ValueState(float)
    record = ValueState(Item)
    entries = MapState(int, list[int])
    items = ListState(int)
    total = ReducingState(lambda old, new: old + new, int)
    median = AggregatingState(Median())
    brief = ValueState(int, ttl="10us")
    brief_median = AggregatingState(Median(), ttl="10us")
    brief_items = ListState(int, ttl="10us")
    brief_entries = MapState(str, int, ttl="10us")
    brief_total = ReducingState(lambda old, new: old + new, int, ttl="10us")
    kept = ValueState(int, ttl="10us", renew="read")
    kept_record = ValueState(Item, ttl="10us", renew="read")
    kept_items = ListState(int, ttl="10us", renew="read")
    kept_entries = MapState(str, int, ttl="10us", renew="read")
    kept_total = ReducingState(lambda old, new: old + new, int, ttl="10us", renew="read")


@pytest.fixture(params=["objects", "rocksdb"], autouse=True, scope="module")
def local_state(request, tmp_path_factory):
    """Where the backend under test has its folder; None: it holds objects."""
    Bound.local_state = tmp_path_factory.mktemp("state") if request.param == "rocksdb" else None
    return Bound.local_state


class Bound:
    """A backend with all states of `States`, as attributes."""

    local_state = None

    def __init__(self, declared=States, keys=KEYS, segments=()):
        self.now = 0
        self.cursor = KeyCursor()
        self.backend = keyed_backend("op", keys, self.cursor, self._context())
        descriptions = describe_states(declared)
        for name, declaration in declared_states(declared).items():
            setattr(self, name, self.backend.bind(declaration, descriptions[name]))
        self.backend.restore(segments)

    def _context(self):
        groups = KeyGroupRange(0, 16)
        return OperatorContext("op", 0, 1, 16, groups, lambda: self.now, local_state=self.local_state)

    def at(self, key):
        self.cursor.key = key
        return self

    def again(self, declared=States, keys=KEYS):
        successor = Bound(declared, keys, list(self.backend.freeze().segments()))
        successor.now = self.now
        return successor


def states_of(states, key):
    """The names of the states that a snapshot of now has of a key."""
    found = set()
    for _, data in states.backend.freeze().segments():
        header, rows = decode_segment(data, "op")
        found.update(header["names"][row["__state"]] for row in rows.to_dicts() if row["key"] == key)
    return sorted(found)


def test_every_kind_of_state_keeps_keys_apart_and_survives_a_restore():
    """Values, records, lists, maps and folded values, for three keys, one of them null."""
    states = Bound()
    for number, key in enumerate(["a", "b", None]):
        states.at(key)
        assert states.value.get() is None
        assert states.value.get(2.5) == 2.5
        assert states.items.get() == []
        assert states.total.get(7) == 7
        assert states.median.get() is None
        assert states.median.get(default=7) == 7
        states.value.set(number + 0.5)
        states.record.set(Item(f"item {number}", ["x"] * number))
        states.entries.set(number, [number])
        states.entries.set(10, [])
        states.items.add(number)
        states.items.add(-1)
        states.total.add(number)
        states.total.add(100)
        states.median.add(50 + number)
        states.median.add(10, 2)
        states.median.add(99, 2)
    for bound in (states, states.again(), states.again().again()):
        for number, key in enumerate(["a", "b", None]):
            bound.at(key)
            assert bound.value.get() == number + 0.5
            assert bound.record.get() == Item(f"item {number}", ["x"] * number)
            assert dict(bound.entries.items()) == {number: [number], 10: []}
            assert bound.entries.contains(number)
            assert not bound.entries.contains(99)
            assert sorted(bound.entries.keys()) == sorted({number, 10})
            assert bound.items.get() == [number, -1]
            assert bound.total.get() == 100 + number
            assert bound.median.get() == bound.median.get() == 50 + number
        bound.at("b")
        for state in (bound.value, bound.record, bound.entries, bound.items, bound.total, bound.median):
            state.clear()
        assert states_of(bound, "b") == []


def test_expired_state_is_never_returned_and_a_write_renews_it():
    """Flink: OnCreateAndWrite, NeverReturnExpired; reading does not renew."""
    states = Bound().at("a")
    states.brief.set(1)
    states.brief_total.add(1)
    states.brief_median.add(1)
    states.brief_items.add(1)
    states.brief_entries.set("x", 1)
    states.now = 6
    assert states.brief.get() == 1
    states.brief_items.add(2)
    states.brief_entries.set("y", 2)
    states.brief_total.add(5)
    states.brief_median.add(5)
    states.now = 10
    assert states.brief.get() is None
    assert states.brief_items.get() == [2]
    assert dict(states.brief_entries.items()) == {"y": 2}
    assert states.brief_entries.get("x") is None
    assert states.brief_total.get() == 6
    assert states.brief_median.get() == 5
    states.now = 16
    assert states.brief_items.get() == []
    assert states.brief_total.get() is None
    assert states.brief_median.get() is None
    assert list(states.brief_entries.keys()) == []


def test_a_read_renews_where_the_declaration_says_so():
    """Flink: OnReadAndWrite. What is not read meanwhile goes; what was renewed is so in a snapshot, too."""
    states = Bound().at("a")
    states.kept.set(1)
    states.kept_record.set(Item("kept", []))
    states.kept_items.add(1)
    states.kept_total.add(1)
    for name in "abc":
        states.kept_entries.set(name, 1)

    def read(bound):
        return (
            bound.kept.get(), bound.kept_record.get(), bound.kept_items.get(), bound.kept_total.get(),
            bound.kept_entries.get("a"), bound.kept_entries.contains("b"),
        )  # fmt: skip

    whole = (1, Item("kept", []), [1], 1, 1, True)
    for now in (9, 18, 27):
        states.now = now
        assert read(states) == whole
        states = states.again().at("a")
    assert dict(states.kept_entries.items()) == {"a": 1, "b": 1}, "c was not read by then"
    states.now = 36
    assert sorted(states.kept_entries.keys()) == ["a", "b"]
    states = states.again().at("a")
    states.now = 37
    assert read(states) == (None, None, [], None, 1, True), "of all that only entries were read at 36"
    states.now = 47
    assert states.kept_entries.get("a") is None
    assert states_of(states, "a") == []


def test_a_read_renews_what_stands_in_an_older_layer():
    """A snapshot keeps what it has; behind it the values that were read live longer."""
    states = Bound().at("a")
    states.kept.set(1)
    states.kept_items.add(1)
    states.kept_entries.set("x", 1)
    states.now = 6
    frozen = states.backend.freeze()
    assert (states.kept.get(), states.kept_items.get(), states.kept_entries.get("x")) == (1, [1], 1)
    before = Bound(segments=list(frozen.segments())).at("a")
    before.now = states.now = 10
    assert (before.kept.get(), before.kept_items.get(), before.kept_entries.get("x")) == (None, [], None)
    assert (states.kept.get(), states.kept_items.get(), states.kept_entries.get("x")) == (1, [1], 1)


def test_a_snapshot_leaves_expired_state_out_and_sweeps_it():
    """Keys that nobody touches again do not stay for ever."""
    states = Bound().at("a")
    states.brief.set(1)
    states.brief_items.add(1)
    states.brief_entries.set("x", 1)
    states.now = 5
    states.at("b").brief.set(2)
    states.brief_items.add(2)
    states.brief_entries.set("x", 2)
    states.now = 10
    successor = states.again()
    assert states_of(successor, "a") == []
    assert states_of(successor, "b") == ["brief", "brief_entries", "brief_items"]
    states.backend.maintain(1_000)
    states.now = 0
    assert states_of(states, "a") == [], "it is gone, not only hidden"
    assert states_of(states, "b") == ["brief", "brief_entries", "brief_items"]
    successor.now = 15
    assert successor.at("b").brief.get() is None, "the time to live counts from the write, not from the restore"


def test_changing_an_object_in_place_while_a_snapshot_is_written_does_not_change_the_snapshot():
    """Flink's CopyOnWriteStateMap: what a snapshot still reads is copied before it is handed out."""
    states = Bound().at("a")
    states.record.set(Item("old", []))
    states.entries.set(1, [1])
    states.items.add(1)
    frozen = states.backend.freeze()
    states.record.get().tags.append("new")
    states.entries.get(1).append(2)
    states.entries.set(2, [])
    states.items.add(2)
    restored = Bound(segments=list(frozen.segments())).at("a")
    assert restored.record.get() == Item("old", [])
    assert dict(restored.entries.items()) == {1: [1]}
    assert restored.items.get() == [1]
    assert states.record.get() == Item("old", ["new"])
    assert dict(states.entries.items()) == {1: [1, 2], 2: []}
    assert states.items.get() == [1, 2]


def test_an_accumulator_that_is_changed_while_a_snapshot_is_written_does_not_change_the_snapshot():
    """`add` changes the one that it was given in place, and `result` the copy that it was given."""
    states = Bound().at("a")
    states.median.add(1)
    frozen = states.backend.freeze()
    assert states.median.get() == 1
    states.median.add(5, 2)
    restored = Bound(segments=list(frozen.segments())).at("a")
    assert (restored.median.get(), states.median.get(), states.median.get()) == (1, 5, 5)
    restored.median.clear()
    assert restored.median.get() is None


def test_an_accumulator_of_another_type_than_was_declared_is_refused_by_name():
    """What `add` returned is the state."""

    class Forgets(Median):
        def add(self, accumulator, value):
            accumulator.values.append(value)

    class Forgetful(KeyedProcess[Item, Item]):
        median = AggregatingState(Forgets())

    with pytest.raises(UserCodeError, match="operator 'op', state 'median' holds Sums, but was given None"):
        Bound(Forgetful).at("a").median.add(1)


def test_lists_and_maps_that_are_given_out_are_the_users_own():
    """Changing what get() returned changes nothing, and a state may be changed while it is read."""
    states = Bound().at("a")
    states.items.update([1, 2])
    states.items.get().append(3)
    assert states.items.get() == [1, 2]
    states.entries.set(1, [])
    states.entries.set(2, [])
    for key in states.entries.keys():  # noqa: SIM118 (a state, not a dictionary)
        states.entries.remove(key)
    assert not list(states.entries.items())


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda s: s.value.set("1"), "operator 'op', state 'value' holds float, but was given '1'"),
        (lambda s: s.value.set(None), "state 'value' holds float, but was given None"),
        (lambda s: s.value.set(True), "holds float, but was given True"),
        (lambda s: s.items.add("x"), "state 'items' holds int, but was given 'x'"),
        (lambda s: s.entries.set("k", []), "state 'entries' holds int, but was given 'k'"),
        (lambda s: s.entries.set(1, 2), r"state 'entries' holds list\[int\], but was given 2"),
    ],
)
def test_a_value_of_another_type_is_refused_when_it_is_set(write, message):
    """It would be written into the snapshot and only fail when that is restored."""
    with pytest.raises(UserCodeError, match=message):
        write(Bound().at("a"))


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclasses.dataclass
class OtherItem(Item):
    """More than an `Item`; what a snapshot has of it would come back as one."""

    more: int = 0


class Shaped(TypedDict):
    name: str


class Parts(KeyedProcess[Item, Item]):
    day = ValueState(date)
    hour = ValueState(time)
    hours = ListState(time | None)
    days = ListState(date | None)
    record = ValueState(Item)
    numbers = ValueState(list[int])
    pair = ReducingState(max, tuple[int, str])
    by_name = MapState(str, dict[str, float])
    anything = ValueState(Any)
    shaped = ValueState(Shaped)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda s: s.hour.set(NOON.timetz()), r"state 'hour'.* has an offset, and a time of day has none"),
        (lambda s: s.hours.add(NOON.timetz()), r"state 'hours'.* has an offset, and a time of day has none"),
        (lambda s: s.day.set(NOON), r"state 'day' holds date, but was given datetime\.datetime"),
        (lambda s: s.days.add(NOON), r"state 'days' holds datetime\.date \| None, but was given datetime\.datetime"),
        (lambda s: s.record.set(OtherItem("x", [])), r"state 'record' holds Item, but was given OtherItem\("),
        (lambda s: s.shaped.set(5), "state 'shaped' holds Shaped, but was given 5"),
    ],
)
def test_a_value_of_a_derived_class_that_is_more_is_refused(write, message):
    """A moment is no date, though datetime is derived from date; a record would lose what its class added."""
    with pytest.raises(UserCodeError, match=message):
        write(Bound(Parts).at("a"))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda s: s.record.set(Item("x", [1])),
            "state 'record' holds Item, but was given .*Expected `str`, got `int`",
        ),
        (lambda s: s.record.set(Item(None, [])), "state 'record' holds Item.*Expected `str`, got `None`"),
        (
            lambda s: s.numbers.set([1.5]),
            r"state 'numbers' holds list\[int\], but was given \[1\.5\], which is not one",
        ),
        (lambda s: s.pair.add((1,)), "state 'pair' holds .*length 2, got 1"),
        (lambda s: s.by_name.set("x", {1: 1.0}), "state 'by_name' holds .*Expected `str`, got `int`"),
        (lambda s: s.shaped.set({"name": 5}), "state 'shaped' holds Shaped.*Expected `str`, got `int`"),
    ],
)
def test_a_snapshot_that_could_not_be_restored_is_not_written(write, message):
    """A part of a value is of another type than was declared: it is named, and what was saved before stays the newest."""
    states = Bound(Parts).at("a")
    write(states)
    with pytest.raises(UserCodeError, match=message):
        list(states.backend.freeze().segments())


@dataclasses.dataclass(frozen=True)
class Place:
    number: int
    price: Decimal


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        (float | None, 1.0, 1),
        (float | str, -0.0, 0),
        (tuple[int, float], (1, 2.0), (1, 2)),
        (tuple[str, Decimal], ("a", Decimal("1.0")), ("a", Decimal("1.00"))),
        (Place, Place(1, Decimal("2.5")), Place(1, Decimal("2.50"))),
        (tuple[datetime, str], (NOON, "a"), (NOON.astimezone(timezone(timedelta(hours=2))), "a")),
    ],
)
def test_equal_keys_of_a_map_are_one_entry(kind, first, second):
    """However their parts are spelled, and wherever they are kept; a key that is none of them is another one."""

    class Entries(KeyedProcess[Item, Item]):
        entries = MapState(kind, int)

    states = Bound(Entries).at("a")
    states.entries.set(first, 1)
    states = states.again(Entries).at("a")
    assert states.entries.get(second) == 1
    states.entries.set(second, 2)
    states = states.again(Entries).at("a")
    assert list(states.entries.items()) == [(first, 2)]
    assert (states.entries.get(first), states.entries.get("another")) == (2, None)
    states.entries.remove(first)
    assert not list(states.entries.keys())


def test_values_of_any_shape_come_back():
    """A dictionary with named entries, and what is declared as anything that can be written."""
    states = Bound(Parts).at("a")
    states.shaped.set({"name": "x"})
    states.anything.set([1, {"a": None}])
    states.day.set(NOON.date())
    restored = states.again(Parts).at("a")
    assert (restored.shaped.get(), restored.anything.get()) == ({"name": "x"}, [1, {"a": None}])
    assert restored.day.get() == NOON.date()


def test_scalars_of_numpy_are_stored_as_the_values_that_they_are():
    """Set, added, as a key, and within a list or a record; and they come out of a snapshot as such."""
    states = Bound().at("a")
    states.value.set(np.float64(1.5))
    states.items.add(np.int64(3))
    states.entries.set(np.int32(1), [np.int64(2)])
    states.record.set(Item(np.str_("x"), []))
    assert type(states.value.get()) is float
    assert [type(item) for item in states.items.get()] == [int]
    restored = states.again().at("a")
    assert (restored.value.get(), restored.items.get(), dict(restored.entries.items())) == (1.5, [3], {1: [2]})
    assert restored.record.get() == Item("x", [])
    with pytest.raises(UserCodeError, match=r"state 'items' holds int, but was given 1\.5"):
        states.items.add(np.float64(1.5))


def test_a_value_that_cannot_be_stored_fails_the_snapshot_by_name():
    """What the class alone does not tell is found when it is encoded."""
    states = Bound().at("a")
    states.record.set(Item("x", [object()]))
    with pytest.raises(UserCodeError, match=r"operator 'op', state 'record': the value Item.* cannot be stored"):
        list(states.backend.freeze().segments())


def test_state_without_a_key_says_where_it_may_be_used():
    """As in open()."""
    with pytest.raises(UserCodeError, match="no key"):
        Bound().value.get()


def test_segments_are_self_describing():
    """Header and Arrow rows, readable without the pipeline."""
    states = Bound().at("a")
    states.value.set(1.5)
    states.entries.set(3, [4])
    states.backend.event_timers.set("a", 99)
    ((_, data),) = states.backend.freeze().segments()
    header, rows = decode_segment(data, "op")
    assert header["kind"] == "objects"
    assert header["keys"] == [{"name": "key", "type": "string", "nullable": True}]
    assert header["states"]["value"] == {"kind": "value", "value": "float"}
    stored = {header["names"][row["__state"]]: row for row in rows.to_dicts()}
    assert rows["key"].to_list() == ["a"] * 3
    assert msgspec.msgpack.decode(stored["value"]["__value"]) == 1.5
    assert msgspec.msgpack.decode(stored["entries"]["__subkey"]) == 3
    assert stored["__event_timers"]["__time_us"] == 99


def test_damaged_and_foreign_segments_are_told_apart():
    """Damage, another format, another kind of operator, another key."""
    states = Bound().at("a")
    states.value.set(1.5)
    ((group, data),) = states.backend.freeze().segments()
    with pytest.raises(CorruptDataError, match="no segment"):
        Bound(segments=[(group, b"nonsense")])
    with pytest.raises(CorruptDataError, match="damaged"):
        Bound(segments=[(group, data[:-200])])
    with pytest.raises(IncompatibleStateError, match="has format 9"):
        Bound(segments=[(group, data[:3] + b"\x09" + data[4:])])
    with pytest.raises(IncompatibleStateError, match="keyed by key: string, the pipeline by id: int64"):
        Bound(keys=Schema((Field("id", INT64),)), segments=[(group, data)])


def test_records_grow_fields_and_states_come_and_go():
    """A new field with a default is filled in; a new state is empty; a removed one is left behind."""

    @dataclasses.dataclass
    class Grown:
        name: str
        tags: list[str]
        weight: float = 1.0

    class Later(KeyedProcess[Item, Item]):
        record = ValueState(Grown)
        extra = ValueState(int)

    states = Bound().at("a")
    states.record.set(Item("x", []))
    states.value.set(1.0)
    later = states.again(Later).at("a")
    assert later.record.get() == Grown("x", [], 1.0)
    assert later.extra.get() is None

    class Changed(KeyedProcess[Item, Item]):
        value = ValueState(str)

    with pytest.raises(IncompatibleStateError, match="operator 'op', state 'value': the snapshot holds float"):
        states.again(Changed)


class Left(msgspec.Struct, frozen=True, tag="left"):
    n: int
    id: int


class Right(msgspec.Struct, frozen=True, tag="right", array_like=True):
    id: int
    n: int


class WiderLeft(msgspec.Struct, frozen=True, tag="left"):
    id: int
    n: float


class WiderRight(msgspec.Struct, frozen=True, tag="right", array_like=True):
    id: int
    n: float
    more: int = 0


class Most(Accumulator[int, int]):
    accumulator_type = int

    def create(self):
        return 0

    def add(self, accumulator, value):
        return max(accumulator, value)

    merge = add

    def result(self, accumulator):
        return accumulator


class WiderMost(Most):
    accumulator_type = float


class Whole(KeyedProcess[Item, Item]):
    value = ValueState(int)
    maybe = ValueState(int | None)
    record = ValueState(dict[str, Left | None])
    either = ValueState(list[Left] | int)
    array = ValueState(Right)
    some = ValueState(frozenset[int])
    pair = ValueState(tuple[int | float, int])
    shaped = ValueState(Shaped | int)
    entries = MapState(int, int)
    items = ListState(int)
    total = ReducingState(lambda old, new: old + new, int)
    most = AggregatingState(Most())
    brief = ListState(int, ttl="10us")


class Wider(KeyedProcess[Item, Item]):
    value = ValueState(float)
    maybe = ValueState(float | None)
    record = ValueState(dict[str, WiderLeft | None])
    either = ValueState(list[WiderLeft] | float)
    array = ValueState(WiderRight)
    some = ValueState(frozenset[float])
    pair = ValueState(tuple[int | float, float])
    shaped = ValueState(Shaped | float)
    entries = MapState(int, float)
    items = ListState(float)
    total = ReducingState(lambda old, new: old + new, float)
    most = AggregatingState(WiderMost())
    brief = ListState(float, ttl="10us")


BEYOND = 2**53 + 1
"""The least int that no float is."""


def floats_of(value):
    return repr(msgspec.to_builtins(value))


def test_ints_become_floats_where_floats_are_declared_now():
    """In every kind of state and at any depth, also those that nobody touches before the next snapshot; ids stay ints."""
    states = Bound(Whole).at("a")
    states.value.set(2**60)
    states.maybe.set(-3)
    states.record.set({"x": Left(5, BEYOND), "y": None})
    states.either.set(7)
    states.array.set(Right(BEYOND, 8))
    states.some.set(frozenset([3]))
    states.pair.set((BEYOND, 2))
    states.shaped.set(4)
    states.entries.set(BEYOND, 6)
    states.items.update([1, 2])
    states.total.add(10)
    states.most.add(9)
    states.brief.add(1)
    wider = states.again(Wider)
    ((_, data),) = wider.backend.freeze().segments()
    header, rows = decode_segment(data, "op")
    stored = {header["names"][row["__state"]]: msgspec.msgpack.decode(row["__value"]) for row in rows.to_dicts()}
    assert repr((stored["value"], stored["array"], stored["items"])) == repr(
        (2.0**60, ["right", BEYOND, 8.0, 0], [1.0, 2.0])
    )
    wider = wider.again(Wider).at("a")
    wider.total.add(0.5)
    wider.items.add(0.5)
    assert repr((wider.value.get(), wider.maybe.get(), wider.either.get())) == repr((2.0**60, -3.0, 7.0))
    assert floats_of(wider.record.get()) == floats_of({"x": WiderLeft(BEYOND, 5.0), "y": None})
    assert repr(wider.array.get()) == repr(WiderRight(BEYOND, 8.0))
    assert repr((wider.some.get(), wider.pair.get(), wider.shaped.get())) == repr(
        (frozenset([3.0]), (BEYOND, 2.0), 4.0)
    )
    assert repr((dict(wider.entries.items()), wider.items.get())) == repr(({BEYOND: 6.0}, [1.0, 2.0, 0.5]))
    assert repr((wider.total.get(), wider.most.get(), wider.brief.get())) == repr((10.5, 9.0, [1.0]))
    wider.now = 10
    assert wider.brief.get() == [], "its time to live has not begun anew"


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("value", lambda state: state.set(BEYOND)),
        ("maybe", lambda state: state.set(-BEYOND)),
        ("record", lambda state: state.set({"x": None, "y": Left(BEYOND, 1)})),
        ("either", lambda state: state.set([Left(1, BEYOND), Left(BEYOND, 1)])),
        ("array", lambda state: state.set(Right(1, BEYOND))),
        ("some", lambda state: state.set(frozenset([2**53, BEYOND]))),
        ("pair", lambda state: state.set((1, BEYOND))),
        ("shaped", lambda state: state.set(BEYOND)),
        ("entries", lambda state: state.set(1, BEYOND)),
        ("items", lambda state: state.update([1, BEYOND])),
        ("total", lambda state: state.add(BEYOND)),
        ("most", lambda state: state.add(BEYOND)),
        ("brief", lambda state: state.add(BEYOND)),
    ],
)
def test_an_int_that_no_float_is_is_refused_when_its_state_is_restored(name, write):
    """It would lose digits; state and number are named, and the former declaration goes on."""
    states = Bound(Whole).at("a")
    write(getattr(states, name))
    with pytest.raises(IncompatibleStateError, match=f"operator 'op', state '{name}': the snapshot holds -?{BEYOND},"):
        states.again(Wider)
    states.again(Whole)


def test_a_dict_by_record_is_refused_where_ints_would_become_floats():
    """What stands in it cannot be told without its types; by tuple it can."""

    class ByRecord(KeyedProcess[Item, Item]):
        value = ValueState(dict[Left | int, int])

    class WiderByRecord(KeyedProcess[Item, Item]):
        value = ValueState(dict[Left | int, float])

    states = Bound(ByRecord).at("a")
    states.value.set({1: 2})
    assert repr(states.again(WiderByRecord).at("a").value.get()) == repr({1: 2.0})
    states.value.set({Left(1, 2): 2})
    with pytest.raises(IncompatibleStateError, match="state 'value': the snapshot holds a dict whose keys are records"):
        states.again(WiderByRecord)


@settings(max_examples=40, deadline=None)
@given(numbers=st.lists(st.integers(-(2**63), 2**64 - 1) | st.integers(50, 63).map(lambda n: 2**n + 2), max_size=5))
def test_ints_become_exactly_themselves_or_are_refused(numbers):
    """Whatever ints there are."""
    states = Bound(Whole).at("a")
    states.items.update(numbers)
    if any(float(number) != number for number in numbers):
        with pytest.raises(IncompatibleStateError, match="state 'items'"):
            states.again(Wider)
    else:
        found = states.again(Wider).at("a").items.get()
        assert found == numbers
        assert all(type(number) is float for number in found)


@settings(max_examples=40, deadline=None)
@given(
    keys=st.lists(
        st.tuples(st.one_of(st.none(), st.integers(-5, 5)), st.datetimes(timezones=st.just(UTC)), st.text(max_size=3)),
        max_size=12,
        unique=True,
    )
)
def test_keys_of_several_columns_survive_a_restore(keys):
    """Tuples with nulls, moments and texts come back equal."""
    schema = Schema((Field("n", INT64, nullable=True), Field("at", TIMESTAMP), Field("s", STRING)))
    states = Bound(keys=schema)
    for number, key in enumerate(keys):
        states.at(key).value.set(float(number))
        states.backend.event_timers.set(key, number)
    again = states.again(keys=schema)
    assert [again.at(key).value.get() for key in keys] == [float(number) for number in range(len(keys))]
    assert list(again.backend.event_timers.due(100)) == list(states.backend.event_timers.due(100))


def test_moments_as_values_and_segments_in_order_of_key_group():
    """Key groups rise and none is empty; datetimes keep their zone."""

    class Moments(KeyedProcess[Item, Item]):
        last = ValueState(datetime)

    states = Bound(Moments)
    moment = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    for number in range(100):
        states.at(f"key {number}").last.set(moment)
    segments = list(states.backend.freeze().segments())
    assert [group for group, _ in segments] == sorted({group for group, _ in segments})
    assert sum(decode_segment(data, "op")[1].height for _, data in segments) == 100
    assert Bound(Moments, segments=segments).at("key 7").last.get() == moment
