"""Flink's resources as Penstock's: what is converted, and that nothing is dropped without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.errors import UsageError
from penstock_operator import __main__ as service
from penstock_operator.converting import convert
from penstock_operator.flink_fields import KNOWN, CannotConvertError, duration, table

PAGE = Path(__file__).parents[3] / "docs" / "kubernetes-operator.md"


def flink(kind: str = "FlinkSessionJob", **spec: Any) -> str:
    """A resource of Flink's operator."""
    return yaml.safe_dump({"kind": kind, "metadata": {"name": "my-orders", "namespace": "shop"}, "spec": spec})


def converted(text: str) -> tuple[dict[str, Any], str]:
    """The spec of the new resource, and the comments above it."""
    made = convert(text)
    comments = "\n".join(line for line in made.splitlines() if line.startswith("#"))
    return (yaml.safe_load(made) or {}).get("spec", {}), comments


def test_a_job_with_all_that_can_be_converted() -> None:
    job = {
        "jarURI": "local:///job.jar", "parallelism": 4, "state": "suspended", "upgradeMode": "last-state",
        "allowNonRestoredState": True, "args": ["--spent", "spent", "--input.topic=orders", "--dry", "--n", "3"],
    }  # fmt: skip
    configuration = {
        "parallelism.default": "2", "execution.checkpointing.interval": "30 s", "state.backend": {"type": "rocksdb"},
        "execution.checkpointing.incremental": "true", "restart-strategy.type": "failure-rate",
        "restart-strategy.failure-rate.max-failures-per-interval": "3",
        "restart-strategy.failure-rate.failure-rate-interval": "5 min",
        "kubernetes.operator.periodic.savepoint.interval": "6h", "kubernetes.operator.savepoint.history.max.count": "7",
        "kubernetes.operator.savepoint.history.max.age": "72 h",
        "kubernetes.operator.deployment.rollback.enabled": "false",
        "kubernetes.operator.deployment.readiness.timeout": "600000",
        "kubernetes.operator.job.savepoint-on-deletion": "false",
        "kubernetes.operator.job.autoscaler.enabled": "true", "job.autoscaler.scaling.enabled": "false",
        "job.autoscaler.vertex.max-parallelism": "8", "job.autoscaler.target.utilization": "0.6",
        "job.autoscaler.target.utilization.boundary": "0.2", "job.autoscaler.metrics.window": "3m",
    }  # fmt: skip
    spec, comments = converted(
        flink(deploymentName="session", job=job, restartNonce=5, flinkConfiguration=configuration)
    )
    assert spec == {
        "cluster": "session", "source": {"configMap": "my-orders", "file": "my_orders.py"},
        "parameters": {"spent": "spent", "input.topic": "orders", "dry": "true", "n": "3"}, "parallelism": 4,
        "state": "suspended", "upgradeMode": "last-checkpoint", "checkpointInterval": "30s",
        "restart": "failure-rate:3:5m:1s", "stateBackend": "rocksdb", "incrementalCheckpoints": True,
        "allowNonRestored": True, "restartNonce": 5, "stableWithin": "10m", "rollback": False, "onDelete": "cancel",
        "savepoints": {"every": "6h", "keepCount": 7, "keepAge": "3d"},
        "autoscaler": {
            "dryRun": True, "maxParallelism": 8, "utilizationTarget": 0.6, "utilizationMin": 0.4, "utilizationMax": 0.8,
            "metricsWindow": "3m",
        },
    }  # fmt: skip
    assert [line.split(":")[0] for line in comments.splitlines()[1:]] == [
        "# job.jarURI",
        "# parallelism.default",
        "# source",
    ]


@pytest.mark.parametrize("name", [name for name in KNOWN if not name.startswith("restart-strategy")])
def test_no_field_is_dropped_without_a_word(name: str) -> None:
    """A field alone either becomes one of ours, with a value that makes sense, or a comment names it."""
    nothing = {"job.autoscaler.enabled", "jobReference.kind"}
    kind = "FlinkStateSnapshot" if name.startswith(("jobReference", "savepoint.", "checkpoint", "backoff")) else ""
    path = name.split(".")
    spec: dict[str, Any] = (
        {"jobReference": {"name": "orders"}, "savepoint": {"disposeOnDelete": False}}
        if kind
        else {"job": {"state": "running"}}
    )
    before, _ = converted(flink(kind or "FlinkSessionJob", **spec))
    for value in ("3", "true", "0.5", "1 h", "savepoint", "suspended", "rocksdb", ["--a", "b"]):
        if "." not in name or (path[0] in ("job", "jobReference", "savepoint") and "autoscaler" not in path):
            here = spec
            for part in path[:-1]:
                here = here.setdefault(part, {})
            here[path[-1]] = value
        else:
            scales = {"job.autoscaler.enabled": "true", "kubernetes.operator.periodic.savepoint.interval": "1h"}
            spec["flinkConfiguration"] = {**scales, name: value}
        after, comments = converted(flink(kind or "FlinkSessionJob", **spec))
        assert after != before or f"# {name}:" in comments or name in nothing


def test_what_is_not_known_is_named() -> None:
    _, comments = converted(
        flink(job={"jarURI": "x"}, newField={"a": 1}, flinkConfiguration={"s3.endpoint": "http://s3"})
    )
    assert "# newField.a: there is nothing of this name" in comments
    assert "# s3.endpoint: there is nothing of this name" in comments


def test_a_value_that_makes_no_sense_is_named() -> None:
    configuration = {
        "execution.checkpointing.interval": "often",
        "kubernetes.operator.savepoint.history.max.count": "100",
    }
    configuration |= {"kubernetes.operator.periodic.savepoint.interval": "1h", "restart-strategy": "sometimes"}
    spec, comments = converted(flink(job={"parallelism": 2, "args": ["run"]}, flinkConfiguration=configuration))
    assert ("checkpointInterval" in spec, spec["savepoints"]["keepCount"]) == (False, 40)
    for part in ("'often' is no duration", "100: it must lie between 1 and 40", "no strategy 'sometimes'", "run: only"):
        assert part in comments


def test_what_the_operator_would_refuse_is_said() -> None:
    _, comments = converted(flink(job={"parallelism": 0}, flinkConfiguration={}))
    assert "# to be changed: Expected `int` >= 1" in comments
    _, comments = converted(flink(job={}, flinkConfiguration={"execution.checkpointing.interval": "1h"}))
    assert "# to be changed: stableWithin (5m) must be longer than checkpointInterval (1h)" in comments


def test_sessions_and_snapshots() -> None:
    """A session cluster is the chart's; a snapshot that takes no savepoint is nothing here."""
    keys = {"execution.checkpointing.interval": "1m", "restart-strategy.type": "none", "job.autoscaler.enabled": "true"}
    spec, comments = converted(
        flink("FlinkDeployment", image="flink:1.20", taskManager={"replicas": 2}, flinkConfiguration=keys)
    )
    assert not spec
    assert "a release of the chart" in comments
    assert all(f"# {name}: " in comments for name in (*keys, "image", "taskManager"))
    spec, comments = converted(flink("FlinkDeployment", job={"jarURI": "x", "upgradeMode": "savepoint"}))
    assert (spec["cluster"], spec["upgradeMode"]) == ("my-orders", "savepoint")
    assert "install a release of the chart called my-orders" in comments
    reference = {"kind": "FlinkSessionJob", "name": "orders"}
    spec, _ = converted(flink("FlinkStateSnapshot", jobReference=reference, savepoint={}))
    assert spec == {"job": "orders", "disposeOnDelete": True}, "as Flink does if nothing is said"
    for what in ({"checkpoint": {}}, {"savepoint": {"alreadyExists": True, "path": "s3://a"}}):
        spec, comments = converted(flink("FlinkStateSnapshot", jobReference=reference, **what))
        assert not spec
        assert "no PenstockSavepoint" in comments


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [", "no YAML"), ("", "no resource"), ("kind: Pod", "'Pod' is none of Flink's resources"), ("7", "7 is none"),
        ("kind: FlinkSessionJob\nmetadata: {}\n", "has no metadata.name"),
        ("kind: FlinkSessionJob\nmetadata: {name: a}\nspec: [1]\n", "spec is no mapping"),
        ("kind: FlinkSessionJob\nmetadata: {name: a}\nspec: {job: jar}\n", "spec.job is no mapping"),
        ("kind: List\nitems: 7\n", "'List' is none"),
    ],
)  # fmt: skip
def test_what_is_no_resource_of_flink_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        convert(text)


def test_a_list_as_kubectl_prints_it() -> None:
    items = [yaml.safe_load(flink(job={"parallelism": n})) for n in (1, 2)]
    made = [one["spec"]["parallelism"] for one in yaml.safe_load_all(convert(yaml.safe_dump({"items": items})))]
    assert made == [1, 2]


@pytest.mark.parametrize(
    ("text", "ours"),
    [("5 min", "5m"), ("10000", "10s"), (90_000, "1m30s"), ("1h", "1h"), ("2 days", "2d"), ("0 ms", "0s")],
)
def test_durations(text: Any, ours: str) -> None:
    assert duration(text) == ours


@pytest.mark.parametrize("text", ["PT1H", "-1 s", "", "5 fortnights"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(CannotConvertError):
        duration(text)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "flink.yaml"
    assert service.main(["--convert", str(file)]) == 2
    assert "No such file" in capsys.readouterr().err
    file.write_text(flink(job={"parallelism": 2}))
    assert service.main(["--convert", str(file)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["kind"] == "PenstockJob"


def test_the_page_has_the_table() -> None:
    """`python -m penstock_operator.flink_fields` prints it."""
    assert "\n".join(table()) in PAGE.read_text(encoding="utf-8")
