"""`python -m tests.k8s`: the chart on a real Kubernetes, as its users would try it; every row is compared.

Servers for trying out are a release of their own, so that they outlive the one that is tried: install, run the example,
delete pods, upgrade, roll back, scale up and down by what jobs want, runs and a job in steps on Spark whose pods are
deleted, uninstall, and go on from the savepoints; then application mode, and a store by https of an authority of one's
own; and the operator, with a job whose resource changes in every way (`tests.k8s.lifecycle`), and with one whose load
doubles and halves (`tests.k8s.autoscaling`).

It uses the current kubectl context and a namespace of its own, which it makes and deletes, and a volume on one node;
definitions of custom resources are left, as by helm. The images must be there: pushed, or imported.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile

from tests.k8s import autoscaling, lifecycle
from tests.k8s.autoscaling import Scaling
from tests.k8s.lifecycle import KINDS, Lifecycle
from tests.k8s.spark import SparkTrial
from tests.k8s.trial import RELEASE, TrialError, TrialOverError


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.k8s", description=__doc__)
    parser.add_argument("--namespace", default="penstock-trial", help="made and deleted (penstock-trial)")
    parser.add_argument("--images", default="penstock", help="repository of the images (penstock)")
    parser.add_argument("--tag", default="dev", help="their tag (dev)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="further values of the chart")
    parser.add_argument("--without-spark", action="store_true", help="leave runs on Spark out, whose image is large")
    parser.add_argument("--operator-only", action="store_true", help="try nothing but the operator")
    parser.add_argument("--autoscaling-only", action="store_true", help="of the operator, try nothing but autoscaling")
    options = parser.parse_args()
    trial = SparkTrial(options)
    try:
        trial.servers()
        if not (options.operator_only or options.autoscaling_only):
            _chart(trial, spark=not options.without_spark)
        for kind, values in ((Lifecycle, lifecycle.VALUES), (Scaling, autoscaling.VALUES)):
            if kind is Scaling or not options.autoscaling_only:
                trial.install(RELEASE, *values)
                with trial.forwarded():
                    kind(trial).run()
                trial.uninstall()
    except (TrialError, TrialOverError) as error:
        print(f"FAILED\n{error}", flush=True)
        return 1
    finally:
        clear = ("delete", KINDS, "--all", "--timeout=2m", "--namespace", trial.namespace)
        subprocess.run(["kubectl", *clear], check=False, capture_output=True)  # while there is an operator
        for kind, name in (("namespace", trial.namespace), ("persistentvolume", f"{trial.namespace}-pipeline")):
            subprocess.run(["kubectl", "delete", kind, name, "--ignore-not-found"], check=False)
    return 0


def _chart(trial: SparkTrial, *, spark: bool) -> None:
    """Everything but the operator."""
    trial.install()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), trial.forwarded():
        trial.trouble()
        trial.scaling()
        if spark:
            trial.spark()
            trial.lost_pods()
            trial.steps()
        trial.uninstall()
        trial.goes_on()
        trial.uninstall()
        trial.application()
        trial.uninstall("app")
        if spark:
            trial.secured()
            trial.uninstall("secured")


if __name__ == "__main__":
    sys.exit(main())
