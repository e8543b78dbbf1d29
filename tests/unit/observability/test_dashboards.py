"""Dashboards and alert rules name only metrics and labels that the catalogue has; the JSON files are current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from infra.grafana.dashboards import DASHBOARDS, FOLDER, texts

from penstock.observability.metrics import CATALOGUE

ROOT = Path(__file__).parents[3]
METRICS = {metric.name: set(metric.labels) for metric in CATALOGUE}
OF_PROMETHEUS = {"job", "instance"}
QUERIES = [(board.uid, query.expression) for board in DASHBOARDS for panel in board.panels for query in panel.queries]
RULES = [
    ("alerts", " ".join(text.split()))
    for text in re.findall(
        r"expr: (?:>-)?(.*?)(?=\n +(?:for|labels):)", (ROOT / "infra/prometheus/alerts.yml").read_text(), re.DOTALL
    )
]


@pytest.mark.parametrize(("where", "expression"), [*QUERIES, *RULES])
def test_queries_use_what_the_catalogue_has(where: str, expression: str) -> None:
    """Every metric is one of the catalogue, and a matcher or a grouping names labels of it."""
    names = re.findall(r"penstock_\w+", expression)
    assert set(names) <= METRICS.keys(), where
    labels = set().union(*(METRICS[name] for name in names)) | OF_PROMETHEUS | {"state"}
    used = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", expression))
    for group in re.findall(r"(?:by|on|group_right)\s*\(([^)]*)\)", expression):
        used |= {label.strip() for label in group.split(",") if label.strip()}
    assert used <= labels, where


def test_there_are_rules() -> None:
    """The pattern above finds them all."""
    assert len(RULES) == (ROOT / "infra/prometheus/alerts.yml").read_text().count("- alert:")


def test_the_files_are_current() -> None:
    """`infra/grafana/dashboards/*.json` are what `python -m infra.grafana.dashboards` writes."""
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")} == texts()


def test_legends_name_labels_that_are_left() -> None:
    """A legend shows labels that its query keeps."""
    for board in DASHBOARDS:
        for panel in board.panels:
            for query in panel.queries:
                shown = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
                kept = re.findall(r"by \(([^)]*)\)", query.expression)
                if kept:
                    assert shown <= {label.strip() for label in kept[0].split(",")}, query
