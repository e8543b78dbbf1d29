"""Plans change only where somebody means them to."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_plans import GROUPS, TRAITS, expressions, rendered, traits


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.stem)
def test_plans_are_as_they_were(group: Path) -> None:
    """What differs was meant, or is a mistake: `python tests/unit/plan/golden_plans.py` writes the texts anew."""
    kept = group.read_text().split("\n\n")
    for before, expression in zip(kept, expressions(group), strict=True):
        assert rendered(expression).rstrip() == before.rstrip(), expression


def test_there_are_enough_of_them() -> None:
    """At least 150, none twice."""
    every = [expression for group in GROUPS for expression in expressions(group)]
    assert len(set(every)) == len(every) >= 150


def test_traits_are_as_they_were() -> None:
    """Passes and engines rely on them, also where no plan here shows it."""
    assert traits().splitlines() == TRAITS.read_text().splitlines()
