"""What an ended job's sinks leave outside the store, removed by the coordinator, which never imports the user's code."""

from __future__ import annotations

from typing import Final

import structlog

from penstock.connectors.kafka.marks import delete_marks, marks_of_job
from penstock.errors import ExternalError
from penstock.graph.jobgraph import graph_from_json, published_by_splits
from penstock.jobmanager.job_cleanup import CleanSinks
from penstock.ports import Clock
from penstock.protocol.joblog import JobHistory
from penstock.settings import ClusterSettings

TRIES: Final = 5
PAUSE_MS: Final = 2_000

_log = structlog.get_logger("penstock.coordinator")


def sink_cleaner(settings: ClusterSettings, clock: Clock) -> CleanSinks:
    """Removes the marks of Kafka sinks. A sink's own cluster may be gone for good: then it says what is left there."""

    async def clean(job: str, history: JobHistory) -> None:
        graph = graph_from_json(history.graph)
        # A job that starts from a retained checkpoint goes on where these marks stand.
        kept = published_by_splits(history.graph) if history.retained is not None else frozenset[str]()
        generations = history.begin.generation + 1 if history.begin is not None else 0
        for marks in marks_of_job(settings.name, job, graph, range(generations), kept):
            for attempt in range(TRIES):
                try:
                    await delete_marks(marks.settings(settings.kafka), marks.topic)
                    break
                except ExternalError as error:
                    if attempt == TRIES - 1:
                        _log.error("the marks of an ended job are left", topic=marks.topic, error=str(error))
                        break
                    await clock.sleep_ms(PAUSE_MS)

    return clean
