"""What is said of patterns, with random patterns over random rows."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from match_judge import matches
from test_matching import ROWS, RandomPattern, holds

from penstock.api.patterns import Pattern
from penstock.errors import PipelineError
from penstock.testing import explain_match

COLUMNS = ("a", "b", "c", "ab", "any")


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_there_are_matches_or_a_reason_for_every_way_to_go_on(seed: int) -> None:
    chance = random.Random(seed)
    within = chance.choice([None, 3, 6])
    pattern = RandomPattern(chance).whole(within=within is not None)
    letters = [chance.choice(ROWS) for _ in range(chance.randrange(1, 6))]
    rows = [
        {**{name: name == "any" or letter in name for name in COLUMNS}, "at": datetime(2026, 1, 1, 0, 0, 0, n, UTC)}
        for n, letter in enumerate(letters)
    ]
    try:
        said = explain_match(pattern=Pattern(pattern), rows=rows, within=within and timedelta(microseconds=within))
    except PipelineError:
        return  # a group is repeated of which all is optional
    judged = matches(
        pattern, letters, list(range(len(letters))), within, lambda condition, letter, _: holds(condition, letter)
    )
    lines = said.splitlines()
    if judged:
        assert lines[0] == ("1 match:" if len(judged) == 1 else f"{len(judged)} matches:")
        assert len(lines) == len(judged) + 1
        return
    assert lines[0].startswith("No match")
    ways = [
        line.partition(": ")
        for line in lines[lines.index("It did not go on:") + 1 if "It did not go on:" in lines else 1 :]
    ]
    assert ways
    for _, _, reason in ways:
        assert "None" not in reason
        assert any(word in reason for word in ("not fulfil", "no row comes", "and within is", "must not", "ends the"))
