"""Task managers that a coordinator has made for it, as many as jobs want: the options, and what stands behind them."""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from penstock.core.extras import install
from penstock.core.times import duration_us
from penstock.errors import UsageError
from penstock.jobmanager.autoscaling import Scaling
from penstock.jobmanager.coordinator import CoordinatorTimeouts
from penstock.protocol.autoscaling import ScalingLimits


@dataclass(frozen=True)
class ScalingOptions:
    """The options as they were given."""

    scale_statefulset: str | None
    scale_slots: int
    scale_min: int
    scale_max: int
    slot_idle_timeout: str


def add_scaling_options(parser: argparse.ArgumentParser) -> None:
    """Off unless a StatefulSet is named."""
    group = parser.add_argument_group("the number of task managers, on Kubernetes")
    group.add_argument(
        "--scale-statefulset", metavar="NAME",
        help="scale this StatefulSet, in the namespace of this pod, to the slots that jobs want",
    )  # fmt: skip
    group.add_argument("--scale-slots", type=int, default=1, metavar="N", help="slots that each of them has (1)")
    group.add_argument("--scale-min", type=int, default=1, metavar="N", help="the minimum number of task managers (1)")
    group.add_argument(
        "--scale-max", type=int, default=10, metavar="N", help="the maximum number of task managers (10)"
    )
    group.add_argument(
        "--slot-idle-timeout", default="60s", metavar="TIME",
        help="how long a task manager that no job uses is kept (60s)",
    )  # fmt: skip


@asynccontextmanager
async def scaling_of(options: ScalingOptions, timeouts: CoordinatorTimeouts) -> AsyncGenerator[Scaling | None]:
    """What the options say; None if nothing is to be scaled.

    Raises:
        UsageError: they contradict each other, the client library is missing, or this is no pod with a token.
    """
    name = options.scale_statefulset
    if name is None:
        yield None
        return
    limits = _limits(options, timeouts)
    try:
        from penstock.adapters.kubernetes_scale import kubernetes_scale
    except ImportError as error:
        raise UsageError(
            f"--scale-statefulset {name}: the client of Kubernetes is missing ({error}); {install('kubernetes')}"
        ) from error
    async with kubernetes_scale(name) as scale:
        yield Scaling(scale, limits)


def _limits(options: ScalingOptions, timeouts: CoordinatorTimeouts) -> ScalingLimits:
    slots, least, most = options.scale_slots, options.scale_min, options.scale_max
    if slots < 1:
        raise UsageError(f"--scale-slots {slots}: a task manager has at least one slot")
    if not 0 <= least <= most or most < 1:
        raise UsageError(f"--scale-min {least}, --scale-max {most}: want 0 <= min <= max, and a max of at least 1")
    return ScalingLimits(
        slots, least, most,
        idle_ms=duration_us(options.slot_idle_timeout, "--slot-idle-timeout", positive=True) // 1_000,
        settle_ms=2 * timeouts.worker_ms,
    )  # fmt: skip
