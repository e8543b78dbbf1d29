"""Makes the helpers beside the tests importable: pytest's importlib mode leaves `sys.path` alone."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", params=["objects", "rocksdb"])
def state_backend(request, tmp_path_factory):
    """Every test of a module that uses this runs once per backend of keyed object state."""
    from penstock.task.keyed_states import keyed_backend
    from penstock.task.operators import process, running

    def on_disk(operator, keys, cursor, context):
        return keyed_backend(operator, keys, cursor, dataclasses.replace(context, local_state=folder))

    if request.param == "objects":
        yield request.param
        return
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "keyed_backend", on_disk)
        patch.setattr(running, "keyed_backend", on_disk)
        yield request.param
