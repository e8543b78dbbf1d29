"""Runs on Spark: found by what people call them, described from their logs and from what the pipeline service shows."""

from __future__ import annotations

from typing import Final

import msgspec
import structlog

from penstock.client.documents import RequestState
from penstock.client.run_documents import RunDetail, RunList, RunLog, RunSummary
from penstock.errors import CorruptDataError, ExternalError
from penstock.ports import BlobNotFoundError
from penstock.runs.run_log import RunHistory, is_run_id
from penstock.runs.run_store import RunStore
from penstock.runs.run_views import PIPELINE_VIEW, PipelineView, RunView, summary_of_run
from penstock_dispatcher.cluster import (
    Cluster,
    DispatcherPorts,
    Freshness,
    cache_bounded,
    for_each_concurrently,
    within_deadline,
)
from penstock_dispatcher.jobs import HIDDEN, SHORTEST_PREFIX, nearest_of, shown_record, some
from penstock_dispatcher.refusing import RestError

NO_SERVICE: Final = (
    "no pipeline service serves this cluster now; start one: penstock pipeline (pipeline.enabled of the chart)"
)

_log = structlog.get_logger("penstock.dispatcher")


class Runs:
    """The runs of a cluster."""

    def __init__(self, cluster: Cluster, ports: DispatcherPorts) -> None:
        self._cluster = cluster
        self._ports = ports
        self._store = RunStore(ports.blobs, ports.clock, ports.new_id)
        self._freshness = Freshness(ports.clock)
        self._ended: dict[str, RunSummary] = {}

    # -- the service ----------------------------------------------------------------------------------------------------

    async def view(self) -> PipelineView | None:
        """What the pipeline service shows; None if none does."""
        data = await within_deadline("Redis", self._ports.metadata.get(PIPELINE_VIEW))
        if data is None:
            return None
        try:
            view = msgspec.json.decode(data, type=PipelineView)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise CorruptDataError(f"the pipeline service's view is not readable by this version: {error}") from error
        return view if self._freshness.is_fresh(view) else None

    async def view_if_any(self) -> PipelineView | None:
        """The same; where Redis does not answer, there is nothing to show, and what the store knows is still said."""
        try:
            return await self.view()
        except ExternalError as error:
            _log.warning("no view of the pipeline service", error=str(error))
            return None

    async def serving_view(self) -> PipelineView:
        """The view, for what only a service can do; raises `RestError` 503 if there is none."""
        view = await self.view()
        if view is None:
            raise RestError(503, NO_SERVICE)
        return view

    # -- finding --------------------------------------------------------------------------------------------------------

    async def history(self, run: str) -> RunHistory:
        """The log of a run; empty if there is none."""
        return await within_deadline("the store", self._store.history(run)) if is_run_id(run) else RunHistory()

    async def find(self, name: str) -> RunHistory:
        """The run of this id, of the only id that begins so, or of this name: the one that has not ended, or the newest.

        Raises:
            RestError: there is none, or there are several.
        """
        exact = await self.history(name)
        if exact.records:
            return exact
        summaries = (await self.list()).runs
        if len(name) >= SHORTEST_PREFIX:
            matching = sorted(run.run for run in summaries if run.run.startswith(name))
            if len(matching) > 1:
                raise RestError(409, f"several runs have ids that begin with {name}: {some(matching)}; give more of it")
            if matching:
                return await self.history(matching[0])
        called = [run for run in summaries if run.name == name]
        going_on = [run.run for run in called if run.ended_us is None]
        if len(going_on) > 1:
            raise RestError(409, f"several runs are called {name!r}: {some(going_on)}; give the id")
        if not called:
            known = {run.name for run in summaries} | {run.run for run in summaries}
            raise RestError(404, f"there is no run {name!r}; {nearest_of(name, known)}")
        return await self.history(going_on[0] if going_on else called[0].run)

    async def names(self) -> set[str]:
        """What runs are called."""
        return {run.name for run in (await self.list()).runs}

    # -- describing -----------------------------------------------------------------------------------------------------

    async def list(self) -> RunList:
        """All runs."""
        view = await self.view_if_any()
        active = await within_deadline("the store", self._store.active())
        ended = await within_deadline("the store", self._store.ended())
        open_runs: list[RunSummary] = []
        late: list[RunSummary] = []

        async def read(run: str) -> None:
            history = await self.history(run)
            if history.records and history.ended is None:
                open_runs.append(summary_of_run(history, view_of(view, run)))
            elif history.records:
                ended.pop(run, None)  # its end is not in the index yet, or that of before
                late.append(summary_of_run(history))

        await for_each_concurrently(active, read)
        for run in open_runs:
            ended.pop(run.run, None)
        await for_each_concurrently([key for key in ended.values() if key not in self._ended], self._read_ended)
        over = [*late, *(self._ended[key] for key in ended.values() if key in self._ended)]
        newest_first = [sorted(runs, key=lambda run: -run.submitted_us) for runs in (open_runs, over)]
        return RunList((*newest_first[0], *newest_first[1]), view.address if view is not None else "")

    async def _read_ended(self, key: str) -> None:
        try:
            cache_bounded(self._ended, key, await within_deadline("the store", self._store.ended_summary(key)))
        except BlobNotFoundError:
            return  # somebody removed it since it was listed

    async def detail(self, history: RunHistory) -> RunDetail:
        """All that is known about a run."""
        submitted, ended = history.submitted, history.ended
        options = msgspec.structs.replace(submitted.options, conf=dict.fromkeys(submitted.options.conf, HIDDEN))
        view = await self.view_if_any() if ended is None else None
        summary = summary_of_run(history, view_of(view, submitted.run))
        if ended is None:
            return RunDetail(summary, submitted.graph, options)
        return RunDetail(summary, submitted.graph, options, ended.frames, ended.counts, ended.computed)

    async def log(self, history: RunHistory) -> RunLog:
        """The records, without graphs, and what was printed."""
        run = history.submitted.run
        return RunLog(
            run, tuple(map(shown_record, history.records)), await within_deadline("the store", self._store.output(run))
        )

    async def outcome(self, run: str, request: str) -> RequestState:
        """What became of a request.

        Raises:
            RestError: it was never sent, or so long ago that nobody remembers.
        """
        if (await self.history(run)).knows(request):
            return RequestState(run, request, "completed")
        if await self._cluster.was_asked(request):
            return RequestState(run, request, "pending")
        raise RestError(404, f"there is no request {request} of run {run}")


def view_of(view: PipelineView | None, run: str) -> RunView | None:
    """What the service sees of one run."""
    return next((found for found in view.runs if found.run == run), None) if view is not None else None
