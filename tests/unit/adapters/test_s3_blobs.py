"""What the adapter of S3 makes of answers that a healthy store never gives: a server that answers as it is told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from obstore.store import S3Store

from penstock.adapters import s3_blobs
from penstock.adapters.s3_blobs import ObjectBlobs, S3Blobs
from penstock.errors import ExternalError
from penstock.ports import BlobExistsError, BlobNotFoundError
from penstock.settings import Secret, StoreSettings

Answer = tuple[int, str]
_EMPTY_LIST = b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>"


@dataclass
class Store:
    """Answers every request by `answer(method, path)`: a status and a code of S3."""

    answer: Callable[[str, str], Answer]
    port: int = 0
    asked: list[str] = field(default_factory=list[str])
    connections: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, path = head.decode().split()[:2]
                for line in head.decode().lower().splitlines():
                    if line.startswith("content-length:"):
                        await reader.readexactly(int(line.split(":")[1]))
                self.asked.append(method)
                status, code = self.answer(method, path)
                body = f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode() if code else _EMPTY_LIST
                if method == "HEAD":
                    body = b""
                more = "ETag: x\r\nLast-Modified: Fri, 20 Nov 2026 10:00:00 GMT\r\n"
                writer.write(f"HTTP/1.1 {status} -\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async def close(self) -> None:
        for writer in self.connections:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def blobs(self) -> S3Blobs:
        """The adapter on this store."""
        secret = Secret("pa55word")
        return S3Blobs(StoreSettings(f"http://127.0.0.1:{self.port}", "b", "r", "user", secret), "c")


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """A store; the test sets its answers."""
    made = Store(lambda _, __: (200, ""))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()
    await made.close()


async def test_conflict_without_an_object_is_unknown(store: Store) -> None:
    """A 409 of a conditional create, with no object to be seen, never poses as an object that exists."""

    def answer(method: str, path: str) -> Answer:
        if method == "PUT":
            return 409, "ConditionalRequestConflict"
        return (404, "") if method == "HEAD" else (200, "")

    store.answer = answer
    with pytest.raises(ExternalError, match="may or may not") as caught:
        await store.blobs().create("k", b"1")
    assert not isinstance(caught.value, BlobExistsError)
    assert store.asked.count("PUT") > 1


async def test_conflict_that_passes_is_no_error(store: Store) -> None:
    """A create that met a conflict first and no object is tried again."""

    def answer(method: str, path: str) -> Answer:
        if method == "PUT" and store.asked.count("PUT") == 1:
            return 409, "ConditionalRequestConflict"
        return (404, "") if method == "HEAD" else (200, "")

    store.answer = answer
    await store.blobs().create("k", b"1")


async def test_conflict_with_an_object_means_it_exists(store: Store) -> None:
    """Where the object can be seen, the create reports it."""
    store.answer = lambda method, _: (412, "PreconditionFailed") if method == "PUT" else (200, "")
    with pytest.raises(BlobExistsError, match="object c/k"):
        await store.blobs().create("k", b"1")


async def test_missing_bucket_is_not_a_missing_object(store: Store) -> None:
    """A bucket that is not there is a fault of the store, for every operation, not an empty store."""
    store.answer = lambda _, __: (404, "NoSuchBucket")
    blobs = store.blobs()
    for operation in (
        blobs.get("k"),
        blobs.get("k", 1, 2),
        blobs.put("k", b""),
        blobs.create("k", b""),
        blobs.list(""),
        blobs.delete("k"),
    ):
        with pytest.raises(ExternalError, match="create the bucket") as caught:
            await operation
        assert not isinstance(caught.value, BlobNotFoundError)


async def test_refused_login_names_the_settings(store: Store) -> None:
    """A wrong key is named by its setting, and the secret is not in the message."""
    store.answer = lambda _, __: (403, "SignatureDoesNotMatch")
    with pytest.raises(ExternalError, match=r"SignatureDoesNotMatch.*store\.secret_key") as caught:
        await store.blobs().put("k", b"1")
    assert "pa55word" not in str(caught.value) + repr(caught.value.__cause__)


async def test_a_failing_store_is_unknown_within_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that only says 503 is repeated a while, then the outcome is unknown."""
    monkeypatch.setattr(s3_blobs, "TIMEOUT_S", 0.5)
    store.answer = lambda _, __: (503, "SlowDown")
    for operation in (store.blobs().create("k", b"1"), store.blobs().delete("k")):
        with pytest.raises(ExternalError, match=r"may or may not.*store\.endpoint"):
            await asyncio.wait_for(operation, 30)
    assert len(store.asked) > 2


async def test_without_keys_it_says_that_there_are_none(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client then asks the machine, which is no machine of AWS; what it was told there helps nobody."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    store.answer = lambda _method, _path: (403, "")
    here = f"http://127.0.0.1:{store.port}"
    client = S3Store("b", endpoint=here, region="r", metadata_endpoint=here, client_options={"allow_http": True})
    with pytest.raises(
        ExternalError, match=r"object k \(there\): there are no keys, .*; set the settings store.access_key"
    ):
        await ObjectBlobs(client, "", "there").get("k")
    assert store.asked == ["PUT"]
