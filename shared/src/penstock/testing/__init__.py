"""What tests of pipelines import: `run_pipeline` for whole ones, `OperatorHarness` for one operator."""

from penstock.testing.feeds import elapse
from penstock.testing.pipelines import run_pipeline, run_sinks

__all__ = ["elapse", "run_pipeline", "run_sinks"]
