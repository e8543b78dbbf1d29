"""What a command line says, as a typed object: a dataclass whose fields are the options."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def typed_options(arguments: argparse.Namespace, kind: type[T]) -> T:
    """The options that are fields of `kind`, checked against their types; a unit test holds each parser and its dataclass
    against each other, so neither can have what the other does not know."""
    return msgspec.convert(vars(arguments), kind)


def option_names(kind: type[Any]) -> set[str]:
    """The options that such a dataclass takes."""
    return {field.name for field in fields(kind)}
