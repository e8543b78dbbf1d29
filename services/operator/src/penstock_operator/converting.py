"""Flink's resources as Penstock's: what can be converted, and for everything else what to do about it.

What a pipeline does cannot be converted, nor the state of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec
import yaml

from penstock.errors import UsageError
from penstock_operator.decision import problems_of
from penstock_operator.flink_fields import (
    AUTOSCALER_PREFIX,
    DEFAULT_MOST,
    KNOWN,
    CannotConvertError,
    Conversion,
    duration,
    share,
    whole,
)
from penstock_operator.resources import GROUP, VERSION, JobSpec, SavepointSpec

FLINK: Final = ("FlinkDeployment", "FlinkSessionJob", "FlinkStateSnapshot")
_WHOLE: Final = (
    "podTemplate", "jobManager", "taskManager", "ingress", "logConfiguration", "checkpoint", "job.initialStateReference",
)  # fmt: skip
"""Fields with others in them that one row speaks of."""
Document = dict[str, Any]


def convert(text: str) -> str:
    """Convert the YAML of Flink's operator to that of Penstock's. Comments say what was not converted, and what to do.

    Raises:
        UsageError: it is no YAML, or a document in it is none of Flink's resources.
    """
    try:
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        raise UsageError(f"this is no YAML: {error}") from error
    if not documents:
        raise UsageError("there is no resource in it")
    items: list[Any] = []
    for one in documents:
        listed = one.get("items") if isinstance(one, dict) else None
        items += listed if isinstance(listed, list) else [one]
    return "---\n".join(_converted(item) for item in items)


def _converted(document: Any) -> str:
    if not isinstance(document, dict) or document.get("kind") not in FLINK:
        kind = document.get("kind") if isinstance(document, dict) else document
        raise UsageError(f"{kind!r} is none of Flink's resources: {', '.join(FLINK)}")
    metadata, spec = _mapping(document, "metadata"), _mapping(document, "spec")
    if not metadata.get("name"):
        raise UsageError(f"a {document['kind']} has no metadata.name")
    for name in ("job", "flinkConfiguration", "savepoint", "jobReference"):
        _mapping(spec, name, "spec.")
    made = Conversion(document["kind"], str(metadata["name"]), _is_wanted(document["kind"], spec))
    for name, value in _fields(spec):
        _take(made, name, value)
    _complete(made, spec)
    made.notes += [f"metadata.{name}: not converted" for name in ("finalizers", "ownerReferences") if name in metadata]
    resource = _resource(made, metadata)
    comments = "".join(f"# {' '.join(note.split())}\n" for note in [f"{made.kind} {made.name}", *made.notes])
    return comments + (yaml.safe_dump(resource, sort_keys=False, width=120, allow_unicode=True) if resource else "")


def _is_wanted(kind: str, spec: Document) -> bool:
    """Whether a resource comes of it."""
    if kind == "FlinkStateSnapshot":
        savepoint = spec.get("savepoint")
        names_job = bool((spec.get("jobReference") or {}).get("name"))
        return savepoint is not None and not savepoint.get("alreadyExists") and names_job
    return kind == "FlinkSessionJob" or bool(spec.get("job"))


def _mapping(above: Document, name: str, path: str = "") -> Document:
    found = above.get(name) or {}
    if not isinstance(found, dict):
        raise UsageError(f"{path}{name} is no mapping: {found!r}")
    return found


def _fields(spec: Document) -> Iterator[tuple[str, Any]]:
    """Names and values: of `flinkConfiguration` its keys, which may be nested, of the rest paths."""
    for name, value in spec.items():
        if name != "flinkConfiguration":
            yield from _leaves(name, value)
    for key, value in _leaves("", spec.get("flinkConfiguration") or {}):
        yield key.removeprefix("kubernetes.operator.") if AUTOSCALER_PREFIX in key else key, value


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and path not in _WHOLE:
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}" if path else str(name), inner)
    elif path:
        yield path, value


def _take(made: Conversion, name: str, value: Any) -> None:
    if name.startswith("restart-strategy") and made.has_spec:
        return  # all of its keys together: `_restart`
    parts = name.split(".")
    longest = next((known for n in range(len(parts), 0, -1) if (known := ".".join(parts[:n])) in KNOWN), None)
    exact = longest == name or name.startswith("restart-strategy")
    if longest is None or (not exact and KNOWN[longest].takes):
        made.notes.append(
            f"{name}: there is nothing of this name; docs/settings.md of Penstock has what a cluster can do"
        )
        return
    row = KNOWN[longest]
    take = row.takes.get(name)
    if take is None or not made.has_spec:
        made.notes.append(
            f"{name}: {'in each PenstockJob: ' if row.takes and made.kind == 'FlinkDeployment' else ''}{row.here}"
        )
        return
    try:
        take(made, value)
    except CannotConvertError as error:
        made.notes.append(f"{name}: {error} ({row.here})")


def _complete(made: Conversion, spec: Document) -> None:
    """What follows from several fields, or from none."""
    if made.kind == "FlinkStateSnapshot":
        made.spec.setdefault("disposeOnDelete", True)
    elif made.has_spec:
        _complete_job(made, spec)


def _complete_job(made: Conversion, spec: Document) -> None:
    if not made.spec.get("parameters", True):
        del made.spec["parameters"]
    keys = dict(_fields(spec))
    _restart(made, keys)
    _autoscaler(made, keys)
    if "every" not in made.spec.get("savepoints", {"every": ""}):
        del made.spec["savepoints"]
        made.notes.append(
            "kubernetes.operator.savepoint.history...: without periodic savepoints nothing is disposed of"
        )
    if "upgradeMode" not in made.spec:
        made.spec["upgradeMode"] = "stateless"
        made.notes.append("job.upgradeMode: nothing is said, which means stateless in Flink; consider last-checkpoint")
    made.spec.setdefault("cluster", made.name)
    python = [str(word) for word in (spec.get("job") or {}).get("args") or [] if str(word).endswith(".py")]
    file = PurePosixPath(python[0]).name if python else made.name.replace("-", "_") + ".py"
    made.spec["source"] = {"configMap": made.name, "file": file}


def _restart(made: Conversion, keys: Mapping[str, Any]) -> None:
    """`restart-strategy.type` and what belongs to it, in one text."""
    given = {name: str(value) for name, value in keys.items() if name.startswith("restart-strategy")}
    kind = given.pop("restart-strategy.type", given.pop("restart-strategy", ""))
    kind = {"off": "none", "disable": "none"}.get(kind, kind)
    parts: dict[str, tuple[tuple[str, Callable[[Any], Any], str], ...]] = {
        "none": (),
        "fixed-delay": (("attempts", whole, "1"), ("delay", duration, "1 s")),
        "failure-rate": (
            ("max-failures-per-interval", whole, "1"), ("failure-rate-interval", duration, "1 min"),
            ("delay", duration, "1 s"),
        ),
        "exponential-delay": (
            ("initial-backoff", duration, "1 s"), ("max-backoff", duration, "1 min"),
            ("backoff-multiplier", share, "1.5"), ("reset-backoff-threshold", duration, "1 h"),
        ),
    }  # fmt: skip
    if kind in parts:
        names = [f"restart-strategy.{kind}.{name}" for name, _, _ in parts[kind]]
        try:
            values = [
                str(read(given.pop(name, default))) for name, (_, read, default) in zip(names, parts[kind], strict=True)
            ]
            made.put("restart", ":".join([kind.removesuffix("-delay") if "exp" in kind else kind, *values]))
        except CannotConvertError as error:
            made.notes.append(f"restart-strategy.{kind}: {error} (`restart`)")
    elif kind:
        made.notes.append(f"restart-strategy.type: there is no strategy {kind!r}; say one by `restart`")
    made.notes += [f"{name}: not a part of the strategy that counts here (`restart`)" for name in given]


def _autoscaler(made: Conversion, keys: Mapping[str, Any]) -> None:
    scaler = made.spec.get("autoscaler", {})
    boundary = scaler.pop("boundary", None)
    if str(keys.get("job.autoscaler.enabled", "false")).lower() != "true":
        if made.spec.pop("autoscaler", None) is not None:
            made.notes.append("job.autoscaler...: job.autoscaler.enabled is not true, so there is no autoscaler")
        return
    if boundary is not None:
        target = scaler.get("utilizationTarget", 0.7)
        scaler.setdefault("utilizationMin", round(target - boundary, 6))
        scaler.setdefault("utilizationMax", round(min(1.0, target + boundary), 6))
    if "maxParallelism" not in scaler:
        scaler["maxParallelism"] = DEFAULT_MOST
        made.notes.append(
            f"autoscaler.maxParallelism: {DEFAULT_MOST} is Flink's default; choose what your cluster can carry"
        )
    made.spec["autoscaler"] = scaler


def _resource(made: Conversion, metadata: Document) -> Document | None:
    """The new resource; None if there is none."""
    kind = "PenstockSavepoint" if made.kind == "FlinkStateSnapshot" else "PenstockJob"
    if not made.has_spec:
        made.notes.append(
            "there is no savepoint of a job to be taken, so there is no PenstockSavepoint"
            if kind == "PenstockSavepoint"
            else "it is a session cluster: a release of the chart, which makes its own PenstockCluster"
        )
        return None
    if made.kind == "FlinkDeployment":
        made.notes.append(f"cluster: install a release of the chart called {made.name}; its task managers run this job")
    if kind == "PenstockJob":
        source = made.spec["source"]
        made.notes.append(
            f"source: write the pipeline into {source['file']}, then "
            f"kubectl create configmap {source['configMap']} --from-file {source['file']}"
        )
    made.notes += _problems(kind, made.spec)
    kept = {name: metadata[name] for name in ("name", "namespace", "labels", "annotations") if metadata.get(name)}
    kept.get("annotations", {}).pop("kubectl.kubernetes.io/last-applied-configuration", None)
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": kept, "spec": _ordered(kind, made.spec)}


def _ordered(kind: str, spec: Document) -> Document:
    names = (SavepointSpec if kind == "PenstockSavepoint" else JobSpec).__struct_encode_fields__
    return {name: spec[name] for name in names if name in spec}


def _problems(kind: str, spec: Document) -> list[str]:
    """What the operator would say of it."""
    try:
        if kind == "PenstockSavepoint":
            msgspec.convert(spec, SavepointSpec)
            return []
        problem = problems_of(msgspec.convert(spec, JobSpec))
    except msgspec.ValidationError as error:
        problem = str(error)
    return [f"to be changed: {problem}"] if problem else []
