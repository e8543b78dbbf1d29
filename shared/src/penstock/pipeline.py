"""`Pipeline`: what a pipeline file declares, and the ways to run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.api.pipeline import DeclaredPipeline, importing

if TYPE_CHECKING:
    from penstock.embedded import JobResult


class Pipeline(DeclaredPipeline):
    """A named pipeline: sources, verbs, sinks. Building it checks it; nothing runs until it is asked to.

    Args:
        name: shown everywhere, and part of what identifies the job's state.

    Example:
        >>> p = Pipeline("hot-auctions")
        >>> bids = p.read(files.Source("bids.jsonl", schema=Bid, event_time="at"))
    """

    def run(
        self, *, parallelism: int = 1, directory: str | Path | None = None, resume: bool = False
    ) -> JobResult | None:
        """Run the pipeline in this process until its input ends, from a script or a notebook.

        Args:
            parallelism: subtasks per operator that says nothing else.
            directory: where log, snapshots and job log stand; a temporary folder by default.
            resume: continue what an earlier run left in `directory`.

        Returns:
            What became of the job; None while Penstock itself imports the file (`penstock run FILE`), where this
            call does nothing.
        """
        if importing():
            return None
        from penstock.embedded import run_pipeline

        return run_pipeline(self, parallelism=parallelism, directory=directory, resume=resume)
