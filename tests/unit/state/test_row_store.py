"""Rows by id: what is there is found, in any order, whatever was merged and deleted since."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state import row_store
from penstock.state.row_store import RowStore, RowView

TYPES = {"number": pl.Int64(), "some": pl.List(pl.String())}
_STEPS = st.lists(st.tuples(st.sampled_from(["append", "append", "delete", "view"]), st.integers(1, 9)), max_size=40)


def rows_of(numbers: list[int]) -> pl.DataFrame:
    some = [None if number % 3 == 0 else [str(number), None][: number % 3] for number in numbers]
    return pl.DataFrame({"number": numbers, "some": some}, schema=TYPES)


def check(view: RowView, ids: dict[int, int], chance: Any) -> None:
    """Every row, in an order drawn by chance, is what was appended."""
    asked = list(ids)
    chance.shuffle(asked)
    assert view.rows(np.array(asked, np.int64)).equals(rows_of([ids[one] for one in asked]))


@given(steps=_STEPS, chance=st.randoms(use_true_random=False))
def test_rows_are_found_by_their_ids_and_views_do_not_change(steps: list[tuple[str, int]], chance: Any) -> None:
    """Against a dictionary, with blocks so small that few rows make many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_store, "_LEAST_ROWS", 2)
        store, there, views, number = RowStore(TYPES), dict[int, int](), list[tuple[RowView, dict[int, int]]](), 0
        for step, count in steps:
            if step == "append":
                numbers = list(range(number, number + count))
                number += count
                fresh = store.append(rows_of(numbers))
                assert not there.keys() & set(fresh)
                there.update(zip(fresh, numbers, strict=True))
            elif step == "delete":
                gone = chance.sample(list(there), min(count, len(there)))
                store.delete(np.array(gone, np.int64))
                for one in gone:
                    del there[one]
            else:
                views.append((store.view(), dict(there)))
            check(store.view(), there, chance)
            assert store.empty == (not there)
            assert store.height <= max(2 * len(there), 2)
        for view, then in views:
            check(view, then, chance)
