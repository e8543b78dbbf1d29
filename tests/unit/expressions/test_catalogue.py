"""The catalogue is complete, and its page is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PipelineError
from penstock.expressions import functions_sql
from penstock.expressions.catalogue import CATALOGUE, SECTIONS, function, markdown

ROOT = Path(__file__).parents[3]


def test_the_page_is_current() -> None:
    """`docs/functions.md` is what the catalogue prints: run `python -m penstock.expressions.catalogue`."""
    assert (ROOT / "docs" / "functions.md").read_text(encoding="utf-8") == markdown()


def test_names_are_unique_and_documented() -> None:
    """Every row has a name of its own, a usage and a sentence."""
    rows = [row for section in (*(rows for _, rows in SECTIONS), functions_sql.ROWS) for row in section]
    assert len(rows) == len(CATALOGUE)
    assert all(row.usage and row.doc.endswith(".") for row in rows)


def test_an_unknown_function_is_named() -> None:
    """A JSON form of a newer release fails with the nearest name."""
    with pytest.raises(PipelineError, match=r"there is no function 'str.to_lower'; did you mean 'str.to_lowercase'\?"):
        function("str.to_lower")
