"""Sequence numbers, confirmations and credit of what a subtask sends."""

from __future__ import annotations

import pytest

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
    assert ledger.blocked() == [ONE]
    ledger.credit_reported(ONE, 150)
    ledger.credit_reported(ONE, 20)
    assert ledger.blocked() == []
