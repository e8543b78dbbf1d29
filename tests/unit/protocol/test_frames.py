"""The frame on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptDataError
from penstock.protocol.frames import HEADER_BYTES, Channel, Frame, FrameKind, decode_frame

ATTEMPT = bytes(range(16)).hex()
GOLDEN = (
    "5046" "01" "00" "000102030405060708090a0b0c0d0e0f" "0200" "0300" "05000000" "0700000000000000" "0900000000000000"
    "0000000000000000" "0000000000000000" "00" "000000" "7061796c6f6164"
)  # fmt: skip


def test_the_layout_is_pinned():
    """These bytes are what every version of this format must read and write."""
    frame = Frame(FrameKind.DATA, ATTEMPT, Channel(2, 3), seq=7, ordinal=9, rows=5)
    assert frame.encode(b"payload").hex() == GOLDEN
    decoded, payload = decode_frame(bytes.fromhex(GOLDEN))
    assert decoded == frame
    assert bytes(payload) == b"payload"


def test_a_frame_whose_rows_carry_watermarks_is_refused_by_older_programs():
    """They read version 1 and would take the further column for damage; all other frames stay as they were."""
    frame = Frame(FrameKind.DATA, ATTEMPT, Channel(2, 3), seq=7, ordinal=9, rows=5, timed=True)
    encoded = frame.encode(b"payload")
    assert encoded.hex() == GOLDEN[:4] + "02" + GOLDEN[6:]
    assert decode_frame(encoded)[0] == frame


@pytest.mark.parametrize("timed", [False, True])
def test_a_frame_of_combined_rows_is_refused_by_older_programs(timed: bool):
    """They read versions 1 and 2; whether rows carry watermarks stands in a byte that was zero."""
    frame = Frame(FrameKind.DATA, ATTEMPT, Channel(2, 3), seq=7, ordinal=9, rows=5, timed=timed, combined=True)
    encoded = frame.encode(b"payload")
    assert encoded[2] == 3
    assert decode_frame(encoded)[0] == frame


def test_a_barrier_carries_checkpoint_nonce_and_flavour():
    """The field of the watermark is the checkpoint's number there."""
    frame = Frame(
        FrameKind.BARRIER, ATTEMPT, Channel(0, 0), 1, checkpoint=42, nonce="00ff" * 4, flavour="at_least_once"
    )
    assert decode_frame(frame.encode())[0] == frame
    assert len(frame.encode()) == HEADER_BYTES == 64


@given(
    kind=st.sampled_from([FrameKind.DATA, FrameKind.WATERMARK, FrameKind.IDLE]),
    seq=st.integers(0, 2**63 - 1),
    ordinal=st.integers(0, 2**63 - 1),
    rows=st.integers(0, 2**32 - 1),
    watermark=st.integers(-(2**63), 2**63 - 1),
    payload=st.binary(max_size=100),
)
@settings(max_examples=100, deadline=None)
def test_frames_survive_encoding(kind: FrameKind, seq: int, ordinal: int, rows: int, watermark: int, payload: bytes):
    """Every header and payload comes back."""
    frame = Frame(kind, ATTEMPT, Channel(1, 2), seq, ordinal, rows, watermark)
    decoded, rest = decode_frame(frame.encode(payload))
    assert decoded == frame
    assert bytes(rest) == payload


@given(st.one_of(st.binary(max_size=200), st.binary(min_size=62, max_size=200).map(lambda data: b"PF\x01" + data)))
@settings(max_examples=300, deadline=None)
def test_foreign_bytes_are_frames_or_corrupt(value: bytes):
    """Decoding never fails in any other way."""
    try:
        decode_frame(value)
    except CorruptDataError:
        return


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [(0, 0x51, "not a frame"), (2, 9, "version 9"), (3, 7, "unknown kind"), (60, 5, "unknown kind")],
)
def test_damage_is_named(position: int, value: int, message: str):
    """The message says what is wrong."""
    data = bytearray(bytes.fromhex(GOLDEN))
    data[position] = value
    with pytest.raises(CorruptDataError, match=message):
        decode_frame(bytes(data))
