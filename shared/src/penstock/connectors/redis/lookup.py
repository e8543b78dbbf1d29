"""`redis.Lookup`: joins a stream with hashes or strings of Redis."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Unpack

import msgspec

from penstock.connectors import lookups
from penstock.connectors.base import T
from penstock.connectors.lookups import Key, KeyTemplate, LookupClient, LookupOptions, template_parts
from penstock.connectors.redis.places import RedisPlace
from penstock.core.arguments import checked
from penstock.errors import BadRecordError
from penstock.settings import Secret
from penstock.types import BINARY, BOOLEAN, FLOATS, INTEGERS, Field, ListType, MapType, Schema, StructType

if TYPE_CHECKING:
    import pyarrow as pa
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

_WHAT: Final = "redis.Lookup"


class Lookup(lookups.Lookup[T], Generic[T]):
    """Hashes or strings of Redis, one per key, to join a stream with: `orders.join(redis.Lookup(...), on=...)`.

    A column is the field of its name; what is missing is null, and a hash without any of them is no row. Text, dates,
    times, decimals are read from text as in JSON; numbers, truth (`true`), lists, maps and structs are JSON; bytes are as
    they are. A string holds the one column that is not in the key, in the same form; where the schema has several such
    columns, it is a JSON object of them.

    Args:
        key: name of the hash or string, with the columns of the key in braces: `"customer:{id}"`. No text has in it what
            separates it from the next column, in `"{shop}:{item}"` a `:`: such a row fails the job.
        schema: dataclass, msgspec.Struct or pyarrow.Schema of the rows, the columns of the key included.
        url: `redis://user:password@host:6379/0`, or `rediss://` (TLS); a `Secret` if it has a password.
        structure: `"hash"` or `"string"`: which of both holds a row.
        **options: as at every lookup, see `LookupOptions`.

    Raises:
        PipelineError: something of it does not fit.

    Example:
        >>> @dataclass
        ... class Seller:
        ...     auction: int
        ...     seller: str
        >>> sellers = redis.Lookup("auction:{auction}", schema=Seller, url="redis://localhost", cache_ttl="1m")
        >>> bids.join(sellers, on="auction", how="left").schema.names
        ('auction', 'price', 'at', 'tags', 'seller')
    """

    kind: ClassVar[str] = "redis"

    @checked
    def __init__(
        self,
        key: str,
        *,
        schema: type[T] | Schema | pa.Schema,
        url: str | Secret,
        structure: Literal["hash", "string"] = "hash",
        **options: Unpack[LookupOptions],
    ) -> None:
        self._declare(schema, **options)
        template_parts(_WHAT, key)
        self.key: Final = key
        self.structure: Final = structure
        self.place: Final = RedisPlace(_WHAT, url)

    @property
    def name(self) -> str:
        """See `Lookup.name`."""
        several = "hashes" if self.structure == "hash" else "strings"
        return f"redis {several} {self.key} at {self.place.address}"

    def client(self, columns: Schema, keys: Schema) -> LookupClient:
        """See `Lookup.client`."""
        template = KeyTemplate(_WHAT, self.key, keys)
        made = _Hashes if self.structure == "hash" else _Strings
        return made(self, columns, template)

    def describe(self) -> Mapping[str, Any]:
        """See `Lookup.describe`."""
        said = {} if self.structure == "hash" else {"structure": self.structure}
        return {"key": self.key, **said, "url": self.place.address}


class _Asking(ABC):
    """See `LookupClient`: all that holds rows of one call in one pipeline. Columns of the key are what was asked by."""

    def __init__(self, lookup: Lookup[Any], columns: Schema, template: KeyTemplate) -> None:
        self._lookup = lookup
        self._template = template
        self._of_key = [(name, place) for place, name in enumerate(template.columns) if name in columns]
        self._wanted = columns
        self._held = [field for field in lookup.schema if field.name not in template.columns]
        """The columns that a hash or string holds."""
        self._redis: Redis | None = None

    async def open(self) -> None:
        self._redis = self._lookup.place.client()

    async def ask(self, keys: Sequence[Key]) -> Sequence[Sequence[bytes]]:
        assert self._redis is not None
        names = [self._template.asked(key) for key in keys]
        with self._lookup.place.errors("", f"check what the keys of {self._lookup.key} hold"):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for name in names:
                    self._command(pipeline, name)
                answers = await pipeline.execute()
        return [self._documents(answer, key) for answer, key in zip(answers, keys, strict=True)]

    def _documents(self, answer: Any, key: Key) -> Sequence[bytes]:
        members = self._members(answer)
        if members is None:
            return ()
        if isinstance(members, bytes):
            return (members,)
        members |= {name: msgspec.json.encode(key[place]) for name, place in self._of_key}
        parts = (msgspec.json.encode(name) + b":" + value for name, value in members.items())
        return (b"{" + b",".join(parts) + b"}",)

    @abstractmethod
    def _command(self, pipeline: Pipeline, name: str) -> None:
        """Ask for one of them."""

    @abstractmethod
    def _members(self, answer: Any) -> dict[str, bytes] | bytes | None:
        """The values of an answer as JSON, by column; None if there is no row, and bytes that are none of the schema."""

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()


class _Hashes(_Asking):
    """Rows in hashes. All columns are asked for: there is a row if one of them is there."""

    def _command(self, pipeline: Pipeline, name: str) -> None:
        pipeline.hmget(name, [field.name for field in self._held])

    def _members(self, answer: Sequence[bytes | None]) -> dict[str, bytes] | None:
        found = [(field, value) for field, value in zip(self._held, answer, strict=True) if value is not None]
        if not found:
            return None
        return {field.name: _json(field, value) for field, value in found if field.name in self._wanted}


class _Strings(_Asking):
    """Rows in strings: the one column that there is, or an object of several."""

    def _command(self, pipeline: Pipeline, name: str) -> None:
        pipeline.get(name)

    def _members(self, answer: bytes | None) -> dict[str, bytes] | bytes | None:
        if answer is None:
            return None
        if len(self._held) == 1:
            return {self._held[0].name: _json(self._held[0], answer)}
        try:
            members = msgspec.json.decode(answer, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, ValueError):
            return answer
        return {name: bytes(value) for name, value in members.items() if name in self._wanted}


def _json(field: Field, value: bytes) -> bytes:
    """The JSON that `JsonDecoder` expects of a column."""
    if isinstance(field.type, ListType | MapType | StructType) or field.type in INTEGERS | FLOATS | {BOOLEAN}:
        return value if _is_json(value) else msgspec.json.encode(value.decode(errors="replace"))
    if field.type == BINARY:
        return msgspec.json.encode(base64.b64encode(value).decode())
    try:
        return msgspec.json.encode(value.decode())
    except UnicodeDecodeError as error:
        raise BadRecordError(f"field {field.name} is not UTF-8: {value[:100]!r}") from error


def _is_json(value: bytes) -> bool:
    """Whether it is one value: text behind it would be other fields."""
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True
