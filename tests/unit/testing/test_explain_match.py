"""What is said of a pattern that finds no match, and of one that finds some."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from penstock import Pattern, col, count
from penstock.errors import PipelineError, UserCodeError
from penstock.testing import explain_match
from penstock.types import INT64, TIMESTAMP, Field, Schema

START = datetime(2026, 1, 1, tzinfo=UTC)
STATUS = {"f": "fail", "o": "ok", "r": "reset", "x": "other"}
FAIL, OK, RESET = (col("status") == each for each in ("fail", "ok", "reset"))
BURST = Pattern.begin("fails", FAIL, times=(3, None)).followed_by("ok", OK)


@dataclass
class Login:
    status: str
    amount: float
    at: datetime


def logins(letters: str) -> list[Login]:
    return [Login(STATUS[letter], float(n), START + timedelta(minutes=n)) for n, letter in enumerate(letters)]


NO_MATCH = "No match. The partial match that came furthest has "
IS_RESET = 'fulfils col("status") == "reset" (row {}: status = \'reset\'), which {}'


def resets(row: int, which: str) -> str:
    return f"row {row} {IS_RESET.format(row, which)}"


@pytest.mark.parametrize(
    ("pattern", "letters", "options", "said"),
    [
        (BURST, "fffxo", {}, ["1 match:", "  fails: rows 1 to 3; ok: row 5"]),
        (BURST, "ffffo", {}, ["3 matches:", "  fails: rows 1 to 4; ok: row 5", "  fails: rows 1 to 3; ok: row 5",
                              "  fails: rows 2 to 4; ok: row 5"]),
        (BURST, "ffffo", {"after_match": "past_last_row"}, ["1 match:", "  fails: rows 1 to 4; ok: row 5"]),
        (BURST, "xfxfo", {},
         [NO_MATCH + "2 rows:", "  fails: rows 2 and 4", "It did not go on:",
          '  followed by fails: row 5 does not fulfil col("status") == "fail" (row 5: status = \'ok\')']),
        (BURST, "xxoxx", {},
         ["No match: no row begins one.",
          '  begin with fails: rows 1 to 5 do not fulfil col("status") == "fail" (row 1: status = \'other\'; '
          "row 2: status = 'other'; row 3: status = 'ok'; ...)"]),
        (BURST, "ffxxo", {"within": "4m"},
         [NO_MATCH + "2 rows:", "  fails: rows 1 and 2", "It did not go on:",
          '  followed by fails: rows 3 and 4 do not fulfil col("status") == "fail" (row 3: status = \'other\'; '
          "row 4: status = 'other'); row 5 comes 4m behind row 1, and within is 4m"]),
        (BURST, "fff", {},
         [NO_MATCH + "3 rows:", "  fails: rows 1 to 3", "It did not go on:",
          "  followed by fails: no row comes behind row 3", "  followed by ok: no row comes behind row 3"]),
        (Pattern.begin("a", FAIL).followed_by("b", OK, within="2m"), "fxo", {},
         [NO_MATCH + "1 row:", "  a: row 1", "It did not go on:",
          '  followed by b: row 2 does not fulfil col("status") == "ok" (row 2: status = \'other\'); '
          "row 3 comes 2m behind row 1, and within is 2m"]),
        (Pattern.begin("a", FAIL).next("b", OK & (col("amount") > col("a.amount") * 5)), "ffo", {},
         [NO_MATCH + "1 row:", "  a: row 1", "1 other came as far.", "It did not go on:",
          '  next b: row 2 does not fulfil (col("status") == "ok") & (col("amount") > col("a.amount") * 5) '
          "(row 2: status = 'fail', amount = 1.0; a.amount = 0.0)"]),
        (Pattern.begin("a", FAIL).not_followed_by("no", RESET).followed_by("b", OK), "fxro", {},
         [NO_MATCH + "1 row:", "  a: row 1", "It did not go on:",
          '  followed by b: row 2 does not fulfil col("status") == "ok" (row 2: status = \'other\'); '
          + resets(3, "must not come before")]),
        (Pattern.begin("a", FAIL).not_next("no", RESET).followed_by_any("b", OK), "fro", {},
         [NO_MATCH + "1 row:", "  a: row 1", "It did not go on:",
          '  followed by any b: ' + resets(2, "must not be next")]),
        (Pattern.begin("a", FAIL).not_followed_by("no", RESET), "fxr", {"within": "1h"},
         [NO_MATCH + "1 row:", "  a: row 1", "It did not go on:",
          '  complete: ' + resets(3, "must not come before")]),
        (Pattern.begin("a", FAIL, times=(2, 3), until=RESET), "fr", {},
         [NO_MATCH + "1 row:", "  a: row 1", "It did not go on:",
          '  followed by a: ' + resets(2, "ends the occurrences")]),
        (Pattern.begin("a", FAIL).followed_by("b", times=2, until=RESET), "frxx", {},
         [NO_MATCH + "1 row:", "  a: row 1", "It did not go on:",
          '  followed by b: ' + resets(2, "ends the occurrences")]),
        (Pattern.begin("a", times=2, until=RESET), "rr", {},
         ["No match: no row begins one.",
          '  begin with a: ' + resets(1, "ends the occurrences") + "; "
          + resets(2, "ends the occurrences")]),
        (Pattern.begin("a", FAIL).followed_by("b", FAIL).followed_by(
            "c", (col("a.at").max() > col("at")) & (col("a").count() > 1) & (count() > 5) & (col("amount").sum() > 9)
         ), "fff", {},
         [NO_MATCH + "2 rows:", "  a: row 1; b: row 2", "1 other came as far.", "It did not go on:",
          '  followed by c: row 3 does not fulfil (col("a.at").max() > col("at")) & (col("a").count() > 1) & '
          '(count() > 5) & (col("amount").sum() > 9) (row 3: at = 2026-01-01 00:02:00+00:00; '
          "max of a.at = 2026-01-01 00:00:00+00:00; number of a = 1; number of all rows = 2; sum of amount = 1.0)"]),
    ],
)  # fmt: skip
def test_it_says_what_came_how_far_and_what_stopped_it(
    pattern: Pattern, letters: str, options: dict[str, Any], said: list[str]
) -> None:
    assert explain_match(pattern, logins(letters), **options).splitlines() == said


def test_rows_have_the_numbers_in_which_they_are_given() -> None:
    """Though they are looked at in order of event time, those of one time as they are given."""
    found = explain_match(Pattern.begin("a", FAIL).next("b", OK), logins("xfo")[::-1])
    assert found.splitlines()[1] == "  a: row 2; b: row 1"
    equal = [Login(status, 0.0, START) for status in ("ok", "fail", "ok")]
    assert "a: row 2; b: row 3" in explain_match(Pattern.begin("a", FAIL).next("b", OK), equal)


def test_rows_may_be_dicts() -> None:
    rows = [{"n": n, "day": date(2026, 1, n + 1), "at": START + timedelta(n)} for n in range(3)]
    first = Pattern.begin("a", col("n") == 0)
    assert "a: row 1; b: row 2" in explain_match(first.next("b"), rows)
    assert "(row 2: n = 1)" in explain_match(first.next("b", col("n") > 1), rows)
    assert "(row 2: day = 2026-01-02)" in explain_match(first.next("b", col("day") < date(2026, 1, 1)), rows)
    lacking = [{"at": START}, {"at": START, "m": 1}]
    schema = Schema((Field("m", INT64, nullable=True), Field("at", TIMESTAMP)))
    assert "row 1: m = None" in explain_match(Pattern.begin("a", col("m") > 1), lacking, schema=schema)


def test_which_column_is_the_event_time() -> None:
    rows = [{"at": START, "due": START + timedelta(5 - n), "n": n} for n in range(3)]
    assert "a: row 3; b: row 2; c: row 1" in explain_match(
        Pattern.begin("a").next("b").next("c"), rows, event_time="due"
    )


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "there are no rows"),
        ([{"n": 1}], {}, "0 columns are timestamps; say which one"),
        ([{"at": START, "due": START}], {}, "2 columns are timestamps; say which one"),
        ([{"at": START, "n": 1}], {"event_time": "n"}, "event_time='n' is no timestamp column"),
        ([{"at": START}, {"at": None}], {}, "row 2 has no event time: at is null"),
        ([{"at": START, "n": 1}, {"at": START, "n": "x"}], {}, "the rows have no columns of one type each"),
        ([Login("ok", 1.0, START), Login("ok", None, START)], {}, "row 2: amount"),  # type: ignore[arg-type]
        ([{"at": START}], {"within": "0s"}, "explain_match: within"),
        ([{"at": START}], {"after_match": ("to_first", "b")}, "after_match names 'b'"),
    ],
)
def test_rows_and_arguments_that_do_not_fit_are_refused(rows: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        explain_match(Pattern.begin("a"), rows, **options)


def test_what_fails_the_job_fails_here() -> None:
    with pytest.raises(UserCodeError, match="explain_match: the conditions failed on rows: conversion"):
        explain_match(Pattern.begin("a", col("status").cast(int) > 0), logins("f"))
