"""A Spark session for a run: made with what the engine needs, or a clear word on what is missing."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import urllib.parse
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.core.extras import install
from penstock.errors import ExternalError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"
PLANNED_PARALLELISM: Final = 2
"""The least default, where no session says how many tasks run at a time."""
_MAX_DEFAULT_PARALLELISM: Final = 240
"""No more subtasks than key groups, unless the user says otherwise for both."""

_CONNECT_PORT: Final = 15_002
"""Of a Spark Connect server whose address names none."""
_CONNECT_S: Final = 10.0
_END_S: Final = 10.0

TUNING: Final[Mapping[str, str]] = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # Wide rows: a task holds a few batches at a time, of whatever size they are.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    "spark.sql.session.timeZone": "UTC",
    # A sum of integers may leave their range on its way and come back; one that stays outside fails when it is done.
    "spark.sql.ansi.enabled": "false",
    # The number of partitions of an exchange is the number of subtasks: there is nothing to adapt.
    "spark.sql.adaptive.enabled": "false",
}
"""What a session of a run's own has unless its settings say otherwise. No result depends on it; a session that the user
brings keeps its own."""
_LOCAL_SETTINGS: Final[dict[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_LOG_SETTINGS: Final = Path(__file__).resolve().with_name("log4j2.properties")
_START_SETTINGS: Final[dict[str, str]] = {
    "spark.ui.showConsoleProgress": "false",
    # Else every column that is named asks Spark's JVM several times where in the code it was: no line of it is a user's.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
}


@dataclass(frozen=True)
class SparkSettings:
    """Where Spark is and how it is set up."""

    master: str | None = None
    """`local[*]`, `spark://host:port`, `k8s://...`; `local[*]` if neither this nor `remote` is given."""
    remote: str | None = None
    """`sc://host:port` of a Spark Connect server."""
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    staging: str | None = None
    """URL on an object store, or folder that all machines share, where tasks stage rows of exactly-once sinks for the
    driver to publish; in the folder of the runs if None, which executors must share then."""


def parse_conf(given: list[str]) -> dict[str, str]:
    """`["spark.executor.memory=2g"]` as a mapping.

    Raises:
        UsageError: one has no `=`.
    """
    conf: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--conf {text}: write --conf spark.name=value")
        conf[name] = value
    return conf


def open_session(name: str, settings: SparkSettings) -> SparkSession:
    """A session for a pipeline; the caller stops it.

    Raises:
        UsageError: PySpark or Java is missing, `master` and `remote` are both given, or `remote` is no such address.
        ExternalError: Spark does not start, or nobody answers at `remote`.
    """
    if settings.master and settings.remote:
        raise UsageError("--master starts Spark for this run, --remote uses a Spark Connect server: give one of them")
    check_installed(java=settings.remote is None)
    if settings.remote:
        _check_answers(settings.remote)
    # The workers must be this Python, where the pipeline's modules and Penstock itself are installed, unless told else.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(settings.master or DEFAULT_MASTER):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # the UI included: nothing of a local run is for others
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if settings.remote:
        builder = builder.remote(settings.remote)
    elif settings.master or not _is_submitted():
        master = settings.master or DEFAULT_MASTER
        builder = builder.master(master).appName(f"penstock {name}")
        for key, value in start_settings(master).items():
            builder = builder.config(key, value)
    for key, value in settings.conf.items():
        builder = builder.config(key, value)
    where = settings.remote or settings.master or DEFAULT_MASTER
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PySpark's imports warn of the packages they look for
            session = builder.getOrCreate()
    except ImportError as error:
        raise UsageError(f"{where} needs a package that is missing: {error}; {install('connect')}") from error
    except Exception as error:  # whatever the gateway to the JVM raises: there is no common class
        raise ExternalError(f"Spark at {where} cannot be reached or does not start: {_first_line(error)}") from error
    _tune(session, settings.conf)
    return session


def active_session() -> SparkSession | None:
    """The one that this process has already, if any."""
    check_installed(java=False)
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _is_submitted() -> bool:
    """Whether `spark-submit` started this process, and said which master it is."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _tune(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Set what makes runs faster, and has been set by nobody."""
    said = set(conf) if is_remote(session) else {*conf, *(name for name, _ in session.sparkContext.getConf().getAll())}
    for name, value in TUNING.items():
        if name not in said:
            session.conf.set(name, value)


def _check_answers(remote: str) -> None:
    """Spark's own client tries for many minutes without a word."""
    wrong = UsageError(f"--remote {remote}: write sc://host:port, the address of a Spark Connect server")
    try:
        address = urllib.parse.urlsplit(remote)
        host, port = address.hostname, address.port or _CONNECT_PORT
    except ValueError as error:
        raise wrong from error
    if address.scheme != "sc" or host is None:
        raise wrong
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        raise ExternalError(f"no Spark Connect server answers at {host}:{port}: {error}") from error


def is_local(master: str) -> bool:
    """Whether Spark then runs in one process of this machine."""
    return master.startswith("local")


def start_settings(master: str) -> dict[str, str]:
    """What Spark must be told when its JVM is started."""
    return {**_START_SETTINGS, **(_LOCAL_SETTINGS if is_local(master) else {})}


def check_installed(*, java: bool) -> None:
    """Raise `UsageError` naming what Spark needs and is not here."""
    missing = [name for name in ("pyspark", "pandas", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"--engine spark needs {', '.join(missing)}: {install('spark')}")
    home = os.environ.get("JAVA_HOME")
    if java and shutil.which("java") is None and not (home and shutil.which("java", path=os.path.join(home, "bin"))):
        raise UsageError(
            "--engine spark starts a JVM and finds no java: install Java 17 or newer, or set JAVA_HOME, or use a Spark "
            "Connect server with --remote sc://host:port"
        )


def check_workers(session: SparkSession) -> None:
    """Raise `UsageError` if the Python of a local session's workers is one that has no Penstock."""
    if is_remote(session) or not is_local(str(session.sparkContext.master)):
        return
    chosen = str(session.sparkContext.pythonExec)
    found = shutil.which(chosen)
    if found == sys.executable:
        return
    tried = subprocess.run([chosen, "-c", "import penstock"], capture_output=True, check=False) if found else None
    if tried is None or tried.returncode != 0:
        raise UsageError(
            f"the workers of this session run {found or chosen}, where Penstock is not installed; say which Python they "
            "run before the session is made: os.environ['PYSPARK_PYTHON'] = sys.executable"
        )


def default_parallelism(session: SparkSession) -> int:
    """How many subtasks an operator has by default: as many as Spark runs at a time, at least 2.

    Raises:
        ExternalError: Spark does not answer.
    """
    if is_remote(session):
        return PLANNED_PARALLELISM  # a Connect server does not say how many cores it has
    try:
        cores = session.sparkContext.defaultParallelism
    except Exception as error:  # where the JVM is gone: one of py4j, of Python, or of the system
        raise ExternalError(f"Spark does not answer (any more): {_first_line(error)}; open a new session") from error
    return min(_MAX_DEFAULT_PARALLELISM, max(PLANNED_PARALLELISM, cores))


def ui_address(session: SparkSession) -> str | None:
    """Where the Spark UI is, if there is one to be known."""
    return None if is_remote(session) else session.sparkContext.uiWebUrl


def is_remote(session: SparkSession) -> bool:
    """Whether it is a session of Spark Connect, which has no Spark context."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def end_session(session: SparkSession | None) -> None:
    """End a session which may be broken, or None: what an attempt to open one has left. With the JVM, if this process has
    started it: PySpark would keep one that died, or a context that lost its cluster, for every later session."""
    if session is not None:
        with contextlib.suppress(Exception):  # whatever a JVM that died makes of it
            session.stop()
    if session is None or not is_remote(session):
        _end_jvm()


def _end_jvm() -> None:
    if importlib.util.find_spec("py4j") is None:
        return  # an installation for Spark Connect alone
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context, sessions = cast("Any", SparkContext), cast("Any", SparkSession)
    process = getattr(context._gateway, "proc", None)
    if process is None:
        return  # there is none, or it is spark-submit's, which has started this process
    with contextlib.suppress(Exception):
        context._gateway.shutdown()
    process.terminate()  # its shutdown hooks remove what Spark keeps on disk
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    context._gateway = context._jvm = context._active_spark_context = None
    sessions._instantiatedSession = sessions._activeSession = None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
