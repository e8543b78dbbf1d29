"""State that an operator is not given: all of a key goes with it or none, and it comes out again as it was."""

from __future__ import annotations

import os
import random

import numpy as np
import polars as pl
import pytest

from penstock.spark.state_passthrough import ActiveKeys, Segments, StatePassthrough
from penstock.state.keyed_backend import EVENT_TIMERS, PROCESSING_TIMERS
from penstock.state.segments import decode_segment, encode_segment

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))
KEYS = [{"name": "key", "type": "int64"}]
NAMES = ["seen", "kept", EVENT_TIMERS, PROCESSING_TIMERS]
Entry = tuple[int, int, int | None]
"""Key, state, time."""


def segment(entries: list[Entry], **header: object) -> bytes:
    schema = {"key": pl.Int64(), "__state": pl.UInt16(), "__time_us": pl.Int64()}
    frame = pl.DataFrame(entries, schema=schema, orient="row")
    return encode_segment({"kind": "objects", "names": NAMES, "keys": KEYS, **header}, frame)


def entries(data: bytes) -> list[Entry]:
    return [(key, state, time) for key, state, time in decode_segment(data, "counting")[1].rows()]


def asked(keys: list[int], watermark: int = 100, now_us: int = 1_000) -> ActiveKeys:
    return ActiveKeys.by([pl.DataFrame({"key": pl.Series(keys, dtype=pl.Int64)})], ["key"], watermark, now_us)


def one_run(segments: dict[int, bytes]) -> list[tuple[int, list[tuple[int, bytes]]]]:
    """State that is stored whole."""
    return [(group, [(0, data)]) for group, data in segments.items()]


def refused(_: Segments) -> Segments:
    raise AssertionError("nothing has another form")


@pytest.mark.parametrize("history", range(100))
def test_an_operator_has_all_of_the_keys_that_something_happens_to(history: int) -> None:
    """By rows, by timers that are due, by values that have expired; what it is not given comes out with what it keeps."""
    rng = random.Random(f"{SEED} {history}")
    print(f"repeat with PENSTOCK_TEST_SEED={SEED}")
    stored = {
        group: [
            (rng.randrange(20) * 8 + group, rng.randrange(3), rng.choice([None, rng.randrange(2_000)]))
            for _ in range(rng.randrange(1, 30))
        ]
        for group in range(rng.randrange(1, 6))
    }
    rows = [rng.randrange(160) for _ in range(rng.randrange(5))]
    expected = set(rows)
    for some in stored.values():
        expected |= {k for k, state, time in some if time is not None and time <= (100 if state == 2 else 1_000)}
    passthrough = StatePassthrough("counting")
    given = dict(
        passthrough.take_active(one_run({group: segment(some) for group, some in stored.items()}), asked(rows))
    )
    for group, some in stored.items():
        wanted = [entry for entry in some if entry[0] in expected]
        assert (entries(given[group]) if group in given else []) == wanted
    # The operator forgets some keys, keeps others and makes new ones.
    kept = {group: [entry for entry in entries(data) if entry[0] % 3] for group, data in given.items()}
    kept |= {7: [(7, 0, None)]}
    written = dict(passthrough.merge_back([(group, segment(some)) for group, some in kept.items() if some], refused))
    assert list(written) == sorted(written)
    left = {group: [entry for entry in some if entry[0] not in expected] for group, some in stored.items()}
    for group in {*stored, *kept}:
        whole = [*kept.get(group, ()), *left.get(group, ())]
        assert (entries(written[group]) if group in written else []) == whole


def test_what_nobody_asks_for_is_not_made_anew() -> None:
    """The very bytes, of a segment that is no object state either."""
    frame = pl.DataFrame({"key": np.arange(10), "__n": np.arange(10)})
    data = encode_segment({"kind": "running", "keys": KEYS}, frame)
    passthrough = StatePassthrough("counting")
    assert passthrough.take_active(one_run({3: data}), asked([])) == []
    assert dict(passthrough.merge_back([], refused)) == {3: data}
    other = StatePassthrough("counting")
    assert other.take_active(one_run({3: data}), asked(list(range(10)))) == [(3, data)]
    assert not other.whole


def test_what_is_stored_in_another_form_is_made_anew_by_the_operator() -> None:
    """A version of Penstock that writes something else beside the rows meets what another one has written."""
    passthrough = StatePassthrough("counting")
    (given,) = passthrough.take_active(one_run({0: segment([(8, 0, None), (16, 0, None)])}), asked([8]))
    seen: list[Segments] = []

    def again(segments: Segments) -> Segments:
        seen.append(segments)
        return [(0, segment([entry for _, data in segments for entry in entries(data)], form="new"))]

    ((group, data),) = passthrough.merge_back([(0, segment(entries(given[1]), form="new"))], again)
    assert group == 0
    assert entries(data) == [(8, 0, None), (16, 0, None)]
    assert len(seen) == 1


def test_what_a_job_left_in_parts_that_add_up_is_given_whole_and_written_as_steps_write() -> None:
    """Nothing of it is put back as it was: no run of a step says that it adds to another one."""
    stored = segment([(1, 0, None), (2, 0, None)], adds=True)
    for kept in (0, 1):
        passthrough = StatePassthrough("counting", kept)
        taken = passthrough.take_active([(0, [(0, stored)])], asked([1]))
        assert [key for _, data in taken for key, _, _ in entries(data)] == [1, 2]
        written = list(passthrough.merge_back([(0, segment([(1, 1, None), (2, 0, None)]))], refused))
        assert [key for _, data in written for key, _, _ in entries(data)] == [1, 2]
        assert all("adds" not in decode_segment(data, "counting")[0] for _, data in written)
