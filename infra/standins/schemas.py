"""What objects of Kubernetes look like, for kubeconform where no schema can be fetched.

`python -m infra.standins.schemas SWAGGER` makes them of `api/openapi-spec/swagger.json` of the Go module
k8s.io/kubernetes: strict (what the API server would not know is an error), and only of the kinds that the chart uses. A
release of Kubernetes changes little of them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

SCHEMAS: Final = Path(__file__).parent / "schemas"
DEFINITIONS: Final = "_definitions.json"
KINDS: Final = (
    "io.k8s.api.apps.v1.Deployment",
    "io.k8s.api.apps.v1.StatefulSet",
    "io.k8s.api.batch.v1.Job",
    "io.k8s.api.core.v1.ConfigMap",
    "io.k8s.api.core.v1.Pod",
    "io.k8s.api.core.v1.Secret",
    "io.k8s.api.core.v1.Service",
    "io.k8s.api.core.v1.ServiceAccount",
    "io.k8s.api.networking.v1.Ingress",
    "io.k8s.api.networking.v1.NetworkPolicy",
    "io.k8s.api.policy.v1.PodDisruptionBudget",
    "io.k8s.api.rbac.v1.Role",
    "io.k8s.api.rbac.v1.RoleBinding",
    "io.k8s.api.scheduling.v1.PriorityClass",
)
_PREFIX: Final = "#/definitions/"
_INT_OR_STRING: Final = {"oneOf": [{"type": "string"}, {"type": "integer"}]}
_LOOSE: Final = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _INT_OR_STRING,
}


def schemas(swagger: dict[str, Any]) -> dict[str, str]:
    """Text by file name: what all kinds share, and a small file for each kind as kubeconform looks for it."""
    definitions: dict[str, Any] = swagger["definitions"]
    shared: dict[str, Any] = {}
    made: dict[str, str] = {}
    for name in KINDS:
        _collect(name, definitions, shared)
        (known,) = definitions[name]["x-kubernetes-group-version-kind"]
        group, version, kind = known["group"], known["version"], known["kind"]
        fields = shared[name]["properties"]
        fields["apiVersion"] = {"enum": [f"{group}/{version}" if group else version]}
        fields["kind"] = {"enum": [kind]}
        file = "-".join(part for part in (kind.lower(), group.split(".")[0], version) if part) + ".json"
        made[file] = json.dumps({"$ref": f"{DEFINITIONS}{_PREFIX}{name}"}) + "\n"
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(shared[name], sort_keys=True)}" for name in sorted(shared))
    made[DEFINITIONS] = f'{{"definitions": {{\n{lines}\n}}}}\n'
    return made


def _collect(name: str, definitions: dict[str, Any], shared: dict[str, Any]) -> None:
    """A definition and all that it refers to."""
    if name in shared:
        return
    if name in _LOOSE:
        shared[name] = _LOOSE[name]
        return
    found = shared[name] = _plain(definitions[name])
    if found.get("properties"):
        found.setdefault("additionalProperties", False)
    for reference in _references(definitions[name]):
        _collect(reference, definitions, shared)


def _plain(node: Any) -> Any:
    """Without descriptions and Kubernetes' own words."""
    if isinstance(node, list):
        return [_plain(part) for part in node]
    if not isinstance(node, dict):
        return node
    if node.get("format") == "int-or-string":
        return _INT_OR_STRING
    return {
        key: _plain(part)
        for key, part in node.items()
        if not key.startswith("x-kubernetes") and not (key == "description" and isinstance(part, str))
    }


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [name for part in node for name in _references(part)]
    if not isinstance(node, dict):
        return []
    own = node.get("$ref")
    found = [own.removeprefix(_PREFIX)] if isinstance(own, str) else []
    return found + [name for part in node.values() for name in _references(part)]


def main() -> None:
    """Write them anew."""
    parser = argparse.ArgumentParser(prog="python -m infra.standins.schemas", description=__doc__)
    parser.add_argument("swagger", type=Path, help="api/openapi-spec/swagger.json of the Go module k8s.io/kubernetes")
    made = schemas(json.loads(parser.parse_args().swagger.read_text(encoding="utf-8")))
    SCHEMAS.mkdir(exist_ok=True)
    for file, text in made.items():
        (SCHEMAS / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
