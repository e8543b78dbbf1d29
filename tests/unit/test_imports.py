"""What importing the library loads: checked by name, never by the clock."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

DATA_LIBRARIES = {"polars", "pyarrow", "numpy", "pandas", "duckdb"}
SERVICES = {"pyspark", "confluent_kafka", "aiokafka", "kafka", "redis", "boto3", "aiobotocore"}
WEB_FRAMEWORKS = {"fastapi", "starlette", "flask", "django", "aiohttp", "uvicorn", "tornado"}


@pytest.mark.parametrize(
    "statement",
    ["import penstock", "from penstock import *", "import penstock.api.pipeline, penstock.api.stream, penstock.types"],
)
def test_importing_loads_neither_data_libraries_nor_clients_nor_web_frameworks(statement: str) -> None:
    """Polars, Arrow and numpy come with the first row; clients of services come with their connectors."""
    program = (
        f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert loaded & (DATA_LIBRARIES | SERVICES | WEB_FRAMEWORKS) == set()


def test_an_embedded_run_needs_nothing_of_the_extras() -> None:
    """`pip install penstock-streaming` is enough: neither clients of services nor web frameworks are loaded.

    Neither is prometheus-client, which is installed, but waits until metrics are written.
    """
    left_out = SERVICES | WEB_FRAMEWORKS | {"confluent_kafka", "fastavro", "httpx2", "minio", "obstore"}
    left_out.add("prometheus_client")
    program = (
        f"import sys\nsys.modules.update(dict.fromkeys({sorted(left_out)}))\nimport penstock.cli.run, penstock.embedded"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
