"""Full and incremental checkpoints of operators that keep columns, beside each other in one process.

`python -m benchmarks.incremental_columns [keys]`: rows of one per cent of the keys come between two checkpoints.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

import numpy as np
import polars as pl

from benchmarks.checkpoints import Checkpoints
from penstock import Pipeline, col, session, tumbling
from penstock.adapters.memory import MemoryBlobs
from penstock.api.stream import Stream
from penstock.connectors import iterables
from penstock.core.batches import EVENT_TIME
from penstock.expressions import count
from penstock.plan.logical import Node
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifests import Manifest
from penstock.task.operator import Operator, OperatorContext, OperatorSnapshot, RestoredState
from penstock.task.operators import build_operator
from penstock.task.snapshots import restore_operator
from penstock.testing.harness import Collector

GROUPS = 240
BATCH = 50_000
DELTAS = 5


@dataclass
class Order:
    """A row of either input."""

    key: int
    amount: int
    at: datetime


def nodes() -> dict[str, Node]:
    """One of each kind, by its verb."""

    def orders() -> Stream[Order]:
        return p.read(iterables.Source([Order(1, 1, datetime(2026, 1, 1, tzinfo=UTC))], event_time="at"))

    p = Pipeline("incremental")
    sums = {"orders": count(), "total": col("amount").sum()}
    made = {
        "running totals": orders().key_by("key").agg(**sums),
        "windows of a day": orders().key_by("key").window(tumbling("1d")).agg(**sums),
        "sessions": orders().key_by("key").window(session("1d")).agg(**sums),
        "join in time": orders().join(orders().select("key", other=col("amount")), on="key", how="left", within="1d"),
        "join by key": orders().join(orders().select("key", other=col("amount")), on="key", how="left"),
    }
    return {name: stream._node for name, stream in made.items()}


@dataclass
class Subtask:
    """An operator and its checkpoints."""

    node: Node
    incremental: bool
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)

    def __post_init__(self) -> None:
        self.operator = self.opened(None)
        self.checkpoints = Checkpoints(self.blobs, GROUPS)

    def opened(self, restored: RestoredState | None) -> Operator:
        """Another one of them."""
        operator = build_operator(self.node)
        whole = KeyGroupRange(0, GROUPS)
        context = OperatorContext("op", 0, 1, GROUPS, whole, lambda: 0, incremental=self.incremental)
        operator.open(context, restored)
        return operator

    def feed(self, keys: np.ndarray) -> float:
        """A row per key; the seconds it took."""
        began = time.perf_counter()
        for start in range(0, len(keys), BATCH):
            frame = pl.DataFrame({"key": keys[start : start + BATCH]})
            for number, _ in enumerate(self.node.inputs):
                amount = "amount" if number == 0 else "other"
                rows = frame.with_columns(
                    pl.lit(7, pl.Int64).alias(amount),
                    *([pl.lit(0).cast(pl.Datetime("us", "UTC")).alias("at")] if number == 0 else []),
                    pl.lit(0, pl.Int64).alias(EVENT_TIME),
                )
                self.operator.process_input(number, rows, Collector())
        return time.perf_counter() - began

    async def take(self) -> tuple[Manifest, int, float, float]:
        """A checkpoint: its manifest, bytes written, milliseconds of the freeze, CPU-seconds of writing it."""
        began = time.perf_counter()
        snapshot = cast("OperatorSnapshot", self.operator.snapshot())
        froze, worked = time.perf_counter(), time.process_time()
        manifest, written = await self.checkpoints.write(snapshot, incremental=self.incremental)
        return manifest, written, 1_000 * (froze - began), time.process_time() - worked

    async def restored(self, manifest: Manifest) -> float:
        """CPU-seconds until another operator has the state."""
        worked = time.process_time()
        self.opened(await restore_operator(manifest, "op", KeyGroupRange(0, GROUPS), 0, 1, self.blobs))
        return time.process_time() - worked


async def main(keys: int) -> None:
    """Print a table for each kind."""
    rng = np.random.default_rng(1)
    for name, node in nodes().items():
        both = [Subtask(node, incremental) for incremental in (False, True)]
        every = rng.permutation(keys)
        for each in both:
            print(f"{name}, incremental={each.incremental}: inserts, {keys / each.feed(every):,.0f} keys a second")
        manifests: dict[bool, Manifest] = {}
        for number in range(DELTAS + 1):
            for each in both:
                manifests[each.incremental], written, froze_ms, cpu_s = await each.take()
                print(
                    f"{name}, incremental={each.incremental}: checkpoint {number}: {written:,} bytes, {cpu_s:.2f} CPU-s, "
                    f"freeze {froze_ms:.2f} ms"
                )
            some = rng.choice(keys, keys // 100, replace=False)
            for each in both:
                each.feed(some)
        for round_ in range(3):
            some = rng.choice(keys, min(keys, 200_000), replace=False)
            for each in both if round_ % 2 else both[::-1]:
                print(
                    f"{name}, incremental={each.incremental}: updates, {len(some) / each.feed(some):,.0f} keys a second"
                )
        for each in both:
            cpu_s = await each.restored(manifests[each.incremental])
            print(f"{name}, incremental={each.incremental}: restore, {cpu_s:.2f} CPU-s")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
