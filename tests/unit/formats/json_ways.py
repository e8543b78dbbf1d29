"""The two ways of `JsonDecoder` beside each other: the exact one defines what is right, the fast one must give it too."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from penstock.formats import decoding
from penstock.formats.decoding import Decoded, JsonDecoder
from penstock.types import Schema


def exact_decoder(schema: Schema) -> JsonDecoder:
    """A decoder without its fast way."""
    decoder = JsonDecoder(schema)
    decoder._fast = decoder._decode_row = None
    return decoder


def same(found: Decoded, expected: Decoded) -> None:
    """The same rows, to the last bit of floats, and the same bad records with the same words."""
    assert found.frame.schema == expected.frame.schema
    assert str(found.frame.rows()) == str(expected.frame.rows())  # which tells -0.0 from 0.0
    assert [(line.index, line.error, line.raw) for line in found.bad] == [
        (line.index, line.error, line.raw) for line in expected.bad
    ]


@contextmanager
def pieces_of(size: int) -> Generator[None]:
    """Let so few messages be a piece, and be split, that it happens in a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "_PIECE_VALUES", 2 * size)
        patch.setattr(decoding, "_FEWEST_VALUES", max(1, size // 2))
        patch.setattr(decoding, "_SPLIT", 2)
        patch.setattr(decoding, "_MOST_FAILURES", 3)
        yield
