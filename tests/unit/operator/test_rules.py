"""By the rules of the definitions, which a library evaluates here, Kubernetes refuses what the operator refuses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
import pytest
from cel_expr_python import cel
from hypothesis import given
from hypothesis import strategies as st

from penstock_operator.decision import problems_of
from penstock_operator.definitions import CLUSTER, JOB, Kind, definition
from penstock_operator.resources import JobSpec

Document = dict[str, Any]

DURATIONS = st.sampled_from(["250ms", "10s", "1m", "5m", "1.5h", "1h30m", "0s", "10", "ten", "-1s", "1s2"])
RESTARTS = st.sampled_from(
    [
        "none",
        "exponential",
        "exponential:1s:1m:2:10m",
        "exponential:1s:1m:1.5",
        "fixed-delay:3:1s",
        "failure-rate:3:5m",
        "exponential:1s:1m:0.5",
        "exponential:1s:1m:1000",
        "fixed-delay:some",
        "fixed-delay:3:1",
        "none:3",
        "never",
        "failure-rate:3:5m:1s:1s",
    ]
)
UTILIZATIONS = st.sampled_from([0.0, 0.4, 0.7, 0.9])
SPECS = st.fixed_dictionaries(
    {"cluster": st.just("penstock"), "source": st.just({"file": "orders.py"})},
    optional={
        "parallelism": st.integers(1, 5),
        "checkpointInterval": DURATIONS,
        "stableWithin": DURATIONS,
        "restart": RESTARTS,
        "savepoints": st.fixed_dictionaries({"every": DURATIONS}, optional={"keepAge": st.just("") | DURATIONS}),
        "autoscaler": st.fixed_dictionaries(
            {"maxParallelism": st.integers(1, 5)},
            optional={
                "minParallelism": st.integers(1, 5),
                "utilizationMin": UTILIZATIONS,
                "utilizationTarget": UTILIZATIONS,
                "utilizationMax": UTILIZATIONS,
                "metricsWindow": DURATIONS,
                "stabilizationInterval": DURATIONS,
                "restartTime": DURATIONS,
            },
        ),
    },
)


def refusals(kind: Kind, spec: Document) -> list[str]:
    """What Kubernetes says of a new resource: nothing if it takes it. Fills in defaults, as Kubernetes does before."""
    return list(_refusals(schema_of(kind)["properties"]["spec"], spec, "spec"))


@cache
def schema_of(kind: Kind) -> Document:
    """The schema of a kind as the YAML of its definition has it."""
    return msgspec.json.decode(
        msgspec.json.encode(definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    )


def _refusals(schema: Document, value: Any, where: str) -> Iterator[str]:
    if schema["type"] == "object":
        for name, inner in schema.get("properties", {}).items():
            if "default" in inner:
                value.setdefault(name, inner["default"])
            if name in value:
                yield from _refusals(inner, value[name], f"{where}.{name}")
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"] and not _holds(rule["rule"], value):
            yield f"{where}: {rule['message']}"


def _holds(rule: str, value: Any) -> bool:
    found = _compiled(rule).eval(data={"self": value})
    assert found.type() == cel.Type.BOOL, found.value()
    return found.value()


@cache
def _compiled(rule: str) -> Any:
    return cel.NewEnv(variables={"self": cel.Type.DYN}).compile(rule)


@given(SPECS)
def test_the_rules_refuse_what_the_operator_refuses(spec: Document) -> None:
    """No more, so that nothing that would run is refused, and no less, as far as CEL reads durations."""
    refused = refusals(JOB, spec)
    assert bool(refused) == bool(problems_of(msgspec.convert(spec, JobSpec))), refused


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        ({"restart": "sometimes"}, "spec.restart: write none, fixed-delay:ATTEMPTS:DELAY"),
        ({"checkpointInterval": "10"}, "spec.checkpointInterval: write a duration longer than zero"),
        ({"stableWithin": "1s"}, "spec: stableWithin must be longer than checkpointInterval"),
        ({"savepoints": {"every": "1h", "keepAge": "long"}}, "spec.savepoints.keepAge: write a duration longer"),
        ({"autoscaler": {"maxParallelism": 4}, "parallelism": 5}, "spec: parallelism must lie between"),
        ({"autoscaler": {"maxParallelism": 4, "utilizationMax": 0.1}}, "spec.autoscaler: utilizationMin, utilization"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field(spec: Document, refused: str) -> None:
    """And says what to write."""
    (said,) = refusals(JOB, {"cluster": "penstock", "source": {"file": "orders.py"}, **spec})
    assert said.startswith(refused)


@pytest.mark.parametrize(
    ("rest", "right"),
    [
        ("http://penstock-rest:8081", True), ("https://one:8081, https://two:8081/", True), ("http://[::1]:8081", True),
        ("penstock-rest:8081", False), ("http://one:8081 http://two:8081", False), ("ftp://one", False),
    ],
)  # fmt: skip
def test_a_cluster_is_reached_by_http(rest: str, right: bool) -> None:
    """The address of a cluster is checked as well."""
    assert (refusals(CLUSTER, {"rest": rest, "clientImage": "penstock/client"}) == []) is right


def test_rules_are_cheap() -> None:
    """Kubernetes refuses a definition with a rule over a text that may be of any length: it takes the longest."""

    def check(schema: Document, where: str) -> None:
        texts = [one["rule"] for one in schema.get("x-kubernetes-validations", ())]
        assert "maxLength" in schema or not any("self.matches(" in text for text in texts), where
        for name, inner in schema.get("properties", {}).items():
            check(inner, f"{where}.{name}")

    for kind in (CLUSTER, JOB):
        check(schema_of(kind), kind.name)
