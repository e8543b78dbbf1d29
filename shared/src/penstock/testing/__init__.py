"""What tests of pipelines import: `run_pipeline` for whole ones, `OperatorHarness` for one operator.

Names are loaded when they are used: every pytest in an environment with Penstock imports this package for its plugin.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.expressions import evaluate
    from penstock.testing.feeds import elapse
    from penstock.testing.matches import explain_match
    from penstock.testing.pipelines import run_pipeline, run_sinks

__all__ = ["elapse", "evaluate", "explain_match", "run_pipeline", "run_sinks"]

_HOME_OF = {
    "elapse": "penstock.testing.feeds",
    "evaluate": "penstock.testing.expressions",
    "explain_match": "penstock.testing.matches",
    "run_pipeline": "penstock.testing.pipelines",
    "run_sinks": "penstock.testing.pipelines",
}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
