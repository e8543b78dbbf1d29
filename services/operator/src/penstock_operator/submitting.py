"""How a job is submitted: by a Job of Kubernetes, whose pod runs `penstock submit` in the user's image.

The pipeline's file is imported there and not in the operator, whose rights it must not have. The Job is called after the
id of Penstock's job, and stays: whoever comes late, and wants to make it once more, finds that it exists. One that must
not submit any more is suspended and not deleted, for the same reason.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from penstock_operator.kubernetes import Document
from penstock_operator.resources import GROUP, VERSION, ClusterSpec, Deployed, JobVersion
from penstock_operator.terms import Submitter

OWNER_LABEL: Final = f"{GROUP}/job"
KEPT_S: Final = 86_400
"""How long Kubernetes keeps a Job that has ended, for its pod's log."""
RETRIES: Final = 2
_MOVED: Final = {
    "action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}  # fmt: skip
"""A pod that a node was drained of is no attempt."""
_WRONG: Final = {"action": "FailJob", "onExitCodes": {"containerName": "submit", "operator": "In", "values": [2]}}
"""`penstock` says that it was used wrongly, as by a pipeline that makes no sense; another attempt would say so, too."""
_NAME: Final = 40
_LABEL: Final = 63
_FOLDER: Final = "/pipeline"


def submitter_name(name: str, job: str) -> str:
    """The Job that submits the job of this id."""
    return f"{name[:_NAME].rstrip('-.')}-{job[:16]}"


def copy_name(name: str, content: str) -> str:
    """The copy of a ConfigMap with this content."""
    return f"{name[:_NAME].rstrip('-.')}-source-{content[:12]}"


def content_of(config_map: Document) -> str:
    """The SHA-256 of the data of a ConfigMap."""
    data = [config_map.get("data") or {}, config_map.get("binaryData") or {}]
    return hashlib.sha256(msgspec.json.encode(data, order="sorted")).hexdigest()


def copy_of(config_map: Document, owner: Document) -> Document:
    """A copy that nobody changes: a version can be submitted again when the original says something else."""
    data = {key: config_map[key] for key in ("data", "binaryData") if config_map.get(key)}
    name = copy_name(owner["metadata"]["name"], content_of(config_map))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(owner, name), "immutable": True, **data}


def submitter(owner: Document, cluster: ClusterSpec, deployed: Deployed, *, suspended: bool = False) -> Document:
    """The Job that submits a job of the resource `owner`; `suspended`: one that never does."""
    name = submitter_name(owner["metadata"]["name"], deployed.job)
    pod = {
        "metadata": {"labels": {**label_of(owner), "app.kubernetes.io/name": "penstock-submit"}},
        "spec": _pod(owner, cluster, deployed),
    }
    spec = {
        "backoffLimit": RETRIES, "ttlSecondsAfterFinished": KEPT_S, "suspend": suspended, "template": pod,
        "podFailurePolicy": {"rules": [_MOVED, _WRONG]},
    }  # fmt: skip
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(owner, name), "spec": spec}


def _metadata(owner: Document, name: str) -> Document:
    reference = {
        "apiVersion": f"{GROUP}/{VERSION}", "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": True,
    }  # fmt: skip
    return {"name": name, "labels": label_of(owner), "ownerReferences": [reference]}


def label_of(owner: Document) -> dict[str, str]:
    """What is made for a resource has its name as a label, as far as a label's value is long."""
    return {OWNER_LABEL: owner["metadata"]["name"][:_LABEL].rstrip("-.")}


def is_owned(found: Document, owner: Document) -> bool:
    """Whether it was made for this very resource."""
    owners = found["metadata"].get("ownerReferences") or []
    return any(one["uid"] == owner["metadata"]["uid"] for one in owners)


def _pod(owner: Document, cluster: ClusterSpec, deployed: Deployed) -> Document:
    version = deployed.version
    volumes: list[Document] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[Document] = [{"name": "tmp", "mountPath": "/tmp"}]
    env: list[Document] = [{"name": "PENSTOCK_REST", "value": cluster.rest}]
    if cluster.token is not None:
        secret = {"name": cluster.token.name, "key": cluster.token.key}
        env.append({"name": "PENSTOCK_TOKEN", "valueFrom": {"secretKeyRef": secret}})
    if cluster.authority is not None:
        items = [{"key": cluster.authority.key, "path": "ca.crt"}]
        volumes.append({"name": "authority", "secret": {"secretName": cluster.authority.name, "items": items}})
        mounts.append({"name": "authority", "mountPath": "/etc/penstock/ca", "readOnly": True})
        env.append({"name": "PENSTOCK_REST_SSL_CAFILE", "value": "/etc/penstock/ca/ca.crt"})
    if version.content:
        source = copy_name(owner["metadata"]["name"], version.content)
        volumes.append({"name": "pipeline", "configMap": {"name": source}})
        mounts.append({"name": "pipeline", "mountPath": _FOLDER, "readOnly": True})
    container = {
        "name": "submit",
        "image": version.image or cluster.client_image,
        "command": ["penstock", *submit_arguments(deployed)],
        "workingDir": "/tmp",
        "env": env,
        "envFrom": [{"secretRef": {"name": name}} for name in version.secrets],
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        },
    }  # fmt: skip
    return {
        "restartPolicy": "Never",
        "imagePullSecrets": [{"name": name} for name in cluster.image_pull_secrets],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }  # fmt: skip


def submit_arguments(deployed: Deployed) -> list[str]:
    """What the command `penstock` is told."""
    version = deployed.version
    arguments = ["submit", _file(version), "--detach", "--job-id", deployed.job]
    arguments += ["--parallelism", str(deployed.effective), "--checkpoint-interval", version.checkpoint_interval]
    arguments += ["--restart", version.restart, "--state-backend", version.state_backend]
    arguments += [part for key, value in sorted(version.parameters.items()) for part in ("--param", f"{key}={value}")]
    if version.incremental_checkpoints:
        arguments.append("--incremental-checkpoints")
    if version.allow_non_restored:
        arguments.append("--allow-non-restored")
    if deployed.start is not None:
        arguments += ["--from-savepoint", deployed.start.manifest]
    return arguments


def _file(version: JobVersion) -> str:
    return f"{_FOLDER}/{version.source.file}" if version.content else version.source.file


def state_of(job: Document | None, pods: list[Document]) -> tuple[Submitter, str]:
    """How far a submission is, and what is wrong with it."""
    if job is None:
        return "absent", ""
    status = job.get("status") or {}
    done = {one["type"]: one for one in status.get("conditions") or [] if one.get("status") == "True"}
    problem = _problem_of(pods)
    if "Complete" in done:
        return "done", ""
    if "Failed" in done:
        return "failed", problem or done["Failed"].get("message", "the pod that submits it failed")
    if job["spec"].get("suspend") and not status.get("active") and not status.get("terminating"):
        return "halted", problem
    return "working", problem


def _problem_of(pods: list[Document]) -> str:
    """The last words of the newest pod, or what it waits for."""
    newest = sorted(pods, key=lambda pod: pod["metadata"].get("creationTimestamp") or "")[-1:]
    for status in ((pod.get("status") or {}).get("containerStatuses") or [] for pod in newest):
        for container in status:
            state: dict[str, Any] = container.get("state") or {}
            ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
            if ended.get("exitCode"):
                return (ended.get("message") or ended.get("reason") or "").strip()
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                return f"{waiting['reason']}: {waiting.get('message', '')}".strip(": ")
    return ""
