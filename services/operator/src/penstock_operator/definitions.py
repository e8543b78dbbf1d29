"""What Kubernetes checks the custom resources by: their definitions, made of the types in `penstock_operator.resources`.

Defaults, limits and the texts below the fields come from there, so `kubectl explain penstockjob.spec` says what this
repository says. `python -m infra.chart` writes them into the chart.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec
from msgspec import inspect as types

from penstock_operator import resources
from penstock_operator.resources import (
    GROUP,
    VERSION,
    Autoscaler,
    ClusterSpec,
    ClusterStatus,
    JobSpec,
    JobStatus,
    Resource,
    SavepointSpec,
    SavepointStatus,
)
from penstock_operator.rules import (
    STABLE_AFTER_A_CHECKPOINT,
    STARTS_WITHIN_LIMITS,
    UTILIZATIONS_RISE,
    Rule,
    Schema,
    unchanged,
    with_rules,
)


@dataclass(frozen=True)
class Kind:
    """A custom resource."""

    name: str
    plural: str
    short: str
    spec: type[Resource]
    status: type[Resource]
    columns: tuple[tuple[str, str, str], ...]
    """What `kubectl get` shows: title, type, path."""


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


_READY: Final = ("Ready", "string", _condition("Ready", "status"))
_AGE: Final = ("Age", "date", ".metadata.creationTimestamp")
CLUSTER: Final = Kind(
    "PenstockCluster", "penstockclusters", "psc", ClusterSpec, ClusterStatus,
    (
        _READY, ("Version", "string", ".status.version"), ("Slots", "integer", ".status.slots"),
        ("Free", "integer", ".status.freeSlots"), ("Jobs", "integer", ".status.runningJobs"), _AGE,
    ),
)  # fmt: skip
JOB: Final = Kind(
    "PenstockJob", "penstockjobs", "psj", JobSpec, JobStatus,
    (
        _READY, ("Phase", "string", ".status.phase"), ("State", "string", ".status.jobState"),
        ("Parallelism", "integer", ".status.parallelism"), ("Behind", "integer", ".status.recordsBehind"),
        ("Checkpointed", "date", ".status.lastCheckpointTime"), ("Job", "string", ".status.job"),
        ("Degraded", "string", _condition("Degraded", "reason")), _AGE,
    ),
)  # fmt: skip
SAVEPOINT: Final = Kind(
    "PenstockSavepoint", "penstocksavepoints", "pss", SavepointSpec, SavepointStatus,
    (
        ("Phase", "string", ".status.phase"), ("Of", "string", ".spec.job"), ("Savepoint", "string", ".status.manifest"),
        _AGE,
    ),
)  # fmt: skip
KINDS: Final = (CLUSTER, JOB, SAVEPOINT)
_OF_FIELDS: Final[dict[tuple[type, str], Rule]] = {
    (JobSpec, "cluster"): unchanged("the state of a job lies in its cluster; make another PenstockJob for another one"),
    (SavepointSpec, "job"): unchanged("a savepoint is taken once; make another PenstockSavepoint"),
}
_OF_STRUCTS: Final[dict[type, tuple[Rule, ...]]] = {
    JobSpec: (STABLE_AFTER_A_CHECKPOINT, STARTS_WITHIN_LIMITS),
    Autoscaler: (UTILIZATIONS_RISE,),
}
"""What must be true of several fields together."""


def definition(kind: Kind) -> Schema:
    """The `CustomResourceDefinition` of a kind."""
    columns = [{"name": title, "type": of, "jsonPath": path} for title, of, path in kind.columns]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": _text(kind.spec),
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": _struct(kind.spec, defaults=True),
                    "status": _struct(kind.status, defaults=False),
                },
            }
        },
    }
    names = {"kind": kind.name, "plural": kind.plural, "singular": kind.name.lower(), "shortNames": [kind.short]}
    names |= {"listKind": f"{kind.name}List", "categories": ["penstock"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _struct(struct: type[msgspec.Struct], *, defaults: bool) -> Schema:
    info = types.type_info(struct)
    assert isinstance(info, types.StructType)
    meanings = _attribute_docs(struct)
    properties: Schema = {}
    for field in info.fields:
        properties[field.encode_name] = schema = _schema(field.type, defaults=defaults)
        if text := meanings.get(field.name):
            schema["description"] = text
        if defaults and field.default not in (msgspec.NODEFAULT, None, ""):
            schema["default"] = field.default
        if rule := _OF_FIELDS.get((struct, field.name)):
            schema |= with_rules(rule)
    required = [field.encode_name for field in info.fields if field.required]
    return {
        "type": "object",
        "description": _text(struct),
        **({"required": required} if required else {}),
        "properties": properties,
        **(with_rules(*_OF_STRUCTS[struct]) if struct in _OF_STRUCTS else {}),
    }


def _schema(kind: types.Type, *, defaults: bool) -> Schema:
    match kind:
        case types.Metadata(type=inner, extra_json_schema=extra):
            return {**_schema(inner, defaults=defaults), **(extra or {})}
        case types.StructType(cls=cls):
            return _struct(cls, defaults=defaults)
        case types.UnionType(types=parts):
            (inner,) = (part for part in parts if not isinstance(part, types.NoneType))
            return _schema(inner, defaults=defaults)
        case types.LiteralType(values=values):
            return {"type": "string", "enum": list(values)}
        case types.VarTupleType(item_type=item):
            return {"type": "array", "items": _schema(item, defaults=defaults)}
        case types.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _schema(value, defaults=defaults)}
        case types.StrType(min_length=length):
            return {"type": "string", **({"minLength": length} if length else {})}
        case types.BoolType():
            return {"type": "boolean"}
        case types.IntType(ge=least, le=most):
            return {"type": "integer", "format": "int64", **_limits(least, most)}
        case types.FloatType(ge=least, le=most):
            return {"type": "number", "format": "double", **_limits(least, most)}
        case _:
            raise TypeError(f"{kind}: no field of a custom resource is of this type")


def _limits(least: float | None, most: float | None) -> Schema:
    limits = {"minimum": least, "maximum": most}
    return {key: limit for key, limit in limits.items() if limit is not None}


def _text(struct: type) -> str:
    return " ".join((inspect.getdoc(struct) or "").split())


def _attribute_docs(struct: type) -> dict[str, str]:
    """The text below each attribute of a class."""
    tree = ast.parse(inspect.getsource(resources))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == struct.__name__)
    return {
        one.target.id: " ".join(other.value.value.split())
        for one, other in pairwise(body)
        if isinstance(one, ast.AnnAssign)
        and isinstance(one.target, ast.Name)
        and isinstance(other, ast.Expr)
        and isinstance(other.value, ast.Constant)
        and isinstance(other.value.value, str)
    }
