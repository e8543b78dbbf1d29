"""Runs on Spark: found by what people call them, described from their logs and from what the pipeline service shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.client.documents import RequestState
from penstock.client.run_documents import RunDetail, RunList, RunLog, RunSummary
from penstock.ports import BlobNotFoundError
from penstock.protocol.requests import refused_key
from penstock.runs.run_log import RunHistory, is_run_id
from penstock.runs.run_store import RunStore
from penstock.runs.run_views import PIPELINE_VIEW, PipelineView, RunView, summary_of_run
from penstock_dispatcher.cluster import Cluster, DispatcherPorts
from penstock_dispatcher.jobs import HIDDEN, shown_record
from penstock_dispatcher.naming import meant_by_name, meant_by_prefix
from penstock_dispatcher.reading import PublishedView, cache_bounded, for_each_concurrently, within_deadline
from penstock_dispatcher.refusing import RestError

NO_SERVICE: Final = (
    "no pipeline service serves this cluster now; start one: penstock pipeline (pipeline.enabled of the chart)"
)


class Runs:
    """The runs of a cluster."""

    def __init__(self, cluster: Cluster, ports: DispatcherPorts) -> None:
        self._cluster = cluster
        self._ports = ports
        self._store = RunStore(ports.blobs, ports.clock, ports.new_id)
        self.view: Final = PublishedView(
            ports.metadata, ports.clock, PIPELINE_VIEW, PipelineView, "the pipeline service"
        )
        self._ended: dict[str, RunSummary] = {}

    # -- the service ----------------------------------------------------------------------------------------------------

    async def serving_view(self) -> PipelineView:
        """The view, for what only a service can do; raises `RestError` 503 if there is none."""
        view = await self.view.read()
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
        run = meant_by_prefix("run", name, [run.run for run in summaries])
        return await self.history(run if run is not None else _called(name, summaries))

    async def names(self) -> set[str]:
        """What runs are called."""
        return {run.name for run in (await self.list()).runs}

    # -- describing -----------------------------------------------------------------------------------------------------

    async def list(self) -> RunList:
        """All runs."""
        view = await self.view.if_any()
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
        view = await self.view.if_any() if ended is None else None
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
        refused = await within_deadline("Redis", self._ports.metadata.get(refused_key(request)))
        if refused is not None:
            return RequestState(run, request, "refused", refused.decode())
        if await self._cluster.was_asked(request):
            return RequestState(run, request, "pending")
        raise RestError(404, f"there is no request {request} of run {run}")


def _called(name: str, summaries: Sequence[RunSummary]) -> str:
    going_on = {run.run: run.name for run in summaries if run.ended_us is None}
    ended = [run for run in summaries if run.ended_us is not None and run.name == name]  # newest first
    newest = {run.run: run.name for run in ended[:1]}
    return meant_by_name(
        "run", name, going_on, newest, known=[text for run in summaries for text in (run.name, run.run)]
    )


def view_of(view: PipelineView | None, run: str) -> RunView | None:
    """What the service sees of one run."""
    return next((found for found in view.runs if found.run == run), None) if view is not None else None
