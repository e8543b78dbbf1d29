"""The catalogue of metrics and the text in which Prometheus reads them."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.coordination.job_progress import CheckpointProgress, JobProgress
from penstock.graph.jobgraph import PUBLISH, JobGraph, JobOperator, JobVertex
from penstock.observability import metrics
from penstock.observability.metrics import CATALOGUE, Metric, Sample, markdown, prometheus_text, samples
from penstock.protocol.messages import OperatorMetrics, SubtaskId, TaskProgress, TaskStatus
from penstock.times import MAX_WATERMARK, MIN_WATERMARK

SINK = JobOperator("n0", "sink", PUBLISH, (), [], False, {}, "")
GRAPH = JobGraph("flights", 1, 240, (JobVertex("v0", "sink", 2, 240, "default", (SINK,)),))


def progress(watermark: int = 2_000_000) -> JobProgress:
    found = JobProgress("job", attempt_number=3, failures=["v0[0]: boom"])
    found.statuses[SubtaskId("v0", 1)] = TaskStatus(
        "job",
        "a" * 32,
        SubtaskId("v0", 1),
        "running",
        metrics={"read": OperatorMetrics(rows_in=5, rows_out=4, bad_rows=1)},
        published=2,
        progress=TaskProgress(
            watermark=watermark, busy_us=1_500_000, bytes_in=10, state_bytes=7, records_behind=9, unpublished_bytes=8
        ),
    )
    found.checkpoints[1] = CheckpointProgress(1, 0, "complete", 500_000, 100, 2_000)
    found.checkpoints[2] = CheckpointProgress(2, 0, "aborted")
    found.checkpoints[3] = CheckpointProgress(3, 0)
    found.totals.update({"complete": 101, "aborted": 1, "failed": 1})
    return found


def values(found: JobProgress) -> dict[str, float]:
    """Sample values by name and distinguishing label."""
    return {
        sample.metric.name + (f"/{sample.labels['state']}" if "state" in sample.labels else ""): sample.value
        for sample in samples(GRAPH, found, 12_000_000)
    }


def test_the_catalogue_follows_prometheus_conventions() -> None:
    """Names are unique, begin alike, counters end in _total, units stand in the name, help is a sentence."""
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    for metric in CATALOGUE:
        assert re.fullmatch(r"penstock_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.unit in metric.name or metric.unit in ("attempts",)
        assert metric.help.endswith(".")


def test_the_page_is_current() -> None:
    """`docs/metrics.md` is what the catalogue prints: run `python -m penstock.observability.metrics`."""
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == markdown()


def test_every_metric_of_the_module_is_in_the_catalogue() -> None:
    """So that documentation made from it lacks none."""
    declared = [value for value in vars(metrics).values() if isinstance(value, metrics.Metric)]
    assert set(declared) == set(CATALOGUE)


def test_every_sample_has_the_labels_its_metric_declares() -> None:
    """And together the samples of a running job cover what the catalogue has of jobs."""
    found = list(samples(GRAPH, progress(), 12_000_000))
    for sample in found:
        assert tuple(sample.labels) == sample.metric.labels
    assert {sample.metric for sample in found} == set(metrics.JOB_METRICS)


def test_running_jobs_of_one_name_have_series_of_their_own() -> None:
    """Prometheus takes one sample per series: a second with the same labels would be dropped."""
    other = dataclasses.replace(progress(), job="2" * 32)
    found = [
        (sample.metric.name, *sorted(sample.labels.items()))
        for job in (progress(), other)
        for sample in samples(GRAPH, job, 12_000_000)
    ]
    assert len(set(found)) == len(found)


def test_units_are_those_of_the_name() -> None:
    """Microseconds inside, seconds outside; what was not reported is zero."""
    found = values(progress())
    assert found["penstock_busy_seconds_total"] == 1.5
    assert found["penstock_idle_seconds_total"] == 0
    assert found["penstock_watermark_seconds"] == 2
    assert found["penstock_watermark_lag_seconds"] == 10
    assert found["penstock_checkpoint_duration_seconds"] == 0.5
    assert found["penstock_checkpoint_sync_seconds"] == 0.002
    assert found["penstock_checkpoint_age_seconds"] == 11.5
    assert found["penstock_completed_checkpoint"] == 1
    assert found["penstock_sink_published_checkpoint"] == 2
    assert found["penstock_checkpoints_total/complete"] == 101
    assert found["penstock_checkpoints_total/aborted"] == 1
    assert found["penstock_attempt"] == 3
    assert found["penstock_failures_total"] == 1


def test_a_watermark_at_the_ends_of_time_is_no_number() -> None:
    """Before the first row and behind the last there is nothing to plot."""
    for watermark in (MIN_WATERMARK, MAX_WATERMARK):
        assert "penstock_watermark_seconds" not in values(progress(watermark))


def test_the_text_is_prometheus_exposition_format() -> None:
    """HELP and TYPE once per metric, then its samples; quotes, backslashes and newlines are escaped."""
    strange = {"job_name": 'a"b\\c\nd'}
    text = prometheus_text(
        [
            Sample(metrics.ATTEMPT, strange, 1),
            Sample(metrics.FAILURES, {"job_name": "x"}, 0),
            Sample(metrics.ATTEMPT, {"job_name": "y"}, 2),
        ]
    )
    assert text.splitlines() == [
        "# HELP penstock_attempt Number of the attempt that runs.",
        "# TYPE penstock_attempt gauge",
        'penstock_attempt{job_name="a\\"b\\\\c\\nd"} 1',
        'penstock_attempt{job_name="y"} 2',
        "# HELP penstock_failures_total Failed attempts since its coordinator has the job.",
        "# TYPE penstock_failures_total counter",
        'penstock_failures_total{job_name="x"} 0',
    ]
    assert text.endswith("\n")


def test_prometheus_reads_what_was_meant() -> None:
    """Judged by the parser of Prometheus' own library: text that holds any character, and every kind of number."""
    anything = Metric("penstock_anything", "gauge", "things", ("name",), 'A \\ "help"\nof two lines.')
    found = [12_345_678, 0.1 + 0.2, -1e-9, True, math.inf, -math.inf]
    names = ["plain", 'a "quoted" name', "back\\slash\\n", "two\nlines", "{curly}, = braces", "größer ✓"]
    given = [Sample(anything, {"name": name}, value) for name, value in zip(names, found, strict=True)]
    given.append(Sample(anything, {"name": "none"}, math.nan))
    (gauge,) = text_string_to_metric_families(prometheus_text(given))
    assert gauge.type == "gauge"
    assert gauge.documentation == anything.help
    read = {sample.labels["name"]: sample.value for sample in gauge.samples}
    assert math.isnan(read.pop("none"))
    assert read == dict(zip(names, found, strict=True))


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_every_metric_is_read_under_its_name(metric: Metric) -> None:
    """As a counter or as a gauge, with its labels."""
    labels = dict.fromkeys(metric.labels, "x")
    (family,) = text_string_to_metric_families(prometheus_text([Sample(metric, labels, 2)]))
    assert (family.type, family.documentation) == (metric.kind, metric.help)
    assert [(one.name, one.labels, one.value) for one in family.samples] == [(metric.name, labels, 2)]
