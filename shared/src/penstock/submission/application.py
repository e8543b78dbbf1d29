"""From a pipeline file to the request that runs it: what `penstock submit` does, and a coordinator in application mode.

The graph is built where the user's code may be imported. A coordinator must not, so it lets a process do it:
`python -m penstock.submission.application` reads `ApplicationSpec` from standard input and writes what `Prepared` holds.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import sys
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.api.pipeline import DeclaredPipeline
from penstock.coordination.artifacts import pack
from penstock.errors import PenstockError, PipelineError
from penstock.loading import load_pipeline
from penstock.observability.user_frames import user_frames
from penstock.ports import Blobs
from penstock.protocol.manifests import decode_manifest
from penstock.protocol.messages import Restore
from penstock.protocol.requests import SubmitJob
from penstock.service.process_exit import leave
from penstock.submission.cluster_checks import check_fit, check_streams
from penstock.submission.options import JobOptions, job_request

_LENGTH: Final = struct.Struct("<I")


class ApplicationSpec(msgspec.Struct, frozen=True):
    """What is to be run."""

    target: str
    """`file.py` or `file.py:name`."""
    parameters: dict[str, str] = {}
    options: JobOptions = JobOptions()


@dataclass(frozen=True)
class Prepared:
    """A job ready to be submitted; its id is still to be given."""

    request: SubmitJob
    sources: bytes


def prepare(spec: ApplicationSpec) -> Prepared:
    """Import the file, build the graph, pack the sources.

    Raises:
        PenstockError: the pipeline cannot run as it is written.
    """
    return prepare_loaded(load_pipeline(spec.target, dict(spec.parameters)), spec)


def prepare_loaded(pipeline: DeclaredPipeline, spec: ApplicationSpec) -> Prepared:
    """The same of a pipeline that was loaded from the file before."""
    check_streams(pipeline.plan)
    check_fit(pipeline.plan)
    packed = pack(spec.target, dict(spec.parameters))
    return Prepared(job_request(pipeline.plan, spec.options, packed.artifact), packed.data)


async def prepare_elsewhere(spec: ApplicationSpec) -> Prepared:
    """The same in a process of its own.

    Raises:
        PipelineError: it failed there; says why, with the frames of the user's code.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock.submission.application",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate(msgspec.json.encode(spec))
    if process.returncode != 0:
        raise PipelineError(f"{spec.target}: {err.decode(errors='replace').strip()}")
    (length,) = _LENGTH.unpack_from(out)
    request = msgspec.json.decode(out[_LENGTH.size : _LENGTH.size + length], type=SubmitJob)
    return Prepared(request, out[_LENGTH.size + length :])


def restored(prepared: Prepared, restore: Restore) -> Prepared:
    """The same job, started from a savepoint."""
    return Prepared(msgspec.structs.replace(prepared.request, restored_from=restore), prepared.sources)


def application_id(cluster: str, prepared: Prepared) -> str:
    """The job id of an application: the same sources and settings are the same job, however often they are submitted."""
    known = msgspec.json.encode([cluster, prepared.request.name, prepared.request.graph, prepared.request.artifact])
    return hashlib.sha256(known).hexdigest()[:32]


async def restore_of(blobs: Blobs, manifest_key: str) -> Restore:
    """How a job is started from a savepoint, by the key of its manifest.

    Raises:
        BlobNotFoundError: there is none.
        CorruptDataError: that is no manifest.
    """
    data = await blobs.get(manifest_key)
    manifest = decode_manifest(data, manifest_key)
    return Restore(manifest.checkpoint, manifest_key, hashlib.sha256(data).hexdigest())


def main() -> int:
    """Prepare what standard input says, write it to standard output."""
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=ApplicationSpec)
    stdout, sys.stdout = sys.stdout, sys.stderr  # what the file prints must not come between
    try:
        prepared = prepare(spec)
    except PenstockError as error:
        sys.stderr.write(f"{user_frames(error)}{error}")
        return 1
    except Exception as error:  # raised by the user's file
        sys.stderr.write(f"{user_frames(error)}{type(error).__name__}: {error}")
        return 1
    data = msgspec.json.encode(prepared.request)
    stdout.buffer.write(_LENGTH.pack(len(data)) + data + prepared.sources)
    stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    leave(main)
