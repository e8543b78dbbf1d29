"""Structured logs: for people on a terminal, or one JSON object a line. Event names are constant, facts are fields.

What libraries log goes the same way. A traceback names places and never the values of variables, which may be secrets and
may be large; whatever is long is cut, so that an error costs a bounded amount of log.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TextIO, cast

import structlog

from penstock.names import shown

LogFormat = Literal["text", "json"]

LIBRARY_WINDOW_S: Final = 10.0
LIBRARY_LINES: Final = 5
"""So much of each library is logged in every window: librdkafka repeats that a broker is away 40 times a second."""
MAX_FRAMES: Final = 20
"""Of a traceback, for each exception in a chain."""
MAX_CHARACTERS: Final = 8_000
"""Of a field, and of a traceback as text."""


def configure_logging(form: LogFormat, level: str) -> None:
    """Set up structlog for this process; lines go to standard error."""
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
        cache_logger_on_first_use=False,  # whoever replaces standard error, a test or a notebook, gets what follows
    )
    _take_libraries(level)


def keep_quiet() -> None:
    """Log warnings alone, where nobody has said how: of a pipeline in a script, a notebook or a test."""
    if not structlog.is_configured():
        configure_logging("text", "warning")


def _take_libraries(level: str) -> None:
    root = logging.getLogger()
    if not any(isinstance(handler, _ToStructlog) for handler in root.handlers):
        root.addHandler(_ToStructlog())
    # While a broker is down aiokafka writes a line per attempt and client, ten a second; whoever waits says so once.
    logging.getLogger("aiokafka").setLevel(logging.WARNING if level == "debug" else logging.CRITICAL)
    # A request that is none is its client's fault.
    logging.getLogger("uvicorn.error").setLevel(logging.INFO if level == "debug" else logging.ERROR)


class _ToStructlog(logging.Handler):
    """Makes lines of ours of what libraries log; of a library that repeats itself, the first of every ten seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[str, _Window] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            said = record.getMessage()
        except Exception:  # as the standard handlers do with arguments that do not fit: logging must not fail
            self.handleError(record)
            return
        window = self._windows.setdefault(record.name, _Window(record.created))
        facts = window.facts(record.created)
        if facts is not None:
            log = structlog.get_logger("penstock.libraries")
            log.log(record.levelno, "a library said", library=record.name, said=said, exc_info=record.exc_info, **facts)


@dataclass
class _Window:
    """How much one library has said since a moment, in seconds since the epoch."""

    since_s: float
    said: int = 0

    def facts(self, now_s: float) -> dict[str, int] | None:
        """What to add to a line said now; None: it is left out."""
        self.said += 1
        if now_s - self.since_s < LIBRARY_WINDOW_S:
            return {} if self.said <= LIBRARY_LINES else None
        left_out = max(0, self.said - 1 - LIBRARY_LINES)
        self.since_s, self.said = now_s, 1
        return {"left_out": left_out} if left_out else {}


def _harmless(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Nothing that users or others have named makes a line of its own, or speaks to the terminal."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = shown(value, lines=name != "event")  # of fields the renderer escapes these
    return event


def _bounded(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        event[name] = _shortened(value)
    return event


def _shortened(value: Any) -> Any:
    """The same with its long texts cut: those of a traceback, as JSON has it, stand deep inside."""
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, list):
        return [_shortened(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _shortened(item) for name, item in cast("dict[Any, Any]", value).items()}
    return value


def _cut(text: str) -> str:
    """The beginning and the end, where it is long: in both there is something to learn."""
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]} ... ({len(text) - 2 * half} characters left out) ... {text[-half:]}"


def _write_traceback(file: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    shown = traceback.TracebackException(*exc_info, limit=-MAX_FRAMES, max_group_width=3, max_group_depth=3)
    file.write("\n" + _cut("".join(shown.format())).rstrip("\n"))


def _standard_error(*_: object) -> structlog.PrintLogger:
    return structlog.PrintLogger(sys.stderr)
