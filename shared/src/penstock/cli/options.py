"""Options that several commands share."""

from __future__ import annotations

import argparse

from penstock.errors import UsageError


def parse_parameters(given: list[str]) -> dict[str, str]:
    """`["days=7"]` as `{"days": "7"}`.

    Raises:
        UsageError: one has no `=`.
    """
    parameters: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--param {text}: write --param name=value")
        parameters[name] = value
    return parameters


def positive(text: str) -> int:
    """An argparse type: a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)
