"""What becomes of a user's classes on their way to tasks."""

from __future__ import annotations

import dataclasses
from typing import Any

from pyspark import cloudpickle as sparks

from penstock import Pipeline
from penstock.connectors import collecting, iterables
from penstock.spark.pickling import pickle_plan


def made_here() -> Any:
    """A class of this call alone, which is pickled by value."""

    @dataclasses.dataclass
    class Sale:
        item: str
        euros: int = 3
        tags: list[str] = dataclasses.field(default_factory=list)

    return Sale


def test_a_field_without_default_has_none_in_a_task() -> None:
    """A copy of what stands for no default would be taken for one."""
    cls = made_here()
    p = Pipeline("sales")
    p.read(iterables.Source([cls("tea")], schema=cls)).map(lambda sale: sale, returns=cls).write(collecting.Sink())
    plan = sparks.loads(pickle_plan(p.plan).data)
    there = dataclasses.fields(plan.nodes[0].operation.source.row_type)
    assert [field.default for field in there] == [dataclasses.MISSING, 3, dataclasses.MISSING]
    assert there[2].default_factory is list
