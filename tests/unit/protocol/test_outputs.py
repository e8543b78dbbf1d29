"""Sequence numbers, confirmations and credit of what a subtask sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.protocol.outputs import OutputId, OutputLedger

ONE, TWO = OutputId("k", 0, 0), OutputId("k", 0, 1)


@pytest.fixture
def ledger() -> OutputLedger:
    return OutputLedger("a" * 32, 3, [ONE, TWO], credit_bytes=100)


def test_seqs_are_dense_per_partition(ledger: OutputLedger):
    """Frames of all kinds share the numbers of a partition, rows have ordinals of their own."""
    frames = [ledger.data(ONE, 5, 10), ledger.watermark(ONE, 7), ledger.data(ONE, 2, 10), ledger.data(TWO, 1, 10)]
    assert [(f.seq, f.ordinal) for f in frames] == [(0, 0), (1, 0), (2, 5), (0, 0)]
    assert frames[0].channel.producer == 3
    assert ledger.last_seqs() == {ONE: 2, TWO: 0}


def test_confirmations_are_individual(ledger: OutputLedger):
    """Everything up to a barrier is confirmed only when every frame is."""
    ledger.data(ONE, 1, 1)
    ledger.barrier(ONE, 1, "n", "aligned")
    seqs = ledger.last_seqs()
    ledger.confirmed(ONE, 0)
    assert not ledger.all_confirmed(seqs)
    ledger.confirmed(ONE, 1)
    assert ledger.all_confirmed(seqs)


def test_confirmations_come_in_order(ledger: OutputLedger):
    """A confirmation out of order means that the log is not what it promises to be."""
    ledger.data(ONE, 1, 1)
    ledger.data(ONE, 1, 1)
    with pytest.raises(ProtocolError, match="frame 1 confirmed after -1"):
        ledger.confirmed(ONE, 1)


def test_a_partition_without_credit_blocks(ledger: OutputLedger):
    """Credit comes back with what the consumer has processed; older reports are ignored."""
    ledger.data(ONE, 1, 150)
    assert list(ledger.blocked()) == [ONE]
    ledger.credit_reported(ONE, 150)
    ledger.credit_reported(ONE, 20)
    assert not ledger.blocked()


OUTPUTS = [OutputId("k", 0, partition) for partition in range(4)]
SENT = st.tuples(st.just("sent"), st.integers(0, 3), st.integers(0, 40))
PROCESSED = st.tuples(st.just("processed"), st.integers(0, 3), st.integers(0, 300))


@given(st.lists(SENT | PROCESSED, max_size=60))
def test_what_is_blocked_is_what_has_no_credit(steps: list[tuple[str, int, int]]):
    """The set that is kept up is what looking at every output finds."""
    ledger = OutputLedger("a" * 32, 0, OUTPUTS, credit_bytes=50)
    sent, processed = dict.fromkeys(OUTPUTS, 0), dict.fromkeys(OUTPUTS, 0)
    for what, number, size in steps:
        output = OUTPUTS[number]
        if what == "sent":
            ledger.data(output, 1, size)
            sent[output] += size
        else:
            ledger.credit_reported(output, size)
            processed[output] = max(processed[output], size)
        assert set(ledger.blocked()) == {o for o in OUTPUTS if sent[o] - processed[o] >= 50}


def test_credit_of_many_outputs_is_looked_up(monkeypatch: pytest.MonkeyPatch):
    """Whether anything is blocked is asked before every event: that must not look at all outputs."""
    ledger = OutputLedger("a" * 32, 0, [OutputId("k", 0, n) for n in range(1_000)], credit_bytes=50)
    ledger.data(OutputId("k", 0, 7), 1, 60)
    monkeypatch.setattr(ledger, "_outputs", None)
    assert ledger.blocked()
