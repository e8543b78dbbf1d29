"""The options by which a coordinator scales task managers: off by default, contradictions are named."""

from __future__ import annotations

import argparse
import sys

import pytest

from penstock.errors import UsageError
from penstock.jobmanager.coordinator import CoordinatorTimeouts
from penstock.service.typed_options import typed_options
from penstock_coordinator.scaling import ScalingOptions, add_scaling_options, scaling_of


def options(*given: str) -> ScalingOptions:
    """As the command line says."""
    parser = argparse.ArgumentParser()
    add_scaling_options(parser)
    return typed_options(parser.parse_args(given), ScalingOptions)


async def test_nothing_is_scaled_by_default() -> None:
    """No StatefulSet is named."""
    async with scaling_of(options(), CoordinatorTimeouts()) as scaling:
        assert scaling is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--scale-slots", "0"), "--scale-slots 0: a task manager has at least one slot"),
        (("--scale-min", "4", "--scale-max", "3"), "want 0 <= min <= max"),
        (("--scale-min", "0", "--scale-max", "0"), "a max of at least 1"),
        ((), "works in a pod of Kubernetes"),
    ],
)
async def test_what_cannot_be_is_said(given: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is connected to."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UsageError, match=message):
        async with scaling_of(options("--scale-statefulset", "tm", *given), CoordinatorTimeouts()):
            pass


async def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that brings it."""
    monkeypatch.setitem(sys.modules, "penstock.adapters.kubernetes_scale", None)
    with pytest.raises(UsageError, match=r"penstock-streaming\[kubernetes\]"):
        async with scaling_of(options("--scale-statefulset", "tm"), CoordinatorTimeouts()):
            pass
