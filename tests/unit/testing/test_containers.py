"""`penstock.testing.containers` without an engine: which images, and what is said when something is missing."""

from __future__ import annotations

import sys

import pytest

from penstock.errors import ExternalError, UsageError
from penstock.testing.containers import IMAGES, PenstockContainers, image_of


def test_images_are_the_official_ones_unless_named() -> None:
    """By the configuration, and before that by the environment."""
    assert image_of("redis", "", {}) == IMAGES["redis"]
    assert image_of("redis", "mirror/redis:8", {}) == "mirror/redis:8"
    variables = {"PENSTOCK_TEST_REDIS_IMAGE": "other/redis:9", "PENSTOCK_TEST_KAFKA_IMAGE": ""}
    assert image_of("redis", "mirror/redis:8", variables) == "other/redis:9"
    assert image_of("kafka", "mirror/kafka:4", variables) == "mirror/kafka:4"


def test_without_testcontainers_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before a container is asked for."""
    monkeypatch.setitem(sys.modules, "testcontainers.core.container", None)
    with (
        PenstockContainers() as containers,
        pytest.raises(UsageError, match=r"pip install 'penstock-streaming\[testing\]'"),
    ):
        _ = containers.redis


def test_without_an_engine_it_is_said_where_one_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And how to name another one."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with (
        PenstockContainers() as containers,
        pytest.raises(ExternalError, match=r"no container engine answers.*DOCKER_HOST"),
    ):
        _ = containers.redis
