"""The reference is that of the code, and leaves nothing out."""

from __future__ import annotations

import inspect
from pathlib import Path

from public_api import public
from tools.reference import entries, page

ROOT = Path(__file__).parents[3]
IN_THE_CATALOGUE = "penstock.expressions"
"""Functions of expressions are in `docs/functions.md`."""


def test_the_page_is_current() -> None:
    """`docs/reference.md` is what the tool prints: run `python -m tools.reference > docs/reference.md`."""
    assert (ROOT / "docs" / "reference.md").read_text(encoding="utf-8") == page()


def test_everything_public_is_explained() -> None:
    """What users call, but for expressions."""
    explained = {inspect.unwrap(value) for _, value in entries()}
    called = {name: inspect.unwrap(value) for name, value in public()}
    missing = [name for name, value in called.items() if value not in explained]
    assert [name for name in missing if not called[name].__module__.startswith(IN_THE_CATALOGUE)] == []


def test_an_entry_stands_once() -> None:
    """Under one name."""
    names = [name for name, _ in entries()]
    assert len(names) == len(set(names))


def test_what_it_says_to_import_is_there() -> None:
    """The first code block of each part."""
    blocks = [part.split("```python\n")[1].split("```")[0] for part in page().split("\n## ")[1:]]
    assert all(block.startswith("from penstock") for block in blocks)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert {"Pipeline", "Accumulator", "files", "evaluate", "elapse", "run_pipeline"} <= names.keys()
