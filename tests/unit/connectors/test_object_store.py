"""Files on object stores: read by ranges, staged and copied, the same rows as on a disk. The store here is a folder."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import json
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import obstore
import polars as pl
import pytest
from obstore.store import LocalStore

from penstock import Pipeline, col
from penstock.connectors import files
from penstock.connectors.base import LostPartError
from penstock.connectors.files import object_store, store_clients
from penstock.errors import ExternalError, PipelineError, UsageError
from penstock.submission.cluster_checks import check_fit
from penstock.types import DATE, INT64, STRING, Field, Schema

SCHEMA = Schema((Field("i", INT64), Field("s", STRING, nullable=True), Field("day", DATE)))
FORMATS = ("jsonl", "csv", "parquet", "arrow")
DAY = date(2026, 11, 21)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that `s3://orders` is; nothing else is reached."""
    folder = tmp_path / "bucket"
    store = LocalStore(folder, mkdir=True)
    monkeypatch.setattr(store_clients, "_client", lambda root, options: {"s3://orders": store}[root])
    return folder


def frame(*numbers: int) -> pl.DataFrame:
    """Rows of SCHEMA."""
    texts = [None if n % 3 == 0 else f"é{n}\n" for n in numbers]
    return pl.DataFrame({"i": numbers, "s": texts, "day": [DAY] * len(numbers)}, schema=SCHEMA.polars())


def names(folder: Path) -> list[str]:
    """All files below, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def written(sink: files.Sink, context: Any, *numbers: int) -> tuple[Any, Any]:
    """A writer, and the committable of one durable part."""
    writer = sink.open(SCHEMA, context)
    writer.write(frame(*numbers))
    prepared = writer.prepare(1)
    assert prepared.persist is not None
    prepared.persist()
    [committable] = prepared.committables
    return writer, committable


@pytest.mark.parametrize("format", FORMATS)
async def test_what_is_written_is_read(
    format: Any, bucket: Path, write_context: Callable[..., Any], read_split: Callable[..., Any]
) -> None:
    """Whole, and in pieces that are each read by a new reader from the position of the one before."""
    sink = files.Sink("s3://orders/out", format=format)
    writer, committable = written(sink, write_context(), *range(50))
    assert names(bucket) == [f"out/.staging/{committable['staged']}"]
    writer.commit(committable)
    writer.commit(committable)
    assert names(bucket) == [f"out/.staging/{committable['proof']}", f"out/{committable['visible']}"]
    for url in (
        "s3://orders/out",
        "s3a://orders/out/",
        "s3://orders/*/part-*",
        f"s3://orders/out/{committable['visible']}",
    ):
        source = files.Source(url, schema=SCHEMA)
        [split] = source.discover()
        assert split.size_bytes
        assert (await read_split(source, split.id)).rows == frame(*range(50)).to_dicts()
    pieces = await read_split(source, pieces=[1, 7, 3, 20], reopen=True)
    assert pieces.rows == frame(*range(50)).to_dicts()


async def test_compressed_text(bucket: Path, read_split: Callable[..., Any]) -> None:
    """From the beginning, and from a position."""
    rows = [{"i": n, "s": None, "day": "2026-11-21"} for n in range(1_000)]
    bucket.joinpath("a.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    found = await read_split(files.Source("s3://orders/a.jsonl.gz", schema=SCHEMA), pieces=[300], reopen=True)
    assert [row["i"] for row in found.rows] == list(range(1_000))


@pytest.mark.parametrize("where", ["*.jsonl", "**/*.jsonl", "a/*/c?.jsonl", "a/**/c1.jsonl", "[ab]/*", "a", ""])
def test_patterns_are_those_of_folders(where: str, bucket: Path) -> None:
    """The same names as of a source of local files, hidden ones left out."""
    for name in ("r.jsonl", "a/x.jsonl", "a/b/c1.jsonl", "a/b/c2.jsonl", "a/b/c/c1.jsonl", "b/y.jsonl", "ab/z.jsonl"):
        (bucket / name).parent.mkdir(parents=True, exist_ok=True)
        (bucket / name).write_text("{}")
    (bucket / "a/.staging").mkdir()
    (bucket / "a/.staging/c1.jsonl").write_text("{}")
    local = files.Source(bucket / where, schema=SCHEMA).discover()
    assert files.Source(f"s3://orders/{where}", schema=SCHEMA).discover() == local


async def test_an_object_that_is_replaced_is_not_read_on(bucket: Path, read_split: Callable[..., Any]) -> None:
    """Neither by the reader that had begun, nor from a position of before."""
    line = json.dumps({"i": 1, "s": None, "day": "2026-11-21"}) + "\n"
    path = bucket / "a.jsonl"
    path.write_text(line * 3)
    source = files.Source("s3://orders/a.jsonl", schema=SCHEMA)
    position = (await read_split(source, pieces=[1])).positions[0]
    reader = object_store.StoredFile(store_clients.Location("s3://orders", "a.jsonl"))
    assert reader.read(0, 5) == line[:5].encode()
    path.write_text(line * 4)
    with pytest.raises(ExternalError, match="was replaced while it was read"):
        reader.read(5, 5)
    with pytest.raises(PipelineError, match="is not the file that was read up to byte"):
        await read_split(source, position=position)


@pytest.mark.parametrize("dies_after", range(4))
def test_a_commit_that_dies_anywhere_is_repeated(
    dies_after: int, bucket: Path, write_context: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of copy, proof and deletion was done; and what is consumed after the proof stays away."""
    writer, committable = written(files.Sink("s3://orders/out"), write_context(), 1, 2)
    done = 0

    def dying(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal done
            if done == dies_after:
                raise OSError("killed")
            done += 1
            return work(*args, **options)

        return call

    with monkeypatch.context() as patched:
        for name in ("copy", "put", "delete"):
            patched.setattr(obstore, name, dying(getattr(obstore, name)))
        if dies_after < 3:
            with pytest.raises(ExternalError):
                writer.commit(committable)
        else:
            writer.commit(committable)
    visible = bucket / "out" / committable["visible"]
    if dies_after >= 2:
        visible.unlink()
    files.Sink("s3://orders/out").open(SCHEMA, write_context(attempt="b" * 32, number=2)).commit(committable)
    assert visible.exists() == (dies_after < 2)
    if visible.exists():
        assert [json.loads(line)["i"] for line in visible.read_text().splitlines()] == [1, 2]
    assert [name for name in names(bucket) if ".staging" in name] == [f"out/.staging/{committable['proof']}"]


@pytest.mark.parametrize("fails_at", range(3))
def test_sending_is_repeated_until_it_was_done(
    fails_at: int, bucket: Path, write_context: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is declined leaves it to the next one, whatever of the files was sent, and committed, by then."""
    writer = files.Sink("s3://orders/out", format="parquet", partition_by=["s"]).open(SCHEMA, write_context())
    writer.write(frame(1, 2))
    prepared = writer.prepare(1)
    assert prepared.persist is not None
    calls, put = 0, obstore.put

    def failing(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls - 1 == fails_at:
            raise OSError("away")
        return put(*given)

    with monkeypatch.context() as patched:
        patched.setattr(obstore, "put", failing)
        if fails_at < 2:
            with pytest.raises(ExternalError, match=r"cannot write s3://orders/out/\.staging/.*: away"):
                prepared.persist()
        prepared.persist()
    for committable in prepared.committables:
        writer.commit(committable)
    prepared.persist()
    writer.close()
    assert len([name for name in names(bucket) if "/part-" in name]) == 2


def test_recovery_and_forgetting(bucket: Path, write_context: Callable[..., Any]) -> None:
    """As of local files: what no checkpoint names goes, proofs when nobody asks for them any more."""
    sink = files.Sink("s3://orders/out", existing="replace")
    (bucket / "out").mkdir()
    (bucket / "out" / "part-old.jsonl").write_text("{}")
    (bucket / "out" / "notes.txt").write_text("")
    writer, kept = written(sink, write_context("ns/é"), 1)
    _, orphan = written(sink, write_context("ns/é", subtask=1), 2)
    sink.begin()()
    sink.recover([kept], "ns/é", "b" * 32)()
    assert names(bucket) == [f"out/.staging/{kept['staged']}", "out/notes.txt"]
    with pytest.raises(LostPartError, match="is gone, and nothing says that it became s3://orders/out/part-"):
        writer.commit(orphan)
    writer.commit(kept)
    writer.forget(kept)
    writer.forget(kept)
    writer.discard(orphan)
    assert names(bucket) == ["out/notes.txt", f"out/{kept['visible']}"]


def test_what_was_not_prepared_leaves_nothing(bucket: Path, write_context: Callable[..., Any]) -> None:
    """Neither in the store nor on this machine."""
    writer = files.Sink("s3://orders/out").open(SCHEMA, write_context())
    writer.write(frame(1))
    local = writer._folder._scratch.folder
    assert list(local.iterdir())
    writer.close()
    writer.close()
    assert not local.exists()
    assert names(bucket) == []


@contextmanager
def full_disk() -> Generator[None]:
    """No byte can be written to any file of this process."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_is_given_back(format: Any, bucket: Path, write_context: Callable[..., Any]) -> None:
    """What cannot be closed is removed all the same: else the disk would stay full while the process lives."""
    writer = files.Sink("s3://orders/out", format=format, partition_by=["s"]).open(SCHEMA, write_context())
    local = writer._folder._scratch.folder
    writer.write(frame(1, 2))
    with full_disk():
        with pytest.raises(ExternalError, match=r"cannot write .*penstock-staged-.*: "):
            writer.prepare(1)
        writer.close()
    assert not local.exists()
    assert names(bucket) == []


def test_what_a_killed_process_has_gathered_is_removed(tmp_path: Path) -> None:
    """By the next one, while that of a process that lives stays."""
    code = (
        "import sys; from pathlib import Path; from penstock.connectors.files.object_store import Scratch;"
        "print(Scratch(Path(sys.argv[1])).folder, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    theirs = Path(process.stdout.readline().strip())
    (theirs / "rows").write_text("x")
    mine = object_store.Scratch(tmp_path)
    assert theirs.exists()
    process.kill()
    process.communicate()
    object_store.Scratch(tmp_path).close()
    assert list(tmp_path.iterdir()) == [mine.folder]
    mine.close()
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_from_store_to_store(bucket: Path) -> None:
    """The ten lines of everyone, with URLs; the folder of a day is a column."""
    (bucket / "in" / "day=2026-11-21").mkdir(parents=True)
    frame(*range(10)).drop("day").write_parquet(bucket / "in" / "day=2026-11-21" / "a.parquet")
    p = Pipeline("stores")
    rows = p.read(files.Source("s3://orders/in")).filter(col("i") > 6)
    rows.write(files.Sink("s3://orders/out", format="csv", partition_by=["day"]))
    assert p.run().state == "FINISHED"
    [part] = (bucket / "out").rglob("part-*")
    assert part.parent.name == "day=2026-11-21"
    assert part.read_text().splitlines()[0] == "i,s"
    assert pl.read_csv(part)["i"].to_list() == [7, 8, 9]


async def test_a_store_that_answers_late_holds_nothing_up(
    bucket: Path, monkeypatch: pytest.MonkeyPatch, time: Any
) -> None:
    """A file is opened by its first read, beside the event loop; a read that is cancelled meanwhile loses nothing."""
    frame(1, 2).write_parquet(bucket / "a.parquet")
    source = files.Source("s3://orders/a.parquet", schema=SCHEMA)
    [split] = source.discover()
    answers, head = threading.Event(), obstore.head
    monkeypatch.setattr(obstore, "head", lambda *given: answers.wait(30) and head(*given))
    reader = source.open(split, None, time.context())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.05)
    assert reader.position() is None
    answers.set()
    fetched = await reader.read(10)
    assert fetched is not None
    assert fetched.frame["i"].to_list() == [1, 2]
    await reader.close()
    unread = source.open(split, {"group": 0, "row": 1, "identity": None}, time.context())
    assert unread.position() == {"group": 0, "row": 1, "identity": None}
    await unread.close()


def test_a_cluster_takes_urls_and_refuses_relative_paths() -> None:
    """A store is the same one wherever it is asked; a relative folder is not."""

    def between(source: str, sink: str) -> Pipeline:
        p = Pipeline("where")
        p.read(files.Source(source, schema=SCHEMA)).write(files.Sink(sink))
        return p

    check_fit(between("s3://orders/in", "s3://orders/out").plan)
    check_fit(between("/in", "/out").plan)
    with pytest.raises(UsageError, match=r"files.Source\('in'\) is relative .*files.Sink\('out'\) is relative"):
        check_fit(between("in", "out").plan)


def test_secrets_stay_out_of_plans() -> None:
    """What is given to reach the store is in no description."""
    options = {"access_key_id": "me", "secret_access_key": "hunter2", "endpoint_url": "http://127.0.0.1:9"}
    sink = files.Sink("s3://orders/out", storage_options=options)
    source = files.Source("s3://orders/in", schema=SCHEMA, storage_options=options)
    for connector in (sink, source):
        assert "hunter2" not in f"{connector!r} {connector.describe()} {vars(connector)['_place']}"


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("s3://", None, "names no bucket; write s3://bucket/folder"),
        ("s3:///out", None, "names no bucket"),
        ("hdfs://node/x", None, "is a URL that is not served .*there are s3://, gs://, abfss://"),
        (Path("s3://bucket/out"), None, "with two slashes"),
        ("file:///tmp/x", None, "write it without the scheme"),
        ("out", {"region": "x"}, "'out' is a local path"),
    ],
)
def test_what_is_refused(url: Any, options: Any, says: str) -> None:
    """Where it is declared, by source and sink."""
    for declare in (files.Sink, lambda place, **more: files.Source(place, schema=SCHEMA, **more)):
        with pytest.raises(PipelineError, match=says):
            declare(url, storage_options=options)


def test_nothing_there(bucket: Path) -> None:
    """A source says what it looked for."""
    with pytest.raises(PipelineError, match="there is neither an object nor a folder s3://orders/nowhere"):
        files.Source("s3://orders/nowhere", schema=SCHEMA).discover()
    with pytest.raises(PipelineError, match=r"no file matches the pattern 's3://orders/\*\.csv'"):
        files.Source("s3://orders/*.csv", schema=SCHEMA).discover()


def test_markers_of_folders_are_no_files(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty objects `a/` and `a_$folder$`, which consoles and Hadoop put; their slash is not listed."""
    found = [
        ("day=1", 0),
        ("empty", 0),
        ("x.jsonl", 0),
        ("x.jsonl/a.jsonl", 3),
        ("day=1/b.jsonl", 3),
        ("c_$folder$", 0),
    ]
    listed = [{"path": f"in/{name}", "size": size} for name, size in [*found, ("nothing.jsonl", 0)]]
    monkeypatch.setattr(obstore, "list", lambda *given, **options: [listed])
    for source in (
        files.Source("s3://orders/in", schema=SCHEMA, format="jsonl"),
        files.Source("s3://orders/in", schema=SCHEMA),
        files.Source("s3://orders/in/**", schema=SCHEMA),
    ):
        assert [split.id for split in source.discover()] == ["day=1/b.jsonl", "nothing.jsonl", "x.jsonl/a.jsonl"]


class _Store(http.server.BaseHTTPRequestHandler):
    """Is not there for the first requests, then has one object of every name."""

    absent = 0

    def do_HEAD(self) -> None:
        type(self).absent -= 1
        self.send_response(503 if self.absent >= 0 else 200)
        for name, text in {
            "Content-Length": "7",
            "ETag": '"1"',
            "Last-Modified": "Mon, 23 Nov 2026 01:00:00 GMT",
        }.items():
            self.send_header(name, text)
        self.end_headers()

    def log_message(self, format: str, *given: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    """The endpoint of a store that speaks as little of S3 as is needed here."""
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Store)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    served.server_close()
    thread.join()


KEYS = {"access_key_id": "me", "secret_access_key": "hunter2"}


def test_a_store_that_is_away_for_a_moment_is_asked_again(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as is declared, however quickly it refuses."""
    monkeypatch.setattr(_Store, "absent", 12)
    source = files.Source("s3://orders/a.jsonl", schema=SCHEMA, storage_options=KEYS | {"endpoint": server})
    assert [split.size_bytes for split in source.discover()] == [7]


def test_settings_of_the_client_are_known_by_the_names_that_others_have(server: str) -> None:
    """Polars and Delta Lake take them among those of the store, with or without its prefix."""
    options = {"AWS_ACCESS_KEY_ID": "me", "aws_secret_access_key": "x", "AWS_ENDPOINT_URL": server}
    options |= {"AWS_ALLOW_HTTP": "true", "timeout": "30s", "connect_timeout": "2s", "proxy_excludes": "127.0.0.1"}
    assert files.Source("s3://orders/a.jsonl", schema=SCHEMA, storage_options=options).discover()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endpoint": "127.0.0.1:9000"}, "endpoint: write http:// or https://"),
        ({"AWS_ENDPOINT_URL": "http://me:hunter2@127.0.0.1:1"}, "AWS_ENDPOINT_URL: .*write them as access_key_id"),
        ({"session_token": "hunter2\n"}, "session_token: .*end of a line"),
        ({"allow_http": "hunter2"}, "allow_http"),
        ({"timeout": "soon"}, "timeout"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, str], says: str) -> None:
    """Named, without their values: any of them may be a secret. Unchecked some of them would end the process."""
    source = files.Source("s3://orders/a", schema=SCHEMA, storage_options=KEYS | {"endpoint": "http://a"} | options)
    with pytest.raises(PipelineError, match=f"s3://orders: .*{says}") as raised:
        source.discover()
    assert "hunter2" not in str(raised.value)


def test_keys_in_a_url_are_refused() -> None:
    """They would stand in plans and messages."""
    with pytest.raises(PipelineError, match="storage_options=") as raised:
        files.Sink("s3a://me:hunter2@orders/out")
    assert "hunter2" not in str(raised.value)


def test_a_wrong_setting_is_an_error_of_the_pipeline(tmp_path: Path) -> None:
    """Named, and found when the store is first asked."""
    with pytest.raises(PipelineError, match=r"s3://orders: storage_options= .*bogus"):
        files.Source("s3://orders/in", schema=SCHEMA, storage_options={"bogus": "1"}).discover()


@pytest.fixture(autouse=True)
def _fresh_clients() -> Iterator[None]:
    """No client outlives the test that made it."""
    client = store_clients._client
    yield
    client.cache_clear()
