"""The one error tree.

Every error Penstock raises on purpose is a `PenstockError`. Its `domain` says whose fault it is, `retryable` whether
doing the same again can help. A message says what is wrong, where, and what to do. Adapters wrap foreign exceptions
here; nothing above them catches a foreign type.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final, Literal

Domain = Literal["user", "external", "internal"]


class PenstockError(Exception):
    """Base of all errors of Penstock."""

    domain: ClassVar[Domain] = "internal"
    retryable: ClassVar[bool] = False
    terminal: ClassVar[bool] = False
    """Whether no other attempt of the job can do better either: it fails without being restarted."""


class PipelineError(PenstockError):
    """The pipeline as written cannot run: wrong column, wrong type, missing event time."""

    domain = "user"


class UsageError(PenstockError):
    """A command or a setting was used wrongly."""

    domain = "user"


class UserCodeError(PenstockError):
    """A function of the user raised; `__cause__` is what it raised, or `frames` says where in another process."""

    domain = "user"

    def __init__(self, message: str, frames: str = "") -> None:
        super().__init__(message)
        self.frames = frames


class BadRecordError(PenstockError):
    """An input record could not become a row and the source's policy is `fail`."""

    domain = "user"


class RefusedRowError(BadRecordError):
    """A destination refuses a row although it could be encoded, and would again; the policy for bad rows is `fail`.

    Unlike an outage it is not waited for. The rows of a complete checkpoint stay unpublished until the destination takes
    the row or the policy leaves it out, so other attempts may follow; a job that is to end does not wait for that.
    """


class IncompatibleStateError(PenstockError):
    """A snapshot does not fit the pipeline it should be restored into."""

    domain = "user"


class ExternalError(PenstockError):
    """Something outside (file system, broker, store) failed; a retry may help."""

    domain = "external"
    retryable = True


class CorruptDataError(PenstockError):
    """Stored bytes are not what was written: a checksum, a length or a format does not match."""

    domain = "external"


class ProtocolError(PenstockError):
    """An invariant of the protocol would be violated; the attempt must not go on."""


_NEAR: Final = 0.7
"""How like each other names must be: a slip of the hand or another ending, but not `price` and `process`."""
_NEAR_IF_SHORT: Final = 0.65
"""Of names of four letters at most, of which a slip of the hand changes more."""
_SHORT: Final = 4
_MOST_NAMES: Final = 40
"""As many names as a message lists."""


def closest(name: str, known: Sequence[str]) -> str | None:
    """What `name` was probably meant to be; None if nothing is like it. Upper case and separators count for nothing."""
    plain = _plain(name)
    same = next((each for each in known if plain and _plain(each) == plain), None)
    if same is not None:
        return same
    cutoff = _NEAR_IF_SHORT if len(name) <= _SHORT else _NEAR
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)


def _plain(name: str) -> str:
    """A name without what spellings differ in: "delay_min", "delayMin", "Delay-Min"."""
    return re.sub(r"[\W_]", "", name).lower()


def nearest(name: str, known: Iterable[str]) -> str:
    """The clause naming what `name` was probably meant to be, for the end of an error message."""
    names = list(known)
    close = closest(name, names)
    if close is not None:
        return f"did you mean {close!r}?"
    if len(names) > _MOST_NAMES:
        return f"there are {len(names)}: {', '.join(names[:_MOST_NAMES])}, ..."
    return "there are: " + ", ".join(names) if names else "there are none"


def described(error: BaseException) -> str:
    """`ValueError: what it says`, also where its own `str()` raises, which must not hide that it was raised and where."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as failure:  # whatever the user's class raises
        return f"{type(error).__name__} (its str() raised {type(failure).__name__})"


def function_name(function: object) -> str:
    """A function as people know it."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def shown(value: object) -> str:
    """Its `repr()`, also where that raises."""
    try:
        return repr(value)
    except Exception as failure:  # whatever the user's class raises
        return f"<{type(value).__name__}, of which repr() raised {type(failure).__name__}>"


def without_context(error: Exception) -> str:
    """Polars' message without the advice for its own users and the plan of its own that follow it."""
    return str(error).split("\n\n")[0].strip()
