"""A plan of this process as bytes, for tasks of a pipeline that they cannot import: a notebook's, or of a DataFrame.

Functions and classes of the script and of modules that are not installed are pickled by value, as PySpark does with those
of a notebook: a worker may not have the modules. Of rows' classes that takes three things more. Annotations that are text
are resolved, for the names in them may mean nothing in a task; a `msgspec.Struct` is defined again; and what says that a
field of a dataclass has no default is the one thing of its kind there, too. Classes that Penstock makes for a pipeline
are made again.
"""

from __future__ import annotations

import dataclasses
import io
import os
import sys
import typing
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

import msgspec
from pyspark import cloudpickle

from penstock.connectors.kafka import default_cluster as kafka_platform
from penstock.coordination.artifacts import local_modules
from penstock.errors import PipelineError
from penstock.functions.windows.process import MADE_BY
from penstock.plan.logical import LogicalPlan
from penstock.spark.code import PickledPlan, digest
from penstock.types import is_row_class

_CACHE: Final = "__msgspec_cache__"
"""Where msgspec keeps, on a dataclass, what it knows of it: it cannot be pickled, and is made again when it is missed."""


def pickle_plan(plan: LogicalPlan) -> PickledPlan:
    """A plan with the functions and classes in it.

    Raises:
        PipelineError: something in it cannot be pickled.
    """
    modules = [module for module in local_modules() if module.__name__ != "__main__"]
    buffer = io.BytesIO()
    with _by_value(modules):
        try:
            _Pickler(buffer, frozenset(module.__name__ for module in modules)).dump(plan)
        except Exception as error:  # whatever an object of the user's raises
            raise PipelineError(
                f"{plan.name}: it cannot be sent to Spark's tasks: {type(error).__name__}: {error}. Make connections, "
                "locks and the like where they are used (in open), not where the pipeline is declared"
            ) from error
    folder = _folder_of_main()
    sources = {Path(str(module.__file__)).resolve() for module in local_modules(folder)}
    digests = {str(path.relative_to(folder)): digest(path.read_bytes()) for path in sorted(sources)}
    return PickledPlan(buffer.getvalue(), digests, str(folder), os.getcwd(), *kafka_platform.platform())


def _folder_of_main() -> Path:
    """Where the script lies; of a notebook the working directory."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve().parent if file else Path.cwd()


@contextmanager
def _by_value(modules: Sequence[ModuleType]) -> Generator[None]:
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, modules: frozenset[str]) -> None:
        super().__init__(file)
        self._modules = modules

    def reducer_override(self, obj: Any) -> Any:
        """What else than PySpark would: see the head of the module."""
        if obj is dataclasses.MISSING:
            return "MISSING"  # by its name: a copy would be taken for a default
        if isinstance(obj, type) and MADE_BY in vars(obj):
            return getattr(obj, MADE_BY)
        if isinstance(obj, type) and is_row_class(obj) and self._is_by_value(obj):
            _resolve(obj)
            if _CACHE in vars(obj):
                delattr(obj, _CACHE)
            if issubclass(obj, msgspec.Struct):
                return _define, (obj.__name__, _fields(obj), _config(obj))
        return super().reducer_override(obj)

    def _is_by_value(self, cls: type[Any]) -> bool:
        if cls.__module__ == "__main__" or cls.__module__ in self._modules:
            return True
        found: Any = sys.modules.get(cls.__module__)
        for name in cls.__qualname__.split("."):
            found = getattr(found, name, None)
        return found is not cls  # made in a function


def _resolve(cls: type[Any]) -> None:
    """Put what they mean in the place of annotations that are text, where that is known when the program runs."""
    own = vars(cls).get("__annotations__", {})
    if not any(isinstance(hint, str) for hint in own.values()):
        return
    with suppress(NameError):  # imported for a type checker alone: no row of a stream is of such a class
        hints = typing.get_type_hints(cls, include_extras=True)
        cls.__annotations__ = {name: hints[name] for name in own}


def _fields(cls: type[msgspec.Struct]) -> list[tuple[str, Any, dict[str, Any]]]:
    """Of every field the name, the type, and what else `msgspec.field` takes."""
    known = ("default", "default_factory")
    return [
        (
            field.name,
            field.type,
            {name: getattr(field, name) for name in known if getattr(field, name) is not msgspec.NODEFAULT},
        )
        for field in msgspec.structs.fields(cls)
    ]


def _define(name: str, fields: list[tuple[str, Any, dict[str, Any]]], config: dict[str, Any]) -> type[msgspec.Struct]:
    """The class again, in a task."""
    made = [(field, kind, msgspec.field(**known)) for field, kind, known in fields]
    return msgspec.defstruct(name, made, **config)


def _config(cls: type[msgspec.Struct]) -> dict[str, Any]:
    """What else makes the class: its options, its methods, the names that its fields have elsewhere."""
    config = cls.__struct_config__
    names = ("frozen", "eq", "order", "array_like", "omit_defaults", "forbid_unknown_fields", "weakref", "dict", "gc")
    kinds = (FunctionType, classmethod, staticmethod, property)
    return {
        **{name: getattr(config, name) for name in names},
        "tag": config.tag,
        "tag_field": config.tag_field,
        "kw_only": False,
        "rename": {field.name: field.encode_name for field in msgspec.structs.fields(cls)},
        "module": cls.__module__,
        "namespace": {name: value for name, value in vars(cls).items() if isinstance(value, kinds)},
    }
