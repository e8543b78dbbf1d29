"""Where on an object store something lies, the clients that reach it, and what goes wrong there as our errors."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.core.extras import install
from penstock.errors import ExternalError, PipelineError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

SCHEMES: Final = ("s3", "gs", "abfss")
_SAME: Final = {"s3a": "s3", "s3n": "s3"}
"""What Hadoop calls them."""
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]+)(?:/(.*))?", re.DOTALL)
_TIMEOUT: Final = timedelta(seconds=300)
_RETRIES: Final[RetryConfig] = {
    "max_retries": 1_000,  # the time counts: where nobody listens, ten are over in a second or two
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
_PREFIX: Final = re.compile("aws_|azure_|google_")
_ENDPOINT: Final = frozenset({"endpoint", "endpoint_url"})
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_AUTHORITIES_VARIABLE: Final = "AWS_CA_BUNDLE"
"""As AWS's own programs call it; there it replaces the public authorities, here it is beside them."""
_OF_THE_CLIENT: Final = frozenset({
    "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only", "pool_idle_timeout",
    "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url", "randomize_addresses",
    "read_timeout", "timeout", "user_agent",
})  # fmt: skip
"""Settings that are the same at all stores."""
_REFUSED: Final = re.compile(
    "PermissionDenied|Unauthenticated|SignatureDoesNotMatch|InvalidAccessKeyId|AccessDenied|40[13]"
)
"""How stores say that somebody may not."""
_REASON: Final = re.compile(r"<Code>(.*?)</Code><Message>(.*?)</Message>", re.DOTALL)

Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Location:
    """A place in a bucket, and how its store is reached."""

    root: str
    """Scheme and bucket: `s3://orders`."""
    key: str
    """Without slashes around it; empty: the whole bucket."""
    options: Options = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"

    def at(self, key: str) -> Location:
        """Another place in the bucket."""
        return Location(self.root, key.strip("/"), self.options)

    def below(self, name: str) -> Location:
        """What is called so in this folder."""
        return self.at(f"{self.key}/{name}")

    @property
    def store(self) -> ObjectStore:
        """The client, one for all of this process."""
        return _client(self.root, self.options)


def location(url: str, options: Mapping[str, str] | None, what: str) -> Location | None:
    """Where a URL points to; None if it is of no object store.

    Raises:
        PipelineError: it has no bucket, there are keys in it, or obstore is missing.
    """
    scheme = url.split(":", 1)[0].lower()
    scheme = _SAME.get(scheme, scheme)
    if scheme not in SCHEMES or ":" not in url:
        return None
    match = _URL.fullmatch(url)
    if match is None:
        raise PipelineError(f"{what}: {url!r} names no bucket; write {scheme}://bucket/folder")
    if "@" in match[2] and scheme != "abfss":
        raise PipelineError(
            f"{what}: {scheme}://...@{match[2].rpartition('@')[2]}: keys in a URL would be shown with it; give them in "
            "storage_options= or the environment"
        )
    try:
        import obstore  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise PipelineError(f"{what}: {url!r} lies on an object store, which needs {install('stores')}") from None
    return Location(f"{scheme}://{match[2]}", (match[3] or "").strip("/"), tuple(sorted((options or {}).items())))


@functools.lru_cache(maxsize=256)
def _client(root: str, options: Options) -> ObjectStore:
    from obstore.store import from_url

    config, client = _settings(root, options)
    try:
        if (authorities := config.pop("ssl_cafile", None)) is not None:
            client["root_certificate"] = Path(authorities).read_bytes()
        return from_url(root, config=config, client_options=client, retry_config=_RETRIES)
    except Exception as error:  # obstore has a class of its own per store and setting
        reason = _reason(error)
        for _, value in options:
            reason = reason.replace(f'"{value}"', "its value")
        names = f" ({', '.join(name for name, _ in options)})" if options else ""
        # Not chained: the message may show a secret that was given under the name of something else.
        raise PipelineError(f"{root}: storage_options={names} or the environment do not fit: {reason}") from None


def _settings(root: str, options: Options) -> tuple[Any, ClientConfig]:
    """What is said of the store, and of the client: Polars and Delta Lake take both together, too.

    Raises:
        PipelineError: a value at which the client would panic, or that it would show in messages.
    """
    config: Any = {}
    client: Any = {"connect_timeout": timedelta(seconds=5), "timeout": _TIMEOUT}
    for name, value in options:
        plain, bare = name.lower(), _PREFIX.sub("", name.lower(), count=1)
        if any(ord(character) < ord(" ") for character in value):
            raise PipelineError(
                f"{root}: {name}: its value has a control character, such as the end of a line of the file it is from"
            )
        if bare in _ENDPOINT:
            _check_endpoint(f"{root}: {name}", value)
        (client if bare in _OF_THE_CLIENT else config)[bare if bare in _OF_THE_CLIENT else plain] = value
    if root.startswith("s3://") and not any(_PREFIX.sub("", name) in _ENDPOINT for name in config):
        named = next((name for name in _ENDPOINT_VARIABLES if os.environ.get(name)), None)
        if named is not None:
            _check_endpoint(f"{root}: {named}", os.environ[named])
            config["endpoint"] = os.environ[named]
    if root.startswith("s3://") and os.environ.get(_AUTHORITIES_VARIABLE):
        config.setdefault("ssl_cafile", os.environ[_AUTHORITIES_VARIABLE])
    endpoint = next((value for name, value in config.items() if _PREFIX.sub("", name) in _ENDPOINT), "")
    client.setdefault("allow_http", endpoint.lower().startswith("http://"))
    return config, client


def _check_endpoint(what: str, value: str) -> None:
    if not value.lower().startswith(("http://", "https://")):
        raise PipelineError(f"{what}: write http:// or https:// before the address")
    if "@" in value:
        raise PipelineError(f"{what}: keys in a URL would be shown with it; write them as access_key_id and so on")


@contextmanager
def asking(what: str, place: Location) -> Generator[None]:
    """Foreign errors as ours; `FileNotFoundError` passes where the bucket is there."""
    from obstore.exceptions import BaseError, PreconditionError

    try:
        yield
    except PreconditionError as error:
        raise ExternalError(f"{place} was replaced while it was read; start again with what is there now") from error
    except (BaseError, OSError, ValueError) as error:
        if "NoSuchBucket" in str(error):
            advice = f"there is no bucket {place.root}; create it, or correct the URL"
            raise PipelineError(f"cannot {what} {place}: {advice}") from error
        if isinstance(error, FileNotFoundError):
            raise
        refused = _REFUSED.search(f"{type(error).__name__} {error}")
        advice = (
            "; check the credentials in storage_options= or the environment, and what they may do" if refused else ""
        )
        raise ExternalError(f"cannot {what} {place}: {_reason(error)}{advice}") from error
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        # A panic of the client, which is written in Rust, is no `Exception`: it would end more than the job.
        raise ExternalError(f"cannot {what} {place}: its client failed: {error}") from error


def _reason(error: Exception) -> str:
    """The store's own words if it answered, else the first line of the client's."""
    text = str(error)
    answered = _REASON.search(text)
    return f"{answered[2]} ({answered[1]})" if answered else text.splitlines()[0] if text else type(error).__name__
