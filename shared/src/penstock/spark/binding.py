"""What the results of a run belong to: the pipeline, its parameters, its code and its sinks.

It is put down with the manifest that decides a run. Whoever gives the run's id again with something else is told what
differs, instead of being shown results that are not those of what was asked for. Until a run is decided nothing of it is
visible, so that a run that failed may be given again with its code mended; what it reads stays as it began (see
`splits`). Of parameters and files only digests are kept: values may be secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import UsageError
from penstock.plan.logical import LogicalPlan
from penstock.plan.operation import Operation
from penstock.plan.operations.write import Write
from penstock.plan.signatures import describe_node
from penstock.spark.code import TaskCode, digest


class Binding(msgspec.Struct, frozen=True):
    """What a run computes from, as far as another one may differ."""

    pipeline: str
    parameters: dict[str, str]
    """Name to a digest of its value."""
    target: str
    """The pipeline's file, and its name there; empty if no file declares it."""
    code: dict[str, str]
    """That file, and others beside it that the process has imported, to their digests."""
    sinks: dict[str, dict[str, Any]]
    """Operator id to its settings."""


def binding_of(run: str, code: TaskCode, plan: LogicalPlan) -> Binding:
    """That of a run as it is asked for now."""
    parameters = {name: digest(f"{run}\0{name}\0{value}".encode()) for name, value in code.parameters.items()}
    return Binding(plan.name, parameters, code.target, dict(code.digests), described(plan, Write, code.folder))


def described(plan: LogicalPlan, kind: type[Operation], folder: str) -> dict[str, dict[str, Any]]:
    """The settings of all sources or sinks, by operator.

    Paths in `folder`, where the code lies, are relative to it: every attempt of a submitted run may have its own.
    """
    settings = {node.operator_id: describe_node(node) for node in plan if isinstance(node.operation, kind)}
    return {operator: _movable(msgspec.to_builtins(each), folder) for operator, each in settings.items()}


def _movable(settings: Mapping[str, Any], folder: str) -> dict[str, Any]:
    def moved(value: Any) -> Any:
        inside = isinstance(value, str) and Path(value).is_absolute() and Path(value).is_relative_to(folder)
        return str(Path(value).relative_to(folder)) if inside else value

    return {name: moved(value) for name, value in settings.items()}


def check_same(run: str, before: Binding, now: Binding) -> None:
    """Raise `UsageError` naming what is not as it was when the run was computed."""
    found = list(_differences(before, now))
    if found:
        raise UsageError(
            f"--run-id {run}: that run has its results, and they are not those of what is asked for now: "
            f"{'; '.join(found)}. Give a new run another id, or this one what it was computed with"
        )


def _differences(before: Binding, now: Binding) -> Iterator[str]:
    if before.pipeline != now.pipeline:
        yield f"it was of the pipeline {before.pipeline!r}, this is {now.pipeline!r}"
    for name in sorted(before.parameters.keys() | now.parameters.keys()):
        if before.parameters.get(name) != now.parameters.get(name):
            yield f"--param {name} {_how(name, before.parameters, now.parameters)}"
    if before.target != now.target:
        yield f"it was computed by {before.target or 'no file'}, this is {now.target or 'in none'}"
    # What only one of them has imported may be anything that the process did besides; whatever the pipeline imports anew
    # is named in a file that both have.
    for name in sorted(before.code.keys() & now.code.keys()):
        if before.code[name] != now.code[name]:
            yield f"{name} has changed"
    yield from differing_settings(before.sinks, now.sinks)


def differing_settings(before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Which settings of operators differ. One that only one of two versions of Penstock knows is no difference."""
    for operator in sorted(before.keys() | now.keys()):
        then, today = before.get(operator), now.get(operator)
        if then is None or today is None:
            yield f"{operator} {_how(operator, before, now)}"
            continue
        for name in sorted(then.keys() & today.keys()):
            if then[name] != today[name]:
                yield f"{operator} had {name}={then[name]!r}, it has {today[name]!r}"


def _how(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return "is new" if name not in before else "is gone" if name not in now else "differs"
