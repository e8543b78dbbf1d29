"""The catalogue of metrics and the formats in which Prometheus reads them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import prometheus_client.openmetrics.parser as openmetrics_parser
import prometheus_client.parser as text_parser
import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder

from penstock.coordination.job_progress import CheckpointProgress, JobProgress
from penstock.core.times import MAX_WATERMARK, MIN_WATERMARK
from penstock.graph.jobgraph import PUBLISH, JobGraph, JobOperator, JobVertex
from penstock.observability import metrics
from penstock.observability.metrics import CATALOGUE, Metric, Sample, Snapshot, markdown, samples
from penstock.protocol.messages import OperatorMetrics, SubtaskId, TaskProgress, TaskStatus

SINK = JobOperator("n0", "sink", PUBLISH, (), [], False, {}, "")
GRAPH = JobGraph("flights", 1, 240, (JobVertex("v0", "sink", 2, 240, "default", (SINK,)),))

RESERVED = ("_created", "_info", "_sum", "_count", "_bucket", "_gsum", "_gcount")
FORMATS = [
    pytest.param("text/plain;version=0.0.4", text_parser, id="text"),
    pytest.param("application/openmetrics-text;version=1.0.0", openmetrics_parser, id="OpenMetrics"),
]


def read(accept: str, parser: Any, given: Iterable[Sample]) -> list[Family]:
    """What a parser of Prometheus' own library finds in the format that a scraper accepts."""
    encoder, _ = choose_encoder(accept)
    return list(parser.text_string_to_metric_families(encoder(Snapshot(given)).decode()))


def progress(watermark: int = 2_000_000) -> JobProgress:
    found = JobProgress("job", attempt_number=3, failures=["v0[0]: boom"])
    found.statuses[SubtaskId("v0", 1)] = TaskStatus(
        "job",
        "a" * 32,
        SubtaskId("v0", 1),
        "running",
        metrics={"read": OperatorMetrics(rows_in=5, rows_out=4, bad_rows=1, partial_matches=6, partial_match_age_s=3)},
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
    """Names are unique, begin alike, counters end in _total, units stand in the name, help is a sentence.

    No other suffix has a meaning of its own in OpenMetrics.
    """
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    for metric in CATALOGUE:
        assert re.fullmatch(r"penstock_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert not metric.name.endswith(RESERVED)
        assert metric.unit in metric.name
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


def test_operators_without_patterns_have_no_partial_matches() -> None:
    """A zero would say that a pattern waits for nothing."""
    found = progress()
    assert values(found)["penstock_partial_matches"] == 6
    assert values(found)["penstock_partial_match_age_seconds"] == 3
    for status in found.statuses.values():
        status.metrics["read"] = OperatorMetrics(rows_in=5)
    assert not [name for name in values(found) if "partial" in name]


def test_a_watermark_at_the_ends_of_time_is_no_number() -> None:
    """Before the first row and behind the last there is nothing to plot."""
    for watermark in (MIN_WATERMARK, MAX_WATERMARK):
        assert "penstock_watermark_seconds" not in values(progress(watermark))


def test_the_text_has_a_family_per_metric() -> None:
    """HELP and TYPE once per metric, then all its samples, wherever they stand among the others."""
    text = generate_latest(
        Snapshot(
            [
                Sample(metrics.RUNS, {"state": 'a"b\\c\nd'}, 1),
                Sample(metrics.RUNS_ENDED, {"state": "x"}, 0),
                Sample(metrics.RUNS, {"state": "y"}, 12_345_678),
                Sample(metrics.LEADING, {}, 1),
            ]
        )
    ).decode()
    assert text.splitlines() == [
        f"# HELP penstock_runs {metrics.RUNS.help}",
        "# TYPE penstock_runs gauge",
        'penstock_runs{state="a\\"b\\\\c\\nd"} 1.0',
        'penstock_runs{state="y"} 1.2345678e+07',
        f"# HELP penstock_runs_ended_total {metrics.RUNS_ENDED.help}",
        "# TYPE penstock_runs_ended_total counter",
        'penstock_runs_ended_total{state="x"} 0.0',
        f"# HELP penstock_leading {metrics.LEADING.help}",
        "# TYPE penstock_leading gauge",
        "penstock_leading 1.0",
    ]
    assert text.endswith("\n")


@pytest.mark.parametrize(("accept", "parser"), FORMATS)
def test_prometheus_reads_what_was_meant(accept: str, parser: Any) -> None:
    """Judged by the parsers of Prometheus' own library: text that holds any character, and every kind of number."""
    anything = Metric("penstock_anything", "gauge", "things", ("name",), 'A \\ "help"\nof two lines.')
    found = [12_345_678, 1 << 53, 0.1 + 0.2, -1e-9, True, math.inf, -math.inf]
    names = ["plain", "", 'a "quoted" name', "back\\slash\\n", "two\nlines", "{curly}, = braces", "größer ✓"]
    given = [Sample(anything, {"name": name}, value) for name, value in zip(names, found, strict=True)]
    given.append(Sample(anything, {"name": "none"}, math.nan))
    (gauge,) = read(accept, parser, given)
    assert gauge.type == "gauge"
    assert gauge.documentation == anything.help
    values = {sample.labels["name"]: sample.value for sample in gauge.samples}
    assert math.isnan(values.pop("none"))
    assert values == dict(zip(names, found, strict=True))


@pytest.mark.parametrize(("accept", "parser"), FORMATS)
def test_every_metric_is_read_under_its_name(accept: str, parser: Any) -> None:
    """As a counter or as a gauge, with its labels, in either format; in OpenMetrics no two names clash."""
    given = [Sample(metric, dict.fromkeys(metric.labels, "x"), 2) for metric in CATALOGUE]
    families = read(accept, parser, given)
    assert [(family.type, family.documentation) for family in families] == [(one.kind, one.help) for one in CATALOGUE]
    found = [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]
    assert found == [(one.metric.name, one.labels, one.value) for one in given]


def test_openmetrics_tells_units() -> None:
    """Of every metric whose name ends with its unit; a unit within a name, as in `rows_in`, cannot be told."""
    given = [Sample(metric, dict.fromkeys(metric.labels, "x"), 2) for metric in CATALOGUE]
    accept, parser = FORMATS[1].values
    units = {family.name: family.unit for family in read(str(accept), parser, given)}
    assert set(units.values()) >= {"seconds", "bytes", "rows", ""}
    assert units["penstock_busy_seconds"] == "seconds"
    assert units["penstock_state_size_bytes"] == "bytes"
    assert units["penstock_rows_in"] == units["penstock_leading"] == ""


def test_a_sample_without_a_label_of_its_metric_is_refused() -> None:
    """Rather than shown as another series."""
    with pytest.raises(KeyError, match="job_id"):
        generate_latest(Snapshot([Sample(metrics.ATTEMPT, {"job_name": "x"}, 1)]))
