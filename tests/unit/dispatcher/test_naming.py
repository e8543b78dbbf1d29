"""Jobs and runs are found by the same rules, and what is wrong is said in the same words."""

from __future__ import annotations

import pytest

from penstock_dispatcher.naming import Kind, has_ended, meant_by_name, meant_by_prefix
from penstock_dispatcher.refusing import RestError

KINDS: tuple[Kind, ...] = ("job", "run")
IDS = ["0123456789", "0123459999", "abcdef0000"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_beginning_of_an_id_is_enough(kind: Kind) -> None:
    """From six characters on, where only one begins so."""
    assert meant_by_prefix(kind, "abcdef", IDS) == "abcdef0000"
    assert meant_by_prefix(kind, "abcde", IDS) is None
    assert meant_by_prefix(kind, "ffffff", IDS) is None
    with pytest.raises(RestError, match=f"several {kind}s have ids that begin with 012345: 0123456789, 0123459999"):
        meant_by_prefix(kind, "012345", IDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_is_enough_where_one_has_it(kind: Kind) -> None:
    """Those that go on come before those that have ended."""
    going_on, ended = {"1": "flights", "2": "bids", "3": "bids"}, {"4": "flights", "5": "orders"}
    known = [*going_on.values(), *ended.values()]
    assert meant_by_name(kind, "flights", going_on, ended, known=known) == "1"
    assert meant_by_name(kind, "orders", going_on, ended, known=known) == "5"
    with pytest.raises(RestError, match=f"several {kind}s are called 'bids': 2, 3; give the id") as several:
        meant_by_name(kind, "bids", going_on, ended, known=known)
    assert several.value.status == 409
    with pytest.raises(RestError, match="'bids': 2 \\(running\\), 3; give the id"):
        meant_by_name(kind, "bids", going_on, known=known, states={"2": "RUNNING"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_is_none_is_answered_with_what_was_meant(kind: Kind) -> None:
    """Or with where to look."""
    with pytest.raises(RestError, match=f"there is no {kind} 'flihgts'; did you mean 'flights'") as unknown:
        meant_by_name(kind, "flihgts", {"1": "flights"}, known=["flights"])
    assert unknown.value.status == 404
    with pytest.raises(RestError, match="list them with penstock jobs --all"):
        meant_by_name(kind, "zzz", {"1": "flights"}, known=["flights"])
    with pytest.raises(RestError, match="there are none"):
        meant_by_name(kind, "zzz", known=[])


def test_what_has_ended_is_asked_nothing() -> None:
    """The reason stands behind it, where there is one."""
    assert str(has_ended("run", "nightly", "7", "FAILED", "it broke")) == "run nightly (7) has ended: FAILED (it broke)"
    assert str(has_ended("job", "bids", "8", "FINISHED", "")) == "job bids (8) has ended: FINISHED"
