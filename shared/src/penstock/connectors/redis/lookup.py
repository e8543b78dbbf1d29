"""`redis.Lookup`: joins a stream with hashes of Redis."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Unpack

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

_WHAT: Final = "redis.Lookup"


class Lookup(lookups.Lookup[T], Generic[T]):
    """Hashes of Redis, one per key, to join a stream with: `orders.join(redis.Lookup(...), on=...)`.

    A column is the field of its name; what is missing is null, and a hash without any of them is no row. Text, dates,
    times, decimals are read from text as in JSON; numbers, truth (`true`), lists, maps and structs are JSON; bytes are as
    they are.

    Args:
        key: name of the hash, with the columns of the key in braces: `"customer:{id}"`. No text has in it what separates
            it from the next column, in `"{shop}:{item}"` a `:`: such a row fails the job.
        schema: dataclass, msgspec.Struct or pyarrow.Schema of the rows, the columns of the key included.
        url: `redis://user:password@host:6379/0`, or `rediss://` (TLS); a `Secret` if it has a password.
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
        **options: Unpack[LookupOptions],
    ) -> None:
        self._declare(schema, **options)
        template_parts(_WHAT, key)
        self.key: Final = key
        self.place: Final = RedisPlace(_WHAT, url)

    @property
    def name(self) -> str:
        """See `Lookup.name`."""
        return f"redis hashes {self.key} at {self.place.address}"

    def client(self, columns: Schema, keys: Schema) -> LookupClient:
        """See `Lookup.client`."""
        return _Hashes(self, columns, KeyTemplate(_WHAT, self.key, keys))

    def describe(self) -> Mapping[str, Any]:
        """See `Lookup.describe`."""
        return {"key": self.key, "url": self.place.address}


class _Hashes:
    """See `LookupClient`: the hashes of one call in one pipeline."""

    def __init__(self, lookup: Lookup[Any], columns: Schema, template: KeyTemplate) -> None:
        self._lookup = lookup
        self._columns = columns.fields
        self._template = template
        self._redis: Redis | None = None

    async def open(self) -> None:
        self._redis = self._lookup.place.client()

    async def ask(self, keys: Sequence[Key]) -> Sequence[Sequence[bytes]]:
        assert self._redis is not None
        names = [self._template.asked(key) for key in keys]
        fields = [field.name for field in self._columns]
        with self._lookup.place.errors("", f"check what the keys of {self._lookup.key} hold"):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for name in names:
                    pipeline.hmget(name, fields)
                answers = await pipeline.execute()
        return [self._documents(values) for values in answers]

    def _documents(self, values: Sequence[bytes | None]) -> Sequence[bytes]:
        found = [(field, value) for field, value in zip(self._columns, values, strict=True) if value is not None]
        if not found:
            return ()
        members = (msgspec.json.encode(field.name) + b":" + _json(field, value) for field, value in found)
        return (b"{" + b",".join(members) + b"}",)

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()


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
