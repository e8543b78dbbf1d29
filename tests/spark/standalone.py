"""A real cluster on loopback: a master and two workers of Spark's own, executors that are other processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spark_runs import QUICK

from penstock.platform.free_ports import free_port

HOSTS = {"one": "127.0.0.1", "two": "127.0.0.2"}
"""Spark runs no second attempt at a task on the host of the first: the workers have hosts of their own."""
DEADLINE_S = 150


def start(
    folder: Path, name: str, host: str, *arguments: str, memory: str = "256m", **variables: str
) -> subprocess.Popen[bytes]:
    """A part of Spark, whose log is `<name>.log`."""
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": QUICK["spark.driver.extraJavaOptions"],
        "SPARK_WORKER_DIR": str(folder / name),
        "PYSPARK_PYTHON": sys.executable,
        **variables,
    }
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen([str(program), *arguments], env=environment, stdout=log, stderr=subprocess.STDOUT)


def wait_for(folder: Path, name: str, text: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    log = folder / f"{name}.log"
    while not re.search(text, log.read_text()):
        assert time.monotonic() < deadline, f"{name} does not say {text!r}: {log.read_text()[-2_000:]}"
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def cluster(folder: Path) -> Generator[str]:
    """The address of the master, when both workers are registered; logs and the work of executors stand in `folder`."""
    taken: set[int] = set()
    port, *ui = [free_port(taken) for _ in range(4)]
    with ExitStack() as stack:
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        stack.callback(end, start(folder, "master", "127.0.0.1", *master, "--webui-port", str(ui[0])))
        wait_for(folder, "master", "New state: ALIVE")
        for (name, host), ui_port in zip(HOSTS.items(), ui[1:], strict=True):
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", str(ui_port)]
            options = ["--cores", "1", "--memory", "600m", f"spark://127.0.0.1:{port}"]
            stack.callback(end, start(folder, name, host, *worker, *options))
        for name in HOSTS:
            wait_for(folder, name, "Successfully registered")
        yield f"spark://127.0.0.1:{port}"


@contextmanager
def connect_server(folder: Path) -> Generator[str]:
    """The address of a Spark Connect server, when it answers."""
    port = free_port()
    conf = {**QUICK, "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    given = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    submit = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2,4]", *given]
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with ExitStack() as stack:
        stack.callback(end, start(folder, "connect", "127.0.0.1", *submit, *server, memory="600m"))
        wait_for(folder, "connect", "Spark Connect server started")
        yield f"sc://127.0.0.1:{port}"


def penstock_run(master: str, file: Path, parameters: Mapping[str, str], conf: Mapping[str, str]) -> list[str]:
    """The command that runs a pipeline there, with small executors that start quickly."""
    quick = {**QUICK, "spark.executor.extraJavaOptions": QUICK["spark.driver.extraJavaOptions"]}
    own = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    command = [sys.executable, "-m", "penstock.cli.main", "run", str(file), "--engine", "spark", "--master", master]
    command += ["--parallelism", "2"]
    command += [part for name, value in {**quick, **own, **conf}.items() for part in ("--conf", f"{name}={value}")]
    return command + [part for name, value in parameters.items() for part in ("--param", f"{name}={value}")]
