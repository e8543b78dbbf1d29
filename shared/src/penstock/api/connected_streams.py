"""Two streams side by side, for one function over the rows of both; only its result is a stream again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.api.verbs import Verbs
from penstock.core.arguments import checked
from penstock.functions.process_functions import BroadcastProcess, KeyedBroadcastProcess, KeyedCoProcess
from penstock.plan.building.functions import process_two

if TYPE_CHECKING:
    from penstock.api.keyed_streams import KeyedStream
    from penstock.api.stream import Stream


T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


@checked
class ConnectedStreams(Verbs, Generic[T, U]):
    """Two streams with a common key; only `.process(...)` makes a stream of them again."""

    _what = "a pair of connected streams"

    def __init__(self, left: KeyedStream[T], right: KeyedStream[U]) -> None:
        self._left = left
        self._right = right

    def process(self, process: KeyedCoProcess[T, U, V]) -> Stream[V]:
        """Run a `KeyedCoProcess`: rows of either stream in, any rows out, with state and timers per key.

        Example:
            >>> dear = bids.filter(col("price") > 200)
            >>> class Warned(KeyedCoProcess[Bid, Bid, Total]):
            ...     def on_left(self, row, ctx):
            ...         ctx.emit(Total(ctx.key, 0.0))
            ...     def on_right(self, row, ctx):
            ...         ctx.emit(Total(ctx.key, row.price))
            >>> bids.key_by("auction").connect(dear.key_by("auction")).process(Warned()).collect().height
            5
        """
        return self._left._pipeline._stream_of(process_two(self._left._rows, self._right._rows, process).node)


class BroadcastStream(Verbs, Generic[T]):
    """A stream of which every row is to reach every subtask; only `connect` of another stream takes it."""

    _what = "a broadcast stream"

    def __init__(self, stream: Stream[T]) -> None:
        self._stream = stream

    def _instead(self, name: str) -> str:
        if name == "connect":
            return "write it the other way round: stream.connect(rules.broadcast())"
        if self._stream._pipeline._has_verb_of_rows(name):
            return "do it before broadcast; after it only .connect(...) of another stream takes the rows"
        return super()._instead(name)


@checked
class BroadcastConnectedStreams(Verbs, Generic[T, U]):
    """A stream without key and a broadcast one; only `.process(...)` makes a stream of them again."""

    _what = "a pair of connected streams"

    def __init__(self, left: Stream[T], right: Stream[U]) -> None:
        self._left = left
        self._right = right

    def process(self, process: BroadcastProcess[T, U, V]) -> Stream[V]:
        """Run a `BroadcastProcess`: rows of either stream in, any rows out, with broadcast state.

        Example:
            >>> class Both(BroadcastProcess[Bid, Bid, Total]):
            ...     def on_row(self, row, ctx):
            ...         ctx.emit(Total(row.auction, row.price))
            ...     def on_broadcast(self, row, ctx):
            ...         ctx.emit(Total(row.auction, 0.0))
            >>> bids.connect(bids.filter(col("price") > 200).broadcast()).process(Both()).collect().height
            5
        """
        return self._left._pipeline._stream_of(process_two(self._left._rows, self._right._rows, process).node)


@checked
class KeyedBroadcastConnectedStreams(Verbs, Generic[T, U]):
    """A stream with a key and a broadcast one; only `.process(...)` makes a stream of them again."""

    _what = "a pair of connected streams"

    def __init__(self, left: KeyedStream[T], right: Stream[U]) -> None:
        self._left = left
        self._right = right

    def process(self, process: KeyedBroadcastProcess[T, U, V]) -> Stream[V]:
        """Run a `KeyedBroadcastProcess`: state and timers per key of the first stream, and broadcast state.

        Example:
            >>> class Both(KeyedBroadcastProcess[Bid, Bid, Total]):
            ...     seen = ValueState(int)
            ...     def on_row(self, row, ctx):
            ...         self.seen.set(self.seen.get(default=0) + 1)
            ...         ctx.emit(Total(ctx.key, self.seen.get(default=0)))
            ...     def on_broadcast(self, row, ctx):
            ...         ctx.emit(Total(row.auction, 0.0))
            >>> dear = bids.filter(col("price") > 200).broadcast()
            >>> sorted(bids.key_by("auction").connect(dear).process(Both()).collect().rows())
            [(1, 1.0), (1, 2.0), (2, 0.0), (2, 1.0), (2, 2.0)]
        """
        return self._left._pipeline._stream_of(process_two(self._left._rows, self._right._rows, process).node)
