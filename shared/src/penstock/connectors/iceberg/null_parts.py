"""Null lists and maps of structs, which pyiceberg makes empty ones wherever it fits rows to a schema.

It builds such lists and maps anew from their offsets alone, when it reads as well as when it writes. What it has built is
given the nulls that were there.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def keep_null_parts() -> None:
    """Let pyiceberg keep them, in this process."""
    from pyiceberg.io import pyarrow as fitting

    class KeepsNulls(fitting.ArrowProjectionVisitor):
        def list(self, list_type: Any, list_array: Any, value_array: Any) -> Any:
            return _with_nulls(super().list(list_type, list_array, value_array), list_array)

        def map(self, map_type: Any, map_array: Any, key_result: Any, value_result: Any) -> Any:
            return _with_nulls(super().map(map_type, map_array, key_result, value_result), map_array)

    fitting.ArrowProjectionVisitor = KeepsNulls


def _with_nulls(made: Any, found: Any) -> Any:
    """The list or map that was made, null where the one that was found is."""
    import pyarrow as pa

    if made is None or made.null_count == found.null_count:
        return made
    offsets = pa.array(made.offsets.to_numpy(), made.offsets.type)  # those of a slice cannot have a mask
    parts = (made.keys, made.items) if isinstance(made, pa.MapArray) else (made.values,)
    return type(made).from_arrays(offsets, *parts, type=made.type, mask=found.is_null())
