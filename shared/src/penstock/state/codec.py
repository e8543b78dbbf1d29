"""Values of one declared type as msgpack bytes: encoded, decoded, copied, and checked when they are set.

Values are checked where the user sets them, because a value of another type would be written into a snapshot without
complaint and only fail when that snapshot is restored, which nothing could mend then. There the class is looked at; what
is in a list, a dict or a record may be of another type, too, and may change later: it is read back where it is written.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NoReturn, cast
from uuid import UUID

import msgspec

from penstock.core.arguments import plain
from penstock.errors import IncompatibleStateError, UserCodeError

_IMMUTABLE: Final = frozenset(
    {bool, int, float, str, bytes, type(None), datetime, date, time, timedelta, Decimal, UUID}
)  # fmt: skip


class ValueCodec:
    """Encodes and decodes values of one type.

    Args:
        hint: the declared type.
        where: which state of which operator; leads error messages.
    """

    def __init__(self, hint: Any, where: str) -> None:
        self.hint = hint
        self.where = where
        self._encode = msgspec.msgpack.Encoder(enc_hook=_plain_part).encode
        self._decode = msgspec.msgpack.Decoder(hint).decode
        self._accepted = _classes(hint)
        self.exact: type | None = self._accepted[0] if self._accepted and time not in self._accepted else None
        """The class that needs no further check; times of day may have an offset."""
        self.immutable = _is_immutable(hint)
        """Whether values cannot be changed in place."""
        self._has_parts = not _IMMUTABLE.issuperset(self._accepted or (object,))

    def encode(self, value: Any) -> bytes:
        """The msgpack bytes of a value, from which it can be read again.

        Raises:
            UserCodeError: some part of it cannot be stored, or is of another type than was declared.
        """
        data = self._written(value)
        if self._has_parts:
            self._read_back(value, data)
        return data

    def _written(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except (TypeError, OverflowError, UnicodeError, msgspec.EncodeError) as error:
            raise UserCodeError(f"{self.where}: the value {value!r} cannot be stored: {error}") from error

    def _read_back(self, value: Any, data: bytes) -> Any:
        try:
            return self._decode(data)
        except msgspec.MsgspecError as error:
            raise UserCodeError(
                f"{self.where} holds {type_name(self.hint)}, but was given {value!r}, which is not one: {error}"
            ) from error

    def decode(self, data: bytes) -> Any:
        """The value of `encode`'s bytes.

        Raises:
            IncompatibleStateError: it does not fit the declared type.
        """
        try:
            return self._decode(data)
        except msgspec.MsgspecError as error:
            raise IncompatibleStateError(
                f"{self.where}: a stored value does not fit the declared type {type_name(self.hint)}: {error}"
            ) from error

    def copy(self, value: Any) -> Any:
        """An independent copy."""
        return value if self.immutable else self._read_back(value, self._written(value))

    def checked(self, value: Any) -> Any:
        """A value that is not of class `exact`, a numpy scalar as Python has it.

        Raises:
            UserCodeError: it is not of the declared type.
        """
        value = plain(value)
        accepted = self._accepted
        if accepted is None:
            return value
        if not isinstance(value, accepted) or (value.__class__ not in accepted and _is_more(value, accepted)):
            self._refuse(value)
        if isinstance(value, time) and value.tzinfo is not None:
            raise UserCodeError(
                f"{self.where}: {value!r} has an offset, and a time of day has none; store it in UTC, without tzinfo"
            )
        return value

    def _refuse(self, value: Any) -> NoReturn:
        advice = "; write .tolist(), which gives values of Python" if type(value).__module__ == "numpy" else ""
        raise UserCodeError(f"{self.where} holds {type_name(self.hint)}, but was given {value!r}{advice}")


def _is_more(value: Any, accepted: tuple[type, ...]) -> bool:
    """Whether a value of a derived class is another one, or has more fields, than what would be read: one of its base."""
    if isinstance(value, datetime):
        return datetime not in accepted  # but date, from which it is derived
    return isinstance(value, bool | msgspec.Struct) or dataclasses.is_dataclass(value)


def is_scalar(hint: Any) -> bool:
    """Whether values of this type are of one class, and have no parts."""
    return isinstance(hint, type) and hint in _IMMUTABLE


def _plain_part(value: Any) -> Any:
    """A part of a value that msgspec does not know."""
    found = plain(value)
    if found is value:
        raise TypeError(f"objects of type {type(value).__qualname__} are unsupported")
    return found


def type_name(hint: Any) -> str:
    """A type as the user wrote it."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def _classes(hint: Any) -> tuple[type, ...] | None:
    """The classes whose instances are accepted for `hint`, None if that cannot be told by the class alone."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return None
    if typing.is_typeddict(hint):
        return (dict,)
    if isinstance(hint, typing.NewType):
        return _classes(hint.__supertype__)
    if origin is typing.Annotated:
        return _classes(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        parts = [_classes(part) for part in typing.get_args(hint)]
        known = [part for part in parts if part is not None]
        return None if len(known) < len(parts) else tuple(cls for part in known for cls in part)
    found = type(None) if hint is None else origin or hint
    if not isinstance(found, type):
        return None
    return (float, int) if found is float else (found,)


def _is_immutable(hint: Any, above: tuple[Any, ...] = ()) -> bool:
    if isinstance(hint, typing.NewType):
        return _is_immutable(hint.__supertype__, above)
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is typing.Annotated:
        return _is_immutable(arguments[0], above)
    if origin is typing.Literal:
        return True
    if origin in (typing.Union, types.UnionType, tuple, frozenset):
        return all(part is Ellipsis or _is_immutable(part, above) for part in arguments)
    if hint in above or hint is None or hint in _IMMUTABLE:
        return True
    if not isinstance(hint, type) or arguments:
        return False
    return issubclass(hint, enum.Enum) or _is_frozen_record(hint, (*above, hint))


def _is_frozen_record(cls: type, above: tuple[Any, ...]) -> bool:
    if dataclasses.is_dataclass(cls):
        frozen = bool(cast("Any", cls).__dataclass_params__.frozen)
    else:
        frozen = issubclass(cls, msgspec.Struct) and bool(cls.__struct_config__.frozen)
    return frozen and all(_is_immutable(hint, above) for hint in typing.get_type_hints(cls).values())
