"""Structured logs: for people on a terminal, or one JSON object a line. Event names are constant, facts are fields."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

LogFormat = Literal["text", "json"]


def configure_logging(form: LogFormat, level: str) -> None:
    """Set up structlog for this process; lines go to standard error."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form == "json":
        renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
        shared.append(structlog.processors.dict_tracebacks)
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=_standard_error,
        cache_logger_on_first_use=False,  # whoever replaces standard error, a test or a notebook, gets what follows
    )
    # While a broker is down aiokafka writes a line per attempt and client, ten a second; whoever waits says so once.
    logging.getLogger("aiokafka").setLevel(logging.WARNING if level == "debug" else logging.CRITICAL)


def _standard_error(*_: object) -> structlog.PrintLogger:
    return structlog.PrintLogger(sys.stderr)
