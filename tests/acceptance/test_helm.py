"""The chart as helm renders it: what it makes of values, that its pods are restricted, that wrong values are named."""

from __future__ import annotations

import subprocess
from typing import Any, Final

import pytest
import yaml

from .docker import ROOT, run

CHART: Final = ROOT / "helm" / "penstock"
BUNDLED: Final = ("bundled.kafka.enabled=true", "bundled.redis.enabled=true", "bundled.minio.enabled=true")
EXTERNAL: Final = (
    "kafka.brokers=kafka:9092",
    "store.endpoint=http://s3",
    "secrets.redisUrl=redis://redis",
    "secrets.storeAccessKey=a",
    "secrets.storeSecretKey=b",
)

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def helm() -> str:
    """The program."""
    return run(ROOT / "infra" / "standins" / "helm.sh", timeout_s=800).split()[-1]


def template(helm: str, *values: str) -> subprocess.CompletedProcess[str]:
    """`helm template` with these values."""
    options = [part for value in values for part in ("--set", value)]
    command = [helm, "template", "demo", str(CHART), "--kube-version", "1.33.0", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def rendered(helm: str, *values: str) -> list[dict[str, Any]]:
    """All objects of the chart."""
    done = template(helm, *values)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def pods(objects: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Name and specification of every pod, in whatever makes it."""
    found: list[tuple[str, dict[str, Any]]] = []
    for item in objects:
        if item["kind"] == "Pod":
            found.append((item["metadata"]["name"], item["spec"]))
        elif "template" in item.get("spec", {}):
            found.append((item["metadata"]["name"], item["spec"]["template"]["spec"]))
    return found


def test_lint(helm: str) -> None:
    """With bundled servers and with external ones."""
    for values in (BUNDLED, EXTERNAL):
        run(helm, "lint", "--strict", CHART, *(part for value in values for part in ("--set", value)))


def test_what_there_is_by_default(helm: str) -> None:
    """Two coordinators and a budget for them, two dispatchers behind a service, a task manager; nothing bundled."""
    objects = rendered(helm, *EXTERNAL)
    replicas = {item["metadata"]["name"]: item["spec"]["replicas"] for item in objects if item["kind"] == "Deployment"}
    assert replicas == {"demo-coordinator": 2, "demo-dispatcher": 2, "demo-taskmanager": 1}
    kinds = {item["kind"] for item in objects}
    assert kinds == {
        "Deployment", "Job", "NetworkPolicy", "Pod", "PodDisruptionBudget", "Secret", "Service", "ServiceAccount",
    }  # fmt: skip


@pytest.mark.parametrize("values", [BUNDLED, EXTERNAL])
def test_every_pod_is_restricted(helm: str, values: tuple[str, ...]) -> None:
    """As the pod security standard of that name asks; Penstock's own have a read-only root and know no token."""
    found = pods(rendered(helm, *values))
    assert len(found) >= 6
    for name, spec in found:
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["automountServiceAccountToken"] is False, name
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"], name
            if container["image"].startswith("penstock/"):
                assert own["readOnlyRootFilesystem"] is True, name


def test_services_are_probed_and_end_gracefully(helm: str) -> None:
    """Alive and ready are two questions; there is time to hand slots and lease back."""
    for name, spec in pods([o for o in rendered(helm, *EXTERNAL) if o["kind"] == "Deployment"]):
        (container,) = spec["containers"]
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz", name
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz", name
        assert spec["terminationGracePeriodSeconds"] >= 40, name


def test_secrets_stay_in_secrets(helm: str) -> None:
    """No value of a secret stands anywhere else; with an existing one there is none in the chart."""
    objects = rendered(helm, *EXTERNAL, "secrets.kafkaSaslPassword=hidden-1", "secrets.storeSecretKey=hidden-2")
    for item in objects:
        if item["kind"] != "Secret":
            assert "hidden-" not in yaml.safe_dump(item), item["metadata"]["name"]
    others = rendered(helm, "kafka.brokers=k:1", "store.endpoint=http://s3", "secrets.existing=mine")
    assert "Secret" not in {item["kind"] for item in others}
    for _, spec in pods(others):
        assert spec["containers"][0]["envFrom"] == [{"secretRef": {"name": "mine"}}]


def test_monitoring(helm: str) -> None:
    """The rules and dashboards of this repository, as the Prometheus operator and Grafana's sidecar find them."""
    objects = rendered(helm, *EXTERNAL, "monitoring.enabled=true", "monitoring.dashboards=true")
    rules = next(item["spec"] for item in objects if item["kind"] == "PrometheusRule")
    assert rules == yaml.safe_load((ROOT / "infra" / "prometheus" / "alerts.yml").read_text())
    boards = [item for item in objects if item["kind"] == "ConfigMap"]
    for board in boards:
        ((name, text),) = board["data"].items()
        assert text == (ROOT / "infra" / "grafana" / "dashboards" / name).read_text()
    assert len(boards) == 5
    assert "ServiceMonitor" in {item["kind"] for item in objects}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((), "secrets.redisUrl is missing"),
        (("secrets.existing=mine",), "kafka.brokers is missing"),
        (("secrets.existing=mine", "kafka.brokers=k:1"), "store.endpoint is missing"),
        ((*EXTERNAL, "taskmanager.slot=3"), "'slot' not allowed"),
        ((*EXTERNAL, "taskmanager.slots=0"), "/taskmanager/slots"),
        ((*EXTERNAL, "coordinator.leaseTtl=soon"), "/coordinator/leaseTtl"),
        ((*EXTERNAL, "kafka.securityProtocol=TLS"), "/kafka/securityProtocol"),
    ],
)
def test_wrong_values_are_named(helm: str, values: tuple[str, ...], message: str) -> None:
    """Before anything is installed."""
    done = template(helm, *values)
    assert done.returncode != 0
    assert message in done.stderr
