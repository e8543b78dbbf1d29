"""How mutants find what they change: by the symbols in it, whatever the code looks like, and loudly where they cannot."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from tests.simulation.mutants import MUTANTS
from tests.simulation.mutating import KEPT, Edit, Mutant, Patch, begins, called, condition, returned, statement, value
from tests.simulation.shells.mutants import MUTANTS as SHELL_MUTANTS


class Gate:
    """What is mutated here."""

    def __init__(self) -> None:
        self.last = 0
        self.limit = 10

    def takes(self, number: int, limit: int = 3) -> bool:
        """Whether it is the next."""
        if (
            number <= self.last  # formatted as it likes
            or number > limit
        ):
            return False
        if number != self.last + 1:
            raise ValueError(number)
        self.last = max(number, self.last)
        return True

    @staticmethod
    def sized(number: int) -> int:
        return min(number, 5)


ALL = [(mutant, patch) for mutant in (*MUTANTS.values(), *SHELL_MUTANTS.values()) for patch in mutant.patches]


@pytest.mark.parametrize(
    ("edit", "numbers", "taken"),
    [
        (condition("last", "<="), [1, 1], "ValueError"),
        (condition("last", "!="), [1, 3], [True, True]),
        (condition("limit", ">"), [1, 2, 3, 4], [True, True, True, True]),
        (condition("limit", ">", becomes=f"{KEPT} and number != 4"), [1, 2, 3, 4], [True] * 4),
        (statement("last", "max"), [1, 1], [True, True]),
        (statement("last", "max", becomes=f"{KEPT}\nself.last += 1"), [1, 2, 3], [True, False, True]),
        (called("max", becomes="number + 1"), [1, 2, 3], [True, False, True]),
        (value("limit", becomes="1"), [1, 2], [True, False]),
        (begins("return number == 7"), [1, 7], [False, True]),
    ],
)  # fmt: skip
def test_an_edit_changes_what_its_symbols_name(edit: Edit, numbers: list[int], taken: object) -> None:
    """And that alone; afterwards the class is as it was."""
    gate = Gate()
    with Mutant(1, "broken", (Patch(Gate, "takes", edit),)).applied():
        try:
            found: object = [gate.takes(number) for number in numbers]
        except ValueError:
            found = "ValueError"
    assert found == taken
    assert [Gate().takes(number) for number in (1, 9)] == [True, False]


def test_a_static_method_stays_one() -> None:
    """Called of the class and of an instance."""
    with Mutant(1, "broken", (Patch(Gate, "sized", called("min", becomes="max(number, 5)")),)).applied():
        assert (Gate.sized(9), Gate().sized(9)) == (9, 9)
    assert Gate.sized(9) == 5


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (condition("newest"), "Gate.takes: .*newest.* nowhere"),
        (condition("last"), r"Gate.takes: \['last'\] should stand in one place, and do in: line 4, line 8"),
        (returned("last", becomes="return True"), "nowhere"),
        (called("sorted", becomes="0"), "nowhere"),
    ],
)
def test_a_symbol_that_is_gone_or_not_alone_fails_loudly(edit: Edit, said: str) -> None:
    """With the function, the symbols, and where they stand."""
    with pytest.raises(AssertionError, match=said):
        Patch(Gate, "takes", edit).mutated()
    with pytest.raises(AttributeError, match="takken"):
        Patch(Gate, "takken", edit).mutated()


def named(mutant: Mutant, patch: Patch) -> str:
    return f"{mutant.name}-{patch.function}"


@pytest.mark.parametrize(("mutant", "patch"), ALL, ids=[named(mutant, patch) for mutant, patch in ALL])
def test_every_mutant_finds_what_it_changes(mutant: Mutant, patch: Patch) -> None:
    """In production as it is."""
    original = inspect.getattr_static(patch.owner, patch.function)
    assert patch.mutated() is not original


def test_a_mutant_is_undone() -> None:
    """Also when what runs under it fails."""

    def histories() -> Iterator[None]:
        with Mutant(1, "broken", (Patch(Gate, "takes", begins("return True")),)).applied():
            assert Gate().takes(9)
            raise KeyError
        yield

    with pytest.raises(KeyError):
        next(histories())
    assert not Gate().takes(9)
