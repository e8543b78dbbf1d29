"""Numbers of different values, estimated from the least hashes: the theta sketch (K minimum values).

Of the hashes of all values a partial keeps the 4,096 least different ones. Merging is their union, cut again, so what is
kept depends on the values alone: on no batch, no order, no seed and no path of merging. Up to 4,095 values it has them
all and the number is exact; beyond, the greatest of the hashes kept tells how densely hashes lie. The relative standard
error is 1 / sqrt(4094), 1.6 %. Source: Bar-Yossef et al., Counting distinct elements in a data stream (2002); Beyer et
al., On synopses for distinct-value estimation under multiset operations (2007).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from penstock.state.hashing import hash64

DISTINCT_KEPT: Final = 4096
_HASHES: Final = 2.0**64


def sketch_hashes(value: pl.Expr) -> pl.Expr:
    """uint64: the hash of every value; null of null."""
    return value.map_batches(_hashed, return_dtype=pl.UInt64(), is_elementwise=True)


def _hashed(values: pl.Series) -> pl.Series:
    # Not the hash of keys itself: rows may have been sampled or placed by that one. The mixing is that of SplitMix64.
    mixed = hash64(values) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes = pl.Series(values.name, mixed ^ (mixed >> np.uint64(31)))
    return hashes.set(values.is_null(), None) if values.null_count() else hashes


def least_hashes(hashes: pl.Expr) -> pl.Expr:
    """In a group: the sketch of all hashes, ascending."""
    return hashes.drop_nulls().unique().sort().head(DISTINCT_KEPT)


def distinct_estimate(sketch: pl.Expr) -> pl.Expr:
    """int64: how many different values a sketch is of."""
    kept = sketch.list.len().cast(pl.Int64())
    greatest = pl.when(kept >= DISTINCT_KEPT).then(sketch.list.last()).cast(pl.Float64())
    estimate = ((DISTINCT_KEPT - 1) * _HASHES / greatest).round().cast(pl.Int64())
    return pl.when(kept < DISTINCT_KEPT).then(kept).otherwise(estimate)
