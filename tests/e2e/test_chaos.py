"""Eleven faults on the real parts, each named step of the protocol among them: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest
from tests.chaos.cluster import until
from tests.chaos.faults import BRIEF, brief
from tests.chaos.harness import ChaosRun
from tests.chaos.links import Disturbance, Link

from penstock.coordination import failpoints
from penstock.platform.free_ports import HOST, free_port

pytestmark = pytest.mark.e2e

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(10**6)))


@pytest.mark.timeout(900)
@pytest.mark.acceptance
def test_no_fault_loses_or_doubles_a_row(own_platform: Any) -> None:
    """Processes, servers, links, named steps in turn; then every row of all sinks is compared, and nothing is left.

    One of the jobs beside is there for faults, which by the seed: `make chaos` has all of them, and takes longer."""
    print(f"seed {SEED}: repeat with PENSTOCK_TEST_SEED={SEED}")
    faults = brief(random.Random(SEED))
    report = asyncio.run(ChaosRun(own_platform, SEED, beside=1).run(faults))
    print(report.summary())
    assert len(report.cycles) == len(faults) == 11
    assert len(report.beside) == 1


def test_every_named_step_is_tried() -> None:
    """The fixed list leaves out no step."""
    named = {value for name, value in vars(failpoints).items() if name.startswith(("BEFORE_", "AFTER_"))}
    assert {fault.step for fault in BRIEF} - {""} == named


@pytest.mark.parametrize(("how", "heard"), [("cut", b""), ("mute", b""), ("deaf", b"x"), ("slow", b"x")])
async def test_a_link_holds_back_what_it_says_and_delivers_it_late(how: Disturbance, heard: bytes) -> None:
    """On a connection that was open before."""
    arrived = bytearray()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            arrived.extend(data)
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, HOST, 0)
    link = Link(free_port(set()), server.sockets[0].getsockname()[1])
    await link.start()
    reader, writer = await asyncio.open_connection(HOST, link.port)
    writer.write(b"-")
    assert await reader.readexactly(1) == b"-"
    arrived.clear()
    link.disturb(how)
    writer.write(b"x")

    async def met() -> bool:
        return link.met > 0 and arrived == heard

    await until(f"a link that is {how}", 10, met)
    if how != "slow":
        assert not reader._buffer  # pyright: ignore[reportAttributeAccessIssue] # what has come
        link.heal()
    assert await asyncio.wait_for(reader.readexactly(1), 10) == b"x"
    writer.close()
    await link.close()
    server.close()
