"""Event logs in the object store, by the settings of the compose file and the jars of the image: on a real MinIO, with
real drivers and a real history server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from s3a import IMAGES, driver_settings, environment, history_options, jars, service
from spark_runs import CASES_FILE, QUICK
from standalone import end, start, wait_for

from penstock.platform.free_ports import free_port
from penstock.settings import ClusterSettings

pytestmark = [pytest.mark.timeout(300), pytest.mark.servers]

DEADLINE_S = 120
DRIVER = """
import json, sys
from penstock.spark.session import SparkSettings, open_session

settings, place = json.loads(sys.argv[1]), sys.argv[2]
session = open_session("one", SparkSettings(master=sys.argv[3] if sys.argv[3:] else "local[2]", conf=settings))
session.range(1_000).write.parquet(f"{place}/written")
session.sparkContext.setLocalProperty("penstock.filler", "x" * 3_000_000)
for _ in range(3):
    session.range(10).rdd.count()
print(session.read.parquet(f"{place}/written").count(), session.sparkContext.applicationId, flush=True)
input()
session.stop()
"""


@contextmanager
def history_server(folder: Path, cluster: ClusterSettings, *more: str) -> Generator[Callable[[], dict[str, bool]]]:
    """The applications that it shows, and whether they are over."""
    port = free_port()
    options = " ".join([
        history_options(cluster), f"-Dspark.history.ui.port={port}", "-Dspark.history.fs.update.interval=1s",
        f"-Dspark.hadoop.fs.s3a.buffer.dir={folder}/buffer", *more,
    ])  # fmt: skip
    variables = {**environment(cluster), "SPARK_DAEMON_CLASSPATH": f"{jars()}/*", "SPARK_HISTORY_OPTS": options}
    program = "org.apache.spark.deploy.history.HistoryServer"
    process = start(folder, "history", "127.0.0.1", program, memory="512m", **variables)

    def shown() -> dict[str, bool]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/applications", timeout=DEADLINE_S) as answer:
            return {found["id"]: found["attempts"][0]["completed"] for found in json.load(answer)}

    try:
        wait_for(folder, "history", "Bound HistoryServer")
        yield shown
    finally:
        end(process)


def until(condition: Callable[[], Any], what: str, log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}\n{log.read_text()[-3_000:]}"
        time.sleep(0.2)


def prepare(
    program: str, argument: str, cluster: ClusterSettings, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What the compose file and the chart run before Spark."""
    settings = {**os.environ, **environment(cluster), **variables}
    command = [sys.executable, str(IMAGES / program), argument]
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=False)


def make_folder(cluster: ClusterSettings, **variables: str) -> None:
    done = prepare("event_logs.py", f"{cluster.name}/spark-events", cluster, **variables)
    assert done.returncode == 0, done.stderr


def settings_of(cluster: ClusterSettings) -> dict[str, str]:
    """Those of a driver: with the compose file's, a JVM of its own that has the jars."""
    more = {"spark.driver.extraClassPath": f"{jars()}/*", "spark.ui.enabled": "false"}
    return {**driver_settings(cluster), **QUICK, **more}


def test_runs_are_shown_from_the_store_until_they_are_old(platform, tmp_path):
    """One at work with what is complete of it, then as over; a run of the command; then the cleaner takes them away."""
    cluster = platform.settings("logs")
    log, variables = tmp_path / "history.log", {**os.environ, **environment(cluster), "SPARK_LOCAL_DIRS": str(tmp_path)}
    make_folder(cluster)
    make_folder(cluster)
    with history_server(tmp_path, cluster) as shown:
        place = f"s3a://{cluster.store.bucket}/{cluster.name}"
        command = [sys.executable, "-c", DRIVER, json.dumps(settings_of(cluster)), place]
        with subprocess.Popen(
            command, cwd=tmp_path, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as driver:
            assert driver.stdin is not None
            assert driver.stdout is not None
            rows, one = driver.stdout.readline().split()
            assert rows == "1000"
            until(lambda: shown() == {one: False}, "the application at work is shown", log)
            driver.stdin.write("\n")
        assert driver.returncode == 0
        until(lambda: shown() == {one: True}, "it is shown as over", log)
        run(cluster, tmp_path, variables)
        until(lambda: len(shown()) == 2 and all(shown().values()), "the run of the command is shown", log)
    with history_server(
        tmp_path, cluster, "-Dspark.history.fs.cleaner.maxAge=1s", "-Dspark.history.fs.cleaner.interval=1s"
    ) as shown:
        until(lambda: shown() == {}, "the cleaner takes them away", log)
    assert objects(cluster) == [f"{cluster.name}/spark-events/"]


def test_a_store_by_https_with_the_settings_of_one_bucket(tmp_path):
    """As the chart sets them where pipelines have other stores: keys of variables, an authority that only the made trust
    store knows. Rows are written and renamed by the client's own HTTP, too."""
    from secured import SecuredMinio, make_certificates

    minio = SecuredMinio(tmp_path / "minio", make_certificates(tmp_path))
    asyncio.run(minio.start())
    try:
        cluster = ClusterSettings(name="tls", store=minio.settings)
        keys = {name: value for name, value in environment(cluster).items() if not name.startswith("AWS_")}
        variables = {**os.environ, **keys, "PENSTOCK_STORE_SSL_CAFILE": str(minio.certificates.authority)}
        variables["SPARK_LOCAL_DIRS"] = str(tmp_path)
        trusted = tmp_path / "authorities.jks"
        for _ in range(2):
            done = prepare("trust_store.py", str(trusted), cluster, **variables)
            assert done.returncode == 0, done.stderr
            make_folder(cluster, **variables)
        bucket = f"spark.hadoop.fs.s3a.bucket.{cluster.store.bucket}"
        own = {
            **settings_of(cluster), f"{bucket}.endpoint": cluster.store.endpoint, f"{bucket}.path.style.access": "true",
            f"{bucket}.endpoint.region": "us-east-1", f"{bucket}.access.key": "${env.PENSTOCK_STORE_ACCESS_KEY:-}",
            f"{bucket}.secret.key": "${env.PENSTOCK_STORE_SECRET_KEY:-}", "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:1",
        }  # fmt: skip
        own |= {"spark.executor.extraClassPath": f"{jars()}/*", "spark.executor.memory": "512m"}
        command = [sys.executable, "-c", DRIVER, json.dumps(own), f"s3a://{cluster.store.bucket}/tls"]
        command.append("local-cluster[1,2,512]")  # executors are JVMs of their own
        trusting = {**variables, "JDK_JAVA_OPTIONS": f"-Djavax.net.ssl.trustStore={trusted}"}
        done = subprocess.run(
            command, cwd=tmp_path, env=trusting, input="\n", capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr
        rows, application = done.stdout.split()
        assert rows == "1000"
        assert list((tmp_path / "s3a").iterdir()) == []
        logs = minio.data / "penstock" / "tls" / "spark-events" / f"eventlog_v2_{application}"
        assert (logs / f"appstatus_{application}").exists()
    finally:
        asyncio.run(minio.kill())


def test_a_trust_store_of_no_authority_is_refused(tmp_path):
    """Before anything of Spark starts."""
    done = prepare("trust_store.py", str(tmp_path / "authorities.jks"), ClusterSettings(name="tls"))
    assert done.returncode == 1
    assert "store.ssl_cafile is not set" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bucket_that_is_missing_is_named(platform):
    """With what makes it."""
    cluster = platform.settings("logs")
    variables = {"PENSTOCK_STORE_BUCKET": "no-such-bucket"}
    done = prepare("event_logs.py", "spark-events", cluster, **variables)
    assert done.returncode == 1
    assert "cannot make the folder spark-events in the bucket no-such-bucket" in done.stderr
    assert "doctor --create-bucket" in done.stderr
    assert "Traceback" not in done.stderr


def run(cluster: ClusterSettings, folder: Path, variables: dict[str, str]) -> None:
    """The command, as the pipeline service starts it."""
    command = [sys.executable, "-m", "penstock.cli.main", "run", str(CASES_FILE), "--engine", "spark"]
    command += ["--master", "local[2]", "--param", "case=stateless", "--param", f"out={folder}/out"]
    command += [part for name, value in settings_of(cluster).items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr


def objects(cluster: ClusterSettings) -> list[str]:
    """What there is of event logs."""
    from minio import Minio

    store = cluster.store
    client = Minio(
        store.endpoint.removeprefix("http://"), store.access_key, store.secret_key.reveal(), secure=False
    )  # fmt: skip
    found = client.list_objects(store.bucket, f"{cluster.name}/spark-events/", recursive=True)
    return [str(one.object_name) for one in found]


def test_no_event_log_needs_a_volume():
    """What the history server has is its own; drivers' folder has other things."""
    assert service("spark-history")["volumes"] == ["/scratch"]
    assert service("spark-events")["volumes"] == []


def test_the_jars_fit_pyspark():
    """Hadoop's client is that of PySpark's own jar, and nothing of it is there twice, in another version."""
    import pyspark

    theirs = {path.name for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    assert f"hadoop-client-api-{jars().name.removeprefix('s3a-')}.jar" in theirs
    name = lambda jar: jar.rpartition("-")[0]  # noqa: E731
    assert not {name(jar) for jar in theirs} & {name(path.name) for path in jars().glob("*.jar")}
    assert sum(path.stat().st_size for path in jars().glob("*.jar")) < 20_000_000
