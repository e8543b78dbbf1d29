"""Ports of the loopback interface that nobody uses."""

from __future__ import annotations

import random
import socket
from typing import Final

from penstock.platform.errors import PlatformError

HOST: Final = "127.0.0.1"

# Below the range from which systems take the ports of outgoing connections (Linux 32768, others 49152): a port chosen
# here is still free when a killed server comes back to it.
_RANGE: Final = range(15_000, 32_000)
_TRIES: Final = 200


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what waits from former connections is no obstacle
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(taken: set[int] | None = None) -> int:
    """A free port that is not in `taken`, and is added to it.

    Raises:
        PlatformError: none was found.
    """
    # The system's randomness: tests seed `random`, and two test processes with one seed would meet on one port.
    source = random.SystemRandom()
    for _ in range(_TRIES):
        port = source.choice(_RANGE)
        if (taken is None or port not in taken) and is_free(port):
            if taken is not None:
                taken.add(port)
            return port
    raise PlatformError(f"no free port found on {HOST} between {_RANGE.start} and {_RANGE.stop - 1}")
