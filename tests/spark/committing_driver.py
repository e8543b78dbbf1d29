"""A driver that has nothing left to do but to commit a run: `python committing_driver.py FOLDER RUN name=value ...`.

Transactions are small, so that there are several for each partition.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.adapters.system_clock import SystemClock
from penstock.loading import load_pipeline, parse_parameters
from penstock.spark import publishing
from penstock.spark.committing import RunManifests, commit


def main(folder: str, run: str, *parameters: str) -> None:
    """Carry the run to its end."""
    publishing.CHUNK_BYTES = 1
    manifests = RunManifests(Path(folder))
    manifest = manifests.find(run)
    assert manifest is not None
    file = Path(__file__).with_name("kafka_sink_pipelines.py")
    commit(manifest, load_pipeline(str(file), parse_parameters(list(parameters))).plan, manifests, SystemClock())


if __name__ == "__main__":
    main(*sys.argv[1:])
