"""What is no name, and how a text that somebody else chose is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import OutputTag, Pipeline, PipelineError, col
from penstock.connectors import iterables
from penstock.core.names import shown, wrong_name
from penstock.types import INT64, Field, Schema

BAD = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "a\\b",
    "x\ny",
    "x\ry",
    "x\ty",
    "\x1b[2K",
    "a\x00b",
    "\x7f",
    "\x9b",
    "\u2028",
    "\u202e",
]


@pytest.mark.parametrize("name", BAD)
def test_separators_control_characters_and_folders_are_no_names(name: str) -> None:
    """Whatever the name is of."""
    assert wrong_name(name)
    with pytest.raises(PipelineError, match="is no name"):
        Pipeline(name)
    rows = Pipeline("p").read(iterables.Source([], schema=Schema((Field("n", INT64),))))
    with pytest.raises(PipelineError, match="is no name"):
        rows.filter(col("n") > 1).uid(name)
    with pytest.raises(PipelineError, match="is no name"):
        OutputTag(name)


@pytest.mark.parametrize("name", ["p", "orders-2026.v1", "späti_βeta", "..x", "日本"])
def test_names_of_any_language_are_some(name: str) -> None:
    assert not wrong_name(name)
    assert Pipeline(name).name == name


@given(st.text())
def test_what_is_shown_can_be_printed_and_is_one_line(text: str) -> None:
    assert shown(text).isprintable()
    assert len(shown(text).splitlines()) <= 1
    assert shown(text, lines=True).replace("\n", "").replace("\t", "").isprintable()
    if text.isprintable():
        assert shown(text) == text


def test_escapes_are_those_of_python() -> None:
    assert shown("a\x1b[2K\nb\u202ec\U000e0001") == r"a\x1b[2K\x0ab\u202ec\U000e0001"
    assert shown("a\nb\x1b", lines=True) == "a\nb\\x1b"
