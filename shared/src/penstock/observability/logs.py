"""Structured logs, as text for people or as one JSON object per line. Event names are constant; what varies is in fields.

Records of libraries are logged in the same format. A traceback contains file names and line numbers, but never the values
of variables, which may be secret or large. Long fields and tracebacks are truncated, so that an error logs a bounded
amount.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TextIO, cast

import structlog

from penstock.core.names import shown

LogFormat = Literal["text", "json"]

LIBRARY_WINDOW_S: Final = 10.0
LIBRARY_LINES: Final = 5
"""At most this many lines of a library are logged per window: librdkafka reports a missing broker 40 times a second."""
MAX_FRAMES: Final = 20
"""The maximum number of frames of a traceback that are logged for each exception in a chain."""
MAX_CHARACTERS: Final = 8_000
"""The maximum length of a field, and of a traceback that is logged as text."""


def configure_logging(form: LogFormat, level: str) -> None:
    """Configure structlog for this process; it writes to standard error."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form == "json":
        renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
        places = structlog.tracebacks.ExceptionDictTransformer(
            show_locals=False, max_frames=MAX_FRAMES, locals_max_string=0
        )
        shared.append(structlog.processors.ExceptionRenderer(places))
    else:
        shared.append(_harmless)
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback)
    structlog.configure(
        processors=[*shared, _bounded, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=_standard_error,
        cache_logger_on_first_use=False,  # a test or notebook that replaces sys.stderr receives all later lines
    )
    _take_libraries(level)


def keep_quiet() -> None:
    """Log warnings and errors only, unless logging is configured: for pipelines in a script, a notebook or a test."""
    if not structlog.is_configured():
        configure_logging("text", "warning")


def _take_libraries(level: str) -> None:
    root = logging.getLogger()
    if not any(isinstance(handler, _ToStructlog) for handler in root.handlers):
        root.addHandler(_ToStructlog())
    # While a broker is down, aiokafka logs every attempt of every client, ten lines a second; our callers log it once.
    logging.getLogger("aiokafka").setLevel(logging.WARNING if level == "debug" else logging.CRITICAL)
    # uvicorn warns about malformed requests, which are the client's fault.
    logging.getLogger("uvicorn.error").setLevel(logging.INFO if level == "debug" else logging.ERROR)


class _ToStructlog(logging.Handler):
    """Passes records of libraries to structlog, per library the first LIBRARY_LINES of every LIBRARY_WINDOW_S."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[str, _Window] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            said = record.getMessage()
        except Exception:  # the arguments do not fit the message; the standard handlers do not raise either
            self.handleError(record)
            return
        window = self._windows.setdefault(record.name, _Window(record.created))
        facts = window.facts(record.created)
        if facts is not None:
            log = structlog.get_logger("penstock.libraries")
            log.log(record.levelno, "a library said", library=record.name, said=said, exc_info=record.exc_info, **facts)


@dataclass
class _Window:
    """The number of lines that one library has logged since `since_s`, in seconds since the epoch."""

    since_s: float
    said: int = 0

    def facts(self, now_s: float) -> dict[str, int] | None:
        """The fields to add to a line that is logged now, or None if the line must be dropped."""
        self.said += 1
        if now_s - self.since_s < LIBRARY_WINDOW_S:
            return {} if self.said <= LIBRARY_LINES else None
        left_out = max(0, self.said - 1 - LIBRARY_LINES)
        self.since_s, self.said = now_s, 1
        return {"left_out": left_out} if left_out else {}


def _harmless(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape line breaks and control sequences in values, which may come from users, for lines and terminals."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = shown(value, lines=name != "event")  # the renderer escapes line breaks in fields
    return event


def _bounded(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        event[name] = _shortened(value)
    return event


def _shortened(value: Any) -> Any:
    """The value with its long strings truncated, also those nested in a traceback that is logged as JSON."""
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, list):
        return [_shortened(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _shortened(item) for name, item in cast("dict[Any, Any]", value).items()}
    return value


def _cut(text: str) -> str:
    """A text that is too long, reduced to its beginning and its end, both of which are informative."""
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]} ... ({len(text) - 2 * half} characters left out) ... {text[-half:]}"


def _write_traceback(file: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    shown = traceback.TracebackException(*exc_info, limit=-MAX_FRAMES, max_group_width=3, max_group_depth=3)
    file.write("\n" + _cut("".join(shown.format())).rstrip("\n"))


def _standard_error(*_: object) -> structlog.PrintLogger:
    return structlog.PrintLogger(sys.stderr)
