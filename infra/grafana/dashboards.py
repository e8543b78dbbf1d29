"""The dashboards. `python -m infra.grafana.dashboards` writes them as JSON into the folder `dashboards` beside this file.

Grafana imports the files as they are; the chart makes ConfigMaps of them. Metrics: `docs/metrics.md`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parent / "dashboards"
JOB: Final = "$job_name"
"""Stands in a query for the job that is chosen at the top of a dashboard."""
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_HEIGHT: Final = 8


@dataclass(frozen=True)
class Query:
    """A line, or several, of a panel."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One picture. Units are Grafana's names."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 12
    description: str = ""


@dataclass(frozen=True)
class Dashboard:
    """A page of panels; `by_job` puts a choice of the job at its top."""

    uid: str
    title: str
    by_job: bool
    panels: tuple[Panel, ...]


def _one(title: str, unit: str, expression: str, legend: str, **more: Any) -> Panel:
    return Panel(title, unit, (Query(expression, legend),), **more)


def _stat(title: str, unit: str, expression: str, description: str = "") -> Panel:
    return Panel(title, unit, (Query(expression, ""),), "stat", 4, description)


def _rate(metric: str, by: str, job: str = "") -> str:
    chosen = f'{{job_name="{job}"}}' if job else ""
    return f"sum by ({by}) (rate({metric}{chosen}[1m]))"


OVERVIEW: Final = Dashboard(
    "penstock-overview",
    "Penstock / Overview",
    False,
    (
        _stat("Leaders", "none", "sum(penstock_leading)", "One, but for a moment when a leader is replaced."),
        _stat("Jobs", "none", "count(penstock_attempt)"),
        _stat("Task slots", "none", "sum(penstock_slots)"),
        _stat("Free slots", "none", "sum(penstock_free_slots)"),
        _stat("Missing slots", "none", "sum(penstock_missing_slots)", "What jobs wait for: start task managers."),
        _stat("Workers", "none", "sum(penstock_workers)"),
        _one("Rows into operators", "rowsps", _rate("penstock_rows_in_total", "job_name"), "{{job_name}}"),
        _one("Source lag", "short", "sum by (job_name) (penstock_source_lag_records)", "{{job_name}}"),
        _one(
            "Since the last complete checkpoint", "s", "max by (job_name) (penstock_checkpoint_age_seconds)",
            "{{job_name}}",
        ),
        _one("Failures", "short", "sum by (job_name) (increase(penstock_failures_total[5m]))", "{{job_name}}"),
    ),
)  # fmt: skip

OF_A_JOB: Final = Dashboard(
    "penstock-job",
    "Penstock / Job",
    True,
    (
        _one("Rows in by operator", "rowsps", _rate("penstock_rows_in_total", "operator", JOB), "{{operator}}"),
        _one("Rows out by operator", "rowsps", _rate("penstock_rows_out_total", "operator", JOB), "{{operator}}"),
        Panel(
            "Time use by vertex",
            "percentunit",
            tuple(
                Query(
                    f'avg by (vertex) (rate(penstock_{part}_seconds_total{{job_name="{JOB}"}}[1m]))',
                    f"{{{{vertex}}}} {part}",
                )
                for part in ("busy", "backpressured", "idle")
            ),
            description="What is back-pressured waits for what is behind it; what is busy is the bottleneck.",
        ),
        _one(
            "Watermark lag", "s", f'max by (vertex) (penstock_watermark_lag_seconds{{job_name="{JOB}"}})',
            "{{vertex}}", description="Wall time minus event time: large where history is read.",
        ),
        _one("Source lag", "short", f'sum by (vertex) (penstock_source_lag_records{{job_name="{JOB}"}})', "{{vertex}}"),
        Panel(
            "Rows that were late or bad",
            "short",
            (
                Query(
                    f'sum by (operator) (increase(penstock_late_rows_total{{job_name="{JOB}"}}[5m]))',
                    "{{operator}} late",
                ),
                Query(
                    f'sum by (operator) (increase(penstock_bad_rows_total{{job_name="{JOB}"}}[5m]))',
                    "{{operator}} bad",
                ),
            ),
        ),
        Panel(
            "What times to live gave up",
            "short",
            (
                Query(
                    f'sum by (operator) (increase(penstock_forgotten_keys_total{{job_name="{JOB}"}}[5m]))',
                    "{{operator}} forgotten",
                ),
                Query(
                    f'sum by (operator) (increase(penstock_lost_changes_total{{job_name="{JOB}"}}[5m]))',
                    "{{operator}} lost",
                ),
            ),
            description="Keys that were forgotten, and changes that came to nothing because they were.",
        ),
        _one(
            "Partial matches", "short", f'sum by (operator) (penstock_partial_matches{{job_name="{JOB}"}})',
            "{{operator}}", description="Of patterns; without within= they may be kept for ever.",
        ),
        _one(
            "Age of the oldest partial match", "s",
            f'max by (operator) (penstock_partial_match_age_seconds{{job_name="{JOB}"}})',
            "{{operator}}", description="Event time from its first row to the watermark.",
        ),
        _one("Attempt", "none", f'max(penstock_attempt{{job_name="{JOB}"}})', "attempt"),
        _one(
            "State by vertex", "bytes", f'sum by (vertex) (penstock_state_size_bytes{{job_name="{JOB}"}})', "{{vertex}}",
        ),
    ),
)  # fmt: skip

CHECKPOINTS: Final = Dashboard(
    "penstock-checkpoints",
    "Penstock / Checkpoints",
    True,
    (
        _one("Age of the newest", "s", f'max(penstock_checkpoint_age_seconds{{job_name="{JOB}"}})', "age"),
        _one(
            "Checkpoints by outcome", "short",
            f'sum by (state) (increase(penstock_checkpoints_total{{job_name="{JOB}"}}[5m]))', "{{state}}",
        ),
        Panel(
            "Duration",
            "s",
            (
                Query(f'max(penstock_checkpoint_duration_seconds{{job_name="{JOB}"}})', "trigger to COMPLETE"),
                Query(f'max(penstock_checkpoint_sync_seconds{{job_name="{JOB}"}})', "longest standstill"),
            ),
        ),
        _one("Size", "bytes", f'max(penstock_checkpoint_size_bytes{{job_name="{JOB}"}})', "size"),
        Panel(
            "Complete and published",
            "none",
            (
                Query(f'max(penstock_completed_checkpoint{{job_name="{JOB}"}})', "complete"),
                Query(
                    f'min by (vertex) (penstock_sink_published_checkpoint{{job_name="{JOB}"}})', "{{vertex}} published"
                ),
            ),
            description="Where they part, a sink does not keep up.",
        ),
        _one(
            "Waiting to be published", "bytes",
            f'sum by (vertex) (penstock_sink_unpublished_bytes{{job_name="{JOB}"}})', "{{vertex}}",
        ),
    ),
)  # fmt: skip

EXCHANGE: Final = Dashboard(
    "penstock-exchange",
    "Penstock / Kafka exchange",
    True,
    (
        _one("Written to exchanges", "Bps", _rate("penstock_bytes_out_total", "vertex", JOB), "{{vertex}}"),
        _one("Read from exchanges and sources", "Bps", _rate("penstock_bytes_in_total", "vertex", JOB), "{{vertex}}"),
        _one(
            "Back-pressure", "percentunit",
            f'max by (vertex) (rate(penstock_backpressured_seconds_total{{job_name="{JOB}"}}[1m]))', "{{vertex}}",
            description="Share of its time that the slowest subtask of a vertex waits for credit downstream.",
        ),
        _one(
            "Skew of rows between subtasks", "percentunit",
            f'max by (operator) (rate(penstock_rows_in_total{{job_name="{JOB}"}}[1m])) / '
            f'avg by (operator) (rate(penstock_rows_in_total{{job_name="{JOB}"}}[1m]))',
            "{{operator}}", description="1 where all subtasks get the same.",
        ),
        _one(
            "Event time by subtask", "dateTimeFromNow",
            f'penstock_watermark_seconds{{job_name="{JOB}"}} * 1000', "{{vertex}}[{{subtask}}]", width=24,
        ),
    ),
)  # fmt: skip

SERVICES: Final = Dashboard(
    "penstock-services",
    "Penstock / Services",
    False,
    (
        _one("Who leads", "none", "penstock_leading", "{{instance}}"),
        _one("Services that answer", "none", 'up{job=~"penstock.*"}', "{{job}} {{instance}}"),
        Panel(
            "Slots",
            "none",
            (
                Query("sum(penstock_slots)", "slots"),
                Query("sum(penstock_free_slots)", "free"),
                Query("sum(penstock_missing_slots)", "missing"),
            ),
        ),
        _one("Slots by task manager", "none", "penstock_task_manager_slots", "{{instance}}"),
        _one("Memory by worker", "bytes", "penstock_worker_memory_bytes", "{{worker}}", width=24),
    ),
)

OPERATOR: Final = Dashboard(
    "penstock-operator",
    "Penstock / Operator on Kubernetes",
    False,
    (
        _stat("Operators at work", "none", "sum(penstock_operator_leading)", "One per namespace that is looked after."),
        _stat("Resources", "none", "sum(penstock_operator_resources)"),
        _stat("Ready", "none", 'sum(penstock_operator_resources{ready="True"}) or vector(0)'),
        _stat(
            "Not ready", "none", 'sum(penstock_operator_resources{ready!="True"}) or vector(0)',
            "kubectl get penstockjobs says which, and their conditions why.",
        ),
        _one(
            "Resources by condition", "none", "sum by (kind, ready) (penstock_operator_resources)", "{{kind}} {{ready}}",
        ),
        _one("Who works", "none", "penstock_operator_leading", "{{instance}}"),
        _one("Parallelism of autoscaled jobs", "none", "penstock_operator_parallelism", "{{namespace}}/{{name}}"),
        _one(
            "Parallelism that their load asks for", "none", "penstock_operator_recommended_parallelism",
            "{{namespace}}/{{name}}", description="status.autoscaler.reason of the PenstockJob says why.",
        ),
        _one("Looks", "ops", _rate("penstock_operator_passes_total", "kind"), "{{kind}}"),
        _one(
            "Looks that came to nothing", "ops", _rate("penstock_operator_failed_passes_total", "kind"), "{{kind}}",
            description="The API server did not answer or did not allow it: the operator's log says why. It looks again.",
        ),
    ),
)  # fmt: skip

DASHBOARDS: Final = (OVERVIEW, OF_A_JOB, CHECKPOINTS, EXCHANGE, SERVICES, OPERATOR)


def to_json(dashboard: Dashboard) -> dict[str, Any]:
    """What Grafana imports."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["penstock"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": list(_variables(dashboard))},
        "panels": list(_panels(dashboard)),
    }


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    if not dashboard.by_job:
        return [source]
    query = "label_values(penstock_attempt, job_name)"
    job = {"name": "job_name", "label": "Job", "type": "query", "datasource": _SOURCE, "query": query, "refresh": 2}
    return [source, job]


def _panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    x = y = height = 0
    for number, panel in enumerate(dashboard.panels, 1):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + height
        height = _HEIGHT // 2 if panel.kind == "stat" else _HEIGHT
        targets = [
            {
                "refId": chr(ord("A") + index),
                "expr": query.expression,
                "legendFormat": query.legend,
                "datasource": _SOURCE,
            }
            for index, query in enumerate(panel.queries)
        ]
        panels.append(
            {
                "id": number,
                "type": panel.kind,
                "title": panel.title,
                "description": panel.description,
                "datasource": _SOURCE,
                "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "targets": targets,
            }
        )
        x += panel.width
    return panels


def texts() -> dict[str, str]:
    """File name to the text of every dashboard."""
    return {f"{d.uid}.json": json.dumps(to_json(d), indent=1, ensure_ascii=False) + "\n" for d in DASHBOARDS}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
