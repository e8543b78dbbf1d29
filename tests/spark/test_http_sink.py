"""`http.Sink` on Spark: tasks send what they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.http_service import running_service
from tests.integration.sink_rows import Sale, sales

from penstock import Pipeline
from penstock.connectors import iterables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(120)


def test_a_request_for_every_row(spark: SparkSession) -> None:
    """What is refused is counted, as embedded."""
    with running_service() as service:
        service.answer = lambda request: (422 if request.body["id"] % 5 == 3 else 200, {})
        p = Pipeline("p")
        p.read(iterables.Source(sales(10), schema=Sale)).write(service.sink(bad_rows="skip")).uid("hook")
        result = p.run(engine="spark", spark=spark)
        assert sorted(request.body["id"] for request in service.requests) == list(range(10))
        assert len({request.key for request in service.requests}) == 10
    assert result.counts["hook"]["bad_rows"] == 2
