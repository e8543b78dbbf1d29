"""What numbers the options of commands and services may be: types for argparse."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """An argparse type: a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def count(text: str) -> int:
    """An argparse type: a whole number from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def port(text: str) -> int:
    """An argparse type: the number of a TCP port; 0 is any free one."""
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)
