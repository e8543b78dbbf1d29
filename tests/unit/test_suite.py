"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings


def test_no_example_has_to_be_quick() -> None:
    """Machines of CI are shared: how long a property takes there says nothing about it."""
    assert settings().deadline is None
