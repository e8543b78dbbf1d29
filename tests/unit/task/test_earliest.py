"""The earliest of times that come and go, against a list of them."""

from __future__ import annotations

import random

from penstock.task.operators.earliest import Earliest

SECOND = 1_000_000


def test_it_is_that_of_the_times_that_are_left() -> None:
    chance = random.Random(7)
    earliest, times = Earliest(), list[int]()
    for _ in range(5_000):
        if times and chance.random() < 0.5:
            earliest.remove([times.pop(chance.randrange(len(times)))])
        else:
            times.append(chance.randrange(-40 * SECOND, 40 * SECOND))
            earliest.add(times[-1:])
        assert earliest.second == (min(times) // SECOND if times else None)
    earliest.clear()
    assert earliest.second is None


def test_what_has_gone_behind_one_that_stays_takes_no_memory() -> None:
    earliest = Earliest()
    earliest.add([0])
    for second in range(1, 10_000):
        earliest.add([second * SECOND, second * SECOND])
        earliest.remove([second * SECOND, second * SECOND])
    assert earliest.second == 0
    assert len(earliest._order) < 100
    assert len(earliest._seconds) == 1
