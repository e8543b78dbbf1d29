"""The examples in the docstrings of expressions are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pytest

import penstock
import penstock.expressions
from penstock.expressions.namespaces import ZonedNamespace
from penstock.expressions.surface import Expr
from penstock.testing import evaluate

NAMES = {name: getattr(penstock, name) for name in penstock.__all__} | {
    "UTC": UTC, "Decimal": Decimal, "date": date, "datetime": datetime, "evaluate": evaluate, "time": time,
    "timedelta": timedelta,
}  # fmt: skip


def _examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder()
    modules = [
        *(f"penstock.expressions.{module.name}" for module in pkgutil.iter_modules(penstock.expressions.__path__)),
        "penstock.testing.expressions",
    ]
    for name in modules:
        for found in finder.find(importlib.import_module(name), globs=NAMES):
            if found.examples and "bids" not in found.docstring:  # those run among the examples of the whole API
                yield found


EXAMPLES = list(_examples())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_gives_what_it_says(example: doctest.DocTest) -> None:
    """Every example in a docstring of the room prints what stands below it."""
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=said.append)
    assert result.attempted
    assert not result.failed, "".join(said)


def test_examples_are_found() -> None:
    """The finder sees methods of expressions, of namespaces and free functions."""
    found = {example.name for example in EXAMPLES}
    assert {
        f"{Expr.__module__}.Expr.replace",
        f"{ZonedNamespace.__module__}.ZonedNamespace.offset_by",
        "penstock.expressions.constructors.struct",
    } <= found
