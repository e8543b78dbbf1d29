"""What connectors show of the addresses that they are given."""

from __future__ import annotations

import pytest

from penstock.connectors.postgres.tables import TablePlace
from penstock.connectors.redis.places import RedisPlace
from penstock.errors import PipelineError


def test_no_half_of_a_password_passes_for_a_host() -> None:
    """It has a sign in it that ends the part of an address before the host, and is not percent-encoded."""
    for sign in "/?#[":
        with pytest.raises(PipelineError, match=r"redis\.Sink: .*percent-encode") as caught:
            RedisPlace("redis.Sink", f"redis://ann:pa55{sign}w0rd@host/0")
        refused = str(caught.value)
        with pytest.raises(PipelineError, match=r"postgres\.Sink: .*percent-encode") as caught:
            TablePlace("postgres.Sink", "orders", f"postgresql://ann:pa55{sign}w0rd@host/shop")
        assert not [half for half in ("pa55", "w0rd") if half in refused + str(caught.value)]


def test_the_rest_is_shown() -> None:
    """Host, port and path."""
    assert RedisPlace("redis.Sink", "redis://ann:pa55%2Fw0rd@host:1/0?x=a").address == "redis://host:1/0"
    place = TablePlace("postgres.Sink", "orders", "postgresql://ann:pa55%2Fw0rd@host/shop?application_name=a@b")
    assert place.address == "host/shop"
    for several in ("ann:pw@h1:5432,h2:5433/shop", "h1:5432/shop?user=ann@home"):
        assert TablePlace("postgres.Sink", "orders", f"postgresql://{several}").address.endswith("/shop")
