"""Catalogue rows: digests and base64 of text (its UTF-8) and of bytes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from penstock.expressions.functions import Function, Lowering, polars
from penstock.expressions.typing_rules import Arguments, Rule, Typing, check, takes
from penstock.types import BINARY, INT64, STRING, DataType, polars_type

if TYPE_CHECKING:
    import polars as pl

_DIGESTS: Final = ("md5", "sha1", "sha256")
_KINDS: Final[tuple[tuple[str, DataType], ...]] = (("str", STRING), ("bin", BINARY))
Encoding = Literal["base64", "hex"]
_ENCODINGS: Final[dict[Encoding, str]] = {
    "base64": "Base64 (RFC 4648, with padding)",
    "hex": "Two hexadecimal digits for each byte",
}


def _digest(name: str, namespace: str, kind: DataType) -> Function:
    of = "of the text in UTF-8" if namespace == "str" else "of the bytes"
    return Function(
        f"{namespace}.{name}", f"x.{namespace}.{name}()", takes({kind}, gives=STRING), _digested(name),
        f"The {name.upper()} digest {of} as hexadecimal text in lower case.", (name,), polars_lacks=True,
    )  # fmt: skip


def _digested(name: str) -> Callable[[Lowering], pl.Expr]:
    return lambda call: digest_of(call[0], name)


def digest_of(value: pl.Expr, name: str) -> pl.Expr:
    """The digest of texts or bytes as hexadecimal text; `name` is that of hashlib."""

    def one(value: bytes) -> str:
        # What for is the user's affair: most often to name or to hide a value, which MD5 still serves.
        return hashlib.new(name, value, usedforsecurity=False).hexdigest()

    def all_of(series: pl.Series) -> pl.Series:
        values = series.cast(polars_type(BINARY)).to_list()
        digests = [None if value is None else one(value) for value in values]
        return polars().Series(series.name, digests, dtype=polars_type(STRING))

    return value.map_batches(all_of, return_dtype=polars_type(STRING), is_elementwise=True)


def _encoded(encoding: Encoding) -> Callable[[Lowering], pl.Expr]:
    return lambda call: call[0].cast(polars_type(BINARY)).bin.encode(encoding)


def _lenient(rule: Rule) -> Rule:
    """Null where it cannot be read, if not strict."""

    def checked(arguments: Arguments) -> Typing:
        check(arguments, 0, {STRING})
        answer = rule(arguments)
        return Typing(answer.type, answer.nullable or arguments.options.get("strict") is False, answer.operands)

    return checked


def _decoded(encoding: str) -> Callable[[Lowering], pl.Expr]:
    read = _READERS[encoding]

    def all_of(series: pl.Series, strict: bool) -> pl.Series:
        values = [None if value is None else read(value) for value in series]
        decoded = polars().Series(series.name, values, dtype=polars_type(BINARY))
        if strict and decoded.null_count() > series.null_count():
            wrong = series.filter(decoded.is_null() & series.is_not_null())[0]
            raise polars().exceptions.InvalidOperationError(f"conversion from {encoding} failed for {wrong!r:.100}")
        return decoded

    def lower(call: Lowering) -> pl.Expr:
        strict = call.option("strict", True)
        return call[0].map_batches(
            lambda series: all_of(series, strict), return_dtype=polars_type(BINARY), is_elementwise=True
        )

    return lower


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


def _from_hex(text: str) -> bytes | None:
    try:
        return None if any(map(str.isspace, text)) else bytes.fromhex(text)
    except ValueError:
        return None


_READERS: Final[dict[str, Callable[[str], bytes | None]]] = {"base64": _from_base64, "hex": _from_hex}


def _encoders() -> list[Function]:
    return [
        Function(
            f"{namespace}.to_{encoding}", f"x.{namespace}.to_{encoding}()", takes({kind}, gives=STRING),
            _encoded(encoding), f"{how} of {'the text in UTF-8' if namespace == 'str' else 'the bytes'}.",
            ("to_base64", "base64") if encoding == "base64" else ("hex",), polars=(f'{namespace}.encode("{encoding}")',),
        )
        for encoding, how in _ENCODINGS.items() for namespace, kind in _KINDS
    ]  # fmt: skip


def _decoders() -> list[Function]:
    return [
        Function(
            f"str.from_{encoding}", f"x.str.from_{encoding}(strict=True)", _lenient(takes({STRING}, gives=BINARY)),
            _decoded(encoding), f"The bytes that the {encoding} text stands for; otherwise the row fails, or null with "
            "strict=False.", (f"from_{encoding}", f"un{encoding}"), polars=(f'str.decode("{encoding}")',),
        )
        for encoding in _ENCODINGS
    ]  # fmt: skip


ROWS: Final = (
    *(_digest(name, namespace, kind) for namespace, kind in _KINDS for name in _DIGESTS),
    *_encoders(),
    *_decoders(),
    Function(
        "bin.size", "x.bin.size()", takes({BINARY}, gives=INT64), lambda c: c[0].bin.size(),
        "Number of bytes.", ("octet_length",), exact=False,
    ),
)  # fmt: skip
