"""What is made for a job, by what Kubernetes knows of its own kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from penstock_operator.resources import ClusterSpec, Deployed, JobVersion, SecretKey, Source, StartPoint
from penstock_operator.submitting import copy_of, state_of, submitter

SCHEMAS = Path(__file__).parents[3] / "infra" / "standins" / "schemas"
OWNER = {"kind": "PenstockJob", "metadata": {"name": "orders", "uid": "u"}}
CLUSTER = ClusterSpec(
    rest="https://demo-rest:8080", client_image="client:1", token=SecretKey(name="token", key="PENSTOCK_TOKEN"),
    authority=SecretKey(name="tls", key="ca.crt"), image_pull_secrets=("registry",),
)  # fmt: skip
DEPLOYED = Deployed(
    job="0" * 32, parallelism=2, attempt="a", since_us=1, start=StartPoint(manifest="jobs/1/5", checkpoint=5),
    version=JobVersion(source=Source(config_map="orders", file="orders.py"), content="c" * 64, secrets=("passwords",)),
)  # fmt: skip
POD = {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}


def conforms(kind: str, document: dict[str, Any]) -> None:
    """To the schema of its kind, which takes no field that Kubernetes does not have."""
    base = f"file://{SCHEMAS}/{kind}.json"
    schema = {"$id": base, **json.loads((SCHEMAS / f"{kind}.json").read_text())}
    jsonschema_rs.validator_for(schema, base_uri=base).validate(document)


@pytest.mark.parametrize("suspended", [False, True])
def test_kubernetes_takes_the_job_that_submits(suspended: bool) -> None:
    """With everything that it may have."""
    conforms("job-batch-v1", submitter(OWNER, CLUSTER, DEPLOYED, suspended=suspended))


def test_kubernetes_takes_the_copy_of_a_config_map() -> None:
    conforms("configmap-v1", copy_of({"data": {"orders.py": "p = 1"}, "binaryData": {"model": "AA=="}}, OWNER))


def test_what_keeps_a_pod_from_submitting_is_said_while_it_tries() -> None:
    """An image that is not there is no end: Kubernetes tries on."""
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    pod = {**POD, "status": {"containerStatuses": [{"state": waiting}]}}
    job = {"spec": {"suspend": False}, "status": {"active": 1}}
    assert state_of(job, [pod]) == ("working", "ImagePullBackOff: Back-off pulling image")
