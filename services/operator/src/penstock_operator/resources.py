"""The custom resources: what people write (`spec`) and what the operator says (`status`).

The definitions that Kubernetes checks them by are made of these types (`penstock_operator.definitions`), docstrings
included. Names are those of the YAML, in camelCase there. Times that programs reckon with are microseconds since the
epoch, and their names end in Us; those of conditions are RFC 3339, as Kubernetes has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import msgspec

from penstock_operator.rules import Addresses, Duration, OptionalDuration, PositiveDuration, RestartText

GROUP: Final = "penstock.internal"
"""The API group. Nobody can own a name below `internal`, which is set aside for private use, so it cannot become another
project's."""
VERSION: Final = "v1alpha1"
FINALIZER: Final = f"{GROUP}/operator"
"""Keeps a resource until the operator has done what its deletion asks for."""

Name = Annotated[str, msgspec.Meta(min_length=1)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

ConditionStatus = Literal["True", "False", "Unknown"]
UpgradeMode = Literal["stateless", "savepoint", "last-checkpoint"]


class Resource(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of everything in them."""


class Condition(Resource, frozen=True, kw_only=True):
    """One of the conditions that `kubectl wait` waits for."""

    type: str
    status: ConditionStatus
    reason: str
    """A word for programs."""
    message: str = ""
    """What people are to know."""
    last_transition_time: str
    """When `status` changed, as RFC 3339."""
    observed_generation: int = 0
    """The generation of the spec that this is about."""


def rfc3339(at_us: int) -> str:
    """A time as Kubernetes has it, to the second."""
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(
    before: Sequence[Condition], kind: str, status: ConditionStatus, reason: str, message: str, generation: int,
    now_us: int,
) -> Condition:  # fmt: skip
    """A condition as it is now; the time of one whose status was the same before stays."""
    known = next((one for one in before if one.type == kind and one.status == status), None)
    return Condition(
        type=kind, status=status, reason=reason, message=message,
        last_transition_time=rfc3339(now_us) if known is None else known.last_transition_time,
        observed_generation=generation,
    )  # fmt: skip


# -- clusters -----------------------------------------------------------------------------------------------------------


class SecretKey(Resource, frozen=True, kw_only=True):
    """One key of a Secret in the namespace of the resource."""

    name: Name
    key: Name


class ClusterSpec(Resource, frozen=True, kw_only=True):
    """A session cluster that runs already, such as a release of the chart: where its dispatchers are reached."""

    rest: Addresses
    """`http://HOST:PORT` of a dispatcher; several separated by commas."""
    token: SecretKey | None = None
    """The token that dispatchers demand; it must be one that may submit."""
    authority: SecretKey | None = None
    """The certificate of the authority that has signed those of dispatchers, in PEM; a public one if not given."""
    client_image: Name
    """The image in which pipelines are imported and submitted: `penstock-client`, or one made of it."""
    image_pull_secrets: tuple[str, ...] = ()
    """Secrets by which it, and images of jobs, are pulled."""


class ClusterStatus(Resource, frozen=True, kw_only=True):
    """What its dispatchers say."""

    observed_generation: int = 0
    version: str = ""
    """Of Penstock."""
    leader: str = ""
    slots: int = 0
    free_slots: int = 0
    running_jobs: int = 0
    conditions: tuple[Condition, ...] = ()


# -- jobs ---------------------------------------------------------------------------------------------------------------


class Source(Resource, frozen=True, kw_only=True):
    """Where the pipeline is written."""

    file: Name
    """`file.py`, or `file.py:name` if it declares several: a key of the ConfigMap, or a path in the image."""
    config_map: str = ""
    """A ConfigMap with that file, and modules beside it; if empty, the file lies in the image."""


class PeriodicSavepoints(Resource, frozen=True, kw_only=True):
    """Savepoints that the operator takes by itself."""

    every: PositiveDuration
    """From one to the next, such as `1h`."""
    keep_count: Annotated[int, msgspec.Meta(ge=1, le=40)] = 5
    """So many of them are kept; older ones are disposed of once no job needs them."""
    keep_age: OptionalDuration = ""
    """Those that are older are disposed of, too, such as `7d`; the newest one is kept at any age."""


class Autoscaler(Resource, frozen=True, kw_only=True):
    """Chooses the parallelism of a job by its load. Fields are named after the keys `job.autoscaler...` of Flink."""

    dry_run: bool = False
    """Whether the status only says which parallelism is recommended; `job.autoscaler.scaling.enabled: false` of Flink."""
    min_parallelism: Positive = 1
    max_parallelism: Positive
    """The autoscaler chooses between these two; `parallelism`, with which the job starts, must be between them, too."""
    utilization_target: Share = 0.7
    """Share of its time that the busiest slot is to work at the parallelism that is chosen: its subtasks together."""
    utilization_min: Share = 0.4
    """The job is scaled down only if it would work less than this share of its time at the parallelism that it has."""
    utilization_max: Share = 0.9
    """The job is scaled up only if it would have to work more than this share of its time at that parallelism."""
    metrics_window: PositiveDuration = "5m"
    """Load is the average over so long a time; nothing is chosen before there are measurements of all of it."""
    stabilization_interval: Duration = "2m"
    """So long after all subtasks run, measurements do not count: the job works off what has waited for it."""
    scale_down_interval: Duration = "1h"
    """A lower parallelism must be recommended all this time; then the highest of those that were is chosen."""
    catch_up_duration: Duration = "30m"
    """Within this time the job is to have read what its sources are behind; `0s`: that needs no capacity of its own."""
    restart_time: Duration = "1m"
    """How long a rescaled job is expected to read nothing: it has to catch up with this, too."""


class JobSpec(Resource, frozen=True, kw_only=True):
    """A pipeline that should run on a session cluster."""

    cluster: Name
    """The `PenstockCluster` in the same namespace."""
    source: Source
    image: str = ""
    """In which the pipeline is imported and submitted; that of the cluster if empty."""
    parameters: dict[str, str] = {}
    """Values for `param(NAME, ...)` in the file."""
    secrets: tuple[str, ...] = ()
    """Secrets whose keys are variables of the pod that submits; a parameter `@env:VARIABLE` is read from there."""
    parallelism: Positive = 1
    """Subtasks per operator. A change of nothing else rescales the job in place."""
    state: Literal["running", "suspended"] = "running"
    """A suspended job has ended and keeps its state; running again, it goes on from there."""
    upgrade_mode: UpgradeMode = "last-checkpoint"
    """How the state gets from the job that runs to the one that follows it. `savepoint`: the job is stopped with a
    savepoint. `last-checkpoint`: likewise, and one that has failed is continued from its last complete checkpoint.
    `stateless`: the job is cancelled, and the next one starts without state."""
    checkpoint_interval: PositiveDuration = "10s"
    restart: RestartText = "exponential"
    """The restart strategy, as for `penstock submit --restart`."""
    state_backend: Literal["fs", "memory", "rocksdb"] = "fs"
    incremental_checkpoints: bool = False
    allow_non_restored: bool = False
    """Whether state of operators that the pipeline does not have may be dropped."""
    from_savepoint: str = ""
    """The key of a savepoint to start from, at first and whenever `restartNonce` changes."""
    restart_nonce: int = 0
    """Another number has the job started anew: from `fromSavepoint` if that is given, else from its own state."""
    stable_within: PositiveDuration = "5m"
    """A new version has so long to run with all subtasks and to complete a checkpoint."""
    rollback: bool = True
    """Whether the last stable version is run again if a new one does not become stable in time."""
    on_delete: Literal["savepoint", "cancel"] = "savepoint"
    """What is done with the job when the resource is deleted: it is stopped with a savepoint, or cancelled."""
    savepoints: PeriodicSavepoints | None = None
    autoscaler: Autoscaler | None = None


class JobVersion(Resource, frozen=True, kw_only=True):
    """What is submitted: whatever another job is needed for if it changes."""

    source: Source
    content: str = ""
    """SHA-256 of the ConfigMap's data, by which the operator keeps a copy; empty if the file lies in the image."""
    image: str = ""
    parameters: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    checkpoint_interval: str = "10s"
    restart: str = "exponential"
    state_backend: str = "fs"
    incremental_checkpoints: bool = False
    allow_non_restored: bool = False


class StartPoint(Resource, frozen=True, kw_only=True):
    """A savepoint, or the checkpoint that a failed job has left."""

    manifest: str
    """Its key in the cluster's store."""
    checkpoint: int
    savepoint: bool = True
    """Whether it is a savepoint."""


class Deployed(Resource, frozen=True, kw_only=True):
    """A job that was, or is being, submitted for the resource."""

    job: str
    version: JobVersion
    parallelism: int
    """As the spec says it."""
    autoscaled: int = 0
    """The parallelism that the autoscaler has chosen instead; 0 if it has chosen none."""
    attempt: str
    """What was tried: the version, where it was to start and why. The same is not tried again if it fails."""
    start: StartPoint | None = None
    since_us: int
    """When it was submitted; once the cluster has accepted it, when that was."""
    stable: bool = False

    @property
    def effective(self) -> int:
        """The parallelism that it is submitted with."""
        return self.autoscaled or self.parallelism


class Stable(Resource, frozen=True, kw_only=True):
    """A version that has become stable."""

    version: JobVersion
    parallelism: int


StepKind = Literal["submit", "stop", "cancel", "savepoint", "rescale"]


class Step(Resource, frozen=True, kw_only=True):
    """Something that was decided and written down, and is carried out until the cluster has answered."""

    kind: StepKind
    request: str
    """Its id: the cluster does nothing twice for the same one. Of a submission that of the job."""
    why: str
    since_us: int
    parallelism: int = 0
    given_up: bool = False
    """Of a submission: it did not come to its end in time, and nothing is tried for it any more."""


class SavepointRecord(Resource, frozen=True, kw_only=True):
    """A savepoint of one of the resource's jobs."""

    manifest: str
    checkpoint: int
    job: str
    why: str
    """`upgrade`, `suspend`, `delete`, `periodic`, `rollback`."""
    at_us: int


class Rescale(Resource, frozen=True, kw_only=True):
    """A change of parallelism that the autoscaler has decided on."""

    time: str
    """When, as RFC 3339."""
    at_us: int
    before: int
    after: int
    base: int
    """The parallelism that the gain is judged by: not `before` where a step has led there that was too small to judge;
    `after` once it has proved to be a gain."""
    capacity: float
    """Rows a second that the sources could have brought at `base`, with the busiest slot at work all the time."""


class Ineffective(Resource, frozen=True, kw_only=True):
    """A higher parallelism did not make the job faster: nothing above is tried for some hours, nor by this job."""

    parallelism: int
    since_us: int


AutoscalerState = Literal[
    "Collecting", "Balanced", "ScaleUp", "ScaleDown", "ScaleDownDelayed", "Limited", "Ineffective", "Refused"
]


class AutoscalerStatus(Resource, frozen=True, kw_only=True):
    """What the autoscaler makes of the load of the job."""

    state: AutoscalerState = "Collecting"
    """`Collecting`: measurements are missing or too few. `Balanced`: the parallelism fits the load. `ScaleUp`,
    `ScaleDown`: another one was chosen, or is recommended in a dry run. `ScaleDownDelayed`: a lower one has not been
    recommended for long enough. `Limited`: a limit forbids more. `Ineffective`: more did not help. `Refused`: the cluster
    has refused to rescale the job."""
    recommended_parallelism: int = 0
    """What the load asks for, within the limits; 0 as long as that is not known."""
    reason: str = ""
    """Why, as a sentence."""
    last_rescale: Rescale | None = None
    parallelism: int = 0
    """What was chosen, and counts in place of `spec.parallelism`; 0 if nothing was."""
    instead_of: int = 0
    """The parallelism that the spec said then: another one counts for itself."""
    job: str = ""
    """The job that is measured."""
    since_us: int = 0
    """No measurement counts that is older."""
    scale_down_since_us: int = 0
    """Since when lower parallelisms are recommended; 0 if none is."""
    scale_down_to: int = 0
    """The highest of them."""
    ineffective: Ineffective | None = None


Phase = Literal["Pending", "Starting", "Running", "Ending", "Suspended", "Finished", "Failed"]


class JobStatus(Resource, frozen=True, kw_only=True):
    """What has become of it."""

    observed_generation: int = 0
    phase: Phase = "Pending"
    job: str = ""
    """Id of the newest job."""
    job_state: str = ""
    """As the cluster has it: `RUNNING`, `RESTARTING`, ..."""
    parallelism: int = 0
    """Of the job, as it is."""
    records_behind: int | None = None
    """Records that are there and that the job has not read; missing where no source can tell."""
    last_checkpoint: int = 0
    """Number of the newest complete checkpoint."""
    last_checkpoint_time: str = ""
    """When that was complete, as RFC 3339."""
    measured_at_us: int = 0
    """When these three were written down last: twice a minute, and whenever something else is, too."""
    autoscaler: AutoscalerStatus | None = None
    conditions: tuple[Condition, ...] = ()
    savepoints: tuple[SavepointRecord, ...] = ()
    """Those that the operator has taken and that are kept, oldest first."""
    newest_savepoint: str = ""
    """Key of the newest one."""
    counter: int = 0
    """How many ids were given out: jobs and requests are named by it, so that whoever continues uses the same."""
    nonce: int | None = None
    """The `restartNonce` that was carried out."""
    deployed: Deployed | None = None
    """The job that the cluster has accepted; kept after it ended by itself."""
    starting: Deployed | None = None
    """The job that is being submitted."""
    step: Step | None = None
    keeps: StartPoint | None = None
    """The state that the next job goes on from, unless a job leaves a newer one."""
    doubtful: str = ""
    """Why no state is known to go on from without losing or doubling rows; somebody has to say what to start from."""
    last_stable: Stable | None = None
    failed: tuple[str, ...] = ()
    """Attempts that are not made again (`Deployed.attempt`)."""
    problem: str = ""
    """What went wrong last: the user's own exception, or why the cluster refuses."""
    problem_reason: str = ""
    """The same as a word: the reason of the condition `Degraded`."""
    retry_at_us: int = 0
    """Nothing is asked of the cluster before, after it has refused something."""
    periodic_at_us: int = 0
    """When the last periodic savepoint was begun, or the first job accepted."""
    given_up: tuple[str, ...] = ()
    """Ids of the newest submissions that were given up: should such a job appear all the same, it is cancelled."""


# -- savepoints ---------------------------------------------------------------------------------------------------------


class SavepointSpec(Resource, frozen=True, kw_only=True):
    """A savepoint of a job, taken once."""

    job: Name
    """The `PenstockJob` in the same namespace."""
    dispose_on_delete: bool = False
    """Whether the savepoint goes with the resource."""


class SavepointStatus(Resource, frozen=True, kw_only=True):
    """What has become of it."""

    observed_generation: int = 0
    phase: Literal["Pending", "InProgress", "Completed", "Failed"] = "Pending"
    job: str = ""
    """Id of the job that it was asked of."""
    request: str = ""
    manifest: str = ""
    """Its key, by which a job starts from it."""
    checkpoint: int = 0
    problem: str = ""
    conditions: tuple[Condition, ...] = ()
