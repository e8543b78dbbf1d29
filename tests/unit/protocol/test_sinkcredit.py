"""Credit of a sink's exchange."""

from __future__ import annotations

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
