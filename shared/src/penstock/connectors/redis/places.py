"""A Redis that a connector talks to: its address, its client, and what its errors mean."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Final

from penstock.errors import ExternalError, PipelineError
from penstock.settings import Secret, shown_address

if TYPE_CHECKING:
    from redis.asyncio import Redis

CALL_TIMEOUT_S: Final = 60.0
_PASSING: Final = ("BUSY ", "MISCONF", "NOREPLICAS")
"""How answers begin that are other ones after a while, and that the client has no class for."""
_PASSING_IN_SCRIPTS: Final = ("maxmemory", "read only replica")
"""What older servers say within a script."""


class RedisPlace:
    """A database of a Redis.

    Args:
        what: the connector, which leads errors.
        url: `redis://user:password@host:6379/0`, or `rediss://`.

    Raises:
        PipelineError: it is no such address.
    """

    def __init__(self, what: str, url: str | Secret) -> None:
        self.url: Final = url if isinstance(url, Secret) else Secret(url)
        scheme, shown = self.url.reveal().partition("://")[0], shown_address(self.url.reveal())
        if scheme not in ("redis", "rediss") or not shown:
            raise PipelineError(
                f"{what}: url= is an address such as redis://host:6379/0; percent-encode what is no letter or digit in "
                "user and password"
            )
        self.address: Final = f"{scheme}://{shown}"

    def client(self) -> Redis:
        """A client that tries nothing again by itself, and waits as long as it is let: see `within`.

        It has no timeout of its own, because it would wait by `asyncio.wait_for`, which in Python 3.11 may lose the
        cancellation of a task.
        """
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        return Redis.from_url(
            self.url.reveal(), retry=Retry(NoBackoff(), 0), socket_timeout=None, socket_connect_timeout=None
        )

    @contextlib.asynccontextmanager
    async def within(self, where: str, hint: str) -> AsyncGenerator[None]:
        """Calls that together take at most `CALL_TIMEOUT_S`; errors are those of `errors`."""
        with self.errors(where, hint):
            async with asyncio.timeout(CALL_TIMEOUT_S):
                yield

    @contextlib.contextmanager
    def errors(self, where: str, hint: str) -> Generator[None]:
        """What the client raises as an error of ours, behind `where`; `hint`: what to look at if Redis refuses."""
        from redis.exceptions import (
            AskError,
            AuthenticationError,
            ClusterDownError,
            NoPermissionError,
            OutOfMemoryError,
            ReadOnlyError,
            RedisError,
            ResponseError,
            TryAgainError,
        )

        try:
            yield
        except (AuthenticationError, NoPermissionError) as error:
            raise PipelineError(
                f"{where}it refuses the login or the command ({error}); check user and password in url="
            ) from error
        except (ClusterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError) as error:
            raise ExternalError(f"{where}{error}") from error
        except AskError as error:  # also MovedError; what the client makes of either does not say what it was
            raise PipelineError(
                f"{where}it is a Redis Cluster, and a key is on another node ({error.host}:{error.port}); url= has to "
                "lead to a Redis of one node (with replicas as you like), or to a proxy of the cluster"
            ) from error
        except ResponseError as error:
            said = str(error)
            if said.startswith(_PASSING) or any(text in said for text in _PASSING_IN_SCRIPTS):
                raise ExternalError(f"{where}{said}") from error
            raise PipelineError(f"{where}{said}; {hint}") from error
        except (RedisError, OSError) as error:
            raise ExternalError(f"{where}{str(error) or type(error).__name__}; check that it runs, and url=") from error
