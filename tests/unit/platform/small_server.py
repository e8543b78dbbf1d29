"""A server that takes no time to start: listens, and says so; how it behaves is on its command line."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.platform.server import Recorder, Server, accepts, no_recorder

CODE = """
import signal, socket, sys, time
port, behaviour = int(sys.argv[1]), sys.argv[2]
if behaviour == "has a child":
    import subprocess
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
if behaviour == "ends":
    print("no disk left"); sys.exit(3)
if behaviour == "hangs":
    time.sleep(60)
listening = socket.create_server(("127.0.0.1", port))
count = open("data/starts", "a"); count.write("x"); count.close()
print("listening", flush=True)
while True:
    connection, _ = listening.accept()
    if behaviour == "serves":
        try:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
        except ConnectionError:
            pass
    connection.close()
"""


class SmallServer(Server):
    """See the module."""

    def __init__(
        self, folder: Path, port: int, behaviour: str = "serves", record: Recorder = no_recorder, mark: str = ""
    ) -> None:
        super().__init__("small", folder, port, record=record, mark=mark)
        self.behaviour = behaviour

    async def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        return [sys.executable, "-c", CODE, str(self.port), self.behaviour]

    async def is_ready(self) -> bool:
        return "listening" in self.new_log() and accepts(self.port)
