"""A schema registry that speaks Confluent's REST interface, and the wire format of the records whose schemas it keeps.

A record begins with a zero byte and the id of its schema (4 bytes, big-endian). The subject of a topic's values is
`<topic>-value`. Source: Confluent's "Schema Registry API Reference" and "Wire format". All of it blocks.
"""

from __future__ import annotations

import base64
import json
import struct
import time
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ExternalError, PipelineError

if TYPE_CHECKING:
    import httpx2

MAGIC: Final = 0
PREFIX: Final = struct.Struct(">bI")
PATIENCE_S: Final = 20.0
"""How long a registry that is away is asked again, as long as Kafka is where an attempt begins."""
_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.5
_pause = time.sleep
_CONTENT: Final = "application/vnd.schemaregistry.v1+json"
_DENIED, _NOT_FOUND, _INCOMPATIBLE, _TOO_MANY, _SERVERS_FAULT = (401, 403), 404, 409, 429, 500


def shown(address: str) -> str:
    """The address without the user and the password in it."""
    parts = urllib.parse.urlsplit(address)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")


def check_address(what: str, address: str) -> None:
    """Raise `PipelineError` unless it is one."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PipelineError(f"{what}: registry= is an address such as https://user:password@host:8081")


def subject_of(topic: str) -> str:
    """The subject of a topic's values."""
    return f"{topic}-value"


def prefix_of(number: int) -> bytes:
    """What stands before a datum of this schema."""
    return PREFIX.pack(MAGIC, number)


class UnknownSchemaError(ValueError):
    """The registry has no such schema."""


class SchemaRegistry:
    """A client of one registry. The user and the password in the address go into a header, and into no error."""

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        self._address = shown(address)
        self._headers = {"Content-Type": _CONTENT, "Accept": f"{_CONTENT}, application/json"}
        if parts.username is not None:
            login = ":".join(urllib.parse.unquote(part) for part in (parts.username, parts.password or ""))
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"

    def schema(self, number: int) -> Any:
        """The schema with this id.

        Raises:
            UnknownSchemaError: there is none.
            ExternalError: no answer.
            PipelineError: the registry lets this user not read it.
        """
        try:
            return json.loads(self._ask(f"/schemas/ids/{number}")["schema"])
        except _RefusedError as error:
            if error.code == _NOT_FOUND:
                raise UnknownSchemaError(f"the schema registry knows no schema {number}") from error
            raise self._refused(f"schema {number}", error) from error

    def register(self, subject: str, schema: Any) -> int:
        """The id of the schema in the subject, to which it is added if it is not there.

        Raises:
            ExternalError: no answer.
            PipelineError: the schema does not fit the subject's older ones, or the user may not register it.
        """
        try:
            return self._ask(f"/subjects/{_quoted(subject)}/versions", schema)["id"]
        except _RefusedError as error:
            raise self._refused(f"registering the schema of subject {subject!r}", error) from error

    def registered(self, subject: str, schema: Any) -> int:
        """The id of a schema that somebody has registered.

        Raises:
            ExternalError: no answer.
            PipelineError: it is not there, or the user may not look.
        """
        try:
            return self._ask(f"/subjects/{_quoted(subject)}", schema)["id"]
        except _RefusedError as error:
            if error.code != _NOT_FOUND:
                raise self._refused(f"looking for the schema of subject {subject!r}", error) from error
            raise PipelineError(
                f"schema registry at {self._address}: subject {subject!r} has no such schema ({error}); register it, or "
                f"leave register_schema=False out: {json.dumps(schema)}"
            ) from error

    def _refused(self, what: str, error: _RefusedError) -> PipelineError:
        if error.code in _DENIED:
            advice = "check the user and the password in registry=, and what that user may do"
        elif error.code == _INCOMPATIBLE:
            advice = "the stream's columns and types do not fit the topic's older records; change them, or the topic"
        else:
            advice = "check the address in registry="
        return PipelineError(f"schema registry at {self._address}: {what}: {error}; {advice}")

    def _ask(self, path: str, schema: Any = None) -> Any:
        """The answer; asked again for a while where there is none."""
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._ask_once(path, schema)
            except ExternalError:
                if time.monotonic() + _PAUSE_S > give_up_s:
                    raise
            _pause(_PAUSE_S)

    def _ask_once(self, path: str, schema: Any) -> Any:
        import httpx2  # a pipeline file that names no registry need not load it

        address = f"{self._address}{path}"
        method, body = ("GET", None) if schema is None else ("POST", {"schema": json.dumps(schema)})
        try:
            answer = httpx2.request(
                method, address, json=body, headers=self._headers, timeout=_TIMEOUT_S, follow_redirects=True
            )
            if answer.is_success:
                return answer.json()
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            what = str(error) or type(error).__name__
            raise ExternalError(f"schema registry: {address}: {what}; check that it runs, and registry=") from error
        code, reason = answer.status_code, _reason(answer)
        if code >= _SERVERS_FAULT or code == _TOO_MANY:
            raise ExternalError(f"schema registry: {address}: {reason}; check that it runs")
        raise _RefusedError(code, reason)


class _RefusedError(Exception):
    """The registry says no."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def _reason(answer: httpx2.Response) -> str:
    """Its own words, if it has any."""
    try:
        return f"{answer.json()['message']} ({answer.status_code})"
    except (ValueError, KeyError, TypeError):
        return f"{answer.reason_phrase} ({answer.status_code})"


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")
