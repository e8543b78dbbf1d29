"""Kafka's default partitioner for whole columns: murmur2 of the key, as the Java client has it.

Records of one key so reach the partition that any other client would choose. Vectorised: keys are laid out as a matrix
of 4-byte words and hashed side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

_SEED = 0x9747B28C
_M = 0x5BD1E995


def key_hashes(keys: pl.Series) -> pl.Series:
    """The positive murmur2 hash of each key (Binary): its remainder by the partitions is the partition. Null of null."""
    import numpy as np
    import polars as pl

    data, offsets = _layout(keys)
    lengths = np.diff(offsets)
    result = np.zeros(len(keys), np.uint32)
    # One matrix per class of lengths: a single long key must not make all others as wide.
    classes = (lengths + 15) // 16
    for width in np.unique(classes):
        rows = np.flatnonzero(classes == width)
        matrix = _matrix(data, offsets[rows], lengths[rows], max(4, int(width) * 16))
        result[rows] = _murmur2(matrix, lengths[rows])
    hashed = pl.Series((result & np.uint32(0x7FFFFFFF)).astype(np.int32))
    return pl.select(pl.when(keys.is_not_null()).then(hashed)).to_series() if keys.null_count() else hashed


def _layout(keys: pl.Series) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All keys one behind the other, and where each begins and the last ends. A null is as long as an empty key."""
    import numpy as np
    import polars as pl

    # By Arrow's buffers: an expression of Polars costs more than the hashes of a hundred keys.
    array = (keys.fill_null(b"") if keys.null_count() else keys).to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = cast("list[Any]", array.buffers())
    begins = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8), begins


def _matrix(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int
) -> NDArray[np.uint8]:
    """Keys as rows of bytes, padded with zeros."""
    import numpy as np

    matrix = np.zeros((len(starts), width), np.uint8)
    rows = np.repeat(np.arange(len(starts)), lengths)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    matrix[rows, within] = data[np.repeat(starts, lengths) + within]
    return matrix


def _murmur2(matrix: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    import numpy as np

    multiplier = np.uint32(_M)
    words = matrix.view("<u4")
    whole = lengths // 4
    result = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    for index in range(words.shape[1]):
        active = index < whole
        mixed = words[:, index] * multiplier
        mixed ^= mixed >> np.uint32(24)
        mixed *= multiplier
        result = np.where(active, (result * multiplier) ^ mixed, result)
    # the last one to three bytes: the padding is zero, so the word they stand in is what Java puts together
    left = lengths % 4
    last = np.minimum(whole, words.shape[1] - 1)
    tail = words[np.arange(len(words)), last]
    result = np.where(left > 0, (result ^ tail) * multiplier, result)
    result ^= result >> np.uint32(13)
    result *= multiplier
    result ^= result >> np.uint32(15)
    return result
