"""The routes under /penstock/v1/schedules: pipelines that run on Spark again and again.

A dispatcher writes schedules itself, by the next version in the store: what is answered is done, also while no pipeline
service is there, and asked again it changes nothing. The service sees it within seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from penstock.client.schedule_documents import (
    DueRun,
    ScheduleDetail,
    ScheduleList,
    ScheduleSubmission,
    ScheduleSummary,
)
from penstock.errors import CorruptDataError, UsageError, nearest
from penstock.protocol.joblog import Artifact
from penstock.runs.periods import depends_on_period
from penstock.runs.schedule import (
    Definition,
    Schedule,
    ScheduleExistsError,
    added,
    coming_periods,
    current_period,
    is_schedule_name,
    paused,
    periods_behind,
    removed,
    resumed,
)
from penstock.runs.schedule_store import ScheduleStore
from penstock.service.audit import note_change
from penstock_dispatcher.bodies import check_sources, read_submission
from penstock_dispatcher.cluster import Cluster, DispatcherPorts
from penstock_dispatcher.describing import answers, submits
from penstock_dispatcher.graphs import checked_graph
from penstock_dispatcher.jobs import HIDDEN
from penstock_dispatcher.penstock_routes import sent
from penstock_dispatcher.reading import for_each_concurrently, within_deadline
from penstock_dispatcher.refusing import RestError
from penstock_dispatcher.run_routes import check_options
from penstock_dispatcher.runs import Runs

SHOWN_DUE: Final = 5
"""So many runs that are to come are shown."""
WRITES: Final = 20
"""How often something is tried that others are quicker at."""

ScheduleName = Annotated[str, Path(description="its name")]
T = TypeVar("T")


class ScheduleRoutes:
    """The handlers."""

    def __init__(self, cluster: Cluster, ports: DispatcherPorts, runs: Runs) -> None:
        self._cluster = cluster
        self._runs = runs
        self._store = ScheduleStore(ports.blobs, ports.clock, ports.new_id)

    def router(self) -> APIRouter:
        """All routes."""
        router = APIRouter(prefix="/penstock/v1", tags=["schedules"])
        add: Any = router.add_api_route
        add("/schedules", self.list_schedules, methods=["GET"], responses=answers(ScheduleList))
        add(
            "/schedules", self.add, methods=["POST"], responses=answers(ScheduleDetail),
            openapi_extra=submits(ScheduleSubmission, "schedule"),
        )  # fmt: skip
        add("/schedules/{name}", self.schedule, methods=["GET"], responses=answers(ScheduleDetail))
        add("/schedules/{name}/pause", self.pause, methods=["POST"], responses=answers(ScheduleDetail))
        add("/schedules/{name}/resume", self.resume, methods=["POST"], responses=answers(ScheduleDetail))
        add("/schedules/{name}", self.remove, methods=["DELETE"], responses=answers(ScheduleDetail))
        return router

    # -- looking --------------------------------------------------------------------------------------------------------

    async def list_schedules(self) -> Response:
        """All schedules, by name."""
        found: list[ScheduleSummary] = []

        async def read(name: str) -> None:
            try:
                schedule = await self._answer(self._store.read(name))
                if schedule is not None and schedule.state != "REMOVED":
                    found.append(await self._summary(schedule))
            except (CorruptDataError, UsageError) as error:  # the service lets no runs of it begin either
                found.append(_unreadable(name, str(error)))

        await for_each_concurrently(sorted(await self._answer(self._store.versions())), read)
        found.sort(key=lambda one: one.name)
        return sent(ScheduleList(tuple(found), await self._service()))

    async def schedule(self, name: ScheduleName) -> Response:
        """A schedule: what it runs, the runs that are to come, and what became of the last ones."""
        return sent(await self._detail(await self._find(name)))

    async def _find(self, name: str) -> Schedule:
        found = await self._answer(self._store.read(name)) if is_schedule_name(name) else None
        if found is None or found.state == "REMOVED":
            raise await self._unknown(name)
        return found

    async def _unknown(self, name: str) -> RestError:
        known = sorted(await self._answer(self._store.versions()))
        close = nearest(name, known) if known else "there are none"
        return RestError(404, f"there is no schedule {name!r}; {close}")

    async def _summary(self, schedule: Schedule) -> ScheduleSummary:
        definition = schedule.definition
        due = _due(schedule, 1)
        history = await self._runs.history(due[0].run) if due else None
        return ScheduleSummary(
            schedule.name, definition.pipeline, definition.cron, definition.timezone, schedule.state, schedule.reason,
            next=due[0] if due else None,
            next_state=history.state if history is not None and history.records else None,
            behind=periods_behind(schedule, self._cluster.now_us()) if due else 0,
            last=schedule.ended[-1] if schedule.ended else None,
        )  # fmt: skip

    async def _detail(self, schedule: Schedule, *, changed: bool = False) -> ScheduleDetail:
        definition = schedule.definition
        options = definition.options
        return ScheduleDetail(
            await self._summary(schedule),
            due=_due(schedule, SHOWN_DUE),
            ended=schedule.ended[::-1],
            start=definition.start, end=definition.end, retries=definition.retries,
            retry_pause_ms=definition.retry_pause_ms, on_failure=definition.on_failure,
            parameters={name: _shown(text) for name, text in definition.artifact.parameters.items()},
            options=msgspec.structs.replace(options, conf=dict.fromkeys(options.conf, HIDDEN)),
            service=await self._service(),
            changed=changed,
        )  # fmt: skip

    async def _service(self) -> str:
        view = await self._runs.view.if_any()
        return view.address if view is not None else ""

    # -- changing -------------------------------------------------------------------------------------------------------

    async def add(self, request: Request) -> Response:
        """Add a schedule. Added again with the same content nothing changes, with another one it is refused unless it
        says that it replaces what is there."""
        asked, sources = await read_submission(request, ScheduleSubmission, "schedule")
        note_change(kind="AddSchedule", name=asked.name)
        checked_graph(asked.pipeline, asked.graph, "schedule.graph")
        await check_sources(sources, asked.artifact.target)
        check_options(asked.options, await self._runs.view.if_any(), "schedule")
        key, digest = await self._cluster.store_sources(sources)
        described = asked.artifact
        artifact = Artifact(key, digest, described.target, described.parameters, described.requirements)
        definition = Definition(
            cron=asked.cron, timezone=asked.timezone, start=asked.start, end=asked.end, pipeline=asked.pipeline,
            graph=asked.graph, artifact=artifact, options=asked.options, retries=asked.retries,
            retry_pause_ms=asked.retry_pause_ms, on_failure=asked.on_failure,
        )  # fmt: skip

        async def act(before: Schedule | None) -> Schedule:
            try:
                after = added(before, asked.name, definition, self._cluster.now_us(), replaces=asked.replace)
            except ScheduleExistsError as error:
                raise RestError(409, str(error)) from error
            await self._check_at_work(before, after)
            return after

        return await self._change(asked.name, act)

    async def _check_at_work(self, before: Schedule | None, after: Schedule) -> None:
        """A schedule does not turn to other periods while one of its runs is at work: one at a time."""
        if before is None or before is after:
            return
        period = current_period(before)
        if period is None or period == current_period(after):
            return
        history = await self._runs.history(period.run)
        if history.records and history.ended is None:
            raise RestError(
                409, f"run {period.run} of schedule {before.name!r} is at work; wait for its end, or penstock cancel it"
            )

    async def pause(self, name: ScheduleName) -> Response:
        """Let no more runs begin; what is at work goes on."""
        return await self._change(name, self._known(name, paused))

    async def resume(self, name: ScheduleName) -> Response:
        """Go on, after a pause or a stop: what was missed is caught up."""
        return await self._change(name, self._known(name, resumed))

    async def remove(self, name: ScheduleName) -> Response:
        """Remove a schedule; what is at work goes on, and what was done stays done. Removed again nothing happens."""
        return await self._change(name, self._known(name, removed, also_removed=True))

    def _known(
        self, name: str, act: Callable[[Schedule], Schedule], *, also_removed: bool = False
    ) -> Callable[[Schedule | None], Awaitable[Schedule]]:
        async def acted(before: Schedule | None) -> Schedule:
            if before is None or (before.state == "REMOVED" and not also_removed):
                raise await self._unknown(name)
            return act(before)

        return acted

    async def _change(self, name: str, act: Callable[[Schedule | None], Awaitable[Schedule]]) -> Response:
        """Write what a schedule becomes, from how it stands, again if somebody was quicker."""
        for _ in range(WRITES):
            before = await self._answer(self._store.read(name)) if is_schedule_name(name) else None
            after = await act(before)
            if after is before:
                return sent(await self._detail(after))
            written = await self._answer(self._store.write(before, after))
            if written is not None:
                return sent(await self._detail(written, changed=True))
        raise RestError(503, f"schedule {name!r} is being changed by others; send it again in a moment")

    async def _answer(self, answer: Awaitable[T]) -> T:
        return await within_deadline("the store", answer)


def _due(schedule: Schedule, count: int) -> tuple[DueRun, ...]:
    """The runs that are to come; none of one that was removed because its zone, say, is unknown here."""
    try:
        periods = coming_periods(schedule, count)
    except UsageError:
        if schedule.state != "REMOVED":
            raise
        periods = []
    return tuple(DueRun(period.run, period.begin_us, period.end_us) for period in periods)


def _unreadable(name: str, problem: str) -> ScheduleSummary:
    return ScheduleSummary(
        name, pipeline="", cron="", timezone="", state="STOPPED", reason=f"it cannot be read: {problem}", next=None,
        next_state=None, behind=0, last=None,
    )  # fmt: skip


def _shown(text: str) -> str:
    """A parameter whose value follows from the period is none of the secrets that others may be."""
    return text if depends_on_period(text) else HIDDEN
