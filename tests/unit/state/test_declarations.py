"""What process classes declare: types, descriptions, and which changes of a state a restore allows."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from datetime import datetime, timedelta
from typing import Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest

from penstock.errors import IncompatibleStateError, PipelineError
from penstock.expressions import Accumulator
from penstock.functions.process_functions import (
    AggregatingState,
    BroadcastState,
    KeyedProcess,
    ListState,
    MapState,
    OperatorListState,
    OutputTag,
    Process,
    ReducingState,
    UnionListState,
    ValueState,
    check_process,
    describe_states,
    process_types,
)
from penstock.functions.windows.partials import of_partials
from penstock.state.compatibility import check_states, is_widened
from penstock.state.declarations import declared_states


@dataclasses.dataclass
class Payment:
    account: int
    amount: float


class Alert(msgspec.Struct):
    account: int


class Fraud(KeyedProcess[Payment, Alert]):
    last = ValueState(float, ttl="1h")
    seen = MapState(str, int)
    recent = ListState(Payment)
    total = ReducingState(lambda a, b: a + b, int)


Row = TypeVar("Row")


class Audited(KeyedProcess[Row, Alert], Generic[Row]):
    audits = ValueState(int)


class AuditedFraud(Audited[Payment]):
    last = ValueState(str)


def test_row_classes_come_from_the_generic_base():
    """Directly, and through generic classes of the user between."""
    assert process_types(Fraud()) == (Payment, Alert)
    assert process_types(AuditedFraud()) == (Payment, Alert)


def test_a_process_without_row_classes_is_told_what_to_write():
    """The message is the line to write."""

    class Fraud(KeyedProcess):
        pass

    with pytest.raises(PipelineError, match=r"write for example 'class Fraud\(KeyedProcess\[Payment, Alert\]\)'"):
        process_types(Fraud())
    with pytest.raises(PipelineError, match=r"does not say what rows"):
        process_types(Audited())


def test_states_of_base_classes_count_and_may_be_replaced():
    """Declarations are inherited like attributes."""
    assert list(declared_states(AuditedFraud())) == ["audits", "last"]

    class Without(Fraud):
        seen = None

    assert "seen" not in declared_states(Without)


def test_descriptions_are_json():
    """A savepoint keeps them; field names, types and defaults are in them."""
    described = describe_states(Fraud())
    assert msgspec.json.decode(msgspec.json.encode(described)) == described
    assert described["last"] == {"kind": "value", "value": "float", "ttl_us": 3_600_000_000}
    assert described["seen"] == {"kind": "map", "key": "str", "value": "int"}
    assert [field["name"] for field in described["recent"]["value"]["fields"]] == ["account", "amount"]


def test_a_type_that_cannot_be_stored_is_refused_with_the_name_of_the_state():
    """Before a row flows, not at the first checkpoint."""

    class Odd(KeyedProcess[Payment, Alert]):
        thing = ValueState(OutputTag.__class__)
        socket = ValueState(type(sys.stdout))

    with pytest.raises(PipelineError, match=r"state Odd\.\w+: values of type"):
        check_process(Odd())


def test_keyed_state_needs_a_key_and_operator_state_none():
    """Each kind of state says where it belongs."""

    class NoKey(Process[Payment, Alert]):
        last = ValueState(float)

    class Keyed(KeyedProcess[Payment, Alert]):
        positions = OperatorListState(int)

    with pytest.raises(PipelineError, match=r"NoKey\.last is ValueState, which needs a key"):
        check_process(NoKey())
    with pytest.raises(PipelineError, match=r"Keyed\.positions is OperatorListState, which belongs to a Process"):
        check_process(Keyed())
    with pytest.raises(PipelineError, match=r"give an instance, not the class: \.process\(Fraud\(\)\)"):
        check_process(Fraud)


def test_state_outside_a_pipeline_says_so():
    """Calling on_row by hand in a test is the usual way to meet this."""
    with pytest.raises(PipelineError, match="state 'last' was used outside a running pipeline"):
        Fraud().last.get()
    with pytest.raises(PipelineError, match="state 'seen'"):
        Fraud().seen.set("a", 1)
    with pytest.raises(PipelineError, match=r"made in a method.*declare it in the class.*name = ValueState\("):
        ValueState(int).get()


class Untyped(Accumulator[int, int]):
    def create(self):
        return 0

    def add(self, accumulator, value):
        return accumulator + value

    merge = add

    def result(self, accumulator):
        return accumulator


class Sum(Untyped):
    accumulator_type = int


class OfWhat(Untyped):
    accumulator_type = type(sys.stdout)


def test_an_aggregating_state_is_described_by_its_accumulator():
    """That is what is stored; one that does not say of what type it is, or of one that cannot be stored, is refused."""

    class Summed(KeyedProcess[Payment, Alert]):
        total = AggregatingState(Sum(), ttl="1h")
        odd = AggregatingState(OfWhat())

    with pytest.raises(PipelineError, match=r"state Summed\.odd: values of type .* cannot be stored"):
        check_process(Summed())
    Summed.odd = None
    assert describe_states(Summed) == {"total": {"kind": "aggregating", "value": "int", "ttl_us": 3_600_000_000}}
    with pytest.raises(
        PipelineError, match=r"AggregatingState: Untyped does not say what .* `accumulator_type = float`"
    ):
        AggregatingState(Untyped())
    with pytest.raises(
        PipelineError, match=r"takes an instance of a subclass of Accumulator, got the class Sum; .*Sum\(\)"
    ):
        AggregatingState(Sum)
    with pytest.raises(PipelineError, match="state 'total' was used outside a running pipeline"):
        Summed().total.add(1)
    with pytest.raises(IncompatibleStateError, match="holds reducing state, the pipeline declares aggregating state"):
        check_states("op", describe_states(Fraud), describe_states(Summed))


def test_a_time_to_live_is_a_positive_duration():
    """Like every duration of the API."""
    with pytest.raises(PipelineError, match="ValueState: ttl"):
        ValueState(int, ttl="soon")
    assert ValueState(int, ttl=timedelta(seconds=2)).ttl_us == 2_000_000


def test_what_renews_a_time_to_live_is_described_where_it_is_not_a_write():
    """So that descriptions in older savepoints are those of today."""

    class Kept(KeyedProcess[Payment, Alert]):
        read = ValueState(int, ttl="1s", renew="read")
        written = ValueState(int, ttl="1s", renew="write")

    assert describe_states(Kept()) == {
        "read": {"kind": "value", "value": "int", "ttl_us": 1_000_000, "renew": "read"},
        "written": {"kind": "value", "value": "int", "ttl_us": 1_000_000},
    }
    check_states("op", describe_states(Kept()), {**describe_states(Kept()), "read": {"kind": "value", "value": "int"}})
    with pytest.raises(PipelineError, match='MapState: renew="read" is of a time to live; give ttl= as well'):
        MapState(str, int, renew="read")
    with pytest.raises(PipelineError, match="renew"):
        ListState(int, ttl="1s", renew="never")  # type: ignore[arg-type]


def described(hint, kind=ValueState):
    class Holder(KeyedProcess[Payment, Alert]):
        state = kind(hint)

    return describe_states(Holder)


def record(name, *fields):
    return msgspec.defstruct(name, fields)


OLD = record("Old", ("a", int), ("b", list[str]))


class Pair(NamedTuple):
    a: int
    b: int


class Turned(NamedTuple):
    b: int
    a: int


class Shaped(TypedDict):
    a: int
    b: str


class Reshaped(TypedDict):
    a: str
    b: str


@pytest.mark.parametrize(
    "new",
    [
        record("New", ("a", int), ("b", list[str])),
        record("Old", ("b", list[str]), ("a", int)),
        record("Old", ("a", int), ("b", list[str]), ("c", float, 0.0)),
        record("Old", ("a", int)),
        record("Old", ("a", int | None), ("b", list[str])),
    ],
)
def test_compatible_changes_of_a_record(new):
    """Renamed classes, moved, added (with default), removed and widened fields can be read."""
    assert check_states("op", described(OLD), described(new)) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (float, int, "state 'state': the snapshot holds float, the pipeline declares int"),
        (OLD, record("Old", ("a", int), ("b", list[str]), ("c", float)), r"declares Old\(a: int, .*c: float\)"),
        (OLD, record("Old", ("a", str), ("b", list[str])), r"holds Old\(a: int, b: list\[str\]\)"),
        (dict[str, float], dict[str, int], r"holds dict\[str, float\], the pipeline declares dict\[str, int\]"),
        (dict[int, int], dict[float, int], r"holds dict\[int, int\], the pipeline declares dict\[float, int\]"),
        (int | float, int, r"holds int \| float"),
        (int, str | bool, r"holds int, the pipeline declares str \| bool|declares bool \| str"),
        (tuple[int, int], tuple[float], r"holds tuple\[int, int\]"),
        (bool, float, "holds bool"),
        (int | None, int, r"holds int \| none"),
        (datetime, int, "holds datetime"),
        (Pair, Turned, r"holds Pair\(a: int, b: int\)"),
        (Shaped, Reshaped, r"holds Shaped\(a: int, b: str\)"),
    ],
)
def test_incompatible_changes_name_operator_state_and_both_types(old, new, message):
    """A changed type is never read as something else."""
    with pytest.raises(IncompatibleStateError, match=f"operator 'op', {message}|{message}"):
        check_states("op", described(old), described(new))


class FloatPair(NamedTuple):
    a: float
    b: float


@pytest.mark.parametrize(
    ("old", "new", "widened"),
    [
        (int, float, True),
        (int | None, float | None, True),
        (int, float | str, True),
        (int | float, float, True),
        (int, int | float, False),
        (list[int], list[float], True),
        (tuple[int, str], tuple[float, str], True),
        (dict[str, int], dict[str, float], True),
        (dict[int, str], dict[int, str], False),
        (OLD, record("Old", ("a", float), ("b", list[str])), True),
        (OLD, record("Old", ("a", int), ("b", list[str]), ("c", float, 0.0)), False),
        (Pair, FloatPair, True),
    ],
)
def test_ints_of_keyed_state_can_be_read_as_floats(old, new, widened):
    """Wherever they stand in a value; which states are to be written anew is told."""
    for kind in (ValueState, ListState, functools.partial(MapState, str), functools.partial(ReducingState, max)):
        before, after = described(old, kind), described(new, kind)
        assert check_states("op", before, after) == []
        assert is_widened(before["state"], after["state"]) == widened


def test_partials_of_windows_are_never_widened():
    """Those of ints are not those of floats: a sum of ints is in two parts."""
    old, new = (
        describe_states(of_partials(Payment, record("Partial", ("total_0", kind | None), ("total_1", int | None))))
        for kind in (int, float)
    )
    assert check_states("op", old, old) == []
    with pytest.raises(IncompatibleStateError, match=r"state 'partials': the snapshot holds Partial\(total_0: int"):
        check_states("op", old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (MapState(int, str), MapState(float, str)),
        (MapState(Pair, str), MapState(FloatPair, str)),
        (OperatorListState(int), OperatorListState(float)),
        (UnionListState(int), UnionListState(float)),
        (BroadcastState(str, int), BroadcastState(str, float)),
    ],
)
def test_ints_are_not_read_as_floats_in_map_keys_and_in_state_without_key(old, new):
    """Another type of key is another key; state without key is restored without knowing what it was."""
    old, new = (describe_states(type("Each", (), {"state": state})) for state in (old, new))
    with pytest.raises(IncompatibleStateError, match="state 'state': the snapshot holds"):
        check_states("op", old, new)


@pytest.mark.parametrize(("old", "new"), [("namedtuple", Pair), ("typeddict", Shaped)])
def test_what_former_versions_said_of_named_tuples_and_typed_dicts_is_read(old, new):
    """They named no fields; whether a value fits is found when it is read."""
    assert check_states("op", {"state": {"kind": "value", "value": old}}, described(new)) == []


def test_a_changed_kind_is_incompatible_and_a_removed_state_is_named():
    """A value cannot become a list; what is no longer declared is reported to the caller."""
    with pytest.raises(IncompatibleStateError, match="holds value state, the pipeline declares list state"):
        check_states("op", described(int), described(int, ListState))
    assert check_states("op", described(int), {}) == ["state"]


def test_importing_functions_loads_no_data_library():
    """`import penstock` stays quick: neither Polars nor numpy nor Arrow."""
    code = (
        "import sys, penstock.functions.process_functions; "
        "print([name for name in ('polars', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
