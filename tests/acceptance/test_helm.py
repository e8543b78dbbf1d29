"""The chart as helm renders it: what it makes of values, that its pods are restricted, that wrong values are named."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml
from infra.standins.schemas import SCHEMAS

from penstock.core.times import duration_us
from penstock.runs.run_scheduler import STEP_GRACE_MS
from penstock.settings import load_settings
from penstock_operator.resources import ClusterSpec, SecretKey
from penstock_operator.submitting import OWNER_LABEL

from .docker import ROOT, run

CHART: Final = ROOT / "helm" / "penstock"
GO_TOOL: Final = ROOT / "infra" / "standins" / "gotool.sh"
BUNDLED: Final = ("bundled.kafka.enabled=true", "bundled.redis.enabled=true", "bundled.minio.enabled=true")
EXTERNAL: Final = (
    "kafka.brokers=kafka:9092",
    "store.endpoint=http://s3",
    "secrets.redisUrl=redis://redis",
    "secrets.storeAccessKey=a",
    "secrets.storeSecretKey=b",
)

TLS: Final = (
    *EXTERNAL, "kafka.securityProtocol=SASL_SSL", "store.endpoint=https://s3", "secrets.redisUrl=rediss://redis",
    "kafka.tls.secret=kafka-tls", "kafka.tls.ca=root.crt", "kafka.tls.certificate=client.crt", "kafka.tls.key=client.key",
    "redis.tls.secret=redis-tls", "redis.tls.certificate=tls.crt", "store.tls.secret=store-tls",
)  # fmt: skip
IMAGES: Final = ("coordinator", "dispatcher", "taskmanager", "pipeline", "client")
FOREIGN: Final = ("ServiceMonitor", "PrometheusRule", "PenstockCluster", "ClusterRole", "ClusterRoleBinding")
"""Of which there is no schema here."""
WORKLOADS: Final = ("Deployment", "StatefulSet")
AUTOSCALING: Final = ("taskmanager.autoscaling.enabled=true", "taskmanager.autoscaling.maxReplicas=7")
APPLICATION: Final = ("application.enabled=true", "application.file=/app/orders.py", "application.parallelism=4")
OIDC: Final = (
    "dispatcher.oidc.issuer=https://login.example.org", "dispatcher.oidc.audience=penstock",
    r"dispatcher.oidc.operate=on-call\,operators",
)  # fmt: skip
EVERYTHING: Final = (
    *AUTOSCALING, "application.enabled=true", "application.file=orders.py", "application.source=the text",
    "pipeline.volume.size=1Gi", "pipeline.executors.nodeSelector.disk=ssd", "monitoring.enabled=true",
    "monitoring.dashboards=true",
    "dispatcher.ingress.enabled=true", "dispatcher.ingress.tlsSecret=tls", "networkPolicy.egress.enabled=true",
    "image.pullSecrets[0].name=registry", "dispatcher.tls.secret=rest-tls", "secrets.tokens=ann view sha256:00",
    "operator.enabled=true", *OIDC, "dispatcher.oidc.caSecret=own-ca",
)  # fmt: skip
MATRIX: Final = {
    "bundled": BUNDLED,
    "external": EXTERNAL,
    "without Spark": (*EXTERNAL, "pipeline.enabled=false"),
    "Spark elsewhere": (*EXTERNAL, "pipeline.master=spark://spark:7077", "store.forPipelines=false"),
    "certificates": TLS,
    "autoscaling": (*EXTERNAL, *AUTOSCALING),
    "application": (*EXTERNAL, *APPLICATION),
    "operator": (*EXTERNAL, "operator.enabled=true", "operator.clusterWide=true"),
    "everything": (*BUNDLED, *EVERYTHING, "bundled.kafka.storage=1Gi", "bundled.minio.storage=1Gi"),
}

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def helm() -> str:
    """The program."""
    return run(GO_TOOL, "helm", timeout_s=800).split()[-1]


@pytest.fixture(scope="module")
def kubeconform() -> list[str]:
    """The program, with what Kubernetes knows of each kind; kinds of the Prometheus operator are not Kubernetes' own."""
    program = run(GO_TOOL, "kubeconform", timeout_s=800).split()[-1]
    where = str(SCHEMAS / "{{.ResourceKind}}{{.KindSuffix}}.json")
    return [program, "-strict", "-summary", "-schema-location", where, "-skip", ",".join(FOREIGN)]


def conforms(kubeconform: list[str], text: str) -> subprocess.CompletedProcess[str]:
    """Whether objects are what Kubernetes takes."""
    return subprocess.run(kubeconform, input=text, capture_output=True, text=True, check=False, timeout=120)


def template(helm: str, *values: str, release: str = "demo") -> subprocess.CompletedProcess[str]:
    """`helm template` with these values; a file of them comes last, after `--values`."""
    begin = values.index("--values") if "--values" in values else len(values)
    options = [*(part for value in values[:begin] for part in ("--set", value)), *values[begin:]]
    command = [helm, "template", release, str(CHART), "--kube-version", "1.33.0", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def rendered(helm: str, *values: str, release: str = "demo") -> list[dict[str, Any]]:
    """All objects of the chart."""
    done = template(helm, *values, release=release)
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


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The one object of that kind and name."""
    (found,) = (item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name)
    return found


def arguments(objects: list[dict[str, Any]], kind: str, name: str) -> list[str]:
    """What the first container of a workload is told."""
    return named(objects, kind, name)["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_lint(helm: str, values: tuple[str, ...]) -> None:
    """In every way that the chart is used."""
    run(helm, "lint", "--strict", CHART, *(part for value in values for part in ("--set", value)))


def test_what_there_is_by_default(helm: str) -> None:
    """Two coordinators and a budget for them, two dispatchers behind a service, a task manager, a pipeline service that
    may make executors; nothing bundled."""
    objects = rendered(helm, *EXTERNAL)
    workloads = [item for item in objects if item["kind"] in WORKLOADS]
    replicas = {item["metadata"]["name"]: item["spec"]["replicas"] for item in workloads}
    assert replicas == {"demo-coordinator": 2, "demo-dispatcher": 2, "demo-taskmanager": 1, "demo-pipeline": 1}
    kinds = {item["kind"] for item in objects}
    assert kinds == {
        "ConfigMap", "Deployment", "Job", "NetworkPolicy", "Pod", "PodDisruptionBudget", "PriorityClass", "Role",
        "RoleBinding", "Secret", "Service", "ServiceAccount", "StatefulSet",
    }  # fmt: skip


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_kubernetes_takes_all_objects(helm: str, kubeconform: list[str], values: tuple[str, ...]) -> None:
    """Strictly: a field that it does not know is wrong."""
    text = template(helm, *values).stdout
    done = conforms(kubeconform, text)
    assert done.returncode == 0, done.stdout
    kinds = yaml.safe_load_all(text)
    ours = [item for item in kinds if item and item["kind"] not in FOREIGN]
    assert f"Valid: {len(ours)}, Invalid: 0" in done.stdout


@pytest.mark.parametrize("release", ["y", "2026", "1e3", "0x10", "null", "on", "true", "a.b", "a" * 53])
def test_any_name_of_a_release_will_do(helm: str, kubeconform: list[str], release: str) -> None:
    """Also one that YAML takes for something else than text; a Service's name begins with a letter and has no dot."""
    found = template(helm, *MATRIX["everything"], release=release)
    assert found.returncode == 0, found.stderr
    text = found.stdout
    done = conforms(kubeconform, text)
    assert done.returncode == 0, done.stdout
    for item in rendered(helm, *MATRIX["everything"], release=release):
        assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == release
        if item["kind"] == "Service":
            assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", item["metadata"]["name"]), item["metadata"]["name"]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("containerPort:", "containerPrt:"), ("kind: StatefulSet", "kind: StatfulSet"), ("replicas: 2", "replicas: two")],
)
def test_what_kubernetes_would_not_take_is_found(helm: str, kubeconform: list[str], right: str, wrong: str) -> None:
    """So that the test above means something."""
    text = template(helm, *EXTERNAL).stdout
    assert right in text
    assert conforms(kubeconform, text.replace(right, wrong)).returncode != 0


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_every_pod_is_restricted(helm: str, values: tuple[str, ...]) -> None:
    """As the pod security standard of that name asks; Penstock's own have a read-only root.

    Nobody knows a token, but coordinators that set the number of task managers, drivers that make executors, and the
    operator.
    """
    found = pods(rendered(helm, *values))
    assert len(found) >= 6
    for name, spec in found:
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        scales = name == "demo-coordinator" and "taskmanager.autoscaling.enabled=true" in values
        makes = name == "demo-pipeline" and "pipeline.master=spark://spark:7077" not in values
        assert spec["automountServiceAccountToken"] is (scales or makes or name == "demo-operator"), name
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False, name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"], name
            if container["image"].startswith("penstock/"):
                assert own["readOnlyRootFilesystem"] is True, name


def test_services_are_probed_and_end_gracefully(helm: str) -> None:
    """Alive and ready are two questions; there is time to hand slots and lease back."""
    objects = rendered(helm, *EXTERNAL)
    found = pods([item for item in objects if item["kind"] in WORKLOADS])
    assert len(found) == 4
    for name, spec in found:
        container = spec["containers"][0]
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz", name
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz", name
        assert spec["terminationGracePeriodSeconds"] >= 40, name


def test_who_decides_goes_before_who_computes(helm: str) -> None:
    """On a full node coordinators, dispatchers, what they need and hooks displace task managers, never each other."""
    objects = rendered(helm, *BUNDLED)
    made = named(objects, "PriorityClass", "penstock-default-demo")
    assert made["value"] > 0
    for name, spec in pods(objects):
        computes = name in ("demo-taskmanager", "demo-pipeline")
        assert spec.get("priorityClassName") == (None if computes else "penstock-default-demo"), name
    mine = rendered(helm, *EXTERNAL, "priorityClass.existing=mine")
    assert {spec.get("priorityClassName") for _, spec in pods(mine)} == {None, "mine"}
    none = rendered(helm, *EXTERNAL, "priorityClass.create=false")
    assert {spec.get("priorityClassName") for _, spec in pods(none)} == {None}
    assert not {item["kind"] for item in [*mine, *none]} & {"PriorityClass"}


def test_replicas_are_spread(helm: str) -> None:
    """Over nodes and zones as far as there are some, each version by itself; what is said instead counts."""
    for part in ("coordinator", "dispatcher"):
        found = named(rendered(helm, *EXTERNAL), "Deployment", f"demo-{part}")["spec"]
        constraints = found["template"]["spec"]["topologySpreadConstraints"]
        assert [each["topologyKey"] for each in constraints] == [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        ]
        for each in constraints:
            assert each["whenUnsatisfiable"] == "ScheduleAnyway"
            assert each["labelSelector"] == found["selector"]
            assert each["matchLabelKeys"] == ["pod-template-hash"]
        told = rendered(helm, *EXTERNAL, f"{part}.spreadOver={{rack}}")
        spec = named(told, "Deployment", f"demo-{part}")["spec"]["template"]["spec"]
        assert [each["topologyKey"] for each in spec["topologySpreadConstraints"]] == ["rack"]
        nowhere = rendered(helm, *EXTERNAL, f"{part}.spreadOver=null")
        assert (
            "topologySpreadConstraints" not in named(nowhere, "Deployment", f"demo-{part}")["spec"]["template"]["spec"]
        )


def test_bundled_servers_are_bounded_and_probed(helm: str) -> None:
    """A server that hangs is started again; one that takes too much memory ends before its node does."""
    objects = rendered(helm, *BUNDLED)
    for part in ("kafka", "redis", "minio"):
        (container,) = named(objects, "StatefulSet", f"demo-{part}")["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["memory"], part
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert {"tcpSocket", "exec", "httpGet"} & container[probe].keys(), (part, probe)


def test_what_a_test_says_can_be_read(helm: str) -> None:
    """`helm test --logs` reads after the test: the pod stays until the next one."""
    annotations = named(rendered(helm, *EXTERNAL), "Pod", "demo-test")["metadata"]["annotations"]
    assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation"


def test_the_hook_of_an_uninstallation_finds_a_place(helm: str) -> None:
    """It asks for next to nothing, and leaves to one command what is said to people."""
    spec = named(rendered(helm, *EXTERNAL), "Job", "demo-savepoints")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["requests"] == {"cpu": "1m", "memory": "16Mi"}
    found = re.search(r"penstock stop --all --timeout (\S+) ", container["command"][-1])
    assert found is not None
    assert duration_us(found[1], "") // 1_000 > STEP_GRACE_MS + 15_000, "the step at work of a job may end meanwhile"
    assert "|" not in container["command"][-1].replace("||", "")


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


def test_dispatchers_speak_tls_with_a_secret(helm: str) -> None:
    """Probes, clients of the chart and Prometheus ask by HTTPS; only dispatchers see the key."""
    objects = rendered(helm, *EXTERNAL, "dispatcher.tls.secret=rest-tls", "monitoring.enabled=true")
    for name, spec in pods(objects):
        container = spec["containers"][0]
        env = {one["name"]: one.get("value") for one in container["env"]}
        mounted = [one["secret"] for one in spec["volumes"] if "secret" in one]
        assert env["PENSTOCK_REST"] == "https://demo-rest:8080", name
        scheme = "HTTPS" if name.endswith("-dispatcher") else "HTTP"
        probes = [container[kind] for kind in ("startupProbe", "livenessProbe", "readinessProbe") if kind in container]
        assert {probe["httpGet"]["scheme"] for probe in probes} <= {scheme}, name
        if scheme == "HTTPS":
            assert mounted == [{"secretName": "rest-tls"}]
            assert env["PENSTOCK_REST_SSL_KEYFILE"] == "/etc/penstock/tls/tls.key"
        else:
            assert all(one["items"] == [{"key": "ca.crt", "path": "ca.crt"}] for one in mounted), name
        if container["name"] == "client":
            assert env["PENSTOCK_REST_SSL_CAFILE"] == "/etc/penstock/ca/ca.crt", name
    (endpoint,) = named(objects, "ServiceMonitor", "demo")["spec"]["endpoints"]
    assert {"regex": "dispatcher", "targetLabel": "__scheme__", "replacement": "https"}.items() <= endpoint[
        "relabelings"
    ][0].items()
    public = pods(rendered(helm, *EXTERNAL, "dispatcher.tls.secret=rest-tls", "dispatcher.tls.ca="))
    assert not [name for name, spec in public if "PENSTOCK_REST_SSL_CAFILE" in str(spec)]
    plain = rendered(helm, *EXTERNAL)
    assert "PENSTOCK_REST_SSL" not in str(plain)
    assert "https://demo-rest" not in str(plain)


def test_dispatchers_take_tokens_of_a_provider(helm: str) -> None:
    """Beside TLS of their own; only they know of it, and without an issuer nobody does."""
    more = ("dispatcher.tls.secret=rest-tls", "dispatcher.oidc.caSecret=own-ca")
    for name, spec in pods(rendered(helm, *EXTERNAL, *OIDC, *more)):
        container = spec["containers"][0]
        env = {one["name"]: one.get("value") for one in container["env"] if "OIDC" in one["name"]}
        if not name.endswith("-dispatcher"):
            assert env == {}, name
            continue
        assert env == {
            "PENSTOCK_OIDC_ISSUER": "https://login.example.org", "PENSTOCK_OIDC_AUDIENCE": "penstock",
            "PENSTOCK_OIDC_OPERATE": "on-call,operators", "PENSTOCK_OIDC_ROLES_CLAIM": "roles",
            "PENSTOCK_OIDC_NAME_CLAIM": "sub", "PENSTOCK_OIDC_SCOPES": "openid",
            "PENSTOCK_OIDC_LOGIN_TOKEN": "access_token", "PENSTOCK_OIDC_SSL_CAFILE": "/etc/penstock/oidc/ca.crt",
        }  # fmt: skip
        mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert (mounted["oidc"], mounted["tls"]) == ("/etc/penstock/oidc", "/etc/penstock/tls")
        assert {"name": "oidc", "secret": {"secretName": "own-ca"}} in spec["volumes"]
    assert "OIDC" not in str(rendered(helm, *EXTERNAL))


def test_certificates_are_mounted_wherever_they_are_named(helm: str) -> None:
    """Into all of Penstock's pods, executors among them; settings name files that are mounted, and nothing else is."""
    objects = rendered(helm, *TLS)
    executor = yaml.safe_load(named(objects, "ConfigMap", "demo-executor")["data"]["pod.yaml"])
    found = [*pods(objects), ("demo-executor", executor["spec"])]
    assert {name for name, _ in found} == {
        "demo-coordinator", "demo-dispatcher", "demo-taskmanager", "demo-pipeline", "demo-setup-1", "demo-savepoints",
        "demo-test", "demo-executor",
    }  # fmt: skip
    for name, spec in found:
        files = mounted_secrets(spec)
        assert files == {
            "/etc/penstock/kafka/ca.crt": ("kafka-tls", "root.crt"),
            "/etc/penstock/kafka/tls.crt": ("kafka-tls", "client.crt"),
            "/etc/penstock/kafka/tls.key": ("kafka-tls", "client.key"),
            "/etc/penstock/redis/ca.crt": ("redis-tls", "ca.crt"),
            "/etc/penstock/redis/tls.crt": ("redis-tls", "tls.crt"),
            "/etc/penstock/redis/tls.key": ("redis-tls", "tls.key"),
            "/etc/penstock/store/ca.crt": ("store-tls", "ca.crt"),
        }, name
        env = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
        settings = load_settings(environ={key: value for key, value in env.items() if value is not None})
        kafka, redis, store = settings.kafka, settings.redis, settings.store
        for kind in (kafka, redis):
            assert {kind.ssl_cafile, kind.ssl_certfile, kind.ssl_keyfile} <= files.keys(), name
        assert kafka.ssl_certfile == "/etc/penstock/kafka/tls.crt"
        assert store.ssl_cafile == env["AWS_CA_BUNDLE"] == "/etc/penstock/store/ca.crt", name


def mounted_secrets(spec: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """By path, the Secret and its key of every file that the first container of a pod has from Secrets."""
    volumes = {one["name"]: one["secret"] for one in spec["volumes"] if "secret" in one}
    mounts = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] in volumes]
    assert all(one["readOnly"] for one in mounts)
    assert {one["name"] for one in mounts} == volumes.keys()
    return {
        f"{one['mountPath']}/{item['path']}": (volumes[one["name"]]["secretName"], item["key"])
        for one in mounts
        for item in volumes[one["name"]]["items"]
    }


def test_public_authorities_need_no_mount(helm: str) -> None:
    """With a client's certificate alone only that is mounted; without forPipelines no variable of AWS is set."""
    values = ("kafka.securityProtocol=SSL", "kafka.tls.secret=mine", "kafka.tls.ca=", "kafka.tls.certificate=tls.crt")
    store = ("store.endpoint=https://s3", "store.tls.secret=other", "store.forPipelines=false")
    for name, spec in pods(rendered(helm, *EXTERNAL, *values, *store)):
        names = {one["name"] for one in spec["containers"][0]["env"]}
        assert "PENSTOCK_KAFKA_SSL_CERTFILE" in names, name
        assert not names & {"PENSTOCK_KAFKA_SSL_CAFILE", "AWS_CA_BUNDLE"}, name
        assert mounted_secrets(spec).keys() == {
            "/etc/penstock/kafka/tls.crt",
            "/etc/penstock/kafka/tls.key",
            "/etc/penstock/store/ca.crt",
        }, name


def test_images_are_named_by_digest(helm: str) -> None:
    """Each by its own; executors have that of the pipeline service."""
    digests = {part: f"sha256:{number:064}" for number, part in enumerate(IMAGES)}
    objects = rendered(helm, *EXTERNAL, *(f"image.digests.{part}={digest}" for part, digest in digests.items()))
    images = {container["image"] for _, spec in pods(objects) for container in spec["containers"]}
    assert images == {f"penstock/{part}@{digest}" for part, digest in digests.items()}
    executors = f"spark.kubernetes.container.image=penstock/pipeline@{digests['pipeline']}"
    assert executors in arguments(objects, "StatefulSet", "demo-pipeline")


def test_tokens_with_roles_are_part_of_the_settings(helm: str) -> None:
    """A change of them restarts the dispatchers, which read them when they start."""
    line = "ann view sha256:ab"
    objects = [rendered(helm, *EXTERNAL, *more) for more in ((), (f"secrets.tokens={line}",))]
    secret = next(one for one in objects[1] if one["kind"] == "Secret" and "PENSTOCK_REDIS_URL" in one["stringData"])
    assert secret["stringData"]["PENSTOCK_TOKENS"] == line
    sums = [
        named(one, "Deployment", "demo-dispatcher")["spec"]["template"]["metadata"]["annotations"] for one in objects
    ]
    assert sums[0]["checksum/settings"] != sums[1]["checksum/settings"]


def test_the_token_is_made_named_or_somebody_elses(helm: str) -> None:
    """Made at random, long, and no reason to restart a pod; a named one is, where it changes; every pod gets it."""

    def token(objects: list[dict[str, Any]]) -> str:
        found = [item for item in objects if item["kind"] == "Secret" and item["metadata"]["name"] == "demo-token"]
        return found[0]["stringData"]["PENSTOCK_TOKEN"]

    def checksums(objects: list[dict[str, Any]]) -> set[str]:
        return {
            item["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
            for item in objects
            if item["kind"] in ("Deployment", "StatefulSet")
        }

    first, second = rendered(helm, *EXTERNAL), rendered(helm, *EXTERNAL)
    assert len(token(first)) >= 40
    assert token(first) != token(second)
    assert checksums(first) == checksums(second)
    named = rendered(helm, *EXTERNAL, "secrets.token=mine")
    assert token(named) == "mine"
    assert checksums(named).isdisjoint(checksums(first))
    for name, spec in pods(first):
        assert {"secretRef": {"name": "demo-token"}} in spec["containers"][0]["envFrom"], name


def test_monitoring(helm: str) -> None:
    """The rules and dashboards of this repository, as the Prometheus operator and Grafana's sidecar find them."""
    objects = rendered(helm, *EXTERNAL, "monitoring.enabled=true", "monitoring.dashboards=true")
    rules = next(item["spec"] for item in objects if item["kind"] == "PrometheusRule")
    assert rules == yaml.safe_load((ROOT / "infra" / "prometheus" / "alerts.yml").read_text())
    boards = [item for item in objects if "grafana_dashboard" in item["metadata"]["labels"]]
    for board in boards:
        ((name, text),) = board["data"].items()
        assert text == (ROOT / "infra" / "grafana" / "dashboards" / name).read_text()
    assert len(boards) == 6
    assert "ServiceMonitor" in {item["kind"] for item in objects}
    hosted = rendered(helm, *EXTERNAL, "monitoring.enabled=true", "monitoring.docs=https://docs.example.com/penstock/")
    rules = next(item["spec"] for item in hosted if item["kind"] == "PrometheusRule")
    links = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules["groups"][0]["rules"]}
    assert links["PenstockNoLeader"] == "https://docs.example.com/penstock/runbooks.md#penstocknoleader"
    assert all(link.startswith("https://docs.example.com/penstock/runbooks.md#") for link in links.values())


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
        ((*EXTERNAL, "taskmanager.autoscaling.idleTimeout=long"), "/taskmanager/autoscaling/idleTimeout"),
        (
            (*EXTERNAL, *AUTOSCALING, "taskmanager.autoscaling.minReplicas=8"),
            "minReplicas=8 is more than maxReplicas=7",
        ),
        ((*EXTERNAL, "kafka.tls.secret=mine"), "kafka.securityProtocol=PLAINTEXT uses no certificates"),
        ((*EXTERNAL, "redis.tls.secret=mine"), "write rediss://"),
        ((*TLS, "bundled.redis.enabled=true"), "the bundled Redis does not speak"),
        ((*EXTERNAL, "store.tls.secret=mine"), "write https://"),
        ((*TLS, "store.tls.ca="), "store.tls.ca"),
        ((*EXTERNAL, "kafka.tls.certificate=tls.crt"), "name the Secret that it is in, by kafka.tls.secret"),
        ((*EXTERNAL, "bundled.kafka.enabled=true", "kafka.securityProtocol=SSL"), "speaks PLAINTEXT alone"),
        ((*EXTERNAL, "dispatcher.oidc.audience=penstock"), "dispatcher.oidc.issuer is missing"),
        ((*EXTERNAL, "image.digests.client=latest"), "/image/digests/client"),
        ((*EXTERNAL, "pipeline.master=here"), "/pipeline/master"),
        ((*EXTERNAL, "pipeline.executors.memory=2Gi"), "/pipeline/executors/memory"),
        ((*EXTERNAL, "pipeline.history.maxAge=a week"), "/pipeline/history/maxAge"),
        ((*EXTERNAL, "application.enabled=true"), "application.file is missing"),
    ],
)
def test_wrong_values_are_named(helm: str, values: tuple[str, ...], message: str) -> None:
    """Before anything is installed."""
    done = template(helm, *values)
    assert done.returncode != 0
    assert message in done.stderr


def test_autoscaling(helm: str) -> None:
    """The coordinator may set that one number, and an upgrade does not set it back."""
    objects = rendered(helm, *EXTERNAL, *AUTOSCALING, "taskmanager.slots=4")
    assert "replicas" not in named(objects, "StatefulSet", "demo-taskmanager")["spec"]
    (rule,) = named(objects, "Role", "demo-scale")["rules"]
    assert rule == {
        "apiGroups": ["apps"], "resources": ["statefulsets/scale"], "resourceNames": ["demo-taskmanager"],
        "verbs": ["get", "patch"],
    }  # fmt: skip
    (subject,) = named(objects, "RoleBinding", "demo-scale")["subjects"]
    users = [name for name, spec in pods(objects) if spec["serviceAccountName"] == subject["name"]]
    assert users == ["demo-coordinator"]
    told = arguments(objects, "Deployment", "demo-coordinator")
    begin = told.index("--scale-statefulset")
    assert told[begin:] == [
        "--scale-statefulset", "demo-taskmanager", "--scale-slots", "4", "--scale-min", "1", "--scale-max", "7",
        "--slot-idle-timeout", "60s",
    ]  # fmt: skip


def test_the_operator(helm: str) -> None:
    """It may do what it does, in its namespace, and read no Secret but the token; the release is a cluster for jobs.

    The definitions come with it, and only with it.
    """
    objects = rendered(helm, *EXTERNAL, "operator.enabled=true")
    assert arguments(objects, "Deployment", "demo-operator") == ["--namespace", "default"]
    cluster = named(objects, "PenstockCluster", "demo")["spec"]
    assert msgspec.convert(cluster, ClusterSpec) == ClusterSpec(
        rest="http://demo-rest:8080", token=SecretKey(name="demo-token", key="PENSTOCK_TOKEN"),
        client_image="penstock/client:0.1.0",
    )  # fmt: skip
    rules = {tuple(rule["resources"]): rule for rule in named(objects, "Role", "demo-operator")["rules"]}
    assert rules["secrets",] == {
        "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["demo-token"], "verbs": ["get"],
    }  # fmt: skip
    assert not any("*" in rule["verbs"] + rule["resources"] for rule in rules.values())
    tls = rendered(helm, *EXTERNAL, "operator.enabled=true", "dispatcher.tls.secret=t", "operator.secrets={other}")
    named_secrets = next(
        rule for rule in named(tls, "Role", "demo-operator")["rules"] if "secrets" in rule["resources"]
    )
    assert named_secrets["resourceNames"] == ["demo-token", "t", "other"]
    assert named(tls, "PenstockCluster", "demo")["spec"]["authority"] == {"name": "t", "key": "ca.crt"}
    narrowed = rendered(helm, *EXTERNAL, "operator.enabled=true", "networkPolicy.restFrom[0].team=a", "secrets.token=t")
    (rest,) = named(narrowed, "NetworkPolicy", "demo-rest")["spec"]["ingress"]
    assert {"podSelector": {"matchExpressions": [{"key": OWNER_LABEL, "operator": "Exists"}]}} in rest["from"]
    for wanted, count in (("true", 3), ("false", 0)):
        done = template(helm, *EXTERNAL, f"operator.enabled={wanted}", "--values", "/dev/null", "--include-crds")
        assert done.stdout.count("kind: CustomResourceDefinition") == count, done.stderr


def test_without_autoscaling_and_spark_nobody_may_do_anything(helm: str) -> None:
    """There is no Role and no token."""
    kinds = {item["kind"] for item in rendered(helm, *MATRIX["without Spark"])}
    assert not kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


@pytest.mark.parametrize(
    ("values", "volume", "claims"),
    [
        ((), {"name": "data", "emptyDir": {}}, 0),
        (("pipeline.volume.size=2Gi", "pipeline.volume.storageClass=fast"), None, 1),
        (
            ("pipeline.volume.existingClaim=mine",),
            {"name": "data", "persistentVolumeClaim": {"claimName": "mine"}},
            0,
        ),
    ],
)
def test_the_pipeline_service(helm: str, values: tuple[str, ...], volume: dict[str, Any] | None, claims: int) -> None:
    """One, with a volume for what makes runs repeatable; master and settings of Spark as they are given, and win."""
    settings = ("pipeline.master=spark://spark:7077", "pipeline.conf.spark\\.executor\\.memory=2g")
    settings = (*settings, "pipeline.conf.spark\\.eventLog\\.dir=/elsewhere")
    objects = rendered(helm, *EXTERNAL, *settings, *values)
    spec = named(objects, "StatefulSet", "demo-pipeline")["spec"]
    assert spec["replicas"] == 1
    assert len(spec.get("volumeClaimTemplates", [])) == claims
    volumes = [found for found in spec["template"]["spec"]["volumes"] if found["name"] == "data"]
    assert volumes == ([volume] if volume else [])
    told = arguments(objects, "StatefulSet", "demo-pipeline")
    assert told == [
        "--dir", "/data", "--concurrent", "1", "--master", "spark://spark:7077",
        "--staging", "s3://penstock/penstock/spark-staging", "--conf", "spark.eventLog.dir=/elsewhere",
        "--conf", "spark.eventLog.enabled=true", "--conf", "spark.eventLog.rolling.maxFileSize=10m",
        "--conf", "spark.executor.memory=2g", "--conf", "spark.hadoop.fs.s3a.endpoint=http://s3",
        "--conf", "spark.hadoop.fs.s3a.endpoint.region=us-east-1",
        "--conf", "spark.hadoop.fs.s3a.path.style.access=true",
    ]  # fmt: skip
    assert "demo-executor" not in {item["metadata"]["name"] for item in objects}
    off = rendered(
        helm, *EXTERNAL, "pipeline.history.enabled=false", "store.forPipelines=false", "pipeline.master=local[2]"
    )
    assert arguments(off, "StatefulSet", "demo-pipeline") == [
        "--dir",
        "/data",
        "--concurrent",
        "1",
        "--master",
        "local[2]",
    ]
    assert "initContainers" not in named(off, "StatefulSet", "demo-pipeline")["spec"]["template"]["spec"]


def settings_of(told: list[str]) -> dict[str, str]:
    """Spark's among the arguments of the pipeline service."""
    return dict(value.split("=", 1) for option, value in pairwise(told) if option == "--conf")


def test_event_logs_lie_in_the_store(helm: str) -> None:
    """Drivers write where the history server reads, and cleans by age; it knows the store's keys and no other secret, and
    has no volume but for what may be lost; the folder is made before both start."""
    objects = rendered(
        helm, *EXTERNAL, "clusterName=c", "store.bucket=b.x", "store.region=eu-1", "pipeline.history.maxAge=12h"
    )
    spec = named(objects, "StatefulSet", "demo-pipeline")["spec"]["template"]["spec"]
    (before,) = spec["initContainers"]
    _, history = spec["containers"]
    (options,) = (one["value"] for one in history["env"] if one["name"] == "SPARK_HISTORY_OPTS")
    shown = dict(option.removeprefix("-D").split("=", 1) for option in options.split())
    written = settings_of(arguments(objects, "StatefulSet", "demo-pipeline"))
    store = {
        "spark.hadoop.fs.s3a.endpoint": "http://s3",
        "spark.hadoop.fs.s3a.endpoint.region": "eu-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    assert shown == {
        "spark.history.fs.logDirectory": "s3a://b.x/c/spark-events", "spark.history.fs.cleaner.enabled": "true",
        "spark.history.fs.cleaner.maxAge": "12h", "spark.history.fs.eventLog.rolling.maxFilesToRetain": "50", **store,
    }  # fmt: skip
    assert written["spark.eventLog.dir"] == shown["spark.history.fs.logDirectory"]
    assert store.items() <= written.items()
    assert before["command"] == ["python", "/opt/penstock/event_logs.py", "c/spark-events"]
    assert "envFrom" not in history
    secrets = {one["name"]: one["valueFrom"]["secretKeyRef"]["key"] for one in history["env"] if "valueFrom" in one}
    assert secrets == {
        "AWS_ACCESS_KEY_ID": "PENSTOCK_STORE_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY": "PENSTOCK_STORE_SECRET_KEY",
    }  # fmt: skip
    assert {one["name"] for one in history["volumeMounts"]} == {"tmp", "scratch"}


def test_event_logs_lie_in_the_store_where_pipelines_do_not(helm: str) -> None:
    """The settings are of that bucket alone then, and so are its keys, which no argument holds."""
    objects = rendered(helm, *EXTERNAL, "store.forPipelines=false")
    told = arguments(objects, "StatefulSet", "demo-pipeline")
    assert {name: value for name, value in settings_of(told).items() if name.startswith("spark.hadoop.")} == {
        "spark.hadoop.fs.s3a.bucket.penstock.endpoint": "http://s3",
        "spark.hadoop.fs.s3a.bucket.penstock.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.bucket.penstock.path.style.access": "true",
        "spark.hadoop.fs.s3a.bucket.penstock.access.key": "${env.PENSTOCK_STORE_ACCESS_KEY:-}",
        "spark.hadoop.fs.s3a.bucket.penstock.secret.key": "${env.PENSTOCK_STORE_SECRET_KEY:-}",
    }


def test_java_trusts_the_authority_of_the_store(helm: str) -> None:
    """A trust store is made of it first, where drivers, the history server and executors see it; none without."""
    objects = rendered(helm, *TLS)
    spec = named(objects, "StatefulSet", "demo-pipeline")["spec"]["template"]["spec"]
    executor = yaml.safe_load(named(objects, "ConfigMap", "demo-executor")["data"]["pod.yaml"])["spec"]
    made = ["python", "/opt/penstock/trust_store.py", "/scratch/authorities.jks"]
    commands = [one["command"] for one in spec["initContainers"]]
    assert commands == [made, ["python", "/opt/penstock/event_logs.py", "penstock/spark-events"]]
    assert [one["command"] for one in executor["initContainers"]] == [made]
    for pod, scratch in ((spec, "scratch"), (executor, "spark-local-dir-1")):
        for container in pod["containers"]:
            variables = {one["name"]: one.get("value") for one in container["env"]}
            assert variables["JDK_JAVA_OPTIONS"] == "-Djavax.net.ssl.trustStore=/scratch/authorities.jks"
        for container in (*pod["initContainers"], *pod["containers"]):
            assert {"name": scratch, "mountPath": "/scratch"} in container["volumeMounts"]
            assert container["securityContext"] == spec["containers"][0]["securityContext"]
        for container in pod["initContainers"]:
            assert {"name": "store-tls", "mountPath": "/etc/penstock/store", "readOnly": True} in container[
                "volumeMounts"
            ]
    assert not {"JDK_JAVA_OPTIONS", "trust_store.py"} & set(str(rendered(helm, *EXTERNAL)).replace("/", "'").split("'"))
    alone = rendered(helm, *TLS, "pipeline.history.enabled=false")  # pipelines use the store all the same
    spec = named(alone, "StatefulSet", "demo-pipeline")["spec"]["template"]["spec"]
    assert [one["command"] for one in spec["initContainers"]] == [made]
    assert "-Djavax.net.ssl.trustStore=/scratch/authorities.jks" in str(spec["containers"])


def test_executors_are_pods(helm: str, kubeconform: list[str]) -> None:
    """As restricted as all others, with the settings of the cluster; their driver may make them, they may do nothing."""
    objects = rendered(
        helm, *EXTERNAL, "image.pullSecrets[0].name=registry", "extraEnv[0].name=A", "extraEnv[0].value=b"
    )
    spec = named(objects, "StatefulSet", "demo-pipeline")["spec"]["template"]["spec"]
    service, history = spec["containers"]
    text = named(objects, "ConfigMap", "demo-executor")["data"]["pod.yaml"]
    executor = yaml.safe_load(text)
    (container,) = executor["spec"]["containers"]
    assert container["env"] == [each for each in service["env"] if not each["name"].startswith("POD_")]
    assert {"name": "A", "value": "b"} in container["env"]
    assert container["securityContext"] == service["securityContext"]
    assert executor["spec"]["securityContext"] == spec["securityContext"]
    assert executor["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert executor["spec"]["serviceAccountName"] == "demo"
    assert spec["serviceAccountName"] == "demo-pipeline"
    assert [spec["automountServiceAccountToken"], executor["spec"]["automountServiceAccountToken"]] == [True, False]
    assert {"name": "spark-local-dir-1", "mountPath": "/scratch"} in container["volumeMounts"]
    told = arguments(objects, "StatefulSet", "demo-pipeline")
    settings = settings_of(told)
    assert settings["spark.kubernetes.container.image"] == service["image"] == history["image"]
    assert settings["spark.driver.host"] == "$(POD_IP)"
    assert settings["spark.default.parallelism"] == "2"
    executor["metadata"]["name"] = "made-by-spark"
    container |= {"image": service["image"]}  # as Spark does
    assert conforms(kubeconform, yaml.safe_dump(executor)).returncode == 0


def test_application_mode(helm: str, tmp_path: Path) -> None:
    """The file comes from the image, from a ConfigMap of the user's, or from the values; parameters stay as written."""
    values = tmp_path / "values.yaml"
    values.write_text("application: {params: {rows: 120000000, rate: 2.5, topic: orders}}")
    more = ("application.fromSavepoint=jobs/a/manifest", "--values", str(values))
    told = arguments(rendered(helm, *EXTERNAL, *APPLICATION, *more), "Deployment", "demo-coordinator")
    assert told[told.index("--application") :] == [
        "--application", "/app/orders.py", "--parallelism", "4", "--param", "rate=2.5", "--param", "rows=120000000",
        "--param", "topic=orders", "--from-savepoint", "jobs/a/manifest",
    ]  # fmt: skip
    for source in ("application.configMap=mine", "application.source=p = 1"):
        objects = rendered(helm, *EXTERNAL, *APPLICATION, source)
        told = arguments(objects, "Deployment", "demo-coordinator")
        assert told[told.index("--application") + 1] == "/application/orders.py"
        spec = named(objects, "Deployment", "demo-coordinator")["spec"]["template"]["spec"]
        name = "mine" if "mine" in source else "demo-application"
        assert {"name": "application", "configMap": {"name": name}} in spec["volumes"]
    assert named(objects, "ConfigMap", "demo-application")["data"] == {"orders.py": "p = 1"}


def test_egress_is_limited_on_demand(helm: str) -> None:
    """Each other, names, what is listed; the API server for who makes pods: coordinators that scale, drivers of Spark."""
    objects = rendered(helm, *EXTERNAL, *AUTOSCALING, "networkPolicy.egress.enabled=true")
    policies = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "NetworkPolicy"}
    assert policies["demo-egress"]["policyTypes"] == ["Egress"]
    assert policies["demo-api-server"]["egress"] == [{"ports": [{"port": 443}, {"port": 6443}]}]
    (who,) = policies["demo-api-server"]["podSelector"]["matchExpressions"]
    assert who["values"] == ["coordinator", "pipeline"]
    without = rendered(helm, *EXTERNAL, "networkPolicy.egress.enabled=true", "pipeline.master=local[2]")
    assert "demo-api-server" not in {item["metadata"]["name"] for item in without}
