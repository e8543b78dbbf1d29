"""Expressions as JSON: what a job graph carries.

`node_from_json(node_to_json(node)) == node` for every tree without user-defined aggregates. Those are named only: Python
objects do not travel, a worker finds them again in the user's file.
"""

from __future__ import annotations

import base64
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from penstock.core.times import from_micros, to_micros
from penstock.errors import PipelineError
from penstock.expressions.nodes import Aggregate, Alias, Call, Case, Cast, Column, Literal, Node, Value
from penstock.types import type_from_json, type_to_json

_MICROSECOND = timedelta(microseconds=1)


def node_to_json(node: Node) -> Any:
    """The JSON value of a node."""
    match node:
        case Column(name=name):
            return {"column": name}
        case Literal(value=value):
            return {"literal": _value_to_json(value)}
        case Call(function=function, args=args, options=options):
            return {"call": function, "args": [node_to_json(arg) for arg in args], "options": dict(options)}
        case Cast(operand=operand, to=to, strict=strict):
            return {"cast": node_to_json(operand), "to": type_to_json(to), "strict": strict}
        case Case(branches=branches, otherwise=otherwise):
            pairs = [[node_to_json(condition), node_to_json(value)] for condition, value in branches]
            return {"case": pairs, "otherwise": None if otherwise is None else node_to_json(otherwise)}
        case Alias(operand=operand, name=name):
            return {"alias": name, "of": node_to_json(operand)}
        case Aggregate(function=function, args=args, options=options, accumulator=accumulator):
            form = {"aggregate": function, "args": [node_to_json(arg) for arg in args], "options": dict(options)}
            if accumulator is not None:
                form["accumulator"] = f"{type(accumulator).__module__}:{type(accumulator).__qualname__}"
            return form


def node_from_json(form: Any) -> Node:
    """The inverse of `node_to_json`.

    Raises:
        PipelineError: it holds a user-defined aggregate, or is no expression.
    """
    match form:
        case {"column": name}:
            return Column(name)
        case {"literal": value}:
            return Literal(_value_from_json(value))
        case {"call": function, "args": args, "options": options}:
            return Call(function, tuple(node_from_json(arg) for arg in args), tuple(options.items()))
        case {"cast": operand, "to": to, "strict": strict}:
            return Cast(node_from_json(operand), type_from_json(to), strict)
        case {"case": pairs, "otherwise": otherwise}:
            branches = tuple((node_from_json(condition), node_from_json(value)) for condition, value in pairs)
            return Case(branches, None if otherwise is None else node_from_json(otherwise))
        case {"alias": name, "of": operand}:
            return Alias(node_from_json(operand), name)
        case {"aggregate": _, "accumulator": name}:
            raise PipelineError(f"the user-defined aggregate {name} does not travel as JSON; import the user's file")
        case {"aggregate": function, "args": args, "options": options}:
            return Aggregate(function, tuple(node_from_json(arg) for arg in args), tuple(options.items()))
        case _:
            raise PipelineError(f"{form!r} is not the JSON form of an expression")


def _value_to_json(value: Value) -> Any:
    """Null, booleans, numbers and text as themselves; other constants as an object with their type."""
    match value:
        case float() if not math.isfinite(value):
            return {"float": str(value)}
        case Decimal():
            return {"decimal": str(value)}
        case bytes():
            return {"binary": base64.b64encode(value).decode("ascii")}
        case datetime():
            return {"timestamp": to_micros(value)}
        case date():
            return {"date": value.isoformat()}
        case time():
            return {"time": value.isoformat()}
        case timedelta():
            return {"duration": value // _MICROSECOND}
        case _:
            return value


def _value_from_json(form: Any) -> Value:
    match form:
        case {"float": text}:
            return float(text)
        case {"decimal": text}:
            return Decimal(text)
        case {"binary": text}:
            return base64.b64decode(text)
        case {"timestamp": micros}:
            return from_micros(micros)
        case {"date": text}:
            return date.fromisoformat(text)
        case {"time": text}:
            return time.fromisoformat(text)
        case {"duration": micros}:
            return timedelta(microseconds=micros)
        case _:
            return form
