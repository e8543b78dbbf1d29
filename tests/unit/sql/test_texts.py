"""Texts of SQL: what is accepted, how it is understood, and what is said of those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wrong_texts import FILE, entries, message

from penstock.sql.answers import completions
from penstock.sql.parsing import query, statements
from penstock.sql.syntax import Call, Constant, Part, Query, Select
from penstock.sql.text import SqlError, SqlText
from penstock.sql.tokens import tokens_of

WRONG = dict(entries())
RIGHT = (Path(__file__).parent / "right_texts.sql").read_text().splitlines()


@pytest.mark.parametrize("text", RIGHT)
def test_a_text_is_read(text: str) -> None:
    assert statements(SqlText(text))


@pytest.mark.parametrize("text", RIGHT)
def test_a_text_means_the_same_however_it_is_formatted(text: str) -> None:
    """Ids of operators and groups go by what a text says."""
    whole = SqlText(text)
    words = [whole.at(token.span) for token in tokens_of(whole)]
    assert statements(SqlText("\n\t".join(words))) == statements(whole)


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_text_is_refused_with_its_place(text: str) -> None:
    """`python tests/unit/sql/wrong_texts.py` writes the messages anew."""
    assert message(text) == WRONG[text].rstrip("\n")
    assert WRONG[text] != "nothing"


def test_all_wrong_texts_are_found() -> None:
    assert len(WRONG) == FILE.read_text().count("\n# ") + 1 > 300


_WORDS = """
SELECT FROM WHERE GROUP BY HAVING ORDER LIMIT JOIN LEFT ON AND OR NOT IN EXISTS BETWEEN LIKE IS NULL CASE WHEN THEN ELSE
END CAST AS INT OVER PARTITION ROWS UNION ALL VALUES WITH INTERVAL DAY CREATE TABLE INSERT INTO a b t 1 2.5 1e3 'x' `q`
( ) [ ] , . ; * + - / = < >= <> || => :: /*+ */ -- TUMBLE DESCRIPTOR COUNT SUM UNNEST
"""
WORDS = st.sampled_from(_WORDS.split())


def refusal(text: str) -> SqlError | None:
    try:
        statements(SqlText(text))
    except SqlError as error:
        return error
    return None


@given(st.lists(WORDS, max_size=25))
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    error = refusal(" ".join(words))
    assert error is None or (error.line == 1 and "^" in str(error))


@given(st.text(max_size=40))
def test_any_characters_are_read_or_refused(text: str) -> None:
    error = refusal(text)
    assert error is None or "^" in str(error)


def test_what_is_too_deep_is_refused() -> None:
    with pytest.raises(SqlError, match="one within the other"):
        query(SqlText("SELECT " + "(" * 5_000 + "1" + ")" * 5_000))
    with pytest.raises(SqlError, match="200 operands"):
        query(SqlText("SELECT " + " + ".join(["1"] * 2_000)))


def test_operators_bind_as_in_the_standard() -> None:
    assert _value("1 + 2 * 3") == Call("+", (Constant(1), Call("*", (Constant(2), Constant(3)))))
    assert _value("NOT 1 = 2 AND 3 = 4") == Call(
        "AND", (Call("NOT", (Call("=", (Constant(1), Constant(2))),)), Call("=", (Constant(3), Constant(4))))
    )
    assert _value("1 - 2 - 3") == Call("-", (Call("-", (Constant(1), Constant(2))), Constant(3)))
    assert _value("1 BETWEEN 2 AND 3 OR 4 = 5") == Call(
        "OR", (Call("BETWEEN", (Constant(1), Constant(2), Constant(3))), Call("=", (Constant(4), Constant(5))))
    )


def _value(text: str) -> Part:
    found = query(SqlText(f"SELECT {text}"))
    assert isinstance(found, Query)
    assert isinstance(found.body, Select)
    return found.body.items[0].expression


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SEL", "SELECT"),
        ("SELECT * FROM b", "bids"),
        ("SELECT pri", "price"),
        ("SELECT UPP", "UPPER("),
        ("SELECT * FROM bids WH", "WHERE"),
        ("SELECT a FROM bids GR", "GROUP BY"),
        ("INSERT ", "INTO"),
    ],
)
def test_completion_knows_what_may_follow(text: str, expected: str) -> None:
    assert expected in completions(text, ["bids"], ["price"])


def test_a_message_shows_the_line_and_the_part() -> None:
    with pytest.raises(SqlError) as caught:
        statements(SqlText("SELECT 1\n  FROM t\n WHERE x = =", "jobs.sql"))
    assert str(caught.value) == (
        "jobs.sql:3:12: '=' cannot stand here: expected '-', '+' or an expression\n"
        "   3 |  WHERE x = =\n"
        "     |            ^"
    )
