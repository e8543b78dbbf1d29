"""Looks at one resource after the other, decides, writes down what was decided, and does it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec
import structlog

from penstock.client.client import ClusterClient
from penstock.client.documents import ENDED, Overview
from penstock.client.errors import RefusedError
from penstock.errors import ExternalError, PenstockError
from penstock.ports import Clock
from penstock_operator.autoscaling import LoadSample, kept_us
from penstock_operator.clusters import Clusters, MissingError
from penstock_operator.decision import decide
from penstock_operator.definitions import CLUSTER, JOB, SAVEPOINT, Kind
from penstock_operator.kubernetes import Document, KubernetesApi
from penstock_operator.looking import NOT_FOUND, answer_to, find_savepoint, look_at_job, spare_slots
from penstock_operator.metrics import Numbers
from penstock_operator.resources import (
    FINALIZER,
    Autoscaler,
    ClusterSpec,
    ClusterStatus,
    Condition,
    ConditionStatus,
    JobSpec,
    JobStatus,
    Resource,
    SavepointSpec,
    SavepointStatus,
    condition,
    rfc3339,
)
from penstock_operator.savepoints import SavepointSeen, decide_savepoint
from penstock_operator.submitting import (
    content_of,
    copy_name,
    copy_of,
    is_owned,
    label_of,
    state_of,
    submitter,
    submitter_name,
)
from penstock_operator.terms import Action, Ask, Decision, Dispose, Event, Halt, Observed, Submit

SOON_S: Final = 1.0
"""When a resource is looked at again that something is done for."""
LATER_S: Final = 5.0
"""When another one is, whether or not it changes."""
AFTER_FAILURE_S: Final = 5.0

_log = structlog.get_logger("penstock.operator")
Written = TypeVar("Written", bound=Resource)


class Controller:
    """Does for resources what is to be done. A pass may be interrupted anywhere, and repeated by anybody."""

    def __init__(self, api: KubernetesApi, clusters: Clusters, clock: Clock, numbers: Numbers) -> None:
        self._api, self._clusters, self._clock, self._numbers = api, clusters, clock, numbers
        self._gone: set[str] = set()
        """Manifests of savepoints that are known to be disposed of."""
        self._loads: dict[tuple[str, str], tuple[str, list[LoadSample]]] = {}
        """Namespace and name of a resource to the job that was measured, and what it did lately."""

    async def look_after(self, kind: Kind, namespace: str, name: str) -> float | None:
        """One pass: after how many seconds the next one is due; None if there is no such resource any more."""
        passes: dict[Kind, Callable[[Document], Any]] = {
            CLUSTER: self._look_after_cluster, JOB: self._look_after_job, SAVEPOINT: self._look_after_savepoint,
        }  # fmt: skip
        self._numbers.passes[kind.name] += 1
        try:
            read = await self._api.read(kind, namespace, name)
            if read is None:
                self._forget(kind, namespace, name)
                return None
            return await passes[kind](read)
        except (PenstockError, msgspec.ValidationError) as error:
            self._numbers.failures[kind.name] += 1
            _log.warning("a look came to nothing", kind=kind.name, namespace=namespace, name=name, error=str(error))
            return AFTER_FAILURE_S

    def _forget(self, kind: Kind, namespace: str, name: str) -> None:
        self._numbers.ready.pop((kind.name, namespace, name), None)
        if kind is JOB:
            self._loads.pop((namespace, name), None)
            self._numbers.autoscaled.pop((namespace, name), None)

    async def _held(self, kind: Kind, read: Document) -> Document | None:
        """The resource, once it waits for the operator when it is deleted; None if there is nothing to do now."""
        deleting = "deletionTimestamp" in read["metadata"]
        if FINALIZER in read["metadata"].get("finalizers", []):
            return read
        return None if deleting else await self._api.hold(kind, read)

    async def _write(self, kind: Kind, read: Document, before: Written, after: Written) -> Document | None:
        """Have the status say `after`; None if the resource is no longer as it was read. Nothing is done before that.

        It is written even if it says what it said: that is how Kubernetes is asked whether it was up to date.
        """
        if before != after:
            _log.debug("status", kind=kind.name, name=read["metadata"]["name"], status=msgspec.to_builtins(after))
        return await self._api.write_status(kind, read, msgspec.to_builtins(after))

    def _count(self, kind: Kind, read: Document, status: JobStatus | SavepointStatus | ClusterStatus) -> None:
        """For the metrics: whether the resource is ready, written or not."""
        ready = next((one.status for one in status.conditions if one.type == "Ready"), "Unknown")
        if isinstance(status, SavepointStatus):
            ready = {"Completed": "True", "Failed": "False"}.get(status.phase, "Unknown")
        self._numbers.ready[kind.name, read["metadata"]["namespace"], read["metadata"]["name"]] = ready

    def _count_autoscaling(self, read: Document, spec: JobSpec, status: JobStatus) -> None:
        resource = (read["metadata"]["namespace"], read["metadata"]["name"])
        if spec.autoscaler is None or status.autoscaler is None:
            self._numbers.autoscaled.pop(resource, None)
        else:
            self._numbers.autoscaled[resource] = (status.parallelism, status.autoscaler.recommended_parallelism)

    # -- jobs -----------------------------------------------------------------------------------------------------------

    async def _look_after_job(self, found: Document) -> float | None:
        read = await self._held(JOB, found)
        if read is None:
            return SOON_S if "deletionTimestamp" not in found["metadata"] else None
        spec = msgspec.convert(read["spec"], JobSpec)
        status = msgspec.convert(read.get("status") or {}, JobStatus)
        seen = await self._observed(read, spec, status)
        metadata = read["metadata"]
        decision = decide(
            spec, status, seen, self._clock.now_us(), uid=metadata["uid"], generation=metadata["generation"],
            deleting="deletionTimestamp" in metadata,
        )  # fmt: skip
        self._count(JOB, read, decision.status)
        self._count_autoscaling(read, spec, decision.status)
        if decision.status == status and not decision.actions and not decision.released:
            return LATER_S
        written = await self._write(JOB, read, status, decision.status)
        if written is None:
            return SOON_S
        await self._do(read, spec, decision)
        if decision.released:
            await self._api.release(JOB, written)
        only_tidies = decision.status == status and all(isinstance(action, Dispose) for action in decision.actions)
        return LATER_S if only_tidies else SOON_S

    async def _observed(self, read: Document, spec: JobSpec, status: JobStatus) -> Observed:
        namespace = read["metadata"]["namespace"]
        try:
            cluster, _ = await self._clusters.client(namespace, spec.cluster)
            content, content_problem = await self._content(read, spec)
            return await self._seen(cluster, read, spec, status, content, content_problem)
        except MissingError as error:
            return Observed(problem=str(error), cluster_missing=True)
        except ExternalError as error:
            return Observed(problem=str(error))

    async def _content(self, read: Document, spec: JobSpec) -> tuple[str, str]:
        """The digest of the ConfigMap that the file lies in, of which a copy is made; or why there is none."""
        if not spec.source.config_map or "deletionTimestamp" in read["metadata"]:
            return "", ""
        namespace = read["metadata"]["namespace"]
        found = await self._api.config_map(namespace, spec.source.config_map)
        if found is None:
            return "", f"source.configMap: there is no ConfigMap {spec.source.config_map} in namespace {namespace}"
        file = spec.source.file.partition(":")[0]
        if file not in {**(found.get("data") or {}), **(found.get("binaryData") or {})}:
            return "", f"source.file: ConfigMap {spec.source.config_map} has no key {file}"
        content = content_of(found)
        if await self._api.config_map(namespace, copy_name(read["metadata"]["name"], content)) is None:
            await self._api.make_config_map(copy_of(found, read), namespace)
        return content, ""

    async def _seen(
        self, cluster: ClusterClient, read: Document, spec: JobSpec, status: JobStatus, content: str, problem: str
    ) -> Observed:
        deployed, starting, step = status.deployed, status.starting, status.step
        namespace, name = read["metadata"]["namespace"], read["metadata"]["name"]
        given, given_problem = await find_savepoint(cluster, spec.from_savepoint) if spec.from_savepoint else (None, "")
        asked = starting if step is not None and step.kind == "submit" else deployed
        answer = await answer_to(cluster, asked.job, step.request) if asked is not None and step is not None else None
        submits = submitter_name(name, starting.job) if starting is not None else ""
        job = await self._api.job(namespace, submits) if submits else None
        state, submitter_problem = state_of(job, await self._api.pods_of_job(namespace, submits) if job else [])
        given_up = [(one, await look_at_job(cluster, one)) for one in status.given_up]
        measured_us = self._clock.now_us() if spec.autoscaler is not None else None
        runs = await look_at_job(cluster, deployed.job, measured_us) if deployed is not None else None
        seen = Observed(
            content=content, content_problem=problem, given=given, given_problem=given_problem, job=runs,
            starting=await look_at_job(cluster, starting.job) if starting is not None else None,
            submitter=state, submitter_problem=submitter_problem,
            strays=tuple(one for one, stray in given_up if stray is not None and not stray.ended),
            gone=frozenset(self._gone),
        )  # fmt: skip
        if spec.autoscaler is not None and deployed is not None and runs is not None and not runs.ended:
            loads = self._remember((namespace, name), deployed.job, runs.load, spec.autoscaler)
            seen = replace(seen, loads=loads, spare_slots=spare_slots(await cluster.overview()))
        return seen if answer is None else replace(seen, answer=answer)

    def _remember(
        self, resource: tuple[str, str], job: str, load: LoadSample | None, spec: Autoscaler
    ) -> tuple[LoadSample, ...]:
        """What a job did lately, with what it does now."""
        known = self._loads.get(resource)
        loads = [] if known is None or known[0] != job else known[1]
        oldest_us = self._clock.now_us() - kept_us(spec)
        loads = [one for one in (*loads, *([load] if load is not None else [])) if one.at_us >= oldest_us]
        self._loads[resource] = (job, loads)
        return tuple(loads)

    async def _do(self, read: Document, spec: JobSpec, decision: Decision) -> None:
        for action in decision.actions:
            await self._act(read, spec, action)
        for event in decision.events:
            await self._tell(read, event)
            if event.reason in ("ScaleUp", "ScaleDown"):
                self._numbers.rescales[event.reason] += 1
            if event.reason == "Stable":
                await self._tidy(read, decision.status)

    async def _act(self, read: Document, spec: JobSpec, action: Action) -> None:
        namespace, name = read["metadata"]["namespace"], read["metadata"]["name"]
        cluster, described = await self._clusters.client(namespace, spec.cluster)
        match action:
            case Submit(deployed):
                await self._api.make_job(submitter(read, described, deployed), namespace)
            case Halt(deployed):
                if not await self._api.make_job(submitter(read, described, deployed, suspended=True), namespace):
                    await self._api.suspend_job(namespace, submitter_name(name, deployed.job))
            case _:
                await self._ask(cluster, action)

    async def _ask(self, cluster: ClusterClient, action: Ask | Dispose) -> None:
        """What the cluster says no to is seen at the next pass."""
        try:
            match action:
                case Ask("stop", job, request):
                    await cluster.stop(job, request=request)
                case Ask("cancel", job, request):
                    await cluster.cancel(job, request=request)
                case Ask("savepoint", job, request):
                    await cluster.take_savepoint(job, request=request)
                case Ask("rescale", job, request, parallelism):
                    await cluster.rescale(job, parallelism, wait=True, request=request)
                case Ask(kind):
                    raise AssertionError(f"nothing is asked of a job by {kind}")
                case Dispose(manifest):
                    await cluster.dispose_savepoint(manifest, request=_digest(manifest)[:32])
                    self._gone.add(manifest)
        except RefusedError as error:
            if isinstance(action, Dispose) and error.status == NOT_FOUND:
                self._gone.add(action.manifest)
            _log.info("refused", asked=str(action), reason=str(error))

    async def _tell(self, read: Document, event: Event) -> None:
        """As an event of the resource; that it is lost is no reason to do anything again."""
        metadata = read["metadata"]
        now = rfc3339(self._clock.now_us())
        document = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"generateName": f"{metadata['name'][:200]}."},
            "involvedObject": {
                "apiVersion": read["apiVersion"], "kind": read["kind"], "name": metadata["name"],
                "namespace": metadata["namespace"], "uid": metadata["uid"],
            },
            "type": "Warning" if event.warning else "Normal", "reason": event.reason, "message": event.message[:1_000],
            "source": {"component": "penstock-operator"}, "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip
        _log.info("told", name=metadata["name"], reason=event.reason, message=event.message)
        try:
            await self._api.tell(document, metadata["namespace"])
        except ExternalError as error:
            _log.warning("an event is lost", error=str(error))

    async def _tidy(self, read: Document, status: JobStatus) -> None:
        """Remove copies of sources that no version is made of any more."""
        namespace, name = read["metadata"]["namespace"], read["metadata"]["name"]
        versions = [one.version for one in (status.deployed, status.starting, status.last_stable) if one is not None]
        needed = {copy_name(name, version.content) for version in versions if version.content}
        for found in await self._api.config_maps(namespace, label_of(read)):
            if is_owned(found, read) and found["metadata"]["name"] not in needed:
                await self._api.delete_config_map(namespace, found["metadata"]["name"])

    # -- savepoints -----------------------------------------------------------------------------------------------------

    async def _look_after_savepoint(self, found: Document) -> float | None:
        read = await self._held(SAVEPOINT, found)
        if read is None:
            return SOON_S if "deletionTimestamp" not in found["metadata"] else None
        spec = msgspec.convert(read["spec"], SavepointSpec)
        status = msgspec.convert(read.get("status") or {}, SavepointStatus)
        metadata = read["metadata"]
        cluster, seen = await self._savepoint_seen(metadata["namespace"], spec, status)
        decision = decide_savepoint(
            spec, status, seen, uid=metadata["uid"], generation=metadata["generation"],
            deleting="deletionTimestamp" in metadata,
        )  # fmt: skip
        self._count(SAVEPOINT, read, decision.status)
        if decision.status == status and not decision.actions and not decision.released:
            return LATER_S
        written = await self._write(SAVEPOINT, read, status, decision.status)
        if written is None:
            return SOON_S
        for action in decision.actions:
            assert cluster is not None
            assert isinstance(action, Ask | Dispose)
            await self._ask(cluster, action)
        if decision.status.phase != status.phase:
            told = decision.status.manifest or decision.status.problem
            await self._tell(read, Event(decision.status.phase, told, decision.status.phase == "Failed"))
        if decision.released:
            await self._api.release(SAVEPOINT, written)
        return SOON_S

    async def _savepoint_seen(
        self, namespace: str, spec: SavepointSpec, status: SavepointStatus
    ) -> tuple[ClusterClient | None, SavepointSeen]:
        gone = status.manifest in self._gone
        owner = await self._api.read(JOB, namespace, spec.job)
        if owner is None:
            return None, SavepointSeen(f"there is no PenstockJob {spec.job}", cluster_missing=True, gone=gone)
        deployed = msgspec.convert(owner.get("status") or {}, JobStatus).deployed
        try:
            cluster, _ = await self._clusters.client(namespace, msgspec.convert(owner["spec"], JobSpec).cluster)
            current = deployed.job if deployed is not None else ""
            asked = status.job or current
            job = await look_at_job(cluster, asked) if asked else None
            if not status.request:
                return cluster, SavepointSeen(current=current, job=job, gone=gone)
            answer = await answer_to(cluster, status.job, status.request)
            return cluster, SavepointSeen(current=current, job=job, answer=answer, gone=gone)
        except MissingError as error:
            return None, SavepointSeen(str(error), cluster_missing=True, gone=gone)
        except ExternalError as error:
            return None, SavepointSeen(str(error), gone=gone)

    # -- clusters -------------------------------------------------------------------------------------------------------

    async def _look_after_cluster(self, read: Document) -> float:
        before = msgspec.convert(read.get("status") or {}, ClusterStatus)
        msgspec.convert(read["spec"], ClusterSpec)
        generation = read["metadata"]["generation"]
        try:
            client, _ = await self._clusters.client(read["metadata"]["namespace"], read["metadata"]["name"])
            overview = await client.overview()
            after = _described(before, overview, generation, self._clock.now_us())
        except (ExternalError, RefusedError) as error:
            unknown = _ready(before, "Unknown", "Unreachable", str(error), generation, self._clock.now_us())
            after = msgspec.structs.replace(before, conditions=(unknown,), observed_generation=generation)
        self._count(CLUSTER, read, after)
        if after != before:
            await self._write(CLUSTER, read, before, after)
        return LATER_S


def _described(before: ClusterStatus, overview: Overview, generation: int, now_us: int) -> ClusterStatus:
    led = bool(overview.leader)
    reason, text = ("Led", "") if led else ("NoLeader", "no coordinator leads this cluster now")
    return ClusterStatus(
        observed_generation=generation, version=overview.version, leader=overview.leader, slots=overview.slots,
        free_slots=overview.free_slots,
        running_jobs=sum(count for state, count in overview.jobs.items() if state not in ENDED),
        conditions=(_ready(before, "True" if led else "False", reason, text, generation, now_us),),
    )  # fmt: skip


def _ready(
    before: ClusterStatus, status: ConditionStatus, reason: str, text: str, generation: int, now_us: int
) -> Condition:
    return condition(before.conditions, "Ready", status, reason, text, generation, now_us)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
