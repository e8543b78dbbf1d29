"""What there is here for each field of Flink's operator, and how its value becomes ours.

The table in docs/kubernetes-operator.md is printed from `ROWS`: `python -m penstock_operator.flink_fields`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.core.times import FLINK_UNITS, duration_us, format_duration

AUTOSCALER_PREFIX: Final = "job.autoscaler."
MOST_SAVEPOINTS: Final = 40
DEFAULT_MOST: Final = 200
"""The highest parallelism that Flink's autoscaler chooses if nobody says another one."""
Document = dict[str, Any]
_DURATION: Final = re.compile(r"\s*(\d+)\s*([a-zµ]*)\s*", re.IGNORECASE)


class CannotConvertError(Exception):
    """A value that has no counterpart; the text says what to do."""


@dataclass
class Conversion:
    """A document that is being converted."""

    kind: str
    name: str
    has_spec: bool = True
    """Whether a resource comes of it."""
    spec: Document = field(default_factory=dict[str, Any])
    notes: list[str] = field(default_factory=list[str])
    """What was not converted, and what to do about it."""

    def put(self, path: str, value: Any) -> None:
        """Set a field of the new resource; two of Flink's that say different things about it are an error."""
        *above, last = path.split(".")
        here = self.spec
        for name in above:
            here = here.setdefault(name, {})
        if here.setdefault(last, value) != value:
            raise CannotConvertError(f"{path} is {here[last]!r} already, by another field")


Take = Callable[[Conversion, Any], None]


@dataclass(frozen=True)
class Row:
    """What there is here for fields of a `spec`, keys of `flinkConfiguration`, or fields of a `status`."""

    flink: tuple[str, ...]
    here: str
    takes: Mapping[str, Take] = field(default_factory=dict[str, Take])
    """Those that are converted; for others `here` says what to do."""
    shown: str = ""
    """How the table names them, if not by their names."""


# -- values -------------------------------------------------------------------------------------------------------------


def duration(text: Any) -> str:
    """A time of Flink's, such as `5 min`, as one of Penstock's.

    Raises:
        CannotConvertError: it is none.
    """
    found = _DURATION.fullmatch(str(text))
    unit = FLINK_UNITS.get(found[2].lower() or "ms") if found is not None else None
    if found is None or unit is None:
        raise CannotConvertError(f"{text!r} is no duration")
    return format_duration(duration_us(found[1] + unit))


def _same(value: Any) -> Any:
    return value


def _flag(value: Any) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise CannotConvertError(f"{value!r} is neither true nor false")
    return str(value).lower() == "true"


def whole(value: Any) -> int:
    if not str(value).isdecimal():
        raise CannotConvertError(f"{value!r} is no whole number")
    return int(value)


def share(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise CannotConvertError(f"{value!r} is no number") from None


def _one_of(**choices: str) -> Callable[[Any], str]:
    def chosen(value: Any) -> str:
        known = {name.replace("_", "-"): ours for name, ours in choices.items()}
        if str(value).lower() not in known:
            raise CannotConvertError(f"{value!r} is none of {', '.join(known)}")
        return known[str(value).lower()]

    return chosen


def _to(path: str, value: Callable[[Any], Any] = _same) -> Take:
    return lambda made, given: made.put(path, value(given))


# -- fields that need more than a value ---------------------------------------------------------------------------------


def _nothing(made: Conversion, given: Any) -> None:
    """Nothing is lost without it."""


def _checked_flag(made: Conversion, given: Any) -> None:
    """What it switches on says enough."""
    _flag(given)


def _parameters(made: Conversion, given: Any) -> None:
    """`--name value` and `--name=value` are parameters."""
    if not isinstance(given, list):
        raise CannotConvertError(f"{given!r} is no list")
    found: dict[str, str] = made.spec.setdefault("parameters", {})
    rest: list[str] = []
    words = [str(word) for word in given]
    while words:
        name, sign, value = words.pop(0).partition("=")
        if not name.startswith("--"):
            rest.append(name + sign + value)
        elif sign:
            found[name[2:]] = value
        elif words and not words[0].startswith("--"):
            found[name[2:]] = words.pop(0)
        else:
            found[name[2:]] = "true"
    if rest:
        raise CannotConvertError(f"{' '.join(rest)}: only `--name value` becomes a parameter; give the others a name")


def _upgrade_mode(made: Conversion, given: Any) -> None:
    modes = _one_of(stateless="stateless", savepoint="savepoint", last_state="last-checkpoint")
    made.put("upgradeMode", modes(given))


def _on_delete(made: Conversion, given: Any) -> None:
    made.put("onDelete", "savepoint" if _flag(given) else "cancel")


def _keep_count(made: Conversion, given: Any) -> None:
    count = whole(given)
    made.put("savepoints.keepCount", min(max(count, 1), MOST_SAVEPOINTS))
    if not 1 <= count <= MOST_SAVEPOINTS:
        raise CannotConvertError(f"{count}: it must lie between 1 and {MOST_SAVEPOINTS}, and was made so")


def _every(made: Conversion, given: Any) -> None:
    every = duration(given)
    if every != "0s":
        made.put("savepoints.every", every)


def _autoscaled(name: str, value: Callable[[Any], Any]) -> Take:
    return _to(f"autoscaler.{name}", value)


def _boundary(made: Conversion, given: Any) -> None:
    made.put("autoscaler.boundary", share(given))


def _dry_run(made: Conversion, given: Any) -> None:
    made.put("autoscaler.dryRun", not _flag(given))


_SNAPSHOT: Final = (
    "a savepoint lies in the cluster's store and is named by its key; one that is refused is not asked for again"
)
_CHART: Final = "a value of the chart of the cluster"

_SCALER: Final[dict[str, Take]] = {
    "job.autoscaler.scaling.enabled": _dry_run,
    "job.autoscaler.vertex.min-parallelism": _autoscaled("minParallelism", whole),
    "job.autoscaler.vertex.max-parallelism": _autoscaled("maxParallelism", whole),
    "job.autoscaler.utilization.target": _autoscaled("utilizationTarget", share),
    "job.autoscaler.utilization.min": _autoscaled("utilizationMin", share),
    "job.autoscaler.utilization.max": _autoscaled("utilizationMax", share),
    "job.autoscaler.target.utilization": _autoscaled("utilizationTarget", share),
    "job.autoscaler.target.utilization.boundary": _boundary,
    "job.autoscaler.metrics.window": _autoscaled("metricsWindow", duration),
    "job.autoscaler.stabilization.interval": _autoscaled("stabilizationInterval", duration),
    "job.autoscaler.scale-down.interval": _autoscaled("scaleDownInterval", duration),
    "job.autoscaler.scale-up.grace-period": _autoscaled("scaleDownInterval", duration),
    "job.autoscaler.catch-up.duration": _autoscaled("catchUpDuration", duration),
    "job.autoscaler.restart.time": _autoscaled("restartTime", duration),
}

ROWS: Final = (
    Row(
        ("flinkVersion", "jobManager", "taskManager", "podTemplate"),
        "the chart's values; its `PenstockCluster` names the release",
        shown="`FlinkDeployment` (session), `flinkVersion`, `jobManager`, `taskManager`, `podTemplate`",
    ),
    Row(("deploymentName",), "`PenstockJob`, `cluster`", {"deploymentName": _to("cluster")},
        shown="`FlinkSessionJob`, `deploymentName`"),
    Row(("job.jarURI", "job.entryClass"), "`source.file`, with `source.configMap` or `image`; the pipeline "
        "has to be written anew"),
    Row(("job.args",), "`parameters`", {"job.args": _parameters}),
    Row(("job.parallelism", "parallelism.default"), "`parallelism`", {
        "job.parallelism": _to("parallelism", whole), "parallelism.default": _to("parallelism", whole),
    }),
    Row(("job.state",), "`state`", {"job.state": _to("state", _one_of(running="running", suspended="suspended"))}),
    Row(("job.upgradeMode",), "`upgradeMode`: `savepoint`, `stateless`; `last-state` is `last-checkpoint`. "
        "Flink's default is `stateless`, that of a `PenstockJob` is `last-checkpoint`",
        {"job.upgradeMode": _upgrade_mode}),
    Row(("job.initialSavepointPath", "job.initialStateReference"), "`fromSavepoint`: the key of a savepoint of Penstock. "
        "Flink's cannot be read: the job begins without state"),
    Row(("job.savepointRedeployNonce", "restartNonce"), "`restartNonce`: with `fromSavepoint` the former, without it the "
        "latter", {
        "job.savepointRedeployNonce": _to("restartNonce", whole), "restartNonce": _to("restartNonce", whole),
    }),
    Row(("job.savepointTriggerNonce",), "a `PenstockSavepoint` for each savepoint"),
    Row(("jobReference.name", "jobReference.kind", "savepoint.disposeOnDelete"), "`PenstockSavepoint`: `job`, "
        "`disposeOnDelete`, which is `true` in Flink if nothing is said", {
        "jobReference.name": _to("job"), "jobReference.kind": _nothing,
        "savepoint.disposeOnDelete": _to("disposeOnDelete", _flag),
    }, shown="`FlinkStateSnapshot`: `jobReference`, `savepoint.disposeOnDelete`"),
    Row(("jobReference.namespace",), "none: a `PenstockSavepoint` lies in the namespace of its job"),
    Row(("savepoint.alreadyExists", "savepoint.path", "savepoint.formatType", "backoffLimit"), f"none: {_SNAPSHOT}",
        shown="`FlinkStateSnapshot`: `savepoint.alreadyExists`, `path`, `formatType`, `backoffLimit`"),
    Row(("checkpoint", "job.checkpointTriggerNonce", "kubernetes.operator.periodic.checkpoint.interval"),
        "none: `checkpointInterval`",
        shown="`FlinkStateSnapshot` with `checkpoint`, `job.checkpointTriggerNonce`, "
        "`kubernetes.operator.periodic.checkpoint.interval`"),
    Row(("job.allowNonRestoredState",), "`allowNonRestored`", {
        "job.allowNonRestoredState": _to("allowNonRestored", _flag),
    }),
    Row(("execution.checkpointing.interval",), "`checkpointInterval`", {
        "execution.checkpointing.interval": _to("checkpointInterval", duration),
    }),
    Row(("restart-strategy", "restart-strategy.type"), "`restart`"),
    Row(("state.backend", "state.backend.type"), "`stateBackend`: `rocksdb`; `hashmap` is `fs`", {
        name: _to("stateBackend", _one_of(rocksdb="rocksdb", hashmap="fs", filesystem="fs", jobmanager="memory"))
        for name in ("state.backend", "state.backend.type")
    }),
    Row(("state.backend.incremental", "execution.checkpointing.incremental"), "`incrementalCheckpoints`", {
        name: _to("incrementalCheckpoints", _flag)
        for name in ("state.backend.incremental", "execution.checkpointing.incremental")
    }),
    Row(("kubernetes.operator.periodic.savepoint.interval", "kubernetes.operator.savepoint.history.max.count",
         "kubernetes.operator.savepoint.history.max.age"), "`savepoints.every`, `keepCount`, `keepAge`", {
        "kubernetes.operator.periodic.savepoint.interval": _every,
        "kubernetes.operator.savepoint.history.max.count": _keep_count,
        "kubernetes.operator.savepoint.history.max.age": _to("savepoints.keepAge", duration),
    }),
    Row(("kubernetes.operator.deployment.rollback.enabled", "kubernetes.operator.deployment.readiness.timeout"),
        "`rollback`, which is the default here, `stableWithin`", {
        "kubernetes.operator.deployment.rollback.enabled": _to("rollback", _flag),
        "kubernetes.operator.deployment.readiness.timeout": _to("stableWithin", duration),
    }),
    Row(("kubernetes.operator.job.savepoint-on-deletion",), "`onDelete: savepoint`, the default", {
        "kubernetes.operator.job.savepoint-on-deletion": _on_delete,
    }),
    Row(("kubernetes.operator.job.drain-on-savepoint-deletion",), "none: `penstock stop --drain` before"),
    Row(("kubernetes.operator.job.upgrade.last-state-fallback.enabled",),
        "`upgradeMode`: `last-checkpoint` falls back, `savepoint` does not"),
    Row(("kubernetes.operator.job.restart.failed", "kubernetes.operator.cluster.health-check"),
        "`restart`: the job's own strategy; one that gives up has failed, and waits for another version or "
        "`restartNonce`"),
    Row(("kubernetes.operator.jm-deployment-recovery.enabled",), "always: coordinators are Deployments, and another "
        "one leads"),
    Row(("image", "imagePullPolicy", "serviceAccount"), "values of the chart; `image` of a `PenstockJob` is where the "
        "pipeline is imported, and has Penstock and its packages",
        shown="`image`, `imagePullPolicy`, `serviceAccount` of a `FlinkDeployment`"),
    Row(("ingress",), "`dispatcher.ingress` of the chart"),
    Row(("job.autoscaler.enabled",), "`autoscaler`", {"job.autoscaler.enabled": _checked_flag}),
    Row(tuple(_SCALER), "the fields of `autoscaler` that the [table](#parallelism-by-load) names", _SCALER,
        shown="`flinkConfiguration`: `job.autoscaler.scaling.enabled`, `job.autoscaler.vertex.max-parallelism`, ..."),
    Row(("job.autoscaler",), "none: other keys of the autoscaler have no counterpart",
        shown="other keys `job.autoscaler...`"),
    Row(("job.autoscalerResetNonce", "mode", "logConfiguration"), "none"),
    Row(("taskmanager.numberOfTaskSlots",), "`taskmanager.slots` of the chart"),
)  # fmt: skip
"""Of several rows that fit a field the one with the longest name counts."""
STATUS: Final = (
    ("`status.lifecycleState`, `jobStatus.state`, `jobStatus.jobId`, `error`",
     "`status.phase`, `jobState`, `job`, the condition `Degraded`"),
    ("`jobStatus.upgradeSavepointPath`, `savepointInfo`", "`newestSavepoint`, `savepoints`"),
    ("`reconciliationStatus.lastStableSpec`, `state`", "`lastStable`, the condition `Reconciling`"),
)  # fmt: skip
KNOWN: Final = {name: row for row in ROWS for name in row.flink}


# -- the table ----------------------------------------------------------------------------------------------------------


def table() -> Iterator[str]:
    """The lines of the table of the documentation."""
    yield "| Flink | here |"
    yield "| --- | --- |"
    for row in ROWS:
        yield f"| {row.shown or ', '.join(f'`{name}`' for name in row.flink)} | {row.here} |"
    for flink, here in STATUS:
        yield f"| {flink} | {here} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
