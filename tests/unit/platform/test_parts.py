"""Parts are fetched once, checked against what is pinned, and never half-installed."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest
from programs import GO, JAVA, program

from penstock.platform import parts
from penstock.platform.errors import PlatformError
from penstock.platform.parts import KAFKA_VERSION, MINIO_HASH, MINIO_MODULE, MINIO_VERSION, cached_parts, fetch_parts

JAR = b"a jar"


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with programs that behave like the real ones, on one pinned jar; the folder of their calls."""
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    calls.mkdir()
    program(folder, "java", JAVA)
    program(folder, "redis-server", "true")
    program(folder, "mvn", f'echo "$@" >> {calls}/mvn; sleep 0.2; printf "a jar" > "${{6#*=}}/one.jar"')
    built = f"\\tmod\\t{MINIO_MODULE}\\t{MINIO_VERSION}\\t{MINIO_HASH}"
    program(
        folder,
        "go",
        f'[ "$2" = -m ] && exec printf "{built}\\n"\n[ "$1" = version ] && {GO} && exit\n'
        f'echo "$@" >> {calls}/go; printf "" > "$GOBIN/minio"',
    )
    pinned = f"{hashlib.sha256(JAR).hexdigest()}  one.jar\n"
    real = parts.packaged
    monkeypatch.setattr(parts, "packaged", lambda name: pinned if name == "kafka-jars.sha256" else real(name))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return calls


async def test_what_is_fetched_is_pinned_and_cached(system: Path, tmp_path: Path) -> None:
    """The first time everything is fetched, the second time nothing."""
    cache = tmp_path / "cache"
    first = await fetch_parts(cache)
    assert (first.kafka / "one.jar").read_bytes() == JAR
    assert first.minio.exists()
    assert await fetch_parts(cache) == first == cached_parts(cache)
    assert len((system / "mvn").read_text().splitlines()) == 1
    assert (system / "go").read_text() == f"install {MINIO_MODULE}@{MINIO_VERSION}\n"
    assert {path.name for path in cache.iterdir() if path.is_dir()} == {first.kafka.name, first.minio.parent.name}


async def test_fetches_at_the_same_time_are_one(system: Path, tmp_path: Path) -> None:
    """The others wait for the first and use what it fetched."""
    await asyncio.gather(*(fetch_parts(tmp_path / "cache") for _ in range(4)))
    assert len((system / "mvn").read_text().splitlines()) == 1


async def test_a_jar_that_is_not_the_pinned_one_is_refused(system: Path, tmp_path: Path) -> None:
    """Nothing is installed, and the error names the jar."""
    program(tmp_path / "bin", "mvn", 'printf "evil" > "${6#*=}/one.jar"')
    with pytest.raises(PlatformError, match=r"SHA-256 is not the pinned one: one\.jar"):
        await fetch_parts(tmp_path / "cache")
    assert not (tmp_path / "cache" / f"kafka-{KAFKA_VERSION}").exists()


async def test_a_jar_that_nobody_pinned_is_refused(system: Path, tmp_path: Path) -> None:
    """More than what is pinned is as wrong as less."""
    program(tmp_path / "bin", "mvn", 'printf "a jar" > "${6#*=}/two.jar"')
    with pytest.raises(PlatformError, match=r"missing: one\.jar; not pinned: two\.jar"):
        await fetch_parts(tmp_path / "cache")


async def test_a_changed_cache_is_noticed(system: Path, tmp_path: Path) -> None:
    """The jars are compared at every use."""
    found = await fetch_parts(tmp_path / "cache")
    (found.kafka / "one.jar").write_bytes(b"rotten")
    with pytest.raises(PlatformError, match="remove this folder"):
        cached_parts(tmp_path / "cache")


async def test_a_minio_of_another_module_is_refused(system: Path, tmp_path: Path) -> None:
    """The built program must tell the pinned hash of its module."""
    program(
        tmp_path / "bin",
        "go",
        f'[ "$2" = -m ] && exec printf "mod {MINIO_MODULE} {MINIO_VERSION} h1:other"\n'
        f'[ "$1" = version ] && {GO} && exit\nprintf "" > "$GOBIN/minio"',
    )
    with pytest.raises(PlatformError, match="the MinIO that Go built is not"):
        await fetch_parts(tmp_path / "cache")
    assert not (tmp_path / "cache" / f"minio-{MINIO_VERSION}").exists()


async def test_a_failing_program_is_quoted(system: Path, tmp_path: Path) -> None:
    """Its exit code and its last words are in the error; a later try begins anew."""
    program(tmp_path / "bin", "mvn", "echo no route to the repository; exit 7")
    with pytest.raises(PlatformError, match=r"Maven could not fetch Kafka \(exit code 7\)[^§]*no route"):
        await fetch_parts(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == [f"minio-{MINIO_VERSION}"]


def test_an_empty_cache_says_how_to_fill_it(tmp_path: Path) -> None:
    """Tests use the cache only, because a test must not take minutes."""
    with pytest.raises(PlatformError, match=r"lacks kafka-.* and minio-.*; fetch .* penstock up --fetch-only"):
        cached_parts(tmp_path)


def test_the_cache_is_where_the_user_says(tmp_path: Path) -> None:
    """PENSTOCK_CACHE, then XDG_CACHE_HOME, then the home folder."""
    assert parts.cache_folder({"PENSTOCK_CACHE": str(tmp_path)}) == tmp_path
    assert parts.cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "penstock"
    assert parts.cache_folder({}) == Path.home() / ".cache" / "penstock"
