"""Cases of the integration tests as one job that a cluster can load: `--param cases=NAME,NAME`."""

from __future__ import annotations

from pathlib import Path

from pipelines import CASES, together  # lies beside this file

from penstock import param

_names = param("cases", "tumbling,sliding").split(",")
p = together(
    [case for case in CASES if case.name in _names],
    Path(param("out", "out")),
    float(param("rate", "0")) or None,
)
