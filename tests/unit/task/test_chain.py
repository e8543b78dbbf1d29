"""What a chain hands on when much is due at once."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from penstock.protocol.messages import OperatorMetrics
from penstock.task.chain import Chain, DueOutput, Fanout
from penstock.task.operator import Operator, PartwiseOperator
from penstock.testing.harness import Collector


@pytest.fixture
def collected():
    return Collector()


def due_output(collected, late=None):
    output = Fanout(OperatorMetrics(), late)
    output.connect(collected, None)
    return DueOutput(output)


def numbers(begin, end):
    return pl.DataFrame({"n": range(begin, end)})


def test_what_is_due_is_handed_on_in_slices_and_others_run_between(collected):
    """In order, none lost, at most so many rows between two turns of others; small frames take no turn each."""
    due = due_output(collected)
    due.rows(numbers(0, 200_000))
    for n in range(1_000):
        due.rows(numbers(200_000 + n, 200_001 + n))
    assert not collected.frames
    seen = [sum(frame.height for frame in collected.frames) for _ in due.hand_on()]
    assert all(after - before <= 65_536 for before, after in zip([0, *seen], seen, strict=False))
    assert len(seen) == 3
    assert pl.concat(collected.frames)["n"].to_list() == list(range(201_000))
    assert list(due.hand_on()) == []


def test_rows_of_side_outputs_keep_their_place(collected):
    """Rows that go aside are handed on between those before and behind them, and counted where nobody takes them."""
    metrics, order = OperatorMetrics(), []

    class Receiver:
        def __init__(self, name):
            self.name = name

        def rows(self, frame):
            order.append((self.name, frame["n"].to_list()))

        def watermark(self, watermark):
            raise AssertionError

    output = Fanout(metrics, "late")
    output.connect(Receiver("main"), None)
    output.connect(Receiver("aside"), "tag")
    due = DueOutput(output)
    due.rows(numbers(0, 1))
    due.side("tag", numbers(1, 2))
    due.side("late", numbers(5, 9))
    due.rows(numbers(2, 3))
    assert list(due.hand_on()) == []
    assert order == [("main", [0]), ("aside", [1]), ("main", [2])]
    assert metrics.late_rows == 4


def test_what_is_emitted_in_one_call_is_not_all_kept(collected):
    """An operator that emits a frame after another holds the memory of some of them."""
    due = due_output(collected)
    for n in range(100):
        due.rows(numbers(20_000 * n, 20_000 * (n + 1)))
        assert sum(frame.height for frame in collected.frames) >= 20_000 * (n + 1) - 524_288
    for _ in due.hand_on():
        pass
    assert pl.concat(collected.frames)["n"].to_list() == list(range(2_000_000))


def test_consumers_go_on_with_what_fired_before_more_is_handed_on():
    """A slow function behind a window of many rows is called in parts."""
    calls = 0

    class Slow(PartwiseOperator):
        def process(self, frame, output):
            self.take(self._parts(frame))

        def _parts(self, frame):
            nonlocal calls
            for _ in frame.iter_slices(1_024):
                calls += 1
                yield

    class Fires(Operator):
        left = 3

        def process(self, frame, output):
            raise AssertionError

        def fire_due(self, watermark, output):
            output.rows(numbers(0, 150_000))
            self.left -= 1
            return self.left > 0

    slow = Slow()
    output = Fanout(OperatorMetrics(), None)
    output.connect(SimpleNamespace(rows=lambda frame: slow.process(frame, None)), None)
    chain = Chain(None, None)
    chain.operators = {
        "fires": SimpleNamespace(operator=Fires(), due=DueOutput(output)),
        "slow": SimpleNamespace(operator=slow, due=due_output(Collector())),
    }
    seen = [calls for _ in chain.fire_due(1)]
    assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) <= 2
    assert calls == 3 * (64 + 64 + 19)
