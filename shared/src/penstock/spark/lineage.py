"""What a run reads and writes, told to whoever collects lineage: OpenLineage's events, by its own client.

Off unless one of the client's variables names a transport; then `openlineage` is imported, and not before. A collector
that is away costs events and a warning, never a run. Every execution is a run of OpenLineage's own, because its runs end
once: one that is given again under the same run id is another one there, with that id among its facets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock import __version__
from penstock.core.extras import install
from penstock.errors import UsageError
from penstock.plan.logical import LogicalPlan
from penstock.plan.operations.read import Read
from penstock.plan.operations.write import Write
from penstock.ports import Clock
from penstock.types import Schema

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet, JobFacet, OutputDatasetFacet

_VARIABLES: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT")
"""Beginnings of the variables that say where events go."""
_PRODUCER: Final = f"urn:penstock:{__version__}"
_INTEGRATION: Final = "PENSTOCK"
_MICROS: Final = 1_000_000

Counts = Mapping[str, Mapping[str, int]]
"""Operator id to counter to value."""


class Lineage:
    """Tells of one execution of a run."""

    def __init__(self, plan: LogicalPlan, run: str, clock: Clock, warn: Callable[[str], None]) -> None:
        self._plan = plan
        self._run = run
        self._clock = clock
        self._warn = warn
        self._counts: Counts = {}

    def finished(self, counts: Counts) -> None:
        """The run is decided, and counted this."""
        self._counts = counts

    @contextmanager
    def told(self, was_cancelled: Callable[[], bool]) -> Generator[None]:
        """Tells when the execution begins, and how it ends."""
        events = self._opened()
        if events is None:
            yield
            return
        self._tell(events, "START")
        try:
            yield
        except BaseException as error:
            self._tell(events, "ABORT" if was_cancelled() else "FAIL", str(error))
            raise
        else:
            self._tell(events, "COMPLETE")
        finally:
            events.client.close()

    def _opened(self) -> _Events | None:
        if not any(name.startswith(_VARIABLES) for name in os.environ):
            return None
        try:
            return _Events.opened(self._plan, self._run, self._clock)
        except ImportError:
            self._warn(f"OpenLineage is asked for by its variables, and not there: {install('lineage')}")
        except Exception as error:  # whatever is wrong with its configuration
            self._warn(f"no lineage is told: {error}")
        return None

    def _tell(self, events: _Events, kind: _Kind, message: str = "") -> None:
        try:
            events.tell(kind, self._counts, message)
        except Exception as error:  # every transport has its own
            self._warn(f"lineage: {kind} could not be told: {error}")


_Kind = Literal["START", "COMPLETE", "FAIL", "ABORT"]


@dataclass(frozen=True)
class _Parent:
    """The run of an orchestrator that this one is a part of."""

    namespace: str
    name: str
    run: str


@dataclass(frozen=True)
class _Events:
    """One run of OpenLineage's."""

    client: OpenLineageClient
    plan: LogicalPlan
    run: str
    id: str
    namespace: str
    parent: _Parent | None
    clock: Clock

    @classmethod
    def opened(cls, plan: LogicalPlan, run: str, clock: Clock) -> _Events:
        from openlineage.client import OpenLineageClient
        from openlineage.client.uuid import generate_new_uuid

        now = _time(clock)
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE", "default")
        return cls(OpenLineageClient(), plan, run, str(generate_new_uuid(now)), namespace, _parent(), clock)

    def tell(self, kind: _Kind, counts: Counts, message: str) -> None:
        """Emit one event."""
        from openlineage.client import event_v2
        from openlineage.client.facet_v2 import job_type_job

        facets: dict[str, JobFacet] = {"jobType": job_type_job.JobTypeJobFacet("BATCH", _INTEGRATION, "JOB")}
        event = event_v2.RunEvent(
            eventTime=_time(self.clock).isoformat(),
            producer=_PRODUCER,
            run=event_v2.Run(self.id, self._run_facets(message)),
            job=event_v2.Job(self.namespace, self.plan.name, facets),
            eventType=event_v2.RunState[kind],
            inputs=list(_inputs(self.plan, counts)),
            outputs=list(_outputs(self.plan, counts)),
        )
        self.client.emit(event)

    def _run_facets(self, message: str) -> dict[str, Any]:
        from openlineage.client.facet_v2 import error_message_run, external_query_run, parent_run, processing_engine_run

        engine = processing_engine_run.ProcessingEngineRunFacet(
            version=__version__,
            name="penstock",
            openlineageAdapterVersion=__version__,
        )
        own = external_query_run.ExternalQueryRunFacet(self.run, "penstock")
        facets: dict[str, Any] = {"processing_engine": engine, "externalQuery": own}
        if self.parent is not None:
            facets["parent"] = parent_run.ParentRunFacet(
                parent_run.Run(self.parent.run),
                parent_run.Job(self.parent.namespace, self.parent.name),
            )
        if message:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message, "python")
        return facets


def _parent() -> _Parent | None:
    """Which run this one is a part of, as orchestrators say it: `namespace/job/run`."""
    said = os.environ.get("OPENLINEAGE_PARENT_ID", "")
    if not said:
        return None
    match said.split("/"):
        case [namespace, name, run]:
            return _Parent(namespace, name, run)
        case _:
            raise UsageError(f"OPENLINEAGE_PARENT_ID={said!r} is not of the form namespace/job/run")


def _time(clock: Clock) -> datetime:
    return datetime.fromtimestamp(clock.now_us() / _MICROS, UTC)


# -- data ---------------------------------------------------------------------------------------------------------------


def _inputs(plan: LogicalPlan, counts: Counts) -> Iterable[InputDataset]:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.generated.input_statistics_input_dataset import (
        InputStatisticsInputDatasetFacet as Statistics,
    )

    for node in plan:
        if isinstance(node.operation, Read) and (named := node.operation.source.dataset()) is not None:
            read = counts.get(node.operator_id, {}).get("rows_out")
            rows: dict[str, InputDatasetFacet] = {} if read is None else {"inputStatistics": Statistics(rowCount=read)}
            yield InputDataset(
                named.namespace, named.name, inputFacets=rows, facets=_shape(node.operation.source.schema)
            )


def _outputs(plan: LogicalPlan, counts: Counts) -> Iterable[OutputDataset]:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.generated.output_statistics_output_dataset import (
        OutputStatisticsOutputDatasetFacet as Statistics,
    )

    for node in plan:
        if isinstance(node.operation, Write) and (named := node.operation.sink.dataset()) is not None:
            written = counts.get(node.operator_id, {}).get("rows_in")
            rows: dict[str, OutputDatasetFacet] = (
                {} if written is None else {"outputStatistics": Statistics(rowCount=written)}
            )
            yield OutputDataset(named.namespace, named.name, outputFacets=rows, facets=_shape(node.schema))


def _shape(schema: Schema) -> dict[str, DatasetFacet]:
    from openlineage.client.facet_v2 import schema_dataset

    fields = [schema_dataset.SchemaDatasetFacetFields(name=field.name, type=str(field.type)) for field in schema]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields)}
