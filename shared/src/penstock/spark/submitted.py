"""The driver of a run that the pipeline service started: what `penstock run --engine spark` is on a terminal.

Its working directory is the folder of the attempt (see `submitting`). It says what it is at and how it ended by files
there, because who started it may be gone, or be another one by then.
"""

from __future__ import annotations

import sys
import uuid
from contextlib import ExitStack
from pathlib import Path

from penstock.adapters.system_clock import SystemClock
from penstock.connectors.kafka.default_cluster import use_cluster
from penstock.coordination.artifacts import check_requirements, unpack
from penstock.loading import load_pipeline
from penstock.observability.user_frames import shown_frames, shown_text
from penstock.runs.run_log import RunOutcome
from penstock.runs.run_views import RunProgress
from penstock.savepoint.places import place_of
from penstock.settings import load_settings
from penstock.spark.code import pack_code
from penstock.spark.engine import RunOptions as EngineOptions
from penstock.spark.engine import SparkRun
from penstock.spark.session import SparkSettings, open_session
from penstock.spark.starting import starting_point
from penstock.spark.submitted_steps import run_steps
from penstock.spark.submitting import AttemptFolder, AttemptSpec
from penstock.spark.tracking import RunTracker


def main() -> int:
    """Carry out what the specification in the working directory says; the exit code."""
    folder = AttemptFolder(Path.cwd())
    with ExitStack() as opened:
        try:
            outcome = _run(folder, folder.spec(), opened)
        except Exception as error:  # the outermost supervisor: whatever it is, somebody waits to be told
            outcome = RunOutcome("FAILED", shown_text(error), shown_frames(error))
        folder.write_outcome(outcome)
    print_line(f"{outcome.frames}{outcome.state.lower()} {outcome.reason}")
    return 0 if outcome.state == "FINISHED" else 1


def print_line(text: str) -> None:
    """Say something in the output of the attempt."""
    sys.stderr.write(f"{text}\n")


def _run(folder: AttemptFolder, spec: AttemptSpec, opened: ExitStack) -> RunOutcome:
    folder.write_progress(RunProgress())
    artifact, options = spec.artifact, spec.options
    settings = load_settings(folder.cluster, {})
    use_cluster(settings.kafka, settings.name)
    check_requirements(artifact.requirements)
    place = unpack(artifact, folder.sources.read_bytes(), folder.path)
    target, parameters = str(place / artifact.target), dict(artifact.parameters)
    pipeline = load_pipeline(target, parameters)
    if options.in_steps:
        code = pack_code(target, parameters)
        return run_steps(folder, spec, pipeline, code, SystemClock(), lambda: uuid.uuid4().hex, print_line)
    session = open_session(spec.name, SparkSettings(options.master, None, options.conf))
    opened.callback(session.stop)
    tracker = RunTracker(session, folder.write_progress)
    run = SparkRun(
        session,
        pipeline,
        pack_code(target, parameters),
        parallelism=options.parallelism,
        run=spec.run,
        clock=SystemClock(),
        folder=Path(spec.manifests),
        staging=spec.staging,
        entered=tracker.entered,
        options=EngineOptions(
            starting_point(options.from_savepoint, str(folder.cluster)) if options.from_savepoint else None,
            place_of(options.to_savepoint, "--to-savepoint") if options.to_savepoint else None,
            warn=lambda text: print_line(f"warning: {text}"),
            native=options.native,
        ),
    )
    tracker.begins(run)
    with tracker.followed():
        result = run.execute()
    counts = {operator: dict(counters) for operator, counters in result.counts.items()}
    return RunOutcome("FINISHED", counts=counts, computed=result.computed)
