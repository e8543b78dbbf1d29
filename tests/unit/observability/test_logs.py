"""Log lines: for people, or one JSON object a line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from penstock.observability.logs import LogFormat, configure_logging


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


FORGED = "x\n2026-01-01 [info] granted\x1b[2K\x1b]0;title\x07\u202e\u2028"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("name", [FORGED, FORGED.replace(" ", "_").replace("\n", "\r")])
def test_a_name_forges_no_line_and_speaks_to_no_terminal(
    form: LogFormat, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(form, "warning")
    log = structlog.get_logger("test")
    log.warning("job submitted", name=name)
    log.warning(name)
    lines = capsys.readouterr().err
    assert len(lines.splitlines()) == 2
    assert lines.replace("\n", "").isprintable()


@pytest.mark.parametrize("form", ["text", "json"])
def test_tracebacks_are_bounded_and_hold_no_values(form: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither variables of frames, nor hundreds of frames, nor a message of megabytes."""

    def deep(left: int, password: str) -> None:
        if not left:
            raise ValueError("x" * 1_000_000)
        deep(left - 1, password)

    configure_logging(form, "info")
    try:
        deep(300, "hunter" + "2" * 3)
    except ValueError:
        structlog.get_logger("test").exception("it failed")
    said = capsys.readouterr().err
    assert "ValueError" in said
    assert "hunter222" not in said
    assert len(said) < 40_000


def test_what_libraries_log_is_a_line_like_others(capsys: pytest.CaptureFixture[str]) -> None:
    """With its level, and who said it."""
    configure_logging("json", "info")
    logging.getLogger("librdkafka").warning("FAIL [%s] broker is gone", "thrd:1")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["library"], line["said"]) == ("warning", "librdkafka", "FAIL [thrd:1] broker is gone")


def test_a_library_that_repeats_itself_is_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    """Its first lines say it all; another one is heard all the same."""
    configure_logging("json", "info")
    for _ in range(500):
        logging.getLogger("noisy").warning("broker is gone")
    logging.getLogger("other").warning("something else")
    lines = [json.loads(line)["library"] for line in capsys.readouterr().err.splitlines()]
    assert 0 < lines.count("noisy") <= 5
    assert lines.count("other") == 1
