"""Which frames of an exchange count, in what order, and when a snapshot is due."""

from __future__ import annotations

import pytest

from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.errors import ProtocolError
from penstock.protocol.channels import AdvanceWatermark, Align, BecomeIdle, Deliver, GapError, InputGate
from penstock.protocol.frames import Channel, Frame, FrameKind

ATTEMPT, OTHER = "a" * 32, "b" * 32
LEFT, RIGHT = Channel(0, 0), Channel(0, 1)


class Sender:
    """Cuts the frames of one channel."""

    def __init__(self, gate: InputGate, channel: Channel) -> None:
        self.gate, self.channel, self.seq, self.ordinal = gate, channel, 0, 0

    def _send(self, kind: FrameKind, ref: object = None, **fields: object):
        frame = Frame(kind, ATTEMPT, self.channel, self.seq, self.ordinal, **fields)
        self.seq += 1
        self.ordinal += frame.rows
        return self.gate.receive(frame, ref, 10 if kind is FrameKind.DATA else 0)

    def data(self, ref: str, rows: int = 1, *, timed: bool = False):
        return self._send(FrameKind.DATA, ref, rows=rows, timed=timed)

    def barrier(self, checkpoint: int, nonce: str = "n", flavour: str = "aligned"):
        return self._send(FrameKind.BARRIER, checkpoint=checkpoint, nonce=nonce, flavour=flavour)

    def watermark(self, watermark: int):
        return self._send(FrameKind.WATERMARK, watermark=watermark)

    def idle(self):
        return self._send(FrameKind.IDLE)


@pytest.fixture
def gate() -> InputGate:
    return InputGate(ATTEMPT, [LEFT, RIGHT])


@pytest.fixture
def left(gate: InputGate) -> Sender:
    return Sender(gate, LEFT)


@pytest.fixture
def right(gate: InputGate) -> Sender:
    return Sender(gate, RIGHT)


def refs(commands: list[object]) -> list[object]:
    return [command.ref for command in commands if isinstance(command, Deliver)]


def test_frames_of_another_attempt_are_dropped(gate: InputGate):
    """What a zombie still writes is none of this attempt's business, whatever its seq."""
    assert gate.receive(Frame(FrameKind.DATA, OTHER, LEFT, 7, rows=1), "zombie", 10) == []


def test_a_repeated_frame_is_dropped(gate: InputGate, left: Sender):
    """The transport may repeat a frame; it is delivered once."""
    assert refs(left.data("row")) == ["row"]
    assert gate.receive(Frame(FrameKind.DATA, ATTEMPT, LEFT, 0, rows=1), "row", 10) == []


def test_a_missing_frame_fails_the_attempt(left: Sender):
    """Going on behind a gap would lose rows."""
    left.data("first")
    left.seq += 1
    with pytest.raises(GapError, match="frame 2 follows 0"):
        left.data("third")


def test_row_ordinals_must_be_dense(left: Sender):
    """A frame whose rows do not follow those read before is a gap as well."""
    left.data("first", rows=2)
    left.ordinal = 5
    with pytest.raises(GapError, match="ordinal 5"):
        left.data("second")


def test_an_unknown_channel_is_an_error(gate: InputGate):
    """A frame of a channel that the deployment does not name comes from another job."""
    with pytest.raises(ProtocolError, match="unknown channel"):
        gate.receive(Frame(FrameKind.DATA, ATTEMPT, Channel(3, 0), 0, rows=1), None, 1)


def test_alignment_holds_back_what_stands_behind_a_barrier(gate: InputGate, left: Sender, right: Sender):
    """The snapshot is due when the last barrier came; then what was held back follows in order."""
    assert left.barrier(1) == []
    assert gate.aligning == (1, "n")
    assert refs(left.data("behind")) == []
    assert gate.stashed_bytes == 10
    assert refs(right.data("before")) == ["before"]
    assert right.barrier(1) == [Align(1, "n", "aligned")]
    assert refs(right.data("behind too")) == []
    assert refs(gate.resume()) == ["behind", "behind too"]
    assert gate.aligning is None


def test_several_barriers_are_taken_one_after_another(gate: InputGate, left: Sender, right: Sender):
    """A second checkpoint may be stashed behind the first one."""
    left.barrier(1)
    left.data("between")
    left.barrier(2)
    right.barrier(1)
    assert refs(gate.resume()) == ["between"]
    assert right.barrier(2) == [Align(2, "n", "aligned")]


def test_at_least_once_holds_nothing_back(left: Sender, right: Sender):
    """Rows flow past the barrier until the last one came."""
    left.barrier(1, flavour="at_least_once")
    assert refs(left.data("behind")) == ["behind"]
    assert right.barrier(1, flavour="at_least_once") == [Align(1, "n", "at_least_once")]


def test_channels_that_disagree_on_barriers_fail_the_attempt(left: Sender, right: Sender):
    """Every accepted barrier flows through every channel, in the same order and with its nonce."""
    left.barrier(1)
    with pytest.raises(ProtocolError, match="disagree"):
        right.barrier(2)


def test_resume_needs_a_snapshot_that_was_due(gate: InputGate):
    """Resuming twice would let rows pass a barrier."""
    with pytest.raises(ProtocolError, match="resume"):
        gate.resume()


def test_the_watermark_is_the_minimum_of_active_channels(left: Sender, right: Sender):
    """Event time advances with the slowest channel and never goes back."""
    assert left.watermark(5) == []
    assert right.watermark(3) == [AdvanceWatermark(3)]
    assert right.watermark(2) == []
    assert right.watermark(9) == [AdvanceWatermark(5)]


def test_time_within_a_frame_is_bounded_by_the_other_channels(gate: InputGate, left: Sender, right: Sender):
    """Rows of one channel cannot bring all of them further than the others have come, before and behind a watermark."""
    (first,) = left.data("a", timed=True)
    assert first.bounds == (MIN_WATERMARK, MIN_WATERMARK)
    right.watermark(7)
    (second,) = left.data("b", timed=True)
    assert second.bounds == (MIN_WATERMARK, 7)
    left.watermark(5)
    (third,) = left.data("c", timed=True)
    assert third.bounds == (5, 7)
    right.idle()
    (fourth,) = left.data("d", timed=True)
    assert fourth.bounds == (5, MAX_WATERMARK)
    assert left.data("e")[0].bounds is None


def test_what_was_held_back_is_bounded_by_what_was_reached_at_its_place(gate: InputGate, left: Sender, right: Sender):
    """Frames behind a barrier are handed on together; those behind a frame do not move time before it."""
    left.watermark(1)
    right.watermark(1)
    left.barrier(1)
    left.data("a", timed=True)
    left.watermark(20)
    right.watermark(3)
    right.barrier(1)
    right.data("b", timed=True)
    right.watermark(30)
    delivered = {command.ref: command.bounds for command in gate.resume() if isinstance(command, Deliver)}
    assert delivered == {"a": (1, 3), "b": (3, 20)}


def test_idle_channels_are_not_waited_for(left: Sender, right: Sender):
    """An idle channel does not hold event time back; if all are idle, the subtask is, at the greatest watermark."""
    left.watermark(5)
    assert right.idle() == [AdvanceWatermark(5)]
    assert left.idle() == [BecomeIdle()]
    assert refs(right.data("again")) == ["again"]


def test_rows_wake_an_idle_channel(left: Sender, right: Sender):
    """Event time waits for it again, although its next watermark has not come yet, if it is not behind."""
    left.watermark(100)
    right.watermark(150)
    right.idle()
    right.data("row")
    assert left.watermark(200) == [AdvanceWatermark(150)], "the next rows of the other channel may be older than 200"
    right.idle()
    assert left.watermark(201) == [AdvanceWatermark(201)]


def test_rows_of_a_channel_that_is_behind_do_not_stop_event_time(left: Sender, right: Sender):
    """They are late, and stay so however long one waits; once the channel has caught up it counts again."""
    left.watermark(100)
    right.watermark(50)
    right.idle()
    right.data("row")
    assert left.watermark(120) == [AdvanceWatermark(120)]
    assert right.watermark(119) == []
    assert left.watermark(130) == [AdvanceWatermark(130)]
    assert right.watermark(130) == []
    assert left.watermark(150) == []
    assert right.watermark(140) == [AdvanceWatermark(140)]


def test_rows_wake_a_gate_whose_channels_were_all_idle(left: Sender, right: Sender):
    """When they are idle again, consumers are told so again."""
    left.idle()
    assert right.idle() == [BecomeIdle()]
    left.data("row")
    assert left.idle() == [BecomeIdle()]


def test_a_gate_has_ended_when_every_channel_has(gate: InputGate, left: Sender, right: Sender):
    """The maximum watermark on every channel is the end of the input."""
    left.watermark(MAX_WATERMARK)
    assert not gate.ended
    right.watermark(MAX_WATERMARK)
    assert gate.ended


def test_stashed_frames_count_against_their_own_channel_only(gate: InputGate, left: Sender, right: Sender):
    """A fast channel must not take the credit that a slow one needs to reach its barrier."""
    left.barrier(1)
    left.data("behind")
    right.data("before")
    assert gate.processed_bytes() == {LEFT: 0, RIGHT: 10}


def test_a_channel_that_has_ended_beside_one_that_rests_is_no_end():
    """Operators end with the last watermark, and the one that rests may go on, however often either says so."""
    for idle_first in (True, False):
        gate = InputGate(ATTEMPT, [LEFT, RIGHT])
        left, right = Sender(gate, LEFT), Sender(gate, RIGHT)
        assert right.watermark(5) == []
        assert left.watermark(3) == [AdvanceWatermark(3)]
        if idle_first:
            assert right.idle() == []
            assert left.watermark(MAX_WATERMARK) == [AdvanceWatermark(5), BecomeIdle()]
        else:
            assert left.watermark(MAX_WATERMARK) == [AdvanceWatermark(5)]
            assert right.idle() == [BecomeIdle()]
        assert not gate.ended
        assert [type(each) for each in right.data("a")] == [Deliver]
        assert right.watermark(7) == [AdvanceWatermark(7)]
        assert right.watermark(MAX_WATERMARK) == [AdvanceWatermark(MAX_WATERMARK)]
        assert gate.ended
