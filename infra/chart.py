"""What the chart holds that is made from something else: `python -m infra.chart` writes it into `helm/penstock`.

Dashboards and alert rules, because a chart can only read files of its own; the definitions of the operator's custom
resources, from its types; and the README, from the comments in `values.yaml`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from infra.grafana.dashboards import texts as dashboards
from penstock_operator.definitions import KINDS, definition

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "helm" / "penstock"
DEFINITIONS: Final = CHART / "charts" / "definitions" / "crds"
"""A chart in the chart, because helm installs definitions before all else, and only of charts that are wanted."""
RULES: Final = ROOT / "infra" / "prometheus" / "alerts.yml"
_HEAD: Final = """# The Penstock chart

Coordinators (one leads), dispatchers (REST), task managers, a service for runs on Spark; Kafka, Redis and an S3 store are
yours, or bundled ones of one pod each for trying out:

    helm install penstock helm/penstock --set bundled.kafka.enabled=true \\
        --set bundled.redis.enabled=true --set bundled.minio.enabled=true
    helm test penstock

Pods run as nobody special on a read-only root (the `restricted` pod security standard; the bundled servers write to their
own disks). A pod that ends hands its slots or its lease back; `helm uninstall` first stops all jobs with a savepoint.
What scaling, application mode and the pipeline service do is told in docs/kubernetes.md of the repository.

## Values

| value | default | |
| --- | --- | --- |
"""


def files() -> dict[Path, str]:
    """Every made file and its text."""
    made = {CHART / "files" / name: text for name, text in dashboards().items()}
    made[CHART / "files" / "alerts.yml"] = RULES.read_text(encoding="utf-8")
    for kind in KINDS:
        text = yaml.safe_dump(definition(kind), sort_keys=False, width=120, allow_unicode=True)
        made[DEFINITIONS / f"{kind.plural}.yaml"] = f"# Made by `python -m infra.chart`; do not edit.\n{text}"
    made[CHART / "README.md"] = _HEAD + "\n".join(_rows((CHART / "values.yaml").read_text(encoding="utf-8"))) + "\n"
    return made


def _rows(values: str) -> list[str]:
    """A row for each value that has one, or a comment, in the order of the file. Two spaces are one level."""
    rows: list[str] = []
    path: list[str] = []
    comment: list[str] = []
    for line in values.splitlines()[2:]:
        text = line.strip()
        if text.startswith("#"):
            comment.append(text.removeprefix("#").strip())
        elif not text:
            comment.clear()
        else:
            name, _, value = text.partition(":")
            depth = (len(line) - len(line.lstrip())) // 2
            path[depth:] = [name]
            value = value.strip()
            if value or comment:
                rows.append(f"| `{'.'.join(path)}` | {f'`{value}`' if value else ''} | {' '.join(comment)} |")
            comment.clear()
    return rows


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
