"""Rows between a run and whoever fetches them."""

from __future__ import annotations

import threading

import pytest
from small_gateway import until

from penstock.errors import UsageError
from penstock.gateway.buffers import RowBuffer
from penstock.sql.watching import Row

LONG_S = 20.0


def rows(first: int, last: int) -> list[Row]:
    return [("+I", (number,)) for number in range(first, last)]


async def test_a_full_buffer_blocks_whoever_fills_it_until_there_is_room() -> None:
    buffer = RowBuffer(3)
    filling = threading.Thread(target=buffer.put, args=(rows(0, 5),))
    filling.start()
    await until(lambda: buffer.full)
    assert filling.is_alive()
    assert len(buffer) == 3
    assert await buffer.take(LONG_S, 1) == rows(0, 1)
    await until(lambda: buffer.full)
    assert await buffer.take(LONG_S) == rows(1, 4)
    assert await buffer.take(LONG_S) == rows(4, 5)
    filling.join(LONG_S)
    assert await buffer.take(0.001) == []
    buffer.end()
    assert await buffer.take(LONG_S) is None


async def test_closing_lets_go_whoever_fills_it() -> None:
    buffer = RowBuffer(1)
    filling = threading.Thread(target=buffer.put, args=(rows(0, 5),))
    filling.start()
    await until(lambda: buffer.full)
    buffer.close()
    filling.join(LONG_S)
    assert not filling.is_alive()
    assert len(buffer) == 0
    with pytest.raises(UsageError, match="canceled or closed while its rows were fetched"):
        await buffer.take(LONG_S)  # its rows are not all


async def test_an_error_comes_behind_the_last_row_and_stays() -> None:
    buffer = RowBuffer()
    buffer.put(rows(0, 2))
    buffer.end(ValueError("broken"))
    buffer.end()
    assert await buffer.take(LONG_S) == rows(0, 2)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await buffer.take(LONG_S)


async def test_a_reader_that_waits_is_told_at_once() -> None:
    buffer = RowBuffer()
    threading.Timer(0.01, buffer.put, (rows(0, 1),)).start()
    assert await buffer.take(LONG_S) == rows(0, 1)
    threading.Timer(0.01, buffer.end).start()
    assert await buffer.take(LONG_S) is None
