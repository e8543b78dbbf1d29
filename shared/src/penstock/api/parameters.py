"""Parameters of a pipeline file: `param("days", 7)` in the file, `--param days=30` on the command line."""

from __future__ import annotations

from typing import TypeVar

from penstock.core.arguments import checked
from penstock.errors import UsageError, nearest

T = TypeVar("T", str, int, float, bool)

_given: dict[str, str] = {}
_asked: dict[str, object] = {}


@checked
def param(name: str, default: T) -> T:
    """The value of `--param name=value`, else `default`; read as a value of the default's type.

    Raises:
        UsageError: the value given cannot be read as that type.

    Example:
        >>> param("days", 7)
        7
    """
    _asked[name] = default
    if name not in _given:
        return default
    return _convert(name, _given[name], default)


def _convert(name: str, text: str, default: T) -> T:
    kind = type(default)
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() in words:
            return kind(words[text.lower()])
        raise UsageError(f"--param {name}={text}: not a boolean; write true or false")
    try:
        return kind(text)
    except ValueError as error:
        raise UsageError(f"--param {name}={text}: not {'an' if kind is int else 'a'} {kind.__name__}") from error


def set_parameters(values: dict[str, str]) -> None:
    """What the command line gave; forgets what was asked for before."""
    _given.clear()
    _given.update(values)
    _asked.clear()


def given_parameters() -> dict[str, str]:
    """What the command line gave."""
    return dict(_given)


def check_parameters() -> None:
    """Raise `UsageError` if a parameter was given that the file never asked for."""
    for name in _given:
        if name not in _asked:
            raise UsageError(f"--param {name}: the pipeline has no such parameter; {nearest(name, _asked)}")
