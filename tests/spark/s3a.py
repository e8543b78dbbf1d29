"""What the image of the pipeline service has beside PySpark's jars, and the settings of the compose file, for tests."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from tests.pinned_jars import fetched

from penstock.settings import ClusterSettings

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "infra" / "images"
FOLDER = "s3a://penstock/spark-events"


def jars() -> Path:
    """The folder of the pinned jars: fetched once, as a build of the image does."""
    return fetched("s3a", IMAGES / "s3a-pom.xml", IMAGES / "s3a-jars.sha256", "hadoop-aws")


def service(name: str) -> Any:
    """One of the compose file."""
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"][name]


def driver_settings(cluster: ClusterSettings) -> dict[str, str]:
    """What the compose file tells drivers, for another store and a folder of the test's own there."""
    command = service("pipeline")["command"]
    given = [value for option, value in pairwise(command) if option == "--conf"]
    return dict(_here(value, cluster).split("=", 1) for value in given)


def history_options(cluster: ClusterSettings) -> str:
    """What the compose file tells the history server."""
    return _here(service("spark-history")["environment"]["SPARK_HISTORY_OPTS"], cluster)


def _here(text: str, cluster: ClusterSettings) -> str:
    """As compose reads it: `$$` is a dollar, `${NAME:-value}` is the value."""
    text = re.sub(r"(?<!\$)\$\{\w+:-([^}]*)\}", r"\1", text).replace("$$", "$")
    place = f"s3a://{cluster.store.bucket}/{cluster.name}/spark-events"
    return text.replace(FOLDER, place).replace("http://minio:9000", cluster.store.endpoint)


def environment(cluster: ClusterSettings) -> dict[str, str]:
    """The store and its keys, as the compose file hands them over."""
    store = cluster.store
    keys = {"ACCESS_KEY": store.access_key, "SECRET_KEY": store.secret_key.reveal()}
    aws = {"AWS_ACCESS_KEY_ID": store.access_key, "AWS_SECRET_ACCESS_KEY": store.secret_key.reveal()}
    own = {"PENSTOCK_STORE_ENDPOINT": store.endpoint, "PENSTOCK_STORE_BUCKET": store.bucket}
    return {**own, **aws, **{f"PENSTOCK_STORE_{name}": value for name, value in keys.items()}}
