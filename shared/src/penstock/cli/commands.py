"""Commands as their functions take them: the options that a parser found, made into one typed object.

The function of a command has one parameter, a dataclass whose fields are the options of its parser. The function is named
as entry points are, because only the command that was given is imported; a unit test holds every parser and its dataclass
against each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_type_hints

from penstock.errors import UsageError
from penstock.service.typed_options import option_names, typed_options

COMMON: Final = frozenset({"help", "debug", "log_format", "log_level"})
"""Options of every command, which the entry point itself follows."""


@dataclass(frozen=True)
class Command:
    """One command: `module:function`, called with the exit code as its result."""

    target: str

    def __call__(self, arguments: argparse.Namespace) -> int:
        """Carry it out with these options."""
        return self.function()(typed_options(arguments, self.options()))

    def function(self) -> Callable[[Any], int]:
        """What carries it out."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(module), name)

    def options(self) -> type[Any]:
        """The dataclass that the function takes."""
        hints = get_type_hints(self.function())
        hints.pop("return")
        (kind,) = hints.values()
        return kind

    def names(self) -> set[str]:
        """Its options by name."""
        return option_names(self.options())


@dataclass(frozen=True)
class ByEngine:
    """A command for every value of `--engine`, Penstock's own engine first; given options that the chosen one does not
    have are refused by name."""

    parser: argparse.ArgumentParser
    engines: Mapping[str, Command]
    refusal: Callable[[str, str], str]
    """What is wrong, in words, from the engine and the options that it has not."""

    def __call__(self, arguments: argparse.Namespace) -> int:
        """Carry out that of the chosen engine.

        Raises:
            UsageError: it does not have all options that were given.
        """
        engine = arguments.engine or self._said(arguments)
        command = self.engines[engine]
        known = command.names() | COMMON | {"engine", "command"}
        given = [
            "--" + name.replace("_", "-")
            for name, value in vars(arguments).items()
            if name not in known and value != self.parser.get_default(name)
        ]
        if given:
            raise UsageError(self.refusal(engine, ", ".join(given)))
        return command(arguments)

    def _said(self, arguments: argparse.Namespace) -> str:
        """What the pipeline's file or the cluster's settings say."""
        from penstock.loading import parse_parameters, peek_pipeline
        from penstock.settings import load_settings

        said = None
        if Path(arguments.file.partition(":")[0]).is_file():  # else the command says what is wrong with it
            said = peek_pipeline(arguments.file, parse_parameters(arguments.param)).engine
        if said is None:
            said = load_settings(getattr(arguments, "cluster", None)).engine
        return "spark" if said == "spark" else next(iter(self.engines))
