"""An OpenSearch for tests, of jars from a Maven repository: one node without plugins but its transport, on free ports.

Its distribution is 800 MB; these jars are 43 MB, fetched once into the cache. It ends with the process that started it,
even when that is killed.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.lanes import demand_servers
from tests.pinned_jars import fetched
from tests.services import wait_for

from penstock.platform.free_ports import HOST, free_port

_JARS: Final = Path(__file__).parent / "opensearch_jars"
_PROGRAM: Final = """
import java.util.List;
import java.util.Map;
import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

public class Server extends Node {
    Server(Settings settings) {
        super(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "node"),
            List.of(Netty4Plugin.class), false);
    }
    public static void main(String[] arguments) throws Exception {
        Settings.Builder settings = Settings.builder();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        new Server(settings.build()).start();
        Thread.currentThread().join();
    }
}
"""


class OpenSearchServer:
    """A server of one test run, which may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._home = folder
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self._transport = free_port(), free_port()
        (folder / "Server.java").write_text(_PROGRAM)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Until it answers."""
        settings = {
            "path.home": self._home, "path.data": self._home / "data", "path.logs": self._home / "logs",
            "cluster.name": "tests", "node.name": "node", "discovery.type": "single-node", "network.host": HOST,
            "http.port": self.port, "transport.port": self._transport, "transport.type": "netty4", "http.type": "netty4",
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }  # fmt: skip
        jars = fetched("opensearch", _JARS / "pom.xml", _JARS / "jars.sha256", "opensearch")
        command = [
            "setpriv", "--pdeathsig", "KILL", "java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{jars}/*",
            str(self._home / "Server.java"), *(f"{name}={value}" for name, value in settings.items()),
        ]  # fmt: skip
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._home)
        wait_for(self._answers, lambda: f"OpenSearch answers: {self._log.read_text()[-2_000:]}", 120)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2_000:]
        try:
            return self.ask("GET", "/_cluster/health?wait_for_status=yellow&timeout=5s")["status"] != "red"
        except OSError:
            return False

    def signal(self, number: signal.Signals) -> None:
        """Stop it, let it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """At once, as by a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A request as users make it; the answer's JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """What an index (or several, `logs-*`) has, by id."""
        try:
            self.ask("POST", f"/{index}/_refresh")
            found = self.ask("POST", f"/{index}/_search", {"size": 10_000, "sort": ["_doc"], "version": True})
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return {}
            raise
        return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}


@contextmanager
def running_opensearch() -> Generator[OpenSearchServer]:
    """A server of its own."""
    demand_servers("OpenSearch")
    folder = Path(tempfile.mkdtemp(prefix="penstock-opensearch-"))
    server = OpenSearchServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)
