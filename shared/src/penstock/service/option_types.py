"""What the options of commands and of services have in common: the types of numbers, and how they log."""

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


def add_log_options(parser: argparse.ArgumentParser, level: str) -> None:
    """Add `--log-format` and `--log-level`, whose default is `level`."""
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="the format of log lines (text)")
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default=level,
        help=f"the lowest severity that is logged ({level})",
    )
