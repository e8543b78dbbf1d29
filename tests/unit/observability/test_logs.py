"""Log lines: for people, or one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog

from penstock.observability.logs import configure_logging


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Logging as it was."""
    before = structlog.get_config()
    yield
    structlog.reset_defaults()
    structlog.configure(**before)


def test_json_lines_hold_event_level_time_and_facts(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error; an exception is part of the object, not lines of its own."""
    configure_logging("json", "info")
    log = structlog.get_logger("test").bind(job="j")
    log.debug("too small to be said")
    log.warning("checkpoint declined", checkpoint=3)
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second = map(json.loads, captured.err.splitlines())
    assert first["event"] == "checkpoint declined"
    assert (first["level"], first["job"], first["checkpoint"]) == ("warning", "j", 3)
    assert first["timestamp"].endswith("Z")
    assert second["event"] == "it failed"
    assert "why" in json.dumps(second["exception"])


def test_text_lines_are_plain_where_nobody_sees_colours(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error is captured here: no escape sequences."""
    configure_logging("text", "warning")
    structlog.get_logger("test").warning("lease lost", reason="slow")
    line = capsys.readouterr().err
    assert "lease lost" in line
    assert "reason=slow" in line
    assert "\x1b" not in line
