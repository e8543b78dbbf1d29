"""Where a service listens."""

from __future__ import annotations

import pytest

from penstock.errors import UsageError
from penstock.observability.metrics import Sample
from penstock.service.http_server import Readiness, health_app, http_server


@pytest.mark.parametrize("address", ["8081", ":8081", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1:-1"])
async def test_addresses_that_are_none(address: str) -> None:
    """They are refused with the option's name."""

    def samples() -> list[Sample]:
        return []

    with pytest.raises(UsageError, match="--http"):
        async with http_server(health_app(Readiness(), samples), address):
            pass
