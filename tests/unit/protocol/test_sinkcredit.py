"""Credit of a sink's exchange."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.frames import Channel
from penstock.protocol.sinkcredit import SinkCredit

ONE = Channel(0, 0)


def test_a_scanned_frame_gives_its_credit_back():
    """A barrier behind a full channel would never come if credit waited for its own COMPLETE."""
    credit = SinkCredit(100)
    credit.scanned(ONE, 500, 1)
    assert credit.processed_bytes() == {ONE: 500}


def test_what_is_complete_and_not_published_withholds_credit():
    """A slow sink slows its producers, beyond a limit."""
    credit = SinkCredit(100)
    credit.scanned(ONE, 500, 1)
    credit.covered(1)
    assert credit.processed_bytes() == {ONE: 100}
    credit.published(1)
    assert credit.processed_bytes() == {ONE: 500}


@given(st.lists(st.tuples(st.sampled_from(["scanned", "covered", "published"]), st.integers(0, 12)), max_size=60))
def test_what_waits_is_kept_up(steps: list[tuple[str, int]]):
    """The sum that is kept is that of the frames which are covered and not published."""
    credit = SinkCredit(5)
    frames: list[tuple[int, int]] = []
    covered = published = 0
    for what, number in steps:
        if what == "scanned":
            frames.append((len(frames) + 1, number))
            credit.scanned(ONE, number, len(frames))
        elif what == "covered":
            covered = max(covered, number)
            credit.covered(number)
        else:
            published = max(published, min(number, len(frames)))
            credit.published(min(number, len(frames)))
        assert credit.waiting_bytes == sum(size for end, size in frames if published < end <= covered)
